"""The data for the script of the report: rows by index, only what the charts show."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from weft.comparison.results import SPLITS
from weft.comparison.scores import metric_label
from weft.metrics.metric import Metric, metrics_of
from weft.plots.formatting import decimals, score_name, truncate, visible
from weft.tasks.registry import known_task

Document = Mapping[str, Any]
MIN_SMOOTHED_POINTS = 40  # curves with at least this many points have a running mean
MAX_POINTS = 600  # of a curve; more than a chart has pixels
MAX_TEXT_CHARS = 2000  # of an input or output
LEVEL = 0.05  # a row with at least this p-value is not significantly worse
MAX_TEXT_BYTES = 2_500_000  # of the texts of all items, so that the page stays well under 5 MB


def _number(value: Any) -> float | int | str | None:
    """A number for JSON with six digits, enough for a chart; JavaScript's Number reads 'Infinity'."""
    if not isinstance(value, int | float) or math.isnan(value):
        return None
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _numbers(values: Any) -> list[Any]:
    return [_number(value) for value in values or []]


def known_score(score: Mapping[str, Any]) -> dict[str, Any]:
    """The value and bounds of a score; infinity where the file marks it, since JSON has none."""
    infinite = math.inf if score.get("infinite") else None
    value = score.get("value")
    return {"value": infinite if value is None else value, "low": score.get("low"), "high": score.get("high")}


def split_name(document: Document) -> str:
    """The data of the scores: test or validation; a document without a split is one of test data."""
    return SPLITS[document.get("split") or "test"]


def is_chosen(document: Document, row: Document) -> bool:
    """Whether a row is the one that the page recommends: the chosen one of a search, else the best one."""
    choice = document.get("choice")
    return bool(row.get("best")) if choice is None else bool(row["name"] == choice["name"])


def is_unclear(row: Document) -> bool:
    """Whether there is too little test data to tell a row from the best one."""
    return not row.get("best") and row.get("has_enough_items") is False


def is_tied(row: Document) -> bool:
    """Whether a row other than the best is not significantly worse, although there is enough test data."""
    p = row.get("p")
    tied = row.get("tied_with_best")
    if row.get("best") or is_unclear(row) or p is None:
        return False
    return bool(p >= LEVEL if tied is None else tied)


