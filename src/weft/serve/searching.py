"""Inputs of encoder-decoders as sentences or rows of a lane: `predict` with its search in the middle left to the lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from weft.decode.batch_size import MIN_CHECKED_TOKENS, Rows, max_texts_in_memory
from weft.decode.beam import BeamRequest, Hypothesis
from weft.decode.engine import Event, Request
from weft.decode.logits_processors import NO_TOKEN
from weft.decode.predict import (
    Job,
    as_prediction,
    as_predictions,
    beam_options,
    prepare,
    sampling_processor,
    sampling_request,
)
from weft.decode.prediction import Prediction
from weft.runs.run import AnyRun
from weft.serve.compute import is_whole, with_numbers
from weft.serve.generation import Processors
from weft.serve.jobs import Predict
from weft.serve.ticket import Finish, Ticket
from weft.tasks.spec import InvalidInput


class PredictSource:
    """A request for predictions whose search is done by a lane."""

    def __init__(self, ticket: Ticket[Any], job: Job, finish: Any, end: Finish) -> None:
        self.ticket, self.job, self._finish, self._end = ticket, job, finish, end
        self.outputs: list[list[Any]] = [[] for _ in job.limits]
        self._num_open = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to search for, such as for empty lines."""
        return not self.job.limits

    def open(self, count: int) -> None:
        self._num_open = count

    def close(self) -> None:
        """Note that one output has come; the last one ends the ticket."""
        self._num_open -= 1
        if self._num_open > 0:
            return
        try:
            results = self._finish(self.outputs)
        except Exception as error:  # such as of alignments; the lane goes on
            self._end(self.ticket, None, error)
        else:
            self._end(self.ticket, results)

    @torch.no_grad()
    def check_memory(self) -> None:
        """Refuse an output that does not fit into memory. Short ones always do."""
        request, options = self.job.request, self.job.options
        num_rows = 1 if options.is_sampling else options.resolved_beam_size
        row = max(range(len(self.job.limits)), key=self.job.limits.__getitem__, default=None)
        if row is None or num_rows * self.job.limits[row] < MIN_CHECKED_TOKENS:
            return
        rows = Rows(num_rows, len(request.prefixes[row]) + self.job.limits[row], request.encode([row]))
        max_texts_in_memory(request.model, rows, request.device, item="predict: a line", fix="`max_new_tokens`")

    @torch.no_grad()
    def state(self, row: int) -> Any:
        """The state of the decoder after encoding a source."""
        return self.job.request.encode([row])


def predict_source(run: AnyRun, ticket: Ticket[Any], end: Finish) -> PredictSource | None:
    """A request as a source for a lane; None if its task does not separate the search."""
    job: Predict = ticket.job
    decode = run.spec.decode
    if decode is None or decode.prepare_search is None:
        return None
    valid = [index for index, value in enumerate(job.inputs) if value is not None and not isinstance(value, InvalidInput)]
    options: Any = job.options if is_whole(job) else with_numbers(job.options, [index + 1 for index in valid])
    search = decode.prepare_search(run, [job.inputs[index] for index in valid], options)
    if search is None:
        return None

    def finish(outputs: list[list[Prediction]]) -> list[Any]:
        results: list[Any] = list(job.inputs)
        for index, result in zip(valid, search.finish(outputs), strict=True):
            results[index] = result
        return results

    source = PredictSource(ticket, prepare(search.request, options), finish, end)
    source.check_memory()
    return source


class SearchSource:
    """The sentences of a request with beams."""

    def __init__(self, shared: PredictSource) -> None:
        self.shared, self.ticket = shared, shared.ticket
        self._left = iter(range(len(shared.job.limits)))
        shared.open(len(shared.job.limits))

    def take(self) -> SearchSentence | None:
        self.ticket.start()
        row = next(self._left, None)
        return None if row is None else SearchSentence(self.shared, row)


class SearchSentence:
    """The search for the output of one input."""

    def __init__(self, shared: PredictSource, row: int) -> None:
        self.shared, self.row = shared, row
        request = shared.job.request
        self.request = BeamRequest(request.prompt(row), beam_options(shared.job, row))
        self.source = request.sources[row]  # encoded with those of other requests

    def finish(self, hypotheses: list[Hypothesis]) -> None:
        self.shared.outputs[self.row] = as_predictions(self.shared.job, self.row, hypotheses)
        self.shared.ticket.output_tokens += len(hypotheses[0].tokens) if hypotheses else 0
        self.shared.close()


class SampledSource:
    """The rows of a request that samples."""

    def __init__(self, shared: PredictSource, processors: Processors) -> None:
        self.shared, self.ticket = shared, shared.ticket
        job, options = shared.job, shared.job.options
        key = f"predict {sorted(job.banned_tokens)} {options.temperature} {options.top_k} {options.top_p}"
        self.processor = processors.get(key, lambda: sampling_processor(job))
        rows, samples = range(len(job.limits)), range(options.num_samples)
        self._left: Iterator[tuple[int, int]] = ((row, sample) for row in rows for sample in samples)
        self._latest: tuple[int, Any] = (-1, None)  # a row and its state, for its other samples
        shared.outputs = [[None] * options.num_samples for _ in rows]
        shared.open(len(rows) * options.num_samples)

    def take(self) -> SampledRow | None:
        self.ticket.start()
        numbers = next(self._left, None)
        if numbers is None:
            return None
        if numbers[0] != self._latest[0]:
            self._latest = (numbers[0], self.shared.state(numbers[0]))
        request = sampling_request(self.shared.job, self.processor, *numbers)
        return SampledRow(self.shared, numbers, request._replace(state=self._latest[1]))


class SampledRow:
    """One sample for one input."""

    def __init__(self, source: PredictSource, numbers: tuple[int, int], request: Request) -> None:
        self.source, self.numbers, self.request = source, numbers, request
        self._tokens, self._log_prob = list[int](), 0.0

    def push(self, event: Event, top: Sequence[tuple[int, float]]) -> bool:
        if event.token != NO_TOKEN:
            self._tokens.append(event.token)
            self._log_prob += event.log_prob
            self.source.ticket.output_tokens += 1
        if event.finish_reason is None:
            return False
        row, sample = self.numbers
        prediction = as_prediction(self.source.job, row, self._tokens, score=self._log_prob, log_prob=self._log_prob)
        self.source.outputs[row][sample] = prediction
        self.source.close()
        return True
