"""Memory estimates: computed before allocation, and reported with numbers and a suggestion if memory is short."""

from __future__ import annotations

import re
import sys
import tracemalloc
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from small_runs import make_text, run_file, train_here
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weft.data.batch import FULL, crop_batch
from weft.data.batching import Batch
from weft.errors import ResourceError
from weft.models import ngram
from weft.models.config import GPT, TRANSFORMER, LanguageModelConfig
from weft.models.lm import LanguageModel, language_model
from weft.models.ngram import NgramConfig, estimate_memory, fit
from weft.models.ngram_counts import count_ngrams
from weft.models.seq2seq import encoder_decoder
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.nn import linear_cross_entropy
from weft.resources import format_bytes
from weft.tasks.lm.contexts import Context
from weft.tasks.lm.objective import LanguageModelObjective
from weft.tasks.seq2seq.batching import PairBatch
from weft.tasks.seq2seq.objective import Seq2SeqObjective
from weft.training import memory
from weft.training.config import TrainConfig
from weft.training.loop import DeviceConfig
from weft.training.loss_module import LossModule
from weft.training.memory import AnyBatch
from weft.training.optimizers import build_optimizers

CPU = DeviceConfig(torch.device("cpu"), torch.float32)
WINDOW = 32


@pytest.fixture(autouse=True)
def tight(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count only live bytes, except in tests of the memory that the allocator reserves."""
    if "allocator" not in request.node.name:
        monkeypatch.setattr(memory, "OVERHEAD", {"cpu": 1.0})
        monkeypatch.setattr(memory, "MAX_OVERHEAD_BYTES", {"cpu": 0})


@pytest.fixture(autouse=True)
def plain_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output layer and loss as two functions for any number of logits, as for those of the few rows that are measured."""
    monkeypatch.setattr(linear_cross_entropy, "MIN_LOGITS", sys.maxsize)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return make_text(tmp_path / "text.txt")


def free(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(memory, "free_device_memory", lambda device: number)


def error_message(call: Any) -> str:
    with pytest.raises(ResourceError) as caught:
        call()
    return str(caught.value)


def model(words: int = 50, window: int = WINDOW, **options: Any) -> LanguageModel:
    torch.manual_seed(0)
    table = LanguageModelConfig(**{"hidden_size": 16, "num_layers": 1, **options}).with_defaults()
    return language_model(table, vocab_size=words, context_length=window, vocabulary="")


def check(of: LossModule, batch: AnyBatch, table: TrainConfig, device: DeviceConfig) -> int:
    """Check a batch that is cropped like lines and windows."""
    return memory.check_batch(of, partial(crop_batch, batch), table, device)


def learner(of: LanguageModel, *, carries: bool = False) -> LossModule:
    return LossModule(
        LanguageModelObjective(carry_state=carries, valid=None, context=Context("carry", WINDOW), device=CPU.device), of
    )


def batch(rows: int, words: int = 50) -> Batch:
    return Batch(torch.randint(words, (rows, WINDOW + 1), generator=torch.Generator().manual_seed(0)), None)


# ---- weights


@pytest.mark.parametrize(("optimizer", "copies"), [("adamw", 4), ("muon", 4), ("sgd", 3)])
def test_weights_gradients_and_optimizer_state_are_counted_in_advance(monkeypatch, optimizer, copies):
    """50 words and an LSTM of hidden size 16: embedding, four gates of two matrices and two biases, head with bias."""
    parameters = 50 * 16 + 4 * (2 * 16 * 16 + 2 * 16) + 50 * 16 + 50
    table = TrainConfig(optimizer=optimizer).with_defaults()
    free(monkeypatch, 4 * copies * parameters)
    assert memory.check_weights(lambda: model(), table, CPU.device) == parameters
    free(monkeypatch, 4 * copies * parameters - 1)
    formatted = {4: "61.2 kB", 3: "45.9 kB"}[copies]
    assert error_message(lambda: memory.check_weights(lambda: model(), table, CPU.device)) == (
        f"model: 3.8k parameters need {formatted} to train with {optimizer}, {formatted} are free; reduce hidden_size or num_layers"
    )


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_optimizer_state_is_within_the_estimate(optimizer):
    of, table = model(layer_type="attention"), TrainConfig(optimizer=optimizer).with_defaults()
    steps = build_optimizers(of, of.muon_parameters(), table)
    of.loss(batch(2).tokens[:, :-1], batch(2).tokens[:, 1:])[0].sum().backward()
    steps.step(1.0)
    state_size = sum(part.numel() for part in steps.tensors().values() if part.numel() > 1)
    weights = sum(weight.numel() for weight in of.parameters())
    assert 0 < state_size <= memory.MOMENTS[optimizer] * weights
    if optimizer != "muon":  # muon keeps one buffer for matrices, two for the rest
        assert state_size == memory.MOMENTS[optimizer] * weights


def test_a_model_of_terabytes_is_rejected_without_allocation(tmp_path, text):
    values = run_file(text, "transformer", model__hidden_size=65536, model__num_layers=64, model__num_heads=64)
    words = len(set(text.read_text())) + 3
    # attention and feed-forward with their biases, two norms; embedding, head with its biases, 16 positions, last norm
    layer = (4 + 8) * 65536**2 + (3 + 1 + 4 + 1) * 65536 + 2 * 2 * 65536
    parameters = 64 * layer + 2 * words * 65536 + words + (16 + 2) * 65536
    message = error_message(lambda: train_here(values, tmp_path / "run"))
    free = message.rpartition("adamw, ")[2].partition(" are free")[0]
    assert message == (
        f"model: {parameters / 1e9:.1f}B parameters need 52.8 TB to train with adamw, {free} are free; "
        "reduce hidden_size or num_layers"
    )
    assert not (tmp_path / "run" / "checkpoints").exists()


# ---- activations


class Live(TorchDispatchMode):
    """Bytes of all live tensors, and their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        actual = function(*args, **(kwargs or {}))
        for part in tree_leaves(actual):
            if isinstance(part, Tensor) and (storage := part.untyped_storage()) not in self.known:
                self.known.add(storage)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.let_go, storage.nbytes())
        return actual

    def let_go(self, count: int) -> None:
        self.now -= count


def really_needed(of: LossModule, data: AnyBatch) -> int:
    """Maximum of live bytes in forward and backward pass, without weights, including the carried state."""
    live = Live()
    live.known.update(part.untyped_storage() for part in [*of.parameters(), *of.buffers(), *data] if part is not None)
    with live:
        with torch.no_grad():
            carry = of(data, None).carry
        of(data, carry).total.backward()
    return live.most


TABLES: dict[str, dict[str, Any]] = {
    "conv": {"layer_type": "conv", "kernel_size": 3},
    "rnn": {"layer_type": "rnn"},
    "lstm": {"layer_type": "lstm", "num_layers": 2},
    "lstm-dense": {"layer_type": "lstm", "num_layers": 2, "skip_connection": "dense"},
    "gru": {"layer_type": "gru"},
    "gru-before": {"layer_type": "gru-reset-before"},
    "transformer": {**TRANSFORMER, "num_layers": 2},
    "transformer-dropout": {**TRANSFORMER, "num_layers": 2, "dropout": 0.1},
    "gpt": {**GPT, "num_layers": 2},
    "alibi": {**TRANSFORMER, "num_layers": 2, "position_encoding": "alibi"},
    "relative": {**TRANSFORMER, "num_layers": 2, "position_encoding": "relative"},
}
CASES = [
    (name, words, carries)
    for name, table in TABLES.items()
    for words in (50, 3000)
    for carries in (False, True)
    if not (carries and table.get("position_encoding") == "learned")
]


@pytest.mark.parametrize(("name", "words", "carries"), CASES)
def test_batch_memory_is_extrapolated_from_three_rows(name, words, carries):
    """With a small vocabulary the layers dominate, with a large one the logits."""
    of, data = learner(model(words, **TABLES[name]), carries=carries), batch(8, words)
    assert (of(data, None).carry is not None) == carries
    assert check(of, data, TrainConfig(), CPU) == pytest.approx(really_needed(of, data), rel=0.05)


def test_the_memory_of_a_loss_that_needs_less_for_many_rows_is_bounded(monkeypatch):
    """Few rows take the plain functions, which hold more arrays of logits."""
    of, data = learner(model(3000)), batch(8, 3000)
    monkeypatch.setattr(linear_cross_entropy, "MIN_LOGITS", 7 * WINDOW * 3000)
    assert 1.2 <= check(of, data, TrainConfig(), CPU) / really_needed(of, data) <= 2.0


def test_the_masks_of_a_long_window_are_counted():
    """They are not saved for the backward pass, but dominate the memory of such a stream: eight bytes for each pair of a query
    and a key up to one window older."""
    of = learner(model(layer_type="attention", position_encoding="rotary", window=1024), carries=True)
    data = Batch(torch.zeros(2, 1025, dtype=torch.long), None)
    needed = check(of, data, TrainConfig(), CPU)
    assert needed > 2 * 1024 * 2048 * 8
    assert needed == pytest.approx(really_needed(of, data), rel=0.05)


def test_a_mask_shared_by_all_rows_is_counted_once():
    of = learner(model(layer_type="attention", position_encoding="alibi", num_heads=8, window=512))
    data = Batch(torch.zeros(16, 513, dtype=torch.long), None)
    assert check(of, data, TrainConfig(), CPU) == pytest.approx(really_needed(of, data), rel=0.05)


def test_seq2seq_batches_are_measured_too():
    """A long source with a short target; both are cropped in the first measurement."""
    torch.manual_seed(0)
    table = Seq2SeqConfig(encoder={"hidden_size": 16}, decoder={"hidden_size": 16}).with_defaults()
    of = encoder_decoder(table, source_vocab_size=20, target_vocab_size=30, max_positions=2000, vocabulary="")
    source, target = torch.zeros(6, 1500, dtype=torch.long), torch.zeros(6, 9, dtype=torch.long)
    data = PairBatch(source, torch.ones_like(source, dtype=torch.bool), target, torch.ones_like(target, dtype=torch.bool))
    task = Seq2SeqObjective(valid=None, tokenizer=None, device=CPU.device)
    true = really_needed(LossModule(task, of), data)
    assert true <= check(LossModule(task, of), data, TrainConfig(), CPU) <= 2 * true


@pytest.mark.parametrize("accumulate", [1, 2, 3, 4])
def test_micro_batches_need_less_memory(accumulate):
    of = learner(model(words=3000))
    full = check(of, batch(24, 3000), TrainConfig(), CPU)
    part = check(of, batch(24, 3000), TrainConfig(micro_batches=accumulate), CPU)
    gradients = 4 * sum(weight.numel() for weight in of.parameters())
    accumulated = gradients if accumulate > 1 else 0  # those of earlier micro-batches
    assert part == accumulated + check(of, batch(24 // accumulate, 3000), TrainConfig(), CPU)
    # gradients have the same size
    assert (part - accumulated - gradients) * accumulate == pytest.approx(full - gradients, rel=0.1)


def test_accumulated_gradients_are_counted():
    """Compared with another measurement over two micro-batches, as in the loop."""
    of, data = learner(model(words=3000)), batch(4, 3000)
    live = Live()
    live.known.update(part.untyped_storage() for part in [*of.parameters(), *of.buffers(), *data] if part is not None)
    with live:
        for part in (Batch(data.tokens[:2], None), Batch(data.tokens[2:], None)):
            of(part, None).total.backward()
    actual = check(of, data, TrainConfig(micro_batches=2), CPU)
    assert live.most <= actual <= 1.5 * live.most
    assert actual - 4 * sum(weight.numel() for weight in of.parameters()) < live.most  # without gradients it would be too low


def test_memory_reserved_by_the_allocator_is_counted(monkeypatch):
    of, data = learner(model(words=3000)), batch(24, 3000)
    actual = check(of, data, TrainConfig(), CPU)
    assert actual == pytest.approx(2.3 * really_needed(of, data), rel=0.05)  # the model is small
    monkeypatch.setattr(memory, "MAX_OVERHEAD_BYTES", {"cpu": 1000})
    assert check(of, data, TrainConfig(), CPU) == pytest.approx(1000 + 1.3 * really_needed(of, data), rel=0.05)
    later = 4 * 2 * sum(weight.numel() for weight in of.parameters())
    free(monkeypatch, later + int(1.2 * really_needed(of, data)))  # enough for live tensors, but not for the process
    assert "needs about " in error_message(lambda: check(of, data, TrainConfig(), CPU))


@pytest.mark.parametrize(("optimizer", "average", "copies"), [("adamw", 0.0, 2), ("sgd", 0.9, 2), ("muon", 0.9, 3)])
def test_memory_is_reserved_for_the_optimizer_and_ema(monkeypatch, optimizer, average, copies):
    of, table = learner(model()), TrainConfig(optimizer=optimizer, ema_decay=average)
    later = 4 * copies * sum(weight.numel() for weight in of.parameters())
    needed = check(of, batch(8), table, CPU)
    free(monkeypatch, needed + later)
    assert check(of, batch(8), table, CPU) == needed
    free(monkeypatch, needed + later - 1)
    assert error_message(lambda: check(of, batch(8), table, CPU)).startswith(
        "train.batch_tokens: a batch of 8 rows of 32 tokens needs "
    )


def test_a_long_row_is_measured_at_increasing_lengths(monkeypatch):
    """The length doubles each time, within what certainly fits and up to what is needed."""
    of, data, lengths = learner(model()), Batch(torch.zeros(3, 10_001, dtype=torch.long), None), []
    gradients = 4 * sum(weight.numel() for weight in of.parameters())

    def batch_bytes(learner, batch, device):
        lengths.append(batch.tokens.size(1))
        return gradients + len(batch.tokens) * lengths[-1] ** 2

    monkeypatch.setattr(memory, "batch_bytes", batch_bytes)
    later = 2 * gradients
    free(monkeypatch, later + gradients + 3 * 10_001**2)
    assert check(of, data, TrainConfig(), CPU) == gradients + 3 * 10_001**2
    assert lengths == [1024]
    lengths.clear()
    free(monkeypatch, later + gradients + 3 * 9500**2)
    assert error_message(lambda: check(of, data, TrainConfig(), CPU)) == (
        "train.batch_tokens: a batch of 3 rows of 10000 tokens needs about 285.0 MB, 270.8 MB are free; "
        "reduce batch_tokens or increase micro_batches (now 1)"
    )
    assert lengths == [1024, 2048, 4096, 8192, 9499]
    lengths.clear()
    monkeypatch.setattr(memory, "batch_bytes", lambda learner, batch, place: lengths.append(batch.tokens.size(1)) or 10**6)
    free(monkeypatch, later + 10**7)
    assert check(of, data, TrainConfig(), CPU) == gradients + (10**6 - gradients) * 10_001**2 // 4096**2
    assert lengths == [1024, 2048, 4096]


def test_measuring_a_batch_has_no_side_effects():
    of = learner(model(dropout=0.5), carries=True)
    before = {name: weight.clone() for name, weight in of.state_dict().items()}
    check(of, batch(3), TrainConfig(), CPU)
    assert all(weight.grad is None for weight in of.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in of.state_dict().items())
    assert of.training


def test_a_batch_of_lines_is_measured_by_its_longest_lines(tmp_path, text, monkeypatch):
    measured = []
    monkeypatch.setattr(memory, "check_batch", lambda learner, widest, table, place: measured.append(widest(FULL)) or 0)
    train_here(run_file(text, "lstm", data__read_as="lines", train__max_steps=1), tmp_path / "run")
    lines = text.read_text().split("\n")[:-1]
    max_length = max(map(len, lines[: int(len(lines) * 0.9)])) + 1
    assert measured[0].tokens.shape[1] == max_length + 1
    assert measured[0].tokens.shape[0] == 64 // max_length


def test_a_too_large_batch_is_rejected_with_a_suggestion(tmp_path, text, monkeypatch):
    """The weights fit, the activations do not, until the batch is split into micro-batches."""
    of, data = learner(model(words=3000)), batch(64, 3000)
    needed = check(of, data, TrainConfig(), CPU)
    later = 4 * 2 * sum(weight.numel() for weight in of.parameters())
    free(monkeypatch, needed + later - 1)
    assert error_message(lambda: check(of, data, TrainConfig(), CPU)) == (
        f"train.batch_tokens: a batch of 64 rows of 32 tokens needs about {format_bytes(needed)}, {format_bytes(needed - 1)} are free; "
        "reduce batch_tokens or increase micro_batches (now 1)"
    )
    assert check(of, data, TrainConfig(micro_batches=2), CPU) < 0.6 * needed
    free(monkeypatch, 1_000_000)
    values = run_file(text, "lstm", train__batch_tokens=1600)
    assert error_message(lambda: train_here(values, tmp_path / "run")).startswith(
        "train.batch_tokens: a batch of 100 rows of 16 tokens needs about "
    )
    assert not (tmp_path / "run" / "checkpoints").exists()


# ---- counting


def zipf(count: int, words: int) -> NDArray[np.uint16]:
    """Words with Zipfian frequencies, after the three special tokens."""
    generator = np.random.default_rng(0)
    return (generator.zipf(1.3, count) % words + 3).astype(np.uint16)


def counted(tokens: NDArray[np.uint16], starts: NDArray[np.int64] | None, order: int, words: int) -> int:
    """Peak bytes of arrays during the estimation of a model."""
    tracemalloc.start()
    fit(tokens, starts, NgramConfig(order=order), vocab_size=words, vocabulary="v")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("lines", [True, False])
def test_memory_for_counting_ngrams_is_estimated_in_advance(order, lines):
    tokens, words = zipf(200_000, 5000), 5003
    # sorted by length, as files often are: the first lines say little about the rest
    starts = np.unique(np.minimum(np.cumsum([0, *np.arange(1, 700)]), len(tokens))) if lines else None
    tokens = tokens if starts is None else tokens[: starts[-1]]
    true = counted(tokens, starts, order, words)
    estimate = estimate_memory(tokens, starts, order=order, vocab_size=words, available_bytes=10**12)
    sampled = estimate_memory(tokens, starts, order=order, vocab_size=words, available_bytes=estimate - 1)
    assert true <= sampled <= 2.5 * true
    assert sampled <= estimate


def test_a_very_long_line_is_counted_in_blocks(monkeypatch):
    blocks = []

    def count(tokens, starts, *, order, vocab_size, bos_id):
        blocks.append((len(tokens), starts))
        return count_ngrams(tokens, starts, order=order, vocab_size=vocab_size, bos_id=bos_id)

    monkeypatch.setattr(ngram, "count_ngrams", count)
    tokens = zipf(200_000, 50)
    assert estimate_memory(tokens, np.array([0, 10, 200_000]), order=5, vocab_size=53, available_bytes=30_000_000) > 0
    assert [starts for _, starts in blocks] == [None, None]
    assert all(length <= 60_000 for length, _ in blocks)
    blocks.clear()
    estimate_memory(tokens, None, order=5, vocab_size=53, available_bytes=10**12)
    assert blocks == []  # fits for any text


def test_a_text_too_large_to_count_is_rejected_with_a_suggestion(tmp_path, text, monkeypatch):
    values = run_file(text) | {"model": {"arch": "ngram", "order": 4}}
    ends = [match.end() for match in re.finditer("\n", text.read_text())]
    tokens = min(ends, key=lambda end: abs(end - 0.9 * len(text.read_text())))  # splits are at line ends
    monkeypatch.setattr("weft.tasks.lm.ngram.free_memory", lambda: 100_000)
    words = len(set(text.read_text())) + 3
    needed = estimate_memory(np.zeros(tokens, np.uint16), None, order=4, vocab_size=words, available_bytes=10**12)
    assert error_message(lambda: train_here(values, tmp_path / "run")) == (
        f"model.order: counting 4-grams of {tokens:,} tokens needs about {format_bytes(needed)}, 100.0 kB are free; "
        "lower model.order or use less text"
    )
    monkeypatch.setattr("weft.tasks.lm.ngram.free_memory", lambda: needed)
    train_here(values, tmp_path / "run")
