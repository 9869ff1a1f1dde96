"""The recurrence of minGRU and minLSTM: fast forms equal the loop over positions, in values and gradients."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from weft.nn import scan
from weft.nn.min_rnn import MAX_TIME, MIN_TIME, MinGRU, MinLSTM
from weft.nn.scan import gated_scan, gates_and_candidates, linear_scan, scan_by_loop

DIM = 5
gates = pytest.mark.parametrize("num_gates", [1, 2])


def inputs(length: int, num_gates: int, *, dtype: torch.dtype = torch.float32, rows: int = 3) -> tuple[Tensor, Tensor]:
    """Logits from -12 to 12, some gates shut and some open, and a state."""
    generator = torch.Generator().manual_seed(length)
    projected = 4 * torch.randn(rows, length, (num_gates + 1) * DIM, generator=generator, dtype=dtype)
    projected[0, :, 0], projected[1, :, 1] = -200.0, 200.0
    return projected, torch.randn(rows, DIM, generator=generator, dtype=dtype)


def value_and_gradients(function, projected: Tensor, initial: Tensor, num_gates: int) -> list[Tensor]:
    leaves = [part.detach().requires_grad_() for part in (projected, initial)]
    y = function(*leaves, num_gates)
    probe = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    return [y.detach(), *torch.autograd.grad((y * probe).sum(), leaves)]


@pytest.fixture(params=["loop", "chunks"])
def form(request, monkeypatch) -> str:
    """Both ways in which torch computes the recurrence, whatever the sizes."""
    monkeypatch.setattr(scan, "is_chunked", lambda length, width: request.param == "chunks")
    return request.param


@gates
@pytest.mark.parametrize("length", [2, 3, 4, 10, 36, 131])
def test_values_and_gradients_equal_those_of_the_loop(form, num_gates, length):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        arguments = (*inputs(length, num_gates, dtype=dtype), num_gates)
        expected = value_and_gradients(scan_by_loop, *arguments)
        for part, wanted in zip(value_and_gradients(gated_scan, *arguments), expected, strict=True):
            assert part.dtype == dtype
            torch.testing.assert_close(part, wanted, atol=tolerance, rtol=tolerance)


@gates
def test_gradients_equal_numerical_ones(form, num_gates):
    projected, initial = (part.requires_grad_() for part in inputs(11, num_gates, dtype=torch.float64, rows=2))
    assert torch.autograd.gradcheck(lambda *parts: gated_scan(*parts, num_gates), (projected, initial))
    assert torch.autograd.gradcheck(lambda part: gated_scan(part, None, num_gates), (projected,))


def test_the_loop_is_the_recurrence():
    """Numbers worked out by hand: half of the old and half of the new, then all of the new, then nothing of it."""
    logits, candidates = torch.tensor([0.0, 200.0, -200.0]), torch.tensor([4.0, 6.0, 8.0])
    projected = torch.stack([logits, candidates], dim=-1)[None]
    for function in (scan_by_loop, gated_scan):
        assert function(projected, torch.tensor([[2.0]]), 1).flatten().tolist() == [3.0, 6.0, 6.0]
    equal = torch.tensor([[[0.0, 0.0, 4.0], [-200.0, -200.0, 7.0]]])  # two gates of one size: half and half, however small
    for function in (scan_by_loop, gated_scan):
        assert function(equal, torch.tensor([[2.0]]), 2).flatten().tolist() == [3.0, 5.0]


@gates
def test_gates_that_are_all_shut_or_open_keep_values_and_gradients_finite(form, num_gates):
    for logit in (-1e4, 1e4):
        projected, initial = inputs(40, num_gates)
        projected[..., : num_gates * DIM] = logit
        parts = value_and_gradients(gated_scan, projected, initial, num_gates)
        assert all(torch.isfinite(part).all() for part in parts)
    _, update, _ = gates_and_candidates(projected, num_gates)
    assert update.unique().tolist() == ([1.0] if num_gates == 1 else [0.5])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7, 16, 50])
def test_a_scan_in_reverse_is_a_scan_of_reversed_sequences(form, reverse, length):
    generator = torch.Generator().manual_seed(length)
    a, b = torch.rand(2, length, DIM, generator=generator), torch.randn(2, length, DIM, generator=generator)
    h, expected = (start := torch.randn(2, DIM, generator=generator)), []
    order = range(length)[::-1] if reverse else range(length)
    for t in order:
        h = a[:, t] * h + b[:, t]
        expected.append(h)
    y = torch.stack(expected[::-1] if reverse else expected, dim=1)
    torch.testing.assert_close(linear_scan(a, b, start, reverse=reverse), y)


def test_chunks_are_for_long_sequences_of_few_values(monkeypatch):
    calls = list[int]()
    real = scan._chunks
    monkeypatch.setattr(scan, "_chunks", lambda *parts, **options: calls.append(parts[0].a.size(1)) or real(*parts, **options))
    for rows, length in ((1, 128), (1, 127), (205, 128), (204, 520)):
        part = torch.rand(rows, length, DIM)
        linear_scan(part, part, part[:, 0])
    assert calls == [121]  # 11 chunks of 11 positions, then 7 more


@gates
def test_bfloat16_is_read_but_the_recurrence_is_in_float32(num_gates):
    """A step of 1/1000 of the state is smaller than bfloat16 resolves."""
    projected = torch.zeros(1, 64, (num_gates + 1) * DIM, dtype=torch.bfloat16)
    projected[..., (num_gates - 1) * DIM : num_gates * DIM] = -7.0  # of the update gate, or the input gate
    projected[..., num_gates * DIM :] = 1.0
    y, grad, _ = value_and_gradients(gated_scan, projected, torch.full((1, DIM), 256.0), num_gates)
    assert (y.dtype, grad.dtype) == (torch.float32, torch.bfloat16)
    exact = gated_scan(projected.double(), torch.full((1, DIM), 256.0, dtype=torch.double), num_gates)
    torch.testing.assert_close(y.double(), exact, atol=1e-3, rtol=1e-5)
    assert y[0, -1, 0] < 250


@pytest.mark.parametrize("build", [MinGRU, MinLSTM])
def test_time_constants_start_between_one_position_and_the_longest(build):
    torch.manual_seed(0)
    layer = build(512)
    projected = layer.input_proj.bias[None, None]
    _, update, _ = gates_and_candidates(projected, layer.num_gates)
    times = 1 / update.flatten()
    assert MIN_TIME * 0.99 < times.min() < 2 and MAX_TIME * 0.9 < times.max() < MAX_TIME * 1.01
    assert 3 < times.median() < 8


@pytest.mark.parametrize("build", [MinGRU, MinLSTM])
def test_the_state_stays_in_float32_under_autocast(build):
    layer, x = build(DIM), torch.randn(2, 6, DIM)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer(x)
        step, after = layer(x[:, :1], state)
    assert {part.dtype for part in (y, state, step, after)} == {torch.float32}
    half = layer.bfloat16()
    y, state = half(x.bfloat16())
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("build", [MinGRU, MinLSTM])
def test_a_compiled_layer_is_one_graph_and_equals_the_layer(build):
    torch.manual_seed(0)
    layer, x, state = build(DIM), torch.randn(2, 9, DIM, requires_grad=True), torch.randn(2, DIM)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for arguments in ((x,), (x, state)):
        results = []
        for function in (layer, compiled):
            y, last = function(*arguments)
            loss = y.square().sum() + last.sum()
            results.append([y, last, *torch.autograd.grad(loss, (x, *layer.parameters()))])
        torch.testing.assert_close(results[1], results[0])


def test_the_operator_is_registered_as_torch_asks():
    projected, initial = inputs(6, 2)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(scan._scan_operator, (projected.requires_grad_(), initial.requires_grad_(), 2), test_utils=checks)


def test_a_plain_call_does_not_import_the_compiler():
    code = """
import sys, torch
from weft.nn.min_rnn import MinGRU
MinGRU(4)(torch.randn(2, 5, 4))[0].sum().backward()
print("torch._dynamo" in sys.modules, "triton" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
