"""Validation of comparison.json: reports the path of the first invalid value."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Check = Callable[[Any, str], Iterator[str]]  # value and its path -> problems
MAX_NUMBER = 1e300  # for integers: larger ones are not floats
CHECKSUM = "checksum"  # of all other keys of the file
DATA_URL = re.compile(r"data:(audio/wav|image/png|image/jpeg);base64,[A-Za-z0-9+/]+={0,2}")
MAX_DEPTH = 4  # of nested objects where any value is allowed


# ---- values


def _text(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{path} is not a string"


def _number(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(value, int) and abs(value) > MAX_NUMBER):
        yield f"{path} is not a number"


def _count(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_NUMBER:
        yield f"{path} is not a count"


def _boolean(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{path} is not a boolean"


def _data_url(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, str) or DATA_URL.fullmatch(value) is None:
        yield f"{path} is not a data: URL of a sound or an image"


def _preview_kind(value: Any, path: str) -> Iterator[str]:
    if value not in ("audio", "image"):
        yield f"{path} is not 'audio' or 'image'"


def _split(value: Any, path: str) -> Iterator[str]:
    if value not in ("test", "valid"):
        yield f"{path} is not 'test' or 'valid'"


def _direction(value: Any, path: str) -> Iterator[str]:
    if value not in ("higher", "lower"):
        yield f"{path} is not 'higher' or 'lower'"


def _anything(value: Any, path: str, depth: int = MAX_DEPTH) -> Iterator[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not depth:
        yield f"{path} is nested too deeply"
        return
    for child in inner:
        yield from _anything(child, path, depth - 1)


# ---- containers


def _or_none(check: Check) -> Check:
    def problems(value: Any, path: str) -> Iterator[str]:
        if value is not None:
            yield from check(value, path)

    return problems


def _list(check: Check) -> Check:
    def problems(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{path} is not an array"
            return
        for index, element in enumerate(value):
            yield from check(element, f"{path}[{index}]")

    return problems


def _by_name(check: Check) -> Check:
    def problems(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{path} is not an object"
            return
        for name, child in value.items():
            yield from check(child, f"{path}.{name}")

    return problems


def _object(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with these keys; optional ones may be missing or null."""

    def problems(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{path or 'the document'} is not an object"
            return
        prefix = f"{path}." if path else ""
        for name, check in required.items():
            yield from check(value[name], prefix + name) if name in value else [f"{prefix}{name} is missing"]
        for name, check in (optional or {}).items():
            yield from _or_none(check)(value.get(name), prefix + name)

    return problems


# ---- a comparison

NUMBERS = _list(_or_none(_number))
METRIC = _object({"name": _text, "better": _direction})
ESTIMATE = _object({"value": _or_none(_number)}, {"low": _number, "high": _number, "infinite": _boolean})
ROW = _object(
    {"name": _text, "score": ESTIMATE},
    {
        "runs": _list(_text),
        "seeds": _list(_count),
        "scores": _by_name(ESTIMATE),
        "p": _number,
        "best": _boolean,
        "tied_with_best": _boolean,
        "has_enough_items": _boolean,
        "smallest_p": _number,
        "difference": ESTIMATE,
        **dict.fromkeys(("num_parameters", "num_active_parameters", "seconds", "tokens_per_second"), _number),
        **dict.fromkeys(("peak_memory", "model_bytes"), _number),
        "inference_rate": _number,
        "inference_unit": _text,
        **dict.fromkeys(("train_hosts", "train_hardware", "inference_hardware"), _list(_text)),
    },
)
POINTS = _list(_object({"step": _count}, dict.fromkeys(("tokens", "seconds", "value"), _number)))
GRADIENTS = _object(
    {"mean": _number, "max": _number, "clipped": _count, "steps": _count, "lr": _number},
    {"max_grad_norm": _number},
)
CURVE = _object(
    {"name": _text},
    {
        "seed": _count,
        **dict.fromkeys(("train", "valid", "grad_norm", "grad_norm_max", "learning_rate"), POINTS),
        "gradients": GRADIENTS,
        "metrics": _object({}, {"train": _text, "valid": _text}),
        "others": _by_name(POINTS),
    },
)
BREAKDOWN = _object(
    {"by": _text, "bins": _list(_text), "counts": _list(_count), "values": _by_name(NUMBERS)},
    {
        "metric": METRIC,
        "unit": _text,
        "low": _by_name(NUMBERS),
        "high": _by_name(NUMBERS),
        "precision": _by_name(NUMBERS),
        "recall": _by_name(NUMBERS),
        "infinite": _by_name(_list(_count)),
    },
)
PREVIEW = _object({"kind": _preview_kind, "urls": _list(_data_url)}, {"note": _text})
ITEM = _object(
    {"key": _count, "input": _text},
    {
        "reference": _text,
        "outputs": _by_name(_or_none(_text)),
        "values": _by_name(_or_none(_number)),
        "infinite": _list(_text),
        "preview": PREVIEW,
    },
)
SAMPLE = _object({"step": _count, "text": _text}, dict.fromkeys(("prompt", "source", "reference"), _text))
TRIAL = _object(
    {"rung": _count, "trial": _count, "options": _by_name(_anything)},
    {"budget": _number, "score": _object({"name": _text, "value": _number}), "reason": _text},
)
TUNING = _object({"chosen": _count, "trials": _list(TRIAL)})
COMPARISON = _object(
    {"rows": _list(ROW), "metric": METRIC},
    {
        **dict.fromkeys(("title", "task", "data", "test", "test_details", "insufficient_data", "command"), _text),
        "split": _split,
        "test_items": _object({"count": _count, "item": _text}),
        "context": _object({"policy": _text, "text": _text}, {"rows": _by_name(_text)}),
        "curves": _list(CURVE),
        "breakdowns": _list(BREAKDOWN),
        "item_metric": METRIC,
        "items": _list(ITEM),
        "confusions": _object({"labels": _list(_text), "matrices": _by_name(_list(_list(_count)))}),
        "samples": _by_name(_list(_text)),
        "samples_over_training": _by_name(_list(SAMPLE)),
        "configs": _by_name(_text),
        "environment": _by_name(_anything),
        "minimal_pairs": _object({}, {"follows": _by_name(_text)}),
        "tuning": _by_name(TUNING),
        "about": _by_name(_text),
        "choice": _object(dict.fromkeys(("name", "score", "reason", "test"), _text)),
        "failures": _list(_object({"name": _text}, {"seed": _count, "reason": _text})),
    },
)


# ---- consistency


def _unique_names(document: Mapping[str, Any]) -> Iterator[str]:
    names = [row["name"] for row in document["rows"]]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f"rows[{index}].name is not unique"


def _bin_counts(document: Mapping[str, Any]) -> Iterator[str]:
    """A breakdown has a value and a count for each bin."""
    for index, breakdown in enumerate(document.get("breakdowns") or []):
        path, size = f"breakdowns[{index}]", len(breakdown["bins"])
        lists = {"counts": breakdown["counts"]}
        for part in ("values", "low", "high", "precision", "recall"):
            lists |= {f"{part}.{name}": values for name, values in (breakdown.get(part) or {}).items()}
        for name, values in lists.items():
            if len(values) != size:
                yield f"{path}.{name} has {len(values)} values for {size} bins"


def _confusion_shapes(document: Mapping[str, Any]) -> Iterator[str]:
    """A confusion matrix has a row and a column for each label."""
    confusions = document.get("confusions") or {"labels": [], "matrices": {}}
    size = len(confusions["labels"])
    for name, matrix in confusions["matrices"].items():
        if [len(line) for line in matrix] != [size] * size:
            yield f"confusions.matrices.{name} is not {size} x {size}"


def checksum(document: Mapping[str, Any]) -> str:
    """The SHA-256 of the document without its checksum, independent of the layout of the file."""
    content = {name: value for name, value in document.items() if name != CHECKSUM}
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _has_valid_checksum(document: Mapping[str, Any]) -> Iterator[str]:
    """A checksum must match; a file written by hand has none."""
    if CHECKSUM in document and document[CHECKSUM] != checksum(document):
        yield f"{CHECKSUM} does not match the content"


def find_problem(document: Any) -> str:
    """The first problem of the document, such as 'rows[2].score is not an object'; '' if it is valid."""
    problem = next(COMPARISON(document, ""), "")
    consistency = (
        text for check in (_unique_names, _bin_counts, _confusion_shapes, _has_valid_checksum) for text in check(document)
    )
    return problem or next(consistency, "")
