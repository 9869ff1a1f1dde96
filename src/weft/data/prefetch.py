"""Batches that a thread makes ahead of training, in memory from which a GPU copies without the host."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from weft.data.batch import FULL
from weft.data.batching import BatchSampler

AHEAD = 2  # batches


class _Made(NamedTuple):
    """A batch, or the error in place of it."""

    position: tuple[int, int]  # epoch and index
    batch: Any = None
    error: BaseException | None = None


class Prefetcher:
    """The batches of another sampler. After batch (epoch, index), a thread makes those that follow it. A batch is a function of
    (epoch, index), so nothing else changes; if another batch is asked for, those that were made in vain are discarded.
    """

    def __init__(self, sampler: BatchSampler[Any], finish: Callable[[Any], Any] = lambda batch: batch) -> None:
        self.sampler, self._finish = sampler, finish  # `finish` is called for each batch, such as to move it to other memory
        self._changed = threading.Condition()
        self._made: deque[_Made] = deque()
        self._next = (0, 0)  # of the batch that the thread makes next
        self._sampling = threading.Lock()  # samplers keep the order of an epoch: only one thread at a time may ask them
        self._num_batches: dict[int, int] = {}
        self._thread: threading.Thread | None = None
        self._is_closing = False

    # ---- the sampler

    @property
    def rows(self) -> int:
        return self.sampler.rows

    def batches(self, epoch: int) -> int:
        if epoch not in self._num_batches:
            with self._sampling:
                self._num_batches[epoch] = self.sampler.batches(epoch)
        return self._num_batches[epoch]

    def batch(self, epoch: int, index: int) -> Any:
        with self._changed:
            if not self._is_expected(epoch, index):
                self._made.clear()
                self._next = (epoch, index)
            self._start()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._made and self._made[0].position == (epoch, index))
            made = self._made.popleft()
            self._changed.notify_all()
        if made.error is not None:
            raise made.error
        return made.batch

    def resets_state(self, index: int) -> bool:
        return self.sampler.resets_state(index)

    def largest_batch(self, fraction: Fraction = FULL) -> Any:
        with self._sampling:
            return self.sampler.largest_batch(fraction)

    def describe(self, epoch: int, index: int) -> str:
        with self._sampling:
            return self.sampler.describe(epoch, index)

    # ---- the thread

    def _is_expected(self, epoch: int, index: int) -> bool:
        """Whether the thread has made this batch, or makes it next."""
        return (self._made[0].position if self._made else self._next) == (epoch, index)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="weft-batches", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or len(self._made) < AHEAD)
                if self._is_closing:
                    return
                epoch, index = self._next
            made, following = self._make(epoch, index)
            with self._changed:
                if self._next != (epoch, index):  # another batch was asked for meanwhile
                    continue
                self._made.append(made)
                self._next = following
                self._changed.notify_all()

    def _make(self, epoch: int, index: int) -> tuple[_Made, tuple[int, int]]:
        """A batch, and the numbers of the one after it."""
        try:
            with self._sampling:
                batch = self.sampler.batch(epoch, index)
            following = (epoch, index + 1) if index + 1 < self.batches(epoch) else (epoch + 1, 0)
            return _Made((epoch, index), self._finish(batch)), following
        except BaseException as error:  # raised again by `batch`, in the thread that trains
            return _Made((epoch, index), error=error), (epoch, index)  # whoever asks for it again gets another try

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
