"""Recorded training steps: without a GPU, a recorder that repeats the work of the same tensors takes the place of CUDA graphs.
Batches in few shapes, which make recordings pay, are in test_few_shapes.py."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from seq2seq_runs import Seq2SeqRuns, seq2seq_run_file
from small_runs import SilentCallback, run_hashes, train_here
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from weft.config import override
from weft.data.batching import Lines
from weft.data.corpus import Corpus
from weft.data.few_shapes import FewShapes
from weft.errors import TrainingInterrupted
from weft.nn.state import tree_leaves
from weft.parallel.group import Group
from weft.training import compilation, cuda_graphs, neural
from weft.training.cuda_graphs import (
    NUM_WARMUPS,
    CudaRecorder,
    GraphedReplica,
    Recorder,
    RecordingError,
    _without_aliases,
    can_record,
)
from weft.training.data_parallel import Replica
from weft.training.duration import seconds_per_step
from weft.training.loop import DeviceConfig, Loop
from weft.training.loss_module import LossModule

R = TypeVar("R")
CPU = torch.device("cpu")


class Repeating:
    """A recorder that computes again, and notes what it was asked for."""

    def __init__(self, *, fails_at: int | None = None, room: int = 1000) -> None:
        self.fails_at, self.room, self.warmups, self.recordings, self.replays = fails_at, room, 0, 0, 0

    def has_room(self) -> bool:
        return self.recordings < self.room

    def warm_up(self, compute: Callable[[], R]) -> R:
        self.warmups += 1
        return compute()

    def record(self, compute: Callable[[], R]) -> Callable[[], R]:
        if self.recordings == self.fails_at:
            raise RecordingError("attention.py:1 waits for the GPU")
        self.recordings += 1

        def replay() -> R:
            self.replays += 1
            return compute()

        return replay


class Tracing(Repeating):
    """A recorder that runs no Python of the model in a replay, like a CUDA graph: it repeats the kernels that it has seen, on
    the tensors that it has seen. `buffers()` are the gradients, which it may write to or replace."""

    def __init__(self, buffers: Callable[[], list[Tensor]]) -> None:
        super().__init__()
        self.buffers = buffers

    def record(self, compute: Callable[[], R]) -> Callable[[], R]:
        before, random_state = [(buffer, buffer.clone()) for buffer in self.buffers()], torch.get_rng_state()
        results: list[Any] = []

        def trace() -> list[Tensor]:
            results.append(compute())
            return tree_leaves(tuple(results[0])) + self.buffers()

        traced = make_fx(trace)()
        for buffer, value in before:
            buffer.copy_(value)
        torch.set_rng_state(random_state)
        self.recordings += 1
        targets = tree_leaves(tuple(results[0])) + self.buffers()

        def replay() -> R:
            self.replays += 1
            for target, value in zip(targets, traced(), strict=True):
                target.copy_(value)
            result: R = results[0]
            return result

        return replay


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Seq2SeqRuns(tmp_path_factory.mktemp("pairs")).pairs


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recorder | None], None]:
    """Train on a CPU as on a GPU: in few shapes, and with a recorder, if there is one."""

    def use(recorder: Recorder | None) -> None:
        monkeypatch.setattr(neural, "can_record", lambda *parts, **options: True)
        monkeypatch.setattr(neural, "has_memory", lambda *parts: True)
        monkeypatch.setattr(neural, "CudaRecorder", lambda device: recorder)
        replica = GraphedReplica if recorder else lambda module, weights, recorder, on_failure: Replica(module)
        monkeypatch.setattr(neural, "GraphedReplica", replica)
        monkeypatch.setattr(neural, "FewShapes", lambda sampler: FewShapes(sampler, max_shapes=3))

    return use


OPTIONS = {
    "lstm": [],
    "luong": ["train.micro_batches=3"],
    "transformer": ["train.r_drop=3.0", "train.label_smoothing=0.1", "model.dropout=0.3"],
    "joint": ["train.optimizer=muon"],
}


@pytest.mark.parametrize(
    "model", [pytest.param(model, marks=() if model in ("luong", "transformer") else pytest.mark.slow) for model in OPTIONS]
)
def test_a_recorded_training_equals_the_plain_one(
    model: str, pairs: Path, recorded: Callable[[Recorder | None], None], tmp_path: Path
) -> None:
    values, recorder = seq2seq_run_file(pairs, model, *OPTIONS[model], "train.max_steps=16"), Repeating()
    recorded(None)
    train_here(values, tmp_path / "plain")
    recorded(recorder)
    train_here(values, tmp_path / "recorded")
    assert run_hashes(tmp_path / "plain") == run_hashes(tmp_path / "recorded")
    parts = 3 if model == "luong" else 1
    assert 1 <= recorder.recordings <= 3 * parts
    assert recorder.warmups + recorder.replays == 16 * parts and recorder.replays >= 6


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch.compile looks at it
@pytest.mark.parametrize("unit", ["layer", "nothing"])
def test_running_text_has_one_recording(
    unit: str, recorded: Callable[[Recorder | None], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of running text have one shape, in compiled layers or as they are."""
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    monkeypatch.setattr(compilation, "RECORDED_STEPS", 100 if unit == "nothing" else 0)
    (tmp_path / "text.txt").write_text("a short text of a few words, again and again. " * 40)
    values: dict[str, Any] = {
        "task": "lm",
        "recommend": False,
        "data": {"train": str(tmp_path / "text.txt"), "valid": 0.1, "context_length": 16},
        "tokenizer": {"type": "char"},
        "model": {"arch": "gpt", "num_layers": 2, "hidden_size": 16, "num_heads": 2},
        "train": {"max_steps": 40, "batch_tokens": 256, "compile": True, "device": "cpu"},
    }
    recorded(None)
    train_here(values, tmp_path / "plain")
    recorded(recorder := Repeating())
    train_here(values, tmp_path / "recorded")
    assert run_hashes(tmp_path / "plain") == run_hashes(tmp_path / "recorded")
    assert (recorder.recordings, recorder.replays) == (1, 40 - NUM_WARMUPS)


