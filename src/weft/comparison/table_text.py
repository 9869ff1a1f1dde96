"""The table of a comparison as text: for a terminal, as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv as csv_format
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

from weft.comparison.scores import metric_label
from weft.comparison.significance import LEVEL, Estimate
from weft.comparison.table import Row, mixed_hardware
from weft.metrics.metric import Metric
from weft.text.table_layout import align

MISSING = "-"
MIXED_HARDWARE = " (mixed hardware)"  # in the titles of timings that cannot be compared
MIXED_MARK = "~"  # instead of it, in a terminal
BEST_OR_TIED = f"best model, or not significantly worse (p >= {LEVEL:g})"  # the meaning of `*`
MIN_COLUMNS = 4  # model, score, interval and p are shown even on a narrow terminal


def format_value(value: float | None, metric: Metric) -> str:
    """Format a score: percentages with one decimal, perplexity with three significant digits, losses with three decimals."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "inf"
    if metric.percent:
        return f"{value:.1f}"
    if "perplexity" in metric.name:
        return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}".rstrip(".")
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:,.1f}"


def format_interval(estimate: Estimate, metric: Metric) -> str:
    """'[1.514, 1.666]', or '-' without bounds."""
    if estimate.low is None or estimate.high is None:
        return MISSING
    return f"[{format_value(estimate.low, metric)}, {format_value(estimate.high, metric)}]"


def format_seconds(seconds: float | None) -> str:
    """4.25 -> '4.2s', 12.4 -> '12s', 85 -> '1m25s', 7500 -> '2h05m'."""
    if seconds is None:
        return MISSING
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded}s"
    if rounded < 3600:
        return f"{rounded // 60}m{rounded % 60:02d}s"
    return f"{rounded // 3600}h{rounded // 60 % 60:02d}m"


def format_bytes(size: float | None) -> str:
    """1536 -> '1.5 kB'; powers of 1000."""
    if size is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.1f} {unit}"


def format_count(count: float | None) -> str:
    """950 -> '950', 11_712 -> '11.7k', 1_234_567 -> '1.2M'."""
    if count is None:
        return MISSING
    if count < 999.5:
        return f"{count:.0f}" if count >= 10 or count == round(count) else f"{count:.1f}"
    for unit in ("k", "M", "B"):
        count /= 1000
        if count < 999.5 or unit == "B":
            break
    return f"{count:.0f}{unit}" if count >= 99.95 else f"{count:.1f}{unit}"


def format_p(p: float | None) -> str:
    return MISSING if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def metric_title(metric: Metric) -> str:
    """The metric as a column title: its label without the unit."""
    return metric_label(metric).removesuffix(" (nats/token)")


def _titles(rows: Sequence[Row], mark: str) -> list[str]:
    timing = mark if mixed_hardware(rows) else ""
    costs = ["params", "active", f"train time{timing}", f"train tok/s{timing}", "peak memory"]
    return ["model", metric_title(rows[0].metric), "95% CI", "p", *costs]


def cells(rows: Sequence[Row], mark: str = MIXED_HARDWARE) -> list[list[str]]:
    """The cells of the table for terminal, Markdown and LaTeX, titles first; columns without any value are left out. Timings of
    different hardware have `mark` in their titles."""
    table, has_experts = [_titles(rows, mark)], any(row.num_active_parameters is not None for row in rows)
    for row in rows:
        num_active = row.num_parameters if row.num_active_parameters is None else row.num_active_parameters
        table.append(
            [
                "".join(char if char.isprintable() else " " for char in row.name),  # a row is one line
                format_value(row.score.value, row.metric),
                format_interval(row.score, row.metric),
                format_p(row.p) if row.has_enough_items else "?",
                format_count(row.num_parameters),
                format_count(num_active if has_experts else None),
                format_seconds(row.seconds),
                format_count(row.tokens_per_second),
                format_bytes(row.peak_memory),
            ]
        )
    used = [column for column in range(len(table[0])) if any(line[column] != MISSING for line in table[1:])]
    return [[line[column] for column in used] for line in table]


