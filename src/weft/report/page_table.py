"""The table of a comparison as HTML, with confidence intervals on a common scale; a script sorts it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from weft.plots.formatting import MISSING, duration, finite, html, number, p_value, short, size
from weft.report.page_data import Document, is_chosen, is_tied, is_unclear, known_score, score_decimals, score_label, split_name

WIDTH, HEIGHT = 110, 18  # of the chart of an interval
MAX_UNBROKEN_CHARS = 20  # longer names may be broken into lines
COLORS = 8  # .c0 to .c7 in page.css
SIGNS = ("circle", "square", "triangle", "diamond", "plus", "cross", "down")  # as script/base.js draws them
SHAPES = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "square": "M-3.6 -3.6h7.2v7.2h-7.2z",
    "triangle": "M0 -4.8L4.6 3.6H-4.6z",
    "diamond": "M0 -5L5 0L0 5L-5 0z",
    "plus": "M-1.4 -4.6h2.8v3.2h3.2v2.8h-3.2v3.2h-2.8v-3.2h-3.2v-2.8h3.2z",
    "cross": "M-4.4 -2.4L-2.4 -4.4L0 -2L2.4 -4.4L4.4 -2.4L2 0L4.4 2.4L2.4 4.4L0 2L-2.4 4.4L-4.4 2.4L-2 0z",
    "down": "M0 4.8L4.6 -3.6H-4.6z",
}


class Cell(NamedTuple):
    text: str  # HTML
    value: float | str | None  # the sort key
    note: str = ""  # HTML, smaller, below the text


class Column(NamedTuple):
    head: str
    cell: Callable[[Mapping[str, Any]], Cell]
    better: str | None  # "higher", "lower", or None


def sign(index: int) -> str:
    """The color and shape of a row in all charts."""
    shape = SHAPES[SIGNS[index % len(SIGNS)]]
    return f'<svg class="sign c{index % COLORS}" viewBox="-6 -6 12 12" aria-hidden="true"><path d="{shape}"/></svg>'


def _scale(scores: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The minimum and maximum of all intervals, with some margin."""
    values = [
        value for score in scores for value in map(finite, (score["low"], score["value"], score["high"])) if value is not None
    ]
    if not values:
        return None
    margin = (max(values) - min(values)) * 0.04 or 1.0
    return min(values) - margin, max(values) + margin


def _interval_svg(score: Mapping[str, Any], scale: tuple[float, float] | None, index: int, best: float | None) -> str:
    """An interval as a bar with a point; a line marks the value of the best row."""
    value = finite(score["value"])
    if value is None or scale is None:
        return ""

    def x(score_value: float) -> str:
        return f"{4 + (WIDTH - 8) * (score_value - scale[0]) / (scale[1] - scale[0]):.1f}"

    low, high = finite(score["low"]), finite(score["high"])
    middle = HEIGHT // 2
    line = f'<path class="guide" d="M{x(best)} 0V{HEIGHT}"/>' if best is not None else ""
    bar = ""
    if low is not None and high is not None:
        bar = f'<path class="bar" d="M{x(low)} {middle}H{x(high)}M{x(low)} {middle - 4}v8M{x(high)} {middle - 4}v8"/>'
    shape = SHAPES[SIGNS[index % len(SIGNS)]]
    point = f'<path class="point" transform="translate({x(value)} {middle})" d="{shape}"/>'
    return f'<svg class="interval c{index % COLORS}" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{line}{bar}{point}</svg>'


def _score_cell(score: Mapping[str, Any], decimals: int) -> Cell:
    """A score and its interval."""
    bounds = [number(score[name], decimals) for name in ("low", "high")]
    note = f"[{bounds[0]}, {bounds[1]}]" if MISSING not in bounds else ""
    return Cell(number(score["value"], decimals), score["value"], note)


