"""`weft check`: problems in the data of a run file, and wrong gradients of its model, before training."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from weft.cli.options import ModelCommand, Overrides, RunFile
from weft.cli.output import Style, pluralize, write_json, write_styled
from weft.errors import DataError, UsageError
from weft.text.table_layout import align, display_width, wrap

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.data.check import Report
    from weft.data.findings import CheckOptions, Finding
    from weft.explain.gradcheck import TensorCheck
    from weft.runs.config import RunConfig

INDENT = 9  # "warning" and two spaces
WRONG_GRADIENTS = 1  # exit code
MAX_WIDTH = 120
STYLES: dict[str, Style] = {"error": "red", "warning": "yellow", "note": "dim"}
Line = tuple[str, Style]


def _side_sizes(side: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of one side of a split; token counts only if the text could be tokenized."""
    sizes = {"characters": side["characters"]}
    if "tokens" not in side:
        return sizes
    return {**sizes, **{name: side[name] for name in ("tokens", "max_length", "unk_rate")}}


def sizes_json(report: Report, options: CheckOptions) -> dict[str, Any]:
    return {
        split: {**sizes, **{side: _side_sizes(sizes[side]) for side in options.sides}} for split, sizes in report.sizes.items()
    }


def size_table(report: Report, options: CheckOptions) -> list[str]:
    """A row for each side of each split: its size, the length of its texts, and the rate of unknown tokens."""
    item = options.rows.removesuffix("s")
    rows = [["", options.rows, "characters", "tokens", f"tokens/{item}", "max", "<unk>", ""]]
    for split, sizes in report.sizes.items():
        for side in options.sides:
            is_first, side_sizes = side == options.sides[0], _side_sizes(sizes[side])
            cells = [split if is_first else "", f"{sizes['rows']:,}" if is_first else "", f"{side_sizes['characters']:,}"]
            if "tokens" in side_sizes:
                mean = side_sizes["tokens"] / max(1, sizes["rows"])
                cells += [
                    f"{side_sizes['tokens']:,}",
                    f"{mean:.1f}",
                    f"{side_sizes['max_length']:,}",
                    f"{side_sizes['unk_rate']:.1%}",
                ]
            else:
                cells += ["-"] * 4
            rows.append([*cells, side if len(options.sides) > 1 else ""])
    return align(rows, left=(0, len(rows[0]) - 1))


