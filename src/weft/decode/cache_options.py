"""The options of the neural cache, in a module that does not import torch."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from weft.config import Config


class CacheConfig(Config):
    """How a language model uses a neural cache. An option that is None is fitted on the validation data of the run."""

    size: int | None = Field(None, ge=1, le=10**6)
    """Number of preceding positions in the cache."""
    theta: float | None = Field(None, ge=0.0, allow_inf_nan=False)
    """Weight of the similarity of hidden states; 0 counts all cached tokens alike."""
    weight: float | None = Field(None, ge=0.0, lt=1.0)
    """Weight of the cache in the mixture with the model."""


class Cache(NamedTuple):
    """The options of a cache that is in use."""

    size: int
    theta: float
    weight: float

    def describe(self) -> str:
        """'size 500, theta 0.3, weight 0.12'."""
        return f"size {self.size}, theta {self.theta:g}, weight {self.weight:g}"

    def signature(self) -> str:
        """'500/theta-0.3/weight-0.12'."""
        return f"{self.size}/theta-{self.theta:g}/weight-{self.weight:g}"
