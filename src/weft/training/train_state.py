"""Where a run stands: everything but weights, optimiser and carry that resuming needs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from weft.errors import ModelError


def _fits(value: Any, kind: str) -> bool:
    """Whether a value is what a field of that kind may hold: a count, a number, or whether."""
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    if value is None:
        return "None" in kind
    return isinstance(value, int if kind == "int" else int | float) and value >= 0


LATER_FIELDS = {"norm_sum", "norm_max", "norm_steps", "clipped", "samples"}  # cursors of earlier versions lack these


@dataclass
class TrainState:
    """Goes into each checkpoint as train_state.json. Nothing random is in it: seeds follow from the step."""

    step: int = 0
    epoch: int = 0
    batch_index: int = 0  # of the next batch in the epoch's order
    tokens: int = 0  # read so far; of models that write, those written
    seconds: float = 0.0  # spent training, over all processes that worked on the run
    best: float | None = None  # the best validation score
    best_step: int = 0
    validations_without_improvement: int = 0  # validations since then
    logged: float = 0.0  # nats since the last line of metrics.jsonl
    counted_tokens: int = 0  # what the loss is the mean over, since then
    metrics: int = 0  # length of metrics.jsonl in bytes
    done: bool = False
    norm_sum: float = 0.0  # norms of the gradient, summed over the steps since the last line of metrics.jsonl
    norm_max: float = 0.0  # the largest of them
    norm_steps: int = 0  # how many steps those are
    clipped: int = 0  # how many of them were clipped
    samples: int = 0  # length of samples.jsonl in bytes

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any, where: str) -> TrainState:
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or not names - LATER_FIELDS <= set(values) <= names:
            raise ModelError(where, "is not a cursor of this version of weft")
        for field in fields(cls):
            if field.name in values and not _fits(values[field.name], str(field.type)):
                raise ModelError(where, f"is damaged: {field.name} is {values[field.name]!r}")
        return cls(**values)
