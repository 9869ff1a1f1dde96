"""One HTTP request: its body, the engine that it asks, and the answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic_core import from_json, to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from weft.config import Config, parse_config
from weft.errors import UsageError, WeftError
from weft.serve.engine import Engine
from weft.serve.errors import BadRequest, Cancelled, SlowRequest, TooLarge, Unavailable, WrongType, status_of
from weft.serve.jobs import Chunk, Job
from weft.serve.keys import Keys
from weft.serve.limits import Limits
from weft.serve.metrics import HttpCounters
from weft.serve.routes import Failure, Route
from weft.serve.ticket import Ticket

C = TypeVar("C", bound=Config)
_LONG_NUMBER = re.compile(rb"\d{19}")
MAX_FIELDS = 1000  # of an object of a body, and values of an option
R = TypeVar("R")
GRACE_SECONDS = 1.0  # after the deadline of a request, if the engine is busy


@dataclass
class Services:
    """What all requests share."""

    engine: Engine
    keys: Keys
    http: HttpCounters
    log: Callable[[dict[str, Any]], None]  # a line of the access log
    log_texts: bool = False
    is_draining: bool = False
    refuses_foreign_hosts: bool = False  # only the names of this machine are accepted as the host of a request

    @property
    def limits(self) -> Limits:
        return self.engine.limits


def check_sizes(body: dict[str, Any]) -> None:
    """Refuse objects with many fields, and options with many values: pydantic describes each one that is wrong, which takes
    seconds and gigabytes for a body of a few megabytes. (Other lists stop at the first one.)"""
    waiting: list[Any] = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise TooLarge("body", f"an object has {len(value):,} fields, more than {MAX_FIELDS:,}")
        inner = value.values() if isinstance(value, dict) else value
        waiting += [each for each in inner if isinstance(each, dict | list)]
    options = body.get("options")
    for name, value in options.items() if isinstance(options, dict) else ():
        if isinstance(value, list) and len(value) > MAX_FIELDS:
            raise TooLarge(f"options.{name}", f"{len(value):,} values are more than {MAX_FIELDS:,}")


def _scalars(value: Any) -> Iterator[Any]:
    """Everything in a body that is not an object or a list."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict | list):
            waiting += each.values() if isinstance(each, dict) else each
        else:
            yield each


