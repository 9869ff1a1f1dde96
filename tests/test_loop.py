"""The training loop: budgets, optimizer steps, validation, EMA, logging, carried state and divergence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import SilentCallback, make_corpus, make_text, run_file, run_hashes, train_here
from torch import Tensor, nn

from weft.data.batching import Batch, BatchSampler, Lines, Streams, Windows
from weft.errors import ConfigError, DivergedError, ModelError, ResourceError, UsageError
from weft.metrics.metric import Metric
from weft.models.config import LanguageModelConfig
from weft.models.lm import LanguageModel, language_model
from weft.nn.state import detach, tree_leaves
from weft.runs.load import load
from weft.runs.resolve import resolve
from weft.tasks.lm.contexts import Context
from weft.tasks.lm.objective import LanguageModelObjective
from weft.tensors import read_listed, read_tensors
from weft.training import checkpoint, memory
from weft.training import loop as loop_module
from weft.training.config import TrainConfig
from weft.training.device import pick_device
from weft.training.loop import DeviceConfig, Loop
from weft.training.loss_module import LossModule
from weft.training.objective import Loss, ProgressCallback
from weft.training.optimizers import build_optimizers
from weft.training.schedules import schedule

CPU = DeviceConfig(torch.device("cpu"), torch.float32)
WINDOW = 4
CORPUS = make_corpus(torch.randint(3, 9, (99,), generator=torch.Generator().manual_seed(0)).tolist())


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text(tmp_path_factory.mktemp("text") / "text.txt")


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().split("\n") if line]


class Notebook:
    """A journal in memory."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.saved: list[int] = []
        self.best: list[int] = []

    def log(self, record: dict[str, Any]) -> int:
        self.records.append(record)
        return len(self.records)

    def write_samples(self, records: Sequence[Mapping[str, Any]]) -> int:
        raise NotImplementedError

    def save(self, loop: Loop) -> None:
        self.saved.append(loop.train_state.step)

    def keep_best(self, loop: Loop, model: nn.Module) -> None:
        self.best.append(loop.train_state.step)

    def reserve(self, loop: Loop) -> None:
        pass

    def raise_error(self) -> None:
        pass

    def finish(self) -> None:
        pass


class Scored:
    """An objective whose validation returns the given numbers in turn."""

    def __init__(self, task: LanguageModelObjective, scores: list[float]) -> None:
        self.loss, self.unit, self.monitors, self.scores = task.loss, task.unit, task.monitors, list(scores)
        self.inner_steps, self.prepare, self.augment = task.inner_steps, task.prepare, task.augment

    def validate(self, model: nn.Module, progress: ProgressCallback | None = None) -> dict[str, float]:
        assert not model.training and not torch.is_grad_enabled()
        return {"loss": self.scores.pop(0), "other": -1.0}


def small_model(mixer: str = "lstm", **options: Any) -> LanguageModel:
    torch.manual_seed(0)
    table = LanguageModelConfig(layer_type=mixer, hidden_size=8, num_layers=1, **options).with_defaults()
    return language_model(table, vocab_size=9, context_length=WINDOW, vocabulary="")


def small_loop(
    model: LanguageModel, *, stream: bool = False, rows: int = 4, scores: list[float] | None = None, **train: Any
) -> Loop:
    """A loop over CORPUS: 24 windows of 4 tokens, 6 batches per epoch; or streams."""
    options = {"batch_tokens": rows * WINDOW, "lr": 0.1, "warmup_ratio": 0.0, "lr_schedule": "constant", **train}
    table = TrainConfig(**options).with_defaults()
    order: BatchSampler = Windows(CORPUS, context_length=WINDOW, stride=WINDOW, rows=rows, seed=0)
    if stream:
        order = Streams(CORPUS, context_length=WINDOW, rows=rows)
    task: Any = LanguageModelObjective(carry_state=stream, valid=None, context=Context("carry", WINDOW), device=CPU.device)
    learner = LossModule(task if scores is None else Scored(task, scores), model)
    return Loop(
        learner, build_optimizers(model, model.muon_parameters(), table), order, config=table, seed=0, device_config=CPU
    )


def run(loop: Loop, callback: SilentCallback | None = None) -> Notebook:
    notebook = Notebook()
    loop.run(notebook, callback or SilentCallback())
    return notebook


