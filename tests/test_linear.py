"""Linear layers whose products oneDNN computes equal F.linear; on other processors and for small products they are F.linear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from weft.nn import linear as module
from weft.nn.linear import (
    OneDNNLinear,
    is_linear,
    product,
    transposed,
    uses_onednn,
    weight_gradient,
)
from weft.nn.linear_cross_entropy import linear_cross_entropy
from weft.nn.lora import LoRALinear

pytestmark = pytest.mark.skipif(not torch._C._has_mkldnn, reason="torch without oneDNN")


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product by oneDNN, on any processor, which is one before Zen 5."""
    monkeypatch.setattr(module, "prefers_onednn", lambda: True)
    monkeypatch.setattr(module, "is_twice_as_fast", lambda: False)
    monkeypatch.setattr(module, "MIN_MULTIPLICATIONS", 1)


@pytest.fixture(params=["before Zen 5", "Zen 5"])
def processor(request: pytest.FixtureRequest, onednn: None, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "is_twice_as_fast", lambda: request.param == "Zen 5")
    return str(request.param)


def results(x: Tensor, layer: nn.Linear, grad: Tensor) -> list[Tensor]:
    """The output of a layer, and the gradients of its input and its weights."""
    output = layer(x)
    return [output.detach(), *torch.autograd.grad(output, [x, *layer.parameters()], grad)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (33, 17), (3, 7, 17), (2, 3, 5, 48)])
def test_equals_torch(onednn: None, shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(1)
    layer = OneDNNLinear(shape[-1], 19, bias=bias)
    plain = nn.Linear(shape[-1], 19, bias=bias)
    plain.load_state_dict(layer.state_dict())
    grad = torch.randn(*shape[:-1], 19)
    inputs = (
        torch.randn(shape),
        torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2],
        torch.randn(shape[::-1]).permute(*range(len(shape))[::-1]),
    )
    for x in inputs:  # contiguous, with gaps, and transposed
        assert uses_onednn(x, layer.weight)
        first, second, expected = (results(x.detach().requires_grad_(), each, grad) for each in (layer, layer, plain))
        torch.testing.assert_close(first, expected)
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("shape", [(96, 32), (32, 96), (48, 48)])
@pytest.mark.parametrize("max_copied", [0.0, float("inf")])
def test_any_layout_of_gradients_and_inputs(
    onednn: None, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], max_copied: float
) -> None:
    monkeypatch.setattr(module, "MAX_COPIED", max_copied)
    torch.manual_seed(1)
    num_outputs, num_inputs = shape
    grads = (torch.randn(64, num_outputs), torch.randn(num_outputs, 64).t(), torch.randn(64, 2 * num_outputs)[:, :num_outputs])
    repeated = (torch.randn(()).expand(64, num_outputs), torch.randn(64, 1).expand(64, num_outputs))
    inputs = (torch.randn(64, num_inputs), torch.randn(num_inputs, 64).t(), torch.randn(64, 2 * num_inputs)[:, ::2])
    for grad in (*grads, *repeated):
        for x in inputs:
            gradient = weight_gradient(grad, x)
            torch.testing.assert_close(gradient, grad.t() @ x)
            assert gradient.is_contiguous()