def test_a_resumed_training_is_the_same(pairs: Path, recorded: Callable[[Recorder | None], None], tmp_path: Path) -> None:
    values = seq2seq_run_file(pairs, "lstm", "train.num_validations=3")
    recorded(Repeating())
    train_here(values, tmp_path / "whole")
    recorded(resumed := Repeating())
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "resumed", SilentCallback(stop_at=13))
    train_here(values, tmp_path / "resumed")
    assert resumed.replays > 3
    assert run_hashes(tmp_path / "whole") == run_hashes(tmp_path / "resumed")


@pytest.mark.parametrize(
    "model", ["luong", *(pytest.param(model, marks=pytest.mark.slow) for model in ("lstm", "transformer", "joint"))]
)
def test_the_kernels_of_a_recording_compute_other_batches(
    model: str, pairs: Path, recorded: Callable[[Recorder | None], None], tmp_path: Path
) -> None:
    """No number of the recorded batch and no decision by Python is left in a recording. Dropout is drawn anew."""
    values = seq2seq_run_file(pairs, model, "train.max_steps=8", "train.num_validations=1", "model.dropout=0.2")
    recorded(None)
    train_here(values, tmp_path / "plain", plain := SilentCallback())
    replicas = list[Any]()

    def remember(loop: Loop) -> None:
        replicas.append(loop.replica)

    recorder = Tracing(lambda: replicas[0].gradients)
    recorded(recorder)
    train_here(values, tmp_path / "recorded", traced := SilentCallback(inspect=remember))
    assert recorder.replays >= 2
    assert traced.losses == pytest.approx(plain.losses, rel=1e-4)


