"""Networks as run files name them: what is checked of their options needs no torch, which is imported with the network."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError, unknown_name
from weft.metrics.metric import metric_names
from weft.training import sample_outputs as samples

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.runs.run_dir import RunDir
    from weft.training.neural import NetworkTask, NeuralTrainer


def accept(config: RunConfig) -> None:
    """Options that are right each for itself are right together."""


class NetworkEstimator:
    """The networks of one task."""

    by_steps = True

    def __init__(self, find: Callable[[], NetworkTask[Any]], check: Callable[[RunConfig], None] = accept) -> None:
        self._find, self._check = find, check  # what is particular to them; refuses options that do not go together

    @cached_property
    def shape(self) -> NetworkTask[Any]:
        return self._find()

    @property
    def network(self) -> NeuralTrainer:
        from weft.training.neural import NeuralTrainer

        return NeuralTrainer(self.shape)

    def check(self, config: RunConfig) -> None:
        monitor = config.train.monitor
        if monitor is not None and monitor not in (known := metric_names(config.spec.validation)):
            raise ConfigError("train.monitor", *unknown_name("score", monitor, known))
        for option in ("patience", "monitor"):
            if getattr(config.train, option) not in (None, "none") and config.data.valid is None:
                raise ConfigError(
                    f"train.{option}", "is about validations, but data.valid is not given", f"give it, or drop {option}"
                )
        samples.check(config)
        self._check(config)

    def num_parameters(self, config: RunConfig, vocabulary: Any) -> int:
        return self.network.num_parameters(config, vocabulary)

    def train(self, job: Job) -> None:
        self.network.train(job)

    def load(self, config: RunConfig, vocabulary: Any, run_dir: RunDir, device: str) -> Any:
        return self.network.load(config, vocabulary, run_dir, device)
