"""Ctrl-C and SIGTERM: while a run is trained, once saves and stops, twice stops now; elsewhere they stop what is done."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SHOW_CURSOR = b"\x1b[?25h"


class Terminated(BaseException):
    """SIGTERM came: what is open is closed, what is temporary is removed."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises Terminated while the block runs; `Stop` inside it takes its place."""

    def heard(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only there does Python hear signals
        yield
        return
    before = signal.signal(signal.SIGTERM, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Stop:
    """Listens for both signals while its block runs. Until `saves` is set it stops at once: nothing is to be saved. `doing` is
    what the first one begins."""

    def __init__(self, doing: str = "saving") -> None:
        self.doing = doing
        self.number: int | None = None
        self.saves = False
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        return 128 + (self.number or signal.SIGINT)

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        # os.write: the signal may have come in the middle of a print, which can't be entered twice
        if self.asked:
            os.write(2, (SHOW_CURSOR if sys.stderr.isatty() else b"") + b"\n")
            os._exit(128 + number)
        self.number = number
        if not self.saves:
            raise KeyboardInterrupt
        os.write(2, f"\nweft: {self.doing}; press Ctrl-C again to exit now\n".encode())