def _p_column(split: str) -> Callable[[Mapping[str, Any]], Cell]:
    """The p-value of the difference from the best row, on test or validation data."""

    def cell(row: Mapping[str, Any]) -> Cell:
        if row.get("best"):
            return Cell("best", 2.0)  # sorts after every p
        p = finite(row.get("p"))
        if is_unclear(row):
            return Cell("?", p, f"too little<br>{split} data")
        return Cell(html(p_value(p)), p, "not significantly<br>worse" if is_tied(row) else "")

    return cell


def _difference_column(decimals: int) -> Callable[[Mapping[str, Any]], Cell]:
    """The difference from the best row, with its interval."""

    def signed(value: float | None) -> str:
        return MISSING if value is None else f"{'+' if value > 0 else ''}{number(value, decimals)}"

    def cell(row: Mapping[str, Any]) -> Cell:
        difference = row.get("difference") or {}
        value, low, high = (finite(difference.get(name)) for name in ("value", "low", "high"))
        note = "" if low is None or high is None else f"[{signed(low)}, {signed(high)}]"
        return Cell("" if value is None else signed(value), value, note)

    return cell


def _number_column(name: str, formatter: Callable[[Any], str]) -> Callable[[Mapping[str, Any]], Cell]:
    """A column of numbers; the tooltip has the exact number."""

    def cell(row: Mapping[str, Any]) -> Cell:
        value = finite(row.get(name))
        exact = "" if value is None else f' title="{value:,.10g}"'
        return Cell(f"<span{exact}>{formatter(value)}</span>", value)

    return cell


def _seeds(row: Mapping[str, Any]) -> Cell:
    seeds = row.get("seeds") or []
    return Cell(f'<span title="{html(", ".join(map(str, seeds)))}">{len(seeds)}</span>', len(seeds))


def mixed_hardware(document: Document) -> list[str]:
    """The hardware that runs were trained on, if it differs between them."""
    names = list(dict.fromkeys(name for row in document["rows"] for name in row.get("train_hardware") or []))
    return names if len(names) > 1 else []


def mixed_hardware_mark(document: Document) -> str:
    """The mark of columns whose numbers cannot be compared, because they were measured on different hardware."""
    names = mixed_hardware(document)
    return f'<small title="{html("; ".join(names))}"> (mixed hardware)</small>' if names else ""


def _columns(document: Document) -> list[Column]:
    """All columns but the name and the main score."""
    units = [row.get("inference_unit") for row in document["rows"]]
    unit = next((unit for unit in units if unit), "items/s")
    rows = document["rows"]
    scores = [known_score(row["difference"]) for row in rows if row.get("difference")]
    difference_columns = [Column("difference from best", _difference_column(score_decimals(scores)), None)] if scores else []
    has_experts = any(row.get("num_active_parameters") for row in rows)
    active = Column("active params", _number_column("num_active_parameters", short), "lower")
    active_columns = [active] if has_experts else []
    seed_columns = [Column("seeds", _seeds, None)] if {len(row.get("seeds") or [0]) for row in rows} != {1} else []
    mark = mixed_hardware_mark(document)
    return [
        *difference_columns,
        Column("p", _p_column(split_name(document)), None),
        *seed_columns,
        Column("params", _number_column("num_parameters", short), "lower"),
        *active_columns,
        Column(f"train time{mark}", _number_column("seconds", duration), "lower"),
        Column(f"train tok/s{mark}", _number_column("tokens_per_second", short), "higher"),
        Column("peak memory", _number_column("peak_memory", size), "lower"),
        Column(html(unit), _number_column("inference_rate", short), "higher"),
        Column("size on disk", _number_column("model_bytes", size), "lower"),
    ]


def _head(text: str, *, better: str = "", sort: str = "none", attributes: str = "") -> str:
    """A sortable column header; `better` is the direction of the first sort."""
    first = f' data-first="{better}"' if better else ""
    button = f'<button type="button" class="sort"{first}>{text}<span class="arrow" aria-hidden="true"></span></button>'
    return f'<th scope="col" aria-sort="{sort}"{attributes}>{button}</th>'


def _cell(cell: Cell, *, extra: str = "", attributes: str = "") -> str:
    value = cell.value
    key = "" if value is None else f' data-value="{html(value)}"'
    note = f"<small>{cell.note}</small>" if cell.note else ""
    content = f'<span class="with-chart"><span>{cell.text}{note}</span>{extra}</span>' if extra else cell.text + note
    return f"<td{key}{attributes}>{content}</td>"


