"""Training in child processes that are killed after a time or before a chosen line of code.

As a script this is a server that forks a child for each line on its standard input. A fork takes milliseconds, importing
torch takes seconds. (A fork of pytest itself might inherit threads or a GPU.)
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
import traceback
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import torch
from small_runs import SilentCallback, make_text, run_file, train_here

from weft import files
from weft.backup import Backup
from weft.data.corpus import write_corpus
from weft.data.frames import _Writer, write_frames
from weft.runs.job import train
from weft.runs.run_dir import RunDir
from weft.tasks import prepare
from weft.training import loop_checkpoint as saving
from weft.training.background_save import BackgroundSaver
from weft.training.run_log import RunLogWriter

# functions of each part of a run, outermost first; a child can be killed before each of their lines
PARTS = {
    "save": [
        RunLogWriter.keep_best,
        RunLogWriter.save,
        BackgroundSaver.save,
        BackgroundSaver.submit,
        RunLogWriter._write_weights,
        saving.write,
        saving._list_shards,
        files.publish,
    ],
    "begin": [train, RunDir.begin, prepare.prepare, prepare._vocabulary, write_corpus],
    "frames": [write_frames, _Writer.add],
    "aside": [Backup.create],
}


def code_objects(part: str) -> set[CodeType]:
    """The code of the functions of a part, and of the functions inside them."""
    found, queue = set[CodeType](), [function.__code__ for function in PARTS[part]]
    while queue:
        code = queue.pop()
        found.add(code)
        queue += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return found


def count_lines(part: str) -> int:
    """Number of code lines in a part: an upper bound of the lines that one execution passes."""
    return sum(len({line for *_, line in code.co_lines() if line is not None}) for code in code_objects(part))


class KillBeforeLine:
    """A trace function that kills its process before the n-th line of a part."""

    def __init__(self, part: str, line: int) -> None:
        self.codes, self.lines_left = code_objects(part), line

    def __call__(self, frame: FrameType, event: str, value: Any) -> KillBeforeLine | None:
        if frame.f_code not in self.codes:
            return None
        if event == "line":
            self.lines_left -= 1
            if self.lines_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


class Killable:
    """Starts training runs in children of a server, one at a time."""

    def __enter__(self) -> Self:
        tests_dir = Path(__file__).parent
        paths = os.pathsep.join([str(tests_dir), str(tests_dir.parent / "src")])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()  # the server has imported everything
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.server.communicate()  # the server exits at the end of its input

    def train(
        self,
        values: dict[str, Any],
        out: Path,
        *,
        seconds: float | None = None,
        before: tuple[str, int] | None = None,
        overwrite: bool = False,
    ) -> bool:
        """Train in a child that is killed after `seconds`, or before the n-th line of a part; return whether it finished."""
        job = {"values": values, "out": str(out), "seconds": seconds, "before": before, "overwrite": overwrite}
        self.server.stdin.write(json.dumps(job) + "\n")  # type: ignore[union-attr]
        self.server.stdin.flush()  # type: ignore[union-attr]
        status = self._answer()
        assert status in (0, -signal.SIGKILL), "the child failed: see standard error"
        return status == 0

    def _answer(self) -> int:
        return int(self.server.stdout.readline())  # type: ignore[union-attr]


def work(job: dict[str, Any]) -> None:
    if job["before"]:
        kill = KillBeforeLine(*job["before"])
        threading.settrace(kill)  # the thread that writes
        sys.settrace(kill)
    train_here(job["values"], Path(job["out"]), SilentCallback(), overwrite=job["overwrite"])


def wait(child: int, seconds: float | None) -> int:
    """Exit status of a child, which is killed after `seconds`."""
    end = time.monotonic() + (600.0 if seconds is None else seconds)
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def warm() -> None:
    """Import the parts of torch that are imported by the first step, such as its optimizers."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        text = make_text(Path(directory) / "text.txt")
        train_here(run_file(text, "gpt", train__max_steps=1), Path(directory) / "run")


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
    os._exit(0)  # without cleanup: nothing is open


if __name__ == "__main__":
    serve()
