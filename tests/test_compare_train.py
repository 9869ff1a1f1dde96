"""The training processes of a comparison: parallelism, finished runs, failures and interrupts.

The processes here are small scripts that act like `weft train`; test_compare_cli.py starts real ones.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from weft import files
from weft.comparison.plan import PlannedRun, Variant
from weft.comparison.train import Outcome, ParallelTrainer, Progress, State, ThreadBudget, lock_holder, progress
from weft.errors import TrainingInterrupted
from weft.lock import Lock
from weft.log import Log
from weft.training.config import TrainConfig

FAKE = """
import os, signal, sys, time
out = sys.argv[sys.argv.index("--output-dir") + 1]
name = os.path.basename(out)
os.makedirs(out, exist_ok=True)
def log(what):
    with open(os.path.join(os.path.dirname(out), "log"), "a") as file:
        file.write(f"{what} {name} {' '.join(sys.argv[-3:])}\\n")
log("begin")
if name.startswith("slow"):
    def stop(number, frame):
        open(os.path.join(out, "saved"), "w").close()
        sys.exit(128 + number)
    signal.signal(signal.SIGINT, stop)
    open(os.path.join(out, "ready"), "w").close()
    time.sleep(60)
time.sleep(0.05)
if name.startswith("bad"):
    sys.exit("a warning of somebody's\\nweft: step 3: the loss is nan")
if name.startswith("crash"):
    os.kill(os.getpid(), signal.SIGSEGV)
