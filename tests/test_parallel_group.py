"""Groups of processes: rows, exchanges, signs of life, refusals, and processes that die."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from parallel_cases import CHARS, GPT, case
from small_runs import SilentCallback, make_text

from weft.cli import group as cli_group
from weft.cli import launch
from weft.errors import GroupError, UsageError, WeftError
from weft.parallel.agreement import check_equal
from weft.parallel.group import ALONE, Group, is_exchange_error
from weft.parallel.heartbeat import LOST_SECONDS, STALE_SECONDS, Failure, Heartbeats, first_beat
from weft.parallel.join import Place, _diagnose, check_gpus, join, leave, lost_message
from weft.parallel.rows import parts_of, rows_of_rank
from weft.parallel.shards import is_sharded, local_part, rows_of, shard_like, whole
from weft.parallel.sharing import merge, share, sum_arrays
from weft.runs.job import JobInputs, train
from weft.training.data_parallel import check_rows, pick_strategy
from weft.training.micro_batches import gather_carry, split_carry


def error_of(function: Any) -> WeftError:
    with pytest.raises(WeftError) as caught:
        function()
    return caught.value


# ---- one process alone


def test_one_process_alone_exchanges_with_itself() -> None:
    tensor = torch.arange(3)
    assert ALONE.leads and ALONE.gather({"a": 1}) == [{"a": 1}] and ALONE.duplicate().size == 1
    assert ALONE.sum_(tensor) is tensor and ALONE.broadcast_(tensor) is tensor
    assert ALONE.from_leader(1.5) == 1.5 and ALONE.any(True)
    assert ALONE.gather_tensor(tensor).shape == (1, 3) and ALONE.exchange(tensor, [3], [3]) is tensor
    assert list(share("abc", ALONE)) == ["a", "b", "c"] and merge({2: "x"}, ALONE) == {2: "x"}
    assert sum_arrays(np.ones(2), ALONE).tolist() == [1, 1]


def test_a_tensor_that_is_not_sharded_is_its_own_part() -> None:
    tensor = torch.arange(6.0).view(3, 2)
    assert not is_sharded(tensor) and local_part(tensor) == (tensor, 0, (3, 2))
    assert whole(tensor) is tensor and shard_like(tensor, tensor) is tensor
    assert rows_of(5, 2) == [(0, 3), (3, 2)] and rows_of(2, 4) == [(0, 1), (1, 1), (2, 0), (2, 0)]


# ---- rows


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("rows", [1, 2, 5, 12, 13])
def test_every_row_is_computed_once_and_every_process_has_as_many_parts(rows: int, micro_batches: int, size: int) -> None:
    parts = [parts_of(rows, micro_batches, rank=rank, size=size) for rank in range(size)]
    assert len({len(part) for part in parts}) == 1
    assert sorted(row for part in parts for piece in part for row in piece.rows.tolist()) == list(range(rows))
    numbers = [piece.number for part in parts for piece in part if len(piece.rows)]
    assert len(set(numbers)) == len(numbers)  # each with a seed of its own


def test_whole_micro_batches_are_those_of_one_process() -> None:
    alone = parts_of(12, 4)
    together = {part.number: part.rows.tolist() for rank in range(2) for part in parts_of(12, 4, rank=rank, size=2)}
    assert together == {part.number: part.rows.tolist() for part in alone}


def test_processes_get_about_as_many_tokens() -> None:
    lengths = torch.arange(100)  # batches are sorted by length
    totals = [int(lengths[rows_of_rank(100, 1, rank=rank, size=4)].sum()) for rank in range(4)]
    assert max(totals) - min(totals) <= 75 and sum(totals) == int(lengths.sum())


def test_the_state_of_a_stream_is_divided_by_rows() -> None:
    state = (torch.arange(5)[:, None], (torch.arange(5.0),))
    parts = [split_carry(state, 1, Group(rank, 2, ("a", "b"))) for rank in range(2)]
    assert [part[1][0].tolist() for part in parts] == [[0, 2, 4], [1, 3]]
    assert split_carry(state, 1, ALONE) is state and gather_carry(state, 1, ALONE) is state
    assert split_carry((torch.zeros(1, 1),), 1, Group(1, 2, ("a", "b"))) is None


# ---- refusals


def test_more_processes_than_rows_are_refused_with_the_number_that_works() -> None:
    check_rows(2, Group(0, 2, ("a", "b")))
    assert str(error_of(lambda: check_rows(2, Group(0, 3, ("a", "a", "b"))))) == (
        "train.batch_tokens: a batch has 2 rows, too few for 3 processes; use at most 2 processes or a larger train.batch_tokens"
    )


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(0, 2, 0, "a", "127.0.0.1", 1, local_size=2)
    check_gpus(place, "cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    message = "processes: a has 0 GPUs, too few for 2 processes; set train.device = 'cpu'"
    assert str(error_of(lambda: check_gpus(place, "cuda"))) == message
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    message = "processes: a has 1 GPU, too few for 2 processes; start 1 per host, or set train.device = 'cpu'"
    assert str(error_of(lambda: check_gpus(place, "cuda"))) == message


def test_unequal_processes_are_refused_with_rank_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(0, 2, ("a", "b"))
    monkeypatch.setattr(Group, "gather", lambda self, value: [value, {**value, "weft": "version 2"}])
    error = error_of(lambda: check_equal(group, {"weft": "version 1"}, "use the same"))
    assert str(error) == "weft: rank 1 (host b) has version 2, rank 0 (host a) has version 1; use the same"
    assert isinstance(error, UsageError)


def test_a_model_without_steps_is_trained_by_one_process(tmp_path: Path) -> None:
    values = case("lm", {"train": str(make_text(tmp_path / "a.txt"))}, {"arch": "ngram"}, CHARS)
    inputs = JobInputs(group=Group(0, 2, ("a", "b")))
    error = error_of(lambda: train(values, tmp_path / "run", base=tmp_path, callback=SilentCallback(), inputs=inputs))
    assert str(error) == "model.arch: 'ngram' is trained by one process; leave out `processes`"


class Prepared(Group):
    """A process whose first process has prepared a run that it cannot see."""

    def await_leader(self, key: str) -> Any:
        return {}


def test_a_run_directory_that_is_not_shared_is_refused(tmp_path: Path) -> None:
    inputs = JobInputs(group=Prepared(1, 2, ("a", "b")))
    error = error_of(lambda: train({}, tmp_path / "run", base=tmp_path, callback=SilentCallback(), inputs=inputs))
    message = "not the run directory of rank 0 (host a); use a directory that all hosts share"
    assert str(error) == f"{tmp_path / 'run'}: {message}"


def test_the_environment_describes_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert cli_group.place_of_process() is None
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("MASTER_ADDR", "a")
    place = cli_group.place_of_process()
    assert place is not None and (place.rank, place.size, place.address, place.has_store) == (3, 4, "a", False)
    monkeypatch.setenv("RANK", "x")
    error = error_of(cli_group.place_of_process)
    assert str(error) == "environment: RANK, WORLD_SIZE, LOCAL_RANK and MASTER_PORT must be numbers"


def test_large_models_are_sharded() -> None:
    assert pick_strategy("auto", 10**6) == "ddp" and pick_strategy("auto", 10**10) == "fsdp"
    assert pick_strategy("ddp", 10**10) == "ddp" and pick_strategy("fsdp", 1) == "fsdp"


# ---- joining


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def test_a_process_that_does_not_join_is_named() -> None:
    place = Place(0, 3, 0, "a", "127.0.0.1", free_port())
    error = error_of(lambda: join(place, device="cpu", on_lost=lambda group, rank: None, wait=0.2))
    assert str(error) == "ranks 1, 2 of 3 did not join within 0.2 seconds; start all processes"
    assert error.exit_code == 7


def test_an_address_that_cannot_be_reached_is_named() -> None:
    place = Place(1, 2, 1, "b", "127.0.0.1", free_port())
    error = error_of(lambda: join(place, device="cpu", on_lost=lambda group, rank: None, wait=1))
    problem = "rank 1 (host b) cannot reach rank 0 after 1 seconds; check the address, the port and the firewall"
    assert str(error) == f"127.0.0.1:{place.port}: {problem}"


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        place = Place(0, 2, 0, "a", "127.0.0.1", other.getsockname()[1])
        error = error_of(lambda: join(place, device="cpu", on_lost=lambda group, rank: None, wait=1))
    assert str(error) == f"127.0.0.1:{place.port}: cannot listen for the other processes"


# ---- signs of life


class Beats:
    """Signs of life as a test sets them."""

    def __init__(self, *, failure: Failure | None = None, silent: int | None = None, behind: int | None = None) -> None:
        self.values = (failure, silent, behind)

    def failure(self, rank: int | None = None) -> Failure | None:
        return self.values[0]

    def silent(self, seconds: float) -> int | None:
        return self.values[1]

    def behind(self) -> int | None:
        return self.values[2]


def test_a_failed_exchange_names_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    group, clock = Group(0, 2, ("a", "b"), timeout=60), iter(np.arange(0, 10 * LOST_SECONDS, 5.0).tolist())
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))

    def diagnosis(beats: Beats) -> str:
        return _diagnose(group, beats)  # type: ignore[arg-type]

    assert diagnosis(Beats(failure=Failure(1, 5, "disk full"))) == "rank 1 (host b) stopped: disk full"
    assert diagnosis(Beats(silent=1)) == lost_message(group, 1)
    assert lost_message(group, 1) == "rank 1 (host b) does not answer any more; the last checkpoint is intact"
    message = "rank 1 (host b) is alive, but did not come to an exchange within 60 seconds"
    assert diagnosis(Beats(behind=1)) == message
    assert diagnosis(Beats()) == "an exchange between the processes failed, although all of them are alive"


def test_only_lost_connections_are_failures_of_the_group() -> None:
    group = Group(0, 2, ("a", "b"), diagnose=lambda: "rank 1 is gone")
    with pytest.raises(GroupError, match="rank 1 is gone"), group.failures():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3829")
    with pytest.raises(RuntimeError, match="shape"), group.failures():
        raise RuntimeError("shape mismatch")
    assert not is_exchange_error(RuntimeError("shape mismatch"))


def test_a_group_of_one_process_counts_its_signs_of_life() -> None:
    """The threads of a process see each other through the store, as processes do."""
    lost: list[int] = []
    place = Place(0, 1, 0, "a", "127.0.0.1", free_port())
    group = join(place, device="cpu", on_lost=lambda group, rank: lost.append(rank), wait=5)
    beats = group.heartbeats
    assert beats is not None
    try:
        end = time.monotonic() + 10
        while not beats.report.beat and time.monotonic() < end:
            time.sleep(0.02)
        assert beats.report.beat and beats.silent(10) is None and beats.failure() is None
        beats.post(Failure(0, 3, "data"))
        assert beats.failure() == beats.failure(0) == Failure(0, 3, "data")
        beats.post(Failure(1, 4, "later"))
        assert beats.failure() == Failure(0, 3, "data")
        group.announce("x", [1])
        assert not lost
    finally:
        leave(Group(0, 2, heartbeats=beats))


class DictStore:
    """A store in this process, which counts the questions to it."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.questions = 0

    def set(self, key: str, value: str) -> None:
        self.questions += 1
        self.values[key] = value

    def get(self, key: str) -> str:
        self.questions += 1
        return self.values[key]

    def multi_get(self, keys: list[str]) -> list[str]:
        self.questions += 1
        return [self.values[key] for key in keys]


