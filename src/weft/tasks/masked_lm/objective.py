"""The training objective of masked language models: mask tokens of a text and predict them from the others (Devlin et al.
2019), single tokens, whole words, or spans of words (Joshi et al. 2020).

Shapes: B rows, S positions, V tokens of the vocabulary, N texts.
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
from weft.parallel.group import ALONE, Group
from weft.parallel.sharing import sum_arrays
from weft.text.tokenizers import Tokenizer
from weft.training.objective import Loss, ProgressCallback

BATCH_TOKENS = 8192  # positions computed at once
LAST = 1 << 52  # order of tokens that cannot be masked
# of the predicted tokens: masked, or replaced by a random token; the others are unchanged (Devlin et al. 2019)
MASK_FRACTION, REPLACE_FRACTION = 0.8, 0.1
NUM_SPECIAL_TOKENS = 3  # <unk>, <s> and </s> have the first IDs
STOP_PROB, MAX_SPAN_WORDS = 0.2, 10  # probability that a span ends after a word, and its maximum length, as in SpanBERT
SEED = 20190610  # of the masks of validation, which are always the same, so that scores can be compared


class Masking(NamedTuple):
    """Which tokens are masked."""

    mask_id: int
    mask_prob: float = 0.15  # fraction of the tokens of each text
    word_starts: Tensor | None = None  # bool (V,): tokens that start a word, to mask whole words; None: mask single tokens
    spans: bool = False  # mask spans of consecutive words


class Masked(NamedTuple):
    tokens: Tensor  # int64 (B, S), with masks
    targets_mask: Tensor  # bool (B, S), True on tokens to predict


class MaskedBatch(NamedTuple):
    """Texts with masks, to train on."""

    targets: Tensor  # int64 (B, S), without masks
    token_mask: Tensor  # bool (B, S)
    segments: Tensor | None  # int64 (B, S)
    inputs: Tensor  # int64 (B, S), with masks
    targets_mask: Tensor  # bool (B, S), True on tokens to predict


def maskable(tokens: Tensor, token_mask: Tensor) -> Tensor:
    """bool (B, S): the tokens that can be masked: all but padding, <s> and </s>."""
    return token_mask & (tokens != Tokenizer.bos_id) & (tokens != Tokenizer.eos_id)


def _word_starts(tokens: Tensor, can_mask: Tensor, word_starts: Tensor | None) -> Tensor:
    """bool (B, S): the tokens that start a word, among those that can be masked (B, S)."""
    if word_starts is None:
        return can_mask
    is_first = F.pad(~can_mask, (1, 0), value=True)[:, :-1]  # the first token of a text always starts a word
    return can_mask & (word_starts.to(tokens.device)[tokens] | is_first)


def span_lengths(uniform: Tensor) -> Tensor:
    """Uniform numbers from 0 to 1 as span lengths with a truncated geometric distribution: int64, with mean 3.8."""
    continue_prob = 1.0 - STOP_PROB
    # the inverse of the distribution function
    lengths = torch.log1p(-uniform * (1.0 - continue_prob**MAX_SPAN_WORDS)) / math.log(continue_prob)
    return 1 + lengths.long().clamp(max=MAX_SPAN_WORDS - 1)


class _MaskOrder(NamedTuple):
    """The order in which tokens are masked, and how: tokens with equal `replacement` are replaced in the same way."""

    order: Tensor  # (B, S)
    replacement: Tensor  # (B, S), from 0 to 1


def _word_order(can_mask: Tensor, starts: Tensor, generator: torch.Generator | None) -> _MaskOrder:
    """A random order of the words: all tokens of a word have the same rank, so that it is masked as a whole or not at all."""
    rank, replacement = (torch.rand(can_mask.shape, device=can_mask.device, generator=generator) for _ in range(2))
    word = (starts | ~can_mask).cumsum(1) - 1
    return _MaskOrder(rank.gather(1, word.clamp(min=0)), replacement)


def _span_order(can_mask: Tensor, starts: Tensor, generator: torch.Generator | None) -> _MaskOrder:
    """A random order of spans of words, and of the words within each span; the last span is masked as far as tokens are left.

    Words form a ring with a random start, so that words at the ends of a text have the same probability as others.
    """
    lengths, ranks, replacement = (torch.rand(can_mask.shape, device=can_mask.device, generator=generator) for _ in range(3))
    num_words = starts.sum(1, keepdim=True).clamp(min=1)
    ring_start = (torch.rand((len(can_mask), 1), device=can_mask.device, generator=generator) * num_words).long()
    position = (starts.cumsum(1) - 1 - ring_start) % num_words
    span = torch.searchsorted(span_lengths(lengths).cumsum(1), position, right=True)
    rank, size = ranks.argsort(1).argsort(1), can_mask.size(1)
    columns = torch.arange(size, device=can_mask.device)
    return _MaskOrder((rank.gather(1, span) * size + position) * size + columns, replacement.gather(1, span))


def mask_tokens(tokens: Tensor, token_mask: Tensor, masking: Masking, generator: torch.Generator | None = None) -> Masked:
    """Mask random tokens (B, S): `mask_prob` of the tokens of every row, rounded, but at least one; a whole word may add a
    few."""
    can_mask = maskable(tokens, token_mask)
    mask_order = _span_order if masking.spans else _word_order
    order, replacement = mask_order(can_mask, _word_starts(tokens, can_mask, masking.word_starts), generator)
    order = order.masked_fill(~can_mask, LAST)
    num_masked = (can_mask.sum(1, keepdim=True) * masking.mask_prob).round().clamp(min=1)
    num_before = torch.searchsorted(order.sort(1).values, order)  # tokens that are earlier in the order
    targets = can_mask & (num_before < num_masked)
    random_tokens = torch.randint(NUM_SPECIAL_TOKENS, masking.mask_id, tokens.shape, device=tokens.device, generator=generator)
    replaced = torch.where(replacement < MASK_FRACTION + REPLACE_FRACTION, random_tokens, tokens)
    inputs = torch.where(replacement < MASK_FRACTION, masking.mask_id, replaced)
    return Masked(torch.where(targets, inputs, tokens), targets)


def with_special_tokens(tokens: Tensor) -> Tensor:
    """Windows of running text (B, S) with <s> and </s> in place of their first and last token."""
    result = tokens.clone()
    result[:, 0], result[:, -1] = Tokenizer.bos_id, Tokenizer.eos_id
    return result


def line_inputs(tokens: Tensor, token_mask: Tensor) -> EncoderInput:
    """Lines or line pairs (B, S) as encoder inputs: the tokens after the first </s> are the second segment."""
    ends = tokens == Tokenizer.eos_id
    return EncoderInput(tokens, token_mask, ((ends.cumsum(1) > ends) & token_mask).long())


def encoder_inputs(batch: Batch) -> EncoderInput:
    """Lines or windows as encoder inputs."""
    if batch.token_mask is not None:
        return line_inputs(batch.tokens, batch.token_mask)
    return EncoderInput(with_special_tokens(batch.tokens), torch.ones_like(batch.tokens, dtype=torch.bool))


class CorpusBatch(NamedTuple):
    """A batch of texts of a corpus."""

    text: EncoderInput
    keys: np.ndarray  # int64 (B,): the number of the line or window of each row


def texts(corpus: Corpus, *, window: int, batch_tokens: int = BATCH_TOKENS) -> Iterator[CorpusBatch]:
    """One pass over the corpus: every line, short ones first; or windows of running text, all but the last `window` positions
    wide, so that every token is read once."""
    if corpus.starts is not None:
        for lines in length_batches(np.diff(corpus.starts) + 1, batch_tokens=batch_tokens):
            yield CorpusBatch(line_inputs(*pad_lines(corpus, lines)), lines)
        return
    inner, key = min(window - 2, len(corpus.tokens)), 0
    for part in sliding_windows(corpus, context_length=inner, stride=inner, rows=max(1, batch_tokens // window)):
        bos, eos = (torch.full((len(part.start), 1), token) for token in (Tokenizer.bos_id, Tokenizer.eos_id))
        tokens = torch.cat([bos, as_tensor(part.tokens[:, 1:]), eos], dim=1)
        token_mask = torch.ones_like(tokens, dtype=torch.bool)
        # the last window was moved back to be full: remove the tokens of the previous one
        tokens, token_mask = _remove_first(tokens, token_mask, part.first)
        yield CorpusBatch(EncoderInput(tokens, token_mask), key + np.arange(len(part.start)))
        key += len(part.start)


def _remove_first(tokens: Tensor, token_mask: Tensor, first: np.ndarray) -> tuple[Tensor, Tensor]:
    """Rows without the first `first` (B,) tokens after <s>; the others move to the left, with padding at the end."""
    skip = torch.from_numpy(first)[:, None]
    columns = torch.arange(tokens.size(1)).expand_as(tokens)
    source = torch.where(columns == 0, columns, (columns + skip).clamp(max=tokens.size(1) - 1))
    token_mask = token_mask & (columns < tokens.size(1) - skip)
    return tokens.gather(1, source).masked_fill(~token_mask, 0), token_mask


def check_line_lengths(max_length: int | None, corpus: Corpus) -> None:
    """Refuse a line that needs more positions than the model has, before it is read."""
    if max_length is None or corpus.starts is None:
        return
    lengths = np.diff(corpus.starts) + 1
    line = int(lengths.argmax())
    if lengths[line] > max_length:
        raise DataError(
            f"{corpus.name}:{line + 1}",
            f"{lengths[line]} tokens, with <s> and </s>, exceed the model's limit of {max_length}",
            f"shorten it, or train with data.context_length = {lengths[line]} or another position_encoding",
        )


def to_device(text: EncoderInput, device: torch.device) -> EncoderInput:
    return map_tensors(text, lambda part: part.to(device))


class MaskedLMObjective:
    """Cross-entropy of masked tokens."""

    unit = "masked_token"
    monitors = MASKED
    inner_steps, prepare = 0, None
    group = ALONE  # the processes that share a validation

    def __init__(
        self, masking: Masking, *, valid: Corpus | None, context_length: int, device: torch.device, smoothing: float = 0.0
    ) -> None:
        self.masking, self.valid, self.context_length = masking, valid, context_length
        self.device, self.smoothing = device, smoothing

    def augment(self, batch: Batch) -> MaskedBatch:
        """Mask random tokens of a batch."""
        text = encoder_inputs(batch)
        return MaskedBatch(*text, *mask_tokens(text.tokens, text.token_mask, self.masking))

    def loss(self, model: Any, batch: Batch | MaskedBatch, carry: None) -> Loss:
        masked = batch if isinstance(batch, MaskedBatch) else self.augment(batch)
        text = EncoderInput(masked.inputs, masked.token_mask, masked.segments)
        losses = model.loss(text, masked.targets, masked.targets_mask, self.smoothing)
        return Loss(losses.sum(), masked.targets_mask.sum(), None, masked.token_mask.sum())

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """Metrics on the validation data, whose masks are the same in each validation."""
        if self.valid is None:
            return None
        check_line_lengths(model.max_positions, self.valid)
        generator = torch.Generator().manual_seed(SEED)
        total, correct, count, done = 0.0, 0, 0, 0
        for number, batch in enumerate(texts(self.valid, window=self.context_length)):
            tokens, targets_mask = mask_tokens(batch.text.tokens, batch.text.token_mask, self.masking, generator)
            if number % self.group.size != self.group.rank:  # masked all the same: masks follow one another
                continue
            text, targets = to_device(batch.text._replace(tokens=tokens), self.device), batch.text.tokens[targets_mask]
            log_probs = model.log_probs(model(text)[targets_mask.to(self.device)]).float().cpu()
            total -= float(log_probs.gather(1, targets[:, None]).sum(dtype=torch.float64))
            correct, count = correct + int((log_probs.argmax(1) == targets).sum()), count + len(targets)
            done += int(batch.text.token_mask.sum()) * self.group.size
            if progress is not None:
                progress(min(done, len(self.valid.tokens)), len(self.valid.tokens))
        total, correct, count = sum_arrays(np.array([total, correct, count], np.float64), self.group).tolist()
        if not count:
            raise DataError("data.valid", f"{self.valid.name} has no token to mask", "use a text that is not empty")
        counts = {"nats": np.array([total]), "correct": np.array([float(correct)]), "tokens": np.array([float(count)])}
        # a NaN loss is returned as it is: the training loop raises an error
        return {metric.name: metric.compute(counts).item() for metric in self.monitors}


class PseudoLogLikelihood(NamedTuple):
    """The negative log-likelihood of M tokens of a corpus while only that token is masked, by line or window."""

    items: np.ndarray  # int64 (M,): the number of the line or window of each token
    tokens: np.ndarray  # int64 (M,)
    nll: np.ndarray  # float64 (M,)
    size: int  # number of lines or windows, including empty ones


def token_pseudo_nll(
    model: Any,
    corpus: Corpus,
    *,
    window: int,
    device: torch.device,
    progress: ProgressCallback | None = None,
    group: Group = ALONE,
) -> PseudoLogLikelihood:
    """The negative log-likelihood of every token while only it is masked (Salazar et al. 2020). The processes of a group share
    the work."""
    check_line_lengths(model.max_positions, corpus)
    items, masked_tokens, nll, num_texts, done, first = [], [], [], 0, 0, 0
    total = len(corpus.tokens) - corpus.lines
    for batch in texts(corpus, window=window):
        can_mask = maskable(batch.text.tokens, batch.text.token_mask)
        rows, columns = can_mask.nonzero(as_tuple=True)
        batch_nll = torch.zeros(len(rows), dtype=torch.float64)
        size = max(1, BATCH_TOKENS // can_mask.size(1))
        starts = range(0, len(rows), size)
        for low in starts[(group.rank - first) % group.size :: group.size]:
            row, column = rows[low : low + size], columns[low : low + size]
            numbers = torch.arange(len(row))
            tokens = batch.text.tokens[row]
            targets = tokens[numbers, column]
            tokens[numbers, column] = model.mask_id
            y = model(to_device(EncoderInput(tokens, batch.text.token_mask[row]), device))[numbers, column.to(device)]
            log_probs = model.log_probs(y).double().cpu()
            batch_nll[low : low + size] = -log_probs[numbers, targets]
            done += len(row) * group.size
            if progress is not None:
                progress(min(done, total), total)
        num_texts, first = num_texts + len(can_mask), first + len(starts)
        items.append(batch.keys[rows.numpy()])
        masked_tokens.append(batch.text.tokens[rows, columns].numpy())
        nll.append(batch_nll.numpy())
    order = np.argsort(np.concatenate(items), kind="stable")
    arrays = [np.concatenate(parts)[order] for parts in (items, masked_tokens, nll)]
    sum_arrays(arrays[2], group)
    return PseudoLogLikelihood(arrays[0], arrays[1], arrays[2], num_texts)


def pseudo_likelihood_items(likelihood: PseudoLogLikelihood) -> ItemStatistics:
    """Negative log-likelihood and number of tokens of each line or window."""
    nll = np.bincount(likelihood.items, likelihood.nll, likelihood.size)
    counts = np.bincount(likelihood.items, minlength=likelihood.size).astype(np.float64)
    return ItemStatistics(np.arange(likelihood.size), {"nats": nll, "tokens": counts})


def pseudo_nll(
    model: Any, corpus: Corpus, *, window: int, device: torch.device, progress: ProgressCallback | None = None
) -> ItemStatistics:
    """The negative pseudo-log-likelihood and the number of tokens of every line or window."""
    return pseudo_likelihood_items(token_pseudo_nll(model, corpus, window=window, device=device, progress=progress))


@torch.inference_mode()
def best_tokens(
    model: Any, tokens: Sequence[int], count: int, *, among: range, device: torch.device
) -> list[list[tuple[int, float]]]:
    """The most probable tokens of `among` for each mask in a text, best first, with their probabilities. The ID of the mask is
    `among.stop`."""
    row = torch.tensor([tokens], device=device)
    y = model(EncoderInput(row, torch.ones_like(row, dtype=torch.bool)))[row == among.stop]
    best = model.log_probs(y).exp()[:, among.start : among.stop].topk(min(count, len(among)))
    token_ids, probabilities = (best.indices + among.start).tolist(), best.values.tolist()
    return [list(zip(*mask, strict=True)) for mask in zip(token_ids, probabilities, strict=True)]
