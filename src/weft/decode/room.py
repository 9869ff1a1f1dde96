"""How many rows fit into memory side by side, known before the first step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from weft.decode.steps import Steps
from weft.errors import ResourceError
from weft.machine import free, size
from weft.nn.state import leaves

COPIES = 3  # of a row in a step: what was before, what of it goes on, and what comes of that


class Rows(NamedTuple):
    """What is decoded for one text: as many rows as its beam is wide, or as it has samples."""

    number: int
    tokens: int  # read in each row, at most: the prompt, and all that is written but the last
    state: Any = None  # of one row, where it starts


def bytes_of(steps: Steps[Any], rows: Rows) -> int:
    """The most bytes that the rows take in the midst of a step."""
    held = sum(part.nbytes for part in leaves(rows.state)) + steps.row_bytes(rows.tokens, rows.state)
    return COPIES * rows.number * (held + 8 * rows.tokens)  # the tokens themselves are kept, too


def fitting(steps: Steps[Any], rows: Rows, device: torch.device, *, what: str, cure: str) -> int:
    """How many texts fit side by side; refused where one alone does not."""
    each, there = bytes_of(steps, rows), free(device)
    if each > there:
        raise ResourceError(
            f"{what} of up to {rows.tokens} tokens needs about {size(each)} for its state and scores, "
            f"but {size(there)} are free; lower {cure}"
        )
    return there // each
