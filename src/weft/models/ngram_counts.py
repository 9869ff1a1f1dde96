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

Tokens = NDArray[Any]  # token IDs: int64, or uint16 or uint32 from a corpus file

CHUNK_TOKENS = 1 << 22  # counted at once: about 300 MB of working memory
MAX_BITS = 63  # of a key that is sorted as a number


class Level(NamedTuple):
    """All n-grams of one length, sorted by context, then word. Level 1 has one row for every token of the vocabulary."""

    context: Ints  # row of the n-gram without its last word, one level down
    suffix: Ints  # row of the n-gram without its first word, one level down
    word: Ints  # its last word
    counts: Ints  # number of occurrences; 0 for the unigram <s>, which is never predicted
    starts_with_bos: NDArray[np.bool_]


class Rows(NamedTuple):
    """Distinct rows of IDs with their counts. IDs are incremented by one; 0 pads rows that reach the end of a line."""

    columns: list[NDArray[np.int32]]
    counts: Ints


def with_bos(tokens: Tokens, starts: Ints | None, bos_id: int) -> Ints:
    """The IDs with <s> before each line, or before the whole text without lines."""
    return np.insert(tokens.astype(np.int64), [0] if starts is None else starts, bos_id)


def line_chunks(starts: Ints, chunk_tokens: int) -> Iterator[tuple[int, int]]:
    """First and last line (exclusive) of chunks of about `chunk_tokens` tokens; lines are not split."""
    first, num_lines = 0, len(starts) - 1
    while first < num_lines:
        last = max(int(np.searchsorted(starts, starts[first] + chunk_tokens, side="right")) - 1, first + 1)
        yield first, last
        first = last


def _chunks(tokens: Tokens, starts: Ints | None, order: int, bos_id: int) -> Iterator[tuple[Ints, int]]:
    """Chunks of a text: its IDs with <s>, and the number of rows that start in it; order - 1 more IDs fill the last rows."""
    padding = np.full(order - 1, bos_id)  # a row ends before the next <s>
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


def _rows_of(ids: Ints, num_rows: int, order: int, bos_id: int) -> list[NDArray[np.int32]]:
    """The rows of `order` IDs at the first `num_rows` positions, as columns, cut off before the next <s>."""
    incremented = ids.astype(np.int32)
    incremented += 1
    columns = [incremented[:num_rows]]
    is_open = np.ones(num_rows, bool)
    for k in range(1, order):
        column = incremented[k : k + num_rows]
        is_open &= column != bos_id + 1
        columns.append(column * is_open)
    return columns


def _sort_with_order(key: Ints, num_bits: int) -> tuple[Ints, Ints]:
    """The sorted keys, of at most `num_bits` bits, and the position of each before.

    If a key and its position fit into 63 bits, they are sorted as one number: that takes half the time of argsort.
    """
    position_bits = len(key).bit_length()
    if num_bits + position_bits > MAX_BITS:
        order = np.argsort(key)
        return key[order], order
    numbers = key << position_bits
    numbers |= np.arange(len(key))
    numbers.sort()
    order = numbers & ((1 << position_bits) - 1)
    numbers >>= position_bits
    return numbers, order


def _distinct(columns: Sequence[Tokens], counts: Ints | None, vocab_size: int) -> Rows:
    """The distinct rows, sorted, with the sum of the `counts` of equal rows; None: each row counts once."""
    bits, position_bits = vocab_size.bit_length(), len(columns[0]).bit_length()
    packed = list[tuple[int, Ints]]()  # for each sort, the number of columns it added and its distinct keys
    num_sorted, rank_bits, key = 0, 0, np.zeros(len(columns[0]), np.int64)
    while num_sorted < len(columns):
        # a key is the rank of the columns sorted so far and as many new columns as fit
        num_new = min((MAX_BITS - rank_bits) // bits, len(columns) - num_sorted)
        is_last = num_sorted + num_new == len(columns)
        if not is_last:
            num_new = (MAX_BITS - rank_bits - position_bits) // bits or num_new
        for column in columns[num_sorted : num_sorted + num_new]:
            key <<= bits
            key |= column
        num_sorted += num_new
        # the last sort needs no permutation, unless rows have counts: that saves most of its time
        order: Ints | None = None
        if is_last and counts is None:
            sorted_keys = np.sort(key)
        else:
            sorted_keys, order = _sort_with_order(key, rank_bits + num_new * bits)
        is_first = np.ones(len(sorted_keys), bool)  # of a run of equal keys
        np.not_equal(sorted_keys[1:], sorted_keys[:-1], out=is_first[1:])
        packed.append((num_new, sorted_keys[is_first]))
        if order is not None and not is_last:
            key[order] = np.cumsum(is_first) - 1
            rank_bits = len(packed[-1][1]).bit_length()
    runs = np.flatnonzero(is_first)
    totals = np.diff(runs, append=len(is_first)) if order is None or counts is None else np.add.reduceat(counts[order], runs)
    return Rows(_unpack(packed, bits), totals)


def _unpack(packed: list[tuple[int, Ints]], bits: int) -> list[NDArray[np.int32]]:
    """The columns of the distinct rows, from the keys of all sorts."""
    columns = list[NDArray[np.int32]]()
    row = np.arange(len(packed[-1][1]))
    for num_columns, keys in reversed(packed):
        key = keys[row]
        for _ in range(num_columns):
            columns.append((key & ((1 << bits) - 1)).astype(np.int32))
            key = key >> bits
        row = key  # the rest of the key is its rank in the sort before
    return columns[::-1]


def _merge(parts: list[Rows], vocab_size: int) -> Rows:
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True)]
    return _distinct(columns, np.concatenate([part.counts for part in parts]), vocab_size)


