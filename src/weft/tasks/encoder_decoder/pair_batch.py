"""Batches of sources and targets.

Shapes: B rows, S positions of the source, T of the target; a target row has T + 1 tokens, of which the first T are inputs and
the last T are targets. Both sides end with </s>.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class PairBatch(NamedTuple):
    source: Tensor  # int64 (B, S): start tokens, if any, tokens, </s>; right-padded with 0
    source_mask: Tensor  # bool (B, S), False on padding
    tokens: Tensor  # int64 (B, T + 1): <s> or other start tokens, tokens, </s>; right-padded with 0
    token_mask: Tensor  # bool (B, T + 1), False on padding and on start tokens after the first, which are not predicted

    def sizes(self) -> tuple[int, int, int]:
        """B, S and T + 1."""
        return (*self.source.shape, self.tokens.size(1))

    def padded(self, sizes: Sequence[int]) -> PairBatch:
        """The same batch with more rows and positions. Added rows have no targets. Their first source token is visible, because
        attention to nothing is undefined."""
        rows, source_width, width = sizes
        num_rows, widths = len(self.source), (source_width, source_width, width, width)
        padding = [(0, size - part.size(1), 0, rows - num_rows) for part, size in zip(self, widths, strict=True)]
        source, source_mask, tokens, token_mask = (F.pad(part, pad) for part, pad in zip(self, padding, strict=True))
        source_mask[num_rows:, 0], token_mask[num_rows:, 0] = True, True
        return PairBatch(source, source_mask, tokens, token_mask)


def pad_rows(rows: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token IDs of sources or targets of different lengths, as padded rows and their token mask, (B, S) each."""
    width = max(len(row) for row in rows)
    padded = np.stack([np.pad(row, (0, width - len(row))) for row in rows])
    token_mask = np.arange(width) < np.array([len(row) for row in rows])[:, None]
    return torch.from_numpy(padded).to(device), torch.from_numpy(token_mask).to(device)
