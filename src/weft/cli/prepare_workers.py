"""Processes that each write some of the shards of prepared data.

A worker reads its job from standard input, one line of JSON, and stops when standard input closes: a command that is killed
leaves no process behind. It writes its progress to standard output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.data.shards import Subset
    from weft.tasks.prepare_shards import Preparation

POLL_SECONDS = 0.1
REPORT_SECONDS = 0.2
COMMAND = (sys.executable, "-P", "-m", "weft.cli.prepare_workers")


class WorkerFailed(Exception):
    """A worker ended with an error: its message and exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.message, self.exit_code = message, exit_code


class _Worker:
    """One process that writes a subset."""

    def __init__(self, job: dict[str, Any], stderr: IO[bytes]) -> None:
        # one thread: the processes use all CPUs
        environment = {**os.environ, "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.stderr, self.fraction = stderr, 0.0
        # its own session: Ctrl-C reaches it only through this process
        self.process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment, start_new_session=True
        )
        if self.process.stdin is not None:
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.fraction = float(line)

    def stop(self) -> None:
        """End the process, if it is running."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def failure(self) -> WorkerFailed:
        self.stderr.seek(0)
        lines = [line for line in self.stderr.read().decode(errors="replace").split("\n") if line]
        code = self.process.returncode
        message = (
            lines[-1].removeprefix("weft: ").removeprefix("error: ") if lines else f"a process ended with exit code {code}"
        )
        return WorkerFailed(message, code if code > 0 else 1)


def run_workers(preparation: Preparation, subsets: Sequence[Subset], progress: Callable[[float], None]) -> None:
    """Write each subset in a process of its own. If one fails, all stop."""
    config, directory = preparation.config.to_dict(), str(preparation.directory)
    with ExitStack() as stack:
        workers = list[_Worker]()
        for subset in subsets:
            job = {"run": config, "directory": directory, "shard_chars": preparation.shard_chars, "subset": list(subset)}
            workers.append(_Worker(job, stack.enter_context(tempfile.TemporaryFile())))
            stack.callback(workers[-1].stop)
        while any(worker.process.poll() is None for worker in workers):
            progress(sum(worker.fraction for worker in workers) / len(workers))
            _raise_failure(workers)
            time.sleep(POLL_SECONDS)
        _raise_failure(workers)


def _raise_failure(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        if worker.process.returncode not in (None, 0):
            raise worker.failure()


class _WorkerProgress:
    """Writes the fraction that is done to standard output."""

    def __init__(self) -> None:
        self._last = 0.0

    def on_note(self, text: str) -> None: ...

    def on_data(self, summary: str) -> None: ...

    def on_progress(self, phase: str, done: int, total: int) -> None:
        if done == total or time.monotonic() - self._last > REPORT_SECONDS:
            self._last = time.monotonic()
            print(done / max(1, total), flush=True)


def _wait_for_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)  # nothing is lost but the shard that is being written


def _read_job() -> dict[str, Any]:
    line = bytearray()
    while not line.endswith(b"\n"):  # unbuffered: the thread reads the rest
        byte = os.read(0, 1)
        if not byte:  # the command was killed before it gave a job
            raise SystemExit(1)
        line += byte
    job: dict[str, Any] = json.loads(line)
    return job


def work() -> int:
    """Do the job of a worker and return its exit code."""
    from weft.cli.output import print_message
    from weft.data.prepared_index import PLAN, read_checked
    from weft.data.shards import Subset
    from weft.errors import WeftError
    from weft.runs.resolve import resolve
    from weft.tasks.prepare_shards import Preparation

    job = _read_job()
    threading.Thread(target=_wait_for_parent, daemon=True).start()
    try:
        preparation = Preparation(resolve(job["run"], base=Path()), Path(job["directory"]), job["shard_chars"])
        preparation.write(read_checked(preparation.directory / PLAN), Subset(*job["subset"]), _WorkerProgress())
    except WeftError as error:
        print_message("error", str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(work())
