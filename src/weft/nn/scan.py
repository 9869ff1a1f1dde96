"""The recurrence of minGRU and minLSTM (Feng et al. 2024), whose gates depend on the input alone:

    h_t = (1 - z_t) * h_{t-1} + z_t * c_t,   z_t = sigmoid(u_t)

`scan_by_loop` is the definition. `gated_scan` computes the same for whole sequences, with its own backward pass: on a GPU by
the kernels in `triton_scan.py`, elsewhere by few operations of torch. Nothing is divided by a product of gates, so that no gate
is too close to 0 or 1. The recurrence is in float32 even if its inputs are in bfloat16.

Shapes: B batch size, T sequence length, D hidden size. `projected` (B, T, (n + 1) D) has the logits of n gates, then the
candidates c: u and c (n = 1, minGRU), or f, i and c (n = 2, minLSTM). In minLSTM the gates are divided by their sum:
z = i' / (f' + i'), where f' and i' are the sigmoids of f and i.
"""

from __future__ import annotations

from math import isqrt
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.nn.kernels import load_kernels

# A step of the loop over positions takes a few microseconds, however small its tensors are. Chunks take fewer steps, but pass
# through memory three times: on a CPU they are faster for long sequences of few values per position, as long as all fit into
# its cache (measured by benchmarks/scan_speed.py).
MIN_CHUNKED_LENGTH, MAX_CHUNKED_WIDTH, MAX_CHUNKED_VALUES = 128, 1024, 1 << 19


def scan_dtype(projected: Tensor) -> torch.dtype:
    """The type of the recurrence: at least float32."""
    return torch.promote_types(projected.dtype, torch.float32)


def update_logits(gates: Tensor, num_gates: int) -> Tensor:
    """The logits u of the weight of the candidate, (B, T, D), from the logits of one gate or two, (B, T, n D)."""
    if num_gates == 1:
        return gates
    forget, new = gates.chunk(2, dim=-1)
    return F.softplus(-forget) - F.softplus(-new)  # log f' = -softplus(-f), and i' / (f' + i') = sigmoid(log i' - log f')


def gates_and_candidates(projected: Tensor, num_gates: int) -> tuple[Tensor, Tensor, Tensor]:
    """The weights 1 - z of the old state and z of the candidates, and the candidates c, (B, T, D) each."""
    dim = projected.size(-1) // (num_gates + 1)
    gates, candidates = projected.to(scan_dtype(projected)).tensor_split((num_gates * dim,), dim=-1)
    logits = update_logits(gates, num_gates)
    return torch.sigmoid(-logits), torch.sigmoid(logits), candidates


def scan_by_loop(projected: Tensor, initial: Tensor, num_gates: int) -> Tensor:
    """h_1 to h_T, (B, T, D), position by position; projected (B, T, (n + 1) D), initial (B, D)."""
    keep, update, candidates = gates_and_candidates(projected, num_gates)
    h, outputs = initial.to(keep.dtype), []
    for t in range(projected.size(1)):
        h = keep[:, t] * h + update[:, t] * candidates[:, t]
        outputs.append(h)
    return torch.stack(outputs, dim=1)


def gated_scan(projected: Tensor, initial: Tensor | None, num_gates: int) -> Tensor:
    """The same as `scan_by_loop`, faster; `initial` is 0 by default."""
    dim = projected.size(-1) // (num_gates + 1)
    if initial is None:
        initial = projected.new_zeros(projected.size(0), dim, dtype=scan_dtype(projected))
    if projected.size(1) == 1:
        return scan_by_loop(projected, initial, num_gates)
    if torch.compiler.is_compiling():
        y: Tensor = _scan_operator(projected, initial, num_gates)
    else:
        y = _GatedScan.apply(projected, initial, num_gates)  # type: ignore[no-untyped-call]
    return y


# ---- the recurrence h_t = a_t h_{t-1} + b_t, in few operations of torch; they write into tensors and have no gradients


class Recurrence(NamedTuple):
    """a, b and room for the results y, (B, T, D) each."""

    a: Tensor
    b: Tensor
    y: Tensor


def is_chunked(length: int, width: int) -> bool:
    """Whether a CPU computes sequences of this length with this many values per position, of all rows, in chunks."""
    return length >= MIN_CHUNKED_LENGTH and width <= MAX_CHUNKED_WIDTH and length * width <= MAX_CHUNKED_VALUES


def linear_scan(a: Tensor, b: Tensor, initial: Tensor, *, reverse: bool = False) -> Tensor:
    """h_t = a_t h_{t-1} + b_t for all t, (B, T, D); in reverse, h_t = a_t h_{t+1} + b_t. a and b (B, T, D), initial (B, D)."""
    y, length = torch.empty_like(b), b.size(1)
    if not (b.is_cuda or is_chunked(length, b[:, 0].numel())):
        _loop(Recurrence(a, b, y), initial, reverse=reverse)
        return y
    size = isqrt(length)
    end = length - length % size  # the positions after it are no whole chunk
    whole, rest = Recurrence(a[:, :end], b[:, :end], y[:, :end]), Recurrence(a[:, end:], b[:, end:], y[:, end:])
    if reverse:
        _chunks(whole, _loop(rest, initial, reverse=True), size=size, reverse=True)
    else:
        _loop(rest, _chunks(whole, initial, size=size, reverse=False), reverse=False)
    return y


def _order(count: int, reverse: bool) -> range:
    return range(count - 1, -1, -1) if reverse else range(count)


