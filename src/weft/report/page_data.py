"""What a report's script reads: the comparison with its rows by number, as small as it can be without losing a picture."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from weft.metrics.metric import Metric, metrics_of
from weft.plots.formatting import cut, decimals, score_name, visible
from weft.tasks.registry import known_task

Document = Mapping[str, Any]
NOISY = 40  # points of a curve from which on it has a running mean
POINTS = 600  # of a curve; more than there are pixels across
MAX_TEXT_CHARS = 2000  # letters of an input or output that are shown
LEVEL = 0.05  # of p, from which on a row can't be told from the best
BUDGET = 2_500_000  # bytes of all items' texts; a page that goes by mail must stay well under 5 MB


def _number(value: Any) -> float | int | str | None:
    """As JSON can hold it, with the digits that a picture can show; JavaScript's Number reads 'Infinity'."""
    if not isinstance(value, int | float) or math.isnan(value):
        return None
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _numbers(values: Any) -> list[Any]:
    return [_number(value) for value in values or []]


def known_score(score: Mapping[str, Any]) -> dict[str, Any]:
    """A score's value and bounds; infinity where a file, which can't hold it, says that it was infinite."""
    infinite = math.inf if score.get("infinite") else None
    value = score.get("value")
    return {"value": infinite if value is None else value, "low": score.get("low"), "high": score.get("high")}


def is_unclear(row: Document) -> bool:
    """Whether there is too little test data to tell a row from the best one."""
    return not row.get("best") and row.get("enough") is False


def is_tied(row: Document) -> bool:
    """Whether the test, which could have told it, can't tell a row from the best one, which it is not itself."""
    p = row.get("p")
    told = row.get("alike")
    if row.get("best") or is_unclear(row) or p is None:
        return False
    return bool(p >= LEVEL if told is None else told)


def with_infinite(values: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Values with infinity where a file, which can't hold it, says that it was."""
    return [math.inf if at in places else value for at, value in enumerate(values)]


def bin_values(breakdown: Document, name: str) -> list[Any]:
    """A row's values in a breakdown, bin by bin."""
    values = (breakdown.get("values") or {}).get(name) or [None] * len(breakdown["bins"])
    return with_infinite(values, (breakdown.get("infinite") or {}).get(name) or ())


def metric_of(document: Document, name: str) -> Metric | None:
    """What a score of a document is, if it is one of its task's."""
    task = known_task(document.get("task"))
    return None if task is None else metrics_of([*task.validation, *task.suites], [name]).get(name)


def score_label(document: Document, name: str) -> str:
    """How a page names a score: BLEU, bits/character."""
    metric = metric_of(document, name)
    return metric.label if metric is not None and metric.label else score_name(visible(name))


def curve_score(document: Document, part: str) -> dict[str, Any] | None:
    """What the training or validation curves are of; the most frequent, should runs have been watched by several scores."""
    curves = [curve for curve in document.get("curves") or [] if curve.get(part)]
    names = Counter(name for name in ((curve.get("scores") or {}).get(part) for curve in curves) if name)
    if not names:
        return dict(document["score"]) if part == "valid" else None
    name = names.most_common(1)[0][0]
    if part == "train":  # always a loss
        return {"name": name, "better": "lower"}
    metric = metric_of(document, name)
    return {"name": name, "better": document["score"]["better"] if metric is None else metric.better}


def score_decimals(scores: Sequence[Mapping[str, Any]]) -> int:
    """How many decimals a column of scores needs: by its narrowest interval, else by its values."""
    widths = [(score["high"] - score["low"]) / 2 for score in scores if None not in (score.get("low"), score.get("high"))]
    widths = [width for width in widths if width > 0 and math.isfinite(width)]
    return decimals(widths) if widths else min(4, 1 + decimals(score.get("value") for score in scores))


def _row(row: Document) -> dict[str, Any]:
    score, decoding = known_score(row["score"]), row.get("decoding") or {}
    costs = {name: _number(row.get(name)) for name in ("parameters", "seconds", "peak_memory", "bytes")}
    return {
        "name": visible(row["name"]),
        **{name: _number(value) for name, value in score.items()},
        "best": bool(row.get("best")),
        **costs,
        "decoding": _number(decoding.get("value")),
    }


def _thin(points: Sequence[Document]) -> Sequence[Document]:
    """A curve with fewer points: of each stretch the lowest and the highest, so that no spike is lost; and both ends."""
    drawn = [point for point in points if isinstance(point.get("value"), int | float) and math.isfinite(point["value"])]
    if len(drawn) <= POINTS:
        return drawn
    stretch = math.ceil(2 * len(drawn) / POINTS)
    kept = {0, len(drawn) - 1}
    for start in range(0, len(drawn), stretch):
        places = range(start, min(start + stretch, len(drawn)))
        kept |= {min(places, key=lambda at: drawn[at]["value"]), max(places, key=lambda at: drawn[at]["value"])}
    return [drawn[at] for at in sorted(kept)]


def _smoothed(points: Sequence[Document]) -> Sequence[Document]:
    """The points, each with the mean of those around it, 5 % of the curve; at its ends of as many as lie on both sides."""
    drawn = [point for point in points if isinstance(point.get("value"), int | float) and math.isfinite(point["value"])]
    half, last = len(drawn) // 40, len(drawn) - 1
    if len(drawn) < NOISY:
        return drawn
    sums = [0.0, *accumulate(point["value"] for point in drawn)]
    found = []
    for at, point in enumerate(drawn):
        reach = min(half, at, last - at)
        mean = (sums[at + reach + 1] - sums[at - reach]) / (2 * reach + 1)
        found.append({**point, "smooth": mean})
    return found


def _series(points: Sequence[Document], *, smooth: bool = False) -> dict[str, list[Any]]:
    drawn = _thin(_smoothed(points) if smooth else points)
    values = {name: _numbers(point.get(name) for point in drawn) for name in ("step", "tokens", "seconds", "value")}
    return {**values, "smooth": _numbers(point["smooth"] for point in drawn if "smooth" in point)}


def curve_points(document: Document, curve: Document, part: str) -> Sequence[Document]:
    """The points of a curve; none where it is of another score than most, which no axis could hold as well."""
    score = curve_score(document, part)
    own = (curve.get("scores") or {}).get(part)
    points: Sequence[Document] = curve.get(part) or []
    return points if score is None or own in (None, score["name"]) else []


def _curves(document: Document, places: Mapping[str, int]) -> list[dict[str, Any]]:
    found = []
    for curve in document.get("curves") or []:
        if curve["name"] in places:
            lines = {part: _series(curve_points(document, curve, part), smooth=part == "train") for part in ("train", "valid")}
            lines |= {part: _series(curve.get(part) or [], smooth=part == "norm") for part in ("norm", "norm_max", "rate")}
            clip = _number((curve.get("gradients") or {}).get("clip"))
            found.append({"row": places[curve["name"]], "seed": curve.get("seed"), **lines, "clip": clip})
    return found


def _score(document: Document, score: Document) -> dict[str, Any]:
    return {"name": score_label(document, score["name"]), "better": score["better"]}


def _breakdowns(document: Document, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "by": visible(one["by"]),
            "score": _score(document, one.get("score") or document["score"]),
            "unit": visible(one.get("unit") or "items"),
            "bins": [visible(str(label)) for label in one["bins"]],
            "counts": list(one["counts"]),
            "values": [_numbers(bin_values(one, name)) for name in names],
            **{
                part: [_numbers((one.get(part) or {}).get(name)) for name in names]
                for part in ("low", "high", "precision", "recall")
            },
        }
        for one in document.get("breakdowns") or []
    ]


