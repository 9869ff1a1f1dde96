"""N-gram language models in backoff form.

    log P(w | h) = log_prob(hw)                    if hw is in the model
                   back_off(h) + log P(w | h')     otherwise; h' is h without its first word

An n-gram is a row of its level; level k contains the n-grams of k words. The key of a row is (row of its context, one level
down) * V + last word. Keys are sorted, so that all continuations of a context are adjacent. On level 1, the row is the word.

The vocabulary is that of the tokenizer; <s> is the only token that is never predicted. A token that does not occur in the
training text is treated like <unk> in KenLM: all such tokens, <unk> included, share the uniform part of the unigrams
equally. If every token except <unk> occurs, the probabilities are those of KenLM. With a closed vocabulary, such tokens
have probability 0. An <unk> in the training text is counted like any other token.

Shapes: B batch size, T sequence length, V vocabulary size, N order, M n-grams of a level.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from weft.config import Choice, Config, invalid
from weft.data.batch import as_tensor
from weft.errors import ModelError
from weft.models import ngram_counts as counts
from weft.models.ngram_counts import Level, Tokens, count_ngrams, line_chunks, with_bos
from weft.models.ngram_index import Ints, NgramIndex
from weft.models.smoothing import SMOOTHINGS, NgramCounts, SmoothedProbs

if TYPE_CHECKING:
    from torch import Tensor

SHAPE = "shape"  # name of the array with order, vocabulary size and BOS token ID
MAX_ORDER = 64  # words in an n-gram
CHUNK_TOKENS = 1 << 17  # tokens scored at once: the working memory fits into the CPU cache
BYTES_PER_NGRAM = 70  # peak memory while a model is fitted
SAMPLE_TOKENS = 1 << 20  # maximum tokens counted to estimate the number of distinct n-grams of a text
BLOCK_TOKENS = 1 << 10  # consecutive tokens of running text in that sample

Floats = NDArray[np.float32]

FROM_FILE = "file"  # instead of a smoothing method: the probabilities of an imported model


class NgramConfig(Config):
    """An n-gram model."""

    order: int = Field(5, ge=1, le=MAX_ORDER)
    """Length of the longest n-grams."""
    smoothing: Annotated[str, Choice(SMOOTHINGS, "smoothing", unlisted=(FROM_FILE,))] = "kneser-ney"
    """Smoothing method."""
    delta: float | None = Field(None, gt=0.0)
    """add-delta only: the count to add."""
    # the last number also applies to all longer n-grams
    prune: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    """Drop n-grams of each length with at most this count, e.g. [0, 0, 1]."""
    closed_vocab: bool = False
    """Give tokens that are not in the training data zero probability."""

    @model_validator(mode="after")
    def check_ngram(self) -> Self:
        if self.delta is not None and self.smoothing != "add-delta":
            raise invalid("delta", f"not used with smoothing {self.smoothing!r}", "remove it")
        if len(self.prune) > self.order:
            raise invalid("prune", f"{len(self.prune)} numbers for order {self.order}", "set at most one per length")
        if self.prune[:1] not in ([], [0]):
            raise invalid("prune", f"must start with 0, got {self.prune}", "reduce the vocabulary with tokenizer.vocab_size")
        if any(second < first for first, second in pairwise(self.prune)):
            # if an n-gram is not pruned, its prefixes and suffixes must not be pruned either
            raise invalid("prune", f"must not decrease, got {self.prune}")
        return self

    def with_defaults(self) -> Self:
        """The same table with a value for every option that applies."""
        if self.smoothing != "add-delta" or self.delta is not None:
            return self
        return self.model_copy(update={"delta": 1.0})


class NgramLevel(NamedTuple):
    """The n-grams of one length, with natural logarithms."""

    keys: Ints  # (M,) ascending; empty on level 1
    log_prob: Floats  # (M,); -inf for probability 0
    back_off: Floats  # (M,); empty on the highest level


class NgramModel:
    """log P(w_t | w_{t-N+1}, ..., w_{t-1}). State: the last N - 1 tokens, (B, N - 1), -1 before the beginning.

    The arrays stay in main memory, memory-mapped if they come from a file; tokens and results may be on any device.
    """

    max_positions: int | None = None

    def __init__(self, levels: list[NgramLevel], *, vocabulary: str, bos_id: int, notes: tuple[str, ...] = ()) -> None:
        self.levels, self.vocabulary, self.bos_id, self.notes = levels, vocabulary, bos_id, notes
        self.order, self.vocab_size = len(levels), len(levels[0].log_prob)
        sizes = [1, *(len(level.log_prob) for level in levels)]
        self._indexes = [NgramIndex(level.keys, size * self.vocab_size) for level, size in zip(levels, sizes[:-1], strict=True)]

    @property
    def counts(self) -> list[int]:
        """The number of n-grams of each length."""
        return [len(level.log_prob) for level in self.levels]

    @property
    def num_parameters(self) -> int:
        """The total number of n-grams."""
        return sum(self.counts)

    def parts(self) -> dict[str, int]:
        """The number of n-grams by length."""
        return {f"{order}-grams": count for order, count in enumerate(self.counts, 1)}

    def bytes_per_row(self, tokens: int, state: Any = None) -> int:
        """Peak bytes per row while reading this many tokens: its state, and two copies of the log-probabilities."""
        return 8 * (self.order - 1) + 2 * 4 * self.vocab_size

    def start(self, prompt: Tensor, token_mask: Tensor | None = None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Read `prompt` (B, T) after `state`. Return the log-probabilities of the next token (B, V) and the new state."""
        import torch

        past = self._past(prompt, state)
        # the last tokens of each row: with right padding, their position depends on its length
        length = prompt.new_full((len(prompt),), prompt.size(1)) if token_mask is None else token_mask.sum(1)
        new_state = past.gather(1, length[:, None] + torch.arange(self.order - 1, device=prompt.device))
        return self._next_log_probs(new_state), new_state

    def step(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Read one more token per row, (B,). Return the log-probabilities of the next token (B, V) and the new state."""
        import torch

        new_state = torch.cat([state, token[:, None]], dim=1)[:, 1:]
        return self._next_log_probs(new_state), new_state

    def score(self, tokens: Tensor, token_mask: Tensor | None = None, state: Tensor | None = None) -> Tensor:
        """Log-probability of every token after the first, (B, T - 1); 0 on padding."""
        past = self._past(tokens, state)
        scores = as_tensor(self._score_rows(past.cpu().numpy())).to(tokens.device)
        return scores if token_mask is None else scores.masked_fill(~token_mask[:, 1:], 0.0)

    def loss(self, tokens: Tensor, targets: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Cross-entropy of each target in nats, (B, T), after the tokens up to its position, and the state after the last
        one."""
        import torch

        # targets are the tokens shifted by one, except for the last
        loss = -self.score(torch.cat([tokens, targets[:, -1:]], dim=1), None, state)
        past = self._past(tokens, state)
        return loss, past[:, past.size(1) - self.order + 1 :]

    def loss_numpy(self, tokens: Ints, state: Ints | None = None) -> tuple[Floats, Ints]:
        """`loss` for NumPy arrays, of tokens (B, T + 1): the cross-entropy in nats of each token after the first, (B, T), and
        the state before the last token."""
        before = np.full((len(tokens), self.order - 1), -1) if state is None else state
        past = np.concatenate([before, tokens], axis=1)
        return -self._score_rows(past), past[:, past.shape[1] - self.order : -1]

    def score_corpus(self, tokens: Tokens, starts: Ints | None) -> Floats:
        """Log-probability of each token of a text: of lines (`starts`), each after <s>, or of running text (None)."""
        log_probs = np.empty(len(tokens), np.float32)
        if starts is None:
            for low in range(0, len(tokens), CHUNK_TOKENS):
                past = max(low - self.order + 1, 0)
                ids = np.asarray(tokens[past : low + CHUNK_TOKENS], np.int64)
                ids = with_bos(ids, None, self.bos_id) if past == 0 else ids
                chunk = log_probs[low : low + CHUNK_TOKENS]
                chunk[:] = self._score(ids)[-len(chunk) :]
            return log_probs
        for first, last in line_chunks(starts, CHUNK_TOKENS):
            low, high = int(starts[first]), int(starts[last])
            line_starts = starts[first:last] - low
            scores = self._score(with_bos(tokens[low:high], line_starts, self.bos_id))
            log_probs[low:high] = np.delete(scores, line_starts + np.arange(last - first))
        return log_probs

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All parameters as named arrays, for a file."""
        arrays: dict[str, NDArray[Any]] = {SHAPE: np.array([self.order, self.vocab_size, self.bos_id])}
        for k, level in enumerate(self.levels, start=1):
            arrays |= {f"{k}.{name}": part for name, part in level._asdict().items() if len(part)}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], *, vocabulary: str) -> NgramModel:
        """The model of these arrays, without copying them: memory-mapped arrays stay mapped."""
        if SHAPE not in arrays or arrays[SHAPE].shape != (3,):
            raise ModelError("n-gram model", f"no array {SHAPE!r} of 3 numbers; the file is corrupted or of another model")
        order, vocab_size, bos_id = (int(number) for number in arrays[SHAPE])
        levels = [_read_level(arrays, k, order) for k in range(1, min(order, MAX_ORDER) + 1)]
        if not 0 < len(levels) == order or len(levels[0].log_prob) != vocab_size or not 0 <= bos_id < vocab_size:
            raise ModelError(
                "n-gram model",
                f"order {order}, vocab_size {vocab_size} and bos_id {bos_id} do not match its arrays; the file is corrupted",
            )
        return cls(levels, vocabulary=vocabulary, bos_id=bos_id)

    def _past(self, tokens: Tensor, state: Tensor | None) -> Tensor:
        """The tokens of the state followed by `tokens`, (B, N - 1 + T)."""
        import torch

        tokens = tokens.long()  # keys of n-grams need 64 bits
        if state is None:
            state = tokens.new_full((tokens.size(0), self.order - 1), -1)
        return torch.cat([state, tokens], dim=1)

    def _check_ids(self, tokens: Ints) -> None:
        if len(tokens) and (max_id := int(tokens.max())) >= self.vocab_size:
            raise ModelError(
                "n-gram model", f"token ID {max_id} is not in its vocabulary of {self.vocab_size}", "use its own tokenizer"
            )

    def _extend(self, k: int, node: Ints, tokens: Ints) -> tuple[Ints, Ints, Ints]:
        """Extend n-grams of k words by the next token. `node` (n,) is the row of the n-gram that ends at each token, or -1.

        Returns the rows of the n-grams of k + 1 words that end at each token, or -1; and the positions of the tokens whose
        context is in the model, but not with the token, and the rows of these contexts.
        """
        before = np.flatnonzero(node[:-1] >= 0)
        context, positions = node.take(before), before + 1
        key = context * self.vocab_size
        key += tokens.take(positions)
        rows = self._indexes[k].find(key)
        extended = np.full(len(tokens), -1)
        extended[positions] = rows
        missing = np.flatnonzero(rows < 0)
        return extended, positions.take(missing), context.take(missing)

    def _score(self, tokens: Ints) -> Floats:
        """Log-probability of every token (n,) after those before it.

        Lines, or rows with their past, may be concatenated: no n-gram has <s> after its first word, so none crosses lines, and
        the past of a row is as long as the longest context.
        """
        self._check_ids(tokens)
        nodes, back_offs = [tokens], list[tuple[Ints, Floats]]()
        for k in range(1, self.order):
            node, positions, context = self._extend(k, nodes[-1], tokens)
            nodes.append(node)
            back_offs.append((positions, self.levels[k - 1].back_off.take(context)))
        log_probs, longest = self._longest(nodes)
        for k, (positions, back_off) in enumerate(back_offs, 1):
            is_shorter = longest.take(positions) < k + 1
            log_probs[positions[is_shorter]] += back_off[is_shorter]
        return log_probs

    def _longest(self, nodes: list[Ints]) -> tuple[Floats, NDArray[np.int8]]:
        """The log-probability (n,) of the longest n-gram that ends at each token, and its length; `nodes` are the rows of the
        n-grams of each length, or -1."""
        left = np.arange(len(nodes[0]))  # tokens without an n-gram so far
        log_probs, longest = np.empty(len(left), np.float32), np.ones(len(left), np.int8)
        for k in range(self.order, 1, -1):
            rows = nodes[k - 1].take(left)
            found = np.flatnonzero(rows >= 0)
            positions = left.take(found)
            log_probs[positions] = self.levels[k - 1].log_prob.take(rows.take(found))
            longest[positions] = k
            left = left.take(np.flatnonzero(rows < 0))
        log_probs[left] = self.levels[0].log_prob.take(nodes[0].take(left), mode="clip")
        return log_probs, longest

    def _score_rows(self, past: Ints) -> Floats:
        """Log-probability of every token of `past` (B, N - 1 + T) after the first of its T, (B, T - 1)."""
        return self._score(past.reshape(-1)).reshape(past.shape)[:, self.order :]

    def _next_log_probs(self, contexts: Tensor) -> Tensor:
        """Log-probabilities of the next token (B, V) after `contexts` (B, N - 1)."""
        batch_size, length = contexts.shape
        log_probs = np.tile(self.levels[0].log_prob, (batch_size, 1))
        tokens = contexts.reshape(-1).cpu().numpy()
        self._check_ids(tokens)
        node = tokens
        for k in range(1, self.order):
            row = node[length - 1 :: length]  # of the n-gram of k words at the end of each context
            matched = np.flatnonzero(row >= 0)
            log_probs[matched] += self.levels[k - 1].back_off[row[matched], None]
            _write_continuations(log_probs, self.levels[k], matched, row[matched])
            node = self._extend(k, node, tokens)[0]
        return as_tensor(log_probs).to(contexts.device)


def _write_continuations(log_probs: Floats, level: NgramLevel, rows: Ints, nodes: Ints) -> None:
    """Write the n-grams of a level that continue the contexts `nodes` into these rows of `log_probs` (B, V)."""
    keys, vocab_size = level.keys, log_probs.shape[1]
    low, high = np.searchsorted(keys, np.stack([nodes, nodes + 1]) * vocab_size)
    counts = high - low
    # rows of the level: for each context, the range from low to high
    index = np.arange(counts.sum()) + np.repeat(low - np.cumsum(counts) + counts, counts)
    log_probs[np.repeat(rows, counts), keys[index] - np.repeat(nodes * vocab_size, counts)] = level.log_prob[index]


def _read_level(arrays: Mapping[str, NDArray[Any]], k: int, order: int) -> NgramLevel:
    """Level k of a model of this order, from named arrays."""
    parts = list[NDArray[Any]]()
    num_rows = arrays.get(f"{k}.log_prob", np.zeros(0)).size
    expected = {"keys": (np.int64, k > 1), "log_prob": (np.float32, True), "back_off": (np.float32, k < order)}
    for name, (dtype, required) in expected.items():
        part = arrays.get(f"{k}.{name}", np.zeros(0, dtype))
        if part.dtype != dtype or part.shape != (required * num_rows,):
            raise ModelError("n-gram model", f"array '{k}.{name}' is missing or has the wrong shape; the file is corrupted")
        parts.append(part)
    return NgramLevel(*parts)


def _pack(levels: list[Level], keep: list[NDArray[np.bool_]], smoothed: SmoothedProbs) -> list[NgramLevel]:
    """The levels of the model: logarithms of the n-grams that are not pruned, and keys with their new row numbers."""
    vocab_size, last = len(levels[0].word), len(levels) - 1
    new_rows = np.arange(vocab_size)
    packed = list[NgramLevel]()
    with np.errstate(divide="ignore"):
        for k, level in enumerate(levels):
            mask = keep[k]
            keys = new_rows[level.context[mask]] * vocab_size + level.word[mask] if k else np.zeros(0, np.int64)
            log_prob = np.minimum(np.log(smoothed.probability[k][mask]), 0.0)
            back_off = np.log(smoothed.backoff[k][mask]) if k < last else np.zeros(0)
            packed.append(NgramLevel(keys, log_prob.astype(np.float32), back_off.astype(np.float32)))
            new_rows = np.cumsum(mask) - 1
    return packed


def _sample(tokens: Tokens, starts: Ints | None, num_tokens: int) -> tuple[Tokens, Ints | None]:
    """About `num_tokens` tokens, as lines or blocks of running text, evenly from the whole text, which may be sorted."""
    edges = np.append(np.arange(0, len(tokens), BLOCK_TOKENS), len(tokens)) if starts is None else np.asarray(starts)
    blocks = np.arange(0, len(edges) - 1, -(-len(tokens) // num_tokens))
    lengths = edges[blocks + 1] - edges[blocks]
    ends = np.cumsum(lengths)
    if starts is not None and not num_tokens < 2 * ends[-1] < 4 * num_tokens:  # some lines are as long as a book
        return _sample(tokens, None, num_tokens)
    index = np.arange(ends[-1]) + np.repeat(edges[blocks] - ends + lengths, lengths)
    return tokens[index], None if starts is None else np.append(0, ends)


def _estimate_ngrams(tokens: Tokens, starts: Ints | None, *, order: int, vocab_size: int, sample_tokens: int) -> int:
    """Estimate the number of distinct n-grams of 2 to `order` words in a text.

    It grows with a power of the length (Heaps' law); the exponent is estimated from `sample_tokens` tokens and half as many.
    """
    num_ngrams, lengths = [], []
    for num_tokens in (sample_tokens // 2, sample_tokens):
        sample, sample_starts = _sample(tokens, starts, num_tokens)
        levels = count_ngrams(sample, sample_starts, order=order, vocab_size=vocab_size, bos_id=1)
        num_ngrams.append(np.array([len(level.word) for level in levels[1:]], float))
        lengths.append(len(sample))
    exponent = np.clip(np.log(num_ngrams[1] / np.maximum(num_ngrams[0], 1)) / np.log(lengths[1] / lengths[0]), 0, 1)
    return int((num_ngrams[1] * (len(tokens) / lengths[1]) ** exponent).sum())


def estimate_memory(tokens: Tokens, starts: Ints | None, *, order: int, vocab_size: int, available_bytes: int) -> int:
    """Estimate the bytes that `fit` needs: an upper bound, or if that exceeds `available_bytes`, an estimate from a sample of
    the text."""
    positions = len(tokens) + (1 if starts is None else len(starts) - 1)
    working = min(positions, counts.CHUNK_TOKENS) * (8 * order + 40)
    upper_bound = working + BYTES_PER_NGRAM * (vocab_size + (order - 1) * positions)
    sample_tokens = min(SAMPLE_TOKENS, len(tokens) // 4, available_bytes // (4 * BYTES_PER_NGRAM * order))
    if upper_bound <= available_bytes or sample_tokens < 8 * BLOCK_TOKENS:
        return upper_bound
    num_ngrams = _estimate_ngrams(tokens, starts, order=order, vocab_size=vocab_size, sample_tokens=sample_tokens)
    return working + BYTES_PER_NGRAM * (vocab_size + num_ngrams)


def fit(
    tokens: Tokens,
    starts: Ints | None,
    config: NgramConfig,
    *,
    vocab_size: int,
    vocabulary: str,
    bos_id: int = 1,
) -> NgramModel:
    """Fit a model to a text of token IDs below `vocab_size`: lines with their EOS tokens (`starts`), or running text (None)."""
    config = config.with_defaults()
    levels = count_ngrams(tokens, starts, order=config.order, vocab_size=vocab_size, bos_id=bos_id)
    thresholds = [*config.prune, *[config.prune[-1] if config.prune else 0] * (config.order - len(config.prune))]
    keep = [level.counts > threshold for level, threshold in zip(levels, thresholds, strict=True)]
    keep[0] = np.ones(vocab_size, bool)
    predictable = levels[0].counts > 0 if config.closed_vocab else np.arange(vocab_size) != bos_id
    smoothed = SMOOTHINGS[config.smoothing](NgramCounts(levels, keep, predictable, config.delta or 0.0))
    packed = _pack(levels, keep, smoothed)
    return NgramModel(packed, vocabulary=vocabulary, bos_id=bos_id, notes=tuple(smoothed.notes))
