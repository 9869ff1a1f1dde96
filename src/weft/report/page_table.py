"""The table of a comparison as HTML: every row with its intervals drawn on one scale; a script sorts it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from weft.plots.formatting import MISSING, duration, finite, html, number, p_value, short, size
from weft.report.page_data import Document, is_tied, is_unclear, known_score, score_decimals, score_label

WIDTH, HEIGHT = 110, 18  # of a drawn interval
SHORT = 20  # letters of a name that stays on one line
COLOURS = 8  # .c0 to .c7 in page.css
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
    value: float | str | None  # what it is sorted by
    on_note: str = ""  # HTML, smaller, beneath


class Column(NamedTuple):
    head: str
    cell: Callable[[Mapping[str, Any]], Cell]
    better: str | None  # "higher", "lower", or neither: a name is not better than another


def sign(place: int) -> str:
    """A row's colour and shape, as it has them in every chart."""
    shape = SHAPES[SIGNS[place % len(SIGNS)]]
    return f'<svg class="sign c{place % COLOURS}" viewBox="-6 -6 12 12" aria-hidden="true"><path d="{shape}"/></svg>'


def _scale(scores: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The least and the greatest that any interval reaches, with a little room."""
    known = [
        value for score in scores for value in map(finite, (score["low"], score["value"], score["high"])) if value is not None
    ]
    if not known:
        return None
    room = (max(known) - min(known)) * 0.04 or 1.0
    return min(known) - room, max(known) + room


def _drawn(score: Mapping[str, Any], scale: tuple[float, float] | None, place: int, best: float | None) -> str:
    """An interval as a bar with a point; the best row's value is a line through all of them."""
    value = finite(score["value"])
    if value is None or scale is None:
        return ""

    def x(at: float) -> str:
        return f"{4 + (WIDTH - 8) * (at - scale[0]) / (scale[1] - scale[0]):.1f}"

    low, high = finite(score["low"]), finite(score["high"])
    middle = HEIGHT // 2
    line = f'<path class="guide" d="M{x(best)} 0V{HEIGHT}"/>' if best is not None else ""
    bar = ""
    if low is not None and high is not None:
        bar = f'<path class="bar" d="M{x(low)} {middle}H{x(high)}M{x(low)} {middle - 4}v8M{x(high)} {middle - 4}v8"/>'
    shape = SHAPES[SIGNS[place % len(SIGNS)]]
    point = f'<path class="point" transform="translate({x(value)} {middle})" d="{shape}"/>'
    return (
        f'<svg class="interval c{place % COLOURS}" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{line}{bar}{point}</svg>'
    )


def _score_cell(score: Mapping[str, Any], places: int) -> Cell:
    """A score and its interval; infinity is the greatest of all."""
    bounds = [number(score[name], places) for name in ("low", "high")]
    note = f"{bounds[0]} to {bounds[1]}" if MISSING not in bounds else ""
    return Cell(number(score["value"], places), score["value"], note)


def _p_cell(row: Mapping[str, Any]) -> Cell:
    if row.get("best"):
        return Cell("best", 2.0)  # nothing is less different from the best than itself
    p = finite(row.get("p"))
    if is_unclear(row):
        return Cell("?", p, "too little<br>test data to tell")
    return Cell(html(p_value(p)), p, "not significantly<br>worse" if is_tied(row) else "")


def _difference(places: int) -> Callable[[Mapping[str, Any]], Cell]:
    """How far a row is above the best one, with its interval."""

    def signed(value: float | None) -> str:
        return MISSING if value is None else f"{'+' if value > 0 else ''}{number(value, places)}"

    def cell(row: Mapping[str, Any]) -> Cell:
        found = row.get("difference") or {}
        value, low, high = (finite(found.get(name)) for name in ("value", "low", "high"))
        note = "" if low is None or high is None else f"{signed(low)} to {signed(high)}"
        return Cell("" if value is None else signed(value), value, note)

    return cell


def _decoding(row: Mapping[str, Any]) -> float | None:
    return finite((row.get("decoding") or {}).get("value"))


def _plain(name: str, form: Callable[[Any], str]) -> Callable[[Mapping[str, Any]], Cell]:
    """A column of a number that a row has by this name; the exact one is seen by pointing at it."""

    def cell(row: Mapping[str, Any]) -> Cell:
        value = finite(row.get(name))
        exact = "" if value is None else f' title="{value:,.10g}"'
        return Cell(f"<span{exact}>{form(value)}</span>", value)

    return cell


def _seeds(row: Mapping[str, Any]) -> Cell:
    seeds = row.get("seeds") or []
    return Cell(f'<span title="{html(", ".join(map(str, seeds)))}">{len(seeds)}</span>', len(seeds))


def _columns(document: Document) -> list[Column]:
    """All but the row's name and its main score."""
    units = [(row.get("decoding") or {}).get("unit") for row in document["rows"]]
    unit = next((unit for unit in units if unit), "items/s")
    rows = document["rows"]
    known = [known_score(row["difference"]) for row in rows if row.get("difference")]
    apart = [Column("difference from the best", _difference(score_decimals(known)), None)] if known else []
    several = [Column("seeds", _seeds, None)] if {len(row.get("seeds") or [0]) for row in rows} != {1} else []
    return [
        *apart,
        Column("p", _p_cell, None),
        *several,
        Column("parameters", _plain("parameters", short), "lower"),
        Column("training", _plain("seconds", duration), "lower"),
        Column("tokens/s", _plain("tokens_per_second", short), "higher"),
        Column("peak memory", _plain("peak_memory", size), "lower"),
        Column(f"decoding, {html(unit)}", lambda row: Cell(short(_decoding(row)), _decoding(row)), "higher"),
        Column("on disk", _plain("bytes", size), "lower"),
    ]


def _head(text: str, *, better: str = "", sort: str = "none", kind: str = "") -> str:
    """A head that sorts; `better` says which end is shown first."""
    first = f' data-first="{better}"' if better else ""
    button = f'<button type="button" class="sort"{first}>{text}<span class="arrow" aria-hidden="true"></span></button>'
    return f'<th scope="col" aria-sort="{sort}"{kind}>{button}</th>'


def _cell(cell: Cell, *, extra: str = "", kind: str = "") -> str:
    value = cell.value
    key = "" if value is None else f' data-value="{html(value)}"'
    note = f"<small>{cell.on_note}</small>" if cell.on_note else ""
    told = f'<span class="drawing"><span>{cell.text}{note}</span>{extra}</span>' if extra else cell.text + note
    return f"<td{key}{kind}>{told}</td>"


def _name(row: Mapping[str, Any], place: int) -> str:
    star = '&nbsp;<span class="star" title="best">★<span class="unseen"> best</span></span>' if row.get("best") else ""
    told = re.sub("([,=])", r"\1<wbr>", html(row["name"]))  # "lstm,attention=none" breaks where it means something
    kind = ' class="short"' if len(row["name"]) <= SHORT else ""
    name = f'<span class="name">{sign(place)}<span><bdi{kind}>{told}</bdi>{star}</span></span>'
    return f'<th scope="row" data-value="{html(row["name"])}">{name}</th>'


def ranked(document: Document) -> list[int]:
    """The places of the rows, the best first, those without a score last."""
    worst = float("inf")
    upwards = document["score"]["better"] == "lower"

    def key(place: int) -> float:
        value = finite(known_score(document["rows"][place]["score"])["value"])
        return worst if value is None else value if upwards else -value

    return sorted(range(len(document["rows"])), key=key)


def _tops(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """The best value of each column, where one is better than another."""
    found: list[float | None] = []
    for column in columns:
        known = [value for value in (finite(column.cell(row).value) for row in rows) if value is not None]
        several = column.better is not None and len(set(known)) > 1
        found.append((min if column.better == "lower" else max)(known) if several else None)
    return found


def table(document: Document) -> str:
    """The main table, sorted by its score."""
    rows, score = document["rows"], document["score"]
    scores = [known_score(row["score"]) for row in rows]
    places, scale = score_decimals(scores), _scale(scores)
    best = next((finite(one["value"]) for one, row in zip(scores, rows, strict=True) if row.get("best")), None)
    columns = [column for column in _columns(document) if any(column.cell(row).value is not None for row in rows)]
    tops = _tops(columns, rows)
    order = "ascending" if score["better"] == "lower" else "descending"
    named = html(score_label(document, score["name"]))
    heads = [_head("model"), _head(named, better=score["better"], sort=order, kind=' class="wide"')]
    heads += [_head(column.head, better=column.better or "") for column in columns]
    lines = []
    for place in ranked(document):
        row = rows[place]
        drawing = _drawn(scores[place], scale, place, best)
        cells = [_cell(_score_cell(scores[place], places), extra=drawing, kind=' class="wide"')]
        for column, top in zip(columns, tops, strict=True):
            cell = column.cell(row)
            cells.append(_cell(cell, kind=' class="top"' if top is not None and cell.value == top else ""))
        lines.append(f"<tr{' class=best' if row.get('best') else ''}>{_name(row, place)}{''.join(cells)}</tr>")
    told = "The bars are the intervals, the dashed line is the best row; bold is the best of a column."
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="table of results"><table class="results sortable">'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        f'<p class="note">{named}: {score["better"]} is better. {told}</p>'
    )


def score_table(document: Document) -> str:
    """All scores of all rows; '' where there is but one."""
    rows = document["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row.get("scores") or {}))
    if len(names) < 2:
        return ""
    empty = {"value": None, "low": None, "high": None}
    found = {name: [known_score((row.get("scores") or {}).get(name) or empty) for row in rows] for name in names}
    places = {name: score_decimals(scores) for name, scores in found.items()}
    heads = [_head("model"), *(_head(html(score_label(document, name))) for name in names)]
    lines = []
    for place in ranked(document):
        cells = "".join(_cell(_score_cell(found[name][place], places[name])) for name in names)
        lines.append(f"<tr>{_name(rows[place], place)}{cells}</tr>")
    return (
        f"<details><summary>All {len(names)} scores</summary>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="all scores"><table class="sortable">'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></details>"
    )
