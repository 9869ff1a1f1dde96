"""Noise for denoising: a corrupted text, and the text that a model restores from it.

    infilling          spans of Poisson lengths become one mask each; a span of length 0 is an inserted mask. The target is the
                       whole text (BART: Lewis et al. 2020)
    span-corruption    spans become sentinels; the target lists each sentinel with its tokens (T5: Raffel et al. 2020)

Infilling can be combined with permuted sentences, deleted tokens and rotated texts, or be replaced by them.

Spans are placed uniformly: every position of a text has the same chance to be noise, those at its ends too. (In T5's own
algorithm, every text ends with noise.) All random numbers are a function of (seed, epoch, example): each epoch has other noise,
and a batch has the same noise whatever is in it.

Shapes: T tokens of a batch, one text after another; B texts; U units of spans (tokens or words); K spans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MASK, SENTINELS, KEEP = "infilling", "span-corruption", "none"
NOISES = (MASK, SENTINELS, KEEP)
_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_COUNT, _SPANS, _PLACES, _LENGTHS, _RING, _SENTENCES, _DELETED, _ROTATES, _ROTATION = range(9)  # streams of random numbers


class Noise(NamedTuple):
    """Which noise is added."""

    kind: str  # of NOISES
    first_id: int  # the ID of the mask or the first sentinel: noise tokens follow the tokens of the tokenizer
    max_tokens: int  # of the corrupted text and of the target
    density: float = 0.3  # fraction of the units that spans replace; at least one
    mean_span_length: float = 3.0  # in units
    num_sentinels: int = 100
    deletion_prob: float = 0.0
    permutes_sentences: bool = False
    rotation_prob: float = 0.0


class Texts(NamedTuple):
    """The tokens of some texts, one text after another."""

    tokens: np.ndarray  # int64 (T,)
    lengths: np.ndarray  # int64 (B,)

    @property
    def rows(self) -> np.ndarray:
        """int64 (T,): the number of the text of each token."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def starts(self) -> np.ndarray:
        """int64 (B,): the position of the first token of each text."""
        starts: np.ndarray = np.cumsum(self.lengths) - self.lengths
        return starts

    def split(self) -> list[np.ndarray]:
        """The tokens of each text."""
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


def join_texts(texts: Sequence[np.ndarray]) -> Texts:
    lengths = np.array([len(text) for text in texts], np.int64)
    return Texts(np.concatenate([np.zeros(0, np.int64), *texts]).astype(np.int64), lengths)


class Spans(NamedTuple):
    """Spans of tokens, in the order of the text. An empty span is a position between two tokens."""

    rows: np.ndarray  # int64 (K,): the number of the text
    low: np.ndarray  # int64 (K,): the position of the first token
    high: np.ndarray  # int64 (K,): the position after the last token

    def keep(self, mask: np.ndarray) -> Spans:
        return Spans(self.rows[mask], self.low[mask], self.high[mask])


class Corrupted(NamedTuple):
    source: Texts
    target: Texts


# ---- random numbers


def _mix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele et al. 2014): uint64 to uint64."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def _absorb(state: np.ndarray, values: np.ndarray | int) -> np.ndarray:
    """Another state for each value; arrays, because only their products wrap around silently."""
    return _mix(state + _GOLDEN * (np.atleast_1d(np.asarray(values)).astype(np.uint64) + np.uint64(1)))


