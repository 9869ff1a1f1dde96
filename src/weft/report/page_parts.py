"""The parts of the report that need no script: findings, tables, samples, configurations, environment."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.comparison.previews import MAX_BYTES, MAX_TOTAL_BYTES
from weft.plots.formatting import decimals, finite, html, number, p_value, short, truncate
from weft.report.page_data import (
    Document,
    bin_values,
    curve_metric,
    curve_points,
    is_tied,
    is_unclear,
    known_score,
    score_decimals,
    score_label,
    split_name,
)
from weft.report.page_table import sign
from weft.tasks.registry import known_task
from weft.text.table_layout import count_of

MAX_STATIC_ITEMS = 12  # shown without JavaScript
MAX_CONFUSIONS = 12  # per model


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
        sentences.append(f"Failed: {_bold(failure['name'])}{seed}: {html(failure.get('reason') or 'unknown error')}")
    return sentences


def findings(document: Document) -> str:
    """The main results in sentences."""
    best = _best(document)
    sentences = [_by_length(document), _by_pairs(document)]
    if best is not None:
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


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]], *, label: str) -> str:
    """A table of HTML cells; the first cell of each line is its header."""
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in lines
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html(label)}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row_heads(document: Document) -> list[str]:
    return [f"{sign(index)} <bdi>{html(row['name'])}</bdi>" for index, row in enumerate(document["rows"])]


def curve_table(document: Document) -> str:
    """The best and the last validation score of each run."""
    heads = dict(zip((row["name"] for row in document["rows"]), _row_heads(document), strict=True))
    metric = curve_metric(document, "valid") or document["metric"]
    choose = min if metric["better"] == "lower" else max
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
    table = _table(["model", "seed", "best", "at step", "last", "at step"], lines, label="validation scores")
    title = f"Table: best and last validation {html(score_label(document, metric['name']))}"
    return f"<details><summary>{title}</summary>{table}</details>"


def gradient_table(document: Document) -> str:
    """Gradient norms and clipped steps of each run."""
    heads = dict(zip((row["name"] for row in document["rows"]), _row_heads(document), strict=True))
    lines = []
    for curve in document.get("curves") or []:
        norms = curve.get("gradients")
        if norms and curve["name"] in heads:
            limit = "none" if norms.get("max_grad_norm") is None else f"{norms['max_grad_norm']:g}"
            steps = f"{norms['clipped']:,} of {norms['steps']:,}"
            cells = [html(curve.get("seed")), f"{norms['mean']:.3g}", f"{norms['max']:.3g}", limit, steps]
            lines.append([heads[curve["name"]], *cells])
    if not lines:
        return ""
    table = _table(["model", "seed", "mean norm", "maximum", "max_grad_norm", "clipped steps"], lines, label="gradient norms")
    return f"<details><summary>Table: gradient norms and clipped steps</summary>{table}</details>"


def breakdown_table(document: Document, breakdown: Document) -> str:
    """The table of a breakdown, with confidence intervals."""
    names = [row["name"] for row in document["rows"]]
    parts = {part: breakdown.get(part) or {} for part in ("low", "high")}
    pairs = [(parts["low"].get(name) or [], parts["high"].get(name) or []) for name in names]
    widths = [b - a for low, high in pairs for a, b in zip(low, high, strict=False) if None not in (a, b)]
    digits = decimals([sum(widths) / len(widths)]) if widths and sum(widths) > 0 else 2

    def cell(name: str, i: int) -> str:
        low, high = ((parts[part].get(name) or [None] * (i + 1))[i] for part in ("low", "high"))
        value = bin_values(breakdown, name)[i]
        bounds = f" <small>[{number(low, digits)}, {number(high, digits)}]</small>" if finite(low) is not None else ""
        return number(value, digits) + bounds + fractions(name, i)

    def fractions(name: str, i: int) -> str:
        values = [((breakdown.get(part) or {}).get(name) or [None] * (i + 1))[i] for part in ("precision", "recall")]
        texts = [
            f"{part} {number(fraction, 1)}" for part, fraction in zip("PR", values, strict=True) if finite(fraction) is not None
        ]
        return f" <small>{', '.join(texts)}</small>" if texts else ""

    lines = [
        [f"<bdi>{html(label)}</bdi>", f"{count:,}", *(cell(name, i) for name in names)]
        for i, (label, count) in enumerate(zip(breakdown["bins"], breakdown["counts"], strict=True))
    ]
    heads = [html(breakdown["by"]), html(breakdown.get("unit") or "items"), *_row_heads(document)]
    label = html(score_label(document, (breakdown.get("metric") or document["metric"])["name"]))
    table = _table(heads, lines, label=f"by {breakdown['by']}")
    more = ", precision (P) and recall (R)" if breakdown.get("precision") else ""
    return f"<details><summary>Table: {label}{more}</summary>{table}</details>"


def confusion_tables(document: Document) -> str:
    """The most frequent errors of each model, by gold and predicted label."""
    confusions = document["confusions"]
    parts = []
    for head, row in zip(_row_heads(document), document["rows"], strict=True):
        matrix = confusions["matrices"].get(row["name"])
        if matrix is None:
            continue
        errors = [(count, i, j) for i, line in enumerate(matrix) for j, count in enumerate(line) if i != j and count]
        labels = [html(label) for label in confusions["labels"]]
        lines = [
            [f"<bdi>{labels[i]}</bdi>", f"<bdi>{labels[j]}</bdi>", f"{count:,}", f"{count / sum(matrix[i]):.1%}"]
            for count, i, j in sorted(errors, key=lambda error: -error[0])[:MAX_CONFUSIONS]
        ]
        table = _table(["gold", "predicted", "count", "of gold"], lines, label=f"errors of {row['name']}")
        parts.append(f"<div><h4>{head}</h4>{table}</div>")
    return f'<details><summary>Most frequent errors</summary><div class="columns">{"".join(parts)}</div></details>'


def preview_note(document: Document) -> str:
    """How many items have a sound or images on the page, and the limits."""
    items, task = document.get("items") or [], known_task(document.get("task"))
    count = sum(bool(item.get("preview")) for item in items)
    if not count or task is None or task.compare.previews is None:
        return ""
    noun, limits = task.compare.previews.noun, task.compare.previews.limits
    sizes = f"{MAX_BYTES // 1000} kB per item and {MAX_TOTAL_BYTES // 1_000_000} MB in total"
    return f" {html(noun)} of {count:,} of these {len(items):,} items are part of this page ({html(limits)}, {sizes})."


def first_items(document: Document) -> str:
    """The first items with all outputs, shown without JavaScript."""
    parts = []
    for item in (document.get("items") or [])[:MAX_STATIC_ITEMS]:
        lines = [("input", item["input"]), ("reference", item.get("reference")), *(item.get("outputs") or {}).items()]
        entries = "".join(
            f'<dt><bdi>{html(name)}</bdi></dt><dd dir="auto">{html(truncate(text, 300))}</dd>' for name, text in lines if text
        )
        parts.append(f"<dl>{entries}</dl>")
    return "".join(parts)


def samples(document: Document) -> str:
    """Texts generated by each model."""
    parts = []
    for head, row in zip(_row_heads(document), document["rows"], strict=True):
        texts = (document.get("samples") or {}).get(row["name"]) or []
        blocks = "".join(f'<pre class="sample" dir="auto">{html(truncate(text, 2000))}</pre>' for text in texts)
        parts += [f"<div><h3>{head}</h3>{blocks}</div>"] if texts else []
    return f'<div class="columns">{"".join(parts)}</div>' if parts else ""


def _sample(record: Mapping[str, Any]) -> str:
    """A sample of one validation: after its prompt, or with its source and reference."""
    text = html(truncate(record["text"], 600))
    if record.get("source") is None:
        prompt = html(record.get("prompt") or "")
        return f'<pre class="sample" dir="auto">{f"<b>{prompt}</b>" if prompt else ""}{text}</pre>'
    fields = [("source", record["source"]), ("reference", record.get("reference") or "")]
    lines = [f"<small>{name}: <bdi>{html(truncate(value, 600))}</bdi></small>" for name, value in fields if value]
    return f'<div><pre class="sample" dir="auto">{text}</pre>{"<br>".join(lines)}</div>'


def samples_over_training(document: Document) -> str:
    """Samples of each model at its validations, first to last."""
    parts = []
    for head, row in zip(_row_heads(document), document["rows"], strict=True):
        records = (document.get("samples_over_training") or {}).get(row["name"]) or []
        steps = dict.fromkeys(record["step"] for record in records)
        blocks = "".join(
            f"<h4>step {step:,}</h4>" + "".join(_sample(record) for record in records if record["step"] == step)
            for step in steps
        )
        parts += [f"<div><h3>{head}</h3>{blocks}</div>"] if records else []
    return f'<div class="columns">{"".join(parts)}</div>' if parts else ""


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The options of a run file by dotted name, values as text."""
    options: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            options |= _flatten(value, f"{prefix}{name}.")
        else:
            options[f"{prefix}{name}"] = json.dumps(value, ensure_ascii=False, default=str)
    return options


