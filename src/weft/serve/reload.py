"""New weights in a run directory: they are loaded aside, and used for all requests that come later."""

from __future__ import annotations

import threading
from collections.abc import Callable

from weft.errors import WeftError
from weft.serve.errors import failure
from weft.serve.limits import Limits
from weft.serve.served_run import Fingerprint, LoadOptions, ServedRun, fingerprint
from weft.serve.work import Worker


class Reloader:
    """A thread that looks at the files of the runs every few seconds. Files that cannot be loaded change nothing: they are
    logged once, and tried again when they have changed."""

    def __init__(
        self,
        worker: Worker,
        condition: threading.Condition,
        *,
        options: LoadOptions,
        limits: Limits,
        log: Callable[[str], None],
    ) -> None:
        self._worker, self._condition, self._options, self._limits, self._log = worker, condition, options, limits, log
        self._damaged: dict[str, Fingerprint] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="weft-reload", daemon=True)
        if limits.reload_seconds:
            self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Load no more runs; one that is being loaded is finished."""
        self._stop.set()

    def join(self, seconds: float) -> None:
        """Wait up to `seconds` for the end of the thread."""
        if self.is_alive and threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def _loop(self) -> None:
        while not self._stop.wait(self._limits.reload_seconds):
            self.check()

    def check(self) -> None:
        """Load every run whose files have changed."""
        for name, served in self._worker.runs.items():
            if self._stop.is_set():
                return
            files = fingerprint(served.path)
            if files != served.files and files != self._damaged.get(name):
                self._load(served, files)

    def _load(self, served: ServedRun, files: Fingerprint) -> None:
        name = served.name
        try:
            new = ServedRun(name, served.path, options=self._options, limits=self._limits)
            _ = new.info
        except Exception as error:  # whatever is in the files, the old weights stay
            self._damaged[name] = files
            self._worker.counters.reloads[name, "error"] += 1
            reason = error if isinstance(error, WeftError) else failure(name, error)
            self._log(f"run {name}: new files cannot be loaded, the old weights stay: {reason}")
            return
        with self._condition:
            self._worker.replace(new)
        self._worker.counters.reloads[name, "ok"] += 1
        self._log(f"run {name}: new weights loaded")