class RandomNumbers:
    """Uniform numbers as a function of (seed, epoch, example, stream, index)."""

    def __init__(self, seed: int, epoch: int, examples: np.ndarray) -> None:
        state = _absorb(np.zeros(1, np.uint64), seed % 2**64)  # a seed may have any size
        self.keys = _absorb(_absorb(state, epoch), examples)  # (B,)

    def uniform(self, stream: int, rows: np.ndarray, index: np.ndarray | int = 0) -> np.ndarray:
        """float64, from 0 to 1 without 1: number `index` of a stream for the texts `rows`."""
        bits = _absorb(_absorb(self.keys, stream)[rows], index)
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _within(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For groups of `sizes` (B,), one after another: the group of each item, and its index in the group."""
    rows = np.repeat(np.arange(len(sizes)), sizes)
    return rows, np.arange(len(rows)) - (np.cumsum(sizes) - sizes)[rows]


def _ranks(rows: np.ndarray, keys: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """int64: the rank of each item, by its key, among the items of its group; groups of `sizes`, one after another."""
    ranks = np.empty(len(rows), np.int64)
    ranks[np.lexsort((keys, rows))] = _within(sizes)[1]
    return ranks


def _sum_before(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sum of the values before each item in its group; `rows` (K,), the groups, are sorted."""
    totals = np.cumsum(values) - values
    before: np.ndarray = totals - totals[np.searchsorted(rows, rows)]
    return before


def _index_in_row(rows: np.ndarray) -> np.ndarray:
    """The index of each item in its group; `rows` (K,) are sorted."""
    return np.arange(len(rows)) - np.searchsorted(rows, rows)


# ---- spans


def _num_noise(num_units: np.ndarray, noise: Noise, random: RandomNumbers) -> np.ndarray:
    """int64 (B,): how many units are noise; rounded at random, so that the mean is exact, but at least one."""
    numbers = np.floor(num_units * noise.density + random.uniform(_COUNT, np.arange(len(num_units)))).astype(np.int64)
    clipped: np.ndarray = np.clip(numbers, np.minimum(num_units, 1), num_units)
    return clipped


def poisson_quantiles(mean: float) -> np.ndarray:
    """P(X <= k) for k = 0, 1, ..., until the rest is less than float64 can tell."""
    probs, size = [math.exp(-mean)], math.ceil(mean + 12 * math.sqrt(mean) + 30)
    for value in range(1, size):
        probs.append(probs[-1] * mean / value)
    return np.cumsum(probs)


def _span_lengths(num_noise: np.ndarray, mean: float, random: RandomNumbers) -> tuple[np.ndarray, np.ndarray]:
    """Poisson lengths (B, L) whose sum is `num_noise` (B,), and their number (B,). The last length is cut to fit."""
    quantiles, rows, lengths = poisson_quantiles(mean), np.arange(len(num_noise))[:, None], np.zeros((len(num_noise), 0), int)
    while lengths.shape[1] == 0 or (lengths.sum(1) < num_noise).any():
        more = lengths.shape[1] + np.arange(max(8, lengths.shape[1]))
        drawn = np.searchsorted(quantiles, random.uniform(_SPANS, rows, more), side="right")
        lengths = np.concatenate([lengths, drawn], axis=1)
    totals = np.cumsum(lengths, axis=1)
    last = (totals < num_noise[:, None]).sum(1)  # the first span that reaches the sum
    lengths[rows[:, 0], last] -= totals[rows[:, 0], last] - num_noise
    return lengths, np.where(num_noise > 0, last + 1, 0)


class UnitSpans(NamedTuple):
    """Spans of units, in the order of the text."""

    rows: np.ndarray  # int64 (K,)
    starts: np.ndarray  # int64 (K,): units of the text before the span
    lengths: np.ndarray  # int64 (K,): units


def infilling_spans(num_units: np.ndarray, noise: Noise, random: RandomNumbers) -> UnitSpans:
    """Spans of Poisson lengths in texts of `num_units` (B,) units: every order of spans and of the units that stay is equally
    probable."""
    num_noise = _num_noise(num_units, noise, random)
    lengths, num_spans = _span_lengths(num_noise, noise.mean_span_length, random)
    sizes = num_units - num_noise + num_spans  # a span or a unit that stays
    rows, index = _within(sizes)
    ranks = _ranks(rows, random.uniform(_PLACES, rows, index), sizes)
    is_span = ranks < num_spans[rows]
    rows, index, ranks = rows[is_span], index[is_span], ranks[is_span]
    span_lengths = lengths[rows, ranks]  # by random rank: the length that was cut is anywhere
    return _on_ring(_placed(rows, index - _within(num_spans)[1], span_lengths), num_units, num_noise, random)


def corruption_spans(num_units: np.ndarray, noise: Noise, random: RandomNumbers) -> UnitSpans:
    """Spans of T5: all divisions of the noise into spans, and all places of spans with a unit between them, are equally
    probable."""
    num_noise, texts = _num_noise(num_units, noise, random), np.arange(len(num_units))
    num_places = np.maximum(num_units - num_noise, 1)  # before one of the units that stay
    num_spans = np.floor(num_noise / noise.mean_span_length + random.uniform(_COUNT, texts, 1)).astype(np.int64)
    # one sentinel ends the target, and the end of the text may divide a span
    most = np.minimum(np.minimum(num_noise, num_places), noise.num_sentinels - 2)
    num_spans = np.clip(num_spans, np.minimum(num_noise, 1), most)
    rows, index = _within(np.maximum(num_noise - 1, 0))  # between two units of noise, a span may end
    is_end = _ranks(rows, random.uniform(_LENGTHS, rows, index), np.maximum(num_noise - 1, 0)) < num_spans[rows] - 1
    ends = np.append(rows[is_end], texts[num_noise > 0]), np.append(index[is_end] + 1, num_noise[num_noise > 0])
    order = np.lexsort(ends[::-1])
    span_rows, span_ends = ends[0][order], ends[1][order]
    is_first = _within(num_spans)[1] == 0
    lengths = span_ends - np.where(is_first, 0, np.append(0, span_ends[:-1])[: len(span_ends)])
    rows, index = _within(num_places)
    places = index[_ranks(rows, random.uniform(_PLACES, rows, index), num_places) < num_spans[rows]]
    return _on_ring(_placed(span_rows, places, lengths), num_units, num_noise, random)


def _placed(rows: np.ndarray, clean_before: np.ndarray, lengths: np.ndarray) -> UnitSpans:
    """Spans after this many units that stay and all spans before them."""
    return UnitSpans(rows, clean_before + _sum_before(rows, lengths), lengths)


def _on_ring(spans: UnitSpans, num_units: np.ndarray, num_noise: np.ndarray, random: RandomNumbers) -> UnitSpans:
    """The spans with each text as a ring that starts anywhere, so that its ends are noise as often as its middle. A span across
    the end becomes two. A text of noise alone stays as it is."""
    texts = np.arange(len(num_units))
    offsets = np.where(num_noise < num_units, np.floor(random.uniform(_RING, texts) * num_units), 0).astype(np.int64)
    rows, sizes = spans.rows, num_units[spans.rows]
    starts = (spans.starts + offsets[rows]) % np.maximum(sizes, 1)
    # an empty span between the last unit and the first one is at either end
    at_end = (spans.lengths == 0) & (starts == 0) & (random.uniform(_RING, rows, 1 + _index_in_row(rows)) < 0.5)
    starts = np.where(at_end, sizes, starts)
    rest = np.maximum(starts + spans.lengths - sizes, 0)  # beyond the end
    is_cut = rest > 0
    rows = np.append(rows, rows[is_cut])
    starts, lengths = np.append(starts, np.zeros(is_cut.sum(), int)), np.append(spans.lengths - rest, rest[is_cut])
    order = np.lexsort((starts, rows))
    return UnitSpans(rows[order], starts[order], lengths[order])


def _token_spans(texts: Texts, starts_unit: np.ndarray, spans: UnitSpans) -> Spans:
    """Spans of units as spans of tokens; `starts_unit` (T,) marks the first token of each unit."""
    first = np.append(np.flatnonzero(starts_unit), len(texts.tokens))
    before = np.searchsorted(first, texts.starts)  # units of the texts before
    low = before[spans.rows] + spans.starts
    return Spans(spans.rows, first[low], first[low + spans.lengths])


def _limited(spans: Spans, costs: np.ndarray, budgets: np.ndarray) -> Spans:
    """The first spans of each text whose costs (K,) do not exceed the budget (B,) of the text."""
    return spans.keep(_sum_before(spans.rows, costs) + costs <= budgets[spans.rows])


def _without_excess(texts: Texts, spans: Spans, max_tokens: int) -> Spans:
    """The spans without the last inserted masks of texts that would exceed `max_tokens`. Other spans stay: a mask is not
    longer than what it replaces."""
    inserts = (spans.low == spans.high).astype(np.int64)
    growth = np.zeros(len(texts.lengths), np.int64)
    np.add.at(growth, spans.rows, 1 - (spans.high - spans.low))
    num_inserts = np.bincount(spans.rows[inserts == 1], minlength=len(texts.lengths))
    most = num_inserts - np.maximum(texts.lengths + growth - max_tokens, 0)
    return spans.keep((inserts == 0) | (_sum_before(spans.rows, inserts) < most[spans.rows]))


# ---- corrupted texts


def _merged(rows: np.ndarray, positions: np.ndarray, tokens: np.ndarray, size: int) -> Texts:
    """Texts from tokens in any order: sorted by text and position; of equal positions, the first one comes first."""
    order = np.lexsort((positions, rows))
    return Texts(tokens[order], np.bincount(rows, minlength=size))


def replace_spans(texts: Texts, spans: Spans, noise_tokens: np.ndarray) -> Texts:
    """The texts with each span replaced by its token of `noise_tokens` (K,)."""
    clean = ~_covered(texts, spans)
    return _merged(
        np.append(spans.rows, texts.rows[clean]),
        np.append(spans.low, np.flatnonzero(clean)),
        np.append(noise_tokens, texts.tokens[clean]),
        len(texts.lengths),
    )


def spans_as_target(texts: Texts, spans: Spans, first_id: int) -> Texts:
    """The target of span corruption: each sentinel and the tokens that it replaces, and one more sentinel."""
    covered, index = _covered(texts, spans), _index_in_row(spans.rows)
    counts = np.bincount(spans.rows, minlength=len(texts.lengths))
    last_rows = np.arange(len(texts.lengths))
    return _merged(
        np.concatenate([spans.rows, texts.rows[covered], last_rows]),
        np.concatenate([spans.low, np.flatnonzero(covered), np.full(len(last_rows), len(texts.tokens))]),
        np.concatenate([first_id + index, texts.tokens[covered], first_id + counts]),
        len(texts.lengths),
    )


def _covered(texts: Texts, spans: Spans) -> np.ndarray:
    """bool (T,): whether a token is in a span."""
    size = len(texts.tokens) + 1
    return np.cumsum(np.bincount(spans.low, minlength=size) - np.bincount(spans.high, minlength=size))[:-1] > 0


def _permuted(texts: Texts, starts_sentence: np.ndarray, random: RandomNumbers) -> np.ndarray:
    """int64 (T,): the order of the tokens after the sentences of each text are permuted."""
    rows = texts.rows
    sentences = np.cumsum(starts_sentence) - 1
    sentence_rows = rows[starts_sentence]
    keys = random.uniform(_SENTENCES, sentence_rows, _index_in_row(sentence_rows))
    return np.lexsort((np.arange(len(rows)), keys[sentences], rows))


def _rotated(texts: Texts, noise: Noise, random: RandomNumbers) -> Texts:
    """The texts; with probability `rotation_prob`, each starts at a random token, and those before it are at its end."""
    numbers = np.arange(len(texts.lengths))
    rotates = random.uniform(_ROTATES, numbers) < noise.rotation_prob
    offsets = np.where(rotates, np.floor(random.uniform(_ROTATION, numbers) * texts.lengths), 0).astype(np.int64)
    rows, index = _within(texts.lengths)
    return Texts(texts.tokens[np.lexsort(((index - offsets[rows]) % np.maximum(texts.lengths[rows], 1), rows))], texts.lengths)


class Units(NamedTuple):
    """Where units and sentences start."""

    starts_unit: np.ndarray  # bool (T,)
    starts_sentence: np.ndarray  # bool (T,)


def corrupt(texts: Texts, units: Units, noise: Noise, random: RandomNumbers) -> Corrupted:
    """The corrupted texts and their targets, without special tokens. `units` are those of `texts`."""
    if noise.kind == SENTINELS:
        num_units = np.bincount(texts.rows[units.starts_unit], minlength=len(texts.lengths))
        spans = _token_spans(texts, units.starts_unit, corruption_spans(num_units, noise, random))
        spans = _limited(spans, spans.high - spans.low + 1, np.full(len(texts.lengths), noise.max_tokens - 1))
        index = _index_in_row(spans.rows)
        return Corrupted(replace_spans(texts, spans, noise.first_id + index), spans_as_target(texts, spans, noise.first_id))
    source, starts_unit = texts, units.starts_unit
    if noise.permutes_sentences:
        order = _permuted(source, units.starts_sentence, random)
        source, starts_unit = Texts(source.tokens[order], source.lengths), starts_unit[order] | units.starts_sentence[order]
    if noise.deletion_prob:
        source, starts_unit = _without_deleted(source, starts_unit, noise, random)
    if noise.kind == MASK:
        num_units = np.bincount(source.rows[starts_unit], minlength=len(source.lengths))
        spans = _token_spans(source, starts_unit, infilling_spans(num_units, noise, random))
        spans = _without_excess(source, spans, noise.max_tokens)
        source = replace_spans(source, spans, np.full(len(spans.rows), noise.first_id))
    return Corrupted(_rotated(source, noise, random) if noise.rotation_prob else source, texts)


def _without_deleted(texts: Texts, starts_unit: np.ndarray, noise: Noise, random: RandomNumbers) -> tuple[Texts, np.ndarray]:
    """The texts without random tokens, and the first token of each unit; a unit that lost its first token starts later."""
    rows, index = _within(texts.lengths)
    stays = random.uniform(_DELETED, rows, index) >= noise.deletion_prob
    unit = np.cumsum(starts_unit)[stays]
    is_first = np.append(True, unit[1:] != unit[:-1])[: len(unit)]
    return Texts(texts.tokens[stays], np.bincount(rows[stays], minlength=len(texts.lengths))), is_first


def fill_sentinels(source: Sequence[int], target: Sequence[int], first_id: int) -> list[int]:
    """The text that a source with sentinels and a target describe: each sentinel is replaced by the tokens after it in the
    target, or by nothing."""
    spans: dict[int, list[int]] = {}
    current: list[int] = []  # tokens before the first sentinel belong to none
    for token in target:
        if token >= first_id:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return [token for position in source for token in (spans.get(position, []) if position >= first_id else [position])]