def weights(loop: Loop) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in loop.loss_module.model.state_dict().items()}


# ---- how far


def test_max_steps_budget():
    loop = small_loop(small_model(), max_steps=8)
    run(loop)
    assert loop.train_state.step == 8
    assert (loop.train_state.epoch, loop.train_state.batch_index) == (1, 2)
    assert loop.train_state.done


@pytest.mark.parametrize(("epochs", "steps", "epoch_and_batch"), [(1, 6, (1, 0)), (2.5, 15, (2, 3)), (0.01, 1, (0, 1))])
def test_max_epochs_budget(epochs, steps, epoch_and_batch):
    loop = small_loop(small_model(), max_epochs=epochs)
    run(loop)
    assert (loop.train_state.step, (loop.train_state.epoch, loop.train_state.batch_index)) == (steps, epoch_and_batch)


@pytest.mark.parametrize(("tokens", "steps"), [(1, 1), (16, 1), (17, 2), (100, 7)])
def test_max_tokens_budget_ends_with_the_batch_that_reaches_it(tokens, steps):
    loop = small_loop(small_model(), max_tokens=tokens)
    run(loop)
    assert loop.train_state.step == steps
    assert loop.train_state.tokens == 16 * steps
    assert loop.train_state.tokens - 16 < tokens <= loop.train_state.tokens


def test_tokens_are_counted_as_in_the_loss():
    """In batches of lines, padding is not counted."""
    loop = small_loop(small_model(), max_steps=2)
    corpus = make_corpus([3, 2, 4, 5, 2, 6, 7, 8, 3, 2])
    lines = type(corpus)(**{**vars(corpus), "starts": torch.tensor([0, 2, 5, 10]).numpy()})
    loop.batch_sampler = Lines(lines, batch_tokens=100, seed=0)
    run(loop)
    assert loop.train_state.tokens == 2 * 10


def test_max_minutes_budget(monkeypatch):
    """With a clock that advances by a second at each call: steps and validations are timed by their start and end."""
    now = iter(range(1_000_000))
    monkeypatch.setattr(loop_module.time, "perf_counter", lambda: float(next(now)))
    loop = small_loop(small_model(), max_minutes=0.1, num_validations=2)
    run(loop)
    state = loop.train_state
    assert (state.step, state.seconds, state.validation_seconds) == (5, 5.0, 2.0)  # 3 steps, a validation, 2 steps, another


def test_lr_follows_the_schedule_at_the_middle_of_each_step(monkeypatch):
    loop = small_loop(small_model(), max_steps=5, lr_schedule="linear", warmup_ratio=0.4)
    rates = []
    step = loop.optimizers.step
    monkeypatch.setattr(loop.optimizers, "step", lambda factor, *rest: (rates.append(factor), step(factor, *rest)))
    run(loop)
    factor = schedule("linear", warmup=0.4)
    assert rates == pytest.approx([factor(progress) for progress in (0.1, 0.3, 0.5, 0.7, 0.9)])
    assert rates == pytest.approx([0.25 * 0.9, 0.75 * 0.7, 0.5, 0.3, 0.1])
    assert [group.lr for part in loop.optimizers.optimizers for group in part.groups] == pytest.approx([0.01, 0.01])


@pytest.mark.parametrize("budget", [{"max_tokens": 64}, {"max_epochs": 4 / 6}, {"max_steps": 4}])
def test_equal_budgets_in_different_units_give_the_same_run(budget):
    loop, other = (
        small_loop(small_model(), max_steps=4, lr_schedule="cosine"),
        small_loop(small_model(), lr_schedule="cosine", **budget),
    )
    run(loop), run(other)
    assert all(map(torch.equal, weights(loop).values(), weights(other).values()))


# ---- validation, patience, checkpoints


@pytest.mark.parametrize(
    ("steps", "validations", "expected_steps"), [(6, 3, [2, 4, 6]), (7, 3, [3, 5, 7]), (3, 10, [1, 2, 3]), (5, 1, [5])]
)
def test_validations_are_spread_over_the_run_and_each_is_saved(steps, validations, expected_steps):
    callback = SilentCallback()
    notebook = run(small_loop(small_model(), max_steps=steps, num_validations=validations, scores=[1.0] * steps), callback)
    assert [step for step, _ in callback.scores] == expected_steps
    assert notebook.saved == expected_steps


