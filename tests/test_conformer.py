"""Conformer layers: their equation, padding, directions, and the option that selects them. tests/test_contracts.py has their
contracts as causal stacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor
from toy_models import DIM, enlarge_weights, stack_config

from weft.models.build import stack
from weft.nn.conformer import ConvModule
from weft.nn.stack import Stack

OPTIONS: dict[str, Any] = {"layer_type": "attention", "skip_connection": "residual", "norm": "layernorm"}


def conformer(kernel_size: int, *, bidirectional: bool, **options: Any) -> Stack:
    torch.manual_seed(0)
    config = stack_config(**OPTIONS, conv_kernel=kernel_size, bidirectional=bidirectional, **options)
    return enlarge_weights(stack(config, context_length=32)).eval()  # type: ignore[return-value]


def frames(rows: int, length: int) -> Tensor:
    return torch.randn(rows, length, DIM, generator=torch.Generator().manual_seed(length))


def linear(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / (var + 1e-5).sqrt() * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def depthwise(x: Tensor, weight: Tensor, bias: Tensor, *, before: int) -> Tensor:
    """y_t = b + sum_k w_k x_(t - before + k), frame by frame."""
    size, length = weight.size(2), x.size(1)
    rows = []
    for t in range(length):
        places = [t - before + k for k in range(size)]
        rows.append(bias + sum(weight[:, 0, k] * x[:, place] for k, place in enumerate(places) if 0 <= place < length))
    return torch.stack(rows, 1)


def written_out(model: Stack, x: Tensor, *, kernel_size: int, bidirectional: bool) -> Tensor:
    """The equation of the paper (section 2.4), with the layer norm in the convolution:

    x + FFN/2, x + attention, x + conv, layernorm(x + FFN/2), each sublayer of layernorm(x)."""
    weights = dict(model.state_dict())
    for layer in range(2):
        first, attention, conv, second = (f"layers.{4 * layer + part}" for part in range(4))

        def half_step(x: Tensor, name: str) -> Tensor:
            mixer: Any = model.get_submodule(f"{name}.mixer.sublayer")
            return x + 0.5 * mixer(layer_norm(x, weights, f"{name}.norm"), (), None)[0]

        x = half_step(x, first)
        mixer: Any = model.get_submodule(f"{attention}.mixer")
        x = x + mixer(layer_norm(x, weights, f"{attention}.norm"))[0]
        a, b = linear(layer_norm(x, weights, f"{conv}.norm"), weights, f"{conv}.mixer.up_proj").chunk(2, -1)
        y = a * torch.sigmoid(b)
        before = (kernel_size - 1) // 2 if bidirectional else kernel_size - 1
        name = f"{conv}.mixer.depthwise"
        y = layer_norm(
            depthwise(y, weights[f"{name}.weight"], weights[f"{name}.bias"], before=before), weights, f"{conv}.mixer.norm"
        )
        x = x + linear(y * torch.sigmoid(y), weights, f"{conv}.mixer.to_out")
        x = layer_norm(half_step(x, second), weights, f"{second}.connection.norm")
    return layer_norm(x, weights, "final_norm")


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kernel_size", [1, 3, 4, 15])
def test_a_layer_equals_its_equation(kernel_size, bidirectional):
    model, x = conformer(kernel_size, bidirectional=bidirectional), frames(2, 9)
    expected = written_out(model, x, kernel_size=kernel_size, bidirectional=bidirectional)
    torch.testing.assert_close(model(x)[0], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kernel_size", [3, 4])
def test_padding_changes_nothing_in_two_directions(kernel_size):
    model, x = conformer(kernel_size, bidirectional=True), frames(2, 9)
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    y, _ = model(torch.where(mask[..., None], x, 50.0), None, mask)
    for row, length in enumerate((9, 5)):
        torch.testing.assert_close(y[row, :length], model(x[row : row + 1, :length])[0][0], atol=1e-5, rtol=1e-4)


def test_two_directions_see_both_sides_and_one_sees_the_past():
    for bidirectional, sees in ((False, [True, True, True, False, False]), (True, [True] * 5)):
        x = frames(1, 5).requires_grad_()
        conformer(3, bidirectional=bidirectional)(x)[0][:, 2].sum().backward()
        assert (x.grad[0].abs().sum(1) > 0).tolist() == sees


def test_two_directions_refuse_a_state():
    x = frames(1, 5)
    with pytest.raises(ValueError, match="need the whole sequence at once"):
        ConvModule(DIM, kernel_size=3, causal=False)(x, torch.zeros(1, 2, DIM))
    model = conformer(3, bidirectional=True)
    with pytest.raises(ValueError):
        model(x, model(x)[1])


def test_the_state_is_the_last_inputs_of_each_row():
    """A row that is shorter than the kernel keeps zeros from before its start."""
    conv, x = ConvModule(DIM, kernel_size=4, causal=True), frames(2, 5)
    _, state = conv(x, None, torch.arange(5) < torch.tensor([[5], [2]]))
    inputs = F.glu(conv.up_proj(x))
    torch.testing.assert_close(state[0], inputs[0, 2:])
    torch.testing.assert_close(state[1], torch.cat([torch.zeros(1, DIM), inputs[1, :2]]))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"layer_type": "lstm"}, "not used with layer_type 'lstm'"),
        ({"skip_connection": "none"}, "requires skip_connection 'residual'"),
        ({"skip_connection": "highway"}, "requires skip_connection 'residual'"),
        ({"norm_position": "post"}, "norm_position 'pre'"),
        ({"ffn_dim": 0}, "a feed-forward sublayer"),
        ({"conv_kernel": 0}, "greater than or equal to 1"),
    ],
)
def test_combinations_that_are_no_conformer_are_refused(options, message):
    with pytest.raises(ValidationError) as caught:
        stack_config(**{**OPTIONS, "conv_kernel": 3, **options})
    assert message in str(caught.value)


def test_layers_of_a_conformer_have_one_index():
    assert [layer.layer_index for layer in conformer(3, bidirectional=True).layers] == [0] * 4 + [1] * 4  # type: ignore
