"""Training in processes that are killed: after a while, or before a given line of the code.

Run as a script this is a server that forks a child for each line on its standard input, so that a child costs
milliseconds, not the seconds that importing torch takes. (A fork of pytest itself might inherit threads or a GPU.)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import torch
from small_runs import Silent, make_text, run_file, train_here

from weft import files
from weft.backup import Backup
from weft.data.corpus import write_corpus
from weft.runs.job import train
from weft.runs.run_dir import RunDir
from weft.tasks import prepare
from weft.training import loop_checkpoint as saving
from weft.training.run_log import RunLogWriter

# what runs in each part of a run, outermost first; a child can be killed before each line of it
PARTS = {
    "save": [RunLogWriter.keep_best, RunLogWriter.save, saving.save, files.publish],
    "begin": [train, RunDir.begin, prepare.prepare, prepare._vocabulary, write_corpus],
    "aside": [Backup.create],
}


def codes(part: str) -> set[CodeType]:
    return {function.__code__ for function in PARTS[part]}


def lines(part: str) -> int:
    """How many lines with code a part has: no fewer than are passed in one go."""
    return sum(len({line for *_, line in code.co_lines() if line is not None}) for code in codes(part))


class Fatal:
    """A trace function that kills its process before the n-th line of a part."""

    def __init__(self, part: str, line: int) -> None:
        self.codes, self.left = codes(part), line

    def __call__(self, frame: FrameType, event: str, value: Any) -> Fatal | None:
        if frame.f_code not in self.codes:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


class Killable:
    """Runs of training in children of a server, one at a time."""

    def __enter__(self) -> Self:
        place = Path(__file__).parent
        paths = os.pathsep.join([str(place), str(place.parent / "src")])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()  # it is warm
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.server.communicate()  # ends with its input

    def train(
        self,
        values: dict[str, Any],
        out: Path,
        *,
        seconds: float | None = None,
        before: tuple[str, int] | None = None,
        fresh: bool = False,
    ) -> bool:
        """Train in a child, killed after some seconds, or before the n-th line of a part; whether it came to its end."""
        job = {"values": values, "out": str(out), "seconds": seconds, "before": before, "fresh": fresh}
        self.server.stdin.write(json.dumps(job) + "\n")  # type: ignore[union-attr]
        self.server.stdin.flush()  # type: ignore[union-attr]
        status = self._answer()
        assert status in (0, -signal.SIGKILL), "the child failed: see standard error"
        return status == 0

    def _answer(self) -> int:
        return int(self.server.stdout.readline())  # type: ignore[union-attr]


def work(job: dict[str, Any]) -> None:
    if job["before"]:
        sys.settrace(Fatal(*job["before"]))
    train_here(job["values"], Path(job["out"]), Silent(), fresh=job["fresh"])


def wait(child: int, seconds: float | None) -> int:
    """The exit status of a child that is killed after some seconds."""
    end = time.monotonic() + (600.0 if seconds is None else seconds)
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def warm() -> None:
    """Have all of torch imported that a first step imports: most of its optimisers' code comes only then."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        text = make_text(Path(place) / "text.txt")
        train_here(run_file(text, "gpt", train__max_steps=1), Path(place) / "run")


def answer(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def serve() -> None:
    warm()
    answer(0)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work(job)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        answer(wait(child, job["seconds"]))
    os._exit(0)  # at once: there is nothing to put in order


if __name__ == "__main__":
    serve()
