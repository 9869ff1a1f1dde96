"""A comparison written down: what it found, and its page."""

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
from weft.report.page_check import SUM, seal

if TYPE_CHECKING:
    from weft.comparison.observer import Progress
    from weft.comparison.results import RunResults
    from weft.data.minimal_pair_files import MinimalPair


class ComparisonInfo(NamedTuple):
    """What a comparison is about, beside its runs."""

    title: str
    command: str  # that makes it again
    score: str | None  # what decides; None: the task's own
    failures: Sequence[FailedRun]
    suites: Sequence[Path] = ()
    pairs: Sequence[MinimalPair] = ()  # those of the suites
    tuned: Mapping[str, Any] | None = None  # the search for settings of each row
    about: Mapping[str, str] | None = None  # what all rows have in common: tokenizer, budget


def write_comparison(
    evidence: Mapping[str, Sequence[RunResults]],
    facts: ComparisonInfo,
    out: Path,
    progress: Progress,
    extended: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
) -> dict[str, Any]:
    """comparison.json and report.html in `out`; what the first of them holds, `extended` by whoever asks."""
    progress.show("comparing", 0.0)
    found = to_document(evidence, title=facts.title, score=facts.score, command=facts.command)
    found["failures"] = [failure._asdict() for failure in facts.failures]
    found["tuning"] = dict(facts.tuned or {})
    found["about"] |= {"date": time.strftime("%Y-%m-%d %H:%M"), **(facts.about or {})}
    found = extended(found)
    # what the file holds, not what was in memory: a report that is made again is the same
    found = dict(files.as_json(found))
    found[SUM] = seal(found)
    files.write_json(out / COMPARISON, found)
    files.write_text(out / REPORT, page(found))
    drop_backup(out)
    progress.clear()
    return found
