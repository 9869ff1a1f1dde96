"""The loss of a large vocabulary, for gpu_recurrent.py."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import torch
from _gpu_bench import Bench, constant
from torch import Tensor, nn

from weft.nn.chunked_cross_entropy import Options, chunked_cross_entropy
from weft.nn.fused_cross_entropy import fused_cross_entropy
from weft.nn.lm_head import LMHead


def measure_loss(bench: Bench) -> None:
    """Output layer and loss, forward and backward: plain, compiled, in chunks and fused."""
    size, options = bench.size, Options(dtype=torch.bfloat16)
    head = LMHead(size.loss_dim, size.loss_vocab_size, bias=False).to(bench.device)
    x = torch.randn(size.loss_positions, size.loss_dim, device=bench.device, requires_grad=True)
    labels = torch.randint(0, size.loss_vocab_size, (size.loss_positions,), device=bench.device)

    def plain() -> Tensor:
        return nn.functional.cross_entropy(head.logits(x), labels)

    def chunked() -> Tensor:
        return chunked_cross_entropy(x, head.weight, head.bias, labels, options).mean()

    def fused() -> Tensor:
        return fused_cross_entropy(x, head.weight, head.bias, labels, options).mean()

    def gradients(function: Callable[[], Tensor]) -> list[Tensor]:
        with bench.autocast():
            loss = function()
        return [loss.detach(), *torch.autograd.grad(loss, [x, head.weight])]

    expected, actual = gradients(plain), gradients(fused)
    errors = [((a - b).norm() / b.norm()).item() for a, b in zip(actual, expected, strict=True)]
    names = ("loss", "gradient of the inputs", "of the weights")
    print("  fused against plain: " + ", ".join(f"{name} {error:.1e}" for name, error in zip(names, errors, strict=True)))
    backend = "inductor" if bench.device.type == "cuda" else "aot_eager"
    for name, function in (
        ("plain", plain),
        ("plain, compiled", torch.compile(plain, backend=backend)),
        ("in chunks", chunked),
        ("fused", fused),
    ):
        bench.measure(f"loss, {name}", constant(partial(gradients, function)))
        if bench.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            gradients(function)
            print(f"    peak memory {(torch.cuda.max_memory_allocated() - before) / 2**30:.2f} GiB", flush=True)
    if bench.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        measure_kernel(bench)


def measure_kernel(bench: Bench) -> None:
    """The kernel of the fused loss alone, without and with a soft cap, for several ways to start it."""
    from weft.nn.triton_cross_entropy import Launch, loss_and_gradient

    size = bench.size
    logits = torch.randn(size.loss_positions, size.loss_vocab_size, device=bench.device, dtype=torch.bfloat16)
    labels = torch.randint(0, size.loss_vocab_size, (size.loss_positions,), device=bench.device)
    for cap in (0.0, 15.0):
        for launch in (Launch(), Launch(4096, 8), Launch(4096, 16), Launch(8192, 32), Launch(16384, 32)):
            work = partial(loss_and_gradient, logits, labels, 0.0, cap, launch)
            name = f"kernel, soft cap {cap:g}, {launch.block} logits, {launch.warps} warps"
            bench.measure(name, constant(work), 2 * logits.nbytes)
