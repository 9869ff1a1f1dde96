"""What torch.compile compiles, and how: all decisions are here.

The whole model as one graph gives the fastest steps, but takes the compiler longest: it sees each layer once more. A layer as a
graph of its own is compiled once and serves all layers that are equal to it. A short training whose steps are recorded
(`cuda_graphs.py`) is over before a compiler has paid for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.nn import fused_cross_entropy
from weft.nn.kernels import recorded_kernels
from weft.nn.stack import HasRegion
from weft.training.loop import Loop
from weft.training.muon import Muon, scaled_update

BACKEND: Any = "inductor"  # of torch.compile
# with fewer steps, and fewer parameters, nothing is compiled if steps are recorded: 10 to 20 s are more than what 2,000 steps
# gain (6 layers of 384, H200: 8.1 instead of 15.9 ms with `gpt`, 5.9 instead of 8.2 ms with `transformer`)
RECORDED_STEPS, RECORDED_PARAMETERS = 2000, 50_000_000
MODEL_STEPS = 10_000  # from this many steps on, the whole model is compiled: they make up for half a minute
MAX_GRAPHS = 64  # per function: all layers share one, also those of earlier trainings in this process; torch allows 8
# from this many steps on, recorded steps that are not compiled use kernels of weft: Triton compiles them once on each machine,
# which takes seconds
KERNEL_STEPS = 500
MUON_PARAMETERS = 32_000_000  # of matrices, from which Muon is compiled: below, its kernels take less than a millisecond

HOPPER = (9, 0)  # compute capability from which cuDNN's attention is preferred; it plans each new shape for 15 ms
KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Compilation(NamedTuple):
    """What is compiled."""

    unit: Literal["model", "layer", "nothing"]
    muon: bool
    has_equal_shapes: bool  # whether all batches have the same shape
    kernels: bool = False  # whether kernels of weft take the place of a compiler, in recorded steps


def plan(loop: Loop, *, has_equal_shapes: bool, is_recorded: bool) -> Compilation:
    """What to compile for a training."""
    num_parameters = sum(weight.numel() for weight in loop.optimizers.weights)
    num_steps = loop.total_steps() or RECORDED_STEPS
    if is_recorded and num_steps < RECORDED_STEPS and num_parameters < RECORDED_PARAMETERS:
        return Compilation("nothing", False, has_equal_shapes, kernels=num_steps >= KERNEL_STEPS)
    # experts record their load while they compute, and a layer whose state is read cannot be compiled without it
    is_divisible = has_equal_shapes and loop.batch_sampler.resets_state(1) and not loop.loss_module.expert_layers
    is_short = (loop.total_steps() or 0) < MODEL_STEPS
    by_layer = is_divisible and is_short and not loop.config.activation_checkpointing
    weights = [weight for each in _muons(loop) for group in each.groups for weight in group.weights]
    compiles_muon = sum(weight.numel() for weight in weights) >= MUON_PARAMETERS
    return Compilation("layer" if by_layer else "model", compiles_muon, has_equal_shapes)


def compile_training(loop: Loop, compilation: Compilation) -> None:
    """Compile in place: weights and modules keep their names."""
    dynamic, loss_module = False if compilation.has_equal_shapes else None, loop.loss_module
    if compilation.unit != "nothing" or compilation.muon:
        import torch._dynamo as dynamo  # takes seconds

        dynamo.config.recompile_limit = MAX_GRAPHS
    if compilation.unit == "model":
        loss_module.compile(backend=BACKEND, dynamic=dynamic)
    elif compilation.unit == "layer":
        compiler = partial(torch.compile, backend=BACKEND, dynamic=dynamic)
        for module in loss_module.model.modules():
            if isinstance(module, HasRegion):
                module.compile_region(compiler)
    if compilation.muon:
        for muon in _muons(loop):
            muon.scaled_update = torch.compile(scaled_update, backend=BACKEND, dynamic=False)
    loop.kernels = partial(forward_kernels, _kernel_contexts(loop, compilation))


@contextmanager
def forward_kernels(contexts: Sequence[Callable[[], AbstractContextManager[Any]]]) -> Iterator[None]:
    """Context manager of a forward pass in training: which kernels compute it."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context())
        yield


def attention_kernels() -> AbstractContextManager[Any]:
    return sdpa_kernel(KERNELS, set_priority=True)


def _kernel_contexts(loop: Loop, compilation: Compilation) -> list[Callable[[], AbstractContextManager[Any]]]:
    device, contexts = loop.device_config.device, list[Callable[[], AbstractContextManager[Any]]]()
    if device.type != "cuda":
        return contexts
    if compilation.has_equal_shapes and torch.cuda.get_device_capability(device) >= HOPPER:
        contexts.append(attention_kernels)
    if compilation.kernels and fused_cross_entropy.kernels() is not None:
        contexts.append(recorded_kernels)
    return contexts


def _muons(loop: Loop) -> list[Muon]:
    return [each for each in loop.optimizers.optimizers if isinstance(each, Muon)]
