"""Ctrl-C, SIGTERM and SIGHUP (a terminal that is gone): while a run is trained, once saves and stops, twice stops now.
Elsewhere they stop what is done."""

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
    """SIGTERM or SIGHUP came: what is open is closed, what is temporary is removed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def _handled(numbers: Sequence[int]) -> list[int]:
    """Those of the signals that are to be heard: under nohup, SIGHUP is not."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Terminated while the block runs; `Stop` inside it takes its place."""

    def heard(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # the shell and the system may each send one
            signal.signal(number, signal.SIG_IGN)
        raise Terminated(number)

    if threading.current_thread() is not threading.main_thread():  # only there does Python hear signals
        yield
        return
    before = {number: signal.signal(number, heard) for number in _handled((signal.SIGTERM, signal.SIGHUP))}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stop:
    """Listens for the signals while its block runs. Until `saves` is set it stops at once: nothing is to be saved. `doing` is
    what the first one begins."""

    def __init__(self, doing: str = "saving") -> None:
        self.doing = doing
        self.number: int | None = None
        self.saves = False
        self._before: dict[int, Any] = {}

    @property
    def is_requested(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        return 128 + (self.number or signal.SIGINT)

    def __enter__(self) -> Stop:
        for number in _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested and number == signal.SIGHUP:
            return  # the shell and the system may each send one, and nobody is in a hurry
        # os.write: the signal may have come in the middle of a print, which can't be entered twice
        if self.is_requested:
            with suppress(OSError):
                os.write(2, (SHOW_CURSOR if sys.stderr.isatty() else b"") + b"\n")
            os._exit(128 + number)
        self.number = number
        if not self.saves:
            raise KeyboardInterrupt
        with suppress(OSError):  # there is no terminal any more
            os.write(2, f"\nweft: {self.doing}; press Ctrl-C again to exit now\n".encode())