def _loop(parts: Recurrence, h: Tensor, *, reverse: bool) -> Tensor:
    """Write all h into y, one operation per position; return the last."""
    decays, inputs, outputs = (part.unbind(1) for part in parts)
    for t in _order(len(outputs), reverse):
        torch.addcmul(inputs[t], decays[t], h, out=outputs[t])
        h = outputs[t]
    return h


def _chunks(parts: Recurrence, h: Tensor, *, size: int, reverse: bool) -> Tensor:
    """The same for T / `size` chunks: h of all chunks together, as if each began at 0, and the products of their a up to each
    position; then the states between chunks; then their sum. Products of numbers below 1 may vanish, with what they weigh."""
    a, b, y = (torch.unflatten(part, 1, (-1, size)) for part in parts)
    products = torch.empty_like(a)
    first = size - 1 if reverse else 0
    y[:, :, first], products[:, :, first] = b[:, :, first], a[:, :, first]
    before = first
    for t in _order(size, reverse)[1:]:
        torch.addcmul(b[:, :, t], a[:, :, t], y[:, :, before], out=y[:, :, t])
        torch.mul(products[:, :, before], a[:, :, t], out=products[:, :, t])
        before = t
    starts = torch.empty_like(y[:, :, before])
    for chunk in _order(starts.size(1), reverse):
        starts[:, chunk] = h
        h = torch.addcmul(y[:, chunk, before], products[:, chunk, before], h)
    y.addcmul_(products, starts[:, :, None])
    return h


# ---- forward and backward pass


def _forward(projected: Tensor, initial: Tensor, num_gates: int) -> Tensor:
    if projected.is_cuda and (kernels := load_kernels("triton_scan")) is not None:
        y: Tensor = kernels.forward(projected, initial, num_gates)
        return y
    keep, update, candidates = gates_and_candidates(projected, num_gates)
    return linear_scan(keep, update * candidates, initial.to(keep.dtype))


def _backward(grad: Tensor, projected: Tensor, initial: Tensor, y: Tensor, num_gates: int) -> tuple[Tensor, Tensor]:
    """The gradients of `projected` and `initial`.

    That of h_t is its own, and what h_{t+1} passes on: g_t = grad_t + (1 - z_{t+1}) g_{t+1}, a scan from the end.
    """
    if projected.is_cuda and (kernels := load_kernels("triton_scan")) is not None:
        gradients: tuple[Tensor, Tensor] = kernels.backward(grad, projected, initial, y, num_gates)
        return gradients
    keep, update, candidates = gates_and_candidates(projected, num_gates)
    decays = torch.cat([keep[:, 1:], torch.zeros_like(keep[:, :1])], dim=1)
    g = linear_scan(decays, grad.to(keep.dtype), torch.zeros_like(keep[:, 0]), reverse=True)
    before = torch.cat([initial.to(keep.dtype)[:, None], y[:, :-1]], dim=1)
    grad_logits = (candidates - before).mul_(g).mul_(update).mul_(keep)
    result = torch.empty_like(projected, memory_format=torch.contiguous_format)
    dim = y.size(-1)
    result[..., num_gates * dim :] = update.mul_(g)
    if num_gates == 1:
        result[..., :dim] = grad_logits
    else:  # u = softplus(-f) - softplus(-i)
        forget, new = projected[..., : 2 * dim].to(keep.dtype).chunk(2, dim=-1)
        result[..., :dim] = torch.sigmoid(-forget).mul_(grad_logits).neg_()
        result[..., dim : 2 * dim] = torch.sigmoid(-new).mul_(grad_logits)
    return result, (keep[:, 0] * g[:, 0]).to(initial.dtype)


class _GatedScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: Tensor, initial: Tensor, num_gates: int) -> Tensor:
        y = _forward(projected, initial, num_gates)
        ctx.save_for_backward(projected, initial, y)
        ctx.num_gates = num_gates
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        projected, initial, y = ctx.saved_tensors
        return *_backward(grad, projected, initial, y, ctx.num_gates), None


# ---- the same as operators: torch.compile sees one node in each pass. Only there, because the first call imports the compiler


@torch.library.custom_op("weft::gated_scan", mutates_args=())
def _scan_operator(projected: Tensor, initial: Tensor, num_gates: int) -> Tensor:
    return _forward(projected, initial, num_gates)


@_scan_operator.register_fake
def _scan_shape(projected: Tensor, initial: Tensor, num_gates: int) -> Tensor:
    rows, length, width = projected.shape
    return projected.new_empty(rows, length, width // (num_gates + 1), dtype=scan_dtype(projected))


@torch.library.custom_op("weft::gated_scan_backward", mutates_args=())
def _backward_operator(grad: Tensor, projected: Tensor, initial: Tensor, y: Tensor, num_gates: int) -> tuple[Tensor, Tensor]:
    return _backward(grad, projected, initial, y, num_gates)


@_backward_operator.register_fake
def _backward_shapes(grad: Tensor, projected: Tensor, initial: Tensor, y: Tensor, num_gates: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(projected, memory_format=torch.contiguous_format), torch.empty_like(initial)


def _save_for_backward(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    projected, initial, ctx.num_gates = inputs
    ctx.save_for_backward(projected, initial, output)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    return *_backward_operator(grad, *ctx.saved_tensors, ctx.num_gates), None


_scan_operator.register_autograd(_differentiate, setup_context=_save_for_backward)
