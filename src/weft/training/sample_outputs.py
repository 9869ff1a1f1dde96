"""Text that a model writes at each validation (train.num_samples): kept in samples.jsonl, so that its progress can be read.

Nothing that is drawn for it comes from torch's generators: a run with samples is trained as one without, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from weft.runs.config import RunConfig
    from weft.runs.job import Job

FILE = "samples.jsonl"
Record = dict[str, Any]
Writer = Callable[[Any], list[Record]]  # what a model writes now, a record a text, without the step


class Samples(NamedTuple):
    """How models of a task write text while they are trained."""

    writer: Callable[[Job, Any, torch.device], Writer]  # of a run and its model
    prompts: bool = False  # whether they continue prompts


def check(config: RunConfig) -> None:
    """Refuse samples of models that write nothing."""
    samples = config.spec.samples
    if config.train.num_samples and samples is None:
        writing = config.tasks_where(lambda task: task.samples is not None)
        raise ConfigError(
            "train.num_samples",
            f"a run of task {config.task!r} writes no text",
            f"drop it (tasks that do: {', '.join(writing)})",
        )
    if config.train.sample_prompts and samples is not None and not samples.prompts:
        raise ConfigError(
            "train.sample_prompts", "are continued by language models", f"a run of task {config.task!r} has sources"
        )


def sample_writer(job: Job, model: Any, device: torch.device) -> Writer | None:
    """What writes the samples of a run; None where none are asked for."""
    samples = job.config.spec.samples
    return None if samples is None or not job.config.train.num_samples else samples.writer(job, model, device)
