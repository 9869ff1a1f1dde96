"""Tables of routes. Each dialect, such as the native API, is one table over the same engine, with its own form of errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.config import Config
from weft.errors import WeftError

if TYPE_CHECKING:
    from starlette.responses import Response

    from weft.serve.call import Call


class Failure(NamedTuple):
    """An error of a request, for a dialect to write."""

    error: WeftError
    status: int
    request_id: str


def error_object(failure: Failure) -> dict[str, Any]:
    """The error of the native API."""
    error = failure.error
    fields = {"where": error.where, "problem": error.problem, "fix": error.fix, "message": str(error)}
    return {"error": {**fields, "request_id": failure.request_id}}


class Dialect(NamedTuple):
    """What is the same for all routes of an API."""

    name: str
    error_body: Callable[[Failure], dict[str, Any]] = error_object
    # the status that the clients of the API expect, such as 403 for a missing key; by default that of the error
    error_status: Callable[[Failure], int] = lambda failure: failure.status
    error_reply: type[Config] | None = None  # what `error_body` returns; None: that of the native API


NATIVE = Dialect("native")
Handler = Callable[["Call"], Awaitable["Response"]]


class Route(NamedTuple):
    """A path and what answers it."""

    method: str
    path: str
    handler: Handler
    summary: str
    dialect: Dialect = NATIVE
    body: type[Config] | None = None
    reply: Any = None  # the type of the answer
    is_open: bool = False  # needs no key, and answers while the server stops
    reads_key: bool = False  # the handler itself checks the key, because it is not in the head
    streams: bool = False  # may answer with server-sent events
    reads_forms: bool = False  # the body may be a form as well
