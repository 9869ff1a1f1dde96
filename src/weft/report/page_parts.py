"""The parts of a report that need no script: what was found, tables beside the charts, samples, settings, how to repeat it."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.plots.formatting import cut, decimals, finite, html, number, p_value, short
from weft.report.page_data import (
    Document,
    bin_values,
    curve_points,
    curve_score,
    is_tied,
    is_unclear,
    known_score,
    score_decimals,
    score_label,
)
from weft.report.page_table import sign
from weft.text.table_layout import count_of

FIRST = 12  # items that stand in the page for a reader without a script
PAIRS = 12  # confusions that are listed
COUNTED = ("ngram", "naive-bayes", "logistic-regression")  # kinds without an optimizer; a test holds them to the presets


def _bold(text: str) -> str:
    return f"<b><bdi>{html(text)}</bdi></b>"


def _listed(names: Iterable[str]) -> str:
    *limit, last = map(_bold, names)
    return f"{', '.join(limit)} and {last}" if limit else last


def _best(document: Document) -> Mapping[str, Any] | None:
    return next((row for row in document["rows"] if row.get("best")), None)


def _told_apart(document: Document, best: Mapping[str, Any]) -> str:
    """Which rows the test holds to be worse than the best, and of which it can't say."""
    unclear = [row["name"] for row in document["rows"] if is_unclear(row)]
    others = [
        row for row in document["rows"] if finite(row.get("p")) is not None and row["name"] not in (best["name"], *unclear)
    ]
    close = [row for row in others if is_tied(row)]
    told = f"{_too_little(document, unclear)} " if unclear else ""
    if not others:
        return told.strip()
    if not close:
        p = html(p_value(max(row["p"] for row in others)))
        who = "All others are" if len(others) > 1 else f"{_bold(others[0]['name'])} is"
        exact = len(others) == 1 or p.startswith("&lt;")
        return f"{told}{who} worse (p {p})." if exact else f"{told}{who} worse (p {p} or less)."
    who = _listed(row["name"] for row in close)
    told += f"{who} {'is' if len(close) == 1 else 'are'} not significantly worse (p ≥ 0.05)"
    return f"{told}." if len(close) == len(others) else f"{told}; all others are worse."


def _too_little(document: Document, names: Sequence[str]) -> str:
    """That the test could not have told these rows from the best, and why."""
    known = document.get("tested")
    size = f" ({html(count_of(**known))})" if known else ""
    return f"There is too little test data{size} to tell whether it is better than {_listed(names)}."


def _cheaper(document: Document, best: Mapping[str, Any]) -> str:
    """A smaller model that is as good, as far as the test can say."""
    mine = finite(best.get("parameters"))
    as_good = [row for row in document["rows"] if is_tied(row) and finite(row.get("parameters"))]
    smallest = min(as_good, key=lambda row: row["parameters"], default=None)
    if smallest is None or mine is None or smallest["parameters"] >= mine:
        return ""
    return f"Of these, {_bold(smallest['name'])} has {short(smallest['parameters'])} parameters against {short(mine)}."


def _by_length(document: Document) -> str:
    """What happens where inputs are long, which a mean over all of them hides; nothing where it may be luck."""
    found = next((one for one in document.get("breakdowns") or [] if one["by"].startswith("length")), None)
    if found is None or len(found["bins"]) < 2:
        return ""
    upwards = (found.get("score") or document["score"])["better"] == "higher"
    values = {row["name"]: bin_values(found, row["name"]) for row in document["rows"]}
    known = [name for name, ends in values.items() if None not in (finite(ends[0]), finite(ends[-1]))]
    order = sorted(known, key=lambda name: values[name][-1], reverse=upwards)
    if len(order) < 2 or not _apart(found, order[0], order[-1], upwards):
        return ""
    (short, long), (short_last, long_last) = ([values[name][at] for at in (0, -1)] for name in (order[0], order[-1]))
    places = max(1, decimals([long - long_last]))
    unit = html(found["by"].split()[-1])  # "length of the input in words"
    return (
        f"On the longest inputs ({html(found['bins'][-1])} {unit}, {found['counts'][-1]:,} items) {_bold(order[0])} has "
        f"{number(long, places)} and {_bold(order[-1])} {number(long_last, places)}; "
        f"on the shortest ({html(found['bins'][0])}) {number(short, places)} and {number(short_last, places)}."
    )


