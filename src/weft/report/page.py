"""A comparison as one HTML file that needs nothing else: it opens from disk, asks nobody for anything, and prints.

All that can be read without a script stands in the page itself; the script sorts, draws and filters (script/*.js).
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
from weft.report.page_data import Document, embedded, page_data
from weft.report.page_table import score_table, table
from weft.report.page_tuning import tuning
from weft.tasks.registry import known_task
from weft.text.table_layout import count_of

SCRIPTS = ("base", "chart", "legend", "table", "scrolling", "curves", "cost", "breakdowns", "items", "confusions", "start")
NEEDS = ("rows", "score")
LISTED = 60  # letters that the names of all models may have in the title


class Section(NamedTuple):
    anchor: str
    title: str
    lead: str  # HTML
    body: str  # HTML


def _resource(name: str) -> str:
    return files("weft.report").joinpath(name).read_text(encoding="utf-8")


def _script() -> str:
    """All scripts as one, so that their names are nobody else's."""
    return '(() => {\n"use strict";\n' + "\n".join(_resource(f"script/{name}.js") for name in SCRIPTS) + "\n})();\n"


def _policy(style: str, script: str) -> str:
    """Only what is ours may run, by its hash, and nothing may be asked for: whatever a data set holds is but text."""

    def known(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return f"default-src 'none'; style-src {known(style)}; script-src {known(script)}; base-uri 'none'; form-action 'none'"


def _chart(name: str) -> str:
    """Where the script draws; nothing is there without it."""
    return f'<div class="drawn" data-chart="{name}"></div>'


def _breakdowns(document: Document) -> str:
    return "".join(
        f'<div class="breakdown"><h3>By {html(one["by"])}</h3>'
        f'<div class="drawn" data-chart="breakdown" data-place="{place}"></div>{parts.breakdown_table(document, one)}</div>'
        for place, one in enumerate(document.get("breakdowns") or [])
    )


def _results(document: Document) -> Section:
    test = f'<p class="note">{html(document["test"])}</p>' if document.get("test") else ""
    context = f'<p class="note">{html(document["context"]["text"])}</p>' if document.get("context") else ""
    body = parts.findings(document) + table(document) + context + test + score_table(document)
    return Section("results", "Results", "", body)


def _charts(document: Document) -> Iterator[Section]:
    if any(curve.get("train") or curve.get("valid") for curve in document.get("curves") or []):
        lead = (
            "Each line is one run. Where steps are noisy the bold line is the running mean over 5 % of them, and the pale line "
            "behind it is what was logged. Training that falls while validation gets worse is overfitting. Drag over a part to "
            "zoom in, or use the + and - keys with the chart in focus; a double click shows all again."
        )
        tables = parts.curve_table(document) + parts.gradient_table(document)
        yield Section("curves", "Learning curves", lead, _chart("curves") + tables)
    if len(document["rows"]) > 1:
        lead = "A model on the line is the best that can be had for its cost; one beside it is beaten by one on it."
        yield Section("cost", "Quality against cost", lead, _chart("cost"))
    if document.get("breakdowns"):
        lead = "Bars are intervals: wide ones where there are few items. How many there are stands beside each."
        yield Section("breakdowns", "Where the scores come from", lead, _breakdowns(document))


def _details(document: Document) -> Iterator[Section]:
    if document.get("items"):
        lead = (
            "Of each row's first seed, the items on which the rows differ most, the worst and the best. They are chosen: "
            "counting them says nothing about the whole."
        )
        fallback = f'<div class="without">{parts.first_items(document)}</div>'
        yield Section("items", "Item by item", lead, f'<div class="drawn" data-chart="items"></div>{fallback}')
    if document.get("confusions"):
        lead = "Rows are what was meant, columns what was said; the stronger the colour, the larger its share of those meant."
        yield Section("confusions", "Confusions", lead, _chart("confusions") + parts.confusion_tables(document))
    grown = parts.samples_over_training(document)
    if grown:
        lead = (
            "What each row's first seed wrote at its validations (train.num_samples), from the same random numbers each time."
        )
        yield Section("progress", "Text over training", lead, grown)
    written = parts.samples(document)
    if written:
        yield Section("samples", "Samples", "", written)
    if document.get("tuning"):
        lead = "Every trial on the validation data; the settings with a star went into the comparison. Test data chose nothing."
        yield Section("tuning", "Tuning", lead, tuning(document))
    if document.get("settings"):
        yield Section("settings", "Settings", "", parts.settings(document))
    yield Section("repeat", "To repeat it", "", parts.repeat(document) + parts.environment(document))


def _section(section: Section) -> str:
    lead = f'<p class="lead">{section.lead}</p>' if section.lead else ""
    return f'<section id="{section.anchor}"><h2>{section.title}</h2>{lead}{section.body}</section>'


def _compared(document: Document) -> str:
    """What is compared: '3 language models'."""
    count = len(document["rows"])
    task = known_task(document.get("task"))
    kind = "model" if task is None else task.compare.models or task.noun
    return f"{count} {kind if count == 1 else f'{kind}s'}"


def _title(document: Document) -> str:
    """The comparison's name, and the models that are in it."""
    title, names = str(document.get("title") or "Comparison"), [str(row["name"]) for row in document["rows"]]
    if len(names) < 2:
        return html(title)
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    between = " " if title[-1] in ".?!" else ": "
    return html(title + between + (listed if len(listed) <= LISTED else _compared(document)))


def _about(document: Document) -> str:
    """What is compared, on what, in a line."""
    data = f" on <code>{html(document['data'])}</code>" if document.get("data") else ""
    return f"{_compared(document)}{data}{_tested(document)}"


def _hardware(environment: Mapping[str, Any]) -> str:
    gpu, threads = environment.get("gpu"), environment.get("threads")
    device = "CPU" if gpu in (None, "", "none") else str(gpu)
    known = [environment.get("system"), device, count_of(threads, "thread") if isinstance(threads, int) else None]
    return ", ".join(str(one) for one in known if one) if environment else ""


def _facts(document: Document) -> str:
    """With what it was measured: data, budget, tuning, hardware, versions, date."""
    known, environment = document.get("about") or {}, document.get("environment") or {}
    trials = max(
        (len({one["trial"] for one in found["trials"]}) for found in (document.get("tuning") or {}).values()), default=0
    )
    versions = {"weft": "weft", "torch": "torch", "python": "Python"}
    facts = {
        **{name: known.get(name) for name in ("training data", "tokenizer", "budget")},
        "tuning": f"{count_of(trials, 'trial')} per model" if trials else None,
        "hardware": _hardware(environment),
        "versions": ", ".join(f"{shown} {environment[name]}" for name, shown in versions.items() if environment.get(name)),
        "date": known.get("date"),
    }
    told = "".join(f"<div><dt>{name}</dt><dd>{html(fact)}</dd></div>" for name, fact in facts.items() if fact)
    return f'<dl class="measured">{told}</dl>' if told else ""


def _tested(document: Document) -> str:
    """How many items it was measured on."""
    return f" ({html(count_of(**document['tested']))})" if document.get("tested") else ""


def _body(document: Document) -> str:
    sections = [_results(document), *_charts(document), *_details(document)]
    links = "".join(f'<a href="#{one.anchor}">{one.title}</a>' for one in sections)
    return (
        f'<header><div><h1 dir="auto">{_title(document)}</h1>'
        f'<p class="about">{_about(document)}</p>{_facts(document)}</div>'
        '<button type="button" id="theme" class="scripted">Dark</button></header>'
        f'<nav aria-label="sections">{links}</nav><main>'
        '<p class="without note">Charts, sorting and filters need JavaScript; the numbers are in the tables.</p>'
        f"{''.join(map(_section, sections))}</main><footer>Made by weft.</footer>"
    )


def page(document: Document) -> str:
    """The HTML of a comparison: `document` is what comparison.json holds."""
    for name in NEEDS:
        if not document.get(name):
            raise UsageError("report", f"the comparison has no {name}", "there is nothing to show")
    style, script = _resource("page.css"), _script()
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="generator" content="weft">\n'
        f"<title>{_title(document)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n{_body(document)}\n"
        f'<script type="application/json" id="data">{embedded(page_data(document))}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )
