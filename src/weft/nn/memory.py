"""The output of an encoder, as a decoder reads it.

Shapes: B batch size, S source length, D hidden size of the encoder.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Memory(NamedTuple):
    values: Tensor  # (B, S, D): the encoder's output at each source position
    token_mask: Tensor  # (B, S): True on tokens, False on padding
    states: tuple[Any, ...]  # final state of each layer that has one, after the last token of each row
    summary: Tensor  # (B, D): the whole source in one vector

    def summary_only(self) -> Memory:
        """A memory with a single position, the summary: the fixed-size bottleneck of models without attention."""
        return Memory(self.summary[:, None], self.token_mask[:, :1], self.states, self.summary)
