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

from weft.decode import logits_processors as choose
from weft.decode.batch_size import Rows, max_rows_in_memory
from weft.decode.beam import BeamOptions, beam_search
from weft.decode.detokenize import StreamingText, TokenDecoder, added_text, decode_until_stop
from weft.decode.engine import Engine, Request, pad
from weft.decode.incremental import IncrementalModel
from weft.decode.logits_processors import NO_TOKEN, LogitsProcessor, Noise
from weft.decode.options import GenerationConfig, check_length
from weft.resources import free, measure_peak_memory

ContinueCallback = Callable[[int, int], bool]  # tokens that a search has written, and at most: whether to go on
ROWS = 64  # that are computed at a time
MAX_PREFILL = 512  # tokens of a prompt that are read to see what reading takes
FEW = 4096  # positions that are read side by side without a look


class Continuation(NamedTuple):
    text: str  # without the prompt, cut before a stop string
    token_ids: list[int]  # all that were generated, the end token and those of a stop string too
    score: float  # what continuations are ordered by: log_prob, under the length penalty of a beam
    log_prob: float  # of `tokens`, under the model itself
    alternatives: tuple[Continuation, ...] = ()  # the others where several were asked for: a beam's next best, other samples

    def ranked(self) -> list[Continuation]:
        """This one and its alternatives, in order."""
        return [self._replace(alternatives=()), *self.alternatives]


class Frame(NamedTuple):
    """What a text stands between."""

    eos_id: int | None  # the token that ends it; None in running text
    bos_ids: Sequence[int] = ()  # the tokens that it comes after; none: the begin token


class _Job(NamedTuple):
    """What every batch of a request shares."""

    steps: IncrementalModel[Any]
    tokenizer: TokenDecoder
    options: GenerationConfig
    frame: Frame
    device: torch.device

    @property
    def eos_id(self) -> int | None:
        return self.frame.eos_id


def _never(job: _Job) -> list[int]:
    """The tokens that are not written."""
    # running text has no end: its models never saw the token
    return [job.tokenizer.unk_id, job.tokenizer.bos_id] + ([job.tokenizer.eos_id] if job.eos_id is None else [])


def _filters(job: _Job) -> list[LogitsProcessor]:
    """Everything else that changes what may come next, in the order it applies."""
    options, chosen = job.options, list[LogitsProcessor]()
    if options.no_repeat_ngram_size is not None:
        chosen.append(choose.no_repeat_ngram(options.no_repeat_ngram_size))
    if options.repetition_penalty > 1:
        chosen.append(choose.repetition_penalty(options.repetition_penalty))
    chosen += choose.sampling_processors(heat=options.temperature, size=options.top_k, mass=options.top_p)
    if options.min_p is not None:
        chosen.append(choose.min_p(options.min_p))
    return chosen


def _adjust(job: _Job) -> LogitsProcessor:
    """All that sampling sees to."""
    return choose.compose([choose.ban_tokens(_never(job)), *_filters(job)])


def _engine(job: _Job, prompts: Sequence[list[int]], rows: Sequence[tuple[int, int]]) -> Engine[Any]:
    """An engine with a row for each prompt; `rows` are (prompt, sample) numbers in the whole request."""
    options, processor = job.options, _adjust(job)

    def noise(row: tuple[int, int]) -> Noise | None:
        return None if options.temperature == 0 else choose.random_noise(options.seed, *row)

    engine: Engine[Any] = Engine(job.steps, job.device)
    pairs = zip(prompts, rows, strict=True)
    engine.admit(
        [
            Request(prompt, options.max_new_tokens, job.eos_id, options.min_new_tokens, processor, noise(row))
            for prompt, row in pairs
        ]
    )
    return engine


def _sample(job: _Job, prompts: Sequence[list[int]], rows: Sequence[tuple[int, int]]) -> list[Continuation]:
    """A continuation of each prompt; `rows` are (prompt, sample) numbers in the whole request."""
    texts = [StreamingText(job.tokenizer, prompt, job.options.stop) for prompt in prompts]
    said: list[list[str]] = [[] for _ in prompts]
    tokens: list[list[int]] = [[] for _ in prompts]
    log_probs = [0.0] * len(prompts)
    engine = _engine(job, prompts, rows)
    while engine.running:
        for row, token, log_prob, _ in engine.step():
            if token != NO_TOKEN:
                tokens[row].append(token)
                said[row].append(texts[row].push(token))
                log_probs[row] += log_prob
        if job.options.stop:
            engine.cancel_all(row for row in engine.running if texts[row].has_stopped)
    return [
        Continuation("".join([*said[row], texts[row].finish()]), tokens[row], log_prob, log_prob)
        for row, log_prob in enumerate(log_probs)
    ]


