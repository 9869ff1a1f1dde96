"""Checkpoints and weights that are written in the background: the same files, in the same order, and no error is lost."""

from __future__ import annotations

import errno
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from small_runs import SilentCallback, leftovers, make_text, run_file, run_hashes, train_here
from test_files import SEEN, Faulty

from weft import files
from weft.cli.main import main
from weft.errors import DivergedError, ResourceError, TrainingInterrupted
from weft.parallel.group import Group
from weft.resources import format_bytes
from weft.tensors import read_listed, tensor_layout, write_layout, write_tensors
from weft.training import background_save, checkpoint, memory, run_log, snapshot
from weft.training import loop_checkpoint as saving
from weft.training.background import BackgroundThread
from weft.training.data_parallel import Sharded
from weft.training.loop import DeviceConfig, Loop
from weft.training.snapshot import HostBuffers, Snapshot, TensorFile

WRITER = "weft-save"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """An undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train_here(small(text), out)
    return out


def small(text: Path, **options: Any) -> dict[str, Any]:
    """A run with everything that a checkpoint can have: carried state, EMA, two optimizers."""
    options = {"data__read_as": "stream", "train__ema_decay": 0.9, "train__max_steps": 8, **options}
    return run_file(text, "gpt", **options)


# ---- one thread


def test_jobs_run_in_order_and_none_after_one_that_failed():
    done: list[int] = []
    thread = BackgroundThread("test")
    thread.submit("a", lambda: done.append(1))
    thread.submit("b", lambda: done.append(2))
    thread.wait()
    assert done == [1, 2]

    def fail() -> None:
        raise ResourceError("disk", "full")

    gate = threading.Event()
    thread.submit("a", gate.wait)
    thread.submit("b", fail)
    thread.submit("c", lambda: done.append(3))
    gate.set()
    thread.wait()
    with pytest.raises(ResourceError, match="disk: full"):
        thread.raise_error()
    thread.raise_error()  # only once
    thread.submit("d", lambda: done.append(4))
    thread.close()
    assert done == [1, 2]


def test_a_job_waits_for_the_last_one_of_its_name():
    thread, running, most = BackgroundThread("test"), [0], [0]

    def job() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0] + len([name for name, _ in thread._jobs if name == "a"]) - 1)
        time.sleep(0.01)
        running[0] -= 1

    for _ in range(5):
        thread.submit("a", job)
    thread.close()
    assert most == [1]


# ---- copies


@pytest.mark.parametrize("size", [1, 7, 8, 1000], ids="chunks of {} bytes".format)
def test_a_copy_has_the_bytes_of_the_file(tmp_path, monkeypatch, size):
    """Also if tensors cross the boundaries of chunks; and tied, empty and strided tensors."""
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", size)
    base = torch.arange(30.0).reshape(5, 6)
    tensors = {"a": base, "b": base, "c": base.t(), "d": torch.zeros(0, 3), "e": torch.tensor(3), "f": base[:, 1].bfloat16()}
    for small_bytes in (0, 10**9):
        monkeypatch.setattr(snapshot, "SMALL_BYTES", small_bytes)
        copy, thread = (
            Snapshot({"x": TensorFile(tensors, {"k": "v"})}, HostBuffers(torch.device("cpu"))),
            BackgroundThread("test"),
        )
        copy.start(thread)
        copy.wait()
        copy.finish()
        thread.close()
        write_layout(tmp_path / "copied", copy.layouts["x"], lambda copy=copy: copy.data("x"))
        write_tensors(tmp_path / "direct", tensors, {"k": "v"})
        assert (tmp_path / "copied").read_bytes() == (tmp_path / "direct").read_bytes()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_copies_from_a_gpu_are_those_before_the_next_update(tmp_path):
    weights = [torch.randn(3_000_000, device="cuda") for _ in range(4)]
    expected = [weight.cpu() for weight in weights]
    tensors = {str(index): weight for index, weight in enumerate(weights)}
    buffers, thread = HostBuffers(torch.device("cuda", 0)), BackgroundThread("test")
    for _ in range(3):
        copy = Snapshot({"x": TensorFile(tensors, volatile=frozenset({"0"}))}, buffers)
        copy.start(thread)
        weights[0].zero_()  # volatile: the next kernel already waits
        copy.wait()
        torch._foreach_mul_(weights, 2.0)
        copy.finish()
        write_layout(tmp_path / "x", copy.layouts["x"], lambda copy=copy: copy.data("x"))
        saved = read_listed(tmp_path / "x")[0]
        assert all(torch.equal(saved[str(index)], value) for index, value in enumerate(expected))
        expected = [weight.cpu() for weight in weights]


def test_memory_is_used_again(monkeypatch):
    buffers = HostBuffers(torch.device("cpu"))
    first = buffers.get("a", 100)
    assert buffers.get("a", 100) is first
    assert [len(chunk) for chunk in buffers.get("a", 50)] == [50]
    assert buffers.get("b", 0) == []


MODES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "copied by a thread": lambda patch: patch.setattr(snapshot, "SMALL_BYTES", 0),
    "not copied": lambda patch: patch.setattr(memory, "can_copy_state", lambda module, size, config, device: False),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_way_to_save_gives_the_same_files(tmp_path, text, whole, monkeypatch, mode):
    MODES[mode](monkeypatch)
    train_here(small(text), tmp_path / "run")
    assert run_hashes(tmp_path / "run") == run_hashes(whole)
    files.verify(checkpoint.newest(tmp_path / "run")[0])


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_the_next_step_waits_for_a_slow_copy(tmp_path, text, monkeypatch, ema):
    """Otherwise a checkpoint would have weights of two steps."""
    values = small(text, train__ema_decay=ema, train__num_validations=8)
    train_here(values, tmp_path / "whole")
    monkeypatch.setattr(snapshot, "SMALL_BYTES", 0)
    real, seen = np.copyto, set[str]()

    def slow(target: Any, source: Any) -> None:
        seen.add(threading.current_thread().name)
        time.sleep(0.001)
        real(target, source)

    monkeypatch.setattr(snapshot.np, "copyto", slow)
    train_here(values, tmp_path / "run")
    assert seen == {"weft-copy"}
    assert run_hashes(tmp_path / "run") == run_hashes(tmp_path / "whole")


def test_a_failed_copy_stops_the_run(tmp_path, text, monkeypatch):
    monkeypatch.setattr(snapshot, "SMALL_BYTES", 0)

    def fail(target: Any, source: Any) -> None:
        raise MemoryError("no memory for a copy")

    monkeypatch.setattr(snapshot.np, "copyto", fail)
    with pytest.raises(MemoryError, match="no memory for a copy"):
        train_here(small(text), tmp_path / "run")
    assert not checkpoint.names(tmp_path / "run")


def test_memory_for_copies_is_counted_in_advance(monkeypatch):
    module: Any = torch.nn.Linear(9, 1)  # 10 parameters
    cpu = DeviceConfig(torch.device("cpu"), torch.float32)
    config = memory.TrainConfig(optimizer="adamw", ema_decay=0.5).with_defaults()
    # optimizer state and EMA, a batch of 1,000 bytes; a copy of everything, and of the weights once more
    needed = 4 * 10 * 3 + 1000 + 4 * 10 * (4 + 1)
    for free, fits in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(memory, "free_device_memory", lambda device, free=free: free)
        assert memory.can_copy_state(module, 1000, config, cpu) is fits, format_bytes(free)


# ---- the end of a run


class SlowWrite:
    """Delays the thread that writes; records which steps were written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.steps, self.at_once, self.most, real = list[int](), 0, 0, saving.write

        def write(copy: Any, content: Any, run_dir: Path, checksums: Any, group: Any) -> None:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            time.sleep(seconds)
            real(copy, content, run_dir, checksums, group)
            self.steps.append(content.train_state["step"])
            self.at_once -= 1

        monkeypatch.setattr(background_save.saving, "write", write)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, text, whole, monkeypatch):
    slow, seen = SlowWrite(monkeypatch, 0.05), list[tuple[int, int]]()
    callback = SilentCallback(inspect=lambda loop: seen.append((loop.train_state.step, len(slow.steps))))
    train_here(small(text), tmp_path / "run", callback)
    assert (3, 0) in seen  # the checkpoint of step 2 was not there yet
    assert slow.steps == [2, 4, 6, 8] and slow.most == 1
    assert run_hashes(tmp_path / "run") == run_hashes(whole)


