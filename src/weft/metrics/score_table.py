"""Scores as the rows of a table. No heavy imports: the command line loads this module at startup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from weft.metrics.labels import format_score, label_of

if TYPE_CHECKING:
    from weft.metrics.items import Score

TITLES = ["", "value", "95% CI"]


def default_scores(scores: Sequence[Score]) -> list[Score]:
    """The scores that tables show by default. Perplexity is left out if BLEU is present, since it repeats the loss."""
    names = {score.name for score in scores}
    hidden = {"perplexity"} if "bleu" in names else set()
    return [score for score in scores if label_of(score.name).is_default and score.name not in hidden]


def score_rows(scores: Iterable[Score]) -> list[list[str]]:
    """Display name, value and 95% confidence interval of each score."""
    rows = list[list[str]]()
    for score in scores:
        label = label_of(score.name)
        low, high = (format_score(bound, label.style) for bound in (score.low, score.high))
        interval = "-" if score.low is None or score.high is None else f"[{low}, {high}]"
        name = f"{label.text} ({label.unit})" if label.unit else label.text
        rows.append([name, format_score(score.value, label.style), interval])
    return rows
