"""Counting n-grams: a flat array of token ids in, every n-gram of every length up to `order` out, sorted and numbered.

One sort finds them all: the text is read as overlapping rows of `order` ids, one row for each position; where equal
rows lie together, so do equal beginnings, and the n-grams of length k are the runs that agree in their first k columns.
Long texts are counted in pieces, each reduced to its different rows before the next is read, so memory grows with the
number of different n-grams and not with the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import DataError
from weft.models.ngram_index import Ints, halve

Tokens = NDArray[Any]  # ids: int64, or uint16 or uint32 from a corpus file

PIECE = 1 << 22  # tokens counted at once: about 300 MB of working memory


class Level(NamedTuple):
    """All n-grams of one length, sorted by context, then word. Length 1 has one row for every id of the vocabulary."""

    context: Ints  # row of the n-gram without its last word, one level down
    suffix: Ints  # row of the n-gram without its first word, one level down
    word: Ints  # its last word
    counts: Ints  # how often it occurs; 0 for the begin token alone, which is never predicted
    leads: NDArray[np.bool_]  # begins with the begin token


class Rows(NamedTuple):
    """Rows of ids and how often each occurs. Ids are raised by one; 0 stands where the end of a line cut a row off."""

    columns: list[NDArray[np.int32]]
    counts: Ints


def with_begins(tokens: Tokens, starts: Ints | None, bos_id: int) -> Ints:
    """The ids with the begin token before each line, or before the whole where there are no lines."""
    return np.insert(tokens.astype(np.int64), [0] if starts is None else starts, bos_id)


def line_pieces(starts: Ints, size: int) -> Iterator[tuple[int, int]]:
    """First and last line (exclusive) of pieces with about `size` tokens; a line is never cut."""
    first, lines = 0, len(starts) - 1
    while first < lines:
        last = max(int(np.searchsorted(starts, starts[first] + size, side="right")) - 1, first + 1)
        yield first, last
        first = last


def _pieces(tokens: Tokens, starts: Ints | None, order: int, bos_id: int) -> Iterator[tuple[Ints, int]]:
    """Ids with begin tokens, and at how many of them rows begin; order - 1 more follow to fill the last rows."""
    close = np.full(order - 1, bos_id)  # a begin token ends every row that reaches it
    if starts is not None:
        for first, last in line_pieces(starts, PIECE):
            low, high = int(starts[first]), int(starts[last])
            ids = with_begins(tokens[low:high], starts[first:last] - low, bos_id)
            yield np.concatenate([ids, close]), len(ids)
        return
    for low in range(0, len(tokens), PIECE):
        high = min(low + PIECE, len(tokens))
        ids = tokens[low : high + order - 1].astype(np.int64)
        if low == 0:
            ids = with_begins(ids, None, bos_id)
        here = high - low + (low == 0)
        yield np.concatenate([ids, close]), here


def _cut_rows(ids: Ints, here: int, order: int, bos_id: int) -> list[Ints]:
    """The row of `order` ids at each of the first `here` positions, by columns, cut off before the next begin token."""
    columns = [ids[:here] + 1]
    open_ = np.ones(here, bool)
    for k in range(1, order):
        column = ids[k : k + here] + 1
        open_ &= column != bos_id + 1
        column *= open_
        columns.append(column)
    return columns


def _distinct(columns: Sequence[Tokens], occurs: Ints | None, size: int) -> Rows:
    """The different rows, sorted; what `occurs` says of equal ones is added up, each row being one where it is None."""
    bits = size.bit_length()
    packed = list[tuple[int, Ints]]()  # for each sort, how many columns it added and its different keys
    done, rank_bits, key = 0, 0, np.zeros(len(columns[0]), np.int64)
    while done < len(columns):
        # as many columns as fit beside the rank of what was sorted before
        fit = min((63 - rank_bits) // bits, len(columns) - done)
        for column in columns[done : done + fit]:
            key <<= bits
            key |= column
        done += fit
        last = done == len(columns)
        # the last sort need not say where a key came from, unless it stands for several: that saves most of its time
        order = None if last and occurs is None else np.argsort(key)
        ranked = np.sort(key) if order is None else key[order]
        new = np.ones(len(ranked), bool)
        np.not_equal(ranked[1:], ranked[:-1], out=new[1:])
        packed.append((fit, ranked[new]))
        if order is not None and not last:
            key[order] = np.cumsum(new) - 1
            rank_bits = len(ranked).bit_length()
    first = np.flatnonzero(new)
    total = np.diff(first, append=len(new)) if order is None or occurs is None else np.add.reduceat(occurs[order], first)
    return Rows(_unpack(packed, bits), total)


def _unpack(packed: list[tuple[int, Ints]], bits: int) -> list[NDArray[np.int32]]:
    """The columns of the different rows."""
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
    overwrite: list[Rows] = []
    for ids, here in _pieces(tokens, starts, order, bos_id):
        if ids.min() < 0 or ids.max() >= size:
            bad = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise DataError("n-gram counts", f"token id {bad}, but the vocabulary has {size} tokens", "use its own tokenizer")
        overwrite.append(_distinct(_cut_rows(ids, here, order, bos_id), None, size))
        # merge when the new weighs as much as the old: every row is sorted a logarithmic number of times
        if merged and sum(len(part.counts) for part in overwrite) < len(merged[0].counts):
            continue
        merged, overwrite = [_join(merged + overwrite, size)], []
    return _join(merged + overwrite, size)


def _first_level(rows: Rows, size: int, bos_id: int) -> Level:
    count = np.bincount(rows.columns[0] - 1, weights=rows.counts, minlength=size).astype(np.int64)
    count[bos_id] = 0
    word = np.arange(size)
    return Level(np.zeros(size, np.int64), np.zeros(size, np.int64), word, count, word == bos_id)


def count_ngrams(tokens: Tokens, starts: Ints | None, *, order: int, size: int, bos_id: int) -> list[Level]:
    """One level for each length from 1 to `order`, of a text in lines (`starts`) or running on (None).

    Each line, or the whole running text, is counted with the begin token before it."""
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
        suffix = halve(keys, below.suffix[context] * size + word) if len(levels) > 1 else word
        levels.append(Level(context, suffix, word, heap[ends] - heap[runs], below.leads[context]))
        keys = context * size + word
        started = np.zeros(len(column), np.int64)
        started[runs] = 1
        node = np.cumsum(started) - 1
    return levels
