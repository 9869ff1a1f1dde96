"""The estimator of neural networks. Checking options does not import torch; training and loading do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError, unknown_name
from weft.metrics.metric import metric_names
from weft.training import sample_outputs

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.runs.run_dir import RunDir
    from weft.training.neural import NetworkTask, NeuralTrainer


def accept(config: RunConfig) -> None:
    """Accept all combinations of valid options."""


class NetworkEstimator:
    """Trains and loads the networks of one task."""

    by_steps = True

    def __init__(self, import_task: Callable[[], NetworkTask[Any]], check: Callable[[RunConfig], None] = accept) -> None:
        self._import_task, self._check = import_task, check  # `check` refuses invalid combinations of options

    @cached_property
    def network_task(self) -> NetworkTask[Any]:
        return self._import_task()

    @property
    def network(self) -> NeuralTrainer:
        from weft.training.neural import NeuralTrainer

        return NeuralTrainer(self.network_task)

    def check(self, config: RunConfig) -> None:
        monitor = config.train.monitor
        if monitor is not None and monitor not in (metrics := metric_names(config.spec.validation_suites)):
            raise ConfigError("train.monitor", *unknown_name("metric", monitor, metrics))
        for option in ("patience", "monitor"):
            if getattr(config.train, option) not in (None, 0) and not config.data.has_valid:
                raise ConfigError(f"train.{option}", "requires validation data", "set data.valid")
        for option, field in (("distill_from", "supports_distillation"), ("r_drop", "supports_r_drop")):
            if getattr(config.train, option) and not getattr(config.spec, field):
                tasks = ", ".join(config.tasks_where(attrgetter(field)))
                raise ConfigError(f"train.{option}", f"not available for task {config.task!r}", f"use one of {tasks}")
        sample_outputs.check(config)
        self._check(config)

    def uses_torch(self, config: RunConfig) -> bool:
        return True

    def num_parameters(self, config: RunConfig, vocabulary: Any) -> int:
        return self.network.num_parameters(config, vocabulary)

    def train(self, job: Job) -> None:
        self.network.train(job)

    def load(self, config: RunConfig, vocabulary: Any, run_dir: RunDir, device: str) -> Any:
        return self.network.load(config, vocabulary, run_dir, device)

    def chosen_options(self, model: Any) -> dict[str, Any]:
        return dict(self.network_task.chosen_options(model))
