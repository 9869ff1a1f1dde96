"""Batches of conversations: one per row, or several packed into a row that do not see each other.

Shapes: N examples, B rows, T positions; a row has T + 1 tokens, of which the first T are inputs and the last T are targets.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.data.batch import FULL, as_tensor, crop_batch
from weft.data.batching import preview
from weft.data.bucketing import Examples
from weft.data.corpus import Corpus
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

POOL_ROWS = 1000  # examples are packed in pools of about this many rows


class ResponseBatch(NamedTuple):
    tokens: Tensor  # int64 (B, T + 1)
    is_target: Tensor  # bool (B, T + 1): tokens that have a loss
    texts: Tensor | None = None  # int64 (B, T + 1): the number of the example of each token, from 1; None: one per row


def make_row(prompts: Sequence[np.ndarray], responses: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of an example, and which belong to responses: <s>, then each prompt and its response, which ends with </s>."""
    parts, is_response = [np.array([Tokenizer.bos_id])], [np.zeros(1, bool)]
    for prompt, response in zip(prompts, responses, strict=True):
        parts += [prompt, response]
        is_response += [np.zeros(len(prompt), bool), np.ones(len(response), bool)]
    return np.concatenate(parts).astype(np.int64), np.concatenate(is_response)


def pad_rows(rows: Sequence[np.ndarray], width: int = 0) -> np.ndarray:
    """(B, T): rows padded on the right with 0, at least to `width`."""
    width = max(width, max(map(len, rows)))
    return np.stack([np.pad(row, (0, width - len(row))) for row in rows])


@dataclass(frozen=True)
class Dialogues(Examples[ResponseBatch]):
    """Conversations that are not too long."""

    prompts: Corpus  # of all turns
    responses: Corpus
    edges: np.ndarray  # int64 (all examples + 1,): the first turn of each
    members: np.ndarray  # int64 (N,): the examples that are not too long
    sizes: np.ndarray  # int64 (N,): tokens of each
    response_only: bool = True  # only responses have a loss

    def lengths(self) -> np.ndarray:
        return self.sizes

    def row(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of an example, and which have a loss."""
        turns = range(*self.edges[self.members[index] :][:2].tolist())
        starts, response_starts = self.prompts.line_starts(), self.responses.line_starts()
        tokens, is_response = make_row(
            [self.prompts.tokens[starts[turn] : starts[turn + 1] - 1] for turn in turns],
            [self.responses.tokens[response_starts[turn] : response_starts[turn + 1]] for turn in turns],
        )
        return tokens, is_response if self.response_only else np.arange(len(tokens)) > 0

    def batch(self, members: np.ndarray) -> ResponseBatch:
        rows = [self.row(index) for index in members.tolist()]
        tokens, is_target = (pad_rows([row[part] for row in rows]) for part in (0, 1))
        return ResponseBatch(as_tensor(tokens), as_tensor(is_target))

    def packed_batch(self, rows: Sequence[Sequence[int]], width: int) -> ResponseBatch:
        """A batch with several examples in each row of `width` tokens. Padding is text 0, without a loss."""
        tokens, is_target, texts = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
        for row in rows:
            parts = [self.row(index) for index in row]
            tokens.append(np.concatenate([part[0] for part in parts]))
            is_target.append(np.concatenate([part[1] for part in parts]))
            sizes = [len(part[0]) for part in parts]
            numbers = np.repeat([*range(1, len(row) + 1), 0], [*sizes, width - sum(sizes)])
            texts.append(numbers)
        return ResponseBatch(
            as_tensor(pad_rows(tokens, width)), as_tensor(pad_rows(is_target, width)), as_tensor(np.stack(texts))
        )

    def loss_count(self, members: np.ndarray) -> int:
        return int(sum(self.row(index)[1].sum() for index in members.tolist()))

    def describe(self, members: np.ndarray) -> str:
        return preview(f"{self.prompts.name}, examples", np.sort(self.members[members]) + 1)


def pack(lengths: np.ndarray, order: np.ndarray, width: int) -> list[list[int]]:
    """Rows of examples with at most `width` tokens: examples of `order` (M,) from long to short, each into the row that it
    fills best."""
    rows, free = list[list[int]](), list[tuple[int, int]]()  # tokens that are left in each open row, ascending, and its index
    for index in order[np.argsort(-lengths[order], kind="stable")].tolist():
        size = int(lengths[index])
        place = bisect_left(free, (size, -1))
        if place == len(free):
            rows.append([index])
            left, row = width - size, len(rows) - 1
        else:
            left, row = free.pop(place)
            rows[row].append(index)
            left -= size
        insort(free, (left, row))
    return rows


class PackedSampler:
    """A BatchSampler of packed rows of `width` tokens. Each epoch packs the examples anew, in shuffled pools."""

    def __init__(self, data: Dialogues, *, width: int, batch_tokens: int, seed: int) -> None:
        self.data, self.width, self.seed = data, width, seed
        self.rows = max(1, batch_tokens // width)
        self._plan: tuple[int, list[list[int]]] | None = None

    def _rows_of(self, epoch: int) -> list[list[int]]:
        """The examples of each row of an epoch; cached for one epoch."""
        if self._plan is None or self._plan[0] != epoch:
            rng, lengths = np.random.default_rng(np.random.SeedSequence((self.seed, epoch))), self.data.lengths()
            order, rows = rng.permutation(len(lengths)), list[list[int]]()
            pool = max(1, int(POOL_ROWS * self.width / lengths.mean()))
            for start in range(0, len(order), pool):
                rows += pack(lengths, order[start : start + pool], self.width)
            self._plan = epoch, [rows[index] for index in rng.permutation(len(rows)).tolist()]
        return self._plan[1]

    def batches(self, epoch: int) -> int:
        return -(-len(self._rows_of(epoch)) // self.rows)

    def _members(self, epoch: int, index: int) -> list[list[int]]:
        return self._rows_of(epoch)[index * self.rows : (index + 1) * self.rows]

    def batch(self, epoch: int, index: int) -> ResponseBatch:
        return self.data.packed_batch(self._members(epoch, index), self.width)

    def resets_state(self, index: int) -> bool:
        return True

    def largest_batch(self, fraction: Fraction = FULL) -> ResponseBatch:
        return crop_batch(self.batch(0, 0), fraction)

    def describe(self, epoch: int, index: int) -> str:
        return self.data.describe(np.concatenate(self._members(epoch, index)))
