"""Character offsets of tokens: converts answers to token spans and back.

Shapes: T tokens.
"""

from __future__ import annotations

import numpy as np

from weft.text.tokenizers import Tokenizer


def token_offsets(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """int64 (T, 2): start and end (exclusive) of each token in characters."""
    return np.array(tokenizer.offsets(text), np.int64).reshape(-1, 2)


def tokens_between(offsets: np.ndarray, start: int, stop: int) -> tuple[int, int] | None:
    """First and last token that overlap the characters from `start` to `stop` (exclusive); None if no token does."""
    tokens = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < stop))
    return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None


def text_between(text: str, offsets: np.ndarray, first: int, last: int) -> tuple[int, int]:
    """Start and end (exclusive), in characters, of the tokens from `first` to `last`, without surrounding whitespace."""
    start, stop = int(offsets[first, 0]), int(offsets[last, 1])
    span = text[start:stop]
    start += len(span) - len(span.lstrip())
    return start, start + len(span.strip())
