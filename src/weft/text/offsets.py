"""Where the tokens of a text stand in it, by characters: what turns an answer into tokens and tokens into an answer.

Shapes: T tokens.
"""

from __future__ import annotations

import numpy as np

from weft.text.tokenizers import Tokenizer


def token_offsets(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """int64 (T, 2): the character where each token of the text starts, and the one after its last."""
    return np.array(tokenizer.offsets(text), np.int64).reshape(-1, 2)


def tokens_between(offsets: np.ndarray, start: int, stop: int) -> tuple[int, int] | None:
    """The first and the last of the tokens (T, 2) that have a part of the characters from `start` to before `stop`; None
    where no token has one."""
    touched = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < stop))
    return (int(touched[0]), int(touched[-1])) if len(touched) else None


def text_between(text: str, offsets: np.ndarray, first: int, last: int) -> tuple[int, int]:
    """Where the text of the tokens from `first` to `last` starts, and the character after its end; white space around it,
    which some tokens have, is left off."""
    start, stop = int(offsets[first, 0]), int(offsets[last, 1])
    said = text[start:stop]
    start += len(said) - len(said.lstrip())
    return start, start + len(said.strip())
