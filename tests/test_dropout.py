"""Dropout with masks from random integers: the distribution of torch's, and its gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.dropout import MIN_ELEMENTS, IntegerDropout
from weft.nn.skip_connections import Connection, PostNormResidual, Residual
from weft.nn.stack import Layer


@pytest.mark.parametrize("prob", [0.1, 0.5, 0.999])
@pytest.mark.parametrize("shape", [(256, 1024), (3, 7, 12_485)])  # the second is no multiple of four
def test_distribution(prob: float, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    x = torch.ones(shape, requires_grad=True)
    y = IntegerDropout(prob)(x)
    kept = y > 0
    num_kept, expected = int(kept.sum()), (1 - prob) * x.numel()
    assert abs(num_kept - expected) < 5 * (x.numel() * prob * (1 - prob)) ** 0.5
    torch.testing.assert_close(y[kept].mean().item(), 1 / (1 - prob), rtol=0.01, atol=0)  # probabilities are rounded
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], y)  # the output for ones is the mask
    # neighbors, some of them from one number of the generator, are independent
    both = (kept.flatten()[1:] & kept.flatten()[:-1]).float().mean().item()
    assert abs(both - (1 - prob) ** 2) < 0.01


def test_a_skip_connection_is_added() -> None:
    x, skip = (torch.randn(256, 1024, requires_grad=True) for _ in range(2))
    torch.manual_seed(1)
    dropped = IntegerDropout(0.3)(x)
    torch.manual_seed(1)
    y = IntegerDropout(0.3)(x, skip)
    torch.testing.assert_close(y, skip + dropped)
    upstream = torch.randn_like(y)
    expected = (torch.autograd.grad(dropped, x, upstream)[0], upstream)
    torch.testing.assert_close(torch.autograd.grad(y, (x, skip), upstream), expected)


class Constant(nn.Module):
    """A mixer whose output is one number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor, state: None, token_mask: None) -> tuple[Tensor, None]:
        return torch.full_like(x, self.value), None


@pytest.mark.parametrize("connection", [Residual(), PostNormResidual(nn.Identity())])
def test_a_layer_drops_the_output_of_its_mixer_alone(connection: Connection) -> None:
    x = torch.randn(64, 8, 128)
    layer = Layer(Constant(3.0), connection, norm=nn.Identity(), dropout=IntegerDropout(0.5))
    change = layer(x)[0] - x
    assert ((change.abs() < 1e-5) | ((change - 6.0).abs() < 1e-5)).all() and 2.9 < change.mean() < 3.1
    torch.testing.assert_close(layer.eval()(x)[0], x + 3.0)


@pytest.mark.parametrize("part", ["connection", "dropout"])
def test_hooks_see_the_output_of_dropout_and_the_sum(part: str) -> None:
    x, seen = torch.zeros(64, 8, 128), list[Tensor]()
    layer = Layer(Constant(3.0), Residual(), norm=nn.Identity(), dropout=IntegerDropout(0.5))
    layer.get_submodule(part).register_forward_hook(lambda module, inputs, output: seen.extend((inputs[-1], output)))
    y, _ = layer(x + 1.0)
    dropped, expected = torch.full_like(x, 3.0), y - 1.0
    torch.testing.assert_close(seen, [dropped, expected] if part == "dropout" else [expected, y])


@pytest.mark.parametrize("part", ["connection", "dropout"])
def test_hooks_before_the_backward_pass_are_called(part: str) -> None:
    x, calls = torch.randn(64, 8, 128, requires_grad=True), list[object]()
    layer = Layer(nn.Identity(), Residual(), norm=nn.Identity(), dropout=IntegerDropout(0.5))
    layer.mixer.forward = lambda x, state, token_mask: (3.0 * x, None)  # type: ignore[method-assign]
    layer.get_submodule(part).register_full_backward_pre_hook(lambda module, outputs: calls.append(outputs))
    layer(x)[0].sum().backward()
    assert len(calls) == 1


@pytest.mark.parametrize("part", ["connection", "dropout"])
def test_backward_hooks_see_the_gradients_of_dropout_and_the_sum(part: str) -> None:
    x, seen = torch.zeros(64, 8, 128, requires_grad=True), list[Tensor]()
    layer = Layer(nn.Identity(), Residual(), norm=nn.Identity(), dropout=IntegerDropout(0.5))
    layer.mixer.forward = lambda x, state, token_mask: (3.0 * x, None)  # type: ignore[method-assign]
    layer.get_submodule(part).register_full_backward_hook(lambda module, inputs, outputs: seen.append(inputs[-1]))
    layer(x)[0].sum().backward()
    of_dropout = (x.grad - 1.0) / 3.0  # type: ignore[operator]
    torch.testing.assert_close(seen, [of_dropout if part == "dropout" else torch.ones_like(x)])


@pytest.mark.parametrize(("shape", "dtype"), [((1, 1024), torch.float32), ((256, 1024), torch.bfloat16)])
def test_a_skip_connection_of_another_kind_is_added(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, skip = torch.randn(256, 1024), torch.randn(shape, dtype=dtype)
    torch.manual_seed(1)
    expected = skip + F.dropout(x, 0.3)
    torch.manual_seed(1)
    assert torch.equal(IntegerDropout(0.3)(x, skip), expected)


def test_small_inputs_and_other_dtypes_are_left_to_torch() -> None:
    for x in (torch.ones(MIN_ELEMENTS - 1), torch.ones(MIN_ELEMENTS, dtype=torch.float64)):
        outputs = []
        for function in (IntegerDropout(0.3), lambda x: F.dropout(x, 0.3)):
            torch.manual_seed(1)
            outputs.append(function(x))
        assert torch.equal(*outputs)


def test_without_training_and_at_the_ends() -> None:
    x = torch.randn(MIN_ELEMENTS)
    assert torch.equal(IntegerDropout(0.5).eval()(x), x) and torch.equal(IntegerDropout(0.0)(x), x)
    assert torch.equal(IntegerDropout(1.0)(x), torch.zeros_like(x))
    torch.manual_seed(1)
    first = IntegerDropout(0.5)(x)
    torch.manual_seed(1)
    assert torch.equal(IntegerDropout(0.5)(x), first)
