"""Sources in, targets out: search or sample with any model that steps from the state of a source.

Sources are rows of a request, known here by their numbers and lengths alone; `encode` makes their state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from weft.decode import logits_processors as choose
from weft.decode.batch_size import Rows, max_rows_in_memory
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

ROWS = 64  # sources searched side by side
STEP = 16  # lengths of sources are rounded up to these: those of one size share a limit


class PredictionRequest(NamedTuple):
    """What to predict from, and how."""

    steps: IncrementalModel[Any]
    tokenizer: TokenDecoder
    encode: Callable[[Sequence[int]], Any]  # numbers of sources -> the state of a decoder that has read them
    lengths: Sequence[int]  # of all sources
    prefixes: Sequence[Sequence[int]]  # tokens that a target starts with, one list a source
    device: torch.device
    numbers: Sequence[int] | None = None  # of the sources in the whole input, which random numbers follow from; None: as here


def limit_of(request: PredictionRequest, row: int, options: PredictionConfig) -> int:
    """How many tokens may be written: twice the source's, and some more, as far as the model has positions; a function of
    this source and its prefix alone."""
    if options.max_new_tokens is not None:
        return options.max_new_tokens
    wanted = max(2 * -(-request.lengths[row] // STEP) * STEP + 32, options.min_new_tokens + 1)
    max_positions = request.steps.max_positions
    return wanted if max_positions is None else max(1, min(wanted, max_positions - len(request.prefixes[row])))


def _check_min_new_tokens(request: PredictionRequest, options: PredictionConfig) -> None:
    """Refuse a least length that a model with a last position can't reach: its outputs would be shorter, and nobody told."""
    max_positions = request.steps.max_positions
    room = None if max_positions is None else max(1, max_positions - max(map(len, request.prefixes), default=0))
    if room is not None and options.min_new_tokens > room:
        raise UsageError(
            "--min-new-tokens",
            f"must be at most {room}, the positions that the model has left to write to, not {options.min_new_tokens}",
        )


def _batch_size(request: PredictionRequest, options: PredictionConfig, row: int) -> int:
    """How many sources, none longer than this one, fit into memory side by side; refuses what does not fit alone."""
    number = options.num_samples if options.is_sampling else options.resolved_beam_size
    rows = Rows(number, len(request.prefixes[row]) + limit_of(request, row, options), request.encode([row]))
    if number == 1:
        what, fix = "a line", "--max-new-tokens"
    elif options.is_sampling:
        what, fix = f"a line with {number} samples", "--num-samples or --max-new-tokens"
    else:
        what, fix = f"a beam of {number} rows", "--beam-size or --max-new-tokens"
    return min(ROWS, max(1, max_rows_in_memory(request.steps, rows, request.device, item=f"predict: {what}", fix=fix)))


def _batches(request: PredictionRequest, options: PredictionConfig) -> Iterator[list[int]]:
    """Sources of like lengths and one limit, as many as are searched at once, the longest first."""
    limits = [limit_of(request, row, options) for row in range(len(request.lengths))]
    order = sorted(range(len(limits)), key=lambda row: (-limits[row], -request.lengths[row]))
    limit = _batch_size(request, options, order[0]) if order else 1
    batch: list[int] = []
    for row in order:
        other = batch and limits[batch[0]] != limits[row]
        if other or len(batch) == limit:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _never(request: PredictionRequest, options: PredictionConfig) -> list[int]:
    """The tokens that are not written."""
    banned_tokens = [request.tokenizer.unk_id, request.tokenizer.bos_id]
    for text in options.banned_tokens:
        found = request.tokenizer.encode(text).tolist()
        if request.tokenizer.unk_id in found:
            raise UsageError(
                f"--ban-token {text!r}", "is no token of this vocabulary, so it is never written anyway", "drop it"
            )
        if len(found) != 1:
            raise UsageError(f"--ban-token {text!r}", f"is {len(found)} tokens of this vocabulary", "ban one token at a time")
        banned_tokens += found
    return banned_tokens