def _count_rows(tokens: Tokens, starts: Ints | None, order: int, vocab_size: int, bos_id: int) -> Rows:
    """The distinct rows of a whole text."""
    merged: list[Rows] = []  # at most one
    pending: list[Rows] = []  # of the chunks since the last merge
    for ids, num_rows in _chunks(tokens, starts, order, bos_id):
        if ids.min() < 0 or ids.max() >= vocab_size:
            invalid = int(ids.min()) if ids.min() < 0 else int(ids.max())
            problem = f"token ID {invalid} is not in the vocabulary of {vocab_size}"
            raise DataError("n-gram counts", problem, "use its own tokenizer")
        pending.append(_distinct(_rows_of(ids, num_rows, order, bos_id), None, vocab_size))
        # merge when there are as many new rows as old ones: every row is sorted a logarithmic number of times
        if merged and sum(len(part.counts) for part in pending) < len(merged[0].counts):
            continue
        merged, pending = [_merge(merged + pending, vocab_size)], []
    return _merge(merged + pending, vocab_size)


def _first_level(rows: Rows, vocab_size: int, bos_id: int) -> Level:
    counts = np.bincount(rows.columns[0] - 1, weights=rows.counts, minlength=vocab_size).astype(np.int64)
    counts[bos_id] = 0
    word = np.arange(vocab_size)
    return Level(np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64), word, counts, word == bos_id)


def count_ngrams(tokens: Tokens, starts: Ints | None, *, order: int, vocab_size: int, bos_id: int) -> list[Level]:
    """Count the n-grams of 1 to `order` words, one level per length, in lines (`starts`) or running text (None).

    Each line, or the whole running text, is counted with <s> before it.
    """
    if not len(tokens):
        raise DataError("n-gram counts", "the training text has no tokens")
    rows = _count_rows(tokens, starts, order, vocab_size, bos_id)
    levels = [_first_level(rows, vocab_size, bos_id)]
    keys = levels[0].word
    cumulative_counts = np.concatenate([[0], np.cumsum(rows.counts)])
    node = rows.columns[0].astype(np.int64) - 1  # for each row, the n-gram of its first k columns, as a row of level k
    is_first = np.zeros(len(rows.counts), bool)  # first row of a run with equal first k columns
    is_first[:1] = True
    is_first[1:] |= rows.columns[0][1:] != rows.columns[0][:-1]
    for column in rows.columns[1:]:
        is_first[1:] |= column[1:] != column[:-1]
        runs = np.flatnonzero(is_first)
        ends = np.append(runs[1:], len(column))
        is_complete = column[runs] > 0  # not padded
        runs, ends = runs[is_complete], ends[is_complete]
        below = levels[-1]
        context, word = node[runs], column[runs].astype(np.int64) - 1
        suffix = binary_search(keys, below.suffix[context] * vocab_size + word) if len(levels) > 1 else word
        counts = cumulative_counts[ends] - cumulative_counts[runs]
        levels.append(Level(context, suffix, word, counts, below.starts_with_bos[context]))
        keys = context * vocab_size + word
        starts_run = np.zeros(len(column), np.int64)
        starts_run[runs] = 1
        node = np.cumsum(starts_run) - 1
    return levels