def _apart(breakdown: Document, first: str, last: str, upwards: bool) -> bool:
    """Whether the intervals of the last bin lie apart: the better row's wholly on the better side."""
    sides = ("low", "high") if upwards else ("high", "low")
    ends = [(breakdown.get(side) or {}).get(name) or [None] for side, name in zip(sides, (first, last), strict=True)]
    mine, theirs = (finite(bounds[-1]) for bounds in ends)
    return mine is not None and theirs is not None and (mine > theirs if upwards else mine < theirs)


def _by_pairs(document: Document) -> str:
    """What each row goes by where a noun of the other number stands between subject and verb."""
    follows = (document.get("probe") or {}).get("follows") or {}
    names = [row["name"] for row in document["rows"] if row["name"] in follows]
    if not names:
        return ""
    sides = dict.fromkeys(follows[name] for name in names)
    told = [f"{html(side)}: {_listed(name for name in names if follows[name] == side)}" for side in sides]
    return f"What decides between minimal pairs with an attractor: {'; '.join(told)}."


def _infinite(document: Document) -> str:
    names = [row["name"] for row in document["rows"] if known_score(row["score"])["value"] == math.inf]
    return f"The score of {_listed(names)} is infinite: something in the data has no probability under it." if names else ""


def _failures(document: Document) -> list[str]:
    """What was asked for and is not in the table, and why."""
    found = []
    for failure in document.get("failures") or []:
        seed = "" if failure.get("seed") is None else f", seed {html(failure['seed'])}"
        found.append(f"Not in the table: {_bold(failure['name'])}{seed}: {html(failure.get('reason') or 'it failed')}")
    return found


def findings(document: Document) -> str:
    """What the numbers say, in sentences."""
    best = _best(document)
    said = [_by_length(document), _by_pairs(document)]
    if best is not None:
        scores = [known_score(row["score"]) for row in document["rows"]]
        places, score = score_decimals(scores), known_score(best["score"])
        bounds = [number(score[name], places) for name in ("low", "high")]
        interval = f" ({bounds[0]} to {bounds[1]})" if finite(score["low"]) is not None else ""
        named = html(score_label(document, document["score"]["name"]))
        first = f"{_bold(best['name'])} is best: {named} {number(score['value'], places)}{interval}."
        said = [first, _told_apart(document, best), _cheaper(document, best), *said]
    said += [_infinite(document), *_failures(document)]
    lines = "".join(f"<li>{sentence}</li>" for sentence in said if sentence)
    return f'<ul class="findings">{lines}</ul>' if lines else ""


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]], *, label: str) -> str:
    """A plain table of HTML cells; the first of each line is its head."""
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in lines
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html(label)}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row_heads(document: Document) -> list[str]:
    return [f"{sign(place)} <bdi>{html(row['name'])}</bdi>" for place, row in enumerate(document["rows"])]


def curve_table(document: Document) -> str:
    """Where each curve had its best validation score."""
    heads = dict(zip((row["name"] for row in document["rows"]), _row_heads(document), strict=True))
    score = curve_score(document, "valid") or document["score"]
    choose = min if score["better"] == "lower" else max
    lines = []
    for curve in document.get("curves") or []:
        points = [point for point in curve_points(document, curve, "valid") if finite(point.get("value")) is not None]
        if points and curve["name"] in heads:
            best, last = choose(points, key=lambda point: point["value"]), points[-1]
            cells = [
                html(curve.get("seed")),
                f"{best['value']:.4g}",
                f"{best['step']:,}",
                f"{last['value']:.4g}",
                f"{last['step']:,}",
            ]
            lines.append([heads[curve["name"]], *cells])
    if not lines:
        return ""
    named = _table(["model", "seed", "best", "at step", "last", "at step"], lines, label="validation scores")
    told = f"The numbers: best and last {html(score_label(document, score['name']))} of the validation data"
    return f"<details><summary>{told}</summary>{named}</details>"


