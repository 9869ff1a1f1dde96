"""Output layers of encoder-decoders: generate from the vocabulary, or generate and copy.

`init_state` computes once per source the state that both read.
Shapes: B batch size, A sources (B outside of beam search), T sequence length, S source length, D hidden size, V vocabulary
size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from weft.nn.lm_head import MAX_TRAINING_LOGITS, LMHead, is_large
from weft.nn.memory import Memory
from weft.nn.state import SharedState

CopyState = SharedState  # keys (A, S, D), token mask (A, S), source tokens (A, S)


def _mixture(generate_log_prob: Tensor, copy_prob: Tensor, gate: Tensor) -> Tensor:
    """log(g P_generate + (1 - g) P_copy), from log P_generate, P_copy and the logit of g."""
    # clamped, because the gradient of log is infinite at 0
    return torch.logaddexp(F.logsigmoid(gate) + generate_log_prob, copy_prob.clamp(min=1e-30).log() + F.logsigmoid(-gate))


class VocabularyOutput(nn.Module):
    """Generate every token from the vocabulary."""

    def __init__(self, head: LMHead) -> None:
        super().__init__()
        self.head = head

    def init_state(self, memory: Memory, source: Tensor) -> tuple[()]:
        return ()

    def forward(self, x: Tensor, state: tuple[()]) -> Tensor:
        """(B, D) to log-probabilities (B, V)."""
        log_probs: Tensor = self.head(x)
        return log_probs

    def lean(self) -> Callable[[Tensor, tuple[()]], Tensor]:
        """`forward` with bound weights; see `LMHead.lean`."""
        log_probs = self.head.lean()
        return lambda x, state: log_probs(x)

    def log_probs(self, x: Tensor, state: tuple[()]) -> Tensor:
        """(B, T, D) to log-probabilities (B, T, V)."""
        log_probs: Tensor = self.head(x)
        return log_probs

    def loss(self, x: Tensor, targets: Tensor, state: tuple[()], label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy of each target in nats, (B, T)."""
        return self.head.loss(x, targets, label_smoothing)


class PointerGeneratorOutput(nn.Module):
    """Pointer-generator (See et al. 2017): a mixture of generating a token and copying one from the source.

        P(w) = g P_vocab(w) + (1 - g) sum_{s: source_s = w} a_s

    The gate g and the copy distribution a are computed from x. Source and target share one vocabulary.
    """

    def __init__(self, head: LMHead, dim: int, *, memory_size: int) -> None:
        super().__init__()
        self.head, self.to_k, self.gate = head, nn.Linear(memory_size, dim, bias=False), nn.Linear(dim, 1)

    def init_state(self, memory: Memory, source: Tensor) -> CopyState:
        return SharedState((self.to_k(memory.values), memory.token_mask, source))

    def _copy_distribution(self, x: Tensor, state: CopyState) -> Tensor:
        """The probability of copying from each source position, (B, T, S)."""
        keys, token_mask, _ = state.parts
        scores: Tensor = (x @ keys.transpose(1, 2)).float() * x.size(-1) ** -0.5
        return scores.masked_fill(~token_mask[:, None], float("-inf")).softmax(-1)

    def forward(self, x: Tensor, state: CopyState) -> Tensor:
        """(B, D) to log-probabilities (B, V)."""
        gate = self.gate(x).float()
        copy_probs = self._copy_distribution(x.view(len(state.parts[0]), -1, x.size(-1)), state)
        generate_log_probs = self.head(x) + F.logsigmoid(gate)
        # joined states are padded with -1; those positions have probability 0
        tokens = state.parts[2].clamp(min=0)[:, None].expand_as(copy_probs)
        token_probs = torch.zeros_like(generate_log_probs).scatter_add(1, tokens.flatten(0, 1), copy_probs.flatten(0, 1))
        return torch.logaddexp(generate_log_probs, token_probs.log() + F.logsigmoid(-gate))

    def lean(self) -> Callable[[Tensor, CopyState], Tensor]:
        """`forward`, which has nothing to bind."""
        return self.forward

    def log_probs(self, x: Tensor, state: CopyState) -> Tensor:
        """(B, T, D) to log-probabilities (B, T, V), with gradients that are finite for tokens that are not in the source."""
        copy_probs, generate_log_probs = self._copy_distribution(x, state), self.head(x)
        tokens = state.parts[2].clamp(min=0)[:, None].expand_as(copy_probs)
        token_probs = torch.zeros_like(generate_log_probs).scatter_add(2, tokens, copy_probs)
        return _mixture(generate_log_probs, token_probs, self.gate(x).float())

    def loss(self, x: Tensor, targets: Tensor, state: CopyState, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy of each target in nats, (B, T).

        Label smoothing is the one of `LMHead.loss`, applied to the probabilities of the mixture: the loss is a cross-entropy
        and bounded below.
        """
        weight = self.head.weight
        if not (label_smoothing and torch.is_grad_enabled() and is_large(targets.numel(), weight)):
            return self._loss(x, targets, state, label_smoothing)
        # a mixture over the whole vocabulary: in chunks of positions, whose backward pass computes them again
        size = max(1, MAX_TRAINING_LOGITS // (len(weight) * len(x)))
        parts = zip(torch.split(x, size, dim=1), torch.split(targets, size, dim=1), strict=True)
        losses = [checkpoint(self._loss, *part, state, label_smoothing, use_reentrant=False) for part in parts]
        return torch.cat(losses, dim=1)

    def _loss(self, x: Tensor, targets: Tensor, state: CopyState, label_smoothing: float) -> Tensor:
        gate = self.gate(x)[..., 0].float()
        copy_probs = self._copy_distribution(x, state)
        target_copy_prob = (copy_probs * (state.parts[2][:, None] == targets[..., None])).sum(-1)
        if not label_smoothing:
            return -_mixture(-self.head.loss(x, targets), target_copy_prob, gate)
        log_probs = self.head(x)
        target_log_prob = _mixture(log_probs.gather(2, targets[..., None])[..., 0], target_copy_prob, gate)
        mean_log_prob = self._mean_log_prob(log_probs, copy_probs, gate, state)
        return -(1 - label_smoothing) * target_log_prob - label_smoothing * mean_log_prob

    def _mean_log_prob(self, log_probs: Tensor, copy_probs: Tensor, gate: Tensor, state: CopyState) -> Tensor:
        """The mean over the vocabulary of the mixture's log-probability, (B, T), from the head's log_probs (B, T, V).

        Copying changes only the probabilities of tokens in the source. Each of them is corrected once, at its first position
        in the source, which avoids another tensor of (B, T, V).
        """
        _, token_mask, tokens = state.parts
        same_token = (tokens[:, :, None] == tokens[:, None]) & token_mask[:, None]  # (B, S, S)
        is_first = token_mask & ~same_token.tril(-1).any(-1)
        source_log_probs = log_probs.gather(2, tokens.clamp(min=0)[:, None].expand_as(copy_probs))
        token_copy_probs = copy_probs @ same_token.transpose(1, 2).to(copy_probs.dtype)
        log_gate = F.logsigmoid(gate)
        mixed = _mixture(source_log_probs, token_copy_probs, gate[..., None])
        correction = (mixed - source_log_probs - log_gate[..., None]) * is_first[:, None]
        return log_gate + (log_probs.sum(-1) + correction.sum(-1)) / log_probs.size(-1)
