"""Predict targets from sources: beam search or sampling with any incremental model whose state encodes a source.

This module knows sources only by their index and length; the callback `encode` computes their state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from weft.decode import logits_processors as processors
from weft.decode.batch_size import MIN_CHECKED_TOKENS, Rows, max_texts_in_memory
from weft.decode.beam import BeamEngine, BeamOptions, BeamRequest, Hypothesis
from weft.decode.detokenize import TokenDecoder
from weft.decode.engine import Engine, Request
from weft.decode.incremental import IncrementalModel
from weft.decode.logits_processors import NO_TOKEN, LogitsProcessor
from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction
from weft.errors import UsageError
from weft.nn.state import select
from weft.parallel.group import ALONE, Group
from weft.parallel.sharing import merge, share

MAX_BATCH_SOURCES = 64  # sources decoded at once
LENGTH_STEP = 16  # the length of a source is rounded up to a multiple of this in its limit; signatures do not name the limit


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
    # the sources themselves, and the state of any list of them: sources of several requests can be encoded at once
    sources: Sequence[Any] = ()
    encode_sources: Callable[[Sequence[Any]], Any] | None = None
    group: Group = ALONE  # the processes that share the sources: all of them make the same request

    def prompt(self, row: int) -> list[int]:
        """The tokens before the output: those that the decoder reads first, and the forced prefix."""
        return [*([self.tokenizer.bos_id] if self.start is None else self.start), *self.prefixes[row]]


def default_max_new_tokens(source_length: int) -> int:
    """Maximum number of new tokens for a source of this length, unless it is set."""
    return 2 * -(-source_length // LENGTH_STEP) * LENGTH_STEP + 32


def max_new_tokens_for(request: PredictionRequest, row: int, options: PredictionConfig) -> int:
    """Maximum number of new tokens for a source: by default twice its length plus 32, within the positions of the model. It
    depends on this source and its prefix alone, not on the batch."""
    if options.max_new_tokens is not None:
        return options.max_new_tokens
    limit = max(default_max_new_tokens(request.lengths[row]), options.min_new_tokens + 1)
    max_positions = request.model.max_positions
    return limit if max_positions is None else max(1, min(limit, max_positions + 1 - len(request.prompt(row))))


def check_min_new_tokens(request: PredictionRequest, options: PredictionConfig) -> None:
    """Reject a minimum length beyond the positions of the model: outputs would silently be shorter."""
    max_positions = request.model.max_positions
    longest = max((len(request.prompt(row)) for row in range(len(request.prefixes))), default=1)
    limit = None if max_positions is None else max(1, max_positions + 1 - longest)
    if limit is not None and options.min_new_tokens > limit:
        raise UsageError("min_new_tokens", f"the model has positions for {limit} new tokens, got {options.min_new_tokens}")


def _batch_size(request: PredictionRequest, options: PredictionConfig, limits: Sequence[int], longest: int) -> int:
    """The number of sources that fit into memory at once, if all were as long as the longest; an error if one does not fit."""
    num_rows = options.num_samples if options.is_sampling else options.resolved_beam_size
    max_tokens = max(len(prefix) + limit for prefix, limit in zip(request.prefixes, limits, strict=True))
    if min(len(limits), MAX_BATCH_SOURCES) * num_rows * max_tokens < MIN_CHECKED_TOKENS:
        return MAX_BATCH_SOURCES
    rows = Rows(num_rows, max_tokens, request.encode([longest]))
    if num_rows == 1:
        item, fix = "a line", "`max_new_tokens`"
    elif options.is_sampling:
        item, fix = f"a line with {num_rows} samples", "`num_samples` or `max_new_tokens`"
    else:
        item, fix = f"a beam of {num_rows} rows", "`beam_size` or `max_new_tokens`"
    limit = max_texts_in_memory(request.model, rows, request.device, item=f"predict: {item}", fix=fix)
    return min(MAX_BATCH_SOURCES, max(1, limit))


def _batches(request: PredictionRequest, options: PredictionConfig, limits: Sequence[int]) -> Iterator[list[int]]:
    """Batches of sources of similar length, longest first: if memory does not suffice, the first batch fails."""
    order = sorted(range(len(limits)), key=lambda row: -request.lengths[row])
    # the same batches in all processes, although their free memory differs
    batch_size = min(request.group.gather(_batch_size(request, options, limits, order[0]))) if order else 1
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


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


class Search(NamedTuple):
    """A prediction before and after its search: what to search for, and what to make of the outputs of each source."""

    request: PredictionRequest
    finish: Callable[[list[list[Prediction]]], list[Any]]


class Job(NamedTuple):
    """The arguments of a call, which all its batches share."""

    request: PredictionRequest
    options: PredictionConfig
    limits: Sequence[int]  # maximum number of new tokens of each source
    banned_tokens: list[int]


def prepare(request: PredictionRequest, options: PredictionConfig) -> Job:
    """The arguments of a call, after checks."""
    banned = banned_tokens(request, options)
    check_min_new_tokens(request, options)
    limits = [max_new_tokens_for(request, row, options) for row in range(len(request.lengths))]
    return Job(request, options, limits, banned)


def beam_options(job: Job, row: int) -> BeamOptions:
    """The options of the search for a source."""
    request, options = job.request, job.options
    return BeamOptions(
        beam_size=options.resolved_beam_size,
        max_new_tokens=job.limits[row],
        eos_id=request.tokenizer.eos_id,
        length_penalty=options.resolved_length_penalty,
        n_best=options.n_best,
        min_new_tokens=options.min_new_tokens,
        banned_tokens=job.banned_tokens,
        patience=options.resolved_patience,
    )


def as_prediction(job: Job, row: int, tokens: list[int], *, score: float, log_prob: float) -> Prediction:
    """One output for a source."""
    prefix, tokenizer = job.request.prefixes[row], job.request.tokenizer
    truncated = tokens[-1:] != [tokenizer.eos_id]
    return Prediction(tokenizer.decode([*prefix, *tokens]), tokens, score, log_prob, prefix, truncated)


def as_predictions(job: Job, row: int, hypotheses: Sequence[Hypothesis]) -> list[Prediction]:
    """The n-best list of a source."""
    return [as_prediction(job, row, best.tokens, score=best.score, log_prob=best.log_prob) for best in hypotheses]


def _beam_search(job: Job, batch: list[int]) -> list[list[Prediction]]:
    """The n-best list of each source of a batch."""
    request = job.request
    engine: BeamEngine[Any] = BeamEngine(request.model, request.device)
    rows = [BeamRequest(request.prompt(row), beam_options(job, row)) for row in batch]
    engine.admit(rows, state=request.encode(batch))
    results: list[list[Prediction]] = [[] for _ in batch]
    while engine.running:
        for index, hypotheses in engine.step():
            results[index] = as_predictions(job, batch[index], hypotheses)
    return results


def sampling_processor(job: Job) -> LogitsProcessor:
    """Everything that sampling applies: banned tokens, then the options."""
    options = job.options
    steps = processors.sampling_processors(temperature_value=options.temperature, k=options.top_k, p=options.top_p)
    return processors.compose([processors.ban_tokens(job.banned_tokens), *steps])


def sampling_request(job: Job, processor: LogitsProcessor | None, row: int, sample: int) -> Request:
    """One sample for a source, without its state."""
    request, options = job.request, job.options
    index = row if request.indices is None else request.indices[row]
    noise = None if options.temperature == 0 else processors.random_noise(options.seed, index, sample)
    return Request(request.prompt(row), job.limits[row], request.tokenizer.eos_id, options.min_new_tokens, processor, noise)


def _sample(job: Job, batch: list[int]) -> list[list[Prediction]]:
    """Samples for each source of a batch."""
    request, options, processor = job.request, job.options, sampling_processor(job)
    samples = [(row, sample_index) for row in batch for sample_index in range(options.num_samples)]
    sources = torch.arange(len(batch), device=request.device).repeat_interleave(options.num_samples)
    engine: Engine[Any] = Engine(request.model, request.device)
    rows = [sampling_request(job, processor, row, sample_index) for row, sample_index in samples]
    engine.admit(rows, state=select(request.encode(batch), sources))
    tokens: list[list[int]] = [[] for _ in samples]
    log_probs = [0.0] * len(samples)
    while engine.running:
        for index, token, log_prob, _ in engine.step():
            log_probs[index] += log_prob
            if token != NO_TOKEN:
                tokens[index].append(token)
    predictions: list[list[Prediction]] = [[] for _ in batch]
    for index, ((row, _), log_prob) in enumerate(zip(samples, log_probs, strict=True)):
        prediction = as_prediction(job, row, tokens[index], score=log_prob, log_prob=log_prob)
        predictions[index // options.num_samples].append(prediction)
    return predictions


@torch.no_grad()
def predict(
    request: PredictionRequest, options: PredictionConfig, *, progress: Callable[[int, int], None] | None = None
) -> list[list[Prediction]]:
    """The predictions for each source, in the order of the request: the n-best list of a beam search, or samples."""
    job = prepare(request, options)
    results: list[list[Prediction]] = [[] for _ in job.limits]
    done = 0
    decode = _sample if options.is_sampling else _beam_search
    for batch in share(_batches(request, options, job.limits), request.group):
        for row, predictions in zip(batch, decode(job, batch), strict=True):
            results[row] = predictions
        done += len(batch) * request.group.size
        if progress is not None:
            progress(min(done, len(results)), len(results))
    return results if request.group.size == 1 else _gather(job, results)


def _gather(job: Job, results: Sequence[list[Prediction]]) -> list[list[Prediction]]:
    """The predictions for all sources, of which each process has computed some."""
    own = {
        row: [(output.token_ids, output.score, output.log_prob) for output in outputs]
        for row, outputs in enumerate(results)
        if outputs
    }
    merged = merge(own, job.request.group)
    return [
        [as_prediction(job, row, tokens, score=score, log_prob=log_prob) for tokens, score, log_prob in merged[row]]
        for row in range(len(results))
    ]