class Clock:
    """The time, as a test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def watch(size: int) -> tuple[DictStore, list[Heartbeats]]:
    """The signs of life of processes, without their threads."""
    store = DictStore()
    for rank in range(size):
        first_beat(store, rank)
    return store, [Heartbeats(store, rank, size, lambda rank: None) for rank in range(size)]


def rounds(beats: list[Heartbeats], clock: Clock, seconds: int, *, paused: Collection[int] = ()) -> None:
    """Let processes beat once per second."""
    for _ in range(seconds):
        clock.now += 1
        for beat in beats:
            if beat.rank not in paused:
                beat.beat()


@pytest.mark.parametrize("size", [1, 2, 64])
def test_questions_to_the_store_grow_with_the_number_of_processes(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    store, beats = watch(size)
    store.questions = 0
    rounds(beats, clock, 10)
    assert store.questions <= 10 * 2 * size
    assert all(beat.silent(3) is None and beat.behind() is None for beat in beats)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_all_processes_name_the_one_that_is_silent(lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    _, beats = watch(4)
    rounds(beats, clock, 5)
    rounds(beats, clock, 29, paused=[lost])
    others = [beat for beat in beats if beat.rank != lost]
    assert [beat.silent(LOST_SECONDS) for beat in others] == [None] * 3
    rounds(beats, clock, 3, paused=[lost])
    assert [beat.silent(LOST_SECONDS) for beat in others] == [lost] * 3


def test_a_store_that_ends_with_the_first_process_does_not_hide_who_was_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    _, beats = watch(3)
    rounds(beats, clock, 25, paused=[2])
    clock.now += 8  # no answer any more: the first process has named the lost one, and ended
    assert beats[1].silent(LOST_SECONDS) == 2 and beats[1].silent(STALE_SECONDS) == 2


def test_the_first_of_several_processes_that_fall_silent_together_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    _, beats = watch(4)
    rounds(beats, clock, 5)
    rounds(beats, clock, 1, paused=[3])
    rounds(beats, clock, 33, paused=[2, 3])
    assert beats[0].silent(LOST_SECONDS) == beats[1].silent(LOST_SECONDS) == 2


def test_the_process_that_does_not_come_to_an_exchange_is_known_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    _, beats = watch(3)
    for beat in beats:
        beat.progress = 7 if beat.rank == 1 else 8
    rounds(beats, clock, 2)
    assert [beat.behind() for beat in beats] == [1, 1, 1]
    beats[2].progress = 7
    rounds(beats, clock, 2)
    assert [beat.behind() for beat in beats] == [None] * 3


# ---- processes that die


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that a process has started, in the order of their ranks."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return sorted(int(word) for word in text.split())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def weft(directory: Path, *words: str) -> subprocess.Popen[str]:
    words = ("train", "run.toml", "-o", "run", "--processes", "2", *words)
    return subprocess.Popen([sys.executable, "-m", "weft", *words], cwd=directory, stderr=subprocess.PIPE, text=True)


def wait_for_steps(directory: Path, process: subprocess.Popen[str]) -> None:
    """Wait for a checkpoint and a step after it."""
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        metrics = directory / "run" / "metrics.jsonl"
        if list((directory / "run").glob("checkpoints/*/train_state.json")) and metrics.read_text().count("\n") > 25:
            return
        time.sleep(0.02)
    raise AssertionError(f"no steps: {process.communicate()[1]}")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    values = case("lm", {"train": str(make_text(tmp_path / "a.txt")), "context_length": 16}, GPT, CHARS)
    values["train"] |= {"max_steps": 150, "num_validations": 15, "batch_tokens": 64}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(values))
    return tmp_path


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_process_stops_the_others_and_the_run_resumes(run_dir: Path, rank: int) -> None:
    process = weft(run_dir)
    wait_for_steps(run_dir, process)
    children, start = children_of(process), time.monotonic()
    os.kill(children[rank], signal.SIGKILL)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == GroupError.exit_code and time.monotonic() - start < 30
    message = f"rank {rank} (host {socket.gethostname()}) was killed by SIGKILL; the last checkpoint is intact"
    assert [line for line in errors.splitlines() if "error" in line] == [f"weft: error: {message}"]
    assert not any(is_alive(pid) for pid in children)
    process = weft(run_dir)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0 and "resuming at step" in errors, errors
    train(tomllib.loads((run_dir / "run.toml").read_text()), run_dir / "alone", base=run_dir, callback=SilentCallback())
    texts = [(run_dir / run / "metrics.jsonl").read_text() for run in ("run", "alone")]
    lines = [[json.loads(line) for line in text.splitlines()] for text in texts]
    assert [line["step"] for line in lines[0]] == [line["step"] for line in lines[1]]
    for ours, theirs in zip(*lines, strict=True):
        assert ours.get("train_loss", 0) == pytest.approx(theirs.get("train_loss", 0), rel=1e-4)
    process = weft(run_dir, "--overwrite", "--set", "train.max_steps=2")  # the old run is in the backup meanwhile
    assert (process.communicate(timeout=60)[1].count("error"), process.returncode) == (0, 0)
    assert (run_dir / "run" / "metrics.jsonl").read_text().count("\n") < 5


@pytest.mark.parametrize(
    ("polls", "expected"),
    [
        ([(None, 130), (None, 130), (143, 130)], 143),  # told to stop by SIGTERM; the other one has followed it
        ([(None, 130), (130, 130)], 130),
        ([(None, 2)], 2),
        ([(None, 0), (0, 0)], 0),
        ([(0, None), (0, 5)], 5),
    ],
)
def test_the_exit_code_is_that_of_the_process_that_failed_or_was_stopped_first(monkeypatch, polls, expected):
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.0)
    children: Any = [SimpleNamespace(poll=iter(codes).__next__) for codes in zip(*polls, strict=True)]
    assert launch._wait(children, "resume") == expected


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops_all_processes(run_dir: Path, number: int) -> None:
    process = weft(run_dir)
    wait_for_steps(run_dir, process)
    children = children_of(process)
    process.send_signal(number)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number and errors.count("Saving ...") == 1 and "Stopped at step" in errors, errors
    assert not any(is_alive(pid) for pid in children)