def test_without_memory_nothing_is_padded(
    pairs: Path, recorded: Callable[[Recorder | None], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    samplers = list[Any]()

    def remember(loop: Loop) -> None:
        samplers.append((loop.batch_sampler, type(loop.replica)))

    values = seq2seq_run_file(pairs, "lstm", "train.max_steps=1")
    recorded(Repeating())
    for name, has_memory in (("few", True), ("plain", False)):
        monkeypatch.setattr(neural, "has_memory", lambda *parts, has_memory=has_memory: has_memory)
        train_here(values, tmp_path / name, SilentCallback(inspect=remember))
    (few, graphed), (plain, replica) = samplers
    assert isinstance(few, FewShapes) and not isinstance(plain, FewShapes)
    assert (graphed, replica) == (GraphedReplica, Replica)


@pytest.mark.parametrize("fails_at", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_what_cannot_be_recorded_is_computed_as_usual_with_one_note(
    fails_at: int, pairs: Path, recorded: Callable[[Recorder | None], None], tmp_path: Path
) -> None:
    values = seq2seq_run_file(pairs, "lstm")
    recorded(None)
    train_here(values, tmp_path / "plain")
    recorded(recorder := Repeating(fails_at=fails_at))
    train_here(values, tmp_path / "recorded", callback := SilentCallback())
    assert run_hashes(tmp_path / "plain") == run_hashes(tmp_path / "recorded")
    notes = [note for note in callback.notes if "CUDA graphs" in note]
    assert notes == ["Training takes one kernel at a time, without CUDA graphs: attention.py:1 waits for the GPU"]
    assert recorder.recordings == fails_at


def test_the_announced_duration_is_that_of_replays(
    pairs: Path, recorded: Callable[[Recorder | None], None], tmp_path: Path
) -> None:
    durations = list[float | None]()
    values = seq2seq_run_file(pairs, "lstm", "train.max_steps=4")
    recorded(recorder := Repeating())

    def measure(loop: Loop) -> None:
        if not durations:
            warmups, replays, recordings = recorder.warmups, recorder.replays, recorder.recordings
            durations.append(seconds_per_step(loop))
            # three batches are measured: each is replayed once it has been recorded
            assert recorder.recordings > recordings
            assert recorder.warmups - warmups + recorder.replays - replays == 3 * (NUM_WARMUPS + 2)
            assert all(weight.grad is None for weight in loop.optimizers.weights)

    train_here(values, tmp_path / "measured", SilentCallback(inspect=measure))
    assert durations[0] is not None and durations[0] > 0
    recorded(None)
    train_here(values, tmp_path / "plain")
    assert run_hashes(tmp_path / "measured") == run_hashes(tmp_path / "plain")


# ---- the recorder of a GPU, with a torch.cuda that only takes notes


class FakeStream:
    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def wait_stream(self, other: FakeStream) -> None:
        self.calls.append(f"{self.name} waits for {other.name}")


class FakeCuda:
    """Stands for torch.cuda."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.calls, self.fails, self.sync_mode = list[str](), fails, 0
        self.current = FakeStream("current", self.calls)
        self.default_generators = [self]
        for name in ("Stream", "graph_pool_handle", "CUDAGraph", "current_stream", "get_rng_state", "graph", "stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, f"fake_{name}"))
        for name in ("set_stream", "current_device", "get_sync_debug_mode", "set_sync_debug_mode", "mem_get_info"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, f"fake_{name}"))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 30)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 25)
        monkeypatch.setattr(torch.cuda, "default_generators", [self])
        monkeypatch.setattr(torch, "Generator", lambda device: torch.default_generator.clone_state())

    def fake_Stream(self, device: Any) -> FakeStream:
        return FakeStream("recording", self.calls)

    def fake_graph_pool_handle(self) -> str:
        return "pool"

    def fake_CUDAGraph(self) -> Any:
        return type("Graph", (), {"replay": lambda graph: self.calls.append("replay")})()

    def fake_current_stream(self, device: Any) -> FakeStream:
        return self.current

    def fake_get_rng_state(self, device: Any) -> Tensor:
        return torch.get_rng_state()

    @contextmanager
    def fake_graph(self, graph: Any, *, pool: str, stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        self.calls.append(f"record on {stream.name} in {pool}, {capture_error_mode}")
        self.current = stream
        yield
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nSearch for it")
        self.current = FakeStream("current", self.calls)

    @contextmanager
    def fake_stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def fake_set_stream(self, stream: FakeStream) -> None:
        self.current = stream

    def fake_current_device(self) -> int:
        return 0

    def fake_get_sync_debug_mode(self) -> int:
        return self.sync_mode

    def fake_set_sync_debug_mode(self, mode: int | str) -> None:
        self.sync_mode = 1 if mode == "warn" else 0

    def fake_mem_get_info(self, device: Any) -> tuple[int, int]:
        return 5, 100

    def graphsafe_set_state(self, generator: Any) -> None:
        self.calls.append("new generator")


def test_a_recording_is_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    recorder = CudaRecorder(torch.device("cuda"))
    assert recorder.warm_up(lambda: cuda.current.name) == "recording"
    replay = recorder.record(lambda: "result")
    assert (replay(), replay()) == ("result", "result")
    waits = ["recording waits for current", "current waits for recording"]
    assert cuda.calls == [*waits, "record on recording in pool, thread_local", "replay", "replay"]
    assert recorder.has_room()  # 5 + 30 - 25 of 100


def test_a_recording_that_fails_leaves_stream_and_generator_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch, fails=True)
    recorder = CudaRecorder(torch.device("cuda"))
    with pytest.raises(RecordingError, match=r"^operation not permitted when stream is capturing$"):
        recorder.record(lambda: "result")
    assert cuda.current.name == "current"
    assert cuda.calls[-1] == "new generator"
    assert hasattr(torch._C.Generator, "graphsafe_set_state") and hasattr(torch._C.Generator, "get_state")


def test_work_that_waits_for_the_gpu_is_found_before_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    recorder = CudaRecorder(torch.device("cuda"))

    def compute() -> int:
        if cuda.sync_mode:
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", UserWarning, stacklevel=1)
        return 3

    assert [recorder.warm_up(compute) for _ in range(3)] == [3, 3, 3]
    assert cuda.sync_mode == 0
    with pytest.raises(RecordingError, match=r"test_cuda_graphs\.py:\d+ waits for the GPU$"):
        recorder.record(compute)
    assert not any("record on" in call for call in cuda.calls)


def test_a_compiler_that_waits_for_the_gpu_does_not_prevent_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles in the warm-up that looks for waits if the second batch has another graph: that of a carried state."""
    cuda = FakeCuda(monkeypatch)
    recorder, file = CudaRecorder(torch.device("cuda")), Path(torch.__file__).parent / "_inductor/fx_passes/joint_graph.py"
    assert file.exists()

    def compute() -> int:
        if cuda.sync_mode:
            warnings.warn_explicit("called a synchronizing CUDA operation (Triggered internally)", UserWarning, str(file), 295)
        return 3

    assert [recorder.warm_up(compute) for _ in range(2)] == [3, 3]
    assert recorder.record(compute)() == 3


# ---- a model alone


class Sum(nn.Module):
    """A model with a weight that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.unused = nn.Embedding(7, 4), nn.Parameter(torch.ones(3))


class Batch(tuple[Any, ...]):
    """A batch of one tensor and nothing else."""

    @classmethod
    def _make(cls, parts: Any) -> Batch:
        return cls(parts)


class SumObjective:
    """Sums embeddings, plus a carried state."""

    prepare, augment, inner_steps = None, None, 0

    def loss(self, model: Any, batch: Any, carry: Any) -> Any:
        total = model.table(batch[0]).square().sum() * (1 if carry is None else carry[0].sum())
        return cuda_graphs.Loss(total, torch.full((), batch[0].numel()), (torch.full((2,), float(batch[0].numel())),))


def make_replica(
    recorder: Recorder, notes: list[str] | None = None, max_graphs: int = 40, *, objective: Any = None
) -> tuple[GraphedReplica, Replica]:
    torch.manual_seed(0)
    module = LossModule(objective or SumObjective(), Sum())
    weights = list(module.parameters())
    graphed = GraphedReplica(
        module, weights, recorder, on_failure=([] if notes is None else notes).append, max_graphs=max_graphs
    )
    return graphed, Replica(module)


def compute(replica: Replica, batch: Batch, carry: Any) -> tuple[float, int, list[Tensor | None]]:
    """Loss, count and gradients of a batch; the gradients are removed, as by an optimizer."""
    weights: list[nn.Parameter] = list(replica.loss_module.parameters())
    loss = replica.accumulate(batch, carry, True, is_last=True, autocast=DeviceConfig(CPU, torch.float32).autocast)
    gradients = [None if weight.grad is None else weight.grad.clone() for weight in weights]
    for weight in weights:
        weight.grad = None
    return float(loss.total.detach()), int(loss.count), gradients


def batch_of(rows: int, width: int, seed: int) -> Batch:
    return Batch([torch.randint(7, (rows, width), generator=torch.Generator().manual_seed(seed)), None])


def test_each_shape_and_state_has_its_own_graph_and_unused_weights_no_gradient() -> None:
    recorder = Repeating()
    graphed, plain = make_replica(recorder)
    for seed in range(24):
        batch = batch_of(2 + seed % 2, 3, seed)
        carry = None if seed % 3 == 0 else (torch.full((2,), float(seed)),)
        total, count, gradients = compute(graphed, batch, carry)
        expected_total, expected_count, expected = compute(plain, batch, carry)
        assert (total, count) == (expected_total, expected_count)
        assert gradients[0] is None and expected[0] is None
        torch.testing.assert_close(gradients[1], expected[1], rtol=0, atol=0)
    assert (recorder.recordings, len(graphed.graphs)) == (4, 4)
    assert recorder.warmups == 4 * NUM_WARMUPS and recorder.replays == 24 - recorder.warmups


def test_gradients_of_several_batches_are_added_up_in_the_same_tensors() -> None:
    graphed, plain = make_replica(Repeating())
    weights, addresses = list(graphed.loss_module.parameters())[1:], list[int]()
    for step in range(5):
        for replica in (graphed, plain):
            for seed in range(3):
                batch, is_last = batch_of(2, 3, 10 * step + seed), seed == 2
                replica.accumulate(batch, None, True, is_last=is_last, autocast=DeviceConfig(CPU, torch.float32).autocast)
            assert weights[0].grad is not None
            if replica is graphed:
                addresses.append(weights[0].grad.data_ptr())
                actual = weights[0].grad.clone()
            else:
                torch.testing.assert_close(actual, weights[0].grad, rtol=0, atol=0)
            for weight in weights:
                weight.grad = None
    assert len(set(addresses[1:])) == 1  # the first recording is in the second step


class Noting(Tracing):
    """Notes whether each recording writes its gradients to new memory, and fails after it has computed, as the end of a recording
    does."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.replicas = list[GraphedReplica]()
        super().__init__(lambda: self.replicas[0].gradients)
        self.fails_at, self.moved = fails_at, list[bool]()

    def record(self, compute: Callable[[], R]) -> Callable[[], R]:
        before = self.buffers()[1].data_ptr()
        if self.recordings == self.fails_at:
            values = [(buffer, buffer.clone()) for buffer in self.buffers()]
            compute()
            for buffer in self.buffers():
                buffer.fill_(torch.nan)  # a recording computes nothing
            for buffer, value in values:
                buffer.copy_(value)
            raise RecordingError("it ended too late")
        replay = super().record(compute)
        self.moved.append(self.buffers()[1].data_ptr() != before)
        return replay


def check_steps(recorder: Noting, objective: Any = None, *, steps: int, parts: int = 1, shapes: int = 3) -> None:
    """Steps of a replica with this recorder have the gradients of the plain one."""
    graphed, plain = make_replica(recorder, objective=objective)
    recorder.replicas.append(graphed)
    weights: list[nn.Parameter] = list(graphed.loss_module.parameters())
    for step in range(steps):
        gradients = list[list[Tensor]]()
        for replica in (graphed, plain):
            for part in range(parts):
                batch, is_last = batch_of(2 + (step + part) % shapes, 3, step * parts + part), part == parts - 1
                replica.accumulate(batch, None, True, is_last=is_last, autocast=DeviceConfig(CPU, torch.float32).autocast)
            gradients.append([torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in weights])
            for weight in weights:
                if weight.grad is not None:
                    weight.grad.mul_(3.0)  # as optimizers may do
                weight.grad = None
        for actual, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("parts", "shapes"), [(1, 3), (2, 3), (3, 1), (4, 1), (4, 2)])
def test_only_the_first_recording_writes_gradients_to_memory_of_its_own(parts: int, shapes: int) -> None:
    """They are not copied; all others write to the same memory."""
    recorder = Noting()
    check_steps(recorder, steps=16, parts=parts, shapes=shapes)
    assert recorder.moved == [True] + [False] * (recorder.recordings - 1)
    assert recorder.recordings == {(1, 3): 3, (2, 3): 6, (3, 1): 2, (4, 1): 2, (4, 2): 4}[parts, shapes]


@pytest.mark.parametrize("fails_at", [0, 1, 2])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_recording_that_fails_at_its_end_leaves_no_gradients(parts: int, fails_at: int) -> None:
    recorder = Noting(fails_at)
    check_steps(recorder, steps=14, parts=parts)
    assert recorder.recordings == fails_at and recorder.replicas[0].recorder is None


class OftenUnused(SumObjective):
    """Uses a weight in batches of two rows only."""

    def loss(self, model: Any, batch: Any, carry: Any) -> Any:
        loss = super().loss(model, batch, carry)
        used = (model.unused * batch[0].float().mean()).sum() if len(batch[0]) == 2 else 0.0
        return loss._replace(total=loss.total + used)


def test_a_weight_that_a_shape_does_not_use_has_no_gradient_of_another_shape() -> None:
    check_steps(Noting(), OftenUnused(), steps=16, shapes=2)


def test_gradients_are_added_to_those_that_were_there_before_the_first_batch() -> None:
    graphed, plain = make_replica(Repeating())
    weights: list[nn.Parameter] = list(graphed.loss_module.parameters())
    sums = list[Tensor]()
    for replica in (graphed, plain):
        weights[1].grad = torch.ones_like(weights[1])
        replica.accumulate(batch_of(2, 3, 0), None, True, is_last=True, autocast=DeviceConfig(CPU, torch.float32).autocast)
        sums.append(weights[1].grad.clone())
        weights[1].grad = None
    torch.testing.assert_close(*sums, rtol=0, atol=0)


def test_gradients_in_the_same_memory_are_copied() -> None:
    """The gradients of two weights of a sum are one tensor; others are transposed, parts of larger tensors, or one number."""
    a, b, c, d, e = (nn.Parameter(torch.randn(3, 4)) for _ in range(5))
    unused, factors, more = nn.Parameter(torch.zeros(2)), torch.randn(4, 3), torch.randn(32)
    joined = torch.cat([d.flatten(), torch.zeros(20)])
    loss = (a + b).square().sum() + (c.t() * factors).sum() + (joined * more).sum() + e.sum()
    weights = [a, b, c, d, e, unused]
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    owned = _without_aliases(gradients, weights)
    expected = [2 * (a + b), 2 * (a + b), factors.t(), more[:12].view(3, 4), torch.ones(3, 4), torch.zeros(2)]
    for tensor, value in zip(owned, expected, strict=True):
        torch.testing.assert_close(tensor, value.detach(), rtol=0, atol=0)
        assert tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
        tensor.add_(torch.ones_like(tensor))  # changes no other one
    assert len({tensor.untyped_storage().data_ptr() for tensor in owned}) == len(owned)
    fresh = torch.autograd.grad((a @ b.t()).sum(), [a])
    assert _without_aliases(fresh, [a])[0].data_ptr() == fresh[0].data_ptr()


def test_results_are_copies() -> None:
    graphed, _ = make_replica(Repeating())
    autocast = DeviceConfig(CPU, torch.float32).autocast
    losses = [graphed.accumulate(batch_of(2, 3, seed), None, True, is_last=True, autocast=autocast) for seed in range(6)]
    assert len({float(loss.total) for loss in losses}) == 6
    assert not any(loss.total.requires_grad for loss in losses)


@pytest.mark.parametrize(("max_graphs", "room"), [(2, 1000), (40, 2)])
def test_further_shapes_are_computed_as_usual(max_graphs: int, room: int) -> None:
    recorder, notes = Repeating(room=room), list[str]()
    graphed, plain = make_replica(recorder, notes, max_graphs)
    for seed in range(30):
        batch = batch_of(2 + seed % 5, 3, seed)
        actual, expected = compute(graphed, batch, None), compute(plain, batch, None)
        assert actual[:2] == expected[:2]
        torch.testing.assert_close(actual[2][1], expected[2][1], rtol=0, atol=0)
    assert (recorder.recordings, len(graphed.graphs), notes) == (2, 2, [])


def test_a_failure_forgets_all_graphs() -> None:
    recorder, notes = Repeating(fails_at=1), list[str]()
    graphed, plain = make_replica(recorder, notes)
    for seed in range(12):
        batch = batch_of(2 + seed % 2, 3, seed)
        actual, expected = compute(graphed, batch, None), compute(plain, batch, None)
        torch.testing.assert_close(actual[2][1], expected[2][1], rtol=0, atol=0)
    assert (graphed.graphs, graphed.recorder, len(notes)) == ({}, None, 1)


# ---- when


def test_can_record(pairs: Path, tmp_path: Path) -> None:
    loops = list[Loop]()
    train_here(
        seq2seq_run_file(pairs, "transformer", "train.max_steps=1"), tmp_path / "run", SilentCallback(inspect=loops.append)
    )
    loop, gpu = loops[0], DeviceConfig(torch.device("cuda"), torch.bfloat16)

    def check(device_config: DeviceConfig, sampler: Any = loop.batch_sampler, **options: Any) -> bool:
        return can_record(loop.loss_module, sampler, loop.config.model_copy(update=options), device_config)

    assert check(gpu) and check(gpu, micro_batches=2) and check(gpu, r_drop=1.0)
    assert not check(loop.device_config)
    assert not check(gpu, compile=False) and not check(gpu, compile=True)
    assert not check(gpu, activation_checkpointing=True)
    assert not check(gpu._replace(group=Group(rank=0, size=2, hosts=("a", "a"))))
    lines = Lines(make_corpus_of_lines(), batch_tokens=20, seed=0)
    assert not check(gpu, lines)


def make_corpus_of_lines() -> Corpus:
    tokens, starts = np.array([5, 2, 6, 2], dtype=np.uint16), np.array([0, 2, 4])
    return Corpus("train", tokens, starts, np.zeros((1, 4), dtype=np.int64), "")


def test_the_step_of_experts_is_not_recorded(pairs: Path, tmp_path: Path) -> None:
    checked = list[bool]()

    def check(loop: Loop) -> None:
        gpu = DeviceConfig(torch.device("cuda"), torch.bfloat16)
        checked.append(can_record(loop.loss_module, loop.batch_sampler, loop.config, gpu))

    experts = ["model.num_experts=4", "model.experts_per_token=2", "train.max_steps=1"]
    values = override(seq2seq_run_file(pairs, "transformer"), experts)
    train_here(values, tmp_path / "run", SilentCallback(inspect=check))
    assert checked == [False]
