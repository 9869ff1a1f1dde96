"""The float16 path of LSTMs. The kernel is cuDNN's on a GPU and torch's own here; what is around it is the same."""

from __future__ import annotations

import pytest
import torch

from weft.nn import recurrent
from weft.nn.persistent_lstm import has_persistent_kernel, run_persistent
from weft.nn.recurrent import LSTM

ROWS, LENGTH, INPUTS, DIM = 5, 7, 6, 128


@pytest.fixture
def lstm():
    torch.manual_seed(0)
    return LSTM(DIM, input_size=INPUTS)


def results(lstm, x, state, token_mask, scale=1.0, persistent=False):
    """Outputs, final state and gradients, all of a loss that is multiplied by `scale`."""
    x = x.clone().requires_grad_()
    state = tuple(part.clone().requires_grad_() for part in state)
    forward = lstm._forward_persistent if persistent else lstm._forward
    y, (h, c) = forward(x, state, token_mask)
    shown = y if token_mask is None else y * token_mask[..., None]
    loss = ((shown**2).sum() + (h * c).sum()) * scale
    gradients = torch.autograd.grad(loss, [x, *state, *lstm.parameters()])
    return [shown, h, c], [gradient / scale for gradient in gradients]


def batch(masked):
    torch.manual_seed(1)
    x, state = torch.randn(ROWS, LENGTH, INPUTS), (torch.randn(ROWS, DIM).tanh(), torch.randn(ROWS, DIM))
    lengths = torch.tensor([7, 3, 1, 0, 5])
    return x, state, torch.arange(LENGTH) < lengths[:, None] if masked else None


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e6])
def test_equals_float32_at_any_size_of_gradients(lstm, masked, scale):
    """In float16 alone, gradients of 1e-12 would be zero and those of 1e6 infinite."""
    expected, expected_gradients = results(lstm, *batch(masked), scale)
    actual, gradients = results(lstm, *batch(masked), scale, persistent=True)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert (ours - theirs).norm() < 5e-3 * theirs.norm()


def test_gradients_of_zero_and_not_finite_ones_stay_what_they_are(lstm):
    x, state, _ = batch(False)
    y, _ = lstm._forward_persistent(x, state, None)
    (zero,) = torch.autograd.grad(y.sum() * 0.0, [lstm.cell.weight_hh_l0])
    assert zero.count_nonzero() == 0
    y, _ = lstm._forward_persistent(x, state, None)
    (infinite,) = torch.autograd.grad(y.sum() * float("inf"), [lstm.cell.weight_hh_l0])
    assert not infinite.isfinite().all()  # the loop stops, as for other layers


def test_without_gradients_and_without_a_state(lstm):
    x, _, _ = batch(False)
    with torch.no_grad():
        expected, (h, c) = lstm._forward(x)
        y, (last_h, last_c) = run_without_state(lstm, x)
    torch.testing.assert_close(y, expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close((last_h, last_c), (h, c), rtol=2e-3, atol=2e-3)


def run_without_state(lstm, x):
    y, c = run_persistent(x, None, recurrent._drop_recurrent(lstm.cell, 0.0))
    return y, (y[:, -1], c)


def test_only_on_gpus():
    assert not has_persistent_kernel(torch.zeros(8, 2, 128), 128)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_under_autocast(lstm):
    lstm.cuda()
    x, state, mask = batch(True)
    x, state, mask = x.cuda(), tuple(part.cuda() for part in state), mask.cuda()
    expected, expected_gradients = results(lstm, x, state, mask)
    assert has_persistent_kernel(x, DIM)
    actual, gradients = results(lstm, x, state, mask, persistent=True)
    for ours, theirs in zip([*actual, *gradients], [*expected, *expected_gradients], strict=True):
        assert (ours - theirs).norm() < 5e-3 * theirs.norm()
