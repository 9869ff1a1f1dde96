"""What a run needs is worked out before it is allocated, and refused with the numbers and the cure where it is not there."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import make_text, run_file, train_here
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weft.data.order import Batch
from weft.errors import ResourceError
from weft.models.language import LanguageModel, language_model
from weft.models.tables import GPT, TEXTBOOK, LanguageTable
from weft.tasks.language import LanguageTask
from weft.tasks.surprisal import Context
from weft.train import memory
from weft.train.learner import Learner
from weft.train.loop import Place
from weft.train.optimizers import optimizers
from weft.train.tables import TrainTable

CPU = Place(torch.device("cpu"), torch.float32)
WINDOW = 32


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return make_text(tmp_path / "text.txt")


def free(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(memory, "free", lambda device: number)


def refusal(call: Any) -> str:
    with pytest.raises(ResourceError) as caught:
        call()
    return str(caught.value)


def model(words: int = 50, **options: Any) -> LanguageModel:
    torch.manual_seed(0)
    table = LanguageTable(**{"width": 16, "layers": 1, **options}).filled()
    return language_model(table, words=words, window=WINDOW, vocabulary="")


def learner(of: LanguageModel, *, carries: bool = False) -> Learner:
    return Learner(LanguageTask(carries=carries, valid=None, context=Context("carry", WINDOW), device=CPU.device), of)


def batch(rows: int, words: int = 50) -> Batch:
    return Batch(torch.randint(words, (rows, WINDOW + 1), generator=torch.Generator().manual_seed(0)), None)


# ---- weights


@pytest.mark.parametrize(("optimizer", "copies"), [("adamw", 4), ("muon", 4), ("sgd", 3)])
def test_weights_gradients_and_optimiser_are_counted_before_there_are_any(monkeypatch, optimizer, copies):
    """50 words and an LSTM, 16 wide: embedding, four gates of two matrices and two biases, head with its biases."""
    parameters = 50 * 16 + 4 * (2 * 16 * 16 + 2 * 16) + 50 * 16 + 50
    table = TrainTable(optimizer=optimizer).filled()
    free(monkeypatch, 4 * copies * parameters)
    assert memory.check_weights(lambda: model(), table, CPU.device) == parameters
    free(monkeypatch, 4 * copies * parameters - 1)
    shown = {4: "61.2 kB", 3: "45.9 kB"}[copies]
    assert refusal(lambda: memory.check_weights(lambda: model(), table, CPU.device)) == (
        f"model: 3826 parameters need {shown} for weights, gradients and {optimizer}, but {shown} are free; "
        "lower model.width or model.layers"
    )


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_an_optimiser_keeps_no_more_than_is_counted(optimizer):
    of, table = model(mixer="attention"), TrainTable(optimizer=optimizer).filled()
    steps = optimizers(of, of.matrices(), table)
    of.loss(batch(2).tokens[:, :-1], batch(2).tokens[:, 1:])[0].sum().backward()
    steps.step(1.0)
    kept = sum(part.numel() for part in steps.tensors().values() if part.numel() > 1)
    weights = sum(weight.numel() for weight in of.parameters())
    assert 0 < kept <= memory.MOMENTS[optimizer] * weights
    if optimizer != "muon":  # that keeps one for matrices, two for the rest
        assert kept == memory.MOMENTS[optimizer] * weights


def test_a_model_of_terabytes_is_refused_without_allocating_it(tmp_path, text):
    values = run_file(text, "transformer", model__width=65536, model__layers=64, model__heads=64)
    words = len(set(text.read_text())) + 3
    # attention and feed-forward with their biases, two norms; embedding, head with its biases, 16 positions, last norm
    layer = (4 + 8) * 65536**2 + (3 + 1 + 4 + 1) * 65536 + 2 * 2 * 65536
    parameters = 64 * layer + 2 * words * 65536 + words + (16 + 2) * 65536
    message = refusal(lambda: train_here(values, tmp_path / "run"))
    there = message.rpartition("but ")[2].partition(" are free")[0]
    assert message == (
        f"model: {parameters} parameters need 52.8 TB for weights, gradients and adamw, but {there} are free; "
        "lower model.width or model.layers"
    )
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_sizes_are_shown_in_three_digits_or_so():
    assert [memory.size(number) for number in (0, 999, 1000, 1_234_567, 2.5e9, 1e12, 1e16)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.2 MB",
        "2.5 GB",
        "1.0 TB",
        "10000.0 TB",
    ]


# ---- activations


class Live(TorchDispatchMode):
    """Bytes of all tensors that are alive, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for part in tree_leaves(found):
            if isinstance(part, Tensor) and (storage := part.untyped_storage()) not in self.known:
                self.known.add(storage)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.let_go, storage.nbytes())
        return found

    def let_go(self, count: int) -> None:
        self.now -= count


def really_needed(of: Learner, data: Batch, carry: Any) -> int:
    """The most bytes alive at once, forwards and backwards, beside weights, gradients and what was there before."""
    for weight in of.parameters():
        weight.grad = torch.zeros_like(weight)
    live = Live()
    live.known.update(weight.untyped_storage() for weight in of.parameters())
    with live:
        of(data, carry).total.backward()
    return live.most