open(os.path.join(out, "done"), "w").close()
log("end")
"""
VALUES: dict[str, Any] = {"task": "lm", "data": {"train": "x.txt"}, "model": {"arch": "rnn"}, "train": {"max_steps": 10}}


class Looks:
    """A watcher that remembers, and stops when it is told to."""

    def __init__(self, stop_when: Any = None) -> None:
        self.notes: list[str] = []
        self.seen: list[list[State]] = []
        self.outcomes: list[Outcome] = []
        self.stop_when = stop_when or (lambda: False)

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_runs(self, states: list[State]) -> None:
        self.seen.append(states)

    def on_run_end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def should_stop(self) -> bool:
        return bool(self.stop_when())


@pytest.fixture
def place(tmp_path) -> Path:
    (tmp_path / "fake.py").write_text(FAKE)
    return tmp_path


def plan(place: Path, *names: str, values: dict[str, Any] = VALUES) -> list[PlannedRun]:
    return [PlannedRun(Variant(name, values), 0, place / f"{name}-0") for name in names]


def trainer(place: Path, looks: Looks, *, jobs: int = 1, threads: int = 1) -> ParallelTrainer:
    room = ThreadBudget(place / "run-files", jobs, threads, (sys.executable, "-S", "-E", str(place / "fake.py")))
    return ParallelTrainer(room, looks, lambda out, settings: (out / "done").exists())


def log(place: Path) -> list[str]:
    path = place / "log"
    return path.read_text().strip().split("\n") if path.exists() else []


def test_no_more_than_jobs_at_a_time_and_threads_are_divided(place):
    found = trainer(place, Looks(), jobs=2, threads=5).train(plan(place, "a", "b", "c", "d", "e"))
    assert [outcome.code for outcome in found] == [0] * 5
    assert [outcome.planned.variant.name for outcome in found] == list("abcde")
    running = most = 0
    for line in log(place):
        assert line.endswith("--quiet --threads 2")
        running += 1 if line.startswith("begin") else -1
        most = max(most, running)
    assert most == 2
    assert ThreadBudget(place, 4, 2).threads_per_run == 1


def test_fewer_runs_than_jobs_have_more_threads(place):
    trainer(place, Looks(), jobs=8, threads=6).train(plan(place, "a", "b"))
    assert all(line.endswith("--quiet --threads 3") for line in log(place))


def test_finished_runs_are_not_trained_again(place):
    (place / "a-0").mkdir()
    (place / "a-0" / "done").touch()
    looks = Looks()
    assert [outcome.code for outcome in trainer(place, looks).train(plan(place, "a", "b"))] == [0, 0]
    assert {line.split()[1] for line in log(place)} == {"b-0"}
    assert [outcome.planned.variant.name for outcome in looks.outcomes] == ["b"]


def test_a_failed_run_has_a_reason_and_others_continue(place):
    looks = Looks()
    wrong = plan(place, "wrong", values={**VALUES, "model": {"arch": "rnn", "hidden_size": 0}})
    found = trainer(place, looks).train([*plan(place, "bad", "crash"), *wrong, *plan(place, "good")])
    assert [(outcome.code, outcome.reason) for outcome in found] == [
        (1, "step 3: the loss is nan"),
        (1, "the process ended with exit code -11"),
        (2, "model.hidden_size: must be at least 1, got 0"),
        (0, ""),
    ]
    assert sorted(map(id, looks.outcomes)) == sorted(map(id, found))


def test_the_run_file_is_that_of_the_plan(place):
    import tomllib

    trainer(place, Looks()).train(plan(place, "a"))
    assert tomllib.loads((place / "run-files" / "a-0.toml").read_text()) == {**VALUES, "seed": 0}


def test_an_interrupt_saves_all_runs_and_starts_no_others(place):
    looks = Looks(lambda: (place / "slow1-0" / "ready").exists() and (place / "slow2-0" / "ready").exists())
    with pytest.raises(TrainingInterrupted):
        trainer(place, looks, jobs=2).train(plan(place, "slow1", "slow2", "later"))
    assert (place / "slow1-0" / "saved").exists() and (place / "slow2-0" / "saved").exists()
    assert not (place / "later-0").exists()


def test_an_error_leaves_no_process_behind(place):
    class Fails(Looks):
        def on_runs(self, states: list[State]) -> None:
            if (place / "slow-0" / "ready").exists():
                raise RuntimeError("our own")

    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="our own"):
        trainer(place, Fails()).train(plan(place, "slow"))
    assert time.monotonic() - begun < 30  # it did not sleep to its end
    assert (place / "slow-0" / "saved").exists()  # and what it had learned is kept


def test_a_run_in_use_is_waited_for(place):
    (place / "a-0").mkdir()
    lock = Lock(place / "a-0")
    lock.__enter__()
    assert lock_holder(place / "a-0") is not None and lock_holder(place / "b-0") is None

    class Lets(Looks):
        def on_note(self, text: str) -> None:
            super().on_note(text)
            lock.__exit__(None, None, None)

    looks = Lets()
    assert [outcome.code for outcome in trainer(place, looks).train(plan(place, "a"))] == [0]
    (note,) = looks.notes
    assert note.startswith(f"{place / 'a-0'}: in use by another process (process {os.getpid()} since ") and note.endswith(
        "); waiting for it"
    )


def test_a_full_disk_is_not_waited_for(place, monkeypatch):
    (place / "a-0").mkdir()

    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "pwrite", full)
    looks = Looks()
    assert [outcome.code for outcome in trainer(place, looks).train(plan(place, "a"))] == [0]  # the run itself would say it
    assert looks.notes == []


# ---- how far


def write_metrics(out: Path, records: list[dict[str, Any]], torn: bytes = b"") -> Path:
    out.mkdir(exist_ok=True)
    with Log(out / "metrics.jsonl") as log:
        for record in records:
            log.write(record)
    with (out / "metrics.jsonl").open("ab") as rest:
        rest.write(torn)
    return out


def test_progress_by_each_budget(tmp_path):
    trained = [{"step": step, "epoch": step // 4, "tokens": 10 * step, "train_loss": 1.0} for step in (1, 2, 5)]
    out = write_metrics(tmp_path / "run", [*trained, {"step": 5, "valid_loss": 1.5, "valid_other": 2.0}], b'{"step": 6')
    assert progress(out, TrainConfig(max_steps=10)) == Progress(0.5, ("loss", 1.5))
    assert progress(out, TrainConfig(max_steps=10, monitor="other")).valid == ("other", 2.0)
    assert progress(out, TrainConfig(max_tokens=200)).fraction == 0.25
    assert progress(out, TrainConfig(max_epochs=2.0)).fraction == 0.5
    assert progress(out, TrainConfig(max_minutes=1.0)).fraction == 3 / 200
    assert progress(tmp_path / "none", TrainConfig(max_steps=10)) == Progress(0.0)
    assert progress(out, TrainConfig(max_steps=2)).fraction == 1.0


def test_the_callback_gets_the_progress_of_all_runs(place):
    looks = Looks(lambda: (place / "slow-0" / "ready").exists() and len(looks.seen) > 3)
    write_metrics(place / "slow-0", [{"step": 4, "epoch": 0, "tokens": 9, "train_loss": 1.0}])
    with pytest.raises(TrainingInterrupted):
        trainer(place, looks).train(plan(place, "a", "slow", "later"))
    last = looks.seen[-1]
    assert [(state.progress.fraction, state.running) for state in last] == [(1.0, False), (0.4, True), (0.0, False)]
    assert looks.seen[0][1].progress.fraction == 0.4  # what an earlier process did counts before it goes on


# ---- a tether


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_a_tethered_command_ends_with_its_parent_process(tmp_path):
    code = "import sys, time; sys.argv = ['x']; import weft.cli.main; weft.cli.main.main = lambda: time.sleep(60)\n"
    code += "import runpy; runpy.run_module('weft.cli.child_process', run_name='__main__')"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=environment)
    time.sleep(1.0)
    assert child.poll() is None
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(20) == -signal.SIGTERM


def test_modules_in_the_current_directory_are_not_imported(tmp_path):
    """Not what is called like a module that weft imports, nor like weft itself: a run file may come with anything beside it."""
    (tmp_path / "weft").mkdir()
    for name in ("weft/__init__.py", "random.py", "tomli_w.py", "torch.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit(77)\n")
    done = subprocess.run([*ThreadBudget(tmp_path).command, "--version"], cwd=tmp_path, capture_output=True, input=b"")
    assert not (tmp_path / "ran").exists()
    assert done.returncode in (0, 143, -15) and b"Error" not in done.stderr  # its input is closed: it may be stopped
