"""Workers that share a comparison: killed, paused, stopped, failing, with damaged files; and the same table as one worker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from command_line import expect_error
from compare_helpers import InProcessTrainer, compare
from shared_worker import STEPS, VALUES, Callback, work
from small_runs import SilentCallback

from weft import files
from weft.comparison import cells as cells_module
from weft.comparison import runner as comparing
from weft.comparison import shared_plan, worker
from weft.comparison.cell_status import read_cells
from weft.comparison.cells import Cells, check_no_workers, this_worker
from weft.comparison.lease import RELEASED, LeaseContent, Worker, lease_path
from weft.comparison.plan import PlannedRun, Variant
from weft.comparison.shared_plan import HostCheck, SharedPlan
from weft.comparison.train import Outcome, Progress
from weft.errors import DataError, InUseError, ModelError, TrainingInterrupted, UsageError, WeftError
from weft.runs.job import train
from weft.runs.machine import Machine
from weft.tensors import read_arrays

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
ROOT = Path(__file__).parents[1]
LEASE = 3.0
RUN = """
task = "lm"
seed = 5
[data]
train = "text.txt"
valid = 0.1
test = 0.1
read_as = "lines"
[tokenizer]
type = "char"
[model]
arch = "lstm"
hidden_size = 8
num_layers = 1
[train]
max_steps = 6
batch_tokens = 128
num_validations = 2
"""
NAMES = "".join(
    f"{a}{b}{c}\n" for a in ("an", "ber", "cla") for b in ("a", "ni", "to", "ka") for c in ("", "s", "ra", "mi", "l")
)
WORDS = ["run.toml", "--models", "ngram,lstm", "--seeds", "2"]


# ---- processes


@contextmanager
def started(directory: Path, *names: str, seconds: float = LEASE) -> Iterator[subprocess.Popen[str]]:
    """A worker with fake training processes."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    command = [sys.executable, str(ROOT / "tests" / "shared_worker.py"), str(directory), str(seconds), *names]
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], start: str) -> str:
    """The next line of output that starts so."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(start):
            return line.strip()
    raise AssertionError(f"no line starts with {start!r}: {lines}")


def steps(directory: Path) -> dict[str, list[tuple[int, str]]]:
    """The steps of each run, with their processes, in the order in which they were trained."""
    path = directory / "log"
    trained: dict[str, list[tuple[int, str]]] = {}
    for line in path.read_text().split("\n")[:-1] if path.exists() else []:
        name, step, process = line.split()
        trained.setdefault(name, []).append((int(step), process))
    return trained


def check_one_owner_at_a_time(directory: Path) -> None:
    """No process trained a run after another one had taken it over, and the steps continue from a checkpoint."""
    for trained in steps(directory).values():
        owners = [process for _, process in trained]
        changes = [owner for owner, before in zip(owners, ["", *owners], strict=False) if owner != before]
        assert len(changes) == len(set(changes)), trained
        numbers = [step for step, _ in trained]
        assert numbers[0] == 1 and numbers[-1] == STEPS
        assert all(after - before in (0, 1) for before, after in pairwise(numbers)), trained


class Here:
    """A worker in this process, which records its reports and calls `react(report)` for each."""

    def __init__(
        self, directory: Path, *names: str, react: Callable[[str], None] = lambda report: None, seconds: float = LEASE
    ) -> None:
        self.reports: list[str] = []

        def report(text: str) -> None:
            self.reports.append(text)
            react(text)

        self.codes = work(directory, seconds, names, Callback(report))

    def notes(self) -> list[str]:
        return [text.removeprefix("note ") for text in self.reports if text.startswith("note ")]


def test_a_killed_worker_is_replaced_and_its_run_resumes(tmp_path):
    with started(tmp_path, "a") as first:
        wait_for(first, "running a-0")
        while len(steps(tmp_path).get("a-0", [])) < 3:
            time.sleep(0.01)
        first.kill()
        second = Here(tmp_path, "a", "b")
    assert second.codes == [0, 0]
    (note,) = second.notes()
    assert note.startswith("a-0: taken over from ") and f"(process {first.pid}); resuming at step " in note
    assert second.reports.index("end b-0 0") < second.reports.index("end a-0 0")  # not idle until the lease expired
    check_one_owner_at_a_time(tmp_path)
    trained = steps(tmp_path)
    assert len({process for _, process in trained["a-0"]}) == 2 and len({process for _, process in trained["b-0"]}) == 1
    assert (tmp_path / "a-0" / "done").is_file() and not list((tmp_path / "cells").glob("*.run-*"))


def test_a_paused_worker_gives_up_and_leaves_the_run_to_its_new_owner(tmp_path):
    with started(tmp_path, "a") as first:
        wait_for(first, "running a-0")
        while not steps(tmp_path):
            time.sleep(0.01)
        first.send_signal(signal.SIGSTOP)
        # its training process is not paused, but stops by itself before the lease expires

        def react(report: str) -> None:
            if report == "running a-0":
                first.send_signal(signal.SIGCONT)

        second = Here(tmp_path, "a", react=react)
        first.send_signal(signal.SIGCONT)  # if the training had ended, the second one has not continued it
        assert second.codes == [0] and second.notes()[0].startswith("a-0: taken over from ")
        assert wait_for(first, "note").startswith("note a-0: lease lost (")
        assert wait_for(first, "all") == "all 0"
    check_one_owner_at_a_time(tmp_path)


def test_a_worker_that_stops_releases_its_run_at_once(tmp_path):
    callback = Callback(lambda report: setattr(callback, "stopped", bool(steps(tmp_path))))
    with pytest.raises(TrainingInterrupted):
        work(tmp_path, 600.0, ["a"], callback)
    begun = time.monotonic()
    second = Here(tmp_path, "a", seconds=600)
    assert second.codes == [0] and second.notes() == [] and time.monotonic() - begun < 60  # not the lease time
    check_one_owner_at_a_time(tmp_path)
    assert len({process for _, process in steps(tmp_path)["a-0"]}) == 2


def test_failures_are_recorded_and_do_not_block_the_others(tmp_path):
    names = ("bad", "oom", "a")
    first = Here(tmp_path, *names)
    assert first.codes == [6, 5, 0] and "end bad-0 6 the process ended with exit code 6" in first.reports
    assert first.notes() == ["oom-0: failed here (the process ended with exit code 5); it is tried once more"]
    again = Here(tmp_path, *names)
    assert again.codes == [6, 5, 0] and again.notes() == []  # from the records
    assert len(steps(tmp_path)["a-0"]) == STEPS
    mine = Cells(tmp_path, this_worker(), LEASE)
    assert mine.retry_failed() == 2 and mine.ended("bad-0") is None and mine.ended("a-0") is not None
    assert Here(tmp_path, *names).notes() == first.notes()  # earlier failures do not count


# ---- cells


def planned(directory: Path, name: str = "a") -> PlannedRun:
    return PlannedRun(Variant(name, VALUES), 0, directory / f"{name}-0")


@pytest.fixture
def mine(tmp_path, monkeypatch) -> Cells:
    monkeypatch.setattr(cells_module, "is_finished", lambda out, config: (out / "done").exists())
    mine = Cells(tmp_path, Worker("me-1", "me", 1), 5.0)
    mine.make_directory()
    return mine


def write_lease(cells: Cells, number: int, state: str = "held", step: int = 0, reason: str = "") -> None:
    content = LeaseContent(Worker(f"w-{number}", f"host{number}", number), 5.0, state, step, 5 if reason else 0, reason)
    lease_path(cells.directory, "a-0", number).write_bytes(content.to_bytes())


def test_owners_train_in_directories_of_their_own(tmp_path, mine):
    run = planned(tmp_path)
    first = mine.leases.claim("a-0", 0)
    assert first is not None
    path = mine.prepare(run, first)
    for name in ("checkpoints/000003/model.safetensors", "data/train.tokens", "metrics.jsonl", ".lock", "tokenizer.json"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)
    (path / "leads-away").symlink_to("/etc")
    second = mine.leases.claim("a-0", 1)
    assert second is not None and mine.step(run) == 3
    copy = mine.prepare(run, second)
    assert copy != path and sorted(entry.name for entry in copy.iterdir()) == [
        "checkpoints",
        "data",
        "metrics.jsonl",
        "tokenizer.json",
    ]
    # the first owner, which was paused, writes on: into its own directory
    with (path / "metrics.jsonl").open("a") as log:
        log.write("more")
    (path / "checkpoints" / "000004").mkdir()
    assert (copy / "metrics.jsonl").read_text() == "metrics.jsonl" and not (copy / "checkpoints" / "000004").exists()
    assert (copy / "metrics.jsonl").stat().st_nlink == 1  # logs are written in place, so they are not shared
    # both finish: one of them is published, and nothing else is left
    for directory in (path, copy):
        (directory / "done").write_text(directory.name)
    mine.publish(run, second, None)  # type: ignore[arg-type]
    mine.publish(run, first, None)  # type: ignore[arg-type]
    assert (run.output_dir / "done").read_text() == "a-0.run-0002"
    assert [entry.name for entry in mine.directory.iterdir() if entry.is_dir()] == []


def test_a_run_begun_without_workers_continues(tmp_path, mine):
    run = planned(tmp_path)
    (run.output_dir / "checkpoints" / "000007").mkdir(parents=True)
    lease = mine.claim(run, 0)
    assert lease is not None and lease.content.step == 7
    path = mine.prepare(run, lease)
    assert (path / "checkpoints" / "000007").is_dir() and not run.output_dir.exists()


def test_a_run_that_kills_its_workers_fails(tmp_path, mine):
    """Without a new checkpoint; with one, it goes on."""
    for number in range(1, 5):
        write_lease(mine, number)
    lease = mine.leases.claim("a-0", 4)
    assert lease is not None
    failure = mine.failure(lease)
    assert failure is not None
    assert failure.reason == "4 workers died while training it (on host1, host2, host3, host4)"
    write_lease(mine, 3, step=2)
    assert mine.failure(lease) is None
    write_lease(mine, 3, RELEASED)
    assert mine.failure(lease) is None  # stopped, not dead
    write_lease(mine, 1, "failed", reason="no memory")
    assert mine.failure(lease) is None
    write_lease(mine, 2, "failed", reason="no disk")
    failure = mine.failure(lease)
    assert failure is not None and (failure.reason, failure.code, failure.host) == ("no disk", 5, "host2")
    write_lease(mine, 2, "retried")
    assert mine.failure(lease) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[", b'{"code": 0, "reason": "", "host": "x"}', b"x" * 9999])
def test_a_damaged_record_does_not_count(tmp_path, mine, data):
    run = planned(tmp_path)
    run.output_dir.mkdir()
    (run.output_dir / "model.safetensors").touch()
    path = mine.directory / "a-0.ended.json"
    path.write_bytes(data)
    assert mine.ended("a-0") is None
    mine.record(run, 0)
    mine.record(run, 6, "later")  # the first one counts
    assert mine.outcome(run) == Outcome(run, 0)
    (run.output_dir / "model.safetensors").unlink()
    assert mine.ended("a-0") is None  # the run is gone


def test_an_active_comparison_is_not_overwritten(tmp_path, mine, monkeypatch):
    write_lease(mine, 1)
    monkeypatch.setattr(cells_module, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(cells_module.time, "sleep", lambda seconds: write_lease(mine, 1, step=9))
    with pytest.raises(InUseError, match=r"a worker on host1 \(process 1\) is training a-0; stop it first"):
        check_no_workers(tmp_path, this_worker())
    write_lease(mine, 1, RELEASED)
    check_no_workers(tmp_path, this_worker())


def test_status_of_runs(tmp_path, mine):
    names = ("a", "b", "c", "d", "e")
    plan = [planned(tmp_path, name) for name in names]
    write_lease(mine, 1)
    lease = mine.leases.claim("b-0", 0)
    assert lease is not None
    (mine.prepare(plan[1], lease)).mkdir()
    mine.record(plan[2], 6, "step 3: loss is nan")
    os.utime(lease_path(mine.directory, "a-0", 1), (1e9, 1e9))
    plan[3].output_dir.mkdir()
    (plan[3].output_dir / "model.safetensors").touch()
    mine.record(plan[3], 0)
    states = {cell.run: cell for cell in read_cells(mine, plan)}
    assert [states[f"{name}-0"].state for name in names] == ["expired", "training", "failed", "trained", "waiting"]
    assert states["a-0"].lease_age is not None and states["a-0"].lease_age > 1e6
    assert (states["b-0"].host, states["b-0"].process) == ("me", 1) and 0 <= (states["b-0"].lease_age or 0) < 60
    assert states["c-0"].reason == "step 3: loss is nan"


# ---- the command


class InProcessChild:
    """Trains a run in this process, instead of starting one."""

    trained: ClassVar[list[str]] = []
    max_runs = 1000  # then a signal arrives

    def __init__(self, planned: PlannedRun, config: Any, budget: Any) -> None:
        self.planned, self.result = planned, Outcome(planned, 0)
        InProcessChild.trained.append(planned.output_dir.name)
        try:
            train(planned.values, planned.output_dir, base=Path(), callback=SilentCallback())
        except WeftError as error:
            self.result = Outcome(planned, error.exit_code, str(error))
        if len(InProcessChild.trained) == InProcessChild.max_runs:
            os.kill(os.getpid(), signal.SIGINT)

    def keep_alive(self, seconds: float) -> None:
        assert seconds > 0

    def progress(self) -> Progress:
        return Progress(1.0)

    def outcome(self) -> Outcome:
        return self.result

    def stop(self) -> None:
        pass

    wait = kill = stop


@pytest.fixture
def work_dir(tmp_path, monkeypatch) -> Path:
    """A directory with a run file, where runs are trained in this process."""
    (tmp_path / "text.txt").write_text(NAMES)
    (tmp_path / "run.toml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparing, "ParallelTrainer", InProcessTrainer)
    monkeypatch.setattr(InProcessTrainer, "trained", [], raising=False)
    monkeypatch.setattr(worker, "ChildRun", InProcessChild)
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(worker, "MAX_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(InProcessChild, "trained", [])
    monkeypatch.setattr(InProcessChild, "max_runs", 1000)
    return tmp_path


TIMINGS = ("seconds", "tokens_per_second", "peak_memory", "inference_rate", "runs")


def rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of a comparison, without what is measured with a clock."""
    document = files.read_json(directory / "comparison.json")
    return [{name: value for name, value in row.items() if name not in TIMINGS} for row in document["rows"]]


