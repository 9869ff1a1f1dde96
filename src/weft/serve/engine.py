"""The engine: one thread that owns the models of several runs and computes requests in batches.

Requests that generate tokens are rows of a lane (`lane`), which enter and leave between steps. Others are gathered (`gather`):
inputs of the same run, operation and options are computed in one call. Explanations run between the steps, since they attach
hooks to the model. Every request gets the result that it would get alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.decode.options import GenerationConfig, options_from
from weft.errors import UsageError, WeftError, unknown_name
from weft.runs.engines import TORCH, check_engine
from weft.serve.counters import Counters
from weft.serve.errors import Cancelled, NotFound, Overloaded, Unavailable, failure
from weft.serve.jobs import Chat, Chunk, Embed, Explain, Generate, Job, Output, Predict, Score
from weft.serve.limits import Limits
from weft.serve.reload import Reloader
from weft.serve.served_run import LoadOptions, ServedRun
from weft.serve.ticket import Ticket
from weft.serve.work import Worker
from weft.tasks.spec import InvalidInput, raise_first_invalid

POLL_SECONDS = 0.05  # between checks of deadlines
MAX_RETRY_SECONDS = 60
JOIN_SECONDS = 5.0  # at the end, for the current call and for a run that is loaded
Runs = Mapping[str, str | Path]


class Engine:
    """Serves runs by name.

    Args:
        runs: The run directories by name.
        limits: The limits of requests; see `Limits`.
        device: "cpu", "cuda", or "auto" for the GPU if there is one.
        engine: "torch", or "ctranslate2" to decode encoder-decoders with CTranslate2, as in `weft.load`.
        quantization: The precision of the weights of CTranslate2.
        log: Called with a line for each event that a person should see, such as new weights.

    Example:
        >>> with Engine({"names": "runs/names"}) as engine:
        ...     engine.generate("names", "Ma", temperature=0)[0].text
    """

    def __init__(
        self,
        runs: Runs,
        *,
        limits: Limits | None = None,
        device: str = "auto",
        engine: str = TORCH,
        quantization: str | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        check_engine(engine, quantization)
        self.limits = limits or Limits()
        self.log = log or (lambda line: None)
        self.counters = Counters()
        options = LoadOptions(device, engine, quantization)
        served = {name: ServedRun(name, Path(path), options=options, limits=self.limits) for name, path in runs.items()}
        if not served:
            raise UsageError("runs", "there is no run to serve")
        for each in served.values():
            _ = each.info  # before the thread owns the models
        if engine != TORCH and not any(each.run.decoder is not None for each in served.values()):
            raise UsageError("engine", f"{engine!r} is not used: there is no encoder-decoder", "remove it")
        self._worker = Worker(served, self.counters, self.log)
        self._condition = threading.Condition()
        self._inbox: deque[Ticket[Any]] = deque()
        self._given_up: deque[Ticket[Any]] = deque()
        self._live: dict[int, Ticket[Any]] = {}  # tickets that have not ended
        self._is_stopping = False
        self._reloader = Reloader(self._worker, self._condition, options=options, limits=self.limits, log=self.log)
        self._thread = threading.Thread(target=self._loop, name="weft-engine", daemon=True)
        self._thread.start()

    # ---- requests

    @property
    def runs(self) -> Mapping[str, ServedRun]:
        """The runs by name, each in its current version."""
        return self._worker.runs

    def served(self, name: str) -> ServedRun:
        """A run by its name."""
        if name not in self._worker.runs:
            raise NotFound("run", *unknown_name("run", name, self._worker.runs))
        return self._worker.runs[name]

    def submit(
        self,
        name: str,
        job: Job,
        *,
        on_event: Callable[[Any], None] | None = None,
        on_end: Callable[[Ticket[Any]], None] | None = None,
        seconds: float | None = None,
    ) -> Ticket[Any]:
        """Ask something of a run, and return at once.

        Args:
            name: The name of the run.
            job: What is asked.
            on_event: Called with a `Chunk` for each piece of text that is generated.
            on_end: Called with the ticket when it has a result or an error. Both are called by the thread of the engine.
            seconds: The time after which the request ends with an error; default and maximum: `limits.request_seconds`.

        Raises:
            NotFound: The run is unknown, or does not have the operation.
            Overloaded: Too many requests wait.
            Unavailable: The engine stops.
        """
        served = self.served(name)
        if job.operation not in served.operations:
            problem = f"{job.operation} is not available for a {served.run.spec.model_noun}"
            raise NotFound(f"run {name}", problem, f"choose from {', '.join(served.operations)}")
        limit = self.limits.request_seconds
        seconds = limit if seconds is None else min(seconds, limit)
        ticket: Ticket[Any] = Ticket(name, job, seconds=seconds, on_event=on_event, on_end=on_end, wake=self._give_up)
        with self._condition:
            if self._is_stopping:
                raise Unavailable("server", "is stopping", "try another server", retry_after=1)
            if self.num_waiting >= self.limits.max_queue:
                self.counters.refused += 1
                problem = f"{self.limits.max_queue} requests wait already"
                raise Overloaded("server", problem, "try again later", retry_after=self._retry_seconds())
            self._live[ticket.number] = ticket
            self._inbox.append(ticket)
            self._condition.notify()
        return ticket

    @property
    def num_waiting(self) -> int:
        """Requests that have not started."""
        return sum(ticket.timing.started is None for ticket in list(self._live.values()))

    @property
    def num_running(self) -> int:
        """Requests that have started and not ended."""
        return len(self._live) - self.num_waiting

    @property
    def num_rows(self) -> int:
        """Rows that are decoded now."""
        return self._worker.num_rows

    @property
    def is_alive(self) -> bool:
        """Whether requests are accepted and computed."""
        return self._thread.is_alive() and not self._is_stopping

    @property
    def is_busy(self) -> bool:
        """Whether a thread of the engine runs, which computes or loads even after `close`."""
        return self._thread.is_alive() or self._reloader.is_alive

    def _retry_seconds(self) -> int:
        """An estimate of the seconds until a waiting request has started."""
        return max(1, min(MAX_RETRY_SECONDS, round(self.num_waiting * self.counters.mean_seconds / self.limits.max_rows)))

    def _give_up(self, ticket: Ticket[Any]) -> None:
        with self._condition:
            self._given_up.append(ticket)
            self._condition.notify()

    # ---- blocking calls

    def predict(self, name: str, inputs: Any, **kwargs: Any) -> Any:
        """`Run.predict` of a run, in a batch with others: one input gives one prediction, a list gives a list."""
        run = self.served(name).run
        is_single = run.spec.is_single(run, inputs)
        options = options_from(run.spec.predict_options, None, kwargs)
        results: list[Any] = self.submit(name, Predict([inputs] if is_single else list(inputs), options)).result()
        predictions = raise_first_invalid(results)
        return predictions[0] if is_single else predictions

    def generate(self, name: str, prompts: str | list[str] = "", *, num_top: int = 0, **kwargs: Any) -> list[Any]:
        """The outputs for a prompt, best first; a list of them for each prompt of a list."""
        options = options_from(GenerationConfig, None, kwargs)
        is_single = isinstance(prompts, str)
        job = Generate([prompts] if isinstance(prompts, str) else prompts, options, num_top)
        outputs: list[list[Output]] = self.submit(name, job).result()
        return outputs[0] if is_single else outputs

    def chat(self, name: str, messages: list[tuple[str, str]], **kwargs: Any) -> list[Output]:
        """The responses to a conversation of (role, text) messages."""
        outputs: list[list[Output]] = self.submit(name, Chat(messages, options_from(GenerationConfig, None, kwargs))).result()
        return outputs[0]

    def stream(self, name: str, prompt: str = "", **kwargs: Any) -> Iterator[Chunk]:
        """Continue a prompt and yield its text as it grows. Leaving the loop gives the request up."""
        from queue import SimpleQueue

        events: SimpleQueue[Chunk | None] = SimpleQueue()
        job = Generate([prompt], options_from(GenerationConfig, None, kwargs))
        ticket = self.submit(name, job, on_event=events.put, on_end=lambda _: events.put(None))
        try:
            while (chunk := events.get()) is not None:
                yield chunk
            ticket.result()
        finally:
            ticket.cancel()

    def score(self, name: str, inputs: list[Any], *, truncate: bool = False) -> list[Any]:
        """`Run.score` of a list."""
        return raise_first_invalid(self.submit(name, Score(inputs, truncate)).result())

    def embed(self, name: str, texts: list[Any], *, pooling: str = "mean") -> list[Any]:
        """`Run.embed`: a vector per text."""
        vectors: list[Any] = self.submit(name, Embed(texts, pooling)).result()
        return vectors

    def explain(self, name: str, text: Any, view: str | None = None, **kwargs: Any) -> Any:
        """`Run.explain`."""
        return self.submit(name, Explain(text, view, kwargs)).result()

    def try_predict(self, name: str, inputs: list[Any], **kwargs: Any) -> list[Any | InvalidInput]:
        """`Run.try_predict` of a list."""
        options = options_from(self.served(name).run.spec.predict_options, None, kwargs)
        results: list[Any] = self.submit(name, Predict(inputs, options)).result()
        return results

    # ---- the end

    def abort(self) -> None:
        """Accept no more requests, and end those that wait or run with an error."""
        with self._condition:
            self._is_stopping = True
        for ticket in list(self._live.values()):
            self._end_with(ticket, Unavailable("server", "is stopping", "try again later", retry_after=1))
            ticket.cancel()

    def close(self, seconds: float = 0.0) -> None:
        """Accept no more requests, wait up to `seconds` for those that run, and end the others with an error."""
        with self._condition:
            self._is_stopping = True
        self._reloader.stop()
        until = time.monotonic() + seconds
        while self._live and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        self.abort()
        with self._condition:
            self._worker.is_closed = True
            self._condition.notify()
        until = time.monotonic() + JOIN_SECONDS
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)
        self._reloader.join(max(0.0, until - time.monotonic()))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    # ---- the thread

    def _loop(self) -> None:
        next_check = 0.0
        while not self._worker.is_closed:
            with self._condition:
                if not (self._inbox or self._given_up or self._worker.is_ready):
                    self._condition.wait(self._worker.delay(POLL_SECONDS if self._live else None))
                new, given_up = list(self._inbox), list(self._given_up)
                self._inbox.clear()
                self._given_up.clear()
            for ticket in given_up:
                self._worker.cancel(ticket)
                self._end_with(ticket, Cancelled(f"run {ticket.run}", "the request was given up"))
            if (now := time.monotonic()) >= next_check:
                self._end_late(now)
                next_check = now + POLL_SECONDS
            for ticket in new:
                if not ticket.has_ended:
                    self._worker.place(ticket, self._finish)
            self._worker.tick(self._finish)

    def _finish(self, ticket: Ticket[Any], result: Any, error: Exception | None = None) -> None:
        """End a ticket with its result, or with the error that it caused."""
        if error is None:
            with suppress(RuntimeError):  # the loop of the caller is closed
                self._forget(ticket, ticket.end(result))
        else:
            self._end_with(ticket, failure(ticket.run, error, str(self.served(ticket.run).path)))

    def _end_with(self, ticket: Ticket[Any], error: WeftError) -> None:
        with suppress(RuntimeError):  # as above
            self._forget(ticket, ticket.end(error=error))

    def _forget(self, ticket: Ticket[Any], is_new: bool) -> None:
        with self._condition:
            self._live.pop(ticket.number, None)
        if is_new:
            self.counters.ended(ticket)

    def _end_late(self, now: float) -> None:
        """End the requests whose time is over."""
        for ticket in [ticket for ticket in list(self._live.values()) if now >= ticket.deadline]:
            self._worker.cancel(ticket)
            problem = f"not ready after {ticket.seconds:g} seconds"
            self._end_with(ticket, Unavailable(f"run {ticket.run}", problem, "ask for less text", retry_after=1))
