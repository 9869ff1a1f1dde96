"""AdamW and SGD against those of torch, and that training does not import torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from weft.training.adamw import SGD, AdamW
from weft.training.param_groups import ParamGroup
from weft.training.step_values import GradientScale

SHAPES = [(5, 3), (4,), (), (2, 3, 4)]
NUM_STEPS = 6


def make_weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def groups_of(weights: list[nn.Parameter]) -> list[ParamGroup]:
    return [ParamGroup(list(weights[:2]), 0.1, 0.3), ParamGroup(list(weights[2:]), 0.1, 0.0)]


def torch_groups(weights: list[nn.Parameter]) -> list[dict]:
    return [{"params": group.weights, "weight_decay": group.weight_decay} for group in groups_of(weights)]


def set_gradients(weights: list[nn.Parameter], step: int, factor: float = 1.0) -> None:
    """Gradients of a step; the last weight has none at first."""
    generator = torch.Generator().manual_seed(step + 1)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator) * factor
    if step < 2:
        weights[-1].grad = None


def scale(divisor: float, skips: float) -> GradientScale:
    return GradientScale(torch.tensor(divisor), torch.tensor(skips), torch.tensor(1.0))


def compare(ours, theirs, weights: list[nn.Parameter], others: list[nn.Parameter], keys: set[str]) -> None:
    for step in range(NUM_STEPS):
        lr = 0.1 / (1 + step)
        for group, other in zip(ours.groups, theirs.param_groups, strict=True):
            group.lr = other["lr"] = lr
        set_gradients(weights, step)
        set_gradients(others, step)
        ours.step()
        theirs.step()
    for weight, other in zip(weights, others, strict=True):
        assert torch.equal(weight, other)
        assert set(ours.state[weight]) == set(theirs.state[other]) == keys
        assert all(torch.equal(ours.state[weight][key], theirs.state[other][key]) for key in keys)


def test_adamw_equals_that_of_torch():
    weights, others = make_weights(), make_weights()
    theirs = torch.optim.AdamW(torch_groups(others), lr=0.1, betas=(0.9, 0.95), fused=True)
    compare(AdamW(groups_of(weights), beta2=0.95), theirs, weights, others, {"step", "exp_avg", "exp_avg_sq"})


@pytest.mark.parametrize(("momentum", "keys"), [(0.0, set()), (0.9, {"momentum_buffer"})])
def test_sgd_equals_that_of_torch(momentum, keys):
    weights, others = make_weights(), make_weights()
    theirs = torch.optim.SGD(torch_groups(others), lr=0.1, momentum=momentum)
    compare(SGD(groups_of(weights), momentum=momentum), theirs, weights, others, keys)


OPTIMIZERS = {
    "adamw": lambda weights: AdamW(groups_of(weights), beta2=0.95),
    "sgd": lambda weights: SGD(groups_of(weights), momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scale_divides_gradients(name):
    weights, others = make_weights(), make_weights()
    ours, theirs = OPTIMIZERS[name](weights), OPTIMIZERS[name](others)
    for step in range(NUM_STEPS):
        set_gradients(weights, step, 8.0)
        set_gradients(others, step)
        ours.step(scale(8.0, 0.0))
        theirs.step()
    for weight, other in zip(weights, others, strict=True):
        torch.testing.assert_close(weight, other)


def test_adamw_skips_a_step():
    weights = make_weights()
    ours = OPTIMIZERS["adamw"](weights)
    for step in range(3):
        set_gradients(weights, step)
        ours.step()
    before = [weight.detach().clone() for weight in weights]
    states = {weight: {key: value.clone() for key, value in ours.state[weight].items()} for weight in weights}
    set_gradients(weights, 3, float("nan"))
    ours.step(scale(float("nan"), 1.0))
    for weight, value in zip(weights, before, strict=True):
        assert torch.equal(weight, value)
        assert all(torch.equal(ours.state[weight][key], state) for key, state in states[weight].items())


def test_sgd_ignores_the_gradients_of_a_skipped_step():
    weights = make_weights()
    ours = OPTIMIZERS["sgd"](weights)
    set_gradients(weights, 3)
    ours.step()
    set_gradients(weights, 4, float("nan"))
    ours.step(scale(float("nan"), 1.0))
    assert all(weight.isfinite().all() for weight in weights)


TRAINING = """
import sys
from weft.__main__ import start
sys.argv = ["weft", "train", "run.toml"]
try:
    start()
finally:
    print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


@pytest.mark.parametrize("optimizer", ["muon", "sgd"])
def test_training_does_not_import_the_compiler(tmp_path, optimizer):
    """It takes as long as the rest of torch."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 50)
    (tmp_path / "run.toml").write_text(
        'task = "lm"\n[data]\ntrain = "text.txt"\n[model]\narch = "gpt"\nnum_layers = 1\nhidden_size = 16\nnum_heads = 2\n'
        f'[train]\noptimizer = "{optimizer}"\nmax_steps = 2\n'
    )
    result = subprocess.run([sys.executable, "-c", TRAINING], cwd=tmp_path, capture_output=True, text=True)
    assert "Run saved to" in result.stderr, result.stderr
    assert result.stdout.endswith("[]\n")
