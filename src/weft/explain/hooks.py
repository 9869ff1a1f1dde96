"""Watching named parts of a model from outside: what went in, what came out. No model has a flag for it."""

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
class Weighing(Protocol):
    """A part that weighs positions, and says how."""

    @property
    def weights(self) -> Callable[..., Tensor]:
        """What it weighs with, from what went into it."""


class Activation(NamedTuple):
    """One call of a part, its tensors as they were, with their gradients' graph if there is one."""

    name: str
    inputs: tuple[Any, ...]  # in the order of the part's forward, however they were passed, defaults filled in
    output: Any
    part: nn.Module


def _compiled(part: nn.Module) -> bool:
    """Whether it was compiled in place, or is the wrapper around what was."""
    return part._compiled_call_impl is not None or any(child == "_orig_mod" for child, _ in part.named_children())


def _inside(parts: Mapping[str, nn.Module], place: str) -> str:
    """What a part is made of, for a message."""
    return ", ".join(name.rpartition(".")[2] for name in parts if name and name.rpartition(".")[0] == place) or "no parts"


def _find(model: nn.Module, name: str) -> nn.Module:
    """The part of that name, if its calls can be seen."""
    parts: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    steps = name.split(".") if name else []
    above = ""
    for place in (".".join(steps[:count]) for count in range(len(steps) + 1)):
        if place not in parts:
            close = difflib.get_close_matches(name, parts, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ";"
            where = repr(above) if above else "the model"
            raise UsageError("record_activations", f"unknown module {name!r}{hint} {where} has: {_inside(parts, above)}")
        if _compiled(parts[place]):
            where = repr(place) if place else "the model"
            raise UsageError("record_activations", f"{where} is compiled", "load the run again without compiling")
        above = place
    if type(parts[name]).forward is nn.Module.forward:
        raise UsageError(
            "record_activations", f"{name!r} is a container and never called", f"choose from {_inside(parts, name)}"
        )
    return parts[name]


def _hook(name: str, part: nn.Module, activation: list[Activation]) -> Callable[..., None]:
    takes = inspect.signature(part.forward)

    def record(part: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        call = takes.bind(*given, **named)
        call.apply_defaults()
        activation.append(Activation(name, (*call.args, *call.kwargs.values()), output, part))

    return record


@contextmanager
def record_activations(model: nn.Module, names: str | Sequence[str]) -> Iterator[list[Activation]]:
    """Every call of the named parts while the block runs, in order; names are those of `model.named_modules()`.

    with watch(model, "stack.layers.1.mixer.attend") as seen:
        model(tokens)
    weights = pattern(seen[0])
    """
    wanted = {name: _find(model, name) for name in ([names] if isinstance(names, str) else names)}
    activation: list[Activation] = []
    with ExitStack() as hooks:
        for name, part in wanted.items():
            handle = part.register_forward_hook(_hook(name, part, activation), with_kwargs=True)
            hooks.callback(handle.remove)
        yield activation


@contextmanager
def patch_activations(model: nn.Module, changes: Mapping[str, Callable[[Any], Any]]) -> Iterator[None]:
    """While the block runs, each named part gives what its change makes of its output.

    with replaced(model, {"embedding": lambda vectors: 0 * vectors}):
        model(tokens)
    """
    wanted = {name: _find(model, name) for name in changes}
    with ExitStack() as hooks:
        for name, part in wanted.items():
            handle = part.register_forward_hook(lambda part, given, output, change=changes[name]: change(output))
            hooks.callback(handle.remove)
        yield


@contextmanager
def differentiable() -> Iterator[None]:
    """Gradients are kept, and can be asked for though the model is not in training: a GPU's fused recurrent kernels, which are
    left aside, go backwards in training only."""
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        yield


def attention_weights(activation: Activation) -> Tensor:
    """The attention weights of a watched call of an `attend`, (B, H, T, S), recomputed from its inputs and without dropout."""
    if not isinstance(activation.part, Weighing):
        raise UsageError("attention_weights", f"{activation.name!r} has no attention weights", "record its 'attend' module")
    return activation.part.weights(*activation.inputs)