def test_patience_counts_validations_without_a_better_score():
    scores = [5.0, 4.0, 4.5, 4.0, 3.0, 3.0, 3.5, 2.0]
    loop = small_loop(small_model(), max_steps=8, num_validations=8, patience=2, scores=scores)
    notebook = run(loop)
    assert loop.train_state.step == 4  # 4.5 and another 4.0 are no better than 4.0
    assert (loop.train_state.best, loop.train_state.best_step, loop.train_state.validations_without_improvement) == (4.0, 2, 2)
    assert loop.train_state.done
    assert (notebook.best, notebook.saved) == ([1, 2], [1, 2, 3, 4])
    loop = small_loop(small_model(), max_steps=8, num_validations=8, patience=3, scores=scores)
    assert run(loop).best == [1, 2, 5, 8]
    assert loop.train_state.step == 8


def test_best_weights_are_selected_by_the_monitored_metric_of_the_task():
    """With metric names that only this task has: the first, or the one in train.monitor."""

    class Counting:
        unit = "token"
        inner_steps, prepare, augment = 0, None, None
        monitors = (
            Metric("never_measured", lambda totals: totals[""], "lower"),
            Metric("words_right", lambda totals: totals[""], "higher"),
            Metric("words_wrong", lambda totals: totals[""], "lower"),
        )

        def __init__(self, task: Any) -> None:
            self.loss, self.right, self.wrong = task.loss, iter([1.0, 3.0, 2.0, 4.0]), iter([4.0, 5.0, 3.0, 5.0])

        def validate(self, model: nn.Module, progress: ProgressCallback | None = None) -> dict[str, float]:
            return {"words_right": next(self.right), "words_wrong": next(self.wrong)}

    for monitor, best in ((None, [1, 2, 4]), ("words_right", [1, 2, 4]), ("words_wrong", [1, 3])):
        loop = small_loop(small_model(), max_steps=4, num_validations=4, monitor=monitor)
        loop.loss_module.objective = Counting(loop.loss_module.objective)
        assert run(loop).best == best
    loop = small_loop(small_model(), max_steps=4, num_validations=4, monitor="never_measured")
    loop.loss_module.objective = Counting(loop.loss_module.objective)
    with pytest.raises(DivergedError) as caught:
        run(loop)
    assert str(caught.value) == (
        "step 1: validation never_measured is nan; the last checkpoint is intact; lower train.lr or train.max_grad_norm"
    )


def test_without_patience_training_continues_and_the_best_weights_are_kept():
    loop = small_loop(small_model(), max_steps=5, num_validations=5, scores=[2.0, 3.0, 3.0, 1.0, 3.0])
    assert run(loop).best == [1, 4]
    assert loop.train_state.step == 5


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_gradient_mode_of_the_caller_is_restored(tmp_path, text, off):
    train_here(run_file(text), tmp_path / "plain")
    with off():
        train_here(run_file(text), tmp_path / "off")
    assert run_hashes(tmp_path / "off")["best"] == run_hashes(tmp_path / "plain")["best"]


def test_without_validation_data_the_latest_weights_are_kept():
    loop = small_loop(small_model(), max_steps=6, num_validations=3)
    notebook = run(loop)
    assert notebook.best == [2, 4, 6]
    assert loop.train_state.best is None


def test_the_run_directory_has_the_best_and_the_last_weights(tmp_path, text, monkeypatch):
    scores = iter([3.0, 1.0, 2.0, 2.0])
    monkeypatch.setattr(LanguageModelObjective, "validate", lambda task, model, progress: {"loss": next(scores)})
    seen: dict[int, dict[str, Tensor]] = {}
    callback = SilentCallback(inspect=lambda loop: seen.update({loop.train_state.step: weights(loop)}))
    train_here(run_file(text, "gpt", train__max_steps=8, train__num_validations=4), tmp_path / "run", callback)
    best, notes = read_tensors(tmp_path / "run" / "model.safetensors")
    assert notes["step"] == "4"
    assert all(torch.equal(best[name], weight) for name, weight in seen[4].items())
    assert checkpoint.names(tmp_path / "run") == ["000006", "000008"]
    last, _ = read_listed(tmp_path / "run" / "checkpoints" / "000008" / "model.safetensors")
    assert all(torch.equal(last[name], weight) for name, weight in seen[8].items())
    assert not all(torch.equal(last[name], best[name]) for name in best)


