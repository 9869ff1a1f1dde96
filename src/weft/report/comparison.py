"""Writes comparison.json and the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft import files
from weft.comparison.evaluation import COMPARISON, REPORT
from weft.comparison.plan import FailedRun, drop_backup
from weft.comparison.to_json import to_document
from weft.report.page import page
from weft.report.page_check import CHECKSUM, checksum

if TYPE_CHECKING:
    from weft.comparison.observer import Progress
    from weft.comparison.results import RunResults
    from weft.data.minimal_pair_files import MinimalPair


class ComparisonInfo(NamedTuple):
    """The description of a comparison, without its results."""

    title: str
    command: str  # reproduces the comparison
    metric: str | None  # for the ranking; None: the task's default
    failures: Sequence[FailedRun]
    suites: Sequence[Path] = ()
    pairs: Sequence[MinimalPair] = ()  # the pairs of the suites
    tuned: Mapping[str, Any] | None = None  # the hyperparameter search of each row
    about: Mapping[str, str] | None = None  # shared by all rows: tokenizer, budget
    choice: Mapping[str, str] | None = None  # of `weft.fit`: the chosen model, its scores and the reason


def write_comparison(
    results: Mapping[str, Sequence[RunResults]],
    info: ComparisonInfo,
    output_dir: Path,
    progress: Progress,
    extend: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
) -> dict[str, Any]:
    """Write comparison.json and report.html into `output_dir`; returns the document, after `extend` has added to it."""
    progress.show("comparing", 0.0)
    document = to_document(results, title=info.title, metric_name=info.metric, command=info.command)
    document["failures"] = [failure._asdict() for failure in info.failures]
    document["tuning"] = dict(info.tuned or {})
    document["about"] |= {"date": time.strftime("%Y-%m-%d %H:%M"), **(info.about or {})}
    if info.choice is not None:
        document["choice"] = dict(info.choice)
    document = extend(document)
    # use the content of the file, so that a report written from the file is the same
    document = dict(files.as_json(document))
    document[CHECKSUM] = checksum(document)
    files.write_json(output_dir / COMPARISON, document)
    files.write_text(output_dir / REPORT, page(document))
    drop_backup(output_dir)
    progress.clear()
    return document