def gradient_table(document: Document) -> str:
    """How large the gradients of each run were, and how many of its steps were clipped."""
    heads = dict(zip((row["name"] for row in document["rows"]), _row_heads(document), strict=True))
    lines = []
    for curve in document.get("curves") or []:
        seen = curve.get("gradients")
        if seen and curve["name"] in heads:
            clip = "none" if seen.get("clip") is None else f"{seen['clip']:g}"
            steps = f"{seen['clipped']:,} of {seen['steps']:,}"
            cells = [html(curve.get("seed")), f"{seen['mean']:.3g}", f"{seen['largest']:.3g}", clip, steps]
            lines.append([heads[curve["name"]], *cells])
    if not lines:
        return ""
    named = _table(["model", "seed", "mean norm", "largest", "limit", "clipped steps"], lines, label="gradient norms")
    return f"<details><summary>The numbers: gradient norms and clipped steps</summary>{named}</details>"


def breakdown_table(document: Document, breakdown: Document) -> str:
    """The numbers of one breakdown, with their intervals."""
    names = [row["name"] for row in document["rows"]]
    parts = {part: breakdown.get(part) or {} for part in ("low", "high")}
    pairs = [(parts["low"].get(name) or [], parts["high"].get(name) or []) for name in names]
    widths = [b - a for low, high in pairs for a, b in zip(low, high, strict=False) if None not in (a, b)]
    places = decimals([sum(widths) / len(widths)]) if widths and sum(widths) > 0 else 2

    def cell(name: str, at: int) -> str:
        low, high = ((parts[part].get(name) or [None] * (at + 1))[at] for part in ("low", "high"))
        value = bin_values(breakdown, name)[at]
        bounds = f" <small>{number(low, places)} to {number(high, places)}</small>" if finite(low) is not None else ""
        return number(value, places) + bounds + fractions(name, at)

    def fractions(name: str, at: int) -> str:
        found = [((breakdown.get(part) or {}).get(name) or [None] * (at + 1))[at] for part in ("precision", "recall")]
        known = [
            f"{part} {number(fraction, 1)}" for part, fraction in zip("PR", found, strict=True) if finite(fraction) is not None
        ]
        return f" <small>{', '.join(known)}</small>" if known else ""

    lines = [
        [f"<bdi>{html(label)}</bdi>", f"{count:,}", *(cell(name, at) for name in names)]
        for at, (label, count) in enumerate(zip(breakdown["bins"], breakdown["counts"], strict=True))
    ]
    heads = [html(breakdown["by"]), html(breakdown.get("unit") or "items"), *_row_heads(document)]
    named = html(score_label(document, (breakdown.get("score") or document["score"])["name"]))
    found = _table(heads, lines, label=f"by {breakdown['by']}")
    more = ", precision (P) and recall (R)" if breakdown.get("precision") else ""
    return f"<details><summary>The numbers: {named}{more}</summary>{found}</details>"


def confusion_tables(document: Document) -> str:
    """Each row's most frequent mistakes, meant and said."""
    found = document["confusions"]
    parts = []
    for head, row in zip(_row_heads(document), document["rows"], strict=True):
        matrix = found["matrices"].get(row["name"])
        if matrix is None:
            continue
        wrong = [(count, i, j) for i, line in enumerate(matrix) for j, count in enumerate(line) if i != j and count]
        labels = [html(label) for label in found["labels"]]
        lines = [
            [f"<bdi>{labels[i]}</bdi>", f"<bdi>{labels[j]}</bdi>", f"{count:,}", f"{count / sum(matrix[i]):.1%}"]
            for count, i, j in sorted(wrong, key=lambda one: -one[0])[:PAIRS]
        ]
        named = _table(["meant", "said", "times", "of those meant"], lines, label=f"mistakes of {row['name']}")
        parts.append(f"<div><h4>{head}</h4>{named}</div>")
    return f'<details><summary>The most frequent mistakes</summary><div class="beside">{"".join(parts)}</div></details>'


def first_items(document: Document) -> str:
    """Some items with all outputs, for a reader without a script."""
    parts = []
    for item in (document.get("items") or [])[:FIRST]:
        lines = [("input", item["input"]), ("reference", item.get("reference")), *(item.get("outputs") or {}).items()]
        told = "".join(
            f'<dt><bdi>{html(name)}</bdi></dt><dd dir="auto">{html(cut(text, 300))}</dd>' for name, text in lines if text
        )
        parts.append(f"<dl>{told}</dl>")
    return "".join(parts)


def samples(document: Document) -> str:
    """What each row writes."""
    parts = []
    for head, row in zip(_row_heads(document), document["rows"], strict=True):
        texts = (document.get("samples") or {}).get(row["name"]) or []
        written = "".join(f'<pre class="sample" dir="auto">{html(cut(text, 2000))}</pre>' for text in texts)
        parts += [f"<div><h3>{head}</h3>{written}</div>"] if texts else []
    return f'<div class="beside">{"".join(parts)}</div>' if parts else ""


