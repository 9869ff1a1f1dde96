"""Limits on the length of texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.errors import DataError


def limit_side(corpus: Corpus, dataset: Dataset[Any], side: str, *, max_length: int, truncate: bool) -> Corpus:
    """The corpus of a column, such as "source", with at most `max_length` tokens per line. A longer line is truncated before
    its </s>, or an error. A truncated corpus is in memory; otherwise it stays on disk."""
    starts = corpus.line_starts()
    num_extra = corpus.start_tokens.num_positions(side)
    lengths = np.diff(starts) + num_extra
    long_lines = np.flatnonzero(lengths > max_length)
    if not len(long_lines):
        return corpus
    if not truncate:
        more = f" (and in {len(long_lines) - 1:,} more)" if len(long_lines) > 1 else ""
        raise DataError(
            dataset.location(int(long_lines[0]), side),
            f"{side} has {lengths[long_lines[0]]:,} tokens, more than data.max_length ({max_length}){more}",
            "increase it or set data.truncate = true",
        )
    keep = np.ones(len(corpus.tokens), dtype=bool)
    for line in long_lines.tolist():
        keep[starts[line] + max_length - num_extra - 1 : starts[line + 1] - 1] = False
    ends = np.concatenate([[0], np.cumsum(np.minimum(lengths, max_length) - num_extra)])
    # the characters of the whole line still count, so that losses per character refer to the original text
    counts = np.concatenate([ends[:, None], corpus.cumulative_counts[:, 1:]], axis=1)
    return replace(corpus, tokens=corpus.tokens[keep], starts=ends, cumulative_counts=counts)
