"""What an encoder leaves for a decoder.

Shapes: B rows, S source positions, D width of the encoder.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Memory(NamedTuple):
    values: Tensor  # (B, S, D)
    token_mask: Tensor  # (B, S), False on padding
    states: tuple[Any, ...]  # of each layer that has one, after each row's last real position
    summary: Tensor  # (B, D): the source in one vector

    def summary_only(self) -> Memory:
        """The same source as a memory of one position, its summary: the bottleneck."""
        return Memory(self.summary[:, None], self.token_mask[:, :1], self.states, self.summary)