def with_infinite(values: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """The values with infinity at these positions: JSON has no infinity."""
    return [math.inf if i in positions else value for i, value in enumerate(values)]


def bin_values(breakdown: Document, name: str) -> list[Any]:
    """The values of a row in a breakdown, bin by bin."""
    values = (breakdown.get("values") or {}).get(name) or [None] * len(breakdown["bins"])
    return with_infinite(values, (breakdown.get("infinite") or {}).get(name) or ())


def metric_of(document: Document, name: str) -> Metric | None:
    """The metric of that name, if the task of the document has it."""
    task = known_task(document.get("task"))
    return None if task is None else metrics_of([*task.validation_suites, *task.eval_suites], [name]).get(name)


def score_label(document: Document, name: str) -> str:
    """The label of a metric on the page: BLEU, bits per char."""
    metric = metric_of(document, name)
    return score_name(visible(name)) if metric is None else metric_label(metric)


def curve_metric(document: Document, part: str) -> dict[str, Any] | None:
    """The metric of the training or validation curves; the most frequent one if runs logged different ones."""
    curves = [curve for curve in document.get("curves") or [] if curve.get(part)]
    names = Counter(name for name in ((curve.get("metrics") or {}).get(part) for curve in curves) if name)
    if not names:
        return dict(document["metric"]) if part == "valid" else None
    name = names.most_common(1)[0][0]
    if part == "train":  # always a loss
        return {"name": name, "better": "lower"}
    metric = metric_of(document, name)
    return {"name": name, "better": document["metric"]["better"] if metric is None else metric.better}


def score_decimals(scores: Sequence[Mapping[str, Any]]) -> int:
    """The number of decimals of a column of scores: by its narrowest interval, else by its values."""
    widths = [(score["high"] - score["low"]) / 2 for score in scores if None not in (score.get("low"), score.get("high"))]
    widths = [width for width in widths if width > 0 and math.isfinite(width)]
    return decimals(widths) if widths else min(4, 1 + decimals(score.get("value") for score in scores))


def _row(document: Document, row: Document) -> dict[str, Any]:
    score = known_score(row["score"])
    costs = ("num_parameters", "seconds", "peak_memory", "model_bytes", "inference_rate")
    return {
        "name": visible(row["name"]),
        **{name: _number(value) for name, value in score.items()},
        "best": is_chosen(document, row),
        **{name: _number(row.get(name)) for name in costs},
    }


def _thin(points: Sequence[Document]) -> Sequence[Document]:
    """Reduce the number of points: keep the minimum and maximum of each segment, so that no spike is lost, and both ends."""
    finite_points = [point for point in points if isinstance(point.get("value"), int | float) and math.isfinite(point["value"])]
    if len(finite_points) <= MAX_POINTS:
        return finite_points
    segment = math.ceil(2 * len(finite_points) / MAX_POINTS)
    selected = {0, len(finite_points) - 1}
    for start in range(0, len(finite_points), segment):
        members = range(start, min(start + segment, len(finite_points)))
        selected |= {
            min(members, key=lambda i: finite_points[i]["value"]),
            max(members, key=lambda i: finite_points[i]["value"]),
        }
    return [finite_points[i] for i in sorted(selected)]


def _smoothed(points: Sequence[Document]) -> Sequence[Document]:
    """Add a running mean over 5% of the curve; near the ends, its window shrinks so that it stays centered."""
    finite_points = [point for point in points if isinstance(point.get("value"), int | float) and math.isfinite(point["value"])]
    half, last = len(finite_points) // 40, len(finite_points) - 1
    if len(finite_points) < MIN_SMOOTHED_POINTS:
        return finite_points
    sums = [0.0, *accumulate(point["value"] for point in finite_points)]
    smoothed = []
    for i, point in enumerate(finite_points):
        radius = min(half, i, last - i)
        mean = (sums[i + radius + 1] - sums[i - radius]) / (2 * radius + 1)
        smoothed.append({**point, "smooth": mean})
    return smoothed


def _series(points: Sequence[Document], *, smooth: bool = False) -> dict[str, list[Any]]:
    selected = _thin(_smoothed(points) if smooth else points)
    values = {name: _numbers(point.get(name) for point in selected) for name in ("step", "tokens", "seconds", "value")}
    return {**values, "smooth": _numbers(point["smooth"] for point in selected if "smooth" in point)}


def curve_points(document: Document, curve: Document, part: str) -> Sequence[Document]:
    """The points of a curve; empty if its metric is not that of the chart."""
    metric = curve_metric(document, part)
    name = (curve.get("metrics") or {}).get(part)
    points: Sequence[Document] = curve.get(part) or []
    return points if metric is None or name in (None, metric["name"]) else []


def _curves(document: Document, indices: Mapping[str, int]) -> list[dict[str, Any]]:
    curves = []
    for curve in document.get("curves") or []:
        if curve["name"] in indices:
            lines = {part: _series(curve_points(document, curve, part), smooth=part == "train") for part in ("train", "valid")}
            for part in ("grad_norm", "grad_norm_max", "learning_rate"):
                lines[part] = _series(curve.get(part) or [], smooth=part == "grad_norm")
            limit = _number((curve.get("gradients") or {}).get("max_grad_norm"))
            curves.append({"row": indices[curve["name"]], "seed": curve.get("seed"), **lines, "max_grad_norm": limit})
    return curves


def _metric(document: Document, metric: Document) -> dict[str, Any]:
    return {"name": score_label(document, metric["name"]), "better": metric["better"]}


def _breakdowns(document: Document, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "by": visible(breakdown["by"]),
            "metric": _metric(document, breakdown.get("metric") or document["metric"]),
            "unit": visible(breakdown.get("unit") or "items"),
            "bins": [visible(str(label)) for label in breakdown["bins"]],
            "counts": list(breakdown["counts"]),
            "values": [_numbers(bin_values(breakdown, name)) for name in names],
            **{
                part: [_numbers((breakdown.get(part) or {}).get(name)) for name in names]
                for part in ("low", "high", "precision", "recall")
            },
        }
        for breakdown in document.get("breakdowns") or []
    ]