def test_a_stop_and_a_divergence_wait_for_the_checkpoint(tmp_path, text, monkeypatch):
    SlowWrite(monkeypatch, 0.05)
    with pytest.raises(TrainingInterrupted):
        train_here(small(text), tmp_path / "stopped", SilentCallback(stop_at=3))
    assert checkpoint.names(tmp_path / "stopped") == ["000002", "000003"]

    def spoil(loop: Loop) -> None:
        if loop.train_state.step == 3:
            with torch.no_grad():
                next(loop.loss_module.model.parameters()).fill_(float("nan"))

    with pytest.raises(DivergedError, match=r"^step 4: loss is nan"):
        train_here(small(text), tmp_path / "diverged", SilentCallback(inspect=spoil))
    assert checkpoint.names(tmp_path / "diverged") == ["000002"]
    assert leftovers(tmp_path / "diverged") == leftovers(tmp_path / "stopped") == []


# ---- errors in the background


class FaultyWriter(Faulty):
    """Fails the n-th system call of the thread that writes, and leaves the other threads alone."""

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if threading.current_thread().name == WRITER else getattr(files_os, name)


files_os = files.os


@pytest.mark.parametrize("step", [31, pytest.param(1, marks=pytest.mark.slow)])
def test_a_failing_system_call_of_the_writer_stops_the_run(tmp_path, text, monkeypatch, step):
    """Whichever call it is: the error has its reason, what was written before is intact, and the run resumes."""
    values, failures, whole = small(text, train__max_steps=4, train__num_validations=2), 0, tmp_path / "whole"
    train_here(values, whole)
    for number in range(1, 10_000, step):
        out = tmp_path / str(number)
        faulty = FaultyWriter(number, errno.ENOSPC)
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", faulty)
            try:
                train_here(values, out)
            except ResourceError as error:
                failures += 1
                assert any(str(error).endswith(SEEN[errno.ENOSPC].format(state)) for state in STATES), str(error)
            else:
                assert not faulty.name or faulty.name in ("open", "close", "rename", "fsync"), faulty.name
        if not faulty.name:
            break
        assert checkpoint.newest(out)[1] == []
        train_here(values, out)
        assert run_hashes(out) == run_hashes(whole)
        assert leftovers(out) == []
    assert failures > 150 // step
    assert not faulty.name


