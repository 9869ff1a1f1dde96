"""The gradients of a whole run, from the lines of its metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class GradientSummary(NamedTuple):
    """Over all steps that were logged."""

    mean: float  # norm, before clipping
    max: float
    clipped: int  # steps
    steps: int
    lr: float  # of the last step

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def summarize(records: Sequence[Mapping[str, Any]]) -> GradientSummary | None:
    """The summary of a run; None where it was counted, or trained by a version that did not log norms."""
    lines = [record for record in records if isinstance(record.get("grad_norm"), float)]
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
