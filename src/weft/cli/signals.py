"""Handling of Ctrl-C, SIGTERM and SIGHUP (a closed terminal). In training, the first signal saves and stops, the second stops
at once. Elsewhere the first signal stops the command."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SHOW_CURSOR = b"\x1b[?25h"


class Terminated(BaseException):
    """SIGTERM or SIGHUP: open files are closed and temporary files removed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def _handled_signals(numbers: Sequence[int]) -> list[int]:
    """The signals to handle: under nohup, SIGHUP is ignored."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Terminated while the block runs; a `Stop` inside it replaces the handlers."""

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # the shell and the system may each send one
            signal.signal(number, signal.SIG_IGN)
        raise Terminated(number)

    if threading.current_thread() is not threading.main_thread():  # Python delivers signals only there
        yield
        return
    previous = {number: signal.signal(number, handle) for number in _handled_signals((signal.SIGTERM, signal.SIGHUP))}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Stop:
    """Handles the signals while its block runs. Until `saves` is set, the first signal stops at once, since there is nothing to
    save. `action` describes what the first signal starts (empty: another process says it), `otherwise` what a second one does
    instead."""

    def __init__(self, action: str = "Saving", otherwise: str = "quit without saving") -> None:
        self.action, self.otherwise = action, otherwise
        self.number: int | None = None
        self.saves = False
        self._previous: dict[int, Any] = {}

    @property
    def is_requested(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        return 128 + (self.number or signal.SIGINT)

    def __enter__(self) -> Stop:
        for number in _handled_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested and number == signal.SIGHUP:
            return  # the shell and the system may each send one
        # os.write: the signal may have interrupted a print, which is not reentrant
        if self.is_requested:
            with suppress(OSError):
                os.write(2, (SHOW_CURSOR if sys.stderr.isatty() else b"") + b"\n")
            os._exit(128 + number)
        self.number = number
        if not self.saves:
            raise KeyboardInterrupt
        with suppress(OSError):  # the terminal is gone
            if not self.action:
                return
            os.write(2, f"\n{self.action} ... (press Ctrl-C again to {self.otherwise})\n".encode())
