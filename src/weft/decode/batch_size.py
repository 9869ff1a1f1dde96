"""How many rows fit into memory side by side, known before the first step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from weft.decode.incremental import IncrementalModel
from weft.errors import ResourceError
from weft.nn.state import tree_leaves
from weft.resources import free, size

COPIES = 3  # of a row in a step: what was before, what of it goes on, and what comes of that


class Rows(NamedTuple):
    """What is decoded for one text: as many rows as its beam is wide, or as it has samples."""

    number: int
    tokens: int  # read in each row, at most: the prompt, and all that is written but the last
    state: Any = None  # of one row, where it starts


def estimate_bytes(steps: IncrementalModel[Any], rows: Rows) -> int:
    """The most bytes that the rows take in the midst of a step."""
    held = sum(part.nbytes for part in tree_leaves(rows.state)) + steps.bytes_per_row(rows.tokens, rows.state)
    return COPIES * rows.number * (held + 8 * rows.tokens)  # the tokens themselves are kept, too


def max_rows_in_memory(steps: IncrementalModel[Any], rows: Rows, device: torch.device, *, item: str, fix: str) -> int:
    """How many texts fit side by side; refused where one alone does not."""
    each, there = estimate_bytes(steps, rows), free(device)
    if each > there:
        raise ResourceError(
            "",
            f"{item} of up to {rows.tokens} tokens needs about {size(each)} for its state and scores, but {size(there)} are free",
            f"lower {fix}",
        )
    return there // each
