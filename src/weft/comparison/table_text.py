"""The table of a comparison as text: for a terminal, as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv as tables
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

from weft.comparison.significance import Estimate
from weft.comparison.table import DIFFERENCE, Row
from weft.text.table_layout import align


def format_value(value: float | None, digits: int = 4) -> str:
    """A number of a table: four decimals; of large ones fewer."""
    if value is None or math.isnan(value):
        return ""
    return "inf" if math.isinf(value) else f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:,.1f}"


def format_seconds(seconds: float | None) -> str:
    """4.25 -> '4.2 s', 75 -> '1:15', 3700 -> '1:01:40'."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def format_bytes(size: float | None) -> str:
    """1536 -> '1.5 kB'; units of a thousand, as disks have them."""
    if size is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.1f} {unit}"


def format_p(p: float | None) -> str:
    return "" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def format_rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"


def _signed(apart: Estimate | None, digits: int) -> str:
    """'+0.0520 to +0.0894'."""
    if apart is None or apart.low is None or apart.high is None:
        return ""
    return f"{apart.low:+.{digits}f} to {apart.high:+.{digits}f}"


def _digits(found: Sequence[Row]) -> int:
    """Decimals of scores: percents have two, others four."""
    return 2 if found[0].deciding.percent else 4


def _heads(found: Sequence[Row]) -> list[str]:
    name = found[0].deciding.name.replace("_per_", "/").replace("_", " ")
    first = ["", name, "95 % interval", DIFFERENCE, "p", "seeds", "parameters"]
    return [*first, "training", "tokens/s", "memory", found[0].unit, "size"]


def cells(found: Sequence[Row]) -> list[list[str]]:
    """The table as text, its head first: what terminal, Markdown and LaTeX show."""
    digits = _digits(found)
    table = [_heads(found)]
    for row in found:
        bounds = [format_value(bound, digits) for bound in (row.score.low, row.score.high)]
        table.append(
            [
                "".join(letter if letter.isprintable() else " " for letter in row.name),  # a row is a line
                format_value(row.score.value, digits),
                f"{bounds[0]} to {bounds[1]}" if all(bounds) else "",
                _signed(row.difference, digits),
                format_p(row.p) if row.has_enough_items else "?",
                str(len(row.seeds)),
                f"{row.num_parameters:,}",
                format_seconds(row.seconds),
                format_rate(row.tokens_per_second),
                format_bytes(row.peak_memory),
                format_rate(row.decoding),
                format_bytes(row.bytes),
            ]
        )
    return _without_empty(table)


def _without_empty(table: list[list[str]]) -> list[list[str]]:
    """Without columns that say nothing of any row."""
    kept = [at for at in range(len(table[0])) if any(line[at] for line in table[1:])]
    return [[line[at] for at in kept] for line in table]


def terminal(found: Sequence[Row], width: int | None = None) -> str:
    """Aligned columns; a star marks the best row and those not significantly worse, a question mark those of which there is
    too little data to tell. Where the table is wider than `width`, it goes without the differences."""
    table = cells(found)
    marks = [" ", *("*" if row.tied_with_best else " " if row.has_enough_items else "?" for row in found)]
    lines = [[line[0], line[1] + mark, *line[2:]] for line, mark in zip(table, marks, strict=True)]
    if width is not None and DIFFERENCE in table[0] and max(map(len, align(lines))) > width:
        at = table[0].index(DIFFERENCE)
        lines = [[*line[:at], *line[at + 1 :]] for line in lines]
    return "".join(f"{line}\n" for line in align(lines))


def csv(found: Sequence[Row]) -> str:
    """Every number in full, a column each; scores but the deciding one follow the costs."""
    names = [name for name in found[0].scores if name != found[0].deciding.name]
    heads = ["name", "seeds", "score", "value", "low", "high", "p", "best", "alike", "enough"]
    heads += ["difference", "difference_low", "difference_high", "parameters", "seconds"]
    heads += ["tokens_per_second", "peak_memory", "decoding", "decoding_unit", "bytes"]
    heads += [f"{name}{part}" for name in names for part in ("", "_low", "_high")]
    text = io.StringIO()
    writer = tables.writer(text, lineterminator="\n")
    writer.writerow(heads)
    for row in found:
        seeds = " ".join(map(str, row.seeds))
        line: list[Any] = [row.name, seeds, row.deciding.name, *row.score, row.p]
        line += [int(row.best), int(row.tied_with_best), int(row.has_enough_items)]
        line += row.difference or ["", "", ""]
        line += [row.num_parameters, row.seconds, row.tokens_per_second, row.peak_memory, row.decoding, row.unit, row.bytes]
        line += [value for name in names for value in row.scores[name]]
        writer.writerow(["" if value is None else value for value in line])
    return text.getvalue()


def _emphasised(found: Sequence[Row], escape: Callable[[str], str], bold: Callable[[str], str]) -> list[list[str]]:
    """Cells, escaped; name and score of the best row and of those not significantly worse in bold."""
    head, *lines = [[escape(cell) for cell in line] for line in cells(found)]
    marked = [[*map(bold, line[:2]), *line[2:]] if row.tied_with_best else line for line, row in zip(lines, found, strict=True)]
    return [head, *marked]


def markdown(found: Sequence[Row]) -> str:
    """A table of Markdown."""

    def escape(text: str) -> str:
        return "".join(f"\\{letter}" if letter in "\\|*_`[]<>#" else letter for letter in text)

    head, *lines = _emphasised(found, escape, lambda text: f"**{text}**" if text else "")
    rule = [":--", *["--:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, rule, *lines])


LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def latex(found: Sequence[Row]) -> str:
    """A tabular for \\usepackage{booktabs}."""

    def escape(text: str) -> str:
        return "".join(LATEX.get(letter, letter) for letter in text)

    head, *lines = _emphasised(found, escape, lambda text: rf"\textbf{{{text}}}" if text else "")
    body = [" & ".join(line) + r" \\" for line in lines]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
    parts = [begin, r"\toprule", " & ".join(head) + r" \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(parts) + "\n"
