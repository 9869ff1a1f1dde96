"""Text in, text out: continue prompts by sampling or beam search.

A prompt is read after the opening of a text: <s>, or what running text shows before a text begins, such as a newline. An
empty prompt is the opening alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from weft.decode import choose
from weft.decode.beam import BeamOptions, beam
from weft.decode.choose import NOTHING, Adjust, Noise
from weft.decode.engine import Engine, Request, pad
from weft.decode.options import GenerateOptions, check_length
from weft.decode.pieces import Speller, Text, added, spell
from weft.decode.room import Rows, fitting
from weft.decode.steps import Steps
from weft.machine import free, peak

Going = Callable[[int, int], bool]  # tokens that a search has written, and at most: whether to go on
ROWS = 64  # that are computed at a time
READ = 512  # tokens of a prompt that are read to see what reading takes
FEW = 4096  # positions that are read side by side without a look


class Continuation(NamedTuple):
    text: str  # without the prompt, cut before a stop string
    tokens: list[int]  # all that were generated, the end token and those of a stop string too
    score: float  # what continuations are ordered by: log_prob, under the length penalty of a beam
    log_prob: float  # of `tokens`, under the model itself
    alternatives: tuple[Continuation, ...] = ()  # the others where several were asked for: a beam's next best, other samples

    def ranked(self) -> list[Continuation]:
        """This one and its alternatives, in order."""
        return [self._replace(alternatives=()), *self.alternatives]


class Frame(NamedTuple):
    """What a text stands between."""

    end: int | None  # the token that ends it; None in running text
    opening: Sequence[int] = ()  # the tokens that it comes after; none: the begin token


class _Job(NamedTuple):
    """What every batch of a request shares."""

    steps: Steps[Any]
    speller: Speller
    options: GenerateOptions
    frame: Frame
    device: torch.device

    @property
    def end(self) -> int | None:
        return self.frame.end


def _never(job: _Job) -> list[int]:
    """The tokens that are not written."""
    # running text has no end: its models never saw the token
    return [job.speller.unk, job.speller.begin] + ([job.speller.end] if job.end is None else [])


def _filters(job: _Job) -> list[Adjust]:
    """Everything else that changes what may come next, in the order it applies."""
    options, chosen = job.options, list[Adjust]()
    if options.no_repeat is not None:
        chosen.append(choose.no_repeat(options.no_repeat))
    if options.repetition > 1:
        chosen.append(choose.repetition(options.repetition))
    chosen += choose.narrowing(heat=options.temperature, size=options.top_k, mass=options.top_p)
    if options.min_p is not None:
        chosen.append(choose.min_p(options.min_p))
    return chosen


def _adjust(job: _Job) -> Adjust:
    """All that sampling sees to."""
    return choose.chain([choose.ban(_never(job)), *_filters(job)])


def _engine(job: _Job, prompts: Sequence[list[int]], rows: Sequence[tuple[int, int]]) -> Engine[Any]:
    """An engine with a row for each prompt; `rows` are (prompt, sample) numbers in the whole request."""
    options, adjust = job.options, _adjust(job)

    def noise(row: tuple[int, int]) -> Noise | None:
        return None if options.temperature == 0 else choose.uniforms(options.seed, *row)

    engine: Engine[Any] = Engine(job.steps, job.device)
    pairs = zip(prompts, rows, strict=True)
    engine.admit([Request(prompt, options.length, job.end, options.least, adjust, noise(row)) for prompt, row in pairs])
    return engine


def _sampled(job: _Job, prompts: Sequence[list[int]], rows: Sequence[tuple[int, int]]) -> list[Continuation]:
    """A continuation of each prompt; `rows` are (prompt, sample) numbers in the whole request."""
    texts = [Text(job.speller, prompt, job.options.stop) for prompt in prompts]
    said: list[list[str]] = [[] for _ in prompts]
    tokens: list[list[int]] = [[] for _ in prompts]
    log_probs = [0.0] * len(prompts)
    engine = _engine(job, prompts, rows)
    while engine.running:
        for row, token, log_prob, _ in engine.step():
            if token != NOTHING:
                tokens[row].append(token)
                said[row].append(texts[row].push(token))
                log_probs[row] += log_prob
        if job.options.stop:
            engine.cancel_all(row for row in engine.running if texts[row].stopped)
    return [
        Continuation("".join([*said[row], texts[row].finish()]), tokens[row], log_prob, log_prob)
        for row, log_prob in enumerate(log_probs)
    ]


def _searched(
    job: _Job, prompts: Sequence[list[int]], width: int, going: Callable[[int], bool] | None
) -> list[list[Continuation]]:
    """The best continuations of each prompt; once `going`, told how many tokens there are, says no, those found so far."""
    options = job.options

    def ended(owners: list[int], tokens: list[list[int]]) -> list[bool]:
        over = going is not None and not going(len(tokens[0]))
        if over or not options.stop:
            return [over] * len(tokens)
        texts = [added(job.speller, prompts[owner], said) for owner, said in zip(owners, tokens, strict=True)]
        return [any(stop in text for stop in options.stop) for text in texts]

    search = BeamOptions(
        width=width,
        limit=options.length,
        end=job.end,
        alpha=options.alpha or 0.0,
        n_best=options.n_best,
        least=options.least,
        never=_never(job),
        ended=ended if options.stop or going is not None else None,
    )
    prompt, keep = pad(prompts, job.device)
    filters = _filters(job)
    found = beam(job.steps, prompt, options=search, keep=keep, adjust=choose.chain(filters) if filters else None)
    return [
        [Continuation(spell(job.speller, prompts[row], one.tokens, options.stop), *one) for one in best]
        for row, best in enumerate(found)
    ]


def _pieces(job: _Job, prompt: list[int]) -> Iterator[str]:
    text = Text(job.speller, prompt, job.options.stop)
    engine = _engine(job, [prompt], [(0, 0)])
    while engine.running:
        (event,) = engine.step()
        piece = text.push(event.token) if event.token != NOTHING else ""
        if piece:
            yield piece
        if text.stopped:
            return
    rest = text.finish()
    if rest:
        yield rest


def _fitting(job: _Job, prompts: Sequence[list[int]], most: int) -> int:
    """How many prompts, at most `most`, fit into memory side by side; refuses what does not fit alone."""
    options, longest = job.options, max(prompts, key=len, default=[0])
    rows = Rows(options.beam or 1, len(longest) + options.length - 1)
    what, cure = ("a row", "--length") if options.beam is None else (f"a beam of {rows.number} rows", "--beam or --length")
    most = min(most, fitting(job.steps, rows, job.device, what=f"generate: {what}", cure=cure))
    some = longest[:READ]
    if most * len(some) > FEW:
        prompt = torch.tensor([some], device=job.device)
        with torch.no_grad():
            reading = peak(lambda number: job.steps.start(prompt.expand(number, -1)), 1)
        most = min(most, max(1, free(job.device) // max(1, reading)))
    return most


def _read(job: _Job, prompt: str) -> list[int]:
    tokens: list[int] = [*(job.frame.opening or [job.speller.begin]), *job.speller.encode(prompt).tolist()]
    check_length(job.steps.longest, len(tokens), job.options.length)
    return tokens


def generate(
    steps: Steps[Any],
    tokenizer: Speller,
    prompts: Sequence[str],
    options: GenerateOptions,
    *,
    frame: Frame,
    device: torch.device | str = "cpu",
    going: Going | None = None,
) -> list[list[Continuation]]:
    """The continuations of each prompt, of a text that stands in `frame`. A beam asks `going` before each token."""
    job = _Job(steps, tokenizer, options, frame, torch.device(device))
    read = [_read(job, prompt) for prompt in prompts]
    ordered = sorted(range(len(read)), key=lambda prompt: len(read[prompt]))  # neighbours in length waste little padding
    jobs = ((prompt, number) for prompt in ordered for number in range(options.samples))
    found: list[list[Continuation]] = [[] for _ in read]
    most = min(len(read) * options.samples, max(1, ROWS // (options.beam or 1)))
    together = _fitting(job, read, most)
    total, before = math.ceil(len(read) / max(1, together)) * options.length, 0
    while batch := list(islice(jobs, together)):
        texts = [read[prompt] for prompt, _ in batch]
        if options.beam is None:
            results = [[one] for one in _sampled(job, texts, batch)]
        else:
            results = _searched(job, texts, options.beam, _after(going, before, total))
            before += options.length
        for (prompt, _), result in zip(batch, results, strict=True):
            found[prompt] += result
    return found


def _after(going: Going | None, before: int, total: int) -> Callable[[int], bool] | None:
    """The same question, asked by one batch of several."""
    return None if going is None else lambda written: going(before + written, total)


def stream(
    steps: Steps[Any],
    tokenizer: Speller,
    prompt: str,
    options: GenerateOptions,
    *,
    frame: Frame,
    device: torch.device | str = "cpu",
) -> Iterator[str]:
    """The first continuation that `generate` gives to [prompt], in pieces as they become certain (a beam's at once)."""
    job = _Job(steps, tokenizer, options, frame, torch.device(device))
    read = _read(job, prompt)
    _fitting(job, [read], 1)
    return _pieces(job, read) if options.beam is None else iter([_searched(job, [read], options.beam, None)[0][0].text])
