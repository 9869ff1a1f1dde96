"""The table of a comparison: rows by name, best first, for people, programs and papers."""

from __future__ import annotations

import csv as tables
import io
import json as notation
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.compare.contexts import refuse_several
from weft.compare.evidence import Evidence
from weft.compare.scores import better, deciding, functions
from weft.compare.significance import LEVEL, Estimate, Resampled, clipped, difference, estimate, holm, paired, resampled
from weft.errors import UsageError
from weft.metrics.items import Function, Items
from weft.metrics.labels import NO_INTERVAL
from weft.text.columns import aligned

Groups = Mapping[str, Sequence[Evidence]]


class Row(NamedTuple):
    """One model, or one setting of it, over its seeds; costs are means over them."""

    name: str
    runs: list[str]
    seeds: list[int]
    deciding: str  # the score that rows are ordered by
    score: Estimate
    scores: dict[str, Estimate]
    p: float | None  # that it is as good as the best row; None for that one itself
    best: bool
    alike: bool  # the best row, or not significantly worse
    parameters: int
    seconds: float | None
    tokens_per_second: float | None
    peak_memory: int | None
    decoding: float
    unit: str
    bytes: int


# ---- making it


def check_same(groups: Groups) -> None:
    """Refuse rows that were not measured on the same items of one task."""
    runs = [run for group in groups.values() for run in group]
    first = runs[0]
    refuse_several(runs)
    for other in runs[1:]:
        if other.task != first.task:
            raise UsageError(f"compare: {first.run} is of task {first.task!r}, {other.run} of {other.task!r}; compare one task")
        same = np.array_equal(first.items.keys, other.items.keys)
        texts = first.references == other.references and (first.task in ("lm", "masked-lm") or first.inputs == other.inputs)
        if not same or not texts:
            raise UsageError(f"compare: {first.run} and {other.run} were measured on different items; give both the same data")


def stated(groups: Groups) -> str:
    """What the interval is, and what p is, in one sentence."""
    counts = sorted(map(len, groups.values()))
    several = counts[-1] > 1
    seeds = "means over seeds, with a 95 % interval over seeds and test items (Student's t)"
    one = "those of one run, with a 95 % interval over test items (bootstrap, 1,000 resamples)"
    words = f"Scores are {seeds if several else one}"
    if len(groups) < 2:
        return words + "."
    both = "over seeds, which are not paired, and test items, which are (Welch's t, the variance over items from a bootstrap)"
    pairs = "paired over test items (approximate randomisation), so it is about these runs and not about other seeds"
    mixed = f"; where both have one run, {pairs}" if several and counts[:2] == [1, 1] else ""
    corrected = ", with Holm's correction for several rows" if len(groups) > 2 else ""
    p = "p is the probability of so large a difference from the best row if both were equally good"
    return f"{words}; {p}, {both + mixed if several else pairs}{corrected}."


def _best(values: Sequence[float], name: str) -> int:
    sign = -1.0 if better(name) == "higher" else 1.0
    return min(range(len(values)), key=lambda at: math.inf if math.isnan(values[at]) else sign * values[at])


def _apart(
    a: tuple[Sequence[Items], Sequence[Resampled]], b: tuple[Sequence[Items], Sequence[Resampled]], score: Function
) -> float:
    """p of two rows."""
    if len(a[0]) == len(b[0]) == 1:
        return paired(a[0][0], b[0][0], score)
    return difference(a[1], b[1])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def rows(groups: Groups, score: str | None = None) -> list[Row]:
    """Every row, the best first; `score` decides instead of the task's own."""
    if not groups:
        raise UsageError("compare: there is no run to compare; name at least one")
    check_same(groups)
    runs = [run for group in groups.values() for run in group]
    name = deciding(runs[0].task, [run.scores for run in runs], score)
    common = {n: f for n, f in functions(runs[0].task, runs[0].scores).items() if _everywhere(n, runs)}
    again = iter(resampled([run.items for run in runs], common))
    drawn = {row: [next(again) for _ in group] for row, group in groups.items()}
    found = {row: {n: _estimated([one[n] for one in several], n) for n in common} for row, several in drawn.items()}
    names = list(groups)
    best = names[_best([found[row][name].value for row in names], name)]
    sides = {row: ([run.items for run in groups[row]], [one[name] for one in drawn[row]]) for row in names}
    others = [row for row in names if row != best]
    p = dict(zip(others, holm([_apart(sides[row], sides[best], common[name]) for row in others]), strict=True))
    made = [_row(row, groups[row], name, found[row], p.get(row)) for row in names]
    sign = -1.0 if better(name) == "higher" else 1.0
    return sorted(made, key=lambda row: (not row.best, sign * row.score.value if not math.isnan(row.score.value) else math.inf))


def _everywhere(name: str, runs: Sequence[Evidence]) -> bool:
    return all(name in {score.name for score in run.scores} for run in runs)


def _estimated(runs: Sequence[Resampled], name: str) -> Estimate:
    found = estimate(runs)
    return Estimate(found.value, None, None) if name in NO_INTERVAL else clipped(found, higher=better(name) == "higher")


def _row(name: str, runs: Sequence[Evidence], deciding_score: str, scores: dict[str, Estimate], p: float | None) -> Row:
    costs = [run.cost for run in runs]
    memory = [cost.peak_memory for cost in costs if cost.peak_memory is not None]
    return Row(
        name=name,
        runs=[str(run.run) for run in runs],
        seeds=[run.seed for run in runs],
        deciding=deciding_score,
        score=scores[deciding_score],
        scores=scores,
        p=None if p is None or math.isnan(p) else p,
        best=p is None,
        alike=p is None or p >= LEVEL,  # NaN is not
        parameters=costs[0].parameters,
        seconds=_mean([cost.seconds for cost in costs]),
        tokens_per_second=_mean([cost.tokens_per_second for cost in costs]),
        peak_memory=max(memory, default=None),
        decoding=float(np.mean([cost.decoding for cost in costs])),
        unit=costs[0].unit,
        bytes=costs[0].bytes,
    )


