"""Summary of the gradient norms of a run, from its metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class GradientSummary(NamedTuple):
    """Gradient norms before clipping, over all logged steps."""

    mean: float
    max: float
    clipped: int  # number of clipped steps
    steps: int
    lr: float  # learning rate of the last step

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def summarize(records: Sequence[Mapping[str, Any]]) -> GradientSummary | None:
    """The summary of a run; None if the model was not trained in steps, or its log has no gradient norms."""
    lines = [record for record in records if isinstance(record.get("grad_norm"), float)]  # of training, not validation
    if not lines:
        return None
    # each line covers the steps since the one before it
    ends = [int(line["step"]) for line in lines]
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return GradientSummary(
        mean=sum(line["grad_norm"] * count for line, count in zip(lines, counts, strict=True)) / max(1, sum(counts)),
        max=max(line["grad_norm_max"] for line in lines),
        clipped=sum(line["clipped_steps"] for line in lines),
        steps=ends[-1],
        lr=lines[-1]["learning_rate"],
    )