def test_a_long_run_saves_checkpoints_by_time(monkeypatch):
    now = iter(range(0, 1_000_000, 25))
    monkeypatch.setattr(loop_module.time, "monotonic", lambda: float(next(now)))
    assert run(small_loop(small_model(), max_steps=9, num_validations=1)).saved == [3, 6, 9]


# ---- averaged weights


@pytest.mark.parametrize("tied", [False, True])
def test_ema_by_hand(tied):
    """The decay is min(ema_decay, (1 + step) / (10 + step)); tied weights are averaged once."""
    loop = small_loop(small_model(tie_embeddings=tied), max_steps=5, ema_decay=0.25)
    expected = weights(loop)
    for step, decay in enumerate((2 / 11, 3 / 12, 0.25, 0.25, 0.25), start=1):
        loop.train_step()
        expected = {name: decay * expected[name] + (1 - decay) * weight for name, weight in weights(loop).items()}
        for name, average in loop.ema.tensors().items():
            torch.testing.assert_close(average, expected[name], msg=f"{name} at step {step}")
    assert ("head.weight" in loop.ema.tensors()) != tied
    with loop.ema.applied():
        assert all(torch.allclose(weight, expected[name], atol=1e-6) for name, weight in weights(loop).items())


def test_ema_with_decay_0_equals_the_weights():
    assert small_loop(small_model(), max_steps=4, ema_decay=0.0).ema is None  # 0 switches it off
    loop = small_loop(small_model(), max_steps=4, ema_decay=0.5)
    loop.ema.decay = 0.0
    run(loop)
    assert all(torch.equal(average, weights(loop)[name]) for name, average in loop.ema.tensors().items())


@pytest.mark.parametrize("mixer", ["lstm", "attention"])
def test_training_continues_with_the_raw_weights(mixer):
    """Validation swaps them for the EMA weights and restores them bit for bit."""
    plain = small_loop(small_model(mixer), max_steps=6, num_validations=3, scores=[1.0] * 3)
    averaged = small_loop(small_model(mixer), max_steps=6, num_validations=3, scores=[1.0] * 3, ema_decay=0.9)
    run(plain), run(averaged)
    assert all(map(torch.equal, weights(plain).values(), weights(averaged).values()))


def test_ema_weights_are_validated_and_saved(tmp_path, text, monkeypatch):
    scores, validated = iter([3.0, 1.0, 2.0, 2.0]), []

    def validate(task: LanguageModelObjective, model: nn.Module, progress: ProgressCallback) -> dict[str, float]:
        validated.append({name: weight.clone() for name, weight in model.state_dict().items()})
        return {"loss": next(scores)}

    monkeypatch.setattr(LanguageModelObjective, "validate", validate)
    seen: dict[int, dict[str, Tensor]] = {}

    def look(loop: Loop) -> None:
        seen[loop.train_state.step] = {name: average.clone() for name, average in loop.ema.tensors().items()}

    values = run_file(text, "gpt", train__max_steps=8, train__num_validations=4, train__ema_decay=0.9)
    train_here(values, tmp_path / "run", SilentCallback(inspect=look))
    best, notes = read_tensors(tmp_path / "run" / "model.safetensors")
    assert notes["step"] == "4"
    assert all(torch.equal(best[name], average) for name, average in seen[4].items())
    for step, actual in zip((2, 4, 6, 8), validated, strict=True):
        assert all(torch.equal(actual[name], average) for name, average in seen[step].items())
    loaded = load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(loaded[name], average) for name, average in seen[4].items())


def test_raw_weights_are_restored_after_a_failed_validation():
    loop = small_loop(small_model(), max_steps=2, num_validations=2, scores=[math.nan], ema_decay=0.9)
    seen: dict[str, Tensor] = {}
    with pytest.raises(DivergedError):
        run(loop, SilentCallback(inspect=lambda loop: seen.update(weights(loop))))
    assert all(map(torch.equal, weights(loop).values(), seen.values()))


