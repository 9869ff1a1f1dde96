"""HTTP/1.1 connections of uvicorn, with two more limits: the time until the head of a request is there, and their number."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import ClassVar

import h11
from pydantic_core import to_json
from uvicorn.protocols.http.h11_impl import H11Protocol

from weft.serve.errors import ServeError, SlowRequest, Unavailable
from weft.serve.limits import Limits
from weft.serve.routes import Failure, error_object

CLOSE_SECONDS = 1.0
REASONS = {408: "Request Timeout", 503: "Service Unavailable"}


def raw_response(error: ServeError) -> bytes:
    """An answer without an application."""
    status = error.status
    body = to_json(error_object(Failure(error, status, "")))
    head = [f"HTTP/1.1 {status} {REASONS[status]}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    retry = [] if error.retry_after is None else [f"Retry-After: {error.retry_after}"]
    return "\r\n".join([*head, *retry, "Connection: close", "", ""]).encode() + body


class LimitedProtocol(H11Protocol):
    """Closes connections whose head does not come, and those beyond the limit."""

    limits: ClassVar[Limits]
    head_timer: asyncio.TimerHandle | None = None
    is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            problem = f"{self.limits.max_connections} connections are open already"
            self._refuse(Unavailable("server", problem, "try again later", retry_after=1))
            return
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self.is_refused:
            return
        super().data_received(data)
        # IDLE: the head of the next request is not complete
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self.head_timer is None:
            self._start_timer()

    def on_response_complete(self) -> None:
        """After an answer that came before the end of the body, such as 413, the rest is read and thrown away for as long
        as a body may take, and the connection is closed: uvicorn would wait for it without an end."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self.is_refused = True
            self._close_after(self.limits.body_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self.head_timer = self.loop.call_later(self.limits.head_seconds, self._late)

    def _stop_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def _late(self) -> None:
        self.head_timer = None
        if self.conn.their_state is h11.IDLE and self.conn.our_state is h11.IDLE:
            self._refuse(SlowRequest("head", f"not complete after {self.limits.head_seconds:g} seconds"))

    def _refuse(self, error: ServeError) -> None:
        """Answer and close. What the client still sends is read for a moment: if it were not, the system would throw the
        answer away."""
        self.is_refused = True
        if self.transport.is_closing():
            return
        self.transport.write(raw_response(error))
        self._close_after(CLOSE_SECONDS)

    def _close_after(self, seconds: float) -> None:
        with suppress(OSError):  # the client is gone already
            self.transport.write_eof()
        self.loop.call_later(seconds, self.transport.close)


def protocol_class(limits: Limits) -> type[asyncio.Protocol]:
    """The class of connections for these limits."""
    return type("Connection", (LimitedProtocol,), {"limits": limits})
