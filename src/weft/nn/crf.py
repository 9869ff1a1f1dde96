"""Heads that give each position of a sentence a tag: a linear one, and a chain that scores whole sequences of tags.

Both: `loss(y, tags, keep)` in nats of each sentence, `decode(y, keep)` the best tags, `marginals(y, keep)` the probability of
each tag at each position; keep is True on tokens, then False, and None where nothing is padding. What stands on padding,
in y (any number) and in tags, changes nothing.
Shapes: B sentences, T positions, D width, K tags.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FORBIDDEN = -1e4  # the score of a move that is not allowed: e to its power is 0, and unlike -inf it makes no NaN in gradients


def _precise(scores: Tensor) -> Tensor:
    """At least single precision: sums over whole sentences are not for half."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


class LinearTagHead(nn.Module):
    """Each position's tag by itself."""

    def __init__(self, dim: int, labels: int) -> None:
        super().__init__()
        self.emissions = nn.Linear(dim, labels)

    def scores(self, y: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, K), not normalised."""
        return _precise(self.emissions(y))

    def loss(self, y: Tensor, tags: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """Nats of each sentence's tags, summed over its positions, (B,); tags (B, T)."""
        if token_mask is not None:
            tags = tags.masked_fill(~token_mask, -100)  # what cross_entropy leaves out
        return F.cross_entropy(self.scores(y).transpose(1, 2), tags, reduction="none").sum(1)

    def decode(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The best tag of each position, (B, T); 0 on padding."""
        tags = self.scores(y).argmax(-1)
        return tags if token_mask is None else tags.masked_fill(~token_mask, 0)

    def marginals(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The probability of each tag at each position, (B, T, K); 0 on padding."""
        fractions = self.scores(y).softmax(-1)
        return fractions if token_mask is None else fractions.masked_fill(~token_mask[..., None], 0.0)


class CRF(nn.Module):
    """A linear-chain conditional random field (Lafferty et al. 2001): a sequence of tags is scored by what each position says
    for its tag and by each move from tag to tag, and normalised over all sequences.

    `allowed` (K + 1, K + 1), bool, says which moves there are, row to column; its last row is the start of a sentence, its last
    column the end. Training and decoding both know it: no probability goes to a sequence with another move, so that tags to
    learn from must keep to it (one that does not costs 10,000 nats a move). Fresh, all moves score 0, and it is `LinearTags`.
    """

    allowed_transitions: Tensor | None

    def __init__(self, dim: int, labels: int, *, allowed_transitions: Tensor | None = None) -> None:
        super().__init__()
        if allowed_transitions is not None and allowed_transitions.shape != (labels + 1, labels + 1):
            raise ValueError(
                f"CRF: {labels} labels need allowed of {labels + 1} x {labels + 1}, not {tuple(allowed_transitions.shape)}"
            )
        self.emissions = nn.Linear(dim, labels)
        self.transitions = nn.Parameter(torch.zeros(labels, labels))  # from row to column
        self.start, self.end = nn.Parameter(torch.zeros(labels)), nn.Parameter(torch.zeros(labels))
        # it follows from the labels, so it is not saved with the weights
        self.register_buffer(
            "allowed_transitions", None if allowed_transitions is None else allowed_transitions.bool(), persistent=False
        )

    def scores(self, y: Tensor) -> Tensor:
        """What each position says for each tag: (B, T, D) -> (B, T, K)."""
        return _precise(self.emissions(y))

    def _moves(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the moves between tags (K, K), from the start (K,) and to the end (K,)."""
        moves, start, end = _precise(self.transitions), _precise(self.start), _precise(self.end)
        if self.allowed_transitions is None:
            return moves, start, end
        banned = ~self.allowed_transitions
        return (
            moves.masked_fill(banned[:-1, :-1], FORBIDDEN),
            start.masked_fill(banned[-1, :-1], FORBIDDEN),
            end.masked_fill(banned[:-1, -1], FORBIDDEN),
        )

    def _forward(self, scores: Tensor, token_mask: Tensor) -> list[Tensor]:
        """Of each position and tag, the log-sum of all ways to it; T of (B, K). On padding it stands still."""
        moves, start, _ = self._moves()
        into = moves.t().contiguous()  # the sum runs over the last axis, which is the fast one
        first, *others = scores.unbind(1)
        ways = [start + first]
        for score, real in zip(others, token_mask[:, 1:, None].unbind(1), strict=True):
            arrived = (ways[-1][:, None, :] + into).logsumexp(-1) + score
            ways.append(torch.where(real, arrived, ways[-1]))
        return ways

    def _backward(self, scores: Tensor, token_mask: Tensor) -> list[Tensor]:
        """Of each position and tag, the log-sum of all ways from it to the end; T of (B, K)."""
        moves, _, end = self._moves()
        ways = [end.expand(scores.size(0), -1)]
        for score, real in zip(reversed(scores.unbind(1)[1:]), reversed(token_mask[:, 1:, None].unbind(1)), strict=True):
            left = (moves + (score + ways[-1])[:, None, :]).logsumexp(-1)
            ways.append(torch.where(real, left, ways[-1]))
        return ways[::-1]

    def _gold(self, scores: Tensor, tags: Tensor, token_mask: Tensor) -> Tensor:
        """The score of the given tags, (B,)."""
        moves, start, end = self._moves()
        tags = tags.masked_fill(~token_mask, 0)
        said = scores.gather(2, tags[..., None])[..., 0].masked_fill(~token_mask, 0.0).sum(1)
        moved = moves[tags[:, :-1], tags[:, 1:]].masked_fill(~token_mask[:, 1:], 0.0).sum(1)
        last = tags.gather(1, token_mask.sum(1, keepdim=True).sub(1).clamp(min=0))[:, 0]
        return start[tags[:, 0]] + said + moved + end[last]

    def loss(self, y: Tensor, tags: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """Nats of each sentence's tags as one sequence, (B,); tags (B, T)."""
        scores = self.scores(y)
        token_mask = torch.ones_like(tags, dtype=torch.bool) if token_mask is None else token_mask
        partition = (self._forward(scores, token_mask)[-1] + self._moves()[2]).logsumexp(-1)
        return (partition - self._gold(scores, tags, token_mask)).masked_fill(~token_mask.any(1), 0.0)

    def decode(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The best sequence of tags, by Viterbi's algorithm, (B, T); 0 on padding."""
        scores, (moves, start, end) = self.scores(y), self._moves()
        token_mask = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device) if token_mask is None else token_mask
        into, stay = moves.t().contiguous(), torch.arange(len(start), device=y.device)
        first, *others = scores.unbind(1)
        best, came_from = start + first, []
        for score, real in zip(others, token_mask[:, 1:, None].unbind(1), strict=True):
            arrived, source = (best[:, None, :] + into).max(-1)
            best = torch.where(real, arrived + score, best)
            came_from.append(torch.where(real, source, stay))  # padding hands the last tag on
        tags = [(best + end).argmax(-1, keepdim=True)]
        for source in reversed(came_from):
            tags.append(source.gather(1, tags[-1]))
        return torch.cat(tags[::-1], dim=1).masked_fill(~token_mask, 0)

    def marginals(self, y: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """The probability of each tag at each position, over all sequences, (B, T, K); 0 on padding."""
        scores = self.scores(y)
        token_mask = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device) if token_mask is None else token_mask
        through = torch.stack(self._forward(scores, token_mask), 1) + torch.stack(self._backward(scores, token_mask), 1)
        return through.softmax(-1).masked_fill(~token_mask[..., None], 0.0)
