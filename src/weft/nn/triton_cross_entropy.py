"""The kernel of `fused_cross_entropy.py` for a GPU: each program takes one position through the vocabulary twice.

The first pass reads its logits from memory, the second from the cache, as far as they still are there: few programs run at the
same time, those with many warps, the second pass begins with what was read last, and the cache is told what is read again.
Numbers are in float32 whatever the type of the logits is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Launch(NamedTuple):
    """How the kernel is started: logits per iteration, and warps per program."""

    block: int = 4096
    warps: int = 16


DEFAULT = Launch()
FIXED_CAP = 40.0  # up to this soft cap, logits need no maximum: exp(-2 * 40) is still a number in float32


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))  # the one of the library takes several times as long


@triton.jit  # type: ignore[untyped-decorator]
def _loss_and_gradient(  # type: ignore[no-untyped-def]
    logits, labels, loss, vocab_size, smoothing, cap,
    HAS_CAP: tl.constexpr, IS_FIXED: tl.constexpr, SMOOTHS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocab_size
    label = tl.load(labels + row)
    target = tl.load(logits + label).to(tl.float32)
    inverse = 1.0
    if HAS_CAP:
        inverse = 1.0 / cap
        target = cap * _tanh(target * inverse)
    highest = -1e30
    if IS_FIXED:
        highest = cap
    total = tl.zeros([BLOCK], tl.float32)
    sum_of_logits = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, vocab_size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < vocab_size
        x = tl.load(logits + columns, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if HAS_CAP:
            x = cap * _tanh(x * inverse)
        if SMOOTHS:
            sum_of_logits += tl.where(mask, x, 0.0)
        x = tl.where(mask, x, float("-inf"))
        if IS_FIXED:
            total += tl.exp(x - highest)
        else:  # one maximum for all lanes: with one each, every logit would need two exponentials
            higher = tl.maximum(highest, tl.max(x, 0))
            total = total * tl.exp(highest - higher) + tl.exp(x - higher)
            highest = higher
    log_total = highest + tl.log(tl.sum(total, 0))
    value = log_total - (1.0 - smoothing) * target
    if SMOOTHS:
        value -= smoothing * tl.sum(sum_of_logits, 0) / vocab_size
    tl.store(loss + row, value)
    last = (vocab_size - 1) // BLOCK * BLOCK
    for start in tl.range(0, vocab_size, BLOCK):
        columns = last - start + tl.arange(0, BLOCK)
        mask = columns < vocab_size
        x = tl.load(logits + columns, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        slope = 1.0
        if HAS_CAP:
            x = _tanh(x * inverse)
            slope = 1.0 - x * x
            x = cap * x
        gradient = tl.exp(x - log_total) - tl.where(columns == label, 1.0 - smoothing, 0.0)
        if SMOOTHS:
            gradient -= smoothing / vocab_size
        tl.store(logits + columns, gradient * slope, mask=mask, eviction_policy="evict_first")


def loss_and_gradient(
    logits: Tensor, labels: Tensor, label_smoothing: float, logit_softcap: float, launch: Launch = DEFAULT
) -> Tensor:
    """The loss of each position, (N,); logits (N, V), labels (N,). The logits become the gradients of the losses."""
    rows, vocab_size = logits.shape
    loss = torch.empty(rows, device=logits.device)
    block = min(launch.block, triton.next_power_of_2(vocab_size))
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]
        _loss_and_gradient[rows,](
            logits, labels, loss, vocab_size, label_smoothing, logit_softcap,
            HAS_CAP=logit_softcap > 0, IS_FIXED=0 < logit_softcap <= FIXED_CAP, SMOOTHS=label_smoothing > 0,
            BLOCK=block, num_warps=launch.warps,
        )  # fmt: skip
    return loss


def probe() -> None:
    """Compile and run the kernel once, so that a missing compiler is found before it is needed."""
    loss_and_gradient(torch.zeros(1, 2, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda"), 0.0, 0.0)
