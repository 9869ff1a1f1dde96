"""`weft compare --report`: the HTML report of a comparison, written again, or written for runs without a comparison."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.cli.output import check_files, warn, write, write_json
from weft.cli.usage import one_line
from weft.comparison.evaluation import (
    COMPARISON,
    REPORT,
    RESULTS,
    check_context_policy,
    check_data_files,
    describe_failure,
    evaluate_runs,
)
from weft.errors import ModelError, UsageError

PLAN = "plan.toml"  # in a comparison that is not finished


def is_comparison(path: Path) -> bool:
    """Whether a path is a comparison, not a run. No heavy imports: writing only the page is fast."""
    return path.suffix == ".json" or any((path / name).is_file() for name in (COMPARISON, PLAN))


def read_comparison(path: Path) -> dict[str, Any]:
    """Read comparison.json; `path` is the file or the directory of the comparison."""
    from weft import files
    from weft.report.page_check import find_problem

    file = path / COMPARISON if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise UsageError(
            path, f"the comparison is not finished ({COMPARISON} is missing)", "run the same weft compare to resume"
        )
    content = files.read_json(file)
    document = content if isinstance(content, dict) else {}
    rows, metric = document.get("rows"), document.get("metric")
    if not isinstance(rows, list) or not rows or not isinstance(metric, dict) or not {"name", "better"} <= metric.keys():
        raise ModelError(file, "not a comparison (it has no rows or no metric)", "write it with weft compare")
    if problem := find_problem(document):
        raise ModelError(file, f"damaged: {problem}", "run the same weft compare to write it again")
    return document


def results_dir(run: Path) -> Path | None:
    """The directory for the results of a run: in the comparison that trained it, else in the run itself; None if it is not
    writable, so that a read-only run can be compared."""
    from weft.files import refuse_link

    shared = run.parent / RESULTS / run.name
    directory = shared if shared.is_dir() else run / RESULTS
    # a link could lead to any directory of the user
    for part in (shared.parent, directory) if directory == shared else (directory,):
        refuse_link(part)
    return directory if os.access(directory.parent, os.W_OK) else None


def _no_results_dir(run: Path) -> None:
    """Results on other data are not stored: they would replace those on the run's own data."""


class ReportOptions(NamedTuple):
    """Where the report goes, and how runs are evaluated for it."""

    file: Path | None  # default: report.html in the comparison; for runs, in the working directory
    data: Sequence[Path] | None
    context: str | None
    device: str
    json: bool
    quiet: bool


def check_report_file(file: Path | None) -> None:
    """Refuse a file that cannot be an HTML page, before any work."""
    if file is not None and file.suffix not in ("", ".html", ".htm"):
        raise UsageError("report", f"{file} must end in .html")
    check_files({"report": file})


def write_report(inputs: Sequence[Path], options: ReportOptions) -> int:
    """Write the HTML report of a comparison again, or that of runs, which are evaluated for it; return the exit code.

    Evaluation results are stored in each run, and reused while its weights and data are the same; with other data they are
    not stored.
    """
    from weft import files
    from weft.report.page import page

    check_report_file(options.file)
    comparisons = [path for path in inputs if is_comparison(path)]
    if comparisons and len(inputs) > 1:
        raise UsageError("compare", f"{comparisons[0]} is a comparison", "name it alone, or name runs")
    for option, value in (("context", options.context), ("data", options.data)):
        if comparisons and value:
            raise UsageError(option, f"{comparisons[0]} is a comparison and already evaluated", "name runs instead")
    document = read_comparison(comparisons[0]) if comparisons else _evaluate(inputs, options)
    directory = Path()
    if comparisons:
        directory = comparisons[0] if comparisons[0].is_dir() else comparisons[0].parent
    output = options.file or directory / REPORT
    text = page(document)
    files.write_text(output, text, named=options.file is not None)
    if options.json:
        names = [row["name"] for row in document["rows"]]
        write_json({"report": str(output), "bytes": len(text.encode()), "rows": names})
    else:
        write(f"{output}\n")
    failures = [] if comparisons else document["failures"]  # only for runs evaluated here
    return failures[0]["code"] if failures else 0


def _evaluate(paths: Sequence[Path], options: ReportOptions) -> dict[str, Any]:
    from weft.cli.display import Display
    from weft.comparison.groups import group_runs, open_runs, split_readable
    from weft.comparison.results import EvaluationOptions
    from weft.comparison.to_json import to_document

    usable, unreadable = split_readable(paths)
    rows = {name: [run.path for run in runs] for name, runs in group_runs(open_runs(usable, data=bool(options.data))).items()}
    check_context_policy(usable, options.context)
    check_data_files(options.data or ())
    with Display(quiet=options.quiet) as display:
        evaluation = EvaluationOptions(context=options.context)
        store = _no_results_dir if options.data else results_dir
        results, failures = evaluate_runs(rows, store, display, evaluation, data=options.data, device=options.device)
        damaged = [*unreadable, *failures]
        if not results:
            raise ModelError("", damaged[0].reason)
        display.show("comparing", 0.0)
        title = "Comparison" if len(rows) > 1 else paths[0].name
        words = [] if options.context is None else ["--context", options.context]
        words += [word for path in options.data or () for word in ("--data", str(path))]
        words += ["--report", str(options.file or REPORT)]
        document = to_document(results, title=title, command=shlex.join(["weft", "compare", *map(str, paths), *words]))
    for failure in damaged:
        warn(one_line(describe_failure(failure)))
    return {**document, "failures": [failure._asdict() for failure in damaged]}
