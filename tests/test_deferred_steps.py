"""Steps whose numbers are read during the next step, as on a GPU: the same run, the same errors, the same files."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from small_runs import SilentCallback, make_text, run_file, run_hashes, train_here
from test_loop import Notebook, Steep, small_loop, small_model, weights
from torch._dynamo.utils import counters

from weft.errors import DivergedError, TrainingInterrupted
from weft.tensors import read_tensors
from weft.training import checkpoint
from weft.training.loop import Loop
from weft.training.muon import Muon, scaled_update
from weft.training.param_groups import ParamGroup
from weft.training.step_values import GradientScale

STEPS = 9
OPTIMIZERS = ("adamw", "muon")


@pytest.fixture
def defers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "asynchronous_devices", ("cpu", "cuda"))


def make_loop(optimizer: str = "adamw", **options: Any) -> Loop:
    options = {"lr": 0.01, "max_steps": STEPS, "optimizer": optimizer, **options}
    model = small_model("attention", num_heads=2)
    return small_loop(model, scores=None if options.pop("unscored", False) else [1.0] * 99, **options)


def run(loop: Loop, callback: SilentCallback | None = None) -> Notebook:
    notebook = Notebook()
    loop.run(notebook, callback or SilentCallback())
    return notebook


@pytest.mark.parametrize("optimizer", (*OPTIMIZERS, "sgd"))
@pytest.mark.parametrize("options", [{"max_grad_norm": 0.05}, {"max_grad_norm": 0.0, "ema_decay": 0.5, "micro_batches": 2}])
def test_a_deferred_run_equals_the_immediate_one(monkeypatch, optimizer, options):
    immediate = make_loop(optimizer, num_validations=2, **options)
    monkeypatch.setattr(Loop, "asynchronous_devices", ("cpu",))
    deferred = make_loop(optimizer, num_validations=2, **options)
    assert deferred.defers and not immediate.defers
    callbacks = [SilentCallback(), SilentCallback()]
    notebooks = [run(loop, callback) for loop, callback in zip((immediate, deferred), callbacks, strict=True)]
    assert notebooks[0].saved == notebooks[1].saved and notebooks[0].best == notebooks[1].best
    for ours, theirs in zip(notebooks[1].records, notebooks[0].records, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    for name, weight in weights(deferred).items():
        torch.testing.assert_close(weight, weights(immediate)[name], rtol=1e-4, atol=1e-5, msg=name)
    for name, part in deferred.optimizers.tensors().items():
        torch.testing.assert_close(part, immediate.optimizers.tensors()[name], rtol=1e-3, atol=1e-6, msg=name)
    plain, states = vars(immediate.train_state), vars(deferred.train_state)
    assert {name: states[name] for name in ("step", "epoch", "batch_index", "tokens", "best_step", "done")} == {
        name: plain[name] for name in ("step", "epoch", "batch_index", "tokens", "best_step", "done")
    }


def test_losses_reach_the_callback_at_most_a_step_later(monkeypatch):
    immediate, callback = make_loop(num_validations=1), SilentCallback()
    run(immediate, callback)
    monkeypatch.setattr(Loop, "asynchronous_devices", ("cpu",))
    late = SilentCallback()
    run(make_loop(num_validations=1), late)
    losses = callback.losses
    # the numbers of the first step and of the last one are read at once; lines of the log wait for them
    expected = [losses[index] for index in (0, 0, 1, 2, 3, 4, 5, 6, 8)]
    assert late.losses == pytest.approx(expected, rel=1e-4)


def spoil(loop: Loop, step: int, kind: str) -> None:
    """Let step `step`, counted from 1, diverge."""
    honest = loop.loss_module.objective.loss

    def loss(model: Any, batch: Any, carry: Any) -> Any:
        actual = honest(model, batch, carry)
        if loop.train_state.step != step - 1:
            return actual
        if kind == "gradient":
            return actual._replace(total=Steep.apply(actual.total))
        return actual._replace(total=actual.total * math.nan if kind == "nan" else actual.total + math.inf)

    loop.loss_module.objective.loss = loss  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", ["nan", "loss", "gradient"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_divergence_at_any_step_is_that_of_the_immediate_run(monkeypatch, optimizer, kind):
    """The same message, and nothing of the step is in the weights, the optimizer, the training state, or what was saved."""
    for step in (1, 2, 4, 5, STEPS):
        results = []
        for devices in ((), ("cpu",)):
            monkeypatch.setattr(Loop, "asynchronous_devices", devices)
            loop, notebook = make_loop(optimizer, num_validations=2, stream=True), Notebook()
            spoil(loop, step, kind)
            with pytest.raises(DivergedError) as caught:
                loop.run(notebook, SilentCallback())
            assert f"step {step}: {'gradient norm' if kind == 'gradient' else 'loss'} is " in str(caught.value)
            state = {name: value or 0 for name, value in vars(loop.train_state).items() if not name.endswith("seconds")}
            results.append((str(caught.value), state, notebook, weights(loop), loop.optimizers.tensors(), loop.carry))
        plain, deferred = results
        assert plain[0] == deferred[0]
        assert plain[1] == pytest.approx(deferred[1], rel=1e-4)
        assert (plain[2].saved, plain[2].best) == (deferred[2].saved, deferred[2].best)
        for name, weight in deferred[3].items():
            torch.testing.assert_close(weight, plain[3][name], rtol=1e-4, atol=1e-5, msg=f"{name} at step {step}")
        for name, part in deferred[4].items():
            if name in plain[4]:  # the first step creates them
                torch.testing.assert_close(part, plain[4][name], rtol=1e-3, atol=1e-6, msg=f"{name} at step {step}")
            else:
                assert step == 1 and not part.any()
        assert (plain[5] is None) == (deferred[5] is None)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_skipped_step_changes_nothing(optimizer):
    loop = make_loop(optimizer)
    for _ in range(2):
        loop.train_step()
    before, state = weights(loop), {name: part.clone() for name, part in loop.optimizers.tensors().items()}
    loop.summed_gradients(loop.next_batch())
    loop.optimizers.weights[0].grad.fill_(math.nan)
    one = torch.ones(())
    loop.optimizers.step(1.0, 0.5, GradientScale(one * math.nan, one, one * math.nan))
    assert all(torch.equal(weight, before[name]) for name, weight in weights(loop).items())
    assert all(torch.equal(part, state[name]) for name, part in loop.optimizers.tensors().items())


@pytest.mark.parametrize("num_lines", [3, 4, 200])
def test_lines_of_the_log_are_those_of_the_immediate_run(monkeypatch, num_lines):
    monkeypatch.setattr("weft.training.loop.LOG_LINES", num_lines)
    plain = run(make_loop("muon", num_validations=2, lr_schedule="cosine")).records
    monkeypatch.setattr(Loop, "asynchronous_devices", ("cpu",))
    deferred = run(make_loop("muon", num_validations=2, lr_schedule="cosine")).records
    assert [record["step"] for record in plain] == [record["step"] for record in deferred]
    for ours, theirs in zip(deferred, plain, strict=True):
        assert list(ours) == list(theirs) and ours == pytest.approx(theirs, rel=1e-4)


def test_nothing_is_read_within_a_step(monkeypatch):
    """Only `LaunchedStep.read` waits for the device, once per step."""
    monkeypatch.setattr(Loop, "asynchronous_devices", ("cpu",))
    loop = make_loop()
    loop.train_step()
    reads: list[int] = []
    monkeypatch.setattr(loop, "_read", lambda launched: reads.append(launched.start.step) or launched.read())
    for name in ("item", "__bool__", "__float__", "__int__", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, _refuse, raising=False)
    launched = loop.launched
    loop.launched = None  # so that nothing is due
    loop.train_step()
    monkeypatch.undo()
    assert launched is not None and not reads


def _refuse(self: torch.Tensor) -> Any:
    raise AssertionError("the host waits for the device")


# ---- which runs read at once


def test_a_budget_in_tokens_is_read_at_once(defers):
    assert make_loop().defers and make_loop("sgd").defers
    assert not make_loop(max_steps=None, max_tokens=100).defers


def test_sgd_ignores_a_gradient_that_is_not_finite(defers):
    """Its gradients are 0 instead, and the error is the same."""
    loop = make_loop("sgd")
    spoil(loop, 4, "nan")
    with pytest.raises(DivergedError, match="step 4: loss is nan"):
        loop.run(Notebook(), SilentCallback())
    assert all(weight.isfinite().all() for weight in weights(loop).values())
    assert all(part.isfinite().all() for part in loop.optimizers.tensors().values())


# ---- checkpoints


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_stopped_and_resumed_run_equals_one_without_a_stop(tmp_path, defers, optimizer):
    text = make_text(tmp_path / "text.txt")
    values = run_file(text, "gpt", train__max_steps=7, train__num_validations=2, train__optimizer=optimizer)
    train_here(values, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "parts", SilentCallback(stop_at=3))
    assert checkpoint.names(tmp_path / "parts") == ["000003"]
    train_here(values, tmp_path / "parts")
    assert run_hashes(tmp_path / "parts") == run_hashes(tmp_path / "whole")


def test_no_diverged_weights_are_saved(tmp_path, monkeypatch, defers):
    """A checkpoint is due after the very step that diverged."""
    text = make_text(tmp_path / "text.txt")
    values = run_file(text, "gpt", train__max_steps=8, train__num_validations=4)
    steps, start = [], Loop.summed_gradients

    def gradients(loop: Loop, batch: Any) -> Any:
        total, count, tokens = start(loop, batch)
        steps.append(loop.train_state.step + 1)
        return total * (math.nan if steps[-1] == 6 else 1.0), count, tokens

    monkeypatch.setattr(Loop, "summed_gradients", gradients)
    with pytest.raises(DivergedError, match="step 6: loss is nan"):
        train_here(values, tmp_path / "run")
    assert checkpoint.names(tmp_path / "run")[-1] == "000004"
    kept, notes = read_tensors(tmp_path / "run" / "model.safetensors")
    assert int(notes["step"]) <= 4 and all(torch.isfinite(weight).all() for weight in kept.values())


# ---- Muon


def matrices(shape: tuple[int, ...], number: int = 3) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for _ in range(number)]
    for weight in weights:
        weight.grad = torch.randn(shape, generator=generator)
    return weights


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (2, 6, 4)])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_scaled_update_equals_plain_muon(shape, compiled):
    plain, scaled = matrices(shape), matrices(shape)
    ours, theirs = (Muon([ParamGroup(weights, 0.1, 0.1)], momentum=0.9) for weights in (scaled, plain))
    if compiled:  # traced as on a GPU, without a compiler of code
        torch.compiler.reset()
        counters.clear()
        ours.scaled_update = torch.compile(scaled_update, backend="aot_eager", dynamic=False)
    for step in range(4):
        lr = 0.1 / (1 + step)
        for optimizer in (ours, theirs):
            optimizer.groups[0].lr = lr
        for weight, other in zip(plain, scaled, strict=True):
            weight.grad = weight.detach().cos() * (1 + step)
            other.grad = weight.grad * 8.0
        ours.step(GradientScale(torch.tensor(8.0), torch.tensor(0.0), torch.tensor(1.0)))
        theirs.step()
    if compiled:
        assert counters["stats"]["unique_graphs"] == 1  # not one per learning rate
    for weight, other in zip(plain, scaled, strict=True):
        torch.testing.assert_close(other, weight, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.state[other]["momentum"], theirs.state[weight]["momentum"])