def _beam_search(
    job: _Job, prompts: Sequence[list[int]], beam_size: int, should_continue: Callable[[int], bool] | None
) -> list[list[Continuation]]:
    """The best continuations of each prompt; once `going`, told how many tokens there are, says no, those found so far."""
    options = job.options

    def ended(owners: list[int], tokens: list[list[int]]) -> list[bool]:
        over = should_continue is not None and not should_continue(len(tokens[0]))
        if over or not options.stop:
            return [over] * len(tokens)
        texts = [added_text(job.tokenizer, prompts[owner], said) for owner, said in zip(owners, tokens, strict=True)]
        return [any(stop in text for stop in options.stop) for text in texts]

    search = BeamOptions(
        beam_size=beam_size,
        max_new_tokens=options.max_new_tokens,
        eos_id=job.eos_id,
        length_penalty=options.length_penalty or 0.0,
        n_best=options.n_best,
        min_new_tokens=options.min_new_tokens,
        banned_tokens=_never(job),
        finished=ended if options.stop or should_continue is not None else None,
    )
    prompt, token_mask = pad(prompts, job.device)
    processors = _filters(job)
    found = beam_search(
        job.steps, prompt, options=search, token_mask=token_mask, processor=choose.compose(processors) if processors else None
    )
    return [
        [Continuation(decode_until_stop(job.tokenizer, prompts[row], one.tokens, options.stop), *one) for one in best]
        for row, best in enumerate(found)
    ]


def _pieces(job: _Job, prompt: list[int]) -> Iterator[str]:
    text = StreamingText(job.tokenizer, prompt, job.options.stop)
    engine = _engine(job, [prompt], [(0, 0)])
    while engine.running:
        (event,) = engine.step()
        piece = text.push(event.token) if event.token != NO_TOKEN else ""
        if piece:
            yield piece
        if text.has_stopped:
            return
    rest = text.finish()
    if rest:
        yield rest


def _batch_size(job: _Job, prompts: Sequence[list[int]], limit: int) -> int:
    """How many prompts, at most `most`, fit into memory side by side; refuses what does not fit alone."""
    options, max_positions = job.options, max(prompts, key=len, default=[0])
    rows = Rows(options.beam_size or 1, len(max_positions) + options.max_new_tokens - 1)
    what, fix = (
        ("a row", "--max-new-tokens")
        if options.beam_size is None
        else (f"a beam of {rows.number} rows", "--beam-size or --max-new-tokens")
    )
    limit = min(limit, max_rows_in_memory(job.steps, rows, job.device, item=f"generate: {what}", fix=fix))
    some = max_positions[:MAX_PREFILL]
    if limit * len(some) > FEW:
        prompt = torch.tensor([some], device=job.device)
        with torch.no_grad():
            reading = measure_peak_memory(lambda number: job.steps.start(prompt.expand(number, -1)), 1)
        limit = min(limit, max(1, free(job.device) // max(1, reading)))
    return limit


def _read(job: _Job, prompt: str) -> list[int]:
    tokens: list[int] = [*(job.frame.bos_ids or [job.tokenizer.bos_id]), *job.tokenizer.encode(prompt).tolist()]
    check_length(job.steps.max_positions, len(tokens), job.options.max_new_tokens)
    return tokens


def generate(
    steps: IncrementalModel[Any],
    tokenizer: TokenDecoder,
    prompts: Sequence[str],
    options: GenerationConfig,
    *,
    frame: Frame,
    device: torch.device | str = "cpu",
    should_continue: ContinueCallback | None = None,
) -> list[list[Continuation]]:
    """The continuations of each prompt, of a text that stands in `frame`. A beam asks `going` before each token."""
    job = _Job(steps, tokenizer, options, frame, torch.device(device))
    read = [_read(job, prompt) for prompt in prompts]
    ordered = sorted(range(len(read)), key=lambda prompt: len(read[prompt]))  # neighbours in length waste little padding
    jobs = ((prompt, number) for prompt in ordered for number in range(options.num_samples))
    found: list[list[Continuation]] = [[] for _ in read]
    limit = min(len(read) * options.num_samples, max(1, ROWS // (options.beam_size or 1)))
    together = _batch_size(job, read, limit)
    total, before = math.ceil(len(read) / max(1, together)) * options.max_new_tokens, 0
    while batch := list(islice(jobs, together)):
        texts = [read[prompt] for prompt, _ in batch]
        if options.beam_size is None:
            results = [[one] for one in _sample(job, texts, batch)]
        else:
            results = _beam_search(job, texts, options.beam_size, _after(should_continue, before, total))
            before += options.max_new_tokens
        for (prompt, _), result in zip(batch, results, strict=True):
            found[prompt] += result
    return found


def _after(should_continue: ContinueCallback | None, before: int, total: int) -> Callable[[int], bool] | None:
    """The same question, asked by one batch of several."""
    return None if should_continue is None else lambda written: should_continue(before + written, total)


def stream(
    steps: IncrementalModel[Any],
    tokenizer: TokenDecoder,
    prompt: str,
    options: GenerationConfig,
    *,
    frame: Frame,
    device: torch.device | str = "cpu",
) -> Iterator[str]:
    """The first continuation that `generate` gives to [prompt], in pieces as they become certain (a beam's at once)."""
    job = _Job(steps, tokenizer, options, frame, torch.device(device))
    read = _read(job, prompt)
    _batch_size(job, [read], 1)
    return (
        _pieces(job, read)
        if options.beam_size is None
        else iter([_beam_search(job, [read], options.beam_size, None)[0][0].text])
    )