def test_ema_memory_is_counted_in_advance(monkeypatch):
    parameters = sum(weight.numel() for weight in small_model().parameters())
    table = TrainConfig(ema_decay=0.5).with_defaults()
    monkeypatch.setattr(memory, "free_device_memory", lambda device: 4 * 5 * parameters)
    assert memory.check_weights(small_model, table, CPU.device) == parameters
    monkeypatch.setattr(memory, "free_device_memory", lambda device: 4 * 5 * parameters - 1)
    with pytest.raises(ResourceError) as caught:
        memory.check_weights(small_model, table, CPU.device)
    needed, free = memory.format_bytes(20 * parameters), memory.format_bytes(20 * parameters - 1)
    assert str(caught.value) == (
        f"model: {parameters} parameters need {needed} to train with adamw and EMA, {free} are free; "
        "reduce hidden_size or num_layers"
    )


@pytest.mark.parametrize(
    ("average", "message"), [(1.0, "must be less than 1, got 1.0"), (-0.1, "must be at least 0, got -0.1")]
)
def test_invalid_ema_decay(text, average, message):
    with pytest.raises(ConfigError) as caught:
        resolve(run_file(text, train__ema_decay=average), base=text.parent)
    assert str(caught.value) == f"train.ema_decay: {message}"


# ---- what is written down


def test_metrics_jsonl_has_only_values_that_follow_from_the_run(tmp_path, text):
    values = run_file(text, "lstm", train__max_steps=6, train__num_validations=3)
    callback = SilentCallback()
    train_here(values, tmp_path / "run", callback)
    records = metrics(tmp_path / "run")
    trained = [record for record in records if "train_loss" in record]
    validated = [record for record in records if "valid_loss" in record]
    assert [record["step"] for record in trained] == [1, 2, 3, 4, 5, 6]
    gradients = {"grad_norm", "grad_norm_max", "learning_rate", "clipped_steps"}
    assert set(trained[0]) == {"step", "epoch", "tokens", "train_loss", "crc32"} | gradients
    assert [record["train_loss"] for record in trained] == pytest.approx(callback.losses)
    assert [(record["step"], record["valid_loss"]) for record in validated] == callback.scores
    assert [record["tokens"] for record in trained] == [64 * step for step in range(1, 7)]


def test_a_long_run_logs_about_200_lines_with_means_since_the_last():
    callback = SilentCallback()
    notebook = run(small_loop(small_model(), max_steps=500, num_validations=1), callback)
    steps = [record["step"] for record in notebook.records]
    assert steps[:5] == [1, 3, 5, 8, 10]
    assert len(steps) == 201
    actual = [record["train_loss"] for record in notebook.records]
    edges = [0, *steps]
    means = [sum(callback.losses[low:high]) / (high - low) for low, high in pairwise(edges)]
    assert actual == pytest.approx(means)


@pytest.mark.parametrize("model", ["conv", "lstm", "transformer", "gpt"])
def test_same_run_file_gives_equal_runs_and_another_seed_does_not(tmp_path, text, model):
    values = run_file(text, model, train__max_steps=4, train__num_validations=2)
    for name in ("one", "two"):
        train_here(values, tmp_path / name)
    train_here({**values, "seed": 4}, tmp_path / "three")
    assert run_hashes(tmp_path / "one") == run_hashes(tmp_path / "two")
    assert (tmp_path / "one" / "metrics.jsonl").read_bytes() != (tmp_path / "three" / "metrics.jsonl").read_bytes()


def test_validation_and_other_random_draws_between_steps_do_not_change_training(tmp_path, text):
    """More or fewer validations, sampling, dropout elsewhere: every step has its own seed."""

    def meddle(loop: Loop) -> None:
        torch.rand(7)
        loop.loss_module.model(torch.zeros(1, 3, dtype=torch.long))

    results = []
    for name, validations, look in (("a", 1, None), ("b", 6, None), ("c", 1, meddle)):
        values = run_file(text, "transformer", train__max_steps=6, train__num_validations=validations)
        train_here(values, tmp_path / name, SilentCallback(inspect=look))
        results.append(run_hashes(tmp_path / name)["model"])
    assert len(set(results)) == 1