def _text_limit(items: Sequence[Document]) -> int:
    """How many letters of each text may stand in the page, so that all of them together keep to the budget."""
    sizes = [
        len(text.encode("utf-8", "replace"))
        for item in items
        for text in (item["input"], item.get("reference"), *(item.get("outputs") or {}).values())
        if text is not None
    ]
    limit = MAX_TEXT_CHARS
    while limit > 100 and sum(min(size, 2 * limit) for size in sizes) > BUDGET:
        limit = limit * 3 // 4
    return limit


def item_value(item: Document, name: str) -> Any:
    """A row's score of one item."""
    return math.inf if name in (item.get("infinite") or ()) else (item.get("values") or {}).get(name)


def _items(document: Document, names: Sequence[str]) -> list[dict[str, Any]]:
    items = document.get("items") or []
    limit = _text_limit(items)

    def text(value: Any) -> str | None:
        return None if value is None else visible(cut(value, limit))

    return [
        {
            "key": item["key"],
            "input": text(item["input"]),
            "reference": text(item.get("reference") or ""),
            "outputs": [text((item.get("outputs") or {}).get(name)) for name in names],
            "values": _numbers(item_value(item, name) for name in names),
        }
        for item in items
    ]


def _confusions(document: Document, names: Sequence[str]) -> dict[str, Any] | None:
    found = document.get("confusions")
    if not found:
        return None
    labels = [visible(cut(str(label), 60)) for label in found["labels"]]
    return {"labels": labels, "matrices": [found["matrices"].get(name) for name in names]}


def page_data(document: Document) -> dict[str, Any]:
    """The comparison as the script reads it."""
    rows = document["rows"]
    names = [row["name"] for row in rows]
    units = [(row.get("decoding") or {}).get("unit") for row in rows]
    score = document["score"]
    places = score_decimals([known_score(row["score"]) for row in rows])
    curves = {part: curve_score(document, part) for part in ("train", "valid")}
    return {
        "task": visible(document.get("task") or ""),
        "score": {**_score(document, score), "decimals": places},
        "item_score": _score(document, document.get("item_score") or score),
        "curve_scores": {part: found and _score(document, found) for part, found in curves.items()},
        "unit": next((visible(unit) for unit in units if unit), "items/s"),
        "rows": [_row(row) for row in rows],
        "curves": _curves(document, {name: at for at, name in enumerate(names)}),
        "breakdowns": _breakdowns(document, names),
        "items": _items(document, names),
        "confusions": _confusions(document, names),
    }


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that may stand in a page: no letter of it can end the element it stands in."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
