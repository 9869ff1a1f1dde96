"""The parts of the report that need no script: tables, samples, configurations, environment."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.comparison.previews import MAX_BYTES, MAX_TOTAL_BYTES
from weft.plots.formatting import decimals, finite, html, number, truncate
from weft.report.page_data import (
    Document,
    bin_values,
    curve_metric,
    curve_points,
    score_label,
)
from weft.report.page_table import sign
from weft.tasks.registry import known_task

MAX_STATIC_ITEMS = 12  # shown without JavaScript
MAX_CONFUSIONS = 12  # per model


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
