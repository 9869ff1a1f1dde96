"""Sources in, targets out: search or sample with any model that steps from the state of a source.

Sources are rows of a request, known here by their numbers and lengths alone; `encode` makes their state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from weft.decode import choose
from weft.decode.beam import BeamOptions, beam
from weft.decode.choose import NOTHING
from weft.decode.engine import pad
from weft.decode.pieces import Speller
from weft.decode.predict_options import PredictOptions
from weft.decode.prediction import Prediction
from weft.decode.room import Rows, fitting
from weft.decode.sampling import Until, sample
from weft.decode.steps import Steps
from weft.errors import UsageError
from weft.nn.state import select

ROWS = 64  # sources searched side by side
STEP = 16  # lengths of sources are rounded up to these: those of one size share a limit


class Request(NamedTuple):
    """What to predict from, and how."""

    steps: Steps[Any]
    speller: Speller
    encode: Callable[[Sequence[int]], Any]  # numbers of sources -> the state of a decoder that has read them
    lengths: Sequence[int]  # of all sources
    prefixes: Sequence[Sequence[int]]  # tokens that a target starts with, one list a source
    device: torch.device
    numbers: Sequence[int] | None = None  # of the sources in the whole input, which random numbers follow from; None: as here


def limit_of(request: Request, row: int, options: PredictOptions) -> int:
    """How many tokens may be written: twice the source's, and some more, as far as the model has positions; a function of
    this source and its prefix alone."""
    if options.length is not None:
        return options.length
    wanted = max(2 * -(-request.lengths[row] // STEP) * STEP + 32, options.least + 1)
    longest = request.steps.longest
    return wanted if longest is None else max(1, min(wanted, longest - len(request.prefixes[row])))


def _refuse_least(request: Request, options: PredictOptions) -> None:
    """Refuse a least length that a model with a last position can't reach: its outputs would be shorter, and nobody told."""
    longest = request.steps.longest
    room = None if longest is None else max(1, longest - max(map(len, request.prefixes), default=0))
    if room is not None and options.least > room:
        raise UsageError(
            f"--least: must be at most {room}, the positions that the model has left to write to, not {options.least}"
        )


def _fitting(request: Request, options: PredictOptions, row: int) -> int:
    """How many sources, none longer than this one, fit into memory side by side; refuses what does not fit alone."""
    number = options.samples if options.samples_instead else options.width
    rows = Rows(number, len(request.prefixes[row]) + limit_of(request, row, options), request.encode([row]))
    if number == 1:
        what, cure = "a line", "--length"
    elif options.samples_instead:
        what, cure = f"a line with {number} samples", "--samples or --length"
    else:
        what, cure = f"a beam of {number} rows", "--beam or --length"
    return min(ROWS, max(1, fitting(request.steps, rows, request.device, what=f"predict: {what}", cure=cure)))


def _batches(request: Request, options: PredictOptions) -> Iterator[list[int]]:
    """Sources of like lengths and one limit, as many as are searched at once, the longest first."""
    limits = [limit_of(request, row, options) for row in range(len(request.lengths))]
    order = sorted(range(len(limits)), key=lambda row: (-limits[row], -request.lengths[row]))
    most = _fitting(request, options, order[0]) if order else 1
    batch: list[int] = []
    for row in order:
        other = batch and limits[batch[0]] != limits[row]
        if other or len(batch) == most:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _never(request: Request, options: PredictOptions) -> list[int]:
    """The tokens that are not written."""
    never = [request.speller.unk, request.speller.begin]
    for text in options.ban:
        found = request.speller.encode(text).tolist()
        if request.speller.unk in found:
            raise UsageError(f"--ban {text!r}: is no token of this vocabulary, so it is never written anyway; drop it")
        if len(found) != 1:
            raise UsageError(f"--ban {text!r}: is {len(found)} tokens of this vocabulary; ban one token at a time")
        never += found
    return never


def _prediction(request: Request, row: int, tokens: list[int], *, score: float, log_prob: float) -> Prediction:
    prefix = request.prefixes[row]
    cut = tokens[-1:] != [request.speller.end]
    return Prediction(request.speller.decode([*prefix, *tokens]), tokens, score, log_prob, prefix, cut)


def _searched(request: Request, options: PredictOptions, batch: list[int], never: list[int]) -> list[list[Prediction]]:
    search = BeamOptions(
        width=options.width,
        limit=limit_of(request, batch[0], options),
        end=request.speller.end,
        alpha=options.power,
        n_best=options.n_best,
        least=options.least,
        never=never,
    )
    prompt, keep = pad([[request.speller.begin, *request.prefixes[row]] for row in batch], request.device)
    found = beam(request.steps, prompt, options=search, keep=keep, state=request.encode(batch))
    return [
        [_prediction(request, row, one.tokens, score=one.score, log_prob=one.log_prob) for one in best]
        for row, best in zip(batch, found, strict=True)
    ]


def _drawn(request: Request, options: PredictOptions, batch: list[int], never: list[int]) -> list[list[Prediction]]:
    """Samples of each source."""
    narrowing = choose.narrowing(heat=options.temperature, size=options.top_k, mass=options.top_p)
    whole = range(len(request.lengths)) if request.numbers is None else request.numbers
    numbers = [(row, number) for row in batch for number in range(options.samples)]
    rows = torch.arange(len(batch), device=request.device).repeat_interleave(options.samples)
    prompt, keep = pad([[request.speller.begin, *request.prefixes[row]] for row, _ in numbers], request.device)
    until = Until(limit_of(request, batch[0], options), request.speller.end, options.least)
    tokens: list[list[int]] = [[] for _ in numbers]
    log_probs = torch.zeros(len(numbers), dtype=torch.float64)
    drawing = sample(
        request.steps,
        prompt,
        until=until,
        keep=keep,
        state=select(request.encode(batch), rows),
        adjust=choose.chain([choose.ban(never), *narrowing]),
        noise=None
        if options.temperature == 0
        else [choose.uniforms(options.seed, whole[row], number) for row, number in numbers],
    )
    for drawn in drawing:
        log_probs += drawn.log_probs
        for place, token in enumerate(drawn.tokens.tolist()):
            if token != NOTHING:
                tokens[place].append(token)
    found: list[list[Prediction]] = [[] for _ in batch]
    for place, ((row, _), value) in enumerate(zip(numbers, log_probs.tolist(), strict=True)):
        found[place // options.samples].append(_prediction(request, row, tokens[place], score=value, log_prob=value))
    return found


@torch.no_grad()
def predict(
    request: Request, options: PredictOptions, *, watch: Callable[[int, int], None] | None = None
) -> list[list[Prediction]]:
    """The predictions of each source, in the order of the request: of a beam best first, samples as they were drawn."""
    never = _never(request, options)
    _refuse_least(request, options)
    found: list[list[Prediction]] = [[] for _ in request.lengths]
    done = 0
    way = _drawn if options.samples_instead else _searched
    for batch in _batches(request, options):
        for row, predictions in zip(batch, way(request, options, batch, never), strict=True):
            found[row] = predictions
        done += len(batch)
        if watch is not None:
            watch(done, len(found))
    return found