def check_same_runs(ours: Path, theirs: Path) -> None:
    """The same logs and weights, to the last bit."""
    names = sorted(path.name for path in theirs.glob("*-[5678]"))
    assert names and names == sorted(path.name for path in ours.glob("*-[5678]"))
    for name in names:
        assert (ours / name / "metrics.jsonl").read_bytes() == (theirs / name / "metrics.jsonl").read_bytes(), name
        first, second = (read_arrays(path / name / "model.safetensors")[0] for path in (ours, theirs))
        assert first.keys() == second.keys() and all(np.array_equal(first[key], second[key]) for key in first), name


def test_workers_make_the_table_of_one_command(work_dir, capsys, monkeypatch):
    assert compare(capsys, *WORDS, "--output-dir", "alone")[0] == 0
    code, out, err = compare(capsys, *WORDS, "--output-dir", "d", "--plan-only")
    assert (code, out) == (0, "") and err.endswith(
        "Planned 4 runs in d\nNext: weft compare d --worker, on as many machines as you like\n"
    )
    problem = "d: not finished (training: 0 of 4 runs ended); run weft compare d --worker"
    assert expect_error(capsys, "compare", "d") == (2, problem)
    # one worker is stopped after two runs, another one goes on, and a third one finds nothing to do
    monkeypatch.setattr(InProcessChild, "max_runs", 2)
    code, _, err = compare(capsys, "d", "--worker")
    assert code == 130 and err.endswith("Stopped. Saved to d. Other workers, or the same command, resume the runs.\n")
    assert InProcessChild.trained == ["ngram-5.run-0001", "lstm-5.run-0001"]
    code, out, _ = compare(capsys, "d", "--status", "--json")
    assert code == 0 and json.loads(out)["counts"] == {"trained": 1, "waiting": 3}
    code, table, err = compare(capsys, "d", "--worker")
    assert code == 0 and "ngram" in table and err.endswith("Report: d/report.html\n")
    assert InProcessChild.trained[2:] == ["lstm-5.run-0002", "ngram-6.run-0001", "lstm-6.run-0001"]
    code, out, err = compare(capsys, "d", "--worker")
    assert (code, out) == (0, "") and "has made the table; weft compare d prints it" in err
    again = compare(capsys, "d")
    assert (again[0], again[1]) == (0, table)  # the same table, whoever prints it
    assert rows(work_dir / "d") == rows(work_dir / "alone")
    for name in ("command", "title", "metric", "test", "failures", "items", "breakdowns", "samples", "configs"):
        ours, theirs = (files.read_json(work_dir / path / "comparison.json")[name] for path in ("d", "alone"))
        if name == "command":
            assert ours == theirs.replace("--output-dir alone", "--output-dir d")
        elif name == "configs":
            assert {row: text.replace("/d/", "/alone/") for row, text in ours.items()} == theirs
        else:
            assert ours == theirs, name
    check_same_runs(work_dir / "d", work_dir / "alone")
    code, out, _ = compare(capsys, "d", "--status")
    assert code == 0 and out.endswith("\ntraining: 4 runs, 4 trained\n") and "lease age" in out


