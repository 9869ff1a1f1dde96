"""Ensembles of runs: the weighted mean of their probabilities, with shallow fusion of a language model.

The weights are given, equal, or fitted on the validation data of the first run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

from weft.decode.ensemble import Ensemble, LinearEnsemble, ShallowFusion
from weft.errors import UsageError
from weft.files import sha256
from weft.runs.run import Run
from weft.runs.run_dir import RunDir
from weft.tasks.spec import I, P

FITTED: Literal["fitted"] = "fitted"
Weights = Sequence[float] | Literal["fitted"] | None  # None: equal weights


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

    def __init__(self, members: Sequence[Run[I, P]], *, weights: Weights = None, lm: FusionLM | None = None) -> None:
        if not members:
            raise UsageError("ensemble", "no runs", "pass at least one run directory")
        first = members[0]
        super().__init__(first.directory, first.config, first.vocabulary, first.device_name)
        self._members, self._weights, self._lm = list(members), weights, lm

    @property
    def members(self) -> Sequence[Run[I, P]]:
        return self._members

    @cached_property
    def weights(self) -> Sequence[float] | None:
        if not isinstance(self._weights, str):
            return self._weights
        if self.spec.fit_weights is None:
            raise UsageError("weights", f"{FITTED!r} is not available for task {self.task!r}", "set a weight for each run")
        return self.spec.fit_weights(self.members)

    @property
    def lm(self) -> FusionLM | None:
        return self._lm

    @cached_property
    def model(self) -> Any:
        """All models as one model."""
        models = [member.model for member in self.members]
        equal = [1 / len(models)] * len(models)
        if self.spec.combine is not None:
            return self.spec.combine(self.members, equal if self.weights is None else self.weights)
        combined: Any = Ensemble(models, LinearEnsemble(equal))  # refuses different tokenizers before weights are fitted
        weights = equal if self.weights is None else self.weights
        if self._weights == FITTED:  # models with weight 0 add nothing
            models = [model for model, weight in zip(models, weights, strict=True) if weight > 0]
            weights = [weight for weight in weights if weight > 0]
        combined = Ensemble(models, LinearEnsemble(weights))
        combined = combined if len(models) > 1 else models[0]
        return combined if self.lm is None else Ensemble([combined, self.lm.model], ShallowFusion([1.0, self.lm.weight]))

    @property
    def num_parameters(self) -> int:
        return sum(member.num_parameters for member in self.members) + (0 if self.lm is None else self.lm.num_parameters)
