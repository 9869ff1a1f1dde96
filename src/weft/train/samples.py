"""Text that a model writes at each validation (train.samples): kept in samples.jsonl, so that its progress can be read.

Nothing that is drawn for it comes from torch's generators: a run with samples is trained as one without, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from weft.runs.job import Job
    from weft.runs.settings import Settings

FILE = "samples.jsonl"
Record = dict[str, Any]
Writer = Callable[[Any], list[Record]]  # what a model writes now, a record a text, without the step


class Samples(NamedTuple):
    """How models of a task write text while they are trained."""

    writer: Callable[[Job, Any, torch.device], Writer]  # of a run and its model
    prompts: bool = False  # whether they continue prompts


def check(settings: Settings) -> None:
    """Refuse samples of models that write nothing."""
    samples = settings.spec.samples
    if settings.train.samples and samples is None:
        writing = settings.tasks_where(lambda task: task.samples is not None)
        raise ConfigError(
            f"train.samples: a run of task {settings.task!r} writes no text; drop it (tasks that do: {', '.join(writing)})"
        )
    if settings.train.sample_prompts and samples is not None and not samples.prompts:
        raise ConfigError(
            f"train.sample_prompts: are continued by language models; a run of task {settings.task!r} has sources"
        )


def writer(job: Job, model: Any, device: torch.device) -> Writer | None:
    """What writes the samples of a run; None where none are asked for."""
    samples = job.settings.spec.samples
    return None if samples is None or not job.settings.train.samples else samples.writer(job, model, device)