def _used_options(text: str) -> dict[str, str]:
    """The options that a run uses: a model that is fitted in one pass does not use its [train] table."""
    try:
        values = tomllib.loads(text)
        model, task = values.get("model"), known_task(values.get("task"))
        preset = task.presets.get(str(model.get("arch"))) if task is not None and isinstance(model, Mapping) else None
        if preset is not None and not preset.estimator.by_steps:
            values.pop("train", None)
        return _flatten(values)
    except (ValueError, RecursionError):  # the report still shows the text
        return {}


def configs(document: Document) -> str:
    """The options that differ between the models, then the complete run file of each."""
    rows = [row for row in document["rows"] if row["name"] in (document.get("configs") or {})]
    options = [_used_options(document["configs"][row["name"]]) for row in rows]
    names = dict.fromkeys(name for values in options for name in values if name != "seed")
    differing = [name for name in names if len({values.get(name) for values in options}) > 1]
    heads = [head for head, row in zip(_row_heads(document), document["rows"], strict=True) if row in rows]
    lines = [
        [f"<code>{html(name)}</code>", *(f"<code>{html(values[name])}</code>" if name in values else "" for values in options)]
        for name in differing
    ]
    same = "<p>Only the seed differs.</p>" if len(rows) > 1 else ""
    table = _table(["option", *heads], lines, label="options that differ") if differing else same
    files = "".join(
        f"<details><summary>{head}: complete run file</summary>"
        f'<pre class="toml">{html(document["configs"][row["name"]])}</pre></details>'
        for head, row in zip(heads, rows, strict=True)
    )
    return table + files


def environment(document: Document) -> str:
    """The environment of the comparison."""
    fields = {name: value for name, value in (document.get("environment") or {}).items() if value not in (None, "")}
    entries = "".join(f"<dt>{html(name)}</dt><dd>{html(_text(value))}</dd>" for name, value in fields.items())
    return f'<dl class="facts">{entries}</dl>' if entries else ""


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)


def reproduce(document: Document) -> str:
    """The command that reproduces the comparison, and the run directories."""
    command = document.get("command")
    text = f'<pre class="command">{html(command)}</pre>' if command else ""
    lines = [
        [head, *(f"<code>{html(run)}</code>" for run in [", ".join(map(str, row.get("runs") or []))])]
        for head, row in zip(_row_heads(document), document["rows"], strict=True)
        if row.get("runs")
    ]
    return text + (_table(["model", "runs"], lines, label="runs") if lines else "")