def _prediction(request: PredictionRequest, row: int, tokens: list[int], *, score: float, log_prob: float) -> Prediction:
    prefix = request.prefixes[row]
    cut = tokens[-1:] != [request.tokenizer.eos_id]
    return Prediction(request.tokenizer.decode([*prefix, *tokens]), tokens, score, log_prob, prefix, cut)


def _beam_search(
    request: PredictionRequest, options: PredictionConfig, batch: list[int], banned_tokens: list[int]
) -> list[list[Prediction]]:
    search = BeamOptions(
        beam_size=options.resolved_beam_size,
        max_new_tokens=limit_of(request, batch[0], options),
        eos_id=request.tokenizer.eos_id,
        length_penalty=options.resolved_length_penalty,
        n_best=options.n_best,
        min_new_tokens=options.min_new_tokens,
        banned_tokens=banned_tokens,
    )
    prompt, token_mask = pad([[request.tokenizer.bos_id, *request.prefixes[row]] for row in batch], request.device)
    found = beam_search(request.steps, prompt, options=search, token_mask=token_mask, state=request.encode(batch))
    return [
        [_prediction(request, row, one.tokens, score=one.score, log_prob=one.log_prob) for one in best]
        for row, best in zip(batch, found, strict=True)
    ]


def _sample(
    request: PredictionRequest, options: PredictionConfig, batch: list[int], banned_tokens: list[int]
) -> list[list[Prediction]]:
    """Samples of each source."""
    narrowing = choose.sampling_processors(heat=options.temperature, size=options.top_k, mass=options.top_p)
    whole = range(len(request.lengths)) if request.numbers is None else request.numbers
    numbers = [(row, number) for row in batch for number in range(options.num_samples)]
    rows = torch.arange(len(batch), device=request.device).repeat_interleave(options.num_samples)
    prompt, token_mask = pad([[request.tokenizer.bos_id, *request.prefixes[row]] for row, _ in numbers], request.device)
    until = StoppingCriteria(limit_of(request, batch[0], options), request.tokenizer.eos_id, options.min_new_tokens)
    tokens: list[list[int]] = [[] for _ in numbers]
    log_probs = torch.zeros(len(numbers), dtype=torch.float64)
    drawing = sample(
        request.steps,
        prompt,
        criteria=until,
        token_mask=token_mask,
        state=select(request.encode(batch), rows),
        processor=choose.compose([choose.ban_tokens(banned_tokens), *narrowing]),
        noise=None
        if options.temperature == 0
        else [choose.random_noise(options.seed, whole[row], number) for row, number in numbers],
    )
    for drawn in drawing:
        log_probs += drawn.log_probs
        for place, token in enumerate(drawn.tokens.tolist()):
            if token != NO_TOKEN:
                tokens[place].append(token)
    found: list[list[Prediction]] = [[] for _ in batch]
    for place, ((row, _), value) in enumerate(zip(numbers, log_probs.tolist(), strict=True)):
        found[place // options.num_samples].append(_prediction(request, row, tokens[place], score=value, log_prob=value))
    return found


@torch.no_grad()
def predict(
    request: PredictionRequest, options: PredictionConfig, *, progress: Callable[[int, int], None] | None = None
) -> list[list[Prediction]]:
    """The predictions of each source, in the order of the request: of a beam best first, samples as they were drawn."""
    banned_tokens = _never(request, options)
    _check_min_new_tokens(request, options)
    found: list[list[Prediction]] = [[] for _ in request.lengths]
    done = 0
    way = _sample if options.is_sampling else _beam_search
    for batch in _batches(request, options):
        for row, predictions in zip(batch, way(request, options, batch, banned_tokens), strict=True):
            found[row] = predictions
        done += len(batch)
        if progress is not None:
            progress(done, len(found))
    return found
