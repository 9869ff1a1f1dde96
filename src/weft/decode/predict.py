"""Predict targets from sources: beam search or sampling with any incremental model whose state encodes a source.

This module knows sources only by their index and length; the callback `encode` computes their state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.decode import logits_processors as processors
from weft.decode.batch_size import Rows, max_texts_in_memory
from weft.decode.beam import BeamOptions, beam_search
from weft.decode.detokenize import TokenDecoder
from weft.decode.engine import pad
from weft.decode.incremental import IncrementalModel
from weft.decode.logits_processors import NO_TOKEN
from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction
from weft.decode.sampling import StoppingCriteria, sample
from weft.errors import UsageError
from weft.nn.state import select

MAX_BATCH_SOURCES = 64  # sources decoded at once
LENGTH_STEP = 16  # source lengths are rounded up to multiples of this, so that similar sources share a limit


class PredictionRequest(NamedTuple):
    """The model, and the sources to predict from."""

    model: IncrementalModel[Any]
    tokenizer: TokenDecoder
    encode: Callable[[Sequence[int]], Any]  # indices of sources to the initial state of the decoder
    lengths: Sequence[int]  # number of tokens of each source
    prefixes: Sequence[Sequence[int]]  # tokens that each target is forced to start with
    device: torch.device
    start: Sequence[int] | None = None  # tokens that the decoder reads first; None: <s>
    # index of each source in the whole input, which seeds its random numbers; None: its index in the request
    indices: Sequence[int] | None = None
    suppressed_tokens: Sequence[int] = ()  # never generated, in addition to <unk> and <s>
    sources: Sequence[np.ndarray] = ()  # the tokens of each source, for programs that decode instead of `model`

    def prompt(self, row: int) -> list[int]:
        """The tokens before the output: those that the decoder reads first, and the forced prefix."""
        return [*([self.tokenizer.bos_id] if self.start is None else self.start), *self.prefixes[row]]


def max_new_tokens_for(request: PredictionRequest, row: int, options: PredictionConfig) -> int:
    """Maximum number of new tokens for a source: by default twice its length plus 32, within the positions of the model. It
    depends on this source and its prefix alone, not on the batch."""
    if options.max_new_tokens is not None:
        return options.max_new_tokens
    limit = max(2 * -(-request.lengths[row] // LENGTH_STEP) * LENGTH_STEP + 32, options.min_new_tokens + 1)
    max_positions = request.model.max_positions
    return limit if max_positions is None else max(1, min(limit, max_positions + 1 - len(request.prompt(row))))


def check_min_new_tokens(request: PredictionRequest, options: PredictionConfig) -> None:
    """Reject a minimum length beyond the positions of the model: outputs would silently be shorter."""
    max_positions = request.model.max_positions
    longest = max((len(request.prompt(row)) for row in range(len(request.prefixes))), default=1)
    limit = None if max_positions is None else max(1, max_positions + 1 - longest)
    if limit is not None and options.min_new_tokens > limit:
        raise UsageError("min_new_tokens", f"the model has positions for {limit} new tokens, got {options.min_new_tokens}")


def _batch_size(request: PredictionRequest, options: PredictionConfig, row: int) -> int:
    """The number of sources, none longer than this one, that fit into memory at once; an error if one does not fit."""
    num_rows = options.num_samples if options.is_sampling else options.resolved_beam_size
    rows = Rows(num_rows, len(request.prefixes[row]) + max_new_tokens_for(request, row, options), request.encode([row]))
    if num_rows == 1:
        item, fix = "a line", "`max_new_tokens`"
    elif options.is_sampling:
        item, fix = f"a line with {num_rows} samples", "`num_samples` or `max_new_tokens`"
    else:
        item, fix = f"a beam of {num_rows} rows", "`beam_size` or `max_new_tokens`"
    limit = max_texts_in_memory(request.model, rows, request.device, item=f"predict: {item}", fix=fix)
    return min(MAX_BATCH_SOURCES, max(1, limit))


def _batches(request: PredictionRequest, options: PredictionConfig) -> Iterator[list[int]]:
    """Batches of sources of similar length with the same limit, longest first."""
    limits = [max_new_tokens_for(request, row, options) for row in range(len(request.lengths))]
    order = sorted(range(len(limits)), key=lambda row: (-limits[row], -request.lengths[row]))
    batch_size = _batch_size(request, options, order[0]) if order else 1
    batch: list[int] = []
    for row in order:
        if batch and (limits[batch[0]] != limits[row] or len(batch) == batch_size):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def banned_tokens(request: PredictionRequest, options: PredictionConfig) -> list[int]:
    """Tokens that are never generated."""
    banned = [request.tokenizer.unk_id, request.tokenizer.bos_id, *request.suppressed_tokens]
    for text in options.banned_tokens:
        token_ids = request.tokenizer.encode(text).tolist()
        if request.tokenizer.unk_id in token_ids:
            raise UsageError("banned_tokens", f"{text!r} is not in the vocabulary and is never generated", "remove it")
        if len(token_ids) != 1:
            raise UsageError("banned_tokens", f"{text!r} is {len(token_ids)} tokens", "ban single tokens")
        banned += token_ids
    return banned


def _prediction(request: PredictionRequest, row: int, tokens: list[int], *, score: float, log_prob: float) -> Prediction:
    prefix = request.prefixes[row]
    truncated = tokens[-1:] != [request.tokenizer.eos_id]
    return Prediction(request.tokenizer.decode([*prefix, *tokens]), tokens, score, log_prob, prefix, truncated)


def _beam_search(
    request: PredictionRequest, options: PredictionConfig, batch: list[int], banned_tokens: list[int]
) -> list[list[Prediction]]:
    search = BeamOptions(
        beam_size=options.resolved_beam_size,
        max_new_tokens=max_new_tokens_for(request, batch[0], options),
        eos_id=request.tokenizer.eos_id,
        length_penalty=options.resolved_length_penalty,
        n_best=options.n_best,
        min_new_tokens=options.min_new_tokens,
        banned_tokens=banned_tokens,
    )
    prompt, token_mask = pad([request.prompt(row) for row in batch], request.device)
    results = beam_search(request.model, prompt, options=search, token_mask=token_mask, state=request.encode(batch))
    return [
        [_prediction(request, row, best.tokens, score=best.score, log_prob=best.log_prob) for best in hypotheses]
        for row, hypotheses in zip(batch, results, strict=True)
    ]


def _sample(
    request: PredictionRequest, options: PredictionConfig, batch: list[int], banned_tokens: list[int]
) -> list[list[Prediction]]:
    """Samples for each source of a batch."""
    steps = processors.sampling_processors(temperature_value=options.temperature, k=options.top_k, p=options.top_p)
    indices = range(len(request.lengths)) if request.indices is None else request.indices
    samples = [(row, sample_index) for row in batch for sample_index in range(options.num_samples)]
    sources = torch.arange(len(batch), device=request.device).repeat_interleave(options.num_samples)
    prompt, token_mask = pad([request.prompt(row) for row, _ in samples], request.device)
    max_new_tokens = max_new_tokens_for(request, batch[0], options)
    criteria = StoppingCriteria(max_new_tokens, request.tokenizer.eos_id, options.min_new_tokens)
    tokens: list[list[int]] = [[] for _ in samples]
    log_probs = torch.zeros(len(samples), dtype=torch.float64)
    sampled_steps = sample(
        request.model,
        prompt,
        criteria=criteria,
        token_mask=token_mask,
        state=select(request.encode(batch), sources),
        processor=processors.compose([processors.ban_tokens(banned_tokens), *steps]),
        noise=None
        if options.temperature == 0
        else [processors.random_noise(options.seed, indices[row], sample_index) for row, sample_index in samples],
    )
    for step in sampled_steps:
        log_probs += step.log_probs
        for index, token in enumerate(step.tokens.tolist()):
            if token != NO_TOKEN:
                tokens[index].append(token)
    predictions: list[list[Prediction]] = [[] for _ in batch]
    for index, ((row, _), log_prob) in enumerate(zip(samples, log_probs.tolist(), strict=True)):
        prediction = _prediction(request, row, tokens[index], score=log_prob, log_prob=log_prob)
        predictions[index // options.num_samples].append(prediction)
    return predictions


@torch.no_grad()
def predict(
    request: PredictionRequest, options: PredictionConfig, *, progress: Callable[[int, int], None] | None = None
) -> list[list[Prediction]]:
    """The predictions for each source, in the order of the request: the n-best list of a beam search, or samples."""
    banned = banned_tokens(request, options)
    check_min_new_tokens(request, options)
    results: list[list[Prediction]] = [[] for _ in request.lengths]
    done = 0
    decode = _sample if options.is_sampling else _beam_search
    for batch in _batches(request, options):
        for row, predictions in zip(batch, decode(request, options, batch, banned), strict=True):
            results[row] = predictions
        done += len(batch)
        if progress is not None:
            progress(done, len(results))
    return results
