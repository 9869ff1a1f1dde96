"""The task of masked language models: hide some tokens of a text and predict them from the others (Devlin et al. 2019), one by
one, by whole words, or by spans of words (Joshi et al. 2020).

Shapes: B rows, S positions, V words, N texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.data.batch import as_tensor
from weft.data.batching import Batch, map_tensors, pad_lines, sliding_windows
from weft.data.bucketing import length_batches
from weft.data.corpus import Corpus
from weft.errors import DataError
from weft.metrics.items import ItemStatistics
from weft.metrics.masked_lm import MASKED
from weft.models.encoder import EncoderInput
from weft.text.tokenizers import Tokenizer
from weft.training.objective import Loss, ProgressCallback

BATCH = 8192  # positions computed at once
LAST = 1 << 52  # what may not be hidden comes after all else
HIDDEN, REPLACED = 0.8, 0.1  # of what is predicted: shown as the mask, shown as some other token; the rest as it is
SPECIALS = 3
STOP, LONGEST_SPAN = 0.2, 10  # the chance that a span ends with a word, and the most words that it has, as in SpanBERT
SEED = 20190610  # of the gaps that validation makes: the same every time, so that scores can be compared


class Masking(NamedTuple):
    """How gaps are made."""

    mask_id: int  # what stands for a hidden token
    mask_prob: float = 0.15  # of the tokens of each text
    word_starts: Tensor | None = None  # bool (V,), which tokens start a word: words are hidden whole; None: each token is one
    spans: bool = False  # several words in a row are hidden together


class Masked(NamedTuple):
    tokens: Tensor  # int64 (B, S), with gaps
    targets_mask: Tensor  # bool (B, S), what is to be predicted


def maskable(tokens: Tensor, token_mask: Tensor) -> Tensor:
    """bool (B, S): what may be hidden: all real tokens but <s> and </s>."""
    return token_mask & (tokens != Tokenizer.bos_id) & (tokens != Tokenizer.eos_id)


def _firsts(tokens: Tensor, free: Tensor, begins: Tensor | None) -> Tensor:
    """bool (B, S): where a word starts, of what may be hidden (B, S)."""
    if begins is None:
        return free
    after = F.pad(~free, (1, 0), value=True)[:, :-1]  # the first token of a text starts a word, whatever it looks like
    return free & (begins.to(tokens.device)[tokens] | after)


def span_lengths(chance: Tensor) -> Tensor:
    """Numbers from 0 to 1 as lengths of spans, geometric up to the longest: int64, 3.8 in the mean of even numbers."""
    on = 1.0 - STOP
    # the distribution function, solved for the length
    lengths = torch.log1p(-chance * (1.0 - on**LONGEST_SPAN)) / math.log(on)
    return 1 + lengths.long().clamp(max=LONGEST_SPAN - 1)


class _Drawn(NamedTuple):
    """What comes first is hidden first; what has one fate is shown as one thing."""

    order: Tensor  # (B, S)
    fate: Tensor  # (B, S), from 0 to 1


def _by_words(free: Tensor, firsts: Tensor, generator: torch.Generator | None) -> _Drawn:
    """All tokens of a word come at once, so that it is hidden whole, or not at all."""
    chance, fate = (torch.rand(free.shape, device=free.device, generator=generator) for _ in range(2))
    word = (firsts | ~free).cumsum(1) - 1
    return _Drawn(chance.gather(1, word.clamp(min=0)), fate)


def _by_spans(free: Tensor, firsts: Tensor, generator: torch.Generator | None) -> _Drawn:
    """Words cut into spans, which come one after another, each word by word: the last is hidden as far as there is room.

    Words stand in a ring that is cut open anywhere: so each has the same chance, at the ends of a text as in its middle.
    """
    lengths, chance, fate = (torch.rand(free.shape, device=free.device, generator=generator) for _ in range(3))
    words = firsts.sum(1, keepdim=True).clamp(min=1)
    cut = (torch.rand((len(free), 1), device=free.device, generator=generator) * words).long()
    place = (firsts.cumsum(1) - 1 - cut) % words
    span = torch.searchsorted(span_lengths(lengths).cumsum(1), place, right=True)
    rank, size = chance.argsort(1).argsort(1), free.size(1)
    at = torch.arange(size, device=free.device)
    return _Drawn((rank.gather(1, span) * size + place) * size + at, fate.gather(1, span))


def mask_tokens(tokens: Tensor, token_mask: Tensor, masking: Masking, generator: torch.Generator | None = None) -> Masked:
    """A text with gaps (B, S), other ones each time: `share` of every row's tokens, rounded, but one at least; a word that is
    hidden whole may be more."""
    free = maskable(tokens, token_mask)
    draw = _by_spans if masking.spans else _by_words
    order, fate = draw(free, _firsts(tokens, free, masking.word_starts), generator)
    order = order.masked_fill(~free, LAST)
    wanted = (free.sum(1, keepdim=True) * masking.mask_prob).round().clamp(min=1)
    before = torch.searchsorted(order.sort(1).values, order)  # how many tokens come earlier
    chosen = free & (before < wanted)
    others = torch.randint(SPECIALS, masking.mask_id, tokens.shape, device=tokens.device, generator=generator)
    shown = torch.where(fate < HIDDEN, masking.mask_id, torch.where(fate < HIDDEN + REPLACED, others, tokens))
    return Masked(torch.where(chosen, shown, tokens), chosen)


def with_special_tokens(tokens: Tensor) -> Tensor:
    """Windows of running text (B, S) as texts: <s> and </s> take the place of their first and last token."""
    framed = tokens.clone()
    framed[:, 0], framed[:, -1] = Tokenizer.bos_id, Tokenizer.eos_id
    return framed


def of_lines(tokens: Tensor, token_mask: Tensor) -> EncoderInput:
    """Lines, or two lines in a row (B, S), as what an encoder reads: what stands after the first </s> is a second text."""
    ends = tokens == Tokenizer.eos_id
    return EncoderInput(tokens, token_mask, ((ends.cumsum(1) > ends) & token_mask).long())


def as_text(batch: Batch) -> EncoderInput:
    """Lines or windows as what an encoder reads."""
    if batch.token_mask is not None:
        return of_lines(batch.tokens, batch.token_mask)
    return EncoderInput(with_special_tokens(batch.tokens), torch.ones_like(batch.tokens, dtype=torch.bool))


class Read(NamedTuple):
    """Texts of a corpus that are read together."""

    text: EncoderInput
    keys: np.ndarray  # int64 (B,): the line of each row, or its window


def texts(corpus: Corpus, *, window: int, batch_tokens: int = BATCH) -> Iterator[Read]:
    """The corpus once through: every line, short ones first; or running text window by window, all but the last of them
    `window` positions wide, so that every token is read once."""
    if corpus.starts is not None:
        for lines in length_batches(np.diff(corpus.starts) + 1, batch_tokens=batch_tokens):
            yield Read(of_lines(*pad_lines(corpus, lines)), lines)
        return
    inner, key = min(window - 2, len(corpus.tokens)), 0
    for part in sliding_windows(corpus, context_length=inner, stride=inner, rows=max(1, batch_tokens // window)):
        begin, end = (torch.full((len(part.start), 1), mark) for mark in (Tokenizer.bos_id, Tokenizer.eos_id))
        tokens = torch.cat([begin, as_tensor(part.tokens[:, 1:]), end], dim=1)
        token_mask = torch.ones_like(tokens, dtype=torch.bool)
        # the last window was moved back to be full: what another one has read is left out
        tokens, token_mask = _dropped(tokens, token_mask, part.first)
        yield Read(EncoderInput(tokens, token_mask), key + np.arange(len(part.start)))
        key += len(part.start)


def _dropped(tokens: Tensor, token_mask: Tensor, first: np.ndarray) -> tuple[Tensor, Tensor]:
    """Rows without the first `first` (B,) of their tokens: those after them move up, padding comes last."""
    skip = torch.from_numpy(first)[:, None]
    at = torch.arange(tokens.size(1)).expand_as(tokens)
    source = torch.where(at == 0, at, (at + skip).clamp(max=tokens.size(1) - 1))
    token_mask = token_mask & (at < tokens.size(1) - skip)
    return tokens.gather(1, source).masked_fill(~token_mask, 0), token_mask


def check_longest(max_length: int | None, corpus: Corpus) -> None:
    """Refuse, before the first token, a line that would pass the last position a model can read."""
    if max_length is None or corpus.starts is None:
        return
    lengths = np.diff(corpus.starts) + 1
    line = int(lengths.argmax())
    if lengths[line] > max_length:
        raise DataError(
            "data",
            f"line {line + 1} of {corpus.name} takes {lengths[line]} positions, <s> and </s> among them, but the model reads at most {max_length}",
            f"shorten it, or train with data.context_length = {lengths[line]} or other positions",
        )


def to_device(text: EncoderInput, device: torch.device) -> EncoderInput:
    return map_tensors(text, lambda part: part.to(device))


class MaskedTask:
    """Nats of hidden tokens."""

    unit = "masked_token"
    monitors = MASKED
    inner, prepare = 0, None

    def __init__(
        self, masking: Masking, *, valid: Corpus | None, context_length: int, device: torch.device, smoothing: float = 0.0
    ) -> None:
        self.masking, self.valid, self.context_length, self.device, self.smoothing = (
            masking,
            valid,
            context_length,
            device,
            smoothing,
        )

    def loss(self, model: Any, batch: Batch, carry: None) -> Loss:
        text = as_text(batch)
        tokens, chosen = mask_tokens(text.tokens, text.token_mask, self.masking)
        nats = model.loss(text._replace(tokens=tokens), text.tokens, chosen, self.smoothing)
        # a batch of empty lines has nothing to predict
        return Loss(nats.sum(), chosen.sum().clamp(min=1), None, text.token_mask.sum())

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """Of the same gaps every time."""
        if self.valid is None:
            return None
        check_longest(model.max_positions, self.valid)
        generator = torch.Generator().manual_seed(SEED)
        total, right, count, done = 0.0, 0, 0, 0
        for read in texts(self.valid, window=self.context_length):
            tokens, chosen = mask_tokens(read.text.tokens, read.text.token_mask, self.masking, generator)
            text, wanted, at = (
                to_device(read.text._replace(tokens=tokens), self.device),
                read.text.tokens,
                chosen.to(self.device),
            )
            scores = model.log_probs(model(text)[at]).float().cpu()
            total -= float(scores.gather(1, wanted[chosen][:, None]).sum(dtype=torch.float64))
            right, count = right + int((scores.argmax(1) == wanted[chosen]).sum()), count + int(chosen.sum())
            done += int(read.text.token_mask.sum())
            if progress is not None:
                progress(min(done, len(self.valid.tokens)), len(self.valid.tokens))
        if not count:
            raise DataError("data", f"{self.valid.name} has no token that could be hidden", "give it a text that is not empty")
        counted = {"nats": np.array([total]), "right": np.array([float(right)]), "tokens": np.array([float(count)])}
        # a loss that is no number is told: the loop refuses it
        return {metric.name: metric.of(counted).item() for metric in self.monitors}


class PseudoLogLikelihood(NamedTuple):
    """Every token of a corpus, as it was guessed when it alone was hidden; M tokens, line by line, or window by window."""

    owners: np.ndarray  # int64 (M,): the line of each, or its window
    tokens: np.ndarray  # int64 (M,)
    nats: np.ndarray  # float64 (M,)
    size: int  # lines, or windows, those without a token among them


def token_pseudo_nll(
    model: Any, corpus: Corpus, *, window: int, device: torch.device, progress: ProgressCallback | None = None
) -> PseudoLogLikelihood:
    """Nats of every token when it alone is hidden (Salazar et al. 2020)."""
    check_longest(model.max_positions, corpus)
    owners, hidden, nats, texts_read, done = [], [], [], 0, 0
    total = len(corpus.tokens) - corpus.lines
    for read in texts(corpus, window=window):
        free = maskable(read.text.tokens, read.text.token_mask)
        rows, columns = free.nonzero(as_tuple=True)
        found = torch.zeros(len(rows), dtype=torch.float64)
        size = max(1, BATCH // free.size(1))
        for low in range(0, len(rows), size):
            row, column = rows[low : low + size], columns[low : low + size]
            tokens = read.text.tokens[row]
            wanted = tokens[torch.arange(len(row)), column]
            tokens[torch.arange(len(row)), column] = model.mask_id
            y = model(to_device(EncoderInput(tokens, read.text.token_mask[row]), device))[
                torch.arange(len(row)), column.to(device)
            ]
            scores = model.log_probs(y).double().cpu()
            found[low : low + size] = -scores[torch.arange(len(row)), wanted]
            done += len(row)
            if progress is not None:
                progress(done, total)
        texts_read += len(free)
        owners.append(read.keys[rows.numpy()])
        hidden.append(read.text.tokens[rows, columns].numpy())
        nats.append(found.numpy())
    order = np.argsort(np.concatenate(owners), kind="stable")
    return PseudoLogLikelihood(
        np.concatenate(owners)[order], np.concatenate(hidden)[order], np.concatenate(nats)[order], texts_read
    )


def pseudo_likelihood_items(hidden: PseudoLogLikelihood) -> ItemStatistics:
    """Sums of nats and tokens, line by line, or window by window."""
    nats = np.bincount(hidden.owners, hidden.nats, hidden.size)
    counts = np.bincount(hidden.owners, minlength=hidden.size).astype(np.float64)
    return ItemStatistics(np.arange(hidden.size), {"nats": nats, "tokens": counts})


def pseudo_nll(
    model: Any, corpus: Corpus, *, window: int, device: torch.device, progress: ProgressCallback | None = None
) -> ItemStatistics:
    """The negative pseudo-log-likelihood of every line, or window, in nats, and how many tokens it has."""
    return pseudo_likelihood_items(token_pseudo_nll(model, corpus, window=window, device=device, progress=progress))


@torch.inference_mode()
def best_tokens(
    model: Any, tokens: Sequence[int], count: int, *, among: range, device: torch.device
) -> list[list[tuple[int, float]]]:
    """For each mask in a text, whose number follows the last of `among`, the most probable tokens of these, best first, and
    their probabilities."""
    row = torch.tensor([tokens], device=device)
    y = model(EncoderInput(row, torch.ones_like(row, dtype=torch.bool)))[row == among.stop]
    found = model.log_probs(y).exp()[:, among.start : among.stop].topk(min(count, len(among)))
    numbers, values = (found.indices + among.start).tolist(), found.values.tolist()
    return [list(zip(*best, strict=True)) for best in zip(numbers, values, strict=True)]
