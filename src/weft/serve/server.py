"""The process that serves: uvicorn with the application, and an orderly end."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from weft.errors import ResourceError
from weft.serve.access_log import Log, LogHandler
from weft.serve.call import Services
from weft.serve.protocol import protocol_class

MAX_HEAD_BYTES = 16_384
CLOSE_SECONDS = 5  # for the last answers to be sent


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with the number of the protocol: asyncio sets TCP_NODELAY only then, and without it an answer waits 40 ms for the client
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ResourceError(f"{host}:{port}", f"cannot listen: {reason}", "choose another `port` or `host`") from None
    listener.set_inheritable(True)
    return listener


class Server(uvicorn.Server):
    """The first SIGTERM or Ctrl-C drains: requests that run end, new ones get status 503. A second one ends at once."""

    def __init__(self, config: uvicorn.Config, services: Services, should_stop: Callable[[], bool]) -> None:
        super().__init__(config)
        self._services, self._should_stop = services, should_stop
        self._drain_until: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._drain_until is not None:
            self.force_exit = self.should_exit = True
            return
        self._services.is_draining = True
        self._drain_until = time.monotonic() + self._services.limits.drain_seconds

    async def on_tick(self, counter: int) -> bool:
        if self._drain_until is None and self._should_stop():
            self.handle_exit(0, None)
        if self._drain_until is not None and not self._services.http.active:
            return True
        if self._drain_until is not None and time.monotonic() >= self._drain_until:
            self._services.engine.abort()
            return True
        return await super().on_tick(counter)


def serve(
    app: Starlette,
    services: Services,
    listener: socket.socket,
    log: Log,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Answer requests until a signal, or `should_stop`, which is called ten times per second, ends the server."""
    limits = services.limits
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], False
    logging.getLogger("uvicorn.error").addHandler(LogHandler(log))
    config = uvicorn.Config(
        app,
        http=protocol_class(limits),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=max(1, round(limits.idle_seconds)),
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    Server(config, services, should_stop).run(sockets=[listener])
    services.engine.close()
