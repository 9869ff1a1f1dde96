"""Output layers for sequence tagging: a softmax per position, and a linear-chain CRF.

Both have `loss(y, tags, token_mask)`, the negative log-likelihood of each sentence in nats, `decode(y, token_mask)`, the best
tags, and `marginals(y, token_mask)` and `log_marginals(y, token_mask)`, the probability of each tag at each position.
token_mask is True on tokens and False on the padding after them; None: no padding. Values on padding, in y and in tags, have
no effect.
Shapes: B sentences, T positions, D hidden size, K tags.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FORBIDDEN = -1e4  # score of a forbidden transition: exp gives 0, and unlike -inf it causes no NaN in gradients
MIN_LOG_MARGINAL = -100.0  # a tag that another model finds possible would otherwise dominate its cross-entropy


def _at_least_float32(scores: Tensor) -> Tensor:
    """At least float32: sums over whole sentences lose too much in half precision."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


class LinearTagHead(nn.Module):
    """Softmax over the tags at each position, independently."""

    def __init__(self, dim: int, num_tags: int) -> None:
        super().__init__()
        self.emissions = nn.Linear(dim, num_tags)

    def scores(self, y: Tensor) -> Tensor:
        """Emission scores (logits): (B, T, D) to (B, T, K)."""
        return _at_least_float32(self.emissions(y))

    def transition_scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Zeros in place of the scores of a CRF: between tags (K, K), from the start (K,) and to the end (K,)."""
        zeros = torch.zeros_like(self.emissions.bias)
        return zeros.expand(len(zeros), -1), zeros, zeros

    def loss(self, y: Tensor, tags: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """Negative log-likelihood of the tags (B, T) of each sentence, summed over its positions, (B,)."""
        if token_mask is not None:
            tags = tags.masked_fill(~token_mask, -100)  # the ignore_index of cross_entropy
        return F.cross_entropy(self.scores(y).transpose(1, 2), tags, reduction="none").sum(1)

    def decode(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The best tag of each position, (B, T); 0 on padding."""
        tags = self.scores(y).argmax(-1)
        return tags if token_mask is None else tags.masked_fill(~token_mask, 0)

    def log_marginals(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The log-probability of each tag at each position, (B, T, K); any value on padding."""
        return self.scores(y).log_softmax(-1)

    def marginals(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The probability of each tag at each position, (B, T, K); 0 on padding."""
        probs = self.scores(y).softmax(-1)
        return probs if token_mask is None else probs.masked_fill(~token_mask[..., None], 0.0)


class CRF(nn.Module):
    """Linear-chain conditional random field (Lafferty et al. 2001).

        score(y, tags) = sum_t emission(y_t, tag_t) + sum_t transition(tag_{t-1}, tag_t)
        P(tags | y)    = exp(score(y, tags)) / sum over all tag sequences

    Transitions from the start and to the end of a sentence have scores as well. `allowed_transitions`, bool (K + 1, K + 1), is
    False for transitions, from row to column, that training and decoding exclude; its last row is the start of a sentence, its
    last column the end. Each forbidden transition in the training tags costs 10,000 nats. All transition scores are initially
    0, which makes the CRF equal to `LinearTagHead`.
    """

    allowed_transitions: Tensor | None

    def __init__(self, dim: int, num_tags: int, *, allowed_transitions: Tensor | None = None) -> None:
        super().__init__()
        if allowed_transitions is not None and allowed_transitions.shape != (num_tags + 1, num_tags + 1):
            raise ValueError(
                f"CRF: allowed_transitions must be {num_tags + 1}x{num_tags + 1}, got {tuple(allowed_transitions.shape)}"
            )
        self.emissions = nn.Linear(dim, num_tags)
        self.transitions = nn.Parameter(torch.zeros(num_tags, num_tags))  # score from row to column
        self.start, self.end = nn.Parameter(torch.zeros(num_tags)), nn.Parameter(torch.zeros(num_tags))
        # not persistent: it is computed from the tag names
        self.register_buffer(
            "allowed_transitions", None if allowed_transitions is None else allowed_transitions.bool(), persistent=False
        )

    def scores(self, y: Tensor) -> Tensor:
        """Emission scores: (B, T, D) to (B, T, K)."""
        return _at_least_float32(self.emissions(y))

    def transition_scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of transitions between tags (K, K), from the start (K,) and to the end (K,)."""
        transitions, start, end = (
            _at_least_float32(self.transitions),
            _at_least_float32(self.start),
            _at_least_float32(self.end),
        )
        if self.allowed_transitions is None:
            return transitions, start, end
        forbidden = ~self.allowed_transitions
        return (
            transitions.masked_fill(forbidden[:-1, :-1], FORBIDDEN),
            start.masked_fill(forbidden[-1, :-1], FORBIDDEN),
            end.masked_fill(forbidden[:-1, -1], FORBIDDEN),
        )

    def _forward(self, scores: Tensor, token_mask: Tensor) -> list[Tensor]:
        """Forward algorithm: T tensors (B, K), the log-sum-exp over all tag sequences that end in each tag. Padding repeats
        the last value."""
        transitions, start, _ = self.transition_scores()
        from_tags = transitions.t().contiguous()  # (to, from): the sum over the tags before is over the contiguous axis
        first, *rest = scores.unbind(1)
        alphas = [start + first]
        for emission, is_token in zip(rest, token_mask[:, 1:, None].unbind(1), strict=True):
            alpha = (alphas[-1][:, None, :] + from_tags).logsumexp(-1) + emission
            alphas.append(torch.where(is_token, alpha, alphas[-1]))
        return alphas

    def _backward(self, scores: Tensor, token_mask: Tensor) -> list[Tensor]:
        """Backward algorithm: T tensors (B, K), the log-sum-exp over all continuations of each tag to the end."""
        transitions, _, end = self.transition_scores()
        betas = [end.expand(scores.size(0), -1)]
        emissions, masks = reversed(scores.unbind(1)[1:]), reversed(token_mask[:, 1:, None].unbind(1))
        for emission, is_token in zip(emissions, masks, strict=True):
            beta = (transitions + (emission + betas[-1])[:, None, :]).logsumexp(-1)
            betas.append(torch.where(is_token, beta, betas[-1]))
        return betas[::-1]

    def _sequence_score(self, scores: Tensor, tags: Tensor, token_mask: Tensor) -> Tensor:
        """The score of each tag sequence, (B,); tags (B, T)."""
        transitions, start, end = self.transition_scores()
        tags = tags.masked_fill(~token_mask, 0)
        emission_sum = scores.gather(2, tags[..., None])[..., 0].masked_fill(~token_mask, 0.0).sum(1)
        transition_sum = transitions[tags[:, :-1], tags[:, 1:]].masked_fill(~token_mask[:, 1:], 0.0).sum(1)
        last_tag = tags.gather(1, token_mask.sum(1, keepdim=True).sub(1).clamp(min=0))[:, 0]
        return start[tags[:, 0]] + emission_sum + transition_sum + end[last_tag]

    def loss(self, y: Tensor, tags: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """Negative log-likelihood of the tag sequence (B, T) of each sentence, (B,)."""
        scores = self.scores(y)
        token_mask = torch.ones_like(tags, dtype=torch.bool) if token_mask is None else token_mask
        log_partition = (self._forward(scores, token_mask)[-1] + self.transition_scores()[2]).logsumexp(-1)
        return (log_partition - self._sequence_score(scores, tags, token_mask)).masked_fill(~token_mask.any(1), 0.0)

    def decode(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The best tag sequence by the Viterbi algorithm, (B, T); 0 on padding."""
        scores, (transitions, start, end) = self.scores(y), self.transition_scores()
        token_mask = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device) if token_mask is None else token_mask
        from_tags, same_tag = transitions.t().contiguous(), torch.arange(len(start), device=y.device)
        first, *rest = scores.unbind(1)
        best, backpointers = start + first, []
        for emission, is_token in zip(rest, token_mask[:, 1:, None].unbind(1), strict=True):
            best_previous, previous_tag = (best[:, None, :] + from_tags).max(-1)
            best = torch.where(is_token, best_previous + emission, best)
            backpointers.append(torch.where(is_token, previous_tag, same_tag))  # padding keeps the last tag
        tags = [(best + end).argmax(-1, keepdim=True)]
        for previous_tag in reversed(backpointers):
            tags.append(previous_tag.gather(1, tags[-1]))
        return torch.cat(tags[::-1], dim=1).masked_fill(~token_mask, 0)

    def _log_potentials(self, y: Tensor, token_mask: Tensor) -> Tensor:
        """The log-sum-exp over all tag sequences with each tag at each position, (B, T, K)."""
        scores = self.scores(y)
        return torch.stack(self._forward(scores, token_mask), 1) + torch.stack(self._backward(scores, token_mask), 1)

    def log_marginals(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The log-probability of each tag at each position, over all tag sequences, (B, T, K); any value on padding. Tags that
        the allowed transitions exclude have the value MIN_LOG_MARGINAL."""
        token_mask = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device) if token_mask is None else token_mask
        return self._log_potentials(y, token_mask).log_softmax(-1).clamp(min=MIN_LOG_MARGINAL)

    def marginals(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The probability of each tag at each position, over all tag sequences, (B, T, K); 0 on padding."""
        token_mask = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device) if token_mask is None else token_mask
        return self._log_potentials(y, token_mask).softmax(-1).masked_fill(~token_mask[..., None], 0.0)
