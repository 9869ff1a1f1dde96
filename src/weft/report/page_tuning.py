"""The hyperparameter search in the report: all trials of all rows with their validation scores, the chosen one marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.plots.formatting import MISSING, finite, html, number
from weft.report.page_data import Document, metric_of, score_label
from weft.report.page_table import COLORS, sign

WIDTH, HEIGHT = 120, 14  # of the chart of a score
Trial = Mapping[str, Any]


def format_option(value: Any) -> str:
    """The value of an option: 0.1, true, 1-2."""
    if isinstance(value, list):
        return "-".join(map(format_option, value))
    if isinstance(value, bool) or value is None:
        return MISSING if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _score(trial: Trial) -> float | None:
    return finite((trial.get("score") or {}).get("value"))


def _latest(trials: Sequence[Trial], *, upwards: bool) -> list[Trial]:
    """The last run of each trial: the last rung first, and the best first within a rung."""
    last = {trial["trial"]: trial for trial in sorted(trials, key=lambda trial: trial["rung"])}

    def key(trial: Trial) -> tuple[int, bool, float, int]:
        value = _score(trial)
        return -trial["rung"], value is None, 0.0 if value is None else -value if upwards else value, trial["trial"]

    return sorted(last.values(), key=key)


def _point(value: float | None, scale: tuple[float, float], index: int) -> str:
    """A score as a point on the common scale of all trials."""
    if value is None:
        return ""
    x = 5 + (WIDTH - 10) * ((value - scale[0]) / (scale[1] - scale[0]) if scale[1] > scale[0] else 0.5)
    line = f'<path class="guide" d="M0 {HEIGHT // 2}H{WIDTH}"/>'
    return (
        f'<svg class="trial c{index % COLORS}" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{line}'
        f'<circle class="point" cx="{x:.1f}" cy="{HEIGHT // 2}" r="4"/></svg>'
    )


def _line(trial: Trial, options: Sequence[str], chosen: int, score: str) -> str:
    star = '&nbsp;<span class="star" title="chosen">\u2605<span class="visually-hidden"> chosen</span></span>'
    name = f"{trial['trial']}{' (run file)' if trial['trial'] == 0 else ''}{star if trial['trial'] == chosen else ''}"
    values = trial["options"]
    cells = "".join(f"<td>{html(format_option(values[name])) if name in values else ''}</td>" for name in options)
    budget = finite(trial.get("budget"))
    fraction = "" if budget is None else f"{budget:.3g}"
    best = " class=best" if trial["trial"] == chosen else ""
    return f'<tr{best}><th scope="row">{name}</th>{cells}<td>{fraction}</td><td class="wide">{score}</td></tr>'


def _table(document: Document, name: str, index: int) -> str:
    search = document["tuning"][name]
    metric_name = next((trial["score"]["name"] for trial in search["trials"] if trial.get("score")), "score")
    upwards = (metric := metric_of(document, metric_name)) is not None and metric.higher_is_better
    trials = _latest(search["trials"], upwards=upwards)
    options = list(dict.fromkeys(option for trial in trials for option in trial["options"]))
    scores = [value for value in map(_score, search["trials"]) if value is not None]
    scale = (min(scores), max(scores)) if scores else (0.0, 0.0)
    decimals = 1 if upwards else 3  # percentages have one decimal, losses three
    lines = []
    for trial in trials:
        value = _score(trial)
        text = html(trial.get("reason") or MISSING) if value is None else number(value, decimals)
        cell = f'<span class="with-chart"><span>{text}</span>{_point(value, scale, index)}</span>'
        lines.append(_line(trial, options, search["chosen"], cell))
    heads = ["trial", *map(html, options), "budget", html(f"validation {score_label(document, metric_name)}")]
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    return (
        f"<h3>{sign(index)} <bdi>{html(name)}</bdi></h3>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="trials of {html(name)}">'
        f"<table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def tuning(document: Document) -> str:
    """A table of trials for every row that was tuned."""
    indices = {row["name"]: index for index, row in enumerate(document["rows"])}
    ordered = sorted(document["tuning"], key=lambda name: indices.get(name, len(indices)))
    return "".join(_table(document, name, indices.get(name, len(indices) + i)) for i, name in enumerate(ordered))
