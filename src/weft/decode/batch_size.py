"""Estimate, before the first step, the number of texts that can be decoded at once with the available memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from weft.decode.incremental import IncrementalModel
from weft.errors import ResourceError
from weft.nn.state import tree_leaves
from weft.resources import format_bytes, free_device_memory

# rows times tokens that always fit: to estimate the memory of fewer takes longer than to decode some of them
MIN_CHECKED_TOKENS = 4096
COPIES = 3  # copies of each row during a step: the old state, its selected rows, and the new state


class Rows(NamedTuple):
    """The rows that are decoded for one text: one per beam, or one per sample."""

    num_rows: int
    max_tokens: int  # tokens read in each row: the prompt and all generated tokens but the last
    state: Any = None  # initial state of one row


def estimate_bytes(model: IncrementalModel[Any], rows: Rows) -> int:
    """Peak bytes of the rows during a step."""
    state_bytes = sum(leaf.nbytes for leaf in tree_leaves(rows.state)) + model.bytes_per_row(rows.max_tokens, rows.state)
    return COPIES * rows.num_rows * (state_bytes + 8 * rows.max_tokens)  # 8 bytes per token ID


def max_texts_in_memory(model: IncrementalModel[Any], rows: Rows, device: torch.device, *, item: str, fix: str) -> int:
    """The number of texts that can be decoded at once; an error if there is not enough memory for one. The error message says
    that `item` needs too much, and advises to reduce `fix`."""
    required, available = estimate_bytes(model, rows), free_device_memory(device)
    if required > available:
        raise ResourceError(
            "",
            f"{item} of up to {rows.max_tokens} tokens needs about {format_bytes(required)}, "
            f"{format_bytes(available)} are free",
            f"reduce {fix}",
        )
    return available // required
