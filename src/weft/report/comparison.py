"""A comparison written down: what it found, and its page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft import files
from weft.compare.document import document
from weft.compare.measuring import COMPARISON, REPORT
from weft.compare.plan import Refused, settle
from weft.report.page import page
from weft.report.page_check import SUM, seal

if TYPE_CHECKING:
    from weft.compare.evidence import Evidence
    from weft.compare.observer import Progress
    from weft.data.probe_files import Pair


class Facts(NamedTuple):
    """What a comparison is about, beside its runs."""

    title: str
    command: str  # that makes it again
    score: str | None  # what decides; None: the task's own
    failures: Sequence[Refused]
    suites: Sequence[Path] = ()
    pairs: Sequence[Pair] = ()  # those of the suites
    tuned: Mapping[str, Any] | None = None  # the search for settings of each row
    about: Mapping[str, str] | None = None  # what all rows have in common: tokenizer, budget


def write_comparison(
    evidence: Mapping[str, Sequence[Evidence]],
    facts: Facts,
    out: Path,
    progress: Progress,
    extended: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
) -> dict[str, Any]:
    """comparison.json and report.html in `out`; what the first of them holds, `extended` by whoever asks."""
    progress.show("comparing", 0.0)
    found = document(evidence, title=facts.title, score=facts.score, command=facts.command)
    found["failures"] = [failure._asdict() for failure in facts.failures]
    found["tuning"] = dict(facts.tuned or {})
    found["about"] |= {"date": time.strftime("%Y-%m-%d %H:%M"), **(facts.about or {})}
    found = extended(found)
    # what the file holds, not what was in memory: a report that is made again is the same
    found = dict(files.as_json(found))
    found[SUM] = seal(found)
    files.write_json(out / COMPARISON, found)
    files.write_text(out / REPORT, page(found))
    settle(out)
    progress.clear()
    return found
