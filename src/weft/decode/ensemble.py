"""Ensembles: several models combined into one, which decodes and scores like a single model.

Shapes: B batch size, T sequence length, V vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from weft.decode.incremental import IncrementalModel, Step, stepper
from weft.errors import UsageError

State = tuple[Any, ...]  # one state per model


class Combine(Protocol):
    """A function that combines the log-probabilities of several models."""

    weights: tuple[float, ...]
    pointwise: bool  # whether the result for a token depends on that token's log-probabilities alone

    def __call__(self, log_probs: Sequence[Tensor]) -> Tensor:
        """Combine the log-probabilities (..., V) of each model."""
        ...


def _check_weights(weights: Sequence[float]) -> tuple[float, ...]:
    if not weights or not all(0 < weight < math.inf for weight in weights):
        raise UsageError("ensemble", f"weights must be positive, got {list(weights)}")
    return tuple(weights)


class LinearEnsemble:
    """Linear interpolation: log sum_i w_i P_i."""

    pointwise = True

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = _check_weights(weights)
        if abs(sum(weights) - 1) > 1e-6:
            raise UsageError("ensemble", f"the weights of a linear ensemble must sum to 1, got {sum(weights):g}")

    def __call__(self, log_probs: Sequence[Tensor]) -> Tensor:
        terms = [log_prob + math.log(weight) for log_prob, weight in zip(log_probs, self.weights, strict=True)]
        return torch.stack(terms).logsumexp(0)


class LogLinearEnsemble:
    """Log-linear interpolation: sum_i w_i log P_i, normalized."""

    pointwise = False

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = _check_weights(weights)

    def __call__(self, log_probs: Sequence[Tensor]) -> Tensor:
        total = torch.stack([log_prob * weight for log_prob, weight in zip(log_probs, self.weights, strict=True)]).sum(0)
        normalizer = total.logsumexp(-1, keepdim=True)
        # if every token is impossible for some model, the result is -inf everywhere, not NaN
        return total - normalizer.masked_fill(normalizer == -math.inf, 0.0)


class ShallowFusion:
    """Shallow fusion (Gulcehre et al. 2015): sum_i w_i log P_i, not normalized; a seq2seq model plus a language model."""

    pointwise = True

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = _check_weights(weights)

    def __call__(self, log_probs: Sequence[Tensor]) -> Tensor:
        return torch.stack([log_prob * weight for log_prob, weight in zip(log_probs, self.weights, strict=True)]).sum(0)


class Ensemble:
    """Several models with the same vocabulary as one. Its state is a tuple of their states."""

    def __init__(self, models: Sequence[IncrementalModel[Any]], combine: Combine) -> None:
        if len(models) != len(combine.weights):
            raise UsageError("ensemble", f"{len(models)} models, but {len(combine.weights)} weights")
        for position, model in enumerate(models[1:], 2):
            if model.vocabulary != models[0].vocabulary:
                raise UsageError(
                    "ensemble",
                    f"models 1 and {position} have different tokenizers ({models[0].vocabulary[:8]}, {model.vocabulary[:8]})",
                    "train both with `tokenizer_from`",
                )
        self.models, self.combine = models, combine

    @property
    def vocabulary(self) -> str:
        return self.models[0].vocabulary

    @property
    def max_positions(self) -> int | None:
        return min((model.max_positions for model in self.models if model.max_positions is not None), default=None)

    def bytes_per_row(self, tokens: int, state: State | None = None) -> int:
        return sum(model.bytes_per_row(tokens, past) for model, past in zip(self.models, self._states(state), strict=True))

    def start(self, prompt: Tensor, token_mask: Tensor | None = None, state: State | None = None) -> tuple[Tensor, State]:
        pairs = [model.start(prompt, token_mask, past) for model, past in zip(self.models, self._states(state), strict=True)]
        return self.combine([log_probs for log_probs, _ in pairs]), tuple(past for _, past in pairs)

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        pairs = [model.step(token, past) for model, past in zip(self.models, state, strict=True)]
        return self.combine([log_probs for log_probs, _ in pairs]), tuple(past for _, past in pairs)

    def stepper(self) -> Step[State]:
        """`step` with the faster steps of the models that have one."""
        steps = [stepper(model) for model in self.models]

        def step(token: Tensor, state: State) -> tuple[Tensor, State]:
            pairs = [step(token, past) for step, past in zip(steps, state, strict=True)]
            return self.combine([log_probs for log_probs, _ in pairs]), tuple(past for _, past in pairs)

        return step

    def score(self, tokens: Tensor, token_mask: Tensor | None = None, state: State | None = None) -> Tensor:
        """Log-probability of every token after the first, (B, T - 1); 0 on padding."""
        if self.combine.pointwise:
            pasts = zip(self.models, self._states(state), strict=True)
            scores = self.combine([model.score(tokens, token_mask, past) for model, past in pasts])
        else:
            scores = self._score_by_steps(tokens, state)
        return scores if token_mask is None else scores.masked_fill(~token_mask[:, 1:], 0.0)

    def _score_by_steps(self, tokens: Tensor, state: State | None) -> Tensor:
        """Log-linear ensembles normalize over the vocabulary. Computing (B, V) at one position at a time saves memory."""
        if tokens.size(1) < 2:
            return torch.zeros(tokens.size(0), 0, device=tokens.device)
        log_probs, past = self.start(tokens[:, :1], None, state)
        scores = [log_probs.gather(1, tokens[:, 1:2])]
        for position in range(1, tokens.size(1) - 1):
            log_probs, past = self.step(tokens[:, position], past)
            scores.append(log_probs.gather(1, tokens[:, position + 1 : position + 2]))
        return torch.cat(scores, 1)

    def _states(self, state: State | None) -> State:
        return (None,) * len(self.models) if state is None else state
