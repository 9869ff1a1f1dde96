"""Signs of life: each process counts up a number in a store that all processes see, and watches the numbers of the others.

A process that is killed or stopped, or whose host or network is gone, stops counting. The others then know which one it is,
although they are blocked in an exchange with it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

BEAT_SECONDS = 1.0
LOST_SECONDS = 30.0  # a silent process is lost after this time
IDLE_LOST_SECONDS = 120.0  # the same before training starts: tokenizers and compilers block the other threads of a process
STOP_SECONDS = 5.0  # a thread that waits longer for the store is left alone
STALE_SECONDS = 5.0  # after a failed exchange, a process that is silent for this time is the one to name


class Failure(NamedTuple):
    """Why a process ended: the first one that ends on its own tells the others."""

    rank: int
    exit_code: int
    message: str


class Heartbeats:
    """Counts up for this process and watches the others, in two threads: the one that asks the store may block in it."""

    def __init__(self, store: Any, rank: int, size: int, on_lost: Callable[[int], None]) -> None:
        self.store, self.rank, self.size, self.on_lost = store, rank, size, on_lost
        self.lost_after = LOST_SECONDS
        self.progress = 0  # exchanges of this process so far
        self.seen = dict.fromkeys(range(size), 0)  # the latest number of each process
        self.exchanges = dict.fromkeys(range(size), 0)  # the latest progress of each process
        self.changed = dict.fromkeys(range(size), time.monotonic())  # when it last changed, by the clock of this process
        self.answered = time.monotonic()  # when the store last answered
        self.stopped = threading.Event()
        targets = (self._beat, self._watch)
        self.threads = [threading.Thread(target=target, name="weft-heartbeat", daemon=True) for target in targets]
        for thread in self.threads:
            thread.start()

    def _beat(self) -> None:
        """Count up, and read the numbers of the others."""
        with suppress(RuntimeError):  # the store is gone: `_watch` sees it
            while not self.stopped.is_set():
                self.store.add(f"weft/beat/{self.rank}", 1)
                self.store.set(f"weft/progress/{self.rank}", str(self.progress))
                for rank in range(self.size):
                    self._read(rank)
                self.answered = time.monotonic()
                self.stopped.wait(BEAT_SECONDS)

    def _read(self, rank: int) -> None:
        number, key = self.store.add(f"weft/beat/{rank}", 0), f"weft/progress/{rank}"
        if number != self.seen[rank]:
            self.seen[rank], self.changed[rank] = number, time.monotonic()
            self.exchanges[rank] = int(self.store.get(key)) if self.store.check([key]) else 0

    def _watch(self) -> None:
        while not self.stopped.wait(BEAT_SECONDS):
            if (rank := self.silent(self.lost_after)) is not None:
                self.on_lost(rank)
                return

    def silent(self, seconds: float) -> int | None:
        """The process that has been silent for this time, or whose store has: that is in the first process; None if there is
        none."""
        now = time.monotonic()
        if now - self.answered > seconds:
            return 0
        others = (rank for rank in range(self.size) if rank != self.rank and now - self.changed[rank] > seconds)
        return next(others, None)

    def behind(self) -> int | None:
        """The process that takes part in fewer exchanges than all others; None if there is none."""
        first, *others = sorted(range(self.size), key=lambda rank: self.exchanges[rank])
        return first if others and self.exchanges[first] < self.exchanges[others[0]] else None

    # ---- failures

    def post(self, failure: Failure) -> None:
        """Tell the others why this process ends, unless another one has told them before."""
        with suppress(RuntimeError):
            self.store.compare_set("weft/failure", "", json.dumps(failure))
            self.store.set(f"weft/failure/{failure.rank}", json.dumps(failure))

    def failure(self, rank: int | None = None) -> Failure | None:
        """The first failure of any process, or that of one process."""
        key = "weft/failure" if rank is None else f"weft/failure/{rank}"
        with suppress(RuntimeError):
            if self.store.check([key]):
                return Failure(*json.loads(self.store.get(key)))
        return None

    def stop(self) -> None:
        """End the threads: if the interpreter ended one inside the store, the process would be aborted."""
        self.stopped.set()
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(STOP_SECONDS)