def _text_limit(items: Sequence[Document]) -> int:
    """The maximum number of characters of each text that keeps all texts within the limit."""
    sizes = [
        len(text.encode("utf-8", "replace"))
        for item in items
        for text in (item["input"], item.get("reference"), *(item.get("outputs") or {}).values())
        if text is not None
    ]
    limit = MAX_TEXT_CHARS
    while limit > 100 and sum(min(size, 2 * limit) for size in sizes) > MAX_TEXT_BYTES:
        limit = limit * 3 // 4
    return limit


def item_value(item: Document, name: str) -> Any:
    """The score of a row on one item."""
    return math.inf if name in (item.get("infinite") or ()) else (item.get("values") or {}).get(name)


def has_previews(document: Document) -> bool:
    """Whether the page contains sounds or images."""
    return any(item.get("preview") for item in document.get("items") or [])


def _preview(item: Document) -> dict[str, Any]:
    """The sound or the images of an item, if it has them."""
    preview = item.get("preview")
    if not preview:
        return {}
    return {"preview": {"kind": preview["kind"], "urls": list(preview["urls"]), "note": visible(preview.get("note") or "")}}


def _items(document: Document, names: Sequence[str]) -> list[dict[str, Any]]:
    items = document.get("items") or []
    limit = _text_limit(items)

    def text(value: Any) -> str | None:
        return None if value is None else visible(truncate(value, limit))

    return [
        {
            "key": item["key"],
            "input": text(item["input"]),
            "reference": text(item.get("reference") or ""),
            "outputs": [text((item.get("outputs") or {}).get(name)) for name in names],
            "values": _numbers(item_value(item, name) for name in names),
            **_preview(item),
        }
        for item in items
    ]


def _confusions(document: Document, names: Sequence[str]) -> dict[str, Any] | None:
    confusions = document.get("confusions")
    if not confusions:
        return None
    labels = [visible(truncate(str(label), 60)) for label in confusions["labels"]]
    return {"labels": labels, "matrices": [confusions["matrices"].get(name) for name in names]}


def _output_type(document: Document) -> str:
    """The type of a model's output for an item: "text", "labels", "tags" (one per word), or "answer" (a part of the input)."""
    task = known_task(document.get("task"))
    if task is None or task.compare.by_label is None:
        return "text" if task is not None and task.compare.bleu_tokenizer is not None else "answer"
    return "tags" if task.compare.length_unit == "words" else "labels"


def page_data(document: Document) -> dict[str, Any]:
    """The data of the script."""
    rows = document["rows"]
    names = [row["name"] for row in rows]
    units = [row.get("inference_unit") for row in rows]
    metric = document["metric"]
    num_decimals = score_decimals([known_score(row["score"]) for row in rows])
    curves = {part: curve_metric(document, part) for part in ("train", "valid")}
    return {
        "output_type": _output_type(document),
        "metric": {**_metric(document, metric), "decimals": num_decimals},
        "item_metric": _metric(document, document.get("item_metric") or metric),
        "curve_metrics": {part: logged and _metric(document, logged) for part, logged in curves.items()},
        "inference_unit": next((visible(unit) for unit in units if unit), "items/s"),
        "rows": [_row(document, row) for row in rows],
        "curves": _curves(document, {name: i for i, name in enumerate(names)}),
        "breakdowns": _breakdowns(document, names),
        "items": _items(document, names),
        "confusions": _confusions(document, names),
    }


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that is safe inside a <script> element: no character of it can end the element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
