"""Generate text: continue prompts by sampling or beam search.

A prompt follows the opening of a text: <s>, or for running text the tokens that precede a new text, such as a newline. An empty
prompt is the opening alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import torch

from weft.decode import logits_processors as processors
from weft.decode.batch_size import MIN_CHECKED_TOKENS, Rows, max_texts_in_memory
from weft.decode.beam import BeamOptions, Hypothesis, beam_search
from weft.decode.detokenize import CachedDecoder, StreamingText, TokenDecoder, added_text, decode_until_stop
from weft.decode.engine import Engine, Event, FinishReason, Request, pad
from weft.decode.incremental import HasStepper, IncrementalModel
from weft.decode.logits_processors import NO_TOKEN, LogitsProcessor
from weft.decode.options import GenerationConfig, check_length, resolve_patience
from weft.resources import free_device_memory, measure_peak_memory

# called with the number of generated tokens and its maximum; False stops the search
ContinueCallback = Callable[[int, int], bool]
MAX_BATCH_ROWS = 64  # rows decoded at once
MAX_PREFILL = 512  # tokens of a prompt that are read to measure memory
MIN_MEASURED_TOKENS = 4096  # prompts with fewer tokens in total are read without measuring memory


class Continuation(NamedTuple):
    text: str  # without the prompt, up to a stop string
    token_ids: list[int]  # all generated tokens, including EOS and those of a stop string
    score: float  # ranks the hypotheses of a beam search: log_prob with length penalty
    log_prob: float  # of `token_ids`, under the model
    # EOS token, stop string, `max_new_tokens` (or a search that was interrupted), or no possible next token
    finish_reason: Literal["eos", "stop", "length", "stuck"]
    alternatives: tuple[Continuation, ...] = ()  # further continuations: the rest of the n-best list, or other samples

    def ranked(self) -> list[Continuation]:
        """This continuation and its alternatives, in order."""
        return [self._replace(alternatives=()), *self.alternatives]


class Frame(NamedTuple):
    """The tokens that precede and end a text."""

    eos_id: int | None  # None for running text
    bos_ids: Sequence[int] = ()  # empty: the BOS token
    left_out: int = 0  # messages of a conversation that do not fit


class Job(NamedTuple):
    """The arguments of a call, which all its batches share."""

    model: IncrementalModel[Any]
    tokenizer: TokenDecoder
    options: GenerationConfig
    frame: Frame
    device: torch.device

    @property
    def eos_id(self) -> int | None:
        return self.frame.eos_id


def _banned_tokens(job: Job) -> list[int]:
    """Tokens that are never generated."""
    # models of running text were trained without EOS
    return [job.tokenizer.unk_id, job.tokenizer.bos_id] + ([job.tokenizer.eos_id] if job.eos_id is None else [])


def _processors(job: Job) -> list[LogitsProcessor]:
    """The logits processors of the options, in the order of application."""
    options, steps = job.options, list[LogitsProcessor]()
    if options.no_repeat_ngram_size is not None:
        steps.append(processors.no_repeat_ngram(options.no_repeat_ngram_size))
    if options.repetition_penalty > 1:
        steps.append(processors.repetition_penalty(options.repetition_penalty))
    steps += processors.sampling_processors(temperature_value=options.temperature, k=options.top_k, p=options.top_p)
    if options.min_p is not None:
        steps.append(processors.min_p(options.min_p))
    return steps


def sampling_processor(job: Job) -> LogitsProcessor:
    """Everything that sampling applies: banned tokens, then the options."""
    return processors.compose([processors.ban_tokens(_banned_tokens(job)), *_processors(job)])


def sampling_request(job: Job, processor: LogitsProcessor | None, prompt: Sequence[int], row: tuple[int, int]) -> Request:
    """One sample of a prompt; `row` are its (prompt, sample) numbers in the whole call, which seed its random numbers."""
    options = job.options
    noise = None if options.temperature == 0 else processors.random_noise(options.seed, *row)
    return Request(prompt, options.max_new_tokens, job.eos_id, options.min_new_tokens, processor, noise)


class SampledText:
    """A continuation that grows by the events of an engine. Its text is decoded when it is read: at once at the end, unless it
    is streamed or may contain a stop string."""

    def __init__(self, job: Job, prompt: Sequence[int]) -> None:
        self._job, self._prompt = job, prompt
        self._text = StreamingText(job.tokenizer, prompt, job.options.stop)
        self._chunks, self._tokens, self._log_prob = list[str](), list[int](), 0.0
        self._num_read = 0  # tokens
        self._finish_reason: FinishReason = "length"

    @property
    def has_stopped(self) -> bool:
        """Whether a stop string has occurred in the text read so far."""
        return self._text.has_stopped

    def push(self, event: Event) -> None:
        """Add a token."""
        if event.finish_reason is not None:
            self._finish_reason = event.finish_reason
        if event.token != NO_TOKEN:
            self._tokens.append(event.token)
            self._log_prob += event.log_prob

    def read(self) -> str:
        """The text that has become final since the last call."""
        chunk = "".join([self._text.push(token) for token in self._tokens[self._num_read :]])
        self._chunks.append(chunk)
        self._num_read = len(self._tokens)
        return chunk

    def finish(self) -> tuple[str, Continuation]:
        """The rest of the text, and the whole continuation."""
        if self._num_read:
            rest = self.read() + self._text.finish()
            text, has_stopped = "".join([*self._chunks[:-1], rest]), self.has_stopped
        else:
            rest, has_stopped = decode_until_stop(self._job.tokenizer, self._prompt, self._tokens, self._job.options.stop)
            text = rest
        reason = "stop" if has_stopped else self._finish_reason
        return rest, Continuation(text, self._tokens, self._log_prob, self._log_prob, reason)


def _engine(job: Job, prompts: Sequence[list[int]], rows: Sequence[tuple[int, int]]) -> Engine[Any]:
    """An engine with a row for each prompt; `rows` are the (prompt, sample) numbers in the whole call."""
    processor = sampling_processor(job)
    engine: Engine[Any] = Engine(job.model, job.device)
    engine.admit([sampling_request(job, processor, prompt, row) for prompt, row in zip(prompts, rows, strict=True)])
    return engine


def _sample(job: Job, prompts: Sequence[list[int]], rows: Sequence[tuple[int, int]]) -> list[Continuation]:
    """Sample a continuation of each prompt; `rows` are the (prompt, sample) numbers in the whole call."""
    # inference mode is entered once for all tokens: a small model takes a tenth longer if each step enters and leaves it. Not
    # for models of others, which may keep a tensor that they need for gradients later
    mode = torch.inference_mode() if isinstance(job.model, HasStepper) else torch.no_grad()
    with mode:
        return _run_engine(job, prompts, rows)


def _run_engine(job: Job, prompts: Sequence[list[int]], rows: Sequence[tuple[int, int]]) -> list[Continuation]:
    decoding = job._replace(tokenizer=CachedDecoder(job.tokenizer))
    texts = [SampledText(decoding, prompt) for prompt in prompts]
    engine = _engine(job, prompts, rows)
    while engine.running:
        for event in engine.step():
            texts[event.row].push(event)
        if job.options.stop:
            for row in engine.running:
                texts[row].read()
            engine.cancel_all(row for row in engine.running if texts[row].has_stopped)
    return [text.finish()[1] for text in texts]


def contains_stop(job: Job, prompt: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether the text that the tokens add to a prompt contains a stop string."""
    text = added_text(job.tokenizer, prompt, tokens)
    return any(stop in text for stop in job.options.stop)


