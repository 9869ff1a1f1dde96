"""Prompts of requests as rows of a lane, and rows as outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from weft.decode.batch_size import Rows, max_texts_in_memory
from weft.decode.engine import Event, Request
from weft.decode.generate import Continuation, SampledText, encode_prompt, sampling_processor, sampling_request
from weft.decode.generate import Job as Decoding
from weft.decode.logits_processors import NO_TOKEN, LogitsProcessor
from weft.runs.run import AnyRun
from weft.serve.errors import NotFound
from weft.serve.jobs import Chat, Chunk, Generate, Output, TokenRecord
from weft.serve.ticket import Ticket

EndCallback = Callable[[Ticket[Any], Any], None]  # the ticket and its result
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
        texts, frame = decode.frame_prompts(run, job.prompts)
    elif decode.frame_chat is None:
        raise NotFound(job.operation, f"models of task {run.task!r} do not talk")
    else:
        text, frame = decode.frame_chat(run, job.messages, job.options)
        texts = [text]
    decoding = Decoding(run.model, run.vocabulary, job.options, frame, run.device)
    prompts = Prompts(decoding, [encode_prompt(decoding, text) for text in texts])
    longest = max(map(len, prompts.tokens), default=1) + job.options.max_new_tokens - 1
    rows = Rows(job.options.beam_size or 1, longest)
    max_texts_in_memory(run.model, rows, run.device, item="generate: a row", fix="`max_new_tokens`")
    return prompts


class Processors:
    """The logits processors of a run by the options that they depend on: rows with the same one are processed in one call."""

    def __init__(self) -> None:
        self._processors: dict[str, LogitsProcessor] = {}

    def get(self, decoding: Decoding) -> LogitsProcessor:
        """The processor for sampling."""
        others = {"seed", "stop", "max_new_tokens", "min_new_tokens", "num_samples"}
        key = f"{decoding.eos_id} {decoding.options.model_dump_json(exclude=others)}"
        if len(self._processors) >= MAX_PROCESSORS and key not in self._processors:
            self._processors.clear()
        return self._processors.setdefault(key, sampling_processor(decoding))


class SampleSource:
    """The rows of a request that samples: each sample of each prompt."""

    def __init__(
        self, ticket: Ticket[Any], run: AnyRun, prompts: Prompts, processor: LogitsProcessor, end: EndCallback
    ) -> None:
        self.ticket, self.prompts, self.processor, self._end = ticket, prompts, processor, end
        self.token_text: Callable[[int], str] = run.vocabulary.token_text
        numbers = range(len(prompts.tokens))
        self._left: Iterator[tuple[int, int]] = (
            (prompt, sample) for prompt in numbers for sample in range(prompts.decoding.options.num_samples)
        )
        self.outputs: list[list[Output | None]] = [[None] * prompts.decoding.options.num_samples for _ in numbers]
        self._num_open = len(numbers) * prompts.decoding.options.num_samples
        ticket.prompt_tokens = sum(map(len, prompts.tokens))

    def take(self) -> SampleRow | None:
        self.ticket.start()
        numbers = next(self._left, None)
        return None if numbers is None else SampleRow(self, *numbers)

    def finish(self, prompt: int, sample: int, output: Output) -> None:
        """Take the output of a row; the last one ends the ticket."""
        self.outputs[prompt][sample] = output
        self._num_open -= 1
        if not self._num_open:
            self._end(self.ticket, self.outputs)


class SampleRow:
    """One sample of one prompt."""

    def __init__(self, source: SampleSource, prompt: int, sample: int) -> None:
        self.source, self.prompt, self.sample = source, prompt, sample
        tokens, decoding = source.prompts.tokens[prompt], source.prompts.decoding
        request = sampling_request(decoding, source.processor, tokens, (prompt, sample))
        self.request: Request = request._replace(num_top=source.ticket.job.num_top)
        self._text, self._tokens, self._num_sent = SampledText(decoding, tokens), list[TokenRecord](), 0

    def push(self, event: Event, top: Sequence[tuple[int, float]]) -> bool:
        chunk = self._text.push(event)
        if event.token != NO_TOKEN:
            self._tokens.append(self._record(event, top))
            self.source.ticket.output_tokens += 1
        if event.finish_reason is not None or self._text.has_stopped:
            self._finish(chunk)
            return True
        if chunk:
            self._send(chunk, None)
        return False

    def _record(self, event: Event, top: Sequence[tuple[int, float]]) -> TokenRecord:
        text = self.source.token_text
        return TokenRecord(text(event.token), event.log_prob, [(text(token), value) for token, value in top])

    def _send(self, text: str, finish_reason: str | None) -> None:
        ticket = self.source.ticket
        if not ticket.wants_events:
            ticket.emit([""])  # for its times
            return
        chunk = Chunk(self.prompt, self.sample, text, self._tokens[self._num_sent :], finish_reason)
        self._num_sent = len(self._tokens)
        ticket.emit([chunk])

    def _finish(self, chunk: str) -> None:
        rest, continuation = self._text.finish()
        self._send(chunk + rest, continuation.finish_reason)
        self.source.finish(self.prompt, self.sample, as_output(continuation, self._tokens))


def search(run: AnyRun, ticket: Ticket[Any]) -> list[list[Output]]:
    """The outputs of a beam search, in a call of its own."""
    ticket.prompt_tokens = sum(map(len, read_prompts(run, ticket.job).tokens))
    decode, job = run.spec.decode, ticket.job
    if isinstance(job, Generate):
        texts, frame = decode.frame_prompts(run, job.prompts)
    else:
        text, frame = decode.frame_chat(run, job.messages, job.options)
        texts = [text]
    from weft.decode.generate import generate

    outputs = [
        [as_output(each, [TokenRecord(run.vocabulary.token_text(token), None) for token in each.token_ids]) for each in ranked]
        for ranked in generate(run.model, run.vocabulary, texts, job.options, frame=frame, device=run.device)
    ]
    for prompt, ranked in enumerate(outputs):
        for sample, output in enumerate(ranked):
            ticket.output_tokens += len(output.tokens)
            ticket.emit([Chunk(prompt, sample, output.text, output.tokens, output.finish_reason)])
    return outputs


def as_output(continuation: Continuation, tokens: list[TokenRecord]) -> Output:
    return Output(continuation.text, continuation.finish_reason, continuation.score, continuation.log_prob, tokens)