def significance_mark(row: Row) -> str:
    """`*` for the best row and those that are not significantly worse, `?` if the test data is too small to tell."""
    return "*" if row.tied_with_best else "" if row.has_enough_items else "?"


def terminal(rows: Sequence[Row], width: int | None = None) -> str:
    """Aligned columns and the legend of their marks. `*` marks the best model and those that are not significantly worse, `?`
    those that the test data is too small to tell from it, `~` timings of different hardware. If the table is wider than
    `width`, the last columns are left out."""
    marks = ["", *map(significance_mark, rows)]
    table = [[f" {mark:1} {line[0]}", *line[1:]] for line, mark in zip(cells(rows, MIXED_MARK), marks, strict=True)]
    lines = align(table)
    while width is not None and len(table[0]) > MIN_COLUMNS and max(map(len, lines)) > width:
        table = [line[:-1] for line in table]
        lines = align(table)
    legend = ["", f" * {BEST_OR_TIED}"] if len(rows) > 1 else []
    if hardware := mixed_hardware(rows):
        legend = [*(legend or [""]), f" {MIXED_MARK} measured on different hardware: {'; '.join(hardware)}"]
    return "".join(f"{line}\n" for line in [*lines, *legend])


def csv(rows: Sequence[Row]) -> str:
    """Every number in full precision, one column each; the other metrics follow the costs."""
    names = [name for name in rows[0].scores if name != rows[0].metric.name]
    titles = ["name", "seeds", "metric", "value", "low", "high", "p", "best", "tied_with_best", "has_enough_items"]
    titles += ["difference", "difference_low", "difference_high", "num_parameters", "seconds"]
    titles += ["tokens_per_second", "peak_memory", "inference_rate", "inference_unit", "model_bytes"]
    titles += ["train_hosts", "train_hardware", "inference_hardware"]
    titles += [f"{name}{part}" for name in names for part in ("", "_low", "_high")]
    text = io.StringIO()
    writer = csv_format.writer(text, lineterminator="\n")
    writer.writerow(titles)
    for row in rows:
        seeds = " ".join(map(str, row.seeds))
        line: list[Any] = [row.name, seeds, row.metric.name, *row.score, row.p]
        line += [int(row.best), int(row.tied_with_best), int(row.has_enough_items)]
        line += row.difference or ["", "", ""]
        line += [row.num_parameters, row.seconds, row.tokens_per_second, row.peak_memory]
        line += [row.inference_rate, row.inference_unit, row.model_bytes]
        line += ["; ".join(names) for names in (row.train_hosts, row.train_hardware, row.inference_hardware)]
        line += [value for name in names for value in row.scores[name]]
        writer.writerow(["" if value is None else value for value in line])
    return text.getvalue()


def _emphasized(rows: Sequence[Row], escape: Callable[[str], str], bold: Callable[[str], str]) -> list[list[str]]:
    """The cells, escaped; name and score of the best row, and of rows that are not significantly worse, in bold."""
    head, *lines = [[escape(cell) for cell in line] for line in cells(rows)]
    marked = [[*map(bold, line[:2]), *line[2:]] if row.tied_with_best else line for line, row in zip(lines, rows, strict=True)]
    return [head, *marked]


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table."""

    def escape(text: str) -> str:
        return "".join(f"\\{char}" if char in "\\|*_`[]<>#" else char for char in text)

    head, *lines = _emphasized(rows, escape, lambda text: f"**{text}**" if text else "")
    rule = [":--", *["--:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, rule, *lines])


LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def latex(rows: Sequence[Row]) -> str:
    """A LaTeX tabular that needs \\usepackage{booktabs}."""

    def escape(text: str) -> str:
        return "".join(LATEX.get(char, char) for char in text)

    head, *lines = _emphasized(rows, escape, lambda text: rf"\textbf{{{text}}}" if text else "")
    body = [" & ".join(line) + r" \\" for line in lines]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
    parts = [begin, r"\toprule", " & ".join(head) + r" \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(parts) + "\n"
