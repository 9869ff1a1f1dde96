"""A run with a neural cache."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.decode.cache_options import Cache, CacheConfig
from weft.decode.options import options_from
from weft.errors import UsageError
from weft.runs.run import Run
from weft.tasks.spec import I, P

if TYPE_CHECKING:
    from torch import nn


def cache_config(options: bool | Mapping[str, float]) -> CacheConfig:
    """The options of a cache; True: all of them are fitted."""
    try:
        return options_from(CacheConfig, None, {} if isinstance(options, bool) else options)
    except UsageError as error:
        raise UsageError(f"cache_{error.where}", error.problem, error.fix) from None


class CachedRun(Run[I, P]):
    """A run whose model has a neural cache. Options that are not set are fitted when they are first needed."""

    def __init__(self, run: Run[I, P], config: CacheConfig) -> None:
        super().__init__(run.directory, run.config, run.vocabulary, run.device_name)
        self._run, self._config = run, config

    @cached_property
    def cache(self) -> Cache:
        if self.spec.fit_cache is None:
            raise UsageError("cache", f"not available for task {self.task!r}")
        return self.spec.fit_cache(self._run, self._config)

    @cached_property
    def model(self) -> Any:
        """The network with the cache: `start`, `step`, `score` and `loss`."""
        from weft.decode.cache import CachedModel

        cache = self.cache  # first: a model without hidden states is refused
        return CachedModel(self._run.model, cache)

    @property
    def network(self) -> nn.Module | None:
        return self._run.network
