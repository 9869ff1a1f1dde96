"""Batches of sources and targets.

Shapes: B rows, S positions of the source, T of the target; a target row has T + 1 tokens, of which the first T are inputs and
the last T are targets. Both sides end with </s>.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class PairBatch(NamedTuple):
    source: Tensor  # int64 (B, S): start tokens, if any, tokens, </s>; right-padded with 0
    source_mask: Tensor  # bool (B, S), False on padding
    tokens: Tensor  # int64 (B, T + 1): <s> or other start tokens, tokens, </s>; right-padded with 0
    token_mask: Tensor  # bool (B, T + 1), False on padding and on start tokens after the first, which are not predicted


def pad_rows(rows: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token IDs of sources or targets of different lengths, as padded rows and their token mask, (B, S) each."""
    width = max(len(row) for row in rows)
    padded = np.stack([np.pad(row, (0, width - len(row))) for row in rows])
    token_mask = np.arange(width) < np.array([len(row) for row in rows])[:, None]
    return torch.from_numpy(padded).to(device), torch.from_numpy(token_mask).to(device)