def test_dropout_differs_from_step_to_step():
    loop = small_loop(small_model(dropout=0.5), max_steps=2, lr=1e-30)
    loop.batch_sampler.batch = lambda epoch, index: Batch(torch.arange(20).reshape(4, 5) % 9, None)  # type: ignore[method-assign]
    callback = SilentCallback()
    run(loop, callback)
    assert callback.losses[0] != callback.losses[1]


# ---- one update


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
@pytest.mark.parametrize("stream", [False, True], ids=["windows", "stream"])
@pytest.mark.parametrize("mixer", ["lstm", "attention"])
def test_accumulated_gradients_equal_whole_batches(mixer, stream, optimizer):
    """Three steps; with streams, the second and third start from a state joined from micro-batches."""
    loops = [
        small_loop(small_model(mixer), stream=stream, max_steps=3, micro_batches=parts, optimizer=optimizer, lr=0.01)
        for parts in (1, 2, 3)
    ]
    for loop in loops:
        run(loop)
    assert (loops[0].carry is not None) == stream
    for loop in loops[1:]:
        for name, weight in weights(loops[0]).items():
            torch.testing.assert_close(weights(loop)[name], weight, atol=1e-6, rtol=0.0, msg=name)
        for leaf, other in zip(tree_leaves(loops[0].carry), tree_leaves(loop.carry), strict=True):
            torch.testing.assert_close(other, leaf, atol=1e-5, rtol=1e-5)


def test_a_step_by_hand():
    """SGD without momentum: the weights minus lr times the gradient of the mean loss."""
    loop = small_loop(small_model(), max_steps=1, optimizer="sgd", momentum=0.0, weight_decay=0.0, max_grad_norm=0)
    model = small_model()
    batch = loop.batch_sampler.batch(0, 0)
    nats, _ = model.loss(batch.tokens[:, :-1], batch.tokens[:, 1:])
    nats.mean().backward()
    run(loop)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weights(loop)[name], weight.detach() - 0.1 * weight.grad, msg=name)


@pytest.mark.parametrize(("clip", "norm"), [(0.01, 0.01), (1e6, None), (0, None)])
def test_clipping_scales_only_longer_gradients(monkeypatch, clip, norm):
    loop = small_loop(small_model(), max_steps=1, max_grad_norm=clip, optimizer="sgd", momentum=0.0, weight_decay=0.0)
    before, model = weights(loop), small_model()
    batch = loop.batch_sampler.batch(0, 0)
    model.loss(batch.tokens[:, :-1], batch.tokens[:, 1:])[0].mean().backward()
    length = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
    run(loop)
    moved = torch.cat([(before[name] - weight).flatten() for name, weight in weights(loop).items()]) / 0.1
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    assert length > 0.05
    assert moved.norm().item() == pytest.approx(norm or length.item(), rel=1e-3)
    torch.testing.assert_close(moved / moved.norm(), gradient / length, atol=1e-4, rtol=1e-3)


# ---- the carry


def test_streams_start_from_the_final_state_of_the_previous_batch():
    model = small_model()
    loop = small_loop(small_model(), stream=True, max_steps=9, lr=1e-30)
    callback = SilentCallback()
    run(loop, callback)
    state, losses = None, []
    for index in range(6):  # 24 tokens per stream: 6 batches of 4
        tokens = loop.batch_sampler.batch(0, index).tokens
        nats, state = model.loss(tokens[:, :-1], tokens[:, 1:], state)
        losses.append(nats.mean().item())
    assert loop.batch_sampler.batches(0) == 6
    # the next epoch starts without a state
    assert callback.losses == pytest.approx([*losses, *losses[:3]], abs=1e-6)


@pytest.mark.parametrize("mixer", ["conv", "rnn", "lstm", "gru", "attention"])
def test_carried_state_changes_training(mixer):
    results = []
    for carries in (True, False):
        loop = small_loop(small_model(mixer), stream=True, max_steps=4)
        loop.loss_module.objective.carry_state = carries
        run(loop)
        results.append(torch.cat([weight.flatten() for weight in weights(loop).values()]))
    assert not torch.equal(*results)


