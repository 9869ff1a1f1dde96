"""What a model offers to be decoded. Search and sampling know nothing else of it.

Shapes: B rows, T positions, V words.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

S = TypeVar("S")


class IncrementalModel(Protocol[S]):
    """n-gram, fixed-window, recurrent and attention models alike, and ensembles of them."""

    @property
    def vocabulary(self) -> str:
        """SHA-256 of the target tokenizer: equal, or two models can't be combined."""

    @property
    def max_positions(self) -> int | None:
        """How many positions it can read; the search checks it once, before the first step."""

    def bytes_per_row(self, tokens: int, state: S | None = None) -> int:
        """The most bytes that one row takes while so many tokens are read: what its state grows by beyond `state`, that of one
        row where it starts, and log-probabilities twice."""

    def start(self, prompt: Tensor, token_mask: Tensor | None = None, state: S | None = None) -> tuple[Tensor, S]:
        """Read `prompt` (B, T >= 1), right-padded where keep (B, T) is False, on top of `state`;
        the next token's log-probabilities (B, V) and the state."""

    def step(self, token: Tensor, state: S) -> tuple[Tensor, S]:
        """Read one more token a row (B,); the same pair."""

    def score(self, tokens: Tensor, token_mask: Tensor | None = None, state: S | None = None) -> Tensor:
        """Log-probability of every token after the first, (B, T - 1), in one pass; 0 where keep is False."""
