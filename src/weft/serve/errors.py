"""Errors of a server, each with its HTTP status.

ServeError
├── BadRequest         400  the body is not JSON
├── Unauthorized       401  the key is missing or unknown
├── NotFound           404  unknown run, operation or path
├── WrongMethod        405
├── SlowRequest        408  the body did not arrive in time
├── TooLarge           413  body, text, or number of texts
├── WrongType          415  the body is not application/json
├── RunFailed          500  the model failed, such as by NaN; a bug
├── Overloaded         429  the queue is full
├── Unavailable        503  too little memory, a deadline, or the server stops
└── Cancelled          503  the request was given up; nobody reads the answer

Invalid values, `UsageError` and `DataError`, have status 422.
"""

from __future__ import annotations

from os import PathLike

from weft.errors import DataError, ModelError, ResourceError, UsageError, WeftError

UNPROCESSABLE = 422


class ServeError(WeftError):
    """`retry_after` are the seconds after which a client may try again; None: it should not."""

    status = 500

    def __init__(self, where: str | PathLike[str], problem: str, fix: str = "", *, retry_after: int | None = None) -> None:
        super().__init__(where, problem, fix)
        self.retry_after = retry_after


class BadRequest(ServeError):
    status = 400


class Unauthorized(ServeError):
    status = 401


class NotFound(ServeError):
    status = 404


class WrongMethod(ServeError):
    status = 405


class SlowRequest(ServeError):
    status = 408


class TooLarge(ServeError):
    status = 413


class WrongType(ServeError):
    status = 415


class RunFailed(ServeError):
    status = 500


class Overloaded(ServeError):
    status = 429


class Unavailable(ServeError):
    status = 503


class Cancelled(ServeError):
    status = 503


def status_of(error: WeftError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, ServeError):
        return error.status
    if isinstance(error, UsageError | DataError):
        return UNPROCESSABLE
    return Unavailable.status if isinstance(error, ResourceError) else RunFailed.status


def _is_out_of_memory(error: Exception) -> bool:
    # torch has no exception type for main memory; "can't allocate memory" is its message
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "t allocate memory" in str(error)


def failure(name: str, error: Exception, path: str = "") -> WeftError:
    """What the requests of a run get if computing them failed: errors of inputs and options as they are, but with the name of
    the run in place of its path; others with the name of the run, and without details of the machine."""
    if isinstance(error, ServeError):
        return error
    if isinstance(error, UsageError | DataError):
        hidden = [text.replace(path, name) if path else text for text in (error.where, error.problem, error.fix)]
        return (UsageError if isinstance(error, UsageError) else DataError)(*hidden)
    if isinstance(error, ResourceError) or _is_out_of_memory(error):
        problem = error.problem if isinstance(error, ResourceError) else "not enough memory"
        return Unavailable(f"run {name}", problem, "use less or shorter text", retry_after=1)
    if isinstance(error, ModelError):
        return RunFailed(f"run {name}", error.problem)
    return RunFailed(f"run {name}", "internal error", "the log of the server has the details")