@pytest.mark.parametrize("mixer", ["conv", "rnn", "lstm", "gru", "gru-reset-before", "attention"])
def test_carried_state_is_detached_and_has_a_row_per_stream(mixer):
    loop = small_loop(small_model(mixer), stream=True, max_steps=3)
    run(loop)
    parts = tree_leaves(loop.carry)
    assert parts
    assert all(part.grad_fn is None and not part.requires_grad and part.size(0) == 4 for part in parts)


def test_carried_attention_state_is_bounded_by_the_context_length():
    """At most twice the context length, and the loss equals that of a model that keeps everything and masks it."""
    model, sizes, losses, unbounded = small_model("attention", position_encoding="rotary"), [], [], None
    loop = small_loop(small_model("attention", position_encoding="rotary"), stream=True, rows=2, max_steps=12, lr=1e-30)
    callback = SilentCallback(
        inspect=lambda loop: sizes.append(max(part.size(1) for part in tree_leaves(loop.carry) if part.dim() == 2))
    )
    run(loop, callback)
    for layer in model.stack.layers:
        if layer.mixer.__class__.__name__ == "SelfAttention":
            layer.mixer._recent = lambda keys, values, key_at: (keys, values, key_at)
    for index in range(12):
        tokens = loop.batch_sampler.batch(0, index).tokens
        nats, unbounded = model.loss(tokens[:, :-1], tokens[:, 1:], unbounded)
        losses.append(nats.mean().item())
    assert max(sizes) < 2 * WINDOW
    assert unbounded[0].tolist() == [[48], [48]]
    assert callback.losses == pytest.approx(losses, abs=1e-5)


def test_windows_carry_no_state():
    loop = small_loop(small_model(), max_steps=2)
    run(loop)
    assert loop.carry is None


# ---- what it refuses to go on with

CURE = "the last checkpoint is intact; lower train.lr or train.max_grad_norm"


def diverged(loop: Loop) -> str:
    with pytest.raises(DivergedError) as caught:
        run(loop)
    return str(caught.value)


def spoil(loop: Loop, step: int, change: Callable[[Loss, nn.Module], Loss]) -> None:
    """Change the loss from step `step` on."""
    honest = loop.loss_module.objective.loss

    def loss(model: nn.Module, batch: Batch, carry: Any) -> Loss:
        actual = honest(model, batch, carry)
        return actual if loop.train_state.step < step else change(actual, model)

    loop.loss_module.objective.loss = loss  # type: ignore[method-assign]


