"""Sources in, targets out: search or sample with any model that steps from the state of a source.

Sources are rows of a request, known here by their numbers and lengths alone; `encode` makes their state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from weft.decode import choose
from weft.decode.beam import BeamOptions, beam
from weft.decode.choose import NOTHING, Adjust
from weft.decode.generate import COPIES, pad
from weft.decode.pieces import Speller
from weft.decode.predict_options import PredictOptions
from weft.decode.sampling import Until, sample
from weft.decode.steps import Steps
from weft.errors import ResourceError, UsageError
from weft.machine import free, size
from weft.nn.state import leaves, select

ROWS = 64  # sources searched side by side
STEP = 16  # lengths of sources are rounded up to these: those of one size share a limit


class Prediction(NamedTuple):
    text: str  # with the prefix
    tokens: list[int]  # that were written, the end token too, without the prefix
    score: float  # what predictions are ordered by: log_prob, under the length penalty of a beam
    log_prob: float  # of `tokens`, under the model itself
    prefix: Sequence[int] = ()  # the tokens that it had to start with
    alignment: Any = None  # where it looked in its source, if that was asked for


class Request(NamedTuple):
    """What to predict from, and how."""

    steps: Steps[Any]
    speller: Speller
    encode: Callable[[Sequence[int]], Any]  # numbers of sources -> the state of a decoder that has read them
    lengths: Sequence[int]  # of all sources
    prefixes: Sequence[Sequence[int]]  # tokens that a target starts with, one list a source
    device: torch.device


def limit_of(request: Request, row: int, options: PredictOptions) -> int:
    """How many tokens may be written: twice the source's, and some more, as far as the model has positions; a function of
    this source and its prefix alone."""
    if options.length is not None:
        return options.length
    wanted = max(2 * -(-request.lengths[row] // STEP) * STEP + 32, options.least + 1)
    longest = request.steps.longest
    return wanted if longest is None else max(1, min(wanted, longest - len(request.prefixes[row])))


def _fitting(request: Request, options: PredictOptions, row: int) -> int:
    """How many sources, none longer than this one, fit into memory side by side; refuses what does not fit alone."""
    sizes = []
    for prompt in ([request.speller.begin], [request.speller.begin] * 2):  # what a token adds
        log_probs, state = request.steps.start(torch.tensor([prompt], device=request.device), None, request.encode([row]))
        sizes.append(sum(part.nbytes for part in leaves(state)) + 2 * log_probs.nbytes)
    tokens = len(request.prefixes[row]) + limit_of(request, row, options)
    rows = options.samples if options.samples_instead else options.width
    each, there = COPIES * rows * (sizes[0] + (tokens - 1) * (sizes[1] - sizes[0] + 8)), free(request.device)
    if each > there:
        raise ResourceError(
            f"predict: {rows} rows of up to {tokens} tokens need about {size(each)} for their states and scores, "
            f"but {size(there)} are free; lower --beam, --samples or --length"
        )
    return min(ROWS, max(1, there // max(1, each)))


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


def _filters(request: Request, options: PredictOptions) -> Adjust:
    never = [request.speller.unk, request.speller.begin]
    for text in options.ban:
        found = request.speller.encode(text).tolist()
        if request.speller.unk in found:
            raise UsageError(f"--ban {text!r}: is no token of this vocabulary, so it is never written anyway; drop it")
        if len(found) != 1:
            raise UsageError(f"--ban {text!r}: is {len(found)} tokens of this vocabulary; ban one token at a time")
        never += found
    chosen = [choose.ban(never)]
    if options.temperature:
        chosen.append(choose.temperature(options.temperature))
    if options.top_k is not None:
        chosen.append(choose.top_k(options.top_k))
    if options.top_p is not None and options.top_p < 1:
        chosen.append(choose.top_p(options.top_p))
    return choose.chain(chosen)


def _searched(request: Request, options: PredictOptions, batch: list[int], adjust: Adjust) -> list[list[Prediction]]:
    search = BeamOptions(
        width=options.width,
        limit=limit_of(request, batch[0], options),
        end=request.speller.end,
        alpha=options.power,
        best=options.best,
        least=options.least,
    )
    prompt, keep = pad([[request.speller.begin, *request.prefixes[row]] for row in batch], request.device)
    found = beam(request.steps, prompt, options=search, keep=keep, state=request.encode(batch), adjust=adjust)
    return [
        [Prediction(_text(request, row, one.tokens), *one, request.prefixes[row]) for one in best]
        for row, best in zip(batch, found, strict=True)
    ]


def _text(request: Request, row: int, tokens: Sequence[int]) -> str:
    return request.speller.decode([*request.prefixes[row], *tokens])


def _drawn(request: Request, options: PredictOptions, batch: list[int], adjust: Adjust) -> list[list[Prediction]]:
    """Samples of each source, or the one that always takes the best token."""
    greedy = not options.samples_instead or options.temperature == 0
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
        adjust=adjust,
        noise=None if greedy else choose.uniforms(options.seed, numbers),
    )
    for drawn in drawing:
        log_probs += drawn.log_probs
        for place, token in enumerate(drawn.tokens.tolist()):
            if token != NOTHING:
                tokens[place].append(token)
    found: list[list[Prediction]] = [[] for _ in batch]
    for place, ((row, _), value) in enumerate(zip(numbers, log_probs.tolist(), strict=True)):
        score = value if options.samples_instead else value / max(1, len(tokens[place])) ** options.power
        said = Prediction(_text(request, row, tokens[place]), tokens[place], score, value, request.prefixes[row])
        found[place // options.samples].append(said)
    return found


@torch.no_grad()
def predict(
    request: Request, options: PredictOptions, *, watch: Callable[[int, int], None] | None = None
) -> list[list[Prediction]]:
    """The predictions of each source, best first, in the order of the request."""
    adjust = _filters(request, options)
    found: list[list[Prediction]] = [[] for _ in request.lengths]
    done = 0
    way = _drawn if options.samples_instead or options.width == 1 else _searched
    for batch in _batches(request, options):
        for row, predictions in zip(batch, way(request, options, batch, adjust), strict=True):
            found[row] = predictions
        done += len(batch)
        if watch is not None:
            watch(done, len(found))
    return found