def _example(texts: Sequence[str], width: int) -> list[str]:
    """Both sides on one line if they fit in `width`, else below each other."""
    from weft.data.check import truncate_text
    from weft.text.reading import preview

    limits = [width * len(text) // display_width(text) if display_width(text) > len(text) else width for text in texts]
    quoted = [f'"{preview(truncate_text(text, limit - 5), limit)}"' for text, limit in zip(texts, limits, strict=True)]
    joined = " -> ".join(quoted)
    return [joined] if display_width(joined) <= width else [quoted[0], *(f"-> {text}" for text in quoted[1:])]


def finding_lines(finding: Finding, width: int) -> list[Line]:
    """The lines of a finding, with all examples, or one if it concerns only one side."""
    from weft.data.findings import MAX_ROWS

    indent = " " * INDENT
    head = wrap(finding.severity.ljust(INDENT), f"{finding.split}: {finding.message}", width)
    lines: list[Line] = [(line, STYLES[finding.severity]) for line in head.removesuffix("\n").split("\n")]
    if finding.locations:
        file = finding.locations[0].rsplit(":", 1)[0]
        rest = [location.removeprefix(f"{file}:") for location in finding.locations[1:]]
        more = ["..."] if finding.count > len(finding.locations) == MAX_ROWS else []
        lines.append((indent + ", ".join([finding.locations[0], *rest, *more]), "dim"))
    examples = finding.examples if finding.side is None else finding.examples[:1]
    return [*lines, *((indent + part, "dim") for texts in examples for part in _example(texts, width - INDENT))]


def findings_lines(findings: Sequence[Finding], width: int) -> list[Line]:
    """All findings; a fix is printed once, below the findings that share it."""
    lines = list[Line]()
    for finding, following in zip_longest(findings, findings[1:]):
        lines += finding_lines(finding, width)
        key = (finding.severity, finding.name, finding.fix)
        if following is None or (following.severity, following.name, following.fix) != key:
            fix = wrap(" " * INDENT, f"Fix: {finding.fix}", width).removesuffix("\n").split("\n") if finding.fix else []
            lines += [*((line, "") for line in fix), ("", "")]
    return lines


def _relative(finding: Finding) -> Finding:
    """The finding with paths relative to the current directory."""
    prefix = f"{Path.cwd()}/"
    locations = tuple(location.removeprefix(prefix) for location in finding.locations)
    return replace(finding, message=finding.message.replace(prefix, ""), locations=locations)


def as_json(finding: Finding) -> dict[str, Any]:
    names = ("severity", "name", "split", "count", "message", "locations", "examples", "fix")
    return {name: getattr(finding, name) for name in names}


class Shown(NamedTuple):
    """What training reads, if it is to be shown, and to which formats the model can be exported."""

    windows: dict[str, Any] | None
    examples: list[dict[str, str]] | None
    export: dict[str, list[str]]  # what prevents each format of weft export


@dataclass(kw_only=True)
class Check(ModelCommand):
    """Check the data of a run file before training.

    Reports invalid, duplicate, empty, too long and inconsistent examples, and overlaps between splits. The exit code is 3 if
    there are errors. --gradients also compares the gradients of the model with numerical ones, in float64, for a sample of
    the entries of each tensor; the exit code is 1 if one is wrong.
    """

    run_file: RunFile
    overrides: Overrides = None
    show_windows: Annotated[
        int | None,
        typer.Option(min=1, max=1000, metavar="N", help="Print the first N windows that training reads: inputs and targets."),
    ] = None
    show_examples: Annotated[
        int | None,
        typer.Option(min=1, max=1000, metavar="N", help="Task denoising: print the first N training texts with their noise."),
    ] = None
    gradients: Annotated[bool, typer.Option("--gradients", help="Also compare the model's gradients with numerical ones.")] = (
        False
    )
    entries: Annotated[int, typer.Option(metavar="N", help="Entries to check per tensor.")] = 4
    tolerance: Annotated[float, typer.Option(metavar="X", help="Largest accepted relative error.")] = 1e-5

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.cli.gradient_check import wrong_tensors
        from weft.cli.show_windows import check_applies, examples_of, windows_of
        from weft.config import override, read_toml
        from weft.data.check import check_data
        from weft.interop.formats import all_problems
        from weft.runs.recommend import recommend_if_readable
        from weft.runs.resolve import resolve

        if self.entries < 1:
            raise UsageError("entries", f"must be at least 1, got {self.entries}")
        if not self.tolerance > 0:
            raise UsageError("tolerance", f"must be greater than 0, got {self.tolerance:g}")
        values = override(read_toml(self.run_file), self.overrides or [])
        recommendation = recommend_if_readable(values, base=self.run_file.parent)
        config = recommendation.config
        if self.show_windows is not None:
            check_applies(config)
        options, make_tokenizers, more = config.spec.data.check(config)
        tokenizers = cache(make_tokenizers)
        with Display(quiet=self.quiet) as display:
            report = check_data(config.datasets, tokenizers, options, more, display.show)
            windows = None if self.show_windows is None else windows_of(config, tokenizers()[0], self.show_windows)
            examples = None if self.show_examples is None else examples_of(config, tokenizers()[0], self.show_examples)
            checks = None
            if self.gradients and not report.count("error"):
                on_cpu = resolve(override(recommendation.values, ["train.device=cpu"]), base=self.run_file.parent)
                checks = self._check_gradients(on_cpu, display)
        shown = Shown(windows, examples, all_problems(config))
        if self.json:
            self._write_json(report, options, shown, checks)
        else:
            self._write(report, options, shown, checks)
        if report.count("error"):
            return DataError.exit_code
        return WRONG_GRADIENTS if checks and wrong_tensors(checks, self.tolerance) else 0

    def _check_gradients(self, config: RunConfig, display: Display) -> list[TensorCheck]:
        from weft.cli.gradient_check import check_gradients

        return check_gradients(config, self.entries, display)

    def _write_json(
        self,
        report: Report,
        options: CheckOptions,
        shown: Shown,
        checks: Sequence[TensorCheck] | None,
    ) -> None:
        from weft.cli.gradient_check import as_json as tensor_json
        from weft.cli.gradient_check import wrong_tensors
        from weft.data.findings import SEVERITIES

        findings = [as_json(finding) for finding in report.findings]
        counts = {f"{severity}s": report.count(severity) for severity in SEVERITIES}
        extra = {name: value for name, value in shown._asdict().items() if value is not None}
        gradients = {}
        if checks is not None:
            tensors = [tensor_json(check, self.tolerance) for check in checks]
            wrong = len(wrong_tensors(checks, self.tolerance))
            gradients = {"gradients": {"tolerance": self.tolerance, "tensors": tensors, "wrong": wrong}}
        sizes = sizes_json(report, options)
        write_json({"run_file": str(self.run_file), "splits": sizes, "findings": findings, **counts, **extra, **gradients})

    def _write(
        self,
        report: Report,
        options: CheckOptions,
        shown: Shown,
        checks: Sequence[TensorCheck] | None,
    ) -> None:
        from weft.cli import gradient_check, show_windows
        from weft.cli.export_table import export_lines
        from weft.data.findings import SEVERITIES
        from weft.interop.formats import is_lost

        width = min(shutil.get_terminal_size((100, 24)).columns, MAX_WIDTH)
        head, *rows = size_table(report, options)
        lines: list[Line] = [(head, "bold"), *((row, "") for row in rows), ("", "")] if rows else []
        tables = [] if shown.windows is None else [show_windows.as_table(shown.windows)]
        tables += [] if shown.examples is None else [show_windows.examples_as_table(shown.examples)]
        for table in tables:
            lines += [*((line, "") for line in table.removesuffix("\n").split("\n")), ("", "")]
        lines += findings_lines([_relative(finding) for finding in report.findings], width)
        # formats that other tasks have are not worth a line
        formats = {name: found for name, found in shown.export.items() if not found or is_lost(found)}
        if formats:
            lines += [("Export", "bold"), *((line, "") for line in export_lines(formats, width, indent=2)), ("", "")]
        lines.append((", ".join(pluralize(report.count(severity), severity) for severity in SEVERITIES), ""))
        if checks is not None:
            lines += [
                ("", ""),
                *((line, "") for line in gradient_check.as_table(checks, self.tolerance).removesuffix("\n").split("\n")),
            ]
        elif self.gradients:
            lines.append(("The gradients were not checked, because the data has errors.", ""))
        write_styled(lines)