def _fits(value: Any) -> bool:
    """Whether a number has at most 64 bits, as those of other programs do; longer ones cannot be formatted in messages."""
    return not isinstance(value, int) or -(1 << 63) <= value < 1 << 64


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A value as JSON; numbers that JSON does not have are null."""
    content = to_json(value, inf_nan_mode="null")
    return Response(content, status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


@dataclass
class Call:
    """A request, for a handler."""

    request: Request
    route: Route
    services: Services
    request_id: str
    fields: dict[str, Any] = field(default_factory=dict)  # for the access log

    @property
    def engine(self) -> Engine:
        return self.services.engine

    @property
    def limits(self) -> Limits:
        return self.services.limits

    # ---- reading

    async def body(self) -> bytes:
        """The body. Refused while it is read, if it is too large or too slow."""
        limit = self.limits.max_body_bytes
        problem = f"larger than {limit:,} bytes"
        length = self.request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length) > limit:
            raise TooLarge("body", problem, "send less in one request")
        content = bytearray()

        async def read() -> None:
            async for chunk in self.request.stream():
                content.extend(chunk)
                if len(content) > limit:
                    raise TooLarge("body", problem, "send less in one request")

        try:
            async with asyncio.timeout(self.limits.body_seconds):  # `wait_for` would start a task
                await read()
        except TimeoutError:
            raise SlowRequest("body", f"not complete after {self.limits.body_seconds:g} seconds") from None
        except ClientDisconnect:
            raise Cancelled("request", "the connection was closed") from None
        return bytes(content)

    @property
    def content_type(self) -> str:
        """The type of the body, such as application/json; "" if it is not stated."""
        return self.request.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def json(self, config_class: type[C]) -> C:
        """The body as an object of this class."""
        return parse_config(config_class, await self.json_values(), prefix="")

    async def json_values(self) -> dict[str, Any]:
        """The body as a JSON object, whose values are not checked."""
        if self.content_type != "application/json":
            raise WrongType("content-type", f"expected application/json, got {self.content_type or 'none'}")
        content = await self.body()
        try:
            values = from_json(content, allow_inf_nan=False)
        except ValueError as error:
            raise BadRequest("body", f"not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise UsageError("body", "expected a JSON object")
        check_sizes(values)
        if _LONG_NUMBER.search(content) and not all(map(_fits, _scalars(values))):
            raise UsageError("body", "a number has more than 64 bits")
        if self.services.log_texts:
            self.fields["body"] = values
        return values

    # ---- asking

    async def result(self, name: str, job: Job) -> Any:
        """The result of a job. If the client goes away, the job is given up."""
        loop = asyncio.get_running_loop()
        # set when the job ends, the client goes away or the time is over. It is awaited itself: `asyncio.wait` would take two
        # more turns of the loop, in each of which the thread of the engine may take the interpreter
        ended: asyncio.Future[None] = loop.create_future()
        self.fields |= {"run": name, "operation": job.operation}
        ticket = self.engine.submit(name, job, on_end=lambda _: _tell(loop, lambda: _resolve(ended)))
        gone = asyncio.ensure_future(self._disconnected())
        gone.add_done_callback(lambda _: _resolve(ended))
        timeout = self.limits.request_seconds + GRACE_SECONDS
        timer = loop.call_later(timeout, _resolve, ended)
        try:
            await ended
            if ticket.has_ended:
                self._count(ticket)
                return ticket.result(0)
            if gone.done():
                raise Cancelled("request", "the connection was closed")
            problem = f"not ready after {timeout:g} seconds"
            raise Unavailable(f"run {name}", problem, "ask for less", retry_after=1)
        finally:
            timer.cancel()
            gone.cancel()
            _give_up(ticket)

    async def _unless_gone(self, result: Awaitable[R]) -> R:
        """A result; an error if the client goes away before."""
        gone, waiting = asyncio.ensure_future(self._disconnected()), asyncio.ensure_future(result)
        try:
            await asyncio.wait([gone, waiting], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            waiting.cancel()
            await asyncio.wait([waiting])
            raise Cancelled("request", "the connection was closed")
        finally:
            gone.cancel()

    async def _disconnected(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    async def chunks(self, name: str, job: Job) -> AsyncIterator[Chunk]:
        """The text of a job as it grows. Leaving the loop gives the job up."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Chunk | None]()
        self.fields |= {"run": name, "operation": job.operation, "stream": True}
        ticket = self.engine.submit(
            name,
            job,
            on_event=lambda chunk: _tell(loop, lambda: queue.put_nowait(chunk)),
            on_end=lambda _: _tell(loop, lambda: queue.put_nowait(None)),
        )
        timeout = self.limits.request_seconds + GRACE_SECONDS
        timer = loop.call_later(timeout, queue.put_nowait, None)  # if the engine is busy
        try:
            while (chunk := await queue.get()) is not None:
                yield chunk
            if not ticket.has_ended:
                raise Unavailable(f"run {name}", f"not ready after {timeout:g} seconds", "ask for less", retry_after=1)
            ticket.result(0)
        finally:
            timer.cancel()
            self._count(ticket)
            _give_up(ticket)

    def _count(self, ticket: Any) -> None:
        if ticket.prompt_tokens or ticket.output_tokens:
            self.fields |= {"prompt_tokens": ticket.prompt_tokens, "output_tokens": ticket.output_tokens}

    # ---- answering

    def failure(self, error: WeftError) -> Failure:
        return Failure(error, status_of(error), self.request_id)

    async def event_stream(
        self, name: str, job: Job, write: Callable[[Chunk], list[Any]], last: Callable[[], list[Any]] = list
    ) -> Response:
        """Server-sent events for a job: what `write` makes of each chunk, then what `last` returns, and [DONE]. Errors before
        the first chunk are raised, so that they have their status."""
        chunks = self.chunks(name, job)
        try:
            first = await self._unless_gone(anext(chunks, None))
        except BaseException:
            await chunks.aclose()  # type: ignore[attr-defined]  # an asynchronous generator
            raise

        async def lines() -> AsyncIterator[bytes]:
            try:
                for event in [] if first is None else write(first):
                    yield _event(event)
                async for chunk in chunks:
                    for event in write(chunk):
                        yield _event(event)
                for event in last():
                    yield _event(event)
                yield b"data: [DONE]\n\n"
            except WeftError as error:
                self.fields["error"] = error.problem
                yield _event(self.route.dialect.error_body(self.failure(error)))
            finally:
                await chunks.aclose()  # type: ignore[attr-defined]

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


def _event(value: Any) -> bytes:
    return b"data: " + to_json(value, inf_nan_mode="null") + b"\n\n"


def _give_up(ticket: Ticket[Any]) -> None:
    """Cancel a request that has not ended. (To cancel one that has would wake the engine while the answer is sent.)"""
    if not ticket.has_ended:
        ticket.cancel()


def _resolve(ended: asyncio.Future[None]) -> None:
    """Set a future, unless nobody waits for it any more."""
    if not ended.done():
        ended.set_result(None)


def _tell(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Run an action in the event loop, from another thread; nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(action)
