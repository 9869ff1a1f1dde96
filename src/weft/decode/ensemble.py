"""Several models as one: everything that decodes or scores a model does so with an ensemble.

Shapes: B rows, T positions, V words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from weft.decode.incremental import IncrementalModel
from weft.errors import UsageError

State = tuple[Any, ...]  # one state a part


class Combine(Protocol):
    """How the parts' log-probabilities become one."""

    weights: tuple[float, ...]
    pointwise: bool  # does a token's combined log-probability need that token's alone?

    def __call__(self, log_probs: Sequence[Tensor]) -> Tensor:
        """One tensor (..., V) from one a part."""
        ...


def _weights(weights: Sequence[float]) -> tuple[float, ...]:
    if not weights or not all(0 < weight < math.inf for weight in weights):
        raise UsageError("ensemble", f"weights must be positive numbers, not {list(weights)}")
    return tuple(weights)


class LinearEnsemble:
    """Linear: the weighted mean of probabilities."""

    pointwise = True

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = _weights(weights)
        if abs(sum(weights) - 1) > 1e-6:
            raise UsageError("ensemble", f"the weights of a mixture must add up to 1, not {sum(weights):g}")

    def __call__(self, log_probs: Sequence[Tensor]) -> Tensor:
        terms = [part + math.log(weight) for part, weight in zip(log_probs, self.weights, strict=True)]
        return torch.stack(terms).logsumexp(0)


class LogLinearEnsemble:
    """Log-linear: the weighted sum of log-probabilities, normalised."""

    pointwise = False

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = _weights(weights)

    def __call__(self, log_probs: Sequence[Tensor]) -> Tensor:
        total = torch.stack([part * weight for part, weight in zip(log_probs, self.weights, strict=True)]).sum(0)
        mass = total.logsumexp(-1, keepdim=True)
        # parts that agree on nothing leave nothing: -inf everywhere, not NaN
        return total - mass.masked_fill(mass == -math.inf, 0.0)


class ShallowFusion:
    """The weighted sum of log-probabilities as it is: a language model's voice beside a model's own (shallow fusion)."""

    pointwise = True

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = _weights(weights)

    def __call__(self, log_probs: Sequence[Tensor]) -> Tensor:
        return torch.stack([part * weight for part, weight in zip(log_probs, self.weights, strict=True)]).sum(0)


class Ensemble:
    """The models `parts`, which share a vocabulary, as one model. Its state is one state a part."""

    def __init__(self, models: Sequence[IncrementalModel[Any]], combine: Combine) -> None:
        if len(models) != len(combine.weights):
            raise UsageError("ensemble", f"{len(models)} models, but {len(combine.weights)} weights")
        for number, part in enumerate(models[1:], 2):
            if part.vocabulary != models[0].vocabulary:
                raise UsageError(
                    "ensemble",
                    f"model 1 has the tokenizer {models[0].vocabulary[:8]}, model {number} has {part.vocabulary[:8]}",
                    "train them with one (--tokenizer-from)",
                )
        self.models, self.combine = models, combine

    @property
    def vocabulary(self) -> str:
        return self.models[0].vocabulary

    @property
    def max_positions(self) -> int | None:
        return min((part.max_positions for part in self.models if part.max_positions is not None), default=None)

    def bytes_per_row(self, tokens: int, state: State | None = None) -> int:
        return sum(part.bytes_per_row(tokens, past) for part, past in zip(self.models, self._pasts(state), strict=True))

    def start(self, prompt: Tensor, token_mask: Tensor | None = None, state: State | None = None) -> tuple[Tensor, State]:
        pairs = [part.start(prompt, token_mask, past) for part, past in zip(self.models, self._pasts(state), strict=True)]
        return self.combine([log_probs for log_probs, _ in pairs]), tuple(past for _, past in pairs)

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        pairs = [part.step(token, past) for part, past in zip(self.models, state, strict=True)]
        return self.combine([log_probs for log_probs, _ in pairs]), tuple(past for _, past in pairs)

    def score(self, tokens: Tensor, token_mask: Tensor | None = None, state: State | None = None) -> Tensor:
        """Log-probability of every token after the first, (B, T - 1); 0 where keep is False."""
        if self.combine.pointwise:
            pasts = zip(self.models, self._pasts(state), strict=True)
            scores = self.combine([part.score(tokens, token_mask, past) for part, past in pasts])
        else:
            scores = self._score_by_steps(tokens, state)
        return scores if token_mask is None else scores.masked_fill(~token_mask[:, 1:], 0.0)

    def _score_by_steps(self, tokens: Tensor, state: State | None) -> Tensor:
        """A product is normalised over the vocabulary: whole rows are needed, one position at a time fits memory."""
        if tokens.size(1) < 2:
            return torch.zeros(tokens.size(0), 0, device=tokens.device)
        log_probs, past = self.start(tokens[:, :1], None, state)
        scores = [log_probs.gather(1, tokens[:, 1:2])]
        for position in range(1, tokens.size(1) - 1):
            log_probs, past = self.step(tokens[:, position], past)
            scores.append(log_probs.gather(1, tokens[:, position + 1 : position + 2]))
        return torch.cat(scores, 1)

    def _pasts(self, state: State | None) -> State:
        return (None,) * len(self.models) if state is None else state