STATES = (
    "nothing was changed",
    "it is complete, but a power failure could undo it",
    "the line was not written",
    "its last lines may not survive a power failure",
)


def test_without_its_weights_no_checkpoint_is_written(tmp_path, text, whole, monkeypatch):
    """A checkpoint never refers to weights that are older than it says."""
    out, real, count = tmp_path / "run", run_log.write_layout, [0]

    def fail(path: Path, layout: Any, data: Any) -> None:
        count[0] += 1
        if count[0] == 3:
            time.sleep(0.05)
            raise ResourceError(path, "no space left on disk; nothing was changed", "free some space and try again")
        real(path, layout, data)

    with monkeypatch.context() as patch:
        patch.setattr(run_log, "write_layout", fail)
        with pytest.raises(ResourceError, match="no space left on disk"):
            train_here(small(text, train__keep="last"), out)
    assert checkpoint.names(out) == ["000002", "000004"]
    train_here(small(text, train__keep="last"), out)


def test_a_full_disk_has_the_exit_code_and_message_of_a_write(tmp_path, text, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(
        f"""
task = "lm"
[data]
train = "{text}"
[model]
arch = "conv"
hidden_size = 8
[train]
max_steps = 4
device = "cpu"
"""
    )

    def fail(copy: Any, content: Any, run_dir: Path, checksums: Any, group: Any) -> None:
        raise ResourceError(run_dir, "no space left on disk; nothing was changed", "free some space and try again")

    monkeypatch.setattr(background_save.saving, "write", fail)
    assert main(["train", "run.toml", "--quiet"]) == 5
    expected = "weft: error: runs/run: no space left on disk; nothing was changed; free some space and try again\n"
    assert capsys.readouterr().err.endswith(expected)


def test_the_layout_of_no_tensors_has_no_bytes():
    assert tensor_layout({}).num_bytes() == 0


# ---- shards: the weights of a validation are a copy


class Waited:
    """Counts how often somebody waits for it."""

    count = 0

    def wait(self) -> None:
        self.count += 1


@pytest.mark.parametrize("is_copy", [True, False])
def test_training_does_not_wait_for_a_copy_of_the_best_weights_that_nothing_changes(is_copy: bool) -> None:
    model, copy, snapshot = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), Waited()
    replica = Sharded.__new__(Sharded)
    replica.loss_module, replica.copy, replica.device = SimpleNamespace(model=model), copy, torch.device("cpu")  # type: ignore[assignment]
    loop: Any = SimpleNamespace(loss_module=replica.loss_module, replica=replica, ema=object())
    log: Any = SimpleNamespace(
        saver=SimpleNamespace(submit=lambda *parts: snapshot), _weights=lambda *parts: {}, _write_weights=None
    )
    run_log.RunLogWriter.keep_best(log, loop, copy if is_copy else model)
    assert snapshot.count == (not is_copy)
    with replica.whole_model() as whole_copy:  # would change it
        assert snapshot.count == 1 and torch.equal(whole_copy.weight, model.weight)
    with replica.whole_model():
        assert snapshot.count == 1