def test_workers_tune_together(work_dir, capsys):
    words = ["run.toml", "--models", "lstm", "--tune-trials", "2"]
    assert compare(capsys, *words, "--output-dir", "alone")[0] == 0
    assert compare(capsys, *words, "--output-dir", "d", "--plan-only")[0] == 0
    _, out, _ = compare(capsys, "d", "--status")
    assert out.endswith("tuning: 2 runs, 2 waiting\n")
    code, _, err = compare(capsys, "d", "--worker")
    assert code == 0 and "lstm: best trial: " in err
    assert InProcessChild.trained == ["lstm-rung0-0.run-0001", "lstm-rung0-1.run-0001", "lstm-5.run-0001"]
    assert rows(work_dir / "d") == rows(work_dir / "alone")
    ours, theirs = (files.read_json(work_dir / name / "comparison.json")["tuning"] for name in ("d", "alone"))
    assert ours == theirs and not (work_dir / "d" / "results" / "lstm-rung0-0").exists()


def test_a_failed_run_is_in_the_table_and_can_be_tried_again(work_dir, capsys, monkeypatch):
    words = ["run.toml", "--models", "ngram", "--grid", "model.smoothing=mle,kneser-ney", "--output-dir", "d"]
    assert compare(capsys, *words, "--plan-only")[0] == 0
    real = InProcessChild.outcome
    monkeypatch.setattr(
        InProcessChild,
        "outcome",
        lambda self: Outcome(self.planned, 6, "step 3: loss is nan") if "mle" in self.planned.output_dir.name else real(self),
    )
    code, _, err = compare(capsys, "d", "--worker")
    assert code == 6 and "weft: warning: ngram,smoothing=mle, seed 5: step 3: loss is nan" in err
    assert [row["name"] for row in rows(work_dir / "d")] == ["ngram,smoothing=kneser-ney"]
    code, _, err = compare(capsys, "d", "--worker")
    assert code == 6 and len(InProcessChild.trained) == 2  # recorded
    monkeypatch.setattr(InProcessChild, "outcome", real)
    code, out, err = compare(capsys, "d", "--worker", "--retry-failed")
    assert code == 0 and err.startswith("Trying 1 failed run again\n") and "smoothing=mle" in out
    assert len(rows(work_dir / "d")) == 2


