"""n-gram models: estimated by counting, read as steps, scored in whole texts.

An n-gram is a row of its level; level k holds those of k words. A row's key is (row of its context, one level down) * V
+ last word; keys are sorted, so the n-grams that continue a context lie together. On level 1 the row is the word.

The vocabulary is the tokenizer's, and <s> is the one token that is never predicted. A token that never occurs in the
training text is what <unk> is to KenLM: all such tokens, <unk> among them, share the uniform part of the single words
alike, so where every token but <unk> occurs the numbers are KenLM's. In a closed vocabulary they get nothing. An <unk>
that stands in the training text is counted like any other token.

Shapes: B rows, T positions, V words, N order.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from weft.config import Choice, Config
from weft.data.batch import as_tensor
from weft.errors import ModelError
from weft.models import ngram_counts as counts
from weft.models.ngram_counts import Level, Tokens, count_ngrams, line_pieces, with_begins
from weft.models.ngram_index import Ints, NgramIndex
from weft.models.smoothing import SMOOTHINGS, NgramCounts, Smoothed

if TYPE_CHECKING:
    from torch import Tensor

SHAPE = "shape"  # the array that holds order, size of the vocabulary and begin token
MAX_ORDER = 64  # words in an n-gram
PIECE = 1 << 17  # tokens scored at once: what is in use fits into a processor's cache
BYTES_PER_NGRAM = 70  # bytes that an n-gram takes while a model is estimated
SAMPLE = 1 << 20  # tokens that are counted to foresee how many different n-grams a text has
BLOCK = 1 << 10  # tokens of running text that stand together there

Floats = NDArray[np.float32]


FROM_FILE = "file"  # in place of a smoothing: the numbers of an imported model, whichever method made them


class NgramConfig(Config):
    """How an n-gram model is estimated."""

    order: int = Field(5, ge=1, le=MAX_ORDER)
    smoothing: Annotated[str, Choice((*SMOOTHINGS, FROM_FILE))] = "kneser-ney"
    delta: float | None = Field(None, gt=0.0)  # add-delta only
    # n-grams of each length that occur no more often than this are dropped; the last number holds for longer ones
    prune: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    closed_vocab: bool = False  # tokens that never occur in the training text can't be predicted

    @model_validator(mode="after")
    def check_options(self) -> Self:
        if self.delta is not None and self.smoothing != "add-delta":
            raise ValueError(f"delta={self.delta:g}, but smoothing={self.smoothing!r} has none")
        if len(self.prune) > self.order:
            raise ValueError(f"prune has {len(self.prune)} numbers for order={self.order}; give at most one a length")
        if self.prune[:1] not in ([], [0]):
            raise ValueError(f"prune={self.prune} must begin with 0: it is the tokenizer that drops words")
        if any(second < first for first, second in pairwise(self.prune)):
            raise ValueError(f"prune={self.prune} must not decrease: a part of an n-gram that is kept must be kept too")
        return self

    def with_defaults(self) -> Self:
        """The same table with every option that applies written out."""
        if self.smoothing != "add-delta" or self.delta is not None:
            return self
        return self.model_copy(update={"delta": 1.0})


class NgramLevel(NamedTuple):
    """The n-grams of one length, in natural logarithms."""

    keys: Ints  # (M,) ascending; empty on level 1
    log_prob: Floats  # (M,); -inf for what can't be
    back_off: Floats  # (M,); empty on the highest level


class NgramModel:
    """log P(word | the N - 1 words before). Its state is those words, (B, N - 1), -1 where nothing stands.

    The arrays stay in main memory, mapped where they come from a file; tokens and results may be on any device."""

    max_positions: int | None = None

    def __init__(self, levels: list[NgramLevel], *, vocabulary: str, bos_id: int, notes: tuple[str, ...] = ()) -> None:
        self.levels, self.vocabulary, self.bos_id, self.notes = levels, vocabulary, bos_id, notes
        self.order, self.size = len(levels), len(levels[0].log_prob)
        self._lookups = [NgramIndex(level.keys) for level in levels]

    @property
    def counts(self) -> list[int]:
        """How many n-grams it holds of each length."""
        return [len(level.log_prob) for level in self.levels]

    @property
    def num_parameters(self) -> int:
        """How many n-grams it holds, of all lengths together."""
        return sum(self.counts)

    def parts(self) -> dict[str, int]:
        """How many of each length."""
        return {f"{order}-grams": count for order, count in enumerate(self.counts, 1)}

    def bytes_per_row(self, tokens: int, state: Any = None) -> int:
        """The most bytes that one row takes while so many tokens are read: its state, and log-probabilities twice."""
        return 8 * (self.order - 1) + 2 * 4 * self.size

    def start(self, prompt: Tensor, token_mask: Tensor | None = None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Read `prompt` (B, T) on top of `state`; log-probabilities of the next word (B, V) and the state."""
        import torch

        past = self._past(prompt, state)
        # the last words of each row: padding is on the right, so where they stand depends on its length
        length = prompt.new_full((len(prompt),), prompt.size(1)) if token_mask is None else token_mask.sum(1)
        new = past.gather(1, length[:, None] + torch.arange(self.order - 1, device=prompt.device))
        return self._rows(new), new

    def step(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Read one more word a row (B,); the same pair."""
        import torch

        new = torch.cat([state, token[:, None]], dim=1)[:, 1:]
        return self._rows(new), new

    def score(self, tokens: Tensor, token_mask: Tensor | None = None, state: Tensor | None = None) -> Tensor:
        """Log-probability of every word after the first, (B, T - 1); 0 where keep is False."""
        past = self._past(tokens, state)
        scores = as_tensor(self._score_rows(past.cpu().numpy())).to(tokens.device)
        return scores if token_mask is None else scores.masked_fill(~token_mask[:, 1:], 0.0)

    def loss(self, tokens: Tensor, targets: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Nats of every target (B, T), each after the tokens up to its own place, and the state after the last token."""
        import torch

        # the targets are the tokens one place on, but for the last
        nats = -self.score(torch.cat([tokens, targets[:, -1:]], dim=1), None, state)
        past = self._past(tokens, state)
        return nats, past[:, past.size(1) - self.order + 1 :]

    def read(self, tokens: Ints, state: Ints | None = None) -> tuple[Floats, Ints]:
        """The same of arrays: nats of every token of rows (B, T + 1) after the first, (B, T), and the state after the last but
        one, as `loss` gives it."""
        before = np.full((len(tokens), self.order - 1), -1) if state is None else state
        past = np.concatenate([before, tokens], axis=1)
        return -self._score_rows(past), past[:, past.shape[1] - self.order : -1]

    def score_corpus(self, tokens: Tokens, starts: Ints | None) -> Floats:
        """Log-probability of each id of a text: in lines (`starts`), each after <s>, or running on after one (None)."""
        found = np.empty(len(tokens), np.float32)
        if starts is None:
            for low in range(0, len(tokens), PIECE):
                past = max(low - self.order + 1, 0)
                ids = np.asarray(tokens[past : low + PIECE], np.int64)
                ids = with_begins(ids, None, self.bos_id) if past == 0 else ids
                here = found[low : low + PIECE]
                here[:] = self._score(ids)[-len(here) :]
            return found
        for first, last in line_pieces(starts, PIECE):
            low, high = int(starts[first]), int(starts[last])
            at = starts[first:last] - low
            scores = self._score(with_begins(tokens[low:high], at, self.bos_id))
            found[low:high] = np.delete(scores, at + np.arange(last - first))
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as named arrays, for a file; `from_arrays` reads them."""
        named: dict[str, NDArray[Any]] = {SHAPE: np.array([self.order, self.size, self.bos_id])}
        for k, level in enumerate(self.levels, start=1):
            named |= {f"{k}.{name}": part for name, part in level._asdict().items() if len(part)}
        return named

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], *, vocabulary: str) -> NgramModel:
        """The model that `arrays` gave, on these very arrays: what is mapped from a file stays so."""
        if SHAPE not in arrays or arrays[SHAPE].shape != (3,):
            raise ModelError("n-gram model", f"no array {SHAPE!r} of 3 numbers", "the file is damaged or of another model")
        order, size, begin = (int(number) for number in arrays[SHAPE])
        grams = [_level(arrays, k, order) for k in range(1, min(order, MAX_ORDER) + 1)]
        if not 0 < len(grams) == order or len(grams[0].log_prob) != size or not 0 <= begin < size:
            raise ModelError(
                "n-gram model", f"order={order!r}, size={size!r}, begin={begin!r} do not fit its arrays", "the file is damaged"
            )
        return cls(grams, vocabulary=vocabulary, bos_id=begin)

    def _past(self, tokens: Tensor, state: Tensor | None) -> Tensor:
        """`tokens` after what was read before, (B, N - 1 + T)."""
        import torch

        tokens = tokens.long()  # keys of n-grams pass what fewer bits can hold
        if state is None:
            state = tokens.new_full((tokens.size(0), self.order - 1), -1)
        return torch.cat([state, tokens], dim=1)

    def _check(self, tokens: Ints) -> None:
        if len(tokens) and (limit := int(tokens.max())) >= self.size:
            raise ModelError("n-gram model", f"token id {limit}, but it knows {self.size} tokens", "use its own tokenizer")

    def _next(self, k: int, node: Ints, tokens: Ints) -> tuple[Ints | slice, Ints, Ints]:
        """Where an n-gram of k words is followed by a token (n,), the n-gram's row, and the row of both, or -1 (n,)."""
        at: Ints | slice = slice(1, None)
        context = node[:-1]
        if len(context) and context.min() < 0:
            known = np.flatnonzero(context >= 0)
            context, at = context.take(known), known + 1
        key = context * self.size
        key += tokens[at]
        return at, context, self._lookups[k].find(key)

    def _score(self, tokens: Ints) -> Floats:
        """Log-probability of every word (n,), whatever stands before it.

        Lines and batches may follow each other: no n-gram has <s> inside, and none is longer than a row's past."""
        self._check(tokens)
        found = self.levels[0].log_prob.take(tokens, mode="clip")
        node = tokens
        for k in range(1, self.order):
            at, context, row = self._next(k, node, tokens)
            here = self.levels[k - 1].back_off.take(context)
            here += found[at]
            if len(self.levels[k].keys):
                np.copyto(here, self.levels[k].log_prob.take(row, mode="clip"), where=row >= 0)
            found[at] = here
            node = np.full(len(tokens), -1)
            node[at] = row
        return found

    def _score_rows(self, past: Ints) -> Floats:
        """Log-probability of every word of `past` (B, N - 1 + T) after the first of its T, (B, T - 1)."""
        return self._score(past.reshape(-1)).reshape(past.shape)[:, self.order :]

    def _rows(self, contexts: Tensor) -> Tensor:
        """Log-probabilities of the next word (B, V) after `contexts` (B, N - 1)."""
        batch, width = contexts.shape
        found = np.tile(self.levels[0].log_prob, (batch, 1))
        tokens = contexts.reshape(-1).cpu().numpy()
        self._check(tokens)
        node = tokens
        for k in range(1, self.order):
            row = node[width - 1 :: width]  # of the n-gram of k words that ends where the next word begins
            known = np.flatnonzero(row >= 0)
            found[known] += self.levels[k - 1].back_off[row[known], None]
            _write_children(found, self.levels[k].keys, self.levels[k].log_prob, known, row[known])
            at, _, rows = self._next(k, node, tokens)
            node = np.full(len(tokens), -1)
            node[at] = rows
        return as_tensor(found).to(contexts.device)


def _write_children(found: Floats, keys: Ints, log_prob: Floats, rows: Ints, nodes: Ints) -> None:
    """Write over rows of `found` (B, V) what the n-grams that continue each one's context say."""
    size = found.shape[1]
    low, high = np.searchsorted(keys, np.stack([nodes, nodes + 1]) * size)
    many = high - low
    # place in the level: where the run of a context begins, and one further for each of its words
    at = np.arange(many.sum()) + np.repeat(low - np.cumsum(many) + many, many)
    found[np.repeat(rows, many), keys[at] - np.repeat(nodes * size, many)] = log_prob[at]


def _level(arrays: Mapping[str, NDArray[Any]], k: int, order: int) -> NgramLevel:
    parts = list[NDArray[Any]]()
    rows = arrays.get(f"{k}.log_prob", np.zeros(0)).size
    wanted = {"keys": (np.int64, k > 1), "log_prob": (np.float32, True), "back_off": (np.float32, k < order)}
    for name, (kind, needed) in wanted.items():
        part = arrays.get(f"{k}.{name}", np.zeros(0, kind))
        if part.dtype != kind or part.shape != (needed * rows,):
            raise ModelError("n-gram model", f"array '{k}.{name}' is missing or has the wrong shape", "the file is damaged")
        parts.append(part)
    return NgramLevel(*parts)


def _pack(levels: list[Level], kept: list[NDArray[np.bool_]], smoothed: Smoothed) -> list[NgramLevel]:
    """What is kept, renumbered, in logarithms."""
    size, last = len(levels[0].word), len(levels) - 1
    renumbered = np.arange(size)
    grams = list[NgramLevel]()
    with np.errstate(divide="ignore"):
        for k, level in enumerate(levels):
            mine = kept[k]
            keys = renumbered[level.context[mine]] * size + level.word[mine] if k else np.zeros(0, np.int64)
            log_prob = np.minimum(np.log(smoothed.probability[k][mine]), 0.0)
            back_off = np.log(smoothed.weight[k][mine]) if k < last else np.zeros(0)
            grams.append(NgramLevel(keys, log_prob.astype(np.float32), back_off.astype(np.float32)))
            renumbered = np.cumsum(mine) - 1
    return grams


def _sample(tokens: Tokens, starts: Ints | None, count: int) -> tuple[Tokens, Ints | None]:
    """About `count` tokens from all over a text, which may be sorted: lines of it, or blocks of running text."""
    edges = np.append(np.arange(0, len(tokens), BLOCK), len(tokens)) if starts is None else np.asarray(starts)
    chosen = np.arange(0, len(edges) - 1, -(-len(tokens) // count))
    lengths = edges[chosen + 1] - edges[chosen]
    ends = np.cumsum(lengths)
    if starts is not None and not count < 2 * ends[-1] < 4 * count:  # lines as long as a book among others
        return _sample(tokens, None, count)
    at = np.arange(ends[-1]) + np.repeat(edges[chosen] - ends + lengths, lengths)
    return tokens[at], None if starts is None else np.append(0, ends)


def _estimate_ngrams(tokens: Tokens, starts: Ints | None, *, order: int, size: int, sample: int) -> int:
    """About how many different n-grams of 2 to `order` words a text has.

    Their number grows with a power of the length (Heaps' law), which is read off `sample` tokens and half as many.
    """
    found, lengths = [], []
    for count in (sample // 2, sample):
        part, at = _sample(tokens, starts, count)
        levels = count_ngrams(part, at, order=order, size=size, bos_id=1)
        found.append(np.array([len(level.word) for level in levels[1:]], float))
        lengths.append(len(part))
    power = np.clip(np.log(found[1] / np.maximum(found[0], 1)) / np.log(lengths[1] / lengths[0]), 0, 1)
    return int((found[1] * (len(tokens) / lengths[1]) ** power).sum())


def estimate_memory(tokens: Tokens, starts: Ints | None, *, order: int, size: int, room: int) -> int:
    """About how many bytes `estimate` will take: what it takes at most, unless that is more than `room`; then a part of the
    text is counted to see how many n-grams come again."""
    positions = len(tokens) + (1 if starts is None else len(starts) - 1)
    working = min(positions, counts.PIECE) * (8 * order + 40)
    limit = working + BYTES_PER_NGRAM * (size + (order - 1) * positions)
    sample = min(SAMPLE, len(tokens) // 4, room // (4 * BYTES_PER_NGRAM * order))
    if limit <= room or sample < 8 * BLOCK:
        return limit
    return working + BYTES_PER_NGRAM * (size + _estimate_ngrams(tokens, starts, order=order, size=size, sample=sample))


def fit(
    tokens: Tokens,
    starts: Ints | None,
    config: NgramConfig,
    *,
    size: int,
    vocabulary: str,
    bos_id: int = 1,
) -> NgramModel:
    """The model of a text of ids below `size`, in lines with their end tokens (`starts`) or running on (None)."""
    config = config.with_defaults()
    levels = count_ngrams(tokens, starts, order=config.order, size=size, bos_id=bos_id)
    minimum = [*config.prune, *[config.prune[-1] if config.prune else 0] * (config.order - len(config.prune))]
    kept = [level.counts > few for level, few in zip(levels, minimum, strict=True)]
    kept[0] = np.ones(size, bool)
    can_be = levels[0].counts > 0 if config.closed_vocab else np.arange(size) != bos_id
    smoothed = SMOOTHINGS[config.smoothing](NgramCounts(levels, kept, can_be, config.delta or 0.0))
    grams = _pack(levels, kept, smoothed)
    return NgramModel(grams, vocabulary=vocabulary, bos_id=bos_id, notes=tuple(smoothed.notes))
