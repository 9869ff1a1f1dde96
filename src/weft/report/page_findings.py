"""The findings of the report: its main results in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.plots.formatting import decimals, finite, html, number, p_value, short
from weft.report.page_data import (
    Document,
    bin_values,
    is_tied,
    is_unclear,
    known_score,
    score_decimals,
    score_label,
    split_name,
)
from weft.text.table_layout import count_of


def _bold(text: str) -> str:
    return f"<b><bdi>{html(text)}</bdi></b>"


def _join_names(names: Iterable[str]) -> str:
    *first, last = map(_bold, names)
    return f"{', '.join(first)} and {last}" if first else last


def _best(document: Document) -> Mapping[str, Any] | None:
    return next((row for row in document["rows"] if row.get("best")), None)


def _significance(document: Document, best: Mapping[str, Any]) -> str:
    """Which models are significantly worse than the best one, and which are not."""
    unclear = [row["name"] for row in document["rows"] if is_unclear(row)]
    tested = [
        row for row in document["rows"] if finite(row.get("p")) is not None and row["name"] not in (best["name"], *unclear)
    ]
    close = [row for row in tested if is_tied(row)]
    text = f"{_insufficient_data(document, unclear)} " if unclear else ""
    if not tested:
        return text.strip()
    if not close:
        p = html(p_value(max(row["p"] for row in tested)))
        subject = "All other models are" if len(tested) > 1 else f"{_bold(tested[0]['name'])} is"
        relation = "" if p.startswith("&lt;") else "= " if len(tested) == 1 else "≤ "
        return f"{text}{subject} worse (p {relation}{p})."
    subject = _join_names(row["name"] for row in close)
    text += f"{subject} {'is' if len(close) == 1 else 'are'} not significantly worse (p ≥ 0.05)"
    return f"{text}." if len(close) == len(tested) else f"{text}; all other models are."


def _insufficient_data(document: Document, names: Sequence[str]) -> str:
    """The sentence for rows with too little data."""
    test_items = document.get("test_items")
    size = f" ({html(count_of(**test_items))})" if test_items else ""
    return f"There is too little {split_name(document)} data{size} to tell the best model from {_join_names(names)}."


def _cheaper(document: Document, best: Mapping[str, Any]) -> str:
    """A smaller model that is not significantly worse."""
    best_size = finite(best.get("num_parameters"))
    tied = [row for row in document["rows"] if is_tied(row) and finite(row.get("num_parameters"))]
    smallest = min(tied, key=lambda row: row["num_parameters"], default=None)
    if smallest is None or best_size is None or smallest["num_parameters"] >= best_size:
        return ""
    return (
        f"{_bold(smallest['name'])} is smaller: {short(smallest['num_parameters'])} parameters instead of {short(best_size)}."
    )


def _by_length(document: Document) -> str:
    """The scores on long and short inputs, if the difference on long ones is significant."""
    by_length = next((part for part in document.get("breakdowns") or [] if part["by"].startswith("input length")), None)
    if by_length is None or len(by_length["bins"]) < 2:
        return ""
    upwards = (by_length.get("metric") or document["metric"])["better"] == "higher"
    values = {row["name"]: bin_values(by_length, row["name"]) for row in document["rows"]}
    names = [name for name, ends in values.items() if None not in (finite(ends[0]), finite(ends[-1]))]
    order = sorted(names, key=lambda name: values[name][-1], reverse=upwards)
    if len(order) < 2 or not _is_separated(by_length, order[0], order[-1], upwards):
        return ""
    (short, long), (short_last, long_last) = ([values[name][i] for i in (0, -1)] for name in (order[0], order[-1]))
    digits = max(1, decimals([long - long_last]))
    unit = html(by_length["by"].partition(" in ")[2])  # "input length in frames of 10 ms"
    return (
        f"On the longest inputs ({html(by_length['bins'][-1])} {unit}, {by_length['counts'][-1]:,} items), "
        f"{_bold(order[0])} scores {number(long, digits)} and {_bold(order[-1])} {number(long_last, digits)}; "
        f"on the shortest ({html(by_length['bins'][0])}), {number(short, digits)} and {number(short_last, digits)}."
    )


def _is_separated(breakdown: Document, first: str, last: str, upwards: bool) -> bool:
    """Whether the intervals of the two rows in the last bin do not overlap."""
    sides = ("low", "high") if upwards else ("high", "low")
    ends = [(breakdown.get(side) or {}).get(name) or [None] for side, name in zip(sides, (first, last), strict=True)]
    bound, other = (finite(bounds[-1]) for bounds in ends)
    return bound is not None and other is not None and (bound > other if upwards else bound < other)


def _by_pairs(document: Document) -> str:
    """Which noun the verb agrees with in minimal pairs with an attractor, by model."""
    follows = (document.get("minimal_pairs") or {}).get("follows") or {}
    names = [row["name"] for row in document["rows"] if row["name"] in follows]
    if not names:
        return ""
    sides = dict.fromkeys(follows[name] for name in names)
    texts = [f"{html(side)}: {_join_names(name for name in names if follows[name] == side)}" for side in sides]
    return f"In minimal pairs with an attractor, models follow {'; '.join(texts)}."


def _infinite(document: Document) -> str:
    names = [row["name"] for row in document["rows"] if known_score(row["score"])["value"] == math.inf]
    if not names:
        return ""
    data = f"{split_name(document)} data"
    return f"The score of {_join_names(names)} is infinite: the model gives some of the {data} zero probability."


def _failures(document: Document) -> list[str]:
    """Models and runs that are not in the table, and why."""
    sentences = []
    for failure in document.get("failures") or []:
        seed = "" if failure.get("seed") is None else f", seed {html(failure['seed'])}"
        sentences.append(f"Not in the table: {_bold(failure['name'])}{seed}: {html(failure.get('reason') or 'unknown error')}")
    return sentences


def _choice(document: Document) -> list[str]:
    """The model that a search chose, why, and its test score. How the others compare with it is left out: the search tests one
    of them, and the table all of them, with a correction for their number, so that the two may differ."""
    choice = document["choice"]
    reason = f"; {html(choice['reason'])}" if choice["reason"] else ""
    first = f"{_bold(choice['name'])} is chosen. On {split_name(document)} data: {html(choice['score'])}{reason}."
    return [first, f"On test data: {html(choice['test'])}."]


def findings(document: Document) -> str:
    """The main results in sentences."""
    best = _best(document)
    sentences = [_by_length(document), _by_pairs(document)]
    if document.get("choice"):
        sentences = [*_choice(document), *sentences]
    elif best is not None:
        scores = [known_score(row["score"]) for row in document["rows"]]
        digits, score = score_decimals(scores), known_score(best["score"])
        bounds = [number(score[name], digits) for name in ("low", "high")]
        interval = f" [{bounds[0]}, {bounds[1]}]" if finite(score["low"]) is not None else ""
        label = html(score_label(document, document["metric"]["name"]))
        first = f"{_bold(best['name'])} is best: {label} {number(score['value'], digits)}{interval}."
        sentences = [first, _significance(document, best), _cheaper(document, best), *sentences]
    sentences += [_infinite(document), *_failures(document)]
    lines = "".join(f"<li>{sentence}</li>" for sentence in sentences if sentence)
    return f'<ul class="findings">{lines}</ul>' if lines else ""