# ---- writing it


def shown(value: float | None, digits: int = 4) -> str:
    """A number of a table: four decimals; of large ones fewer."""
    if value is None or math.isnan(value):
        return ""
    return "inf" if math.isinf(value) else f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:,.1f}"


def seconds_shown(seconds: float | None) -> str:
    """4.25 -> '4.2 s', 75 -> '1:15', 3700 -> '1:01:40'."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def bytes_shown(size: float | None) -> str:
    """1536 -> '1.5 kB'; units of a thousand, as disks have them."""
    if size is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.1f} {unit}"


def p_shown(p: float | None) -> str:
    return "" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def rate_shown(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"


def _digits(found: Sequence[Row]) -> int:
    """Decimals of scores: percents have two, others four."""
    return 2 if better(found[0].deciding) == "higher" or found[0].deciding == "edit_rate" else 4


def _heads(found: Sequence[Row]) -> list[str]:
    name = found[0].deciding.replace("_per_", "/").replace("_", " ")
    first = ["", name, "95 % interval", "p", "seeds", "parameters"]
    return [*first, "training", "tokens/s", "memory", found[0].unit, "size"]


def cells(found: Sequence[Row]) -> list[list[str]]:
    """The table as text, its head first: what terminal, Markdown and LaTeX show."""
    digits = _digits(found)
    table = [_heads(found)]
    for row in found:
        bounds = [shown(bound, digits) for bound in (row.score.low, row.score.high)]
        table.append(
            [
                "".join(letter if letter.isprintable() else " " for letter in row.name),  # a row is a line
                shown(row.score.value, digits),
                f"{bounds[0]} to {bounds[1]}" if all(bounds) else "",
                p_shown(row.p),
                str(len(row.seeds)),
                f"{row.parameters:,}",
                seconds_shown(row.seconds),
                rate_shown(row.tokens_per_second),
                bytes_shown(row.peak_memory),
                rate_shown(row.decoding),
                bytes_shown(row.bytes),
            ]
        )
    return _without_empty(table)


def _without_empty(table: list[list[str]]) -> list[list[str]]:
    """Without columns that say nothing of any row."""
    kept = [at for at in range(len(table[0])) if any(line[at] for line in table[1:])]
    return [[line[at] for at in kept] for line in table]


def terminal(found: Sequence[Row]) -> str:
    """Aligned columns; a star marks the best row and those not significantly worse."""
    table = cells(found)
    marks = [" ", *("*" if row.alike else " " for row in found)]
    lines = [[line[0], line[1] + mark, *line[2:]] for line, mark in zip(table, marks, strict=True)]
    return "".join(f"{line}\n" for line in aligned(lines))


def csv(found: Sequence[Row]) -> str:
    """Every number in full, a column each; scores but the deciding one follow the costs."""
    names = [name for name in found[0].scores if name != found[0].deciding]
    heads = ["name", "seeds", "score", "value", "low", "high", "p", "best", "alike", "parameters", "seconds"]
    heads += ["tokens_per_second", "peak_memory", "decoding", "decoding_unit", "bytes"]
    heads += [f"{name}{part}" for name in names for part in ("", "_low", "_high")]
    text = io.StringIO()
    writer = tables.writer(text, lineterminator="\n")
    writer.writerow(heads)
    for row in found:
        seeds = " ".join(map(str, row.seeds))
        line: list[Any] = [row.name, seeds, row.deciding, *row.score, row.p, int(row.best), int(row.alike)]
        line += [row.parameters, row.seconds, row.tokens_per_second, row.peak_memory, row.decoding, row.unit, row.bytes]
        line += [value for name in names for value in row.scores[name]]
        writer.writerow(["" if value is None else value for value in line])
    return text.getvalue()


def _emphasised(found: Sequence[Row], escape: Callable[[str], str], bold: Callable[[str], str]) -> list[list[str]]:
    """Cells, escaped; name and score of the best row and of those not significantly worse in bold."""
    head, *lines = [[escape(cell) for cell in line] for line in cells(found)]
    marked = [[*map(bold, line[:2]), *line[2:]] if row.alike else line for line, row in zip(lines, found, strict=True)]
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


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def estimate_json(found: Estimate) -> dict[str, Any]:
    """JSON has no infinity: an infinite value is null and says so."""
    infinite = {"infinite": True} if math.isinf(found.value) else {}
    return {"value": finite(found.value), "low": finite(found.low), "high": finite(found.high), **infinite}


def row_json(row: Row) -> dict[str, Any]:
    """A row as comparison.json has it."""
    names = (
        "name",
        "runs",
        "seeds",
        "p",
        "best",
        "alike",
        "parameters",
        "seconds",
        "tokens_per_second",
        "peak_memory",
        "bytes",
    )
    return {
        **{name: getattr(row, name) for name in names},
        "score": estimate_json(row.score),
        "scores": {name: estimate_json(found) for name, found in row.scores.items()},
        "decoding": {"value": row.decoding, "unit": row.unit},
    }


def json(found: Sequence[Row]) -> str:
    """Rows as comparison.json has them."""
    return notation.dumps([row_json(row) for row in found], ensure_ascii=False, allow_nan=False, indent=2) + "\n"