def test_a_worker_ends_when_idle_if_it_is_told_so(work_dir, capsys):
    assert compare(capsys, *WORDS, "--output-dir", "d", "--plan-only")[0] == 0
    other = Cells(work_dir / "d", Worker("other-1", "node2", 1), 600.0)
    other.make_directory()
    assert other.leases.claim("lstm-5", 0) is not None
    code, out, err = compare(capsys, "d", "--worker", "--exit-when-idle")
    assert (code, out) == (0, "") and err.endswith(
        "Nothing left to take; other workers are not finished. Status: weft compare d --status\n"
    )
    assert InProcessChild.trained == ["ngram-5.run-0001", "ngram-6.run-0001", "lstm-6.run-0001"]
    _, out, _ = compare(capsys, "d", "--status")
    assert re.search(r"^lstm-5 +training +node2 +1 +0% +\d+s$", out, re.MULTILINE)
    assert out.endswith("\ntraining: 4 runs, 3 trained, 1 training\n")


def test_another_host_must_have_the_same_weft_and_data(work_dir, capsys, monkeypatch):
    assert compare(capsys, *WORDS, "--output-dir", "d", "--plan-only")[0] == 0
    plan = SharedPlan.read(work_dir / "d")
    monkeypatch.setattr(shared_plan, "host_name", lambda: "node7")
    text = work_dir / "text.txt"
    check = HostCheck(plan)
    check.check_version()
    check.check_data()
    text.write_text(NAMES + "x\n")
    where = f"{text}: differs on node7; the comparison was planned on {plan.host}; use the same files on all hosts"
    with pytest.raises(DataError) as error:
        check.check_data()
    assert str(error.value) == where
    assert expect_error(capsys, "compare", "d", "--worker") == (3, where)
    text.unlink()
    assert expect_error(capsys, "compare", "d", "--worker") == (3, where.replace("differs", "is missing"))
    text.write_text(NAMES)
    with monkeypatch.context() as patch:
        patch.setattr(shared_plan, "__version__", "9.9")
        problem = f"weft: node7 has weft 9.9, but {plan.host} planned the comparison with weft {plan.weft}"
        assert expect_error(capsys, "compare", "d", "--worker") == (2, f"{problem}; install the same version on all hosts")
    monkeypatch.setattr(shared_plan, "code_checksum", lambda: "f" * 64)
    with pytest.raises(UsageError, match=r"node7 has weft .* with source code ffffffff, but .* planned the comparison with "):
        HostCheck(plan).check_version()
    assert InProcessChild.trained == []


