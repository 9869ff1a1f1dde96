"""Samples that a model generates at each validation (train.num_samples), written to samples.jsonl.

Sampling does not use torch's global generators, so a run with samples is bit-identical to one without.
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
Writer = Callable[[Any], list[Record]]  # from a model to its samples, one record per text, without the step


class Samples(NamedTuple):
    """How models of a task generate samples during training."""

    writer: Callable[[Job, Any, torch.device], Writer]  # from a run, its model and a device
    prompts: bool = False  # whether samples continue prompts


def check(config: RunConfig) -> None:
    """Refuse sample options that the task does not support."""
    samples = config.spec.samples
    if config.train.num_samples and samples is None:
        tasks = config.tasks_where(lambda task: task.samples is not None)
        raise ConfigError(
            "train.num_samples", f"not available for task {config.task!r} (only for {', '.join(tasks)})", "remove it"
        )
    if config.train.sample_prompts and samples is not None and not samples.prompts:
        raise ConfigError("train.sample_prompts", f"not available for task {config.task!r}", "remove it")


def sample_writer(job: Job, model: Any, device: torch.device) -> Writer | None:
    """A function that generates the samples of a run; None if it has no samples."""
    samples = job.config.spec.samples
    return None if samples is None or not job.config.train.num_samples else samples.writer(job, model, device)
