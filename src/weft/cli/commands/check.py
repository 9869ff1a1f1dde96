"""`weft check`: what is wrong with the data of a run file, before anything is trained."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import ModelCommand
from weft.cli.output import write, write_json
from weft.errors import DataError
from weft.text.table_layout import columns, display_width, wrap

if TYPE_CHECKING:
    from weft.data.check import Report
    from weft.data.findings import CheckOptions, Finding

INDENT = 9  # "warning" and two spaces
NAME = 6  # "where" and a space


def size_table(report: Report, told: CheckOptions) -> str:
    """A row for every side of every split: how large it is, the longest line, and the unknown tokens."""
    from weft.data.findings import percent

    rows = [["", "", told.rows, "characters", "tokens", "mean", "longest", "unknown"]]
    for split, found in report.sizes.items():
        for side in told.sides:
            own, first = found[side], side == told.sides[0]
            cells = [split if first else "", side, f"{found['rows']:,}" if first else "", f"{own['characters']:,}"]
            if "tokens" in own:
                mean, unknown = own["tokens"] / found["rows"], percent(own["unk_rate"], 1)
                cells += [f"{own['tokens']:,}", f"{mean:.1f}", f"{own['max_length']:,}", unknown]
            rows.append([*cells, *[""] * (len(rows[0]) - len(cells))])
    if len(told.sides) == 1:
        rows = [[row[0], *row[2:]] for row in rows]
    return columns(rows, left=len(told.sides))


def _named(name: str, text: str) -> str:
    return " " * INDENT + name.ljust(NAME) + text


def _example(texts: Sequence[str], room: int) -> list[str]:
    """Both sides on one line if they fit, else below each other."""
    from weft.data.check import truncate_text
    from weft.text.reading import preview

    letters = [room * len(text) // display_width(text) if display_width(text) > len(text) else room for text in texts]
    quoted = [f'"{preview(truncate_text(text, limit - 5), limit)}"' for text, limit in zip(texts, letters, strict=True)]
    together = " -> ".join(quoted)
    return [together] if display_width(together) <= room else [quoted[0], *(f"-> {text}" for text in quoted[1:])]


def as_text(finding: Finding, width: int) -> str:
    """A finding for people, in a few lines: of what one side shows, one example is enough."""
    from weft.data.findings import MAX_ROWS

    lines = [wrap(finding.severity.ljust(INDENT), f"{finding.split}: {finding.message}", width)]
    if finding.locations:
        file = finding.locations[0].rsplit(":", 1)[0]
        others = [place.removeprefix(f"{file}:") for place in finding.locations[1:]]
        more = ["..."] if finding.count > len(finding.locations) == MAX_ROWS else []
        lines.append(_named("where", ", ".join([finding.locations[0], *others, *more])))
    examples = finding.examples if finding.side is None else finding.examples[:1]
    parts = [part for texts in examples for part in _example(texts, width - INDENT - NAME)]
    return "\n".join([*lines, *(_named("" if number else "e.g.", part) for number, part in enumerate(parts))])


def as_texts(findings: Sequence[Finding], width: int) -> list[str]:
    """All findings; the cure stands once below those that are alike."""
    parts = []
    for finding, after in zip_longest(findings, findings[1:]):
        text = as_text(finding, width)
        if after is None or (after.severity, after.name, after.fix) != (finding.severity, finding.name, finding.fix):
            text += "\n" + wrap(_named("cure", ""), finding.fix, width) + "\n"
        parts.append(text)
    return parts


def _from_here(finding: Finding) -> Finding:
    """The same with paths as they are seen from here."""
    here = f"{Path.cwd()}/"
    where = tuple(place.removeprefix(here) for place in finding.locations)
    return replace(finding, message=finding.message.replace(here, ""), locations=where)


def as_json(finding: Finding) -> dict[str, Any]:
    names = ("severity", "name", "split", "count", "what", "where", "examples", "cure")
    return {name: getattr(finding, name) for name in names}


@dataclass(kw_only=True)
class Check(ModelCommand):
    """Read the data of a run file before any training, and report what ruins runs silently."""

    run_file: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The run file; weft init writes one.")]
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=VALUE", help="Change an option of the run file; may be given several times."),
    ] = None

    show_windows: Annotated[
        int | None,
        typer.Option(min=1, max=1000, metavar="N", help="Show the first N windows that training reads: inputs and labels."),
    ] = None

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.cli.show_windows import as_table, check_applies, windows_of
        from weft.config import override, read_toml
        from weft.data.check import check_data
        from weft.data.findings import SEVERITIES
        from weft.runs.resolve import resolve

        config = resolve(override(read_toml(self.run_file), self.overrides or []), base=self.run_file.parent)
        if self.show_windows is not None:
            check_applies(config)
        told, tokenizers = config.spec.data.check(config)
        made = cache(tokenizers)
        with Display(quiet=self.quiet) as display:
            report = check_data(config.datasets, made, told, progress=display.show)
            drawn = None if self.show_windows is None else windows_of(config, made()[0], self.show_windows)
        counts = {f"{severity}s": report.count(severity) for severity in SEVERITIES}
        if self.json:
            found = [as_json(finding) for finding in report.findings]
            read = {} if drawn is None else {"read": drawn}
            write_json({"run_file": str(self.run_file), "splits": report.sizes, "findings": found, **counts, **read})
        else:
            width = min(shutil.get_terminal_size((100, 24)).columns, 120)
            findings = as_texts([_from_here(finding) for finding in report.findings], width)
            summary = ", ".join(f"{count} {name if count != 1 else name[:-1]}" for name, count in counts.items())
            table = [] if drawn is None else [as_table(drawn)]
            write("\n".join([size_table(report, told), *table, *findings, f"{summary}\n"]))
        return DataError.exit_code if counts["errors"] else 0
