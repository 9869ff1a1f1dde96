"""HTTP/1.1 connections of uvicorn, with more limits: the time until the head of a request is there, the time that an answer
is not read, and their number."""

from __future__ import annotations

import asyncio
import struct
import sys
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


def num_undelivered(transport: asyncio.Transport) -> int:
    """Bytes that the client has not received: those that wait here, and, on Linux, those that wait in the buffer of the system.
    That has room for megabytes, and takes more only when a third of it is free: to a slow client, that takes minutes."""
    waiting, connection = transport.get_write_buffer_size(), transport.get_extra_info("socket")
    if sys.platform == "linux" and connection is not None:
        import fcntl
        import termios

        with suppress(OSError, ValueError):  # it is closed already
            waiting += struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
    return waiting


class LimitedProtocol(H11Protocol):
    """Closes connections whose head does not come, whose answer is not read, and those beyond the limit."""

    limits: ClassVar[Limits]
    head_timer: asyncio.TimerHandle | None = None
    reader_timer: asyncio.TimerHandle | None = None
    is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            problem = f"{self.limits.max_connections} connections are open already"
            self._refuse(Unavailable("server", problem, "try again later", retry_after=1))
            return
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        # after the last request of a connection, such as one with `Connection: close`, h11 would take them for an error
        if self.is_refused or self.conn.their_state is h11.MUST_CLOSE:
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
        is_unread = self.conn.their_state is h11.SEND_BODY  # before uvicorn goes on to the next request of the connection
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()
        elif is_unread:
            self.is_refused = True
            self._close_after(self.limits.body_seconds)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._unwatch_reader()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_reader()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        self._watch_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._unwatch_reader()
        super().connection_lost(exc)

    # ---- answers that are not read: without a limit, a client could keep them, and its connection, for ever

    def _watch_reader(self) -> None:
        self._unwatch_reader()
        if self not in self.connections:  # it is lost already
            return
        num_waiting = num_undelivered(self.transport)
        self.reader_timer = self.loop.call_later(self.limits.idle_seconds, self._check_reader, num_waiting)

    def _unwatch_reader(self) -> None:
        if self.reader_timer is not None:
            self.reader_timer.cancel()
            self.reader_timer = None

    def _check_reader(self, num_before: int) -> None:
        """Nothing is written while the client is watched: what waits only becomes less, if the client reads."""
        if num_undelivered(self.transport) >= num_before:
            self.transport.abort()
        else:
            self._watch_reader()

    # ---- heads

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
        self.loop.call_later(seconds, self._close)

    def _close(self) -> None:
        self.transport.close()
        self._watch_reader()


def protocol_class(limits: Limits) -> type[asyncio.Protocol]:
    """The class of connections for these limits."""
    return type("Connection", (LimitedProtocol,), {"limits": limits})
