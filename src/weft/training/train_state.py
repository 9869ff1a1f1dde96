"""The training state: everything that resuming needs except weights, optimizer state and carried state."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from weft.errors import ModelError

SIGNED_FIELDS = {"best", "logged"}  # a reward may be negative, and so may the loss of a policy


def _is_valid(value: Any, name: str, annotation: str) -> bool:
    """Whether a value is valid for a field with this type annotation."""
    if annotation == "bool" or isinstance(value, bool):
        return annotation == "bool" and isinstance(value, bool)
    if value is None:
        return "None" in annotation
    is_number = isinstance(value, int if annotation == "int" else int | float)
    return is_number and (value >= 0 or name in SIGNED_FIELDS)


OPTIONAL_FIELDS = {
    "norm_sum",
    "norm_max",
    "norm_steps",
    "clipped",
    "samples",
    "validation_seconds",
}  # earlier versions did not write them


@dataclass
class TrainState:
    """The content of train_state.json in a checkpoint. It has no random state: seeds follow from the step."""

    step: int = 0
    epoch: int = 0
    batch_index: int = 0  # of the next batch in the epoch
    tokens: int = 0  # training tokens so far; for models that generate their batches, generated tokens
    seconds: float = 0.0  # training time without validations, over all processes that worked on the run
    best: float | None = None  # the best value of the monitored metric
    best_step: int = 0
    validations_without_improvement: int = 0
    logged: float = 0.0  # summed loss since the last line of metrics.jsonl
    counted_tokens: int = 0  # number of items in that sum
    metrics: int = 0  # length of metrics.jsonl in bytes
    done: bool = False
    norm_sum: float = 0.0  # summed gradient norms since the last line of metrics.jsonl
    norm_max: float = 0.0  # maximum of these norms
    norm_steps: int = 0  # number of these steps
    clipped: int = 0  # number of these steps with clipping
    samples: int = 0  # length of samples.jsonl in bytes
    validation_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any, path: str) -> TrainState:
        """The training state of a file; `path` is used in error messages."""
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or not names - OPTIONAL_FIELDS <= set(values) <= names:
            raise ModelError(path, "not a training state of this version of weft")
        for field in fields(cls):
            if field.name in values and not _is_valid(values[field.name], field.name, str(field.type)):
                raise ModelError(path, f"corrupted: {field.name} is {values[field.name]!r}")
        return cls(**values)