def _name(document: Document, index: int) -> str:
    row, word = document["rows"][index], "chosen" if document.get("choice") else "best"
    star = f'&nbsp;<span class="star" title="{word}">★<span class="visually-hidden"> {word}</span></span>'
    star = star if is_chosen(document, row) else ""
    text = re.sub("([,=])", r"\1<wbr>", html(row["name"]))  # "lstm,attention=none" may break after , and =
    css_class = ' class="short"' if len(row["name"]) <= MAX_UNBROKEN_CHARS else ""
    name = f'<span class="name">{sign(index)}<span><bdi{css_class}>{text}</bdi>{star}</span></span>'
    return f'<th scope="row" data-value="{html(row["name"])}">{name}</th>'


def ranked(document: Document) -> list[int]:
    """The indices of the rows, the best first, those without a score last."""
    worst = float("inf")
    ascending = document["metric"]["better"] == "lower"

    def key(index: int) -> float:
        value = finite(known_score(document["rows"][index]["score"])["value"])
        return worst if value is None else value if ascending else -value

    return sorted(range(len(document["rows"])), key=key)


def _best_values(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """The best value of each column, if the column has one."""
    best: list[float | None] = []
    for column in columns:
        values = [value for value in (finite(column.cell(row).value) for row in rows) if value is not None]
        several = column.better is not None and len(set(values)) > 1
        best.append((min if column.better == "lower" else max)(values) if several else None)
    return best


def table(document: Document) -> str:
    """The main table, sorted by score."""
    rows, metric = document["rows"], document["metric"]
    scores = [known_score(row["score"]) for row in rows]
    decimals, scale = score_decimals(scores), _scale(scores)
    best = next((finite(score["value"]) for score, row in zip(scores, rows, strict=True) if row.get("best")), None)
    columns = [column for column in _columns(document) if any(column.cell(row).value is not None for row in rows)]
    best_values = _best_values(columns, rows)
    order = "ascending" if metric["better"] == "lower" else "descending"
    label = html(score_label(document, metric["name"]))
    heads = [_head("model"), _head(label, better=metric["better"], sort=order, attributes=' class="wide"')]
    heads += [_head(column.head, better=column.better or "") for column in columns]
    lines = []
    for index in ranked(document):
        row = rows[index]
        drawing = _interval_svg(scores[index], scale, index, best)
        cells = [_cell(_score_cell(scores[index], decimals), extra=drawing, attributes=' class="wide"')]
        for column, top in zip(columns, best_values, strict=True):
            cell = column.cell(row)
            cells.append(_cell(cell, attributes=' class="best-value"' if top is not None and cell.value == top else ""))
        lines.append(f"<tr{' class=best' if is_chosen(document, row) else ''}>{_name(document, index)}{''.join(cells)}</tr>")
    legend = "Bars are 95% confidence intervals, the dashed line is the best score; bold marks the best value of a column."
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="results"><table class="results sortable">'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        f'<p class="note">{label}: {metric["better"]} is better. {legend}</p>'
    )


def score_table(document: Document) -> str:
    """All metrics of all rows; '' if there is only one metric."""
    rows = document["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row.get("scores") or {}))
    if len(names) < 2:
        return ""
    empty = {"value": None, "low": None, "high": None}
    scores = {name: [known_score((row.get("scores") or {}).get(name) or empty) for row in rows] for name in names}
    decimals = {name: score_decimals(column) for name, column in scores.items()}
    heads = [_head("model"), *(_head(html(score_label(document, name))) for name in names)]
    lines = []
    for index in ranked(document):
        cells = "".join(_cell(_score_cell(scores[name][index], decimals[name])) for name in names)
        lines.append(f"<tr>{_name(document, index)}{cells}</tr>")
    return (
        f"<details><summary>All {len(names)} metrics</summary>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="all metrics"><table class="sortable">'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></details>"
    )
