"""Record or replace the activations of named modules with forward hooks, so that models need no flags for it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from weft.errors import UsageError


@runtime_checkable
class HasAttentionWeights(Protocol):
    """A module that can recompute its attention weights."""

    @property
    def weights(self) -> Callable[..., Tensor]:
        """The function from the module's inputs to its attention weights."""


class Activation(NamedTuple):
    """One call of a module. Tensors are not copied or detached, so that gradients flow through them."""

    name: str
    inputs: tuple[Any, ...]  # in the order of the signature of forward, with defaults
    output: Any
    part: nn.Module


def _is_compiled(module: nn.Module) -> bool:
    """Whether a module was compiled in place or is the wrapper that torch.compile returns."""
    return module._compiled_call_impl is not None or any(child == "_orig_mod" for child, _ in module.named_children())


def _children(modules: Mapping[str, nn.Module], parent: str) -> str:
    """The names of the direct children of a module, for error messages."""
    names = [name.rpartition(".")[2] for name in modules if name and name.rpartition(".")[0] == parent]
    return ", ".join(names) or "no submodules"


def _find_module(model: nn.Module, name: str) -> nn.Module:
    """The module of that name; raises UsageError if hooks cannot record its calls."""
    modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    components = name.split(".") if name else []
    parent = ""
    for path in (".".join(components[:depth]) for depth in range(len(components) + 1)):
        if path not in modules:
            close = difflib.get_close_matches(name, modules, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ";"
            owner = repr(parent) if parent else "the model"
            raise UsageError("record_activations", f"unknown module {name!r}{hint} {owner} has: {_children(modules, parent)}")
        if _is_compiled(modules[path]):
            owner = repr(path) if path else "the model"
            raise UsageError("record_activations", f"{owner} is compiled", "load the run again without compiling")
        parent = path
    if type(modules[name]).forward is nn.Module.forward:
        problem = f"{name!r} is a container and never called"
        raise UsageError("record_activations", problem, f"choose from {_children(modules, name)}")
    return modules[name]


def _recording_hook(name: str, module: nn.Module, activations: list[Activation]) -> Callable[..., None]:
    signature = inspect.signature(module.forward)

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        activations.append(Activation(name, (*call.args, *call.kwargs.values()), output, module))

    return record


@contextmanager
def record_activations(model: nn.Module, names: str | Sequence[str]) -> Iterator[list[Activation]]:
    """Record every call of the named modules while the block runs, in order. Names are those of `model.named_modules()`.

    with record_activations(model, "stack.layers.1.mixer.attend") as activations:
        model(tokens)
    weights = attention_weights(activations[0])
    """
    modules = {name: _find_module(model, name) for name in ([names] if isinstance(names, str) else names)}
    activations: list[Activation] = []
    with ExitStack() as hooks:
        for name, module in modules.items():
            handle = module.register_forward_hook(_recording_hook(name, module, activations), with_kwargs=True)
            hooks.callback(handle.remove)
        yield activations


@contextmanager
def patch_activations(model: nn.Module, changes: Mapping[str, Callable[[Any], Any]]) -> Iterator[None]:
    """Replace the output of each named module with `changes[name](output)` while the block runs.

    with patch_activations(model, {"embedding": lambda vectors: 0 * vectors}):
        model(tokens)
    """
    modules = {name: _find_module(model, name) for name in changes}
    with ExitStack() as hooks:
        for name, module in modules.items():
            handle = module.register_forward_hook(lambda module, args, output, change=changes[name]: change(output))
            hooks.callback(handle.remove)
        yield


@contextmanager
def differentiable() -> Iterator[None]:
    """Enable gradients, also in eval mode: cuDNN is off, because its RNN kernels have a backward pass in training mode only."""
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        yield


def attention_weights(activation: Activation) -> Tensor:
    """Attention weights (B, H, T, S) of a recorded call of an `attend` module, recomputed from its inputs without dropout."""
    if not isinstance(activation.part, HasAttentionWeights):
        raise UsageError("attention_weights", f"{activation.name!r} has no attention weights", "record its 'attend' module")
    return activation.part.weights(*activation.inputs)
