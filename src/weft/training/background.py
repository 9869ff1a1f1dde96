"""Work that a thread does while training goes on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class BackgroundThread:
    """Runs jobs in the order in which they were submitted. After a job has failed, none of the later ones is run: a checkpoint
    must not be written if the weights that it refers to were not.

    The thread starts with the first job.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._jobs: deque[tuple[str, Callable[[], None]]] = deque()  # the first one is running
        self._error: BaseException | None = None
        self._is_closing = False
        self._has_failed = False

    def submit(self, name: str, job: Callable[[], None]) -> None:
        """Queue a job, as soon as no other job of this name is queued or running."""
        self.wait(name)
        self.raise_error()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        with self._changed:
            if not self._has_failed:
                self._jobs.append((name, job))
            self._changed.notify_all()

    def wait(self, name: str | None = None) -> None:
        """Wait until no job of this name is queued or running; None: until there are no jobs at all."""
        with self._changed:
            self._changed.wait_for(lambda: not any(name in (None, queued) for queued, _ in self._jobs))

    def raise_error(self) -> None:
        """Raise the error of the job that has failed, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait for all jobs, and end the thread. Errors stay where they are."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._is_closing)
                if not self._jobs:
                    return
                _, job = self._jobs[0]
            try:
                job()
            except BaseException as error:  # raised again by `raise_error`, in the thread that trains
                with self._changed:
                    self._error, self._has_failed = error, True
                    self._jobs.clear()
            with self._changed:
                if self._jobs:
                    self._jobs.popleft()
                self._changed.notify_all()