@pytest.fixture
def group_of_one() -> Iterator[Group]:
    """A group of torch with this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Group(process_group=dist.group.WORLD)
    dist.destroy_process_group()


def test_the_memory_for_the_best_weights_is_that_of_all_of_them(group_of_one: Group) -> None:
    """Sharded weights have no address: tensors of one shape were taken for tied ones, and counted once."""
    loss_module: Any = torch.nn.Module()
    loss_module.model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    replica = Sharded(loss_module, group_of_one, torch.device("cpu"))
    contents: list[dict[str, TensorFile]] = []
    saver = SimpleNamespace(
        reserve=lambda loop, weights: contents.append(weights),
        submit=lambda loop, name, weights, write: contents.append(weights),
    )
    log: Any = SimpleNamespace(
        saver=saver, _weights=lambda loop, model: {"weights": saving.weights_file(model)}, _write_weights=None
    )
    loop: Any = SimpleNamespace(loss_module=loss_module, replica=replica, ema=None)
    run_log.RunLogWriter.reserve(log, loop)
    with replica.whole_model() as model:
        run_log.RunLogWriter.keep_best(log, loop, model)
    reserved, written = (Snapshot(content, None).num_bytes() for content in contents)
    assert reserved == written == 3 * (8 * 8 + 8) * 4


# ---- the benchmark


@pytest.mark.parametrize(("given", "threads"), [(None, "4"), ("3", "3")])
def test_the_benchmark_has_the_threads_of_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None, threads: str
) -> None:
    """With torch's defaults, every process has a thread per CPU, and they spin: a check of the weights that takes 0.05 s took
    up to 0.8 s."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    benchmark: Any = importlib.import_module("checkpoints")
    started: list[dict[str, str]] = []

    def start(words: list[str], *, env: dict[str, str] | None = None) -> Any:
        started.append(dict(os.environ) if env is None else env)
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr(benchmark, "subprocess", SimpleNamespace(Popen=start))
    monkeypatch.setattr(benchmark, "cpus", lambda: 8)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    benchmark.start_processes(SimpleNamespace(processes=2, dir=tmp_path))
    threads_of = [(env.get("OMP_NUM_THREADS"), env.get("OMP_WAIT_POLICY")) for env in started]
    assert threads_of == [(threads, "PASSIVE")] * 2