def test_data_that_changes_under_a_worker_stops_it(work_dir, capsys, monkeypatch):
    assert compare(capsys, *WORDS, "--output-dir", "d", "--plan-only")[0] == 0
    real = InProcessChild.outcome

    def outcome(self: InProcessChild) -> Outcome:
        (work_dir / "text.txt").write_text(NAMES + "x\n")
        return real(self)

    monkeypatch.setattr(InProcessChild, "outcome", outcome)
    code, message = expect_error(capsys, "compare", "d", "--worker", "--quiet")
    assert code == 3 and "text.txt: differs on " in message
    assert InProcessChild.trained == ["ngram-5.run-0001"]
    states = Cells(work_dir / "d", this_worker(), 5.0)
    assert states.leases.is_free("lstm-5", states.leases.numbers()["lstm-5"])  # released


def test_timings_of_different_machines_are_marked(work_dir, capsys, monkeypatch):
    from weft.runs import machine

    assert compare(capsys, *WORDS, "--output-dir", "d", "--plan-only")[0] == 0
    real = InProcessChild.__init__

    def init(self: InProcessChild, planned: PlannedRun, config: Any, budget: Any) -> None:
        number = len(InProcessChild.trained) % 2
        monkeypatch.setattr(machine, "this_machine", lambda threads: Machine(f"node{number}", f"CPU {number}", "none", 4))
        real(self, planned, config, budget)

    monkeypatch.setattr(InProcessChild, "__init__", init)
    code, out, _ = compare(capsys, "d", "--worker", "--markdown", "d.md", "--csv", "d.csv")
    assert code == 0 and " train time~ " in out
    assert " ~ measured on different hardware: CPU 0, 4 threads; CPU 1, 4 threads\n" in out
    assert "train time (mixed hardware)" in (work_dir / "d.md").read_text()
    assert 'node0,"CPU 0, 4 threads"' in (work_dir / "d.csv").read_text()
    found = {row["name"]: (row["train_hosts"], row["train_hardware"]) for row in rows(work_dir / "d")}
    assert found == {"ngram": (["node0"], ["CPU 0, 4 threads"]), "lstm": (["node1"], ["CPU 1, 4 threads"])}
    assert "(mixed hardware)" in (work_dir / "d" / "report.html").read_text()


