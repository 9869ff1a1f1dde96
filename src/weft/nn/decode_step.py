"""One more token per row, faster: what `Stack.forward` computes in eval mode on a CPU, without the calls of modules.

A small model spends most of a decoding step outside of its matrix products: in calls of modules, in masks and positions that
are the same in every layer, and in copies of the key-value cache. `StackStep` binds the weights once and calls functions of
torch. A mixer with a `lean_step` has a version of its forward for it, and the forward of all others is called as it is.

`guarded` decides at each call whether this path is taken. States are those of the plain path, so rows can enter, leave and be
reordered between steps, and the two paths can take turns.

Shapes: B rows, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from weft.nn.dropout import IntegerDropout
from weft.nn.linear import is_linear
from weft.nn.packed_linear import Product, Sum, bind_linear, bind_sum
from weft.nn.positions import PositionEncoding
from weft.nn.skip_connections import Residual

Function = Callable[[Tensor], Tensor]
S = TypeVar("S")
Step = Callable[[Tensor, S], tuple[Tensor, S]]
COUNTER_STEPS, MAX_AHEAD = 32, 1 << 10  # steps, and positions, that are counted at once
MAX_SMALL = 1 << 14  # numbers that torch computes GELU of as fast as oneDNN


class Shared:
    """What the layers of a stack share in one step; each attribute belongs to the code that writes it."""

    def __init__(self, scratch: dict[Any, Any] | None = None) -> None:
        self.columns: Any = None  # of the caches of self-attention, see `weft.nn.attention_step`
        self.beams: Any = None
        self.source: Any = None  # the mask of the source
        # tensors that each layer of each step overwrites, with their views: to make them takes as long as to fill them
        self.scratch = {} if scratch is None else scratch


class MixerStep(Protocol):
    """The mixer of a layer for one position."""

    takes_vectors: bool  # whether the input of a single row may be a vector (D,) as well, and then the output is one

    def __call__(self, x: Tensor, state: Any, shared: Shared, residual: Tensor | None = None) -> tuple[Tensor, Any]:
        """Normalized inputs (B, D) and the state of the layer, to outputs (B, D), added to `residual`, and the new state."""


@runtime_checkable
class HasLeanStep(Protocol):
    """A mixer with a fast version of its forward for one position."""

    def lean_step(self) -> MixerStep: ...


_with_lean_step: dict[type, bool] = {}  # to ask for a protocol takes as long as a few operations of a step


def _has_lean_step(mixer: nn.Module) -> TypeGuard[HasLeanStep]:
    kind = type(mixer)
    if kind not in _with_lean_step:
        _with_lean_step[kind] = isinstance(mixer, HasLeanStep)
    return _with_lean_step[kind]


def lean(module: nn.Module) -> Function:
    """The function that a module computes in eval mode, without the overhead of calling it. The weights are bound: they may
    change in place as in `bind_linear`, but they may not be replaced."""
    if is_linear(module):
        return bind_linear(module.weight, module.bias)
    if type(module) is nn.LayerNorm:
        shape, scale, shift, eps = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda x: torch.layer_norm(x, shape, scale, shift, eps)
    if type(module) is nn.ReLU:
        return torch.relu
    if type(module) in (nn.Identity, IntegerDropout):
        return lambda x: x
    function: Function = module.forward
    return function


def lean_linear(module: nn.Linear) -> Product:
    """`lean` of a linear layer, which may write its output into the second argument."""
    if is_linear(module):
        return bind_linear(module.weight, module.bias)
    forward = module.forward
    return lambda x, output=None: forward(x)


def lean_sum(module: nn.Linear) -> Sum:
    """`lean` of a linear layer whose output is added to the second argument."""
    if is_linear(module):
        return bind_sum(module.weight, module.bias)
    forward = module.forward
    return lambda x, residual=None: forward(x) if residual is None else forward(x) + residual


class ForwardStep:
    """The forward of a mixer for a sequence of one position."""

    takes_vectors = False

    def __init__(self, mixer: nn.Module) -> None:
        self.forward = mixer.forward

    def __call__(self, x: Tensor, state: Any, shared: Shared, residual: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.forward(x.unsqueeze(1), state, None)
        return y.squeeze(1) if residual is None else y.squeeze(1) + residual, state


class DecoderLayer(Protocol):
    """What a step needs of a `weft.nn.stack.Layer`."""

    norm: nn.Module
    mixer: nn.Module
    connection: Any


LayerStep = Callable[[Tensor, Any, Shared], tuple[Tensor, Any]]


def _mixer_step(mixer: nn.Module) -> MixerStep:
    return mixer.lean_step() if _has_lean_step(mixer) else ForwardStep(mixer)


def _layer_step(layer: DecoderLayer, mixer: MixerStep) -> LayerStep:
    norm, connection = lean(layer.norm), layer.connection
    if type(connection) is Residual:  # the most frequent one
        return lambda x, state, shared: mixer(norm(x), state, shared, x)
    mixer_input, connect = connection.mixer_input, connection.forward

    def step(x: Tensor, state: Any, shared: Shared) -> tuple[Tensor, Any]:
        y, state = mixer(norm(mixer_input(x)), state, shared)
        return connect(x, y), state

    return step


class FeedForwardLayer(Protocol):
    """What a step needs of a `weft.nn.attention.FeedForward`."""

    up_proj: nn.Linear
    activation: nn.Module
    to_out: nn.Linear


class FeedForwardStep:
    """`FeedForward.forward` for one position."""

    takes_vectors = True

    def __init__(self, mixer: FeedForwardLayer) -> None:
        self.up_proj, self.activation, self.to_out = lean_linear(mixer.up_proj), lean(mixer.activation), lean_sum(mixer.to_out)
        self.size, activation = mixer.up_proj.out_features, mixer.activation
        self.is_relu = type(activation) is nn.ReLU
        self.is_gelu = isinstance(activation, nn.GELU) and activation.approximate == "none"

    def __call__(self, x: Tensor, state: Any, shared: Shared, residual: Tensor | None = None) -> tuple[Tensor, tuple[()]]:
        key = "feed-forward", self.size
        scratch, swapped = shared.scratch.get(key) or shared.scratch.setdefault(key, self._scratch(x))
        hidden = self.up_proj(x, scratch)
        if swapped is not None and hidden is scratch:
            F.gelu(swapped, out=swapped)  # type: ignore[call-arg]  # which the stub of torch omits
        elif self.is_relu:
            torch.relu_(hidden)
        else:
            hidden = self.activation(hidden)
        return self.to_out(hidden, residual), ()

    def _scratch(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The hidden vectors, and a view of them that GELU overwrites: torch leaves a contiguous tensor to oneDNN, which takes
        longer to start than to compute a few vectors, and computes any other itself."""
        hidden = x.new_empty(*x.shape[:-1], self.size)
        is_small = self.is_gelu and hidden.numel() <= MAX_SMALL and self.size % 2 == 0
        return hidden, hidden.view(-1, 2, self.size // 2).mT if is_small else None


class Counter:
    """Counts the tokens read, and encodes their positions. The tensors of the next steps are made at once: an operation that a
    step calls once takes several times as long as in a loop, because its code has left the cache."""

    def __init__(self, positions: PositionEncoding) -> None:
        self.encode, self.max_positions = positions.stepper(), positions.max_positions
        self.weights = list(positions.parameters())
        self.is_tracked = not any(weight.is_inference() for weight in self.weights)  # torch counts no changes of such weights
        self.newest: Tensor | None = None
        self.version = 0  # of the weights that encoded `upcoming`
        self.upcoming: Iterator[tuple[Tensor | None, Tensor]] = iter(())

    def advance(self, num_read: Tensor) -> tuple[Tensor | None, Tensor]:
        """The encoded positions (B, D) of the tokens after these numbers of tokens (B, 1), and the numbers of tokens with them
        (B, 1)."""
        following = next(self.upcoming, None) if num_read is self.newest and self.version == self._version() else None
        if following is None:
            self.upcoming = self._make_upcoming(num_read.view(1, -1), self._num_ahead(num_read))
            following = next(self.upcoming)
        vectors, self.newest = following
        return vectors, self.newest

    def _version(self) -> int:
        """Changes with the weights: how often they were changed in place."""
        return sum(weight._version for weight in self.weights) if self.is_tracked else 0

    def _num_ahead(self, num_read: Tensor) -> int:
        """The number of steps that are counted at once. Nothing is counted ahead for rows that have just been chosen: in beam
        search, they are chosen anew after each step."""
        if num_read is not self.newest or not self.is_tracked:
            return 1
        left = COUNTER_STEPS if self.max_positions is None else self.max_positions - int(num_read.max())
        return max(1, min(COUNTER_STEPS, MAX_AHEAD // len(num_read), left))

    def _make_upcoming(self, num_read: Tensor, num_steps: int) -> Iterator[tuple[Tensor | None, Tensor]]:
        self.version = self._version()
        counts = torch.arange(num_steps + 1).unsqueeze(1) + num_read  # (steps, B)
        vectors: Iterable[Tensor | None] = repeat(None, num_steps)
        if self.encode is not None:
            vectors = self.encode(counts[:-1].flatten()).view(*counts[:-1].shape, -1).unbind()
        return zip(vectors, counts[1:].unsqueeze(2).unbind(), strict=True)


class StackStep:
    """`Stack.forward` for one position: inputs (B, D) and the state, to outputs (B, D) and the new state."""

    def __init__(self, stack: Any) -> None:
        self.input_proj, self.final_norm = lean(stack.input_proj), lean(stack.final_norm)
        mixers = [_mixer_step(layer.mixer) for layer in stack.layers]
        self.layers = [_layer_step(layer, mixer) for layer, mixer in zip(stack.layers, mixers, strict=True)]
        self.takes_vectors = all(mixer.takes_vectors for mixer in mixers)
        self.num_rows, self.scratch, self.counter = 0, dict[Any, Any](), Counter(stack.positions)

    def __call__(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if torch.is_inference_mode_enabled():
            return self._step(x, state)
        with torch.inference_mode():  # saves a fifth of the time; what it returns may be read, but not written, outside of it
            return self._step(x, state)

    def _step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        num_read, layer_states = (None, (None,) * len(self.layers)) if state is None else state
        if num_read is None:
            num_read = x.new_zeros(x.size(0), 1, dtype=torch.long)
        if self.num_rows != x.size(0):
            self.num_rows, self.scratch = x.size(0), {}
        positions, num_read = self.counter.advance(num_read)
        x = self.input_proj(x if positions is None else x + positions.to(x.dtype))
        is_vector = self.takes_vectors and self.num_rows == 1  # whose products start faster
        if is_vector:
            x = x.squeeze(0)
        shared, new_states = Shared(self.scratch), []
        for layer, layer_state in zip(self.layers, layer_states, strict=True):
            x, layer_state = layer(x, layer_state, shared)
            new_states.append(layer_state)
        y = self.final_norm(x)
        return y.unsqueeze(0) if is_vector else y, (num_read, tuple(new_states))


def _modules(model: nn.Module) -> list[nn.Module]:
    """`model.modules()`, without their names, which take most of its time: short texts have an engine each."""
    found = {model: None}
    waiting = [model]
    while waiting:
        for module in waiting.pop()._modules.values():
            if module is not None and module not in found:
                found[module] = None
                waiting.append(module)
    return list(found)


def guarded(model: nn.Module, fast: Step[S], plain: Step[S]) -> Step[S]:
    """`fast` where it computes what `plain` does: in eval mode, on a CPU, in the dtype of the weights, without gradients, for
    one row at least, and while no hook records the calls of modules. Otherwise `plain`."""
    modules = _modules(model)
    parameters = (parameter for module in modules for parameter in module._parameters.values())
    if any(parameter is not None and parameter.device.type != "cpu" for parameter in parameters):
        return plain
    hooks = [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
    unhooked = -1  # the number of hooks that had been registered anywhere when this model had none

    def step(token: Tensor, state: S) -> tuple[Tensor, S]:
        nonlocal unhooked
        if unhooked != RemovableHandle.next_id:
            unhooked = -1 if any(hooks) else RemovableHandle.next_id
        is_watched = unhooked < 0 or not token.size(0) or torch.is_autocast_enabled("cpu")
        return (plain if is_watched or model.training or torch.is_grad_enabled() else fast)(token, state)

    return step