@pytest.fixture
def factors(onednn: None, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The second factors of the products that oneDNN computes."""
    given: list[Tensor] = []

    def noting(x: Tensor, weight: Tensor, *args: Any) -> Tensor:
        given.append(weight)
        return F.linear(x, weight)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", noting)
    return given


def test_a_factor_with_gaps_is_copied(factors: list[Tensor]) -> None:
    x, wide, part = torch.randn(8, 6), torch.randn(8, 4), torch.randn(8, 12)[:, :6]
    torch.testing.assert_close(weight_gradient(wide, part), wide.t() @ part)
    torch.testing.assert_close(weight_gradient(wide, torch.ones(()).expand(8, 6)), wide.t() @ torch.ones(8, 6))
    torch.testing.assert_close(product(x, torch.ones(()).expand(4, 6)), x @ torch.ones(6, 4))
    assert len(factors) == 3 and all(factor.is_contiguous() or factor.t().is_contiguous() for factor in factors)
    weight = torch.randn(6, 4)
    product(x, weight.t())
    assert factors[-1].data_ptr() == weight.data_ptr()


@pytest.mark.parametrize(
    ("num_rows", "num_outputs", "num_inputs", "second_factor"),
    [(960, 256, 1024, "inputs"), (960, 256, 256, "inputs"), (256, 8000, 256, "inputs"), (640, 8000, 256, "gradients")],
)
def test_gradients_of_weights_copy_the_smaller_factor(
    factors: list[Tensor], num_rows: int, num_outputs: int, num_inputs: int, second_factor: str
) -> None:
    """The one that is copied is the first; of tall weights and many rows, the transpose is computed."""
    grad, x = torch.randn(num_rows, num_outputs), torch.randn(num_rows, num_inputs)
    gradient = weight_gradient(grad, x)
    torch.testing.assert_close(gradient, grad.t() @ x, atol=1e-3, rtol=1e-4)
    assert [factor.data_ptr() for factor in factors] == [{"inputs": x, "gradients": grad}[second_factor].data_ptr()]
    assert gradient.is_contiguous()


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (7, 1), (1, 7), (0, 3), (3, 0), (33, 17), (130, 64)])
def test_transposed(shape: tuple[int, int]) -> None:
    matrices = torch.randn(shape), torch.randn(shape[::-1]).t(), torch.randn(shape[0], 2 * shape[1])[:, ::2]
    for x in (*matrices, torch.randn(shape[0], 1).expand(shape), torch.randn(()).expand(shape)):
        y = transposed(x)
        assert torch.equal(y, x.t()) and y.is_contiguous()


def test_repeated_shapes_go_to_onednn_earlier_where_it_is_twice_as_fast(
    processor: str, factors: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_MULTIPLICATIONS", 100)
    monkeypatch.setattr(module, "MIN_REPEATED", 10)
    x, weight = torch.randn(2, 3), torch.randn(4, 3)
    product(x, weight)
    product(x[:1], weight[:3], repeats=True)
    assert not factors
    product(x, weight, repeats=True)
    assert len(factors) == (processor == "Zen 5")


def test_without_gradients_only_where_it_is_twice_as_fast(processor: str, factors: list[Tensor]) -> None:
    layer, x = OneDNNLinear(8, 4, bias=False).eval(), torch.randn(5, 8)
    layer(x)
    assert not factors  # gradients could be asked for
    with torch.no_grad():
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight))
    assert len(factors) == (processor == "Zen 5")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert len(factors) == (processor == "Zen 5")


def test_any_layout_of_a_bias(onednn: None) -> None:
    x, weight = torch.randn(8, 6), torch.randn(4, 6)
    for bias in (torch.randn(()).expand(4), torch.randn(8)[::2]):
        torch.testing.assert_close(product(x, weight, bias), F.linear(x, weight, bias))


def test_frozen_weights_and_inputs_get_no_gradient(onednn: None) -> None:
    layer, x = OneDNNLinear(8, 4), torch.randn(5, 8)
    layer(x).sum().backward()
    assert layer.weight.grad is not None and layer.bias.grad is not None and x.grad is None
    layer.zero_grad()
    layer.requires_grad_(False)
    layer(x.requires_grad_()).sum().backward()
    assert layer.weight.grad is None and layer.bias.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(5, 8))


def test_cross_entropy_by_onednn(onednn: None) -> None:
    torch.manual_seed(1)
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((21, 16), (50, 16), (50,)))
    labels = torch.randint(50, (21,))
    losses = (
        linear_cross_entropy(x, weight, bias, labels, 0.1),
        F.cross_entropy(F.linear(x, weight, bias), labels, reduction="none", label_smoothing=0.1),
    )
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss.sum(), [x, weight, bias]) for loss in losses))


def test_other_dtypes_autocast_and_compiled_code_are_left_to_torch(onednn: None) -> None:
    for dtype in (torch.bfloat16, torch.float64):
        layer, x = OneDNNLinear(8, 4, dtype=dtype), torch.randn(5, 8, dtype=dtype)
        assert not uses_onednn(x, layer.weight) and torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    compiled = torch.compile(OneDNNLinear(8, 4), backend="eager", fullgraph=True)
    assert compiled(torch.randn(5, 8)).shape == (5, 4)
    with torch.no_grad():
        assert compiled(torch.randn(5, 8)).shape == (5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert OneDNNLinear(8, 4)(torch.randn(5, 8)).dtype == torch.bfloat16


AMD, INTEL = "vendor_id\t: AuthenticAMD\ncpu family\t: {}\nmodel\t\t: 2\n", "vendor_id\t: GenuineIntel\ncpu family\t: 26\n"


@pytest.mark.parametrize(
    ("text", "capability", "prefers", "is_twice"),
    [
        (AMD.format(23), "AVX2", True, False),
        (AMD.format(25), "AVX512", True, False),
        (AMD.format(26), "AVX512", True, True),
        (AMD.format(26), "AVX2", True, False),
        (AMD.format(26), "DEFAULT", False, False),
        (INTEL, "AVX512", False, False),
        (None, "AVX512", False, False),
    ],
)
def test_the_choice_depends_on_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, capability: str, prefers: bool, is_twice: bool
) -> None:
    cpu_info = tmp_path / "cpuinfo"
    if text is not None:
        cpu_info.write_text(f"processor\t: 0\n{text}")
    monkeypatch.setattr(module, "CPU_INFO", cpu_info)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch._C, "has_mkl", True)
    for name in ("amd_family", "prefers_onednn", "is_twice_as_fast"):
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)
    assert (module.prefers_onednn(), module.is_twice_as_fast()) == (prefers, is_twice)


def test_the_choice_depends_on_the_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.empty(1024, 512), torch.empty(512, 512)
    for prefers in (True, False):
        monkeypatch.setattr(module, "prefers_onednn", lambda prefers=prefers: prefers)
        assert uses_onednn(x, weight) is prefers and not uses_onednn(x[:64], weight)
    assert product(x, weight).shape == (1024, 512)


def test_transformed_traced_and_counted_layers_are_left_to_torch(
    processor: str, factors: list[Tensor], recwarn: pytest.WarningsRecorder
) -> None:
    """torch knows no rules for products of oneDNN."""
    layer, x = OneDNNLinear(8, 4).eval(), torch.randn(5, 8)
    with torch.no_grad():
        expected = F.linear(x, layer.weight, layer.bias)
        assert torch.vmap(layer)(x.expand(3, 5, 8)).shape == (3, 5, 4)
        torch.testing.assert_close(torch.func.jvp(layer, (x,), (x,))[1], x @ layer.weight.t())
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, x))).tangent
            torch.testing.assert_close(tangent, x @ layer.weight.t())
        torch.testing.assert_close(torch.jit.trace(layer, x, check_trace=False)(x), expected)  # type: ignore[no-untyped-call]
        with FlopCounterMode(display=False) as counter:
            layer(x)
        assert counter.get_total_flops() == 2 * 5 * 8 * 4
    assert not factors
    recwarn.clear()  # torch.jit is deprecated


def test_is_linear() -> None:
    assert is_linear(OneDNNLinear(2, 2)) and is_linear(nn.Linear(2, 2))
    assert not is_linear(LoRALinear(OneDNNLinear(2, 2), 1)) and not is_linear(nn.Identity())
