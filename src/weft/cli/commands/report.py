"""`weft report`: the page of a comparison, made again, or of runs that were never compared."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.options import FILES, Context, Data, Device, ModelCommand
from weft.cli.output import check_files, print_error, write, write_json
from weft.cli.usage import one_line
from weft.comparison.evaluation import COMPARISON, EVIDENCE, REPORT, evaluate_runs, failed, refuse_missing, refuse_policy
from weft.errors import ModelError, UsageError

PLAN = "plan.toml"  # what a comparison that is not finished has


def is_comparison(path: Path) -> bool:
    """Whether a path is a comparison, not a run; without what measuring needs, for a page alone is made at once."""
    return path.suffix == ".json" or any((path / name).is_file() for name in (COMPARISON, PLAN))


def read_comparison(path: Path) -> dict[str, Any]:
    """What a comparison found, of its folder or of comparison.json itself."""
    from weft import files
    from weft.report.page_check import find_problem

    file = path / COMPARISON if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise UsageError(path, f"has no {COMPARISON}: the comparison is not finished", "the same weft compare goes on with it")
    found = files.read_json(file)
    known = found if isinstance(found, dict) else {}
    rows, score = known.get("rows"), known.get("score")
    if not isinstance(rows, list) or not rows or not isinstance(score, dict) or not {"name", "better"} <= score.keys():
        raise ModelError(file, "is no comparison: it has no rows with a score", "make it with weft compare")
    if wrong := find_problem(known):
        raise ModelError(file, f"is damaged: {wrong}", "the weft compare that wrote it writes it again")
    return known


def results_dir(run: Path) -> Path | None:
    """Where the evidence of a run is kept: where the comparison that trained it has it, else in the run itself; nowhere if it
    can't be written to: somebody else's run can be looked at all the same."""
    from weft.files import refuse_link

    beside = run.parent / EVIDENCE / run.name
    place = beside if beside.is_dir() else run / EVIDENCE
    for part in (beside.parent, place) if place == beside else (place,):  # a link could lead to a folder of the reader's own
        refuse_link(part)
    return place if os.access(place.parent, os.W_OK) else None


def _nowhere(run: Path) -> None:
    """Where the evidence of a run on other data is kept: it would take the place of that on its own."""


@dataclass(kw_only=True)
class Report(ModelCommand):
    """Make the page of a comparison again, from what it found, or a page of runs, which are measured for it.

    The page is one HTML file that needs nothing else, and no network: send it to whom you like. What measuring finds is kept
    in each run, and not measured again while its weights and its data are the same; on --data, it is not kept.
    """

    inputs: Annotated[
        list[Path], typer.Argument(metavar="COMPARISON | RUN...", help="A comparison's folder or JSON file, or run folders.")
    ]
    report: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FILES,
            metavar="FILE",
            help="Where the page goes.  [default: report.html in the comparison, of runs here]",
        ),
    ] = None
    data: Data = None
    context: Context = None
    device: Device = "auto"

    def run(self) -> int:
        from weft import files
        from weft.report.page import page

        if self.report is not None and self.report.suffix not in ("", ".html", ".htm"):
            raise UsageError("--output-dir", f"{self.report} must end in .html, for it is a page")
        check_files({"--output-dir": self.report})
        made = [path for path in self.inputs if is_comparison(path)]
        if made and len(self.inputs) > 1:
            raise UsageError("report", f"{made[0]} is a comparison", "give one alone, or runs")
        for option, given in (("context", self.context), ("data", self.data)):
            if made and given:
                raise UsageError(f"--{option}", f"{made[0]} has been measured", "drop it, or give runs")
        found = read_comparison(made[0]) if made else self._measured(self.inputs)
        beside = made[0] if made and made[0].is_dir() else made[0].parent if made else Path()
        output_dir = self.report or beside / REPORT
        text = page(found)
        files.write_text(output_dir, text, named=self.report is not None)
        if self.json:
            names = [row["name"] for row in found["rows"]]
            write_json({"report": str(output_dir), "bytes": len(text.encode()), "rows": names})
        else:
            write(f"{output_dir}\n")
        failures = [] if made else found["failures"]  # of runs that were measured here
        return failures[0]["code"] if failures else 0

    def _measured(self, paths: Sequence[Path]) -> dict[str, Any]:
        from weft.cli.display import Display
        from weft.comparison.groups import find, group_runs, readable
        from weft.comparison.results import EvaluationOptions
        from weft.comparison.to_json import to_document

        kept, unread = readable(paths)
        rows = {name: [run.path for run in runs] for name, runs in group_runs(find(kept, data=bool(self.data))).items()}
        refuse_policy(kept, self.context)
        refuse_missing(self.data or ())
        with Display(quiet=self.quiet) as display:
            how = EvaluationOptions(context=self.context)
            results, failures = evaluate_runs(
                rows, _nowhere if self.data else results_dir, display, how, data=self.data, device=self.device
            )
            damaged = [*unread, *failures]
            if not results:
                raise ModelError("", damaged[0].reason)
            display.show("comparing", 0.0)
            title = "Comparison" if len(rows) > 1 else paths[0].name
            policy = [] if self.context is None else ["--context", self.context]
            files = [word for path in self.data or () for word in ("--data", str(path))]
            command = shlex.join(["weft", "report", *map(str, paths), *policy, *files])
            found = to_document(results, title=title, command=command)
        for failure in damaged:
            print_error(f"weft: {one_line(failed(failure))}")
        return {**found, "failures": [failure._asdict() for failure in damaged]}
