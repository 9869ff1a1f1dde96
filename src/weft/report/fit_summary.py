"""What `weft.fit` chose, why, and its test score: in words, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.metrics.score_table import default_scores, score_rows

if TYPE_CHECKING:
    from weft.metrics.metric import Metric
    from weft.report.fit import Candidate
    from weft.tasks.spec import Evaluation

NUM_TEST_SCORES = 2


def reason(candidates: Sequence[Candidate], metric: Metric) -> str:
    """Why the first candidate is chosen although others have better scores: 'gru is not significantly better', or ''. Of the
    others, only the best one is tested."""
    best = candidates[0].scores[metric.name]
    better = next((row.name for row in candidates if metric.is_better(row.scores[metric.name], best)), None)
    return f"{better} is not significantly better" if better else ""


def describe_test(test: Evaluation, metric: Metric) -> str:
    """'accuracy 96.7 [93.3, 100.0], F1 (macro) ...'; first the metric of the choice, so that its two scores can be compared."""
    scores = sorted(default_scores(list(test)), key=lambda score: score.name != metric.name)
    return ", ".join(" ".join(row) for row in score_rows(scores[:NUM_TEST_SCORES]))


def describe_choice(
    candidates: Sequence[Candidate], metric: Metric, test: Evaluation, *, folds: int | None, trains_again: bool
) -> dict[str, str]:
    """The choice of a search in comparison.json: the name of the model, its score, the reason, and its test score."""
    best = candidates[0]
    mean = f", the mean over {folds} folds; this page shows the first" if folds else ""
    data = "all training data" if folds else "training and validation data"
    again = f", trained again on {data}" if trains_again else ""
    return {
        "name": best.name,
        "score": f"{metric.label} {metric.format(best.scores[metric.name])}{mean}",
        "reason": reason(candidates, metric),
        "test": f"{describe_test(test, metric)}{again}",
    }
