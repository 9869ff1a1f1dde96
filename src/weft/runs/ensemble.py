"""Several runs as one: the weighted mean of their probabilities, and a language model that helps to choose."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from weft.decode.ensemble import Ensemble, LinearEnsemble, ShallowFusion
from weft.errors import UsageError
from weft.files import sha256
from weft.runs.run import Run
from weft.runs.run_dir import RunDir
from weft.tasks.spec import I, P


class FusionLM(NamedTuple):
    """A language model of the targets that helps to choose (shallow fusion)."""

    directory: RunDir
    model: Any
    weight: float  # of its log-probabilities
    num_parameters: int

    def describe(self) -> str:
        """Which one, by the sum of its weights, and how much it counts: for a signature."""
        return f"lm:{sha256(self.directory.weights)[:8]}*{self.weight:g}"


class EnsembleRun(Run[I, P]):
    """Runs that share a target tokenizer; where nothing else is meant, the first stands for all."""

    def __init__(
        self, members: Sequence[Run[I, P]], *, weights: Sequence[float] | None = None, lm: FusionLM | None = None
    ) -> None:
        if not members:
            raise UsageError("ensemble", "no run is given", "name at least one")
        first = members[0]
        super().__init__(first.directory, first.config, first.vocabulary, first.device_name)
        self._members, self._weights, self._lm = list(members), weights, lm

    @property
    def members(self) -> Sequence[Run[I, P]]:
        return self._members

    @property
    def weights(self) -> Sequence[float] | None:
        return self._weights

    @property
    def lm(self) -> FusionLM | None:
        return self._lm

    @cached_property
    def model(self) -> Any:
        """All models as one: `start`, `step`, `score`."""
        parts = [member.model for member in self.members]
        both: Any = Ensemble(parts, LinearEnsemble([1 / len(parts)] * len(parts) if self.weights is None else self.weights))
        both = both if len(parts) > 1 else parts[0]
        return both if self.lm is None else Ensemble([both, self.lm.model], ShallowFusion([1.0, self.lm.weight]))

    @property
    def num_parameters(self) -> int:
        return sum(member.num_parameters for member in self.members) + (0 if self.lm is None else self.lm.num_parameters)
