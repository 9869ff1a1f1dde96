"""The log of a server: one JSON object per line. Texts of requests are not in it, unless that is asked for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json


class Log:
    """Writes lines with `write`, which gets whole lines; calls of several threads do not mix."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write, self._lock = write, threading.Lock()

    def _line(self, values: dict[str, Any]) -> None:
        line = to_json(values, inf_nan_mode="null", fallback=repr).decode() + "\n"
        with self._lock:
            self._write(line)

    def request(self, fields: dict[str, Any]) -> None:
        """A request that was answered."""
        self._line({**fields, "time": _iso(fields["time"])})

    def event(self, text: str) -> None:
        """Something that happened to the server, such as new weights."""
        self._line({"time": _iso(datetime.now(UTC).timestamp()), "event": text})


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class LogHandler(logging.Handler):
    """Messages of the web server as lines of the log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.event(self.format(record))
