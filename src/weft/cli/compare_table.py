"""The table of a comparison on a terminal, with its footnotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weft.cli.output import Style, format_count, format_short_duration
from weft.text.table_layout import align, display_width

if TYPE_CHECKING:
    from weft.comparison.results import RunResults
    from weft.comparison.table import Row

Groups = Mapping[str, Sequence["RunResults"]]
MIN_COLUMNS = 5  # mark, model, score, interval and p are always printed
MEGABYTE = 1e6


def _memory(size: float | None) -> str:
    if size is None:
        return "-"
    return f"{size / MEGABYTE:,.0f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def _p(row: Row) -> str:
    if not row.has_enough_items:
        return "?"
    if row.p is None:
        return "-"
    return "<0.001" if row.p < 0.001 else f"{row.p:.3f}"


def _cells(row: Row) -> list[str]:
    metric, score = row.metric, row.score
    has_interval = score.low is not None and score.high is not None
    return [
        " *" if row.tied_with_best else "  ",
        "".join(char if char.isprintable() else " " for char in row.name),  # no newline in a row
        metric.format(score.value),
        f"[{metric.format(score.low)}, {metric.format(score.high)}]" if has_interval else "-",
        _p(row),
        format_count(row.num_parameters),
        "-" if row.seconds is None else format_short_duration(row.seconds),
        "-" if row.tokens_per_second is None else format_count(row.tokens_per_second),
        _memory(row.peak_memory),
    ]


def table_lines(rows: Sequence[Row], width: int | None) -> list[tuple[str, Style]]:
    """The table, the best row first and bold; columns that exceed the width are left out, the last ones first."""
    metric = rows[0].metric
    cells = [["", "model", metric.label, "95% CI", "p", "params", "train time", "train tok/s", "peak memory"]]
    cells += [_cells(row) for row in rows]
    lines = _align(cells)
    while width is not None and len(cells[0]) > MIN_COLUMNS and max(map(display_width, lines)) > width:
        cells = [line[:-1] for line in cells]
        lines = _align(cells)
    return [(line, "bold" if index < 2 else "") for index, line in enumerate(lines)]


def _align(cells: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines: a narrow column for the mark, models flush left, numbers flush right."""
    marks = [line[0].ljust(2) for line in cells]
    aligned = align([line[1:] for line in cells], left=(0,))
    return [f"{mark} {line}".rstrip() for mark, line in zip(marks, aligned, strict=True)]


def footnotes(groups: Groups) -> list[str]:
    """What the mark, the interval and p mean."""
    counts = sorted(map(len, groups.values()))
    has_seeds = counts[-1] > 1
    notes = []
    if len(groups) > 1:
        notes.append(" * best model, or not significantly worse (p >= 0.05)")
    if has_seeds:
        seeds = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        text = f"Mean over {seeds} seeds. CI over seeds and test items."
    else:
        text = "CI over test items (bootstrap)."
    if len(groups) > 1:
        test = "Welch's t-test" if has_seeds else "approximate randomization"
        corrected = ", Holm-corrected" if len(groups) > 2 else ""
        text += f" p: difference from the best model ({test}{corrected})."
    return [*notes, text]


def unknown_warning(groups: Groups) -> str:
    """A warning about models that score unknown tokens, if tokenizers differ; else ''."""
    from weft.comparison.scores import has_several_tokenizers

    rates = {name: max(run.unknown for run in group) for name, group in groups.items()}
    if not any(rates.values()) or not has_several_tokenizers([run.scores for group in groups.values() for run in group]):
        return ""
    listed = ", ".join(f"{name} {rate:.2%}" for name, rate in rates.items() if rate)
    return f"unknown tokens ({listed}) are cheap to predict, so these scores look better than they are"
