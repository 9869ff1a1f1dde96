"""Signs of life: each process counts up a number in a store that all processes see. The first process reads all numbers, and
publishes who is silent; the others watch the first one. So the number of questions to the store grows with the number of
processes, not with its square.

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


class Report(NamedTuple):
    """What the first process publishes in each round."""

    beat: int = 0  # its own number
    silent: int | None = None  # the process that has been silent for the longest time
    age: float = 0.0  # seconds of its silence
    behind: int | None = None  # the process that takes part in fewer exchanges than all others


REPORT = "weft/report"


def _key(rank: int) -> str:
    return f"weft/beat/{rank}"


def first_beat(store: Any, rank: int) -> None:
    """The first sign of life, before the others know of this process: who reads a number may rely on it."""
    store.set(REPORT if rank == 0 else _key(rank), json.dumps(Report() if rank == 0 else (0, 0)))


class Heartbeats:
    """Counts up for this process and watches the others, in two threads: the one that asks the store may block in it."""

    def __init__(self, store: Any, rank: int, size: int, on_lost: Callable[[int], None]) -> None:
        self.store, self.rank, self.size, self.on_lost = store, rank, size, on_lost
        self.lost_after = LOST_SECONDS
        self.progress = 0  # exchanges of this process so far
        self.beats = 0  # of this process
        now = time.monotonic()
        self.report, self.reported = Report(), now  # the last one, and when it changed, by the clock of this process
        self.answered = now  # when the store last answered
        # in the first process, for all others: the latest number, its progress, and when it last changed
        others = range(1, size if rank == 0 else 1)
        self.seen, self.exchanges, self.changed = dict.fromkeys(others, 0), dict.fromkeys(others, 0), dict.fromkeys(others, now)
        self.stopped = threading.Event()
        targets = (self._beat, self._watch)
        self.threads = [threading.Thread(target=target, name="weft-heartbeat", daemon=True) for target in targets]

    def start(self) -> None:
        """Start the threads."""
        for thread in self.threads:
            thread.start()

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store is gone: `_watch` sees it
            while not self.stopped.is_set():
                self.beat()
                self.stopped.wait(BEAT_SECONDS)

    def beat(self) -> None:
        """Count up, and read the numbers of the others (in the first process) or what the first process makes of them: two
        questions to the store."""
        self.beats += 1
        if self.rank == 0:
            self._read_all()
            self._receive(self._make_report())
            self.store.set(REPORT, json.dumps(self.report))
        else:
            self.store.set(_key(self.rank), json.dumps((self.beats, self.progress)))
            self._receive(Report(*json.loads(self.store.get(REPORT))))
        self.answered = time.monotonic()

    def _read_all(self) -> None:
        """The numbers of all other processes."""
        values = self.store.multi_get(list(map(_key, self.seen))) if self.seen else []
        now = time.monotonic()
        for rank, value in zip(self.seen, values, strict=True):
            number, self.exchanges[rank] = json.loads(value)
            if number != self.seen[rank]:
                self.seen[rank], self.changed[rank] = number, now

    def _make_report(self) -> Report:
        now = time.monotonic()
        ages = {rank: now - changed for rank, changed in self.changed.items()}
        # processes of one host fall silent together: the first of them is named
        oldest = max(ages.values(), default=0.0)
        silent = next((rank for rank, age in ages.items() if age > oldest - 2 * BEAT_SECONDS), None)
        return Report(self.beats, silent, 0.0 if silent is None else ages[silent], self._find_behind())

    def _find_behind(self) -> int | None:
        counts = {0: self.progress, **self.exchanges}
        first, *others = sorted(counts, key=lambda rank: counts[rank])
        return first if others and counts[first] < counts[others[0]] else None

    def _receive(self, report: Report) -> None:
        if report.beat != self.report.beat:
            self.report, self.reported = report, time.monotonic()

    def _watch(self) -> None:
        while not self.stopped.wait(BEAT_SECONDS):
            if (rank := self.silent(self.lost_after)) is not None:
                self.on_lost(rank)
                return

    def silent(self, seconds: float) -> int | None:
        """The process that has been silent for this time, or whose store has: that is in the first process; None if there is
        none."""
        now = time.monotonic()
        ages = {0: now - (self.answered if self.rank == 0 else min(self.answered, self.reported))}
        if self.report.silent is not None and self.report.silent != self.rank:
            # the report may be the last one: a process that names another one ends, and its store with it
            ages[self.report.silent] = self.report.age + now - self.reported
        rank = max(ages, key=lambda rank: ages[rank])
        return rank if ages[rank] > seconds else None

    def behind(self) -> int | None:
        """The process that takes part in fewer exchanges than all others; None if there is none."""
        return self.report.behind

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
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(STOP_SECONDS)