class Steep(torch.autograd.Function):
    """Returns its input, with a gradient whose norm overflows float32."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient * 1e38


def test_a_nan_weight_stops_the_run_before_the_step():
    loop = small_loop(small_model(), max_steps=9)
    for _ in range(8):
        loop.train_step()
    with torch.no_grad():
        loop.loss_module.model.head.weight[0, 0] = math.nan
    before, momenta = weights(loop), {name: part.clone() for name, part in loop.optimizers.tensors().items()}
    rows = ", ".join(map(str, loop.batch_sampler.starts(1, 2)))  # type: ignore[attr-defined]
    assert diverged(loop) == (f"step 9: loss is nan (epoch 1, batch 2: train, windows of 4 tokens from token {rows}); {CURE}")
    assert loop.train_state.step == 8
    for name, weight in weights(loop).items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0, equal_nan=True)
    assert all(torch.equal(part, momenta[name]) for name, part in loop.optimizers.tensors().items())


def test_an_overflowing_gradient_stops_the_run_and_keeps_the_carried_state():
    loop = small_loop(small_model(), stream=True, max_steps=9)
    loop.train_step()
    carry = detach(loop.carry)
    spoil(loop, 1, lambda loss, model: loss._replace(total=Steep.apply(loss.total)))
    location = "epoch 0, batch 1: train, tokens 4 to 7 of each of 4 streams of 24"
    assert diverged(loop) == f"step 2: gradient norm is inf ({location}); {CURE}"
    assert all(map(torch.equal, tree_leaves(loop.carry), tree_leaves(carry)))


def test_an_infinite_loss_with_a_finite_gradient_stops_the_run():
    """A target whose logit is 2e38 below the best: its probability is 0 in float32, and the gradient is 1."""
    loop = small_loop(small_model(), max_steps=9)
    before = weights(loop)
    spoil(loop, 0, lambda loss, model: loss._replace(total=loss.total + math.inf))
    assert diverged(loop).startswith("step 1: loss is inf (epoch 0, batch 0: train, windows of 4 tokens from ")
    assert all(map(torch.equal, weights(loop).values(), before.values()))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_nan_validation_score_stops_the_run(value):
    """Otherwise no later score would be better."""
    loop = small_loop(small_model(), max_steps=9, num_validations=9, scores=[3.0, value])
    assert diverged(loop) == (
        f"step 2: validation loss is {value}; the last checkpoint is intact; lower train.lr or train.max_grad_norm"
    )
    assert (loop.train_state.best, loop.train_state.best_step) == (3.0, 1)


def test_a_diverged_run_keeps_its_checkpoint_and_best_weights(tmp_path, text):
    values, out = run_file(text, "lstm", train__max_steps=9, train__num_validations=9), tmp_path / "run"

    def spoil_weights(loop: Loop) -> None:
        if loop.train_state.step == 5:
            with torch.no_grad():
                loop.loss_module.model.embedding.weight.fill_(math.inf)

    with pytest.raises(DivergedError, match=r"^step 5: validation loss is nan; "):
        train_here(values, out, SilentCallback(inspect=spoil_weights))
    assert checkpoint.names(out) == ["000003", "000004"]
    assert checkpoint.newest(out)[1] == []
    assert all(weight.isfinite().all() for weight in read_tensors(out / "model.safetensors")[0].values())
    train_here(values, out)
    train_here(values, tmp_path / "whole")
    assert run_hashes(out) == run_hashes(tmp_path / "whole")


# ---- where and how numbers are computed


def test_missing_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError) as caught:
        pick_device("cuda")
    assert str(caught.value) == "train.device: no CUDA GPU found; use 'auto' or 'cpu'"
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")


def test_streams_with_learned_positions_are_rejected(text):
    with pytest.raises(ConfigError) as caught:
        resolve(run_file(text, "transformer", data__read_as="stream"), base=text.parent)
    assert str(caught.value) == ("model.position_encoding: 'learned' is not possible with data.read_as 'stream'; use 'rotary'")


def test_bfloat16_trains_and_the_weights_stay_float32(tmp_path, text):
    callback = SilentCallback()
    values = run_file(text, "gpt", train__max_steps=12, train__precision="bfloat16", data__read_as="stream")
    train_here(values, tmp_path / "run", callback)
    weights, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert callback.losses[-1] < callback.losses[0] - 0.1
    exact = SilentCallback()
    train_here({**values, "train": {**values["train"], "precision": "float32"}}, tmp_path / "exact", exact)
    assert callback.losses == pytest.approx(exact.losses, rel=0.05)
    assert callback.losses != exact.losses


@pytest.mark.parametrize("arch", ["conv", "rnn", "gru", "gru-reset-before", "lstm", "transformer", "gpt"])
@pytest.mark.parametrize("read", ["windows", "lines"])
def test_every_architecture_learns(tmp_path, text, arch, read):
    values = run_file(
        text, "conv", data__read_as=read, data__context_length=48, train__batch_tokens=256, train__num_validations=2
    )
    values["model"] = {"arch": "gru", "layer_type": "gru-reset-before"} if arch == "gru-reset-before" else {"arch": arch}
    values["model"] |= {"hidden_size": 16, "num_layers": 1}
    callback = SilentCallback()
    train_here(values, tmp_path / "run", callback)
    assert callback.scores[-1][1] < callback.scores[0][1] < callback.losses[0]


@pytest.mark.parametrize("part", ["samples", "validation"])
def test_nan_while_decoding_is_a_divergence(part, monkeypatch):
    loop = small_loop(small_model(), max_steps=4, num_validations=2, scores=[1.0] * 4)

    def fail(*args: object) -> None:
        raise ModelError("", "the model computes NaN probabilities")

    if part == "samples":
        loop.sample_writer = fail
    else:
        monkeypatch.setattr(loop.loss_module.objective, "validate", fail)
    with pytest.raises(DivergedError) as caught:
        run(loop)
    assert str(caught.value) == (
        "step 2: the model computes NaN probabilities; the last checkpoint is intact; lower train.lr or train.max_grad_norm"
    )
