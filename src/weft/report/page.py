"""The report of a comparison: one HTML file that needs no other file and no network, and that can be printed.

All text and tables are in the page itself; the script sorts, draws charts and filters (script/*.js).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from weft.errors import UsageError
from weft.plots.formatting import html
from weft.report import page_parts as parts
from weft.report.page_curves import other_curves
from weft.report.page_data import Document, embedded, has_previews, page_data, split_name
from weft.report.page_findings import findings
from weft.report.page_table import mixed_hardware, score_table, table
from weft.report.page_tuning import tuning
from weft.tasks.registry import known_task
from weft.text.table_layout import count_of

SCRIPTS = ("base", "chart", "legend", "table", "scrolling", "curves", "cost", "breakdowns", "items", "confusions", "start")
REQUIRED = ("rows", "metric")
MAX_NAMES_CHARS = 60  # total length of the model names in the title


class Section(NamedTuple):
    anchor: str
    title: str
    lead: str  # HTML
    body: str  # HTML


def _resource(name: str) -> str:
    return files("weft.report").joinpath(name).read_text(encoding="utf-8")


def _script() -> str:
    """All scripts wrapped in one function, so that their names are not global."""
    return '(() => {\n"use strict";\n' + "\n".join(_resource(f"script/{name}.js") for name in SCRIPTS) + "\n})();\n"


def _policy(style: str, script: str, *, has_media: bool) -> str:
    """Content Security Policy: only this style and script may run, by their hashes, and nothing may be loaded but the sounds
    and images that the page contains."""

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    allowed = ["default-src 'none'", *(["img-src data:", "media-src data:"] if has_media else [])]
    allowed += [f"style-src {source(style)}", f"script-src {source(script)}", "base-uri 'none'", "form-action 'none'"]
    return "; ".join(allowed)


def _chart(name: str) -> str:
    """The placeholder that the script draws a chart into."""
    return f'<div class="chart-box" data-chart="{name}"></div>'


def _breakdowns(document: Document) -> str:
    return "".join(
        f'<div class="breakdown"><h3>By {html(breakdown["by"])}</h3>'
        f'<div class="chart-box" data-chart="breakdown" data-index="{index}"></div>'
        f"{parts.breakdown_table(document, breakdown)}</div>"
        for index, breakdown in enumerate(document.get("breakdowns") or [])
    )


def _results(document: Document) -> Section:
    test = "".join(f'<p class="note">{html(document[name])}</p>' for name in ("test", "test_details") if document.get(name))
    context = f'<p class="note">{html(document["context"]["text"])}</p>' if document.get("context") else ""
    body = findings(document) + table(document) + context + test + score_table(document)
    return Section("results", "Results", "", body)


def _charts(document: Document) -> Iterator[Section]:
    if any(curve.get("train") or curve.get("valid") for curve in document.get("curves") or []):
        lead = (
            "Each line is one run. For noisy curves, the bold line is a running mean over 5% of the points and the pale line "
            "shows the logged values. If the training loss falls while the validation score gets worse, the model overfits. "
            "Drag over a region to zoom in, or focus the chart and press + or -; double-click to reset."
        )
        tables = parts.curve_table(document) + parts.gradient_table(document)
        yield Section("curves", "Learning curves", lead, _chart("curves") + tables)
    if charts := other_curves(document):
        yield Section("other-curves", "Other validation metrics", "What else changed while the score improved.", charts)
    if len(document["rows"]) > 1:
        lead = "The line is the Pareto front: no other model is both cheaper and better than a model on it."
        yield Section("cost", "Score against cost", lead, _chart("cost"))
    if document.get("breakdowns"):
        lead = "Error bars are 95% confidence intervals. They are wide where there are few items; the number of items is shown."
        yield Section("breakdowns", "Breakdowns", lead, _breakdowns(document))


def _details(document: Document) -> Iterator[Section]:
    if document.get("items"):
        lead = (
            "The items on which the models differ most, the worst and the best, for the first seed of each model. They are a "
            f"selection: counts over them do not reflect all {split_name(document)} data."
            f"{parts.preview_note(document)}"
        )
        fallback = f'<div class="no-script">{parts.first_items(document)}</div>'
        yield Section(
            "items",
            f"{split_name(document).capitalize()} items",
            lead,
            f'<div class="chart-box" data-chart="items"></div>{fallback}',
        )
    if document.get("confusions"):
        lead = "Rows are gold labels, columns are predicted labels. The color shows the fraction of the gold label."
        yield Section("confusions", "Confusion matrices", lead, _chart("confusions") + parts.confusion_tables(document))
    if progress := parts.samples_over_training(document):
        lead = "Texts that the first seed of each model generated at validations, always with the same random seed."
        yield Section("progress", "Samples during training", lead, progress)
    if samples := parts.samples(document):
        yield Section("samples", "Samples", "", samples)
    if document.get("tuning"):
        lead = "Validation scores of all trials. The trial with a star was used in the comparison. Test data was not used."
        yield Section("tuning", "Hyperparameter search", lead, tuning(document))
    if document.get("configs"):
        yield Section("configs", "Configurations", "", parts.configs(document))
    yield Section("reproduce", "Reproduce", "", parts.reproduce(document) + parts.environment(document))


def _section(section: Section) -> str:
    lead = f'<p class="lead">{section.lead}</p>' if section.lead else ""
    return f'<section id="{section.anchor}"><h2>{section.title}</h2>{lead}{section.body}</section>'


def _model_count(document: Document) -> str:
    """'3 language models'."""
    count = len(document["rows"])
    task = known_task(document.get("task"))
    noun = "model" if task is None else task.compare.model_noun or task.model_noun
    return f"{count} {noun if count == 1 else f'{noun}s'}"


def _title(document: Document) -> str:
    """The name of the comparison and of its models."""
    title, names = str(document.get("title") or "Comparison"), [str(row["name"]) for row in document["rows"]]
    if len(names) < 2:
        return html(title)
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    between = " " if title[-1] in ".?!" else ": "
    return html(title + between + (listed if len(listed) <= MAX_NAMES_CHARS else _model_count(document)))


def _about(document: Document) -> str:
    """The number of models and the data of their scores, on one line."""
    data = f" on <code>{html(document['data'])}</code>" if document.get("data") else ""
    return f"{_model_count(document)}{data}{_test_size(document)}"


def _hardware(environment: Mapping[str, Any]) -> str:
    gpu, threads = environment.get("gpu"), environment.get("threads")
    device = "CPU" if gpu in (None, "", "none") else str(gpu)
    parts = [environment.get("system"), device, count_of(threads, "thread") if isinstance(threads, int) else None]
    return ", ".join(str(part) for part in parts if part) if environment else ""


def _facts(document: Document) -> str:
    """The conditions of the comparison: data, budget, tuning, hardware, versions, date."""
    about, environment = document.get("about") or {}, document.get("environment") or {}
    trials = max(
        (len({trial["trial"] for trial in search["trials"]}) for search in (document.get("tuning") or {}).values()), default=0
    )
    versions = {"weft": "weft", "torch": "torch", "python": "Python"}
    facts = {
        **{name: about.get(name) for name in ("training data", "tokenizer", "budget")},
        "tuning": f"{count_of(trials, 'trial')} per model" if trials else None,
        "hardware": "; ".join(mixed_hardware(document)) or _hardware(environment),
        "versions": ", ".join(f"{title} {environment[name]}" for name, title in versions.items() if environment.get(name)),
        "date": about.get("date"),
    }
    entries = "".join(f"<div><dt>{name}</dt><dd>{html(fact)}</dd></div>" for name, fact in facts.items() if fact)
    return f'<dl class="conditions">{entries}</dl>' if entries else ""


def _test_size(document: Document) -> str:
    """The number of items, in parentheses."""
    return f" ({html(count_of(**document['test_items']))})" if document.get("test_items") else ""


def _body(document: Document) -> str:
    sections = [_results(document), *_charts(document), *_details(document)]
    links = "".join(f'<a href="#{section.anchor}">{section.title}</a>' for section in sections)
    return (
        f'<header><div><h1 dir="auto">{_title(document)}</h1>'
        f'<p class="about">{_about(document)}</p>{_facts(document)}</div>'
        '<button type="button" id="theme" class="needs-script">Dark</button></header>'
        f'<nav aria-label="sections">{links}</nav><main>'
        '<p class="no-script note">Charts, sorting and filters need JavaScript; the numbers are in the tables.</p>'
        f"{''.join(map(_section, sections))}</main><footer>Made with weft.</footer>"
    )


def page(document: Document) -> str:
    """The HTML report of a comparison: `document` is the content of comparison.json."""
    for name in REQUIRED:
        if not document.get(name):
            raise UsageError("report", f"the comparison has no {name}")
    style, script = _resource("page.css"), _script()
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script, has_media=has_previews(document))}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="generator" content="weft">\n'
        f"<title>{_title(document)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n{_body(document)}\n"
        f'<script type="application/json" id="data">{embedded(page_data(document))}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )
