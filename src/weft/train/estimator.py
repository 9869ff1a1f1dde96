"""Networks as run files name them: what is checked of their options needs no torch, which is imported with the network."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.config import no_such
from weft.errors import ConfigError
from weft.metrics.metric import metric_names
from weft.train import samples

if TYPE_CHECKING:
    from weft.runs.folder import RunFolder
    from weft.runs.job import Job
    from weft.runs.settings import Settings
    from weft.train.network import Network, NetworkTask


def accept(settings: Settings) -> None:
    """Options that are right each for itself are right together."""


class NetworkEstimator:
    """The networks of one task."""

    by_steps = True

    def __init__(self, find: Callable[[], NetworkTask[Any]], check: Callable[[Settings], None] = accept) -> None:
        self._find, self._check = find, check  # what is particular to them; refuses options that do not go together

    @cached_property
    def shape(self) -> NetworkTask[Any]:
        return self._find()

    @property
    def network(self) -> Network:
        from weft.train.network import Network

        return Network(self.shape)

    def check(self, settings: Settings) -> None:
        monitor = settings.train.monitor
        if monitor is not None and monitor not in (known := metric_names(settings.spec.validation)):
            raise ConfigError(f"train.monitor: {no_such('score', monitor, known)}")
        for option in ("patience", "monitor"):
            if getattr(settings.train, option) not in (None, "none") and settings.data.valid is None:
                raise ConfigError(
                    f"train.{option}: is about validations, but data.valid is not given; give it, or drop {option}"
                )
        samples.check(settings)
        self._check(settings)

    def parameters(self, settings: Settings, vocabulary: Any) -> int:
        return self.network.parameters(settings, vocabulary)

    def train(self, job: Job) -> None:
        self.network.train(job)

    def load(self, settings: Settings, vocabulary: Any, folder: RunFolder, device: str) -> Any:
        return self.network.load(settings, vocabulary, folder, device)
