"""Learning-rate schedules, Muon, optimizer states and gradient accumulation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from weft.data.batching import Batch
from weft.errors import ModelError
from weft.models.config import LanguageModelConfig
from weft.models.lm import LanguageModel, language_model
from weft.nn.state import detach, tree_leaves
from weft.training.config import OPTIMIZERS, TrainConfig
from weft.training.loop import DeviceConfig, Loop
from weft.training.loss_module import LossModule
from weft.training.muon import Muon, orthogonalize
from weft.training.objective import Loss
from weft.training.optimizers import Optimizers, build_optimizers
from weft.training.param_groups import ParamGroup
from weft.training.schedules import SCHEDULES, schedule

# ---- schedules


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", {0.0: 1.0, 0.5: 1.0, 1.0: 1.0}),
        ("linear", {0.0: 1.0, 0.25: 0.75, 1.0: 0.0}),
        ("cosine", {0.0: 1.0, 1 / 3: 0.775, 0.5: 0.55, 1.0: 0.1}),
        ("inverse-sqrt", {0.0: 1.0, 0.01: 1.0, 0.04: 0.5, 1.0: 0.1}),
        ("warmup-stable-decay", {0.0: 1.0, 0.6: 1.0, 0.8: 0.5, 1.0: 0.0}),
    ],
)
def test_schedules_by_hand(name, expected):
    actual = {progress: schedule(name, warmup=0.0)(progress) for progress in expected}
    assert actual == pytest.approx(expected)


@pytest.mark.parametrize("name", SCHEDULES)
def test_warmup_is_linear_times_the_decay(name):
    factor = schedule(name, warmup=0.1)
    assert factor(0.0) == 0.0
    fall = (lambda progress: min(1.0, math.sqrt(0.1 / progress))) if name == "inverse-sqrt" else SCHEDULES[name]
    for progress in (0.025, 0.05, 0.1, 0.4, 0.9):
        assert factor(progress) == pytest.approx(min(1.0, progress / 0.1) * fall(progress))


def test_inverse_sqrt_is_the_schedule_of_the_transformer_paper():
    """Vaswani et al. 2017, equation 3: min(step^-0.5, step * warmup^-1.5), here with the peak at 1."""
    factor, warmup = schedule("inverse-sqrt", warmup=0.04), 40
    for step in (1, 20, 40, 41, 160, 1000):
        paper = min(step**-0.5, step * warmup**-1.5) / warmup**-0.5
        assert factor(step / 1000) == pytest.approx(paper)


@settings(deadline=None)
@given(st.sampled_from(list(SCHEDULES)), st.floats(0.0, 0.99), st.floats(0.0, 2.0), st.floats(0.0, 2.0))
def test_factor_is_between_0_and_1_and_never_rises_after_warmup(name, warmup, first, second):
    factor = schedule(name, warmup=warmup)
    early, late = sorted((first, second))
    assert 0.0 <= factor(early) <= 1.0
    if early >= warmup:
        assert factor(late) <= factor(early)


def test_a_schedule_is_constant_past_its_end():
    for name in SCHEDULES:
        factor = schedule(name, warmup=0.02)
        assert factor(1.5) == factor(1.0)


# ---- Muon


def with_singular_values(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """U, V^T and U S V^T with S from 0.05 to 1."""
    generator = torch.Generator().manual_seed(seed)
    u, _, vt = torch.linalg.svd(torch.randn(rows, columns, generator=generator), full_matrices=False)
    return u, vt, u * torch.linspace(1.0, 0.05, min(rows, columns)) @ vt


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("shape", [(8, 8), (12, 5), (5, 12), (6, 1)], ids=["square", "tall", "wide", "column"])
def test_orthogonalization_keeps_singular_vectors_and_equalizes_singular_values(shape, scale):
    u, vt, matrix = with_singular_values(*shape, seed=0)
    actual = orthogonalize(scale * matrix[None])[0]
    assert actual.shape == shape
    sizes = u.mT @ actual @ vt.mT  # a polynomial in the matrix: the singular vectors stay
    torch.testing.assert_close(sizes, sizes.diag().diag(), atol=1e-4, rtol=0.0)
    assert sizes.diag().min() > 0.6 and sizes.diag().max() < 1.3
    assert torch.linalg.matrix_norm(actual - u @ vt, 2) < 0.4


def test_orthogonalization_is_five_quintic_newton_schulz_steps():
    u, vt, matrix = with_singular_values(4, 7, seed=1)
    values = torch.linspace(1.0, 0.05, 4, dtype=torch.double)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    torch.testing.assert_close(orthogonalize(matrix[None])[0], u * values.float() @ vt, atol=1e-5, rtol=1e-4)


def test_a_zero_gradient_changes_nothing():
    assert orthogonalize(torch.zeros(2, 3, 4)).tolist() == torch.zeros(2, 3, 4).tolist()


def weights_of(shapes: list[tuple[int, int]]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def muon(weights: list[nn.Parameter], *, weight_decay: float) -> Muon:
    return Muon([ParamGroup(list(weights), 0.1, weight_decay)], momentum=0.9)


def test_muon_on_a_batch_of_matrices_equals_each_alone():
    shapes = [(4, 6), (6, 4), (4, 6), (4, 4), (4, 6), (6, 4)]
    together, alone = weights_of(shapes), weights_of(shapes)
    optimizers = [muon(together, weight_decay=0.01), *(muon([weight], weight_decay=0.01) for weight in alone)]
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        for item, other in zip(together, alone, strict=True):
            item.grad = torch.randn(item.shape, generator=generator)
            other.grad = item.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for item, other in zip(together, alone, strict=True):
        torch.testing.assert_close(item, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(4, 4), (8, 2), (2, 8)])
def test_muon_steps_along_its_momentum(shape):
    """Jordan et al. 2024: momentum buffer, Nesterov, orthogonalization, larger for tall matrices; decoupled weight decay."""
    (weight,) = weights_of([shape])
    optimizer = muon([weight], weight_decay=0.5)
    expected, buffer = weight.detach().clone(), torch.zeros(shape)
    for step in range(3):
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(step))
        weight.grad = gradient.clone()
        optimizer.step()
        assert torch.equal(weight.grad, gradient)
        buffer = 0.9 * buffer + 0.1 * gradient
        update = orthogonalize((0.9 * buffer + 0.1 * gradient)[None])[0]
        expected = expected * (1.0 - 0.1 * 0.5) - 0.1 * math.sqrt(max(1.0, shape[0] / shape[1])) * update
        torch.testing.assert_close(weight.detach(), expected, atol=1e-5, rtol=1e-4)


def test_muon_leaves_weights_without_a_gradient_alone():
    still, moved = weights_of([(3, 3), (3, 3)])
    before = still.detach().clone()
    moved.grad = torch.ones(3, 3)
    optimizer = muon([still, moved], weight_decay=0.5)
    optimizer.step()
    assert torch.equal(still, before)
    assert list(optimizer.state) == [moved]


# ---- optimisers and their states


def small_model(mixer: str = "lstm") -> LanguageModel:
    torch.manual_seed(0)
    return language_model(
        LanguageModelConfig(layer_type=mixer, num_layers=2, hidden_size=8, tie_embeddings=True).with_defaults(),
        vocab_size=7,
        context_length=8,
        vocabulary="",
    )


def matrices_of(model: nn.Module) -> set[str]:
    return {name for name, weight in model.named_parameters() if name.startswith("stack") and weight.dim() == 2}


def started(name: str, model: nn.Module) -> Optimizers:
    return build_optimizers(model, matrices_of(model), TrainConfig(optimizer=name, lr=0.01, weight_decay=0.1).with_defaults())


def train(model: LanguageModel, parts: Optimizers, steps: range) -> None:
    for step in steps:
        tokens = torch.randint(7, (3, 6), generator=torch.Generator().manual_seed(step))
        model.loss(tokens[:, :-1], tokens[:, 1:])[0].mean().backward()
        parts.step(1.0 - step / 40)
        parts.zero_grad()


@pytest.mark.parametrize("mixer", ["lstm", "attention"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restored_optimizer_continues_bit_for_bit(name, mixer):
    model = small_model(mixer)
    parts = started(name, model)
    train(model, parts, range(10))
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    saved = {key: value.clone() for key, value in parts.tensors().items()}
    assert saved and all(key.rpartition("/")[0] in dict(model.named_parameters()) for key in saved)
    train(model, parts, range(10, 20))

    again = small_model(mixer)
    again.load_state_dict(weights)
    restored = started(name, again)
    copies = {key: value.clone() for key, value in saved.items()}
    restored.restore(copies)
    train(again, restored, range(10, 20))
    for (key, tensor), other in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(tensor, other), key
    assert parts.tensors().keys() == restored.tensors().keys()
    for key, value in parts.tensors().items():
        assert torch.equal(value, restored.tensors()[key]), key
        assert torch.equal(copies[key], saved[key]), key  # updates are in place, and loaded tensors may be memory-mapped

    forgetful = small_model(mixer)
    forgetful.load_state_dict(weights)
    train(forgetful, started(name, forgetful), range(10, 20))
    assert not torch.equal(forgetful.embedding.weight, model.embedding.weight)


def test_a_state_of_another_model_is_rejected():
    with pytest.raises(ModelError) as caught:
        started("sgd", small_model()).restore({"stack.nowhere/momentum_buffer": torch.zeros(2)})
    assert str(caught.value) == "optimizer state: the model has no parameter 'stack.nowhere'"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_parameter_has_one_optimizer(name):
    model = small_model()
    parts = started(name, model)
    owned = [weight for part in parts.optimizers for group in part.groups for weight in group.weights]
    assert len(owned) == len(set(owned)) == len(list(model.parameters()))
    assert set(owned) == set(parts.weights) == set(model.parameters())
    if name == "muon":
        inside = {parts.names[weight] for group in parts.optimizers[0].groups for weight in group.weights}
        assert inside == matrices_of(model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_decay_applies_to_matrices_only(name):
    model = small_model()
    before = {key: weight.detach().clone() for key, weight in model.named_parameters()}
    parts = started(name, model)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    parts.step(0.5)
    for key, weight in model.named_parameters():
        rate = 0.02 if name == "muon" and key in matrices_of(model) else 0.01
        factor = 1.0 - 0.5 * rate * 0.1 if weight.dim() == 2 else 1.0
        torch.testing.assert_close(weight.detach(), factor * before[key], atol=1e-7, rtol=1e-6)


def test_lr_factors_multiply_the_configured_lr():
    line = nn.Linear(1, 1, bias=False)
    nn.init.constant_(line.weight, 1.0)
    parts = build_optimizers(line, set(), TrainConfig(optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0).with_defaults())
    for factor, expected in ((0.5, 0.95), (0.5, 0.9), (1.0, 0.8), (0.0, 0.8)):
        line.weight.grad = torch.ones(1, 1)
        parts.step(factor)
        assert line.weight.item() == pytest.approx(expected)
    parts.zero_grad()
    assert line.weight.grad is None


# ---- a batch in parts


class Reading:
    """The loss of a language model over ragged rows with carried state."""

    unit = "token"
    monitors = ()
    inner_steps, prepare, augment = 0, None, None

    def loss(self, model: nn.Module, batch: Batch, carry: Any) -> Loss:
        keep = torch.ones_like(batch.tokens, dtype=torch.bool) if batch.token_mask is None else batch.token_mask
        nats, state = model.loss(batch.tokens[:, :-1], batch.tokens[:, 1:], carry)
        counted = keep[:, 1:]
        return Loss((nats * counted).sum(), counted.sum(), detach(state))

    def validate(self, model: nn.Module) -> None:
        return None


class OneBatch:
    """The minimal batch sampler for a loop."""

    def batches(self, epoch: int) -> int:
        return 1

    def batch(self, epoch: int, index: int) -> Batch:
        raise AssertionError("the batch is given by hand")

    def resets_state(self, index: int) -> bool:
        return False

    def describe(self, epoch: int, index: int) -> str:
        return ""


def two_batches(accumulate: int, mixer: str, ragged: bool) -> tuple[Loop, tuple[Tensor, Tensor]]:
    """A loop after the gradients of a second batch, which starts from the state of the first; loss and count."""
    model = small_model(mixer)
    table = TrainConfig(micro_batches=accumulate).with_defaults()
    loop = Loop(
        LossModule(Reading(), model),
        build_optimizers(model, set(), table),
        OneBatch(),
        config=table,
        seed=0,
        device_config=DeviceConfig(torch.device("cpu"), torch.float32),
    )
    tokens = torch.randint(7, (7, 6), generator=torch.Generator().manual_seed(0))
    keep = torch.arange(6) < torch.tensor([[6], [2], [3], [6], [5], [2], [4]]) if ragged else None
    loop.summed_gradients(Batch(tokens, None))
    loop.optimizers.zero_grad()
    return loop, loop.summed_gradients(Batch(tokens.flip(0), keep))


@pytest.mark.parametrize("ragged", [False, True], ids=["whole", "ragged"])
@pytest.mark.parametrize("mixer", ["lstm", "attention"])
@pytest.mark.parametrize("accumulate", [2, 3, 7, 20])
def test_micro_batches_give_the_gradient_of_the_whole_batch(accumulate, mixer, ragged):
    full, (nats, count, _) = two_batches(1, mixer, ragged)
    parts, (summed, counted, read) = two_batches(accumulate, mixer, ragged)
    assert count == counted == read == (21 if ragged else 35)
    torch.testing.assert_close(summed, nats, atol=1e-5, rtol=1e-6)
    for one, other in zip(full.optimizers.weights, parts.optimizers.weights, strict=True):
        torch.testing.assert_close(other.grad, one.grad, atol=1e-6, rtol=1e-5)
    for one, other in zip(tree_leaves(full.carry), tree_leaves(parts.carry), strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-5)


def test_a_batch_without_targets_has_no_gradient(monkeypatch):
    loop, _ = two_batches(1, "lstm", ragged=True)
    loop.config = loop.config.model_copy(update={"max_steps": 1})
    batch = Batch(torch.zeros(7, 6, dtype=torch.long), torch.arange(6).expand(7, 6) < 1)
    monkeypatch.setattr(loop, "next_batch", lambda: batch)
    given: list[Tensor] = []
    monkeypatch.setattr(loop.optimizers, "step", lambda *args: given.extend(w.grad.clone() for w in loop.optimizers.weights))
    loop.optimizers.zero_grad()
    loop.train_step()
    assert len(given) > 3 and all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in given)


def test_a_large_gradient_of_the_mean_is_clipped_though_squares_of_the_sum_overflow(monkeypatch):
    loop, _ = two_batches(1, "lstm", ragged=False)
    loop.config = loop.config.model_copy(update={"max_steps": 1, "max_grad_norm": 1.0})
    tokens = torch.randint(7, (7, 6), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(loop, "next_batch", lambda: Batch(tokens, None))
    loop.optimizers.zero_grad()
    loop.carry = None
    loop.optimizers.weights[0].register_hook(lambda grad: torch.full_like(grad, 1e19))
    given: list[Tensor] = []
    monkeypatch.setattr(loop.optimizers, "step", lambda *args: given.extend(w.grad.clone() for w in loop.optimizers.weights))
    loop.train_step()
    expected = 1e19 * given[0].numel() ** 0.5 / 35
    assert loop.train_state.norm_max == pytest.approx(expected, rel=1e-5)
    assert given[0].norm().item() == pytest.approx(1.0, rel=1e-5) and given[1].norm() < 1e-15


@pytest.mark.parametrize("max_norm", [0.0, 0.05, 100.0])
def test_a_step_uses_the_clipped_gradient_of_the_mean_over_tokens(max_norm, monkeypatch):
    loop, _ = two_batches(3, "lstm", ragged=True)
    loop.config = loop.config.model_copy(update={"max_steps": 1, "max_grad_norm": max_norm})
    loop.optimizers.zero_grad()
    loop.carry = None
    tokens = torch.randint(7, (7, 6), generator=torch.Generator().manual_seed(0))
    keep = torch.arange(6) < torch.tensor([[6], [2], [3], [6], [5], [2], [4]])
    monkeypatch.setattr(loop, "next_batch", lambda: Batch(tokens, keep))
    given: list[Tensor] = []
    monkeypatch.setattr(loop.optimizers, "step", lambda *args: given.extend(w.grad.clone() for w in loop.optimizers.weights))
    loop.train_step()
    model = small_model()
    nats, _ = model.loss(tokens[:, :-1], tokens[:, 1:])
    nats[keep[:, 1:]].mean().backward()
    if max_norm:
        assert (nn.utils.clip_grad_norm_(model.parameters(), max_norm) > max_norm) == (max_norm < 1.0)
    for parameter, gradient in zip(model.parameters(), given, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, atol=1e-6, rtol=1e-5)
