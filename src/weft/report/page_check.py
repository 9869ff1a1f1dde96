"""Whether what a file of a comparison holds can be drawn: the first place that can't is told, and nothing is guessed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Check = Callable[[Any, str], Iterator[str]]  # of a value, and of its place: what is wrong with it
MAX_NUMBER = 1e300  # that a whole number may be: beyond it is no float
SUM = "sum"  # of all else, in the file
DEPTH = 4  # of tables in tables, where anything may stand


# ---- values


def _text(value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{at} is no text"


def _number(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(value, int) and abs(value) > MAX_NUMBER):
        yield f"{at} is no number"


def _count(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_NUMBER:
        yield f"{at} is no count"


def _truth(value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{at} is neither true nor false"


def _direction(value: Any, at: str) -> Iterator[str]:
    if value not in ("higher", "lower"):
        yield f"{at} is neither higher nor lower"


def _anything(value: Any, at: str, depth: int = DEPTH) -> Iterator[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not depth:
        yield f"{at} is too deep"
        return
    for one in inner:
        yield from _anything(one, at, depth - 1)


# ---- what holds values


def _or_none(check: Check) -> Check:
    def found(value: Any, at: str) -> Iterator[str]:
        if value is not None:
            yield from check(value, at)

    return found


def _list(check: Check) -> Check:
    def found(value: Any, at: str) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{at} is no list"
            return
        for place, one in enumerate(value):
            yield from check(one, f"{at}[{place}]")

    return found


def _by_name(check: Check) -> Check:
    def found(value: Any, at: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{at} is no table"
            return
        for name, one in value.items():
            yield from check(one, f"{at}.{name}")

    return found


def _table(needed: Mapping[str, Check], possible: Mapping[str, Check] | None = None) -> Check:
    """A table with these names; those that are possible may be missing, or nothing."""

    def found(value: Any, at: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{at or 'it'} is no table"
            return
        before = f"{at}." if at else ""
        for name, check in needed.items():
            yield from check(value[name], before + name) if name in value else [f"{before}{name} is missing"]
        for name, check in (possible or {}).items():
            yield from _or_none(check)(value.get(name), before + name)

    return found


# ---- a comparison

NUMBERS = _list(_or_none(_number))
SCORE = _table({"name": _text, "better": _direction})
ESTIMATE = _table({"value": _or_none(_number)}, {"low": _number, "high": _number, "infinite": _truth})
ROW = _table(
    {"name": _text, "score": ESTIMATE},
    {
        "runs": _list(_text),
        "seeds": _list(_count),
        "scores": _by_name(ESTIMATE),
        "p": _number,
        "best": _truth,
        "alike": _truth,
        "enough": _truth,
        "smallest_p": _number,
        "difference": ESTIMATE,
        **dict.fromkeys(("parameters", "seconds", "tokens_per_second", "peak_memory", "bytes"), _number),
        "decoding": _table({}, {"value": _number, "unit": _text}),
    },
)
POINTS = _list(_table({"step": _count}, dict.fromkeys(("tokens", "seconds", "value"), _number)))
GRADIENTS = _table(
    {"mean": _number, "largest": _number, "clipped": _count, "steps": _count, "learning_rate": _number}, {"clip": _number}
)
CURVE = _table(
    {"name": _text},
    {
        "seed": _count,
        **dict.fromkeys(("train", "valid", "norm", "norm_max", "rate"), POINTS),
        "gradients": GRADIENTS,
        "scores": _table({}, {"train": _text, "valid": _text}),
    },
)
BREAKDOWN = _table(
    {"by": _text, "bins": _list(_text), "counts": _list(_count), "values": _by_name(NUMBERS)},
    {
        "score": SCORE,
        "unit": _text,
        "low": _by_name(NUMBERS),
        "high": _by_name(NUMBERS),
        "precision": _by_name(NUMBERS),
        "recall": _by_name(NUMBERS),
        "infinite": _by_name(_list(_count)),
    },
)
ITEM = _table(
    {"key": _count, "input": _text},
    {
        "reference": _text,
        "outputs": _by_name(_or_none(_text)),
        "values": _by_name(_or_none(_number)),
        "infinite": _list(_text),
    },
)
WRITTEN = _table({"step": _count, "text": _text}, dict.fromkeys(("prompt", "source", "reference"), _text))
TRIAL = _table(
    {"rung": _count, "trial": _count, "settings": _by_name(_anything)},
    {"budget": _number, "score": _table({"name": _text, "value": _number}), "reason": _text},
)
TUNING = _table({"chosen": _count, "trials": _list(TRIAL)})
COMPARISON = _table(
    {"rows": _list(ROW), "score": SCORE},
    {
        **dict.fromkeys(("title", "task", "data", "test", "too_little", "command"), _text),
        "tested": _table({"count": _count, "item": _text}),
        "context": _table({"policy": _text, "text": _text}, {"rows": _by_name(_text)}),
        "curves": _list(CURVE),
        "breakdowns": _list(BREAKDOWN),
        "item_score": SCORE,
        "items": _list(ITEM),
        "confusions": _table({"labels": _list(_text), "matrices": _by_name(_list(_list(_count)))}),
        "samples": _by_name(_list(_text)),
        "samples_over_training": _by_name(_list(WRITTEN)),
        "settings": _by_name(_text),
        "environment": _by_name(_anything),
        "probe": _table({}, {"follows": _by_name(_text)}),
        "tuning": _by_name(TUNING),
        "about": _by_name(_text),
        "failures": _list(_table({"name": _text}, {"seed": _count, "reason": _text})),
    },
)


# ---- what must fit together


def _names(document: Mapping[str, Any]) -> Iterator[str]:
    names = [row["name"] for row in document["rows"]]
    for place, name in enumerate(names):
        if name in names[:place]:
            yield f"rows[{place}].name stands there twice"


def _bins(document: Mapping[str, Any]) -> Iterator[str]:
    """A breakdown has a value, and a count, for each bin."""
    for place, one in enumerate(document.get("breakdowns") or []):
        at, size = f"breakdowns[{place}]", len(one["bins"])
        lists = {"counts": one["counts"]}
        for part in ("values", "low", "high", "precision", "recall"):
            lists |= {f"{part}.{name}": values for name, values in (one.get(part) or {}).items()}
        for name, values in lists.items():
            if len(values) != size:
                yield f"{at}.{name} has {len(values)} values for {size} bins"


def _squares(document: Mapping[str, Any]) -> Iterator[str]:
    """A confusion matrix has a row and a column for each label."""
    found = document.get("confusions") or {"labels": [], "matrices": {}}
    size = len(found["labels"])
    for name, matrix in found["matrices"].items():
        if [len(line) for line in matrix] != [size] * size:
            yield f"confusions.matrices.{name} is not of {size} labels"


def seal(document: Mapping[str, Any]) -> str:
    """A sum of all that a comparison's file holds, but for the sum itself: the same however the file is laid out."""
    held = {name: value for name, value in document.items() if name != SUM}
    text = json.dumps(held, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _whole(document: Mapping[str, Any]) -> Iterator[str]:
    """A file that has a sum holds what was written; one that was made by hand has none."""
    if SUM in document and document[SUM] != seal(document):
        yield f"what it holds is not what its {SUM} was made of"


def find_problem(document: Any) -> str:
    """The first thing that keeps a comparison from being drawn, such as 'rows[2].score is no table'; '' where nothing does."""
    wrong = next(COMPARISON(document, ""), "")
    fitting = (found for check in (_names, _bins, _squares, _whole) for found in check(document))
    return wrong or next(fitting, "")