def _written(record: Mapping[str, Any]) -> str:
    """A text of one validation: behind its prompt, or between its source and what was meant."""
    text = html(cut(record["text"], 600))
    if record.get("source") is None:
        prompt = html(record.get("prompt") or "")
        return f'<pre class="sample" dir="auto">{f"<b>{prompt}</b>" if prompt else ""}{text}</pre>'
    told = [("source", record["source"]), ("reference", record.get("reference") or "")]
    lines = [f"<small>{name}: <bdi>{html(cut(value, 600))}</bdi></small>" for name, value in told if value]
    return f'<div class="written"><pre class="sample" dir="auto">{text}</pre>{"<br>".join(lines)}</div>'


def samples_over_training(document: Document) -> str:
    """What each row wrote at its validations, first to last."""
    parts = []
    for head, row in zip(_row_heads(document), document["rows"], strict=True):
        records = (document.get("samples_over_training") or {}).get(row["name"]) or []
        steps = dict.fromkeys(record["step"] for record in records)
        written = "".join(
            f"<h4>step {step:,}</h4>" + "".join(_written(record) for record in records if record["step"] == step)
            for step in steps
        )
        parts += [f"<div><h3>{head}</h3>{written}</div>"] if records else []
    return f'<div class="beside">{"".join(parts)}</div>' if parts else ""


def _flat(values: Mapping[str, Any], at: str = "") -> dict[str, str]:
    """A run file's options as dotted names, their values as TOML writes them."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{at}{name}.")
        else:
            found[f"{at}{name}"] = json.dumps(value, ensure_ascii=False, default=str)
    return found


def _read(text: str) -> dict[str, str]:
    """The options that a run uses: a model that is counted or solved in one go has a [train] table and looks at none of it."""
    try:
        values = tomllib.loads(text)
        model = values.get("model")
        if isinstance(model, Mapping) and model.get("arch") in COUNTED:
            values.pop("train", None)
        return _flat(values)
    except (ValueError, RecursionError):  # it is shown as it is, whatever it is
        return {}


def settings(document: Document) -> str:
    """What differs between the rows, then each row's whole run file."""
    rows = [row for row in document["rows"] if row["name"] in (document.get("settings") or {})]
    read = [_read(document["settings"][row["name"]]) for row in rows]
    names = dict.fromkeys(name for values in read for name in values if name != "seed")
    differ = [name for name in names if len({values.get(name) for values in read}) > 1]
    heads = [head for head, row in zip(_row_heads(document), document["rows"], strict=True) if row in rows]
    lines = [
        [f"<code>{html(name)}</code>", *(f"<code>{html(values[name])}</code>" if name in values else "" for values in read)]
        for name in differ
    ]
    alike = "<p>No setting differs but the seed.</p>" if len(rows) > 1 else ""
    shown = _table(["setting", *heads], lines, label="settings that differ") if differ else alike
    files = "".join(
        f"<details><summary>{head}: the whole run file</summary>"
        f'<pre class="toml">{html(document["settings"][row["name"]])}</pre></details>'
        for head, row in zip(heads, rows, strict=True)
    )
    return shown + files


def environment(document: Document) -> str:
    """What it was measured with."""
    known = {name: value for name, value in (document.get("environment") or {}).items() if value not in (None, "")}
    told = "".join(f"<dt>{html(name)}</dt><dd>{html(_word(value))}</dd>" for name, value in known.items())
    return f'<dl class="facts">{told}</dl>' if told else ""


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_word(inner)}" for name, inner in value.items())
    return ", ".join(map(_word, value)) if isinstance(value, list | tuple) else str(value)


def repeat(document: Document) -> str:
    """The command that makes it again, and where the runs are."""
    command = document.get("command")
    told = f'<pre class="command">{html(command)}</pre>' if command else ""
    lines = [
        [head, *(f"<code>{html(run)}</code>" for run in [", ".join(map(str, row.get("runs") or []))])]
        for head, row in zip(_row_heads(document), document["rows"], strict=True)
        if row.get("runs")
    ]
    return told + (_table(["model", "runs"], lines, label="the runs") if lines else "")