def test_wrong_uses_are_refused(work_dir, capsys):
    assert compare(capsys, *WORDS, "--output-dir", "d", "--plan-only")[0] == 0
    fix = "plan it with weft compare RUN.TOML --plan-only --output-dir DIR"
    no_plan = f"run.toml: not a comparison for workers (workers.json is missing); {fix}"
    expected = {
        ("run.toml", "--worker"): no_plan,
        ("d", "--worker", "--status"): "--worker and --status cannot be combined",
        ("d", "--exit-when-idle"): "--exit-when-idle: requires --worker",
        ("d", "--worker", "--seeds", "3"): "--seeds: d is planned already; set it together with --plan-only",
        ("d", "--worker", "--set", "seed=1"): "--set: d is planned already; set it together with --plan-only",
    }
    for words, message in expected.items():
        assert expect_error(capsys, "compare", *words) == (2, message)
    message = "d: contains a comparison for workers; run weft compare d --worker, or use --overwrite"
    assert expect_error(capsys, "compare", *WORDS, "--output-dir", "d") == (2, message)
    (work_dir / "d" / "workers.json").write_text("{}")
    code, message = expect_error(capsys, "compare", "d", "--worker")
    assert code == 4 and message.startswith(
        "d/workers.json: checksum mismatch; the file is corrupted; plan the comparison again"
    )
    files.write_json(work_dir / "d" / "workers.json", shared_plan.with_checksum({"version": 2}))
    with pytest.raises(ModelError, match="format version 2 is not supported"):
        SharedPlan.read(work_dir / "d")
    files.write_json(work_dir / "d" / "workers.json", shared_plan.with_checksum({"version": 1, "weft": 3}))
    with pytest.raises(ModelError, match="damaged: "):
        SharedPlan.read(work_dir / "d")
    assert compare(capsys, *WORDS, "--output-dir", "d", "--overwrite")[0] == 0
    assert not (work_dir / "d" / "workers.json").exists()


