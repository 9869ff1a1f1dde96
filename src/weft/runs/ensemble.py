"""Ensembles of runs: the weighted mean of their probabilities, with shallow fusion of a language model."""

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
    """A language model of the targets for shallow fusion."""

    directory: RunDir
    model: Any
    weight: float  # of its log-probabilities
    num_parameters: int

    def describe(self) -> str:
        """Checksum of the model file and weight, for a signature."""
        return f"lm:{sha256(self.directory.weights)[:8]}*{self.weight:g}"


class EnsembleRun(Run[I, P]):
    """Several runs with the same target tokenizer or labels. Directory, configuration and vocabulary are those of the first."""

    def __init__(
        self, members: Sequence[Run[I, P]], *, weights: Sequence[float] | None = None, lm: FusionLM | None = None
    ) -> None:
        if not members:
            raise UsageError("ensemble", "no runs", "pass at least one run directory")
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
        """All models as one model."""
        models = [member.model for member in self.members]
        weights = [1 / len(models)] * len(models) if self.weights is None else self.weights
        if self.spec.combine is not None:
            return self.spec.combine(self.members, weights)
        combined: Any = Ensemble(models, LinearEnsemble(weights))
        combined = combined if len(models) > 1 else models[0]
        return combined if self.lm is None else Ensemble([combined, self.lm.model], ShallowFusion([1.0, self.lm.weight]))

    @property
    def num_parameters(self) -> int:
        return sum(member.num_parameters for member in self.members) + (0 if self.lm is None else self.lm.num_parameters)
