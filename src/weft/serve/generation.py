"""Prompts of requests as rows of a lane, and rows as outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from weft.decode.batch_size import MIN_CHECKED_TOKENS, Rows, max_texts_in_memory
from weft.decode.beam import BeamRequest, Hypothesis
from weft.decode.engine import Event, Request
from weft.decode.generate import (
    Continuation,
    SampledText,
    as_continuation,
    beam_options,
    beam_processor,
    contains_stop,
    encode_prompt,
    sampling_processor,
    sampling_request,
)
from weft.decode.generate import Job as Decoding
from weft.decode.logits_processors import NO_TOKEN, LogitsProcessor
from weft.runs.run import AnyRun
from weft.serve.errors import NotFound
from weft.serve.jobs import Chat, Chunk, Generate, Output, TokenRecord
from weft.serve.prompt_tokens import forced, opening, refuse_prompts, with_opening
from weft.serve.ticket import Finish, Ticket

MAX_PROCESSORS = 256


class Prompts(NamedTuple):
    """The prompts of a request as tokens, and how they are continued."""

    decoding: Decoding
    tokens: list[list[int]]


def read_prompts(run: AnyRun, job: Generate | Chat) -> Prompts:
    """The prompts of a request. Raises if they cannot be continued."""
    decode = run.spec.decode
    if decode is None or decode.frame_prompts is None:
        raise NotFound(job.operation, f"models of task {run.task!r} do not generate text")
    if isinstance(job, Generate):
        refuse_prompts(run, job)
        texts, frame = decode.frame_prompts(run, [prompt if isinstance(prompt, str) else "" for prompt in job.prompts])
    elif decode.frame_chat is None:
        raise NotFound(job.operation, f"models of task {run.task!r} do not talk")
    else:
        text, frame = decode.frame_chat(run, job.messages, job.options)
        texts = [text]
    decoding = Decoding(run.model, run.vocabulary, job.options, frame, run.device)
    tokens = [encode_prompt(decoding, text) for text in texts]
    if isinstance(job, Generate):
        for index, prompt in enumerate(job.prompts):
            if not isinstance(prompt, str):
                tokens[index] = with_opening(decoding, prompt)
    prompts = Prompts(decoding, tokens)
    longest = max(map(len, prompts.tokens), default=1) + job.options.max_new_tokens - 1
    rows = Rows(job.options.beam_size or 1, longest)
    if rows.num_rows * rows.max_tokens >= MIN_CHECKED_TOKENS:
        max_texts_in_memory(run.model, rows, run.device, item="generate: a row", fix="`max_new_tokens`")
    return prompts


class Processors:
    """The logits processors of a run by the options that they depend on: rows with the same one are processed in one call."""

    def __init__(self) -> None:
        self._processors: dict[str, LogitsProcessor | None] = {}

    def get(self, key: str, make: Callable[[], LogitsProcessor | None]) -> LogitsProcessor | None:
        """The processor of a key; a new one if the key is new."""
        if key not in self._processors:
            if len(self._processors) >= MAX_PROCESSORS:
                self._processors.clear()
            self._processors[key] = make()
        return self._processors[key]

    def of_prompts(self, decoding: Decoding) -> LogitsProcessor | None:
        """The processor for the options of a request that generates."""
        others = {"seed", "stop", "max_new_tokens", "min_new_tokens", "num_samples", "n_best", "length_penalty", "patience"}
        key = f"generate {decoding.eos_id} {decoding.options.model_dump_json(exclude=others)}"
        make = sampling_processor if decoding.options.beam_size is None else beam_processor
        return self.get(key, lambda: make(decoding))


class GenerateSource:
    """What the rows of one request share: its prompts, and the outputs so far."""

    def __init__(self, ticket: Ticket[Any], run: AnyRun, prompts: Prompts, processors: Processors, end: Finish) -> None:
        self.ticket, self.prompts, self._end = ticket, prompts, end
        self.processor = processors.of_prompts(prompts.decoding)
        self.token_text: Callable[[int], str] = run.vocabulary.token_text
        self.outputs: list[list[Output | None]] = [[] for _ in prompts.tokens]
        self._num_open = 0
        ticket.prompt_tokens = sum(map(len, prompts.tokens))

    def open(self, count: int) -> None:
        """Expect this many outputs."""
        self._num_open = count

    def finish(self, count: int = 1) -> None:
        """Note that outputs have come; the last one ends the ticket."""
        self._num_open -= count
        if not self._num_open:
            self._end(self.ticket, self.outputs)


class SampleSource:
    """The rows of a request that samples: each sample of each prompt."""

    def __init__(self, shared: GenerateSource) -> None:
        self.shared, self.ticket = shared, shared.ticket
        num_prompts, num_samples = len(shared.prompts.tokens), shared.prompts.decoding.options.num_samples
        self._left: Iterator[tuple[int, int]] = (
            (prompt, sample) for prompt in range(num_prompts) for sample in range(num_samples)
        )
        shared.outputs = [[None] * num_samples for _ in range(num_prompts)]
        shared.open(num_prompts * num_samples)

    def take(self) -> SampleRow | None:
        self.ticket.start()
        numbers = next(self._left, None)
        return None if numbers is None else SampleRow(self.shared, *numbers)


class SampleRow:
    """One sample of one prompt."""

    def __init__(self, source: GenerateSource, prompt: int, sample: int) -> None:
        self.source, self.prompt, self.sample = source, prompt, sample
        tokens, decoding = source.prompts.tokens[prompt], source.prompts.decoding
        request = sampling_request(decoding, source.processor, tokens, (prompt, sample))
        self.request: Request = request._replace(num_top=source.ticket.job.num_top)
        self._num_forced, self._prompt_tokens = 0, list[TokenRecord]()
        if source.ticket.job.scores_prompts:
            num_opening = len(opening(decoding))
            self._num_forced = len(tokens) - num_opening
            self.request = forced(self.request, num_opening)
        self._text, self._tokens, self._num_sent = SampledText(decoding, tokens), list[TokenRecord](), 0
        # otherwise the text is decoded at once at the end
        self._is_read = source.ticket.wants_events or bool(decoding.options.stop)

    def _record(self, event: Event, top: Sequence[tuple[int, float]]) -> TokenRecord:
        text = self.source.token_text
        return TokenRecord(text(event.token), event.log_prob, [(text(token), log_prob) for token, log_prob in top])

    def push(self, event: Event, top: Sequence[tuple[int, float]]) -> bool:
        if len(self._prompt_tokens) < self._num_forced:
            self._prompt_tokens.append(self._record(event, top))
            return False
        self._text.push(event)
        if event.token != NO_TOKEN:
            self._tokens.append(self._record(event, top))
            self.source.ticket.output_tokens += 1
            self.source.ticket.note_token()
        chunk = self._text.read() if self._is_read else ""
        if event.finish_reason is not None or self._text.has_stopped:
            rest, continuation = self._text.finish()
            self._send(chunk + rest, continuation.finish_reason)
            output = as_output(continuation, self._tokens)._replace(prompt_tokens=self._prompt_tokens)
            self.source.outputs[self.prompt][self.sample] = output
            self.source.finish()
            return True
        if chunk:
            self._send(chunk, None)
        return False

    def _send(self, text: str, finish_reason: str | None) -> None:
        ticket = self.source.ticket
        if ticket.wants_events:
            ticket.emit(Chunk(self.prompt, self.sample, text, self._tokens[self._num_sent :], finish_reason))
            self._num_sent = len(self._tokens)


class BeamSource:
    """The sentences of a request with beams: one per prompt."""

    def __init__(self, shared: GenerateSource) -> None:
        self.shared, self.ticket = shared, shared.ticket
        self._left = iter(range(len(shared.prompts.tokens)))
        shared.open(len(shared.prompts.tokens))

    def take(self) -> BeamSentence | None:
        self.ticket.start()
        prompt = next(self._left, None)
        return None if prompt is None else BeamSentence(self.shared, prompt)


class BeamSentence:
    """The search for the continuations of one prompt."""

    source = None

    def __init__(self, shared: GenerateSource, prompt: int) -> None:
        self.shared, self.prompt = shared, prompt
        decoding, tokens = shared.prompts.decoding, shared.prompts.tokens[prompt]

        def finished(_: list[int], outputs: list[list[int]]) -> list[bool]:
            return [contains_stop(decoding, tokens, output) for output in outputs]

        options = beam_options(decoding)._replace(finished=finished if decoding.options.stop else None)
        self.request = BeamRequest(tokens, options, processor=shared.processor)

    def finish(self, hypotheses: list[Hypothesis]) -> None:
        source, tokens = self.shared, self.shared.prompts.tokens[self.prompt]
        source.ticket.note_token()
        for sample, hypothesis in enumerate(hypotheses):
            continuation = as_continuation(source.prompts.decoding, tokens, hypothesis)
            records = [TokenRecord(source.token_text(token), None) for token in continuation.token_ids]
            source.outputs[self.prompt].append(as_output(continuation, records))
            source.ticket.output_tokens += len(records)
            source.ticket.emit(Chunk(self.prompt, sample, continuation.text, records, continuation.finish_reason))
        source.finish()


def as_output(continuation: Continuation, tokens: list[TokenRecord]) -> Output:
    return Output(continuation.text, continuation.finish_reason, continuation.score, continuation.log_prob, tokens)