def owners(cells: Cells) -> list[tuple[int, int]]:
    """The processes that own a run now, and its last checkpoint."""
    found = []
    for name, number in cells.leases.numbers().items():
        content = cells.leases.read(name, number)
        if content is not None and content.is_held:
            found.append((content.worker.process, cells.step(PlannedRun(Variant("", {}), 0, cells.root / name))))
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_24_runs_by_4_workers_two_of_them_killed(work_dir):
    """One of them while its run has a checkpoint, the other at a random moment of its run."""
    (work_dir / "run.toml").write_text(RUN.replace("steps = 6", "steps = 400").replace("validations = 2", "validations = 20"))
    words = ["--models", "ngram,rnn,lstm,gru,conv,transformer", "--seeds", "4"]
    command = [sys.executable, "-m", "weft", "compare"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    for name in ("alone", "d"):
        subprocess.run([*command, "run.toml", *words, "-o", name, "--plan-only"], env=environment, check=True)
    workers = [subprocess.Popen([*command, "d", "--worker", "--lease-seconds", "10"], env=environment) for _ in range(4)]
    mine = Cells(work_dir / "d", this_worker(), 10.0)
    for victim, needs_checkpoint in zip(workers, (True, False), strict=False):
        while not any(process == victim.pid and step >= needs_checkpoint for process, step in owners(mine)):
            assert victim.poll() is None
            time.sleep(0.02)
        time.sleep(0.0 if needs_checkpoint else float(np.random.default_rng(0).uniform(0.0, 8.0)))
        victim.kill()
        victim.wait()
    assert [process.wait(1200) for process in workers[2:]] == [0, 0]
    assert len(list((work_dir / "d").glob("*-[5678]"))) == 24
    taken = [number for name, number in mine.leases.numbers().items() if name != "table"]
    assert len(taken) == 24 and sum(number > 1 for number in taken) == 2
    resumed = [mine.leases.read(name, 2) for name, number in mine.leases.numbers().items() if number == 2]
    assert any(content is not None and content.step > 0 for content in resumed)
    subprocess.run([*command, "alone", "--worker"], env=environment, check=True)
    assert rows(work_dir / "d") == rows(work_dir / "alone")
    check_same_runs(work_dir / "d", work_dir / "alone")