def beam_options(job: Job) -> BeamOptions:
    """The options of a beam search, without a callback."""
    options = job.options
    return BeamOptions(
        beam_size=options.beam_size or 1,
        max_new_tokens=options.max_new_tokens,
        eos_id=job.eos_id,
        length_penalty=options.length_penalty or 0.0,
        n_best=options.n_best,
        min_new_tokens=options.min_new_tokens,
        banned_tokens=_banned_tokens(job),
        patience=resolve_patience(options.patience, options.length_penalty or 0.0),
    )


def beam_processor(job: Job) -> LogitsProcessor | None:
    """What a beam search applies to log-probabilities."""
    steps = _processors(job)
    return processors.compose(steps) if steps else None


def _beam_search(
    job: Job, prompts: Sequence[list[int]], should_continue: Callable[[int], bool] | None
) -> list[list[Continuation]]:
    """The best continuations of each prompt. `should_continue` is called with the number of generated tokens; once it returns
    False, the search ends with its current hypotheses."""
    options = job.options

    def finished(rows: list[int], outputs: list[list[int]]) -> list[bool]:
        cancelled = should_continue is not None and not should_continue(len(outputs[0]))
        if cancelled or not options.stop:
            return [cancelled] * len(outputs)
        return [contains_stop(job, prompts[row], output) for row, output in zip(rows, outputs, strict=True)]

    search = beam_options(job)._replace(finished=finished if options.stop or should_continue is not None else None)
    prompt, token_mask = pad(prompts, job.device)
    results = beam_search(job.model, prompt, options=search, token_mask=token_mask, processor=beam_processor(job))
    return [
        [as_continuation(job, prompt, hypothesis) for hypothesis in hypotheses]
        for prompt, hypotheses in zip(prompts, results, strict=True)
    ]


