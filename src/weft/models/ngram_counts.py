"""Count n-grams: from a flat array of token IDs to all n-grams up to length `order`, sorted and numbered.

One sort counts them all. The text is read as overlapping rows of `order` IDs, one per position; in sorted rows, equal prefixes
are adjacent, and the n-grams of length k are the runs with equal first k columns. Long texts are counted in chunks, each
reduced to its distinct rows before the next is read, so that memory grows with the number of distinct n-grams and not with
the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import DataError
from weft.models.ngram_index import Ints, binary_search

Tokens = NDArray[Any]  # ids: int64, or uint16 or uint32 from a corpus file

CHUNK_TOKENS = 1 << 22  # counted at once: about 300 MB of working memory


class Level(NamedTuple):
    """All n-grams of one length, sorted by context, then word. Level 1 has one row for every token of the vocabulary."""

    context: Ints  # row of the n-gram without its last word, one level down
    suffix: Ints  # row of the n-gram without its first word, one level down
    word: Ints  # its last word
    counts: Ints  # number of occurrences; 0 for the unigram <s>, which is never predicted
    leads: NDArray[np.bool_]  # whether it starts with <s>


class Rows(NamedTuple):
    """Distinct rows of IDs with their counts. IDs are incremented by one; 0 pads rows that are cut off by the end of a line."""

    columns: list[NDArray[np.int32]]
    counts: Ints


def with_bos(tokens: Tokens, starts: Ints | None, bos_id: int) -> Ints:
    """The IDs with <s> before each line, or before the whole text without lines."""
    return np.insert(tokens.astype(np.int64), [0] if starts is None else starts, bos_id)


def line_chunks(starts: Ints, size: int) -> Iterator[tuple[int, int]]:
    """First and last line (exclusive) of chunks with about `size` tokens; lines are not split."""
    first, lines = 0, len(starts) - 1
    while first < lines:
        last = max(int(np.searchsorted(starts, starts[first] + size, side="right")) - 1, first + 1)
        yield first, last
        first = last


def _chunks(tokens: Tokens, starts: Ints | None, order: int, bos_id: int) -> Iterator[tuple[Ints, int]]:
    """IDs with <s>, and the number of rows that start in the chunk; order - 1 more IDs fill the last rows."""
    padding = np.full(order - 1, bos_id)  # <s> ends every row that reaches it
    if starts is not None:
        for first, last in line_chunks(starts, CHUNK_TOKENS):
            low, high = int(starts[first]), int(starts[last])
            ids = with_bos(tokens[low:high], starts[first:last] - low, bos_id)
            yield np.concatenate([ids, padding]), len(ids)
        return
    for low in range(0, len(tokens), CHUNK_TOKENS):
        high = min(low + CHUNK_TOKENS, len(tokens))
        ids = tokens[low : high + order - 1].astype(np.int64)
        if low == 0:
            ids = with_bos(ids, None, bos_id)
        num_rows = high - low + (low == 0)
        yield np.concatenate([ids, padding]), num_rows


def _rows_of(ids: Ints, num_rows: int, order: int, bos_id: int) -> list[Ints]:
    """The rows of `order` IDs at the first `num_rows` positions, as columns, cut off before the next <s>."""
    columns = [ids[:num_rows] + 1]
    is_open = np.ones(num_rows, bool)
    for k in range(1, order):
        column = ids[k : k + num_rows] + 1
        is_open &= column != bos_id + 1
        column *= is_open
        columns.append(column)
    return columns


def _distinct(columns: Sequence[Tokens], counts: Ints | None, size: int) -> Rows:
    """The distinct rows, sorted, with the sum of the `counts` of equal rows; None: each row counts once."""
    bits = size.bit_length()
    packed = list[tuple[int, Ints]]()  # for each sort, the number of columns it added and its distinct keys
    done, rank_bits, key = 0, 0, np.zeros(len(columns[0]), np.int64)
    while done < len(columns):
        # as many columns as fit into 63 bits with the rank of the columns before
        fit = min((63 - rank_bits) // bits, len(columns) - done)
        for column in columns[done : done + fit]:
            key <<= bits
            key |= column
        done += fit
        last = done == len(columns)
        # the last sort needs no permutation, unless rows have counts: that saves most of its time
        order = None if last and counts is None else np.argsort(key)
        ranked = np.sort(key) if order is None else key[order]
        new = np.ones(len(ranked), bool)
        np.not_equal(ranked[1:], ranked[:-1], out=new[1:])
        packed.append((fit, ranked[new]))
        if order is not None and not last:
            key[order] = np.cumsum(new) - 1
            rank_bits = len(ranked).bit_length()
    first = np.flatnonzero(new)
    total = np.diff(first, append=len(new)) if order is None or counts is None else np.add.reduceat(counts[order], first)
    return Rows(_unpack(packed, bits), total)


def _unpack(packed: list[tuple[int, Ints]], bits: int) -> list[NDArray[np.int32]]:
    """The columns of the distinct rows."""
    columns = list[NDArray[np.int32]]()
    row = np.arange(len(packed[-1][1]))
    for fit, keys in reversed(packed):
        row = keys[row]
        for _ in range(fit):
            columns.append((row & ((1 << bits) - 1)).astype(np.int32))
            row = row >> bits
    return columns[::-1]


def _join(parts: list[Rows], size: int) -> Rows:
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True)]
    return _distinct(columns, np.concatenate([part.counts for part in parts]), size)


def _count_rows(tokens: Tokens, starts: Ints | None, order: int, size: int, bos_id: int) -> Rows:
    merged: list[Rows] = []
    pending: list[Rows] = []
    for ids, num_rows in _chunks(tokens, starts, order, bos_id):
        if ids.min() < 0 or ids.max() >= size:
            invalid = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise DataError("n-gram counts", f"token ID {invalid} is not in the vocabulary of {size}", "use its own tokenizer")
        pending.append(_distinct(_rows_of(ids, num_rows, order, bos_id), None, size))
        # merge when the new rows are as many as the old: every row is sorted a logarithmic number of times
        if merged and sum(len(part.counts) for part in pending) < len(merged[0].counts):
            continue
        merged, pending = [_join(merged + pending, size)], []
    return _join(merged + pending, size)


def _first_level(rows: Rows, size: int, bos_id: int) -> Level:
    count = np.bincount(rows.columns[0] - 1, weights=rows.counts, minlength=size).astype(np.int64)
    count[bos_id] = 0
    word = np.arange(size)
    return Level(np.zeros(size, np.int64), np.zeros(size, np.int64), word, count, word == bos_id)


def count_ngrams(tokens: Tokens, starts: Ints | None, *, order: int, size: int, bos_id: int) -> list[Level]:
    """One level for each length from 1 to `order`, of lines (`starts`) or running text (None).

    Each line, or the whole running text, is counted with <s> before it.
    """
    if not len(tokens):
        raise DataError("n-gram counts", "the training text has no tokens")
    rows = _count_rows(tokens, starts, order, size, bos_id)
    levels = [_first_level(rows, size, bos_id)]
    keys = levels[0].word
    heap = np.concatenate([[0], np.cumsum(rows.counts)])
    node = rows.columns[0].astype(np.int64) - 1  # the n-gram of the length before, at each row
    new = np.zeros(len(rows.counts), bool)
    new[:1] = True
    new[1:] |= rows.columns[0][1:] != rows.columns[0][:-1]
    for column in rows.columns[1:]:
        new[1:] |= column[1:] != column[:-1]
        runs = np.flatnonzero(new)
        ends = np.append(runs[1:], len(column))
        whole = column[runs] > 0
        runs, ends = runs[whole], ends[whole]
        below = levels[-1]
        context, word = node[runs], column[runs].astype(np.int64) - 1
        suffix = binary_search(keys, below.suffix[context] * size + word) if len(levels) > 1 else word
        levels.append(Level(context, suffix, word, heap[ends] - heap[runs], below.leads[context]))
        keys = context * size + word
        started = np.zeros(len(column), np.int64)
        started[runs] = 1
        node = np.cumsum(started) - 1
    return levels