TABLES: dict[str, dict[str, Any]] = {
    "window": {"mixer": "window", "context": 3},
    "rnn": {"mixer": "rnn"},
    "lstm": {"mixer": "lstm", "layers": 2},
    "lstm-dense": {"mixer": "lstm", "layers": 2, "connection": "dense"},
    "gru": {"mixer": "gru"},
    "gru-before": {"mixer": "gru-before"},
    "transformer": {**TEXTBOOK, "layers": 2},
    "transformer-dropout": {**TEXTBOOK, "layers": 2, "dropout": 0.1},
    "gpt": {**GPT, "layers": 2},
    "alibi": {**TEXTBOOK, "layers": 2, "positions": "alibi"},
    "relative": {**TEXTBOOK, "layers": 2, "positions": "relative"},
}
CASES = [
    (name, words, carries)
    for name, table in TABLES.items()
    for words in (50, 3000)
    for carries in (False, True)
    if not (carries and table.get("positions") == "learned")
]


@pytest.mark.parametrize(("name", "words", "carries"), CASES)
def test_activations_are_known_within_a_factor_of_two(name, words, carries):
    """From one row, for all rows; with few words the layers count, with many the scores of all words."""
    of, data = learner(model(words, **TABLES[name]), carries=carries), batch(8, words)
    estimate = memory.check_batch(of, data, TrainTable(), CPU)
    carry = of(data, None).carry
    assert (carry is not None) == carries
    assert 0.5 < estimate / really_needed(of, data, carry) < 2.0


@pytest.mark.parametrize("accumulate", [1, 2, 3, 4])
def test_parts_of_a_batch_need_parts_of_the_memory(accumulate):
    of = learner(model())
    row = memory.check_batch(of, batch(1), TrainTable(), CPU)
    rows = -(-7 // accumulate)
    assert memory.check_batch(of, batch(7), TrainTable(accumulate=accumulate), CPU) == rows * row


def test_measuring_a_batch_leaves_no_trace():
    of = learner(model(dropout=0.5), carries=True)
    before = {name: weight.clone() for name, weight in of.state_dict().items()}
    memory.check_batch(of, batch(3), TrainTable(), CPU)
    assert all(weight.grad is None for weight in of.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in of.state_dict().items())
    assert of.training


def test_a_batch_of_lines_is_measured_by_its_longest_lines(tmp_path, text, monkeypatch):
    seen = []
    monkeypatch.setattr(memory, "check_batch", lambda learner, batch, table, place: seen.append(batch))
    train_here(run_file(text, "lstm", data__read="lines", train__steps=1), tmp_path / "run")
    lines = text.read_text().split("\n")[:-1]
    longest = max(map(len, lines[: int(len(lines) * 0.9)])) + 1
    assert seen[0].tokens.shape[1] == longest + 1
    assert seen[0].tokens.shape[0] == 64 // longest


def test_a_batch_too_large_is_refused_with_the_cure(tmp_path, text, monkeypatch):
    """The weights fit, the activations do not, until the batch is computed in parts."""
    of, data = learner(model(words=3000)), batch(64, 3000)
    needed = memory.check_batch(of, data, TrainTable(), CPU)
    free(monkeypatch, needed - 1)
    assert refusal(lambda: memory.check_batch(of, data, TrainTable(), CPU)) == (
        f"train.batch_tokens: 64 rows of 32 tokens need about {memory.size(needed)} for activations, "
        f"but {memory.size(needed - 1)} are free; lower train.batch_tokens, or raise train.accumulate from 1"
    )
    assert memory.check_batch(of, data, TrainTable(accumulate=2), CPU) == needed // 2
    free(monkeypatch, 1_000_000)
    values = run_file(text, "lstm", train__batch_tokens=1600)
    assert refusal(lambda: train_here(values, tmp_path / "run")).startswith(
        "train.batch_tokens: 100 rows of 16 tokens need about "
    )
    assert not (tmp_path / "run" / "checkpoints").exists()


# ---- what is there


def test_what_is_free_is_no_more_than_the_machine_has():
    there = memory.free(CPU.device)
    pages = int(next(line for line in Path("/proc/meminfo").read_text().split("\n") if "MemTotal" in line).split()[1])
    assert 0 < there <= pages * 1024


def place_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, contents: dict[str, str]) -> None:
    """Have the files of the system that are read found under tmp_path."""
    for name, content in contents.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(memory, "Path", lambda name: tmp_path / name.lstrip("/"))


@pytest.mark.parametrize(("limit", "free"), [("max", 3_000_000), ("1500000", 1_000_000), ("400000", 0)])
def test_a_container_that_is_held_to_less_has_less(tmp_path, monkeypatch, limit, free):
    place_files(
        monkeypatch,
        tmp_path,
        {
            "/proc/meminfo": "MemTotal:  9000 kB\nMemAvailable:  3000 kB\n".replace("3000 kB", f"{3_000_000 // 1024 + 1} kB"),
            "/sys/fs/cgroup/memory.max": f"{limit}\n",
            "/sys/fs/cgroup/memory.current": "500000\n",
        },
    )
    assert memory.free(CPU.device) == pytest.approx(free, abs=1024)


def test_without_either_file_the_free_pages_count(tmp_path, monkeypatch):
    place_files(monkeypatch, tmp_path, {})
    assert memory.free(CPU.device) > 0