def as_continuation(job: Job, prompt: list[int], hypothesis: Hypothesis) -> Continuation:
    text, has_stopped = decode_until_stop(job.tokenizer, prompt, hypothesis.tokens, job.options.stop)
    has_eos = job.eos_id is not None and hypothesis.tokens[-1:] == [job.eos_id]
    return Continuation(text, *hypothesis, "stop" if has_stopped else "eos" if has_eos else "length")


def _stream_chunks(job: Job, prompt: list[int]) -> Iterator[str]:
    text = SampledText(job, prompt)
    engine = _engine(job, [prompt], [(0, 0)])
    while engine.running and not text.has_stopped:
        (event,) = engine.step()
        text.push(event)
        if chunk := text.read():
            yield chunk
    rest, _ = text.finish()
    if rest:
        yield rest


def _batch_size(job: Job, prompts: Sequence[list[int]], limit: int) -> int:
    """The number of prompts, at most `limit`, that fit into memory at once; an error if one does not fit."""
    options, longest_prompt = job.options, max(prompts, key=len, default=[0])
    rows = Rows(options.beam_size or 1, len(longest_prompt) + options.max_new_tokens - 1)
    item, fix = (
        ("a row", "`max_new_tokens`")
        if options.beam_size is None
        else (f"a beam of {rows.num_rows} rows", "`beam_size` or `max_new_tokens`")
    )
    if limit * rows.num_rows * rows.max_tokens >= MIN_CHECKED_TOKENS:
        limit = min(limit, max_texts_in_memory(job.model, rows, job.device, item=f"generate: {item}", fix=fix))
    prefill = longest_prompt[:MAX_PREFILL]
    if limit * len(prefill) > MIN_MEASURED_TOKENS:
        prompt = torch.tensor([prefill], device=job.device)
        with torch.no_grad():
            peak = measure_peak_memory(lambda num_rows: job.model.start(prompt.expand(num_rows, -1)), 1)
        limit = min(limit, max(1, free_device_memory(job.device) // max(1, peak)))
    return limit


def encode_prompt(job: Job, prompt: str) -> list[int]:
    """The tokens before and of a prompt; an error if its continuation exceeds the positions of the model."""
    tokens: list[int] = [*(job.frame.bos_ids or [job.tokenizer.bos_id]), *job.tokenizer.encode(prompt).tolist()]
    check_length(job.model.max_positions, len(tokens), job.options.max_new_tokens)
    return tokens


def _with_offset(should_continue: ContinueCallback | None, done: int, total: int) -> Callable[[int], bool] | None:
    """The callback of one batch, which adds the tokens of the batches before it."""
    return None if should_continue is None else lambda generated: should_continue(done + generated, total)


def generate(
    model: IncrementalModel[Any],
    tokenizer: TokenDecoder,
    prompts: Sequence[str],
    options: GenerationConfig,
    *,
    frame: Frame,
    device: torch.device | str = "cpu",
    should_continue: ContinueCallback | None = None,
) -> list[list[Continuation]]:
    """The continuations of each prompt. `frame` gives the tokens around a text. Beam search calls `should_continue` before each
    token."""
    job = Job(model, tokenizer, options, frame, torch.device(device))
    tokens = [encode_prompt(job, prompt) for prompt in prompts]
    by_length = sorted(range(len(tokens)), key=lambda prompt: len(tokens[prompt]))  # similar lengths need little padding
    rows = ((prompt, sample) for prompt in by_length for sample in range(options.num_samples))
    results: list[list[Continuation]] = [[] for _ in tokens]
    limit = min(len(tokens) * options.num_samples, max(1, MAX_BATCH_ROWS // (options.beam_size or 1)))
    batch_size = _batch_size(job, tokens, limit)
    total, done = math.ceil(len(tokens) / max(1, batch_size)) * options.max_new_tokens, 0
    while batch := list(islice(rows, batch_size)):
        batch_tokens = [tokens[prompt] for prompt, _ in batch]
        if options.beam_size is None:
            continuations = [[sample] for sample in _sample(job, batch_tokens, batch)]
        else:
            continuations = _beam_search(job, batch_tokens, _with_offset(should_continue, done, total))
            done += options.max_new_tokens
        for (prompt, _), continuation in zip(batch, continuations, strict=True):
            results[prompt] += continuation
    return results


def stream(
    model: IncrementalModel[Any],
    tokenizer: TokenDecoder,
    prompt: str,
    options: GenerationConfig,
    *,
    frame: Frame,
    device: torch.device | str = "cpu",
) -> Iterator[str]:
    """The first continuation that `generate` returns for the prompt, in chunks as they become final; one chunk for a beam
    search."""
    job = Job(model, tokenizer, options, frame, torch.device(device))
    tokens = encode_prompt(job, prompt)
    _batch_size(job, [tokens], 1)
    return _stream_chunks(job, tokens) if options.beam_size is None else iter([_beam_search(job, [tokens], None)[0][0].text])
