"""The graphs of models that generate tokens: a step that reads tokens and a state and returns log-probabilities and the new
state, and for encoder-decoders the encoder, whose outputs are inputs of the step.

A state is a tree of tensors (`weft.nn.state`). A graph has named inputs instead: `past_keys_0`, `past_state_1`, and outputs
`present_keys_0`, `present_state_1`. What no step changes is an input only: `memory_0`.

Shapes: B batch size, T tokens, S source length, C cached tokens, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.interop.onnx_graphs import TEXT, Axes, Graph, Inputs, random_tokens, token_mask
from weft.interop.onnx_ops import exportable, next_position
from weft.nn.positions import AddsPositions, PositionEncoding
from weft.nn.state import KVCache, SharedState, tree_leaves, tree_map

PAST, PRESENT = "past_", "present_"
NUM_READ, POSITIONS = "num_read", "positions"
SOURCE: Mapping[str, Axes] = {"source": ("batch", "source"), "source_mask": ("batch", "source")}


class Part(NamedTuple):
    """One tensor of a state."""

    name: str  # "" for a number of tokens that the graph computes itself, or does not need
    changes: bool  # whether a step returns it
    axes: Axes
    dtype: torch.dtype

    @property
    def input(self) -> str:
        return f"{PAST}{self.name}" if self.changes else self.name

    @property
    def output(self) -> str:
        return f"{PRESENT}{self.name}"


class Layout(NamedTuple):
    """The tensors of a state, in the order of `tree_leaves`; several may be one input."""

    template: Any  # a state
    parts: Sequence[Part]

    def inputs(self) -> dict[str, Part]:
        return {part.input: part for part in self.parts if part.name}

    def outputs(self) -> dict[str, Axes]:
        changing = [part for part in self.parts if part.name and part.changes]
        return {part.output: tuple("total" if axis == "past" else axis for axis in part.axes) for part in changing}

    def state(self, inputs: Inputs) -> Any:
        """The state of named tensors."""
        cached = inputs.get(f"{PAST}{POSITIONS}")
        num_read = torch.zeros_like(inputs["tokens"][:, :1]) if cached is None else next_position(cached)
        tensors = iter([inputs[part.input] if part.name else num_read for part in self.parts])
        return tree_map(lambda leaf: next(tensors), self.template)

    def named(self, state: Any) -> Inputs:
        """The tensors of a state that a step returns, by name."""
        leaves = zip(self.parts, tree_leaves(state), strict=True)
        return {part.output: leaf for part, leaf in leaves if part.name and part.changes}

    def empty(self, rows: int) -> Inputs:
        """The state before the first token: caches without columns, and zeros. Without what depends on a source."""
        sizes = {"batch": rows, "past": 0}
        return {
            name: torch.zeros([sizes[axis] if isinstance(axis, str) else axis for axis in part.axes], dtype=part.dtype)
            for name, part in self.inputs().items()
            if "source" not in part.axes
        }


def counts_tokens(model: nn.Module) -> bool:
    """Whether a model adds position encodings, which depend on the number of tokens read so far."""
    encodings = [type(module) for module in model.modules() if isinstance(module, AddsPositions)]
    return any(encoding.add_to is not PositionEncoding.add_to for encoding in encodings)


def _walk(new: Any, initial: Any) -> Iterator[tuple[Tensor, Tensor | None, str]]:
    """Each tensor of a state, the tensor before the first token (None if there is none), and its role in a cache."""
    if new is None:
        return
    if isinstance(new, Tensor):
        yield new, initial, ""
        return
    roles = ("keys", "values", POSITIONS) if isinstance(new, KVCache) else ("",) * len(new)
    before = (None,) * len(new) if initial is None else initial
    for part, part_before, role in zip(new, before, roles, strict=True):
        for tensor, tensor_before, inner in _walk(part, part_before):
            yield tensor, tensor_before, role or inner


def make_layout(new: Any, initial: Any, given: Inputs, other: Any, *, counts: bool) -> Layout:
    """The layout of a state.

    Args:
        new, initial: The state after and before a token.
        given: Inputs of the encoder, which keep their names in the state.
        other: A state with a longer source: axes of other sizes are axes of the source.
        counts: The model needs the number of tokens read so far.
    """
    found = list(_walk(new, initial))
    has_cache = any(role == POSITIONS for _, _, role in found)
    names, numbers, parts = {id(tensor): name for name, tensor in given.items()}, dict[str, int](), list[Part]()
    for (tensor, before, role), longer in zip(found, tree_leaves(other), strict=True):
        changes = tensor is not before
        sizes = zip(tensor.shape[1:], longer.shape[1:], strict=True)
        axes: Axes = ("batch", *("source" if size != longer_size else size for size, longer_size in sizes))
        if role == POSITIONS:
            name, axes = POSITIONS, ("batch", "past")
        elif tensor.dtype == torch.long and axes == ("batch", 1) and changes:
            name = NUM_READ if counts and not has_cache else ""
        else:
            kind = role or ("state" if changes else "memory")
            if id(tensor) not in names:
                names[id(tensor)], numbers[kind] = f"{kind}_{numbers.get(kind, 0)}", numbers.get(kind, 0) + 1
            name = names[id(tensor)]
            axes = ("batch", tensor.size(1), "past", tensor.size(3)) if role else axes
        parts.append(Part(name, changes, axes, tensor.dtype))
    return Layout(new, parts)


def _without_empty_caches(state: Any) -> Any:
    """A state with None in place of caches without columns, as the modules of a run expect it."""
    if isinstance(state, KVCache):
        return state if state.positions.size(1) else None
    if state is None or isinstance(state, Tensor | SharedState):
        return state
    return tuple(_without_empty_caches(part) for part in state)


class Step(nn.Module):
    """Log-probabilities and the new state. `traced`: the modules accept caches without columns."""

    def __init__(self, model: nn.Module, states: Layout, *, traced: bool) -> None:
        super().__init__()
        self.model, self.states, self.traced = model, states, traced

    def state(self, inputs: Inputs) -> Any:
        state = self.states.state(inputs)
        return state if self.traced else _without_empty_caches(state)


# ---- language models


class LanguageModelStep(Step):
    """Log-probabilities after each token (B, T, V), and the new state."""

    def forward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        model: Any = self.model
        y, state = model(inputs["tokens"], self.state(inputs), inputs["token_mask"])
        return model.head(y), *self.states.named(state).values()


def language_model_graph(model: Any, *, vocab_size: int) -> tuple[Graph, Layout]:
    """One graph for prompts and for single tokens, with any number of rows."""
    with torch.no_grad():
        new = model(torch.zeros(1, 1, dtype=torch.long))[1]
    states = make_layout(new, None, {}, new, counts=counts_tokens(model))
    outputs: dict[str, Axes] = {"log_probs": ("batch", "length", vocab_size), **states.outputs()}
    reference = LanguageModelStep(model, states, traced=False)

    def sample(rows: int, length: int) -> Inputs:
        """`length` tokens, the second half of which is read after the first."""
        state = states.empty(rows)
        if length > 1:
            first = {"tokens": random_tokens(rows, length // 2, vocab_size), "token_mask": token_mask(rows, length // 2)}
            with torch.no_grad():
                values = dict(zip(outputs, reference({**first, **state}), strict=True))
            state = {name: values[part.output] for name, part in states.inputs().items()}
        rest = length - length // 2
        return {"tokens": random_tokens(rows, rest, vocab_size), "token_mask": token_mask(rows, rest), **state}

    inputs = {**TEXT, **{name: part.axes for name, part in states.inputs().items()}}
    step = LanguageModelStep(exportable(model), states, traced=True)
    return Graph("model", step, reference, inputs, outputs, sample, {"log_probs": "token_mask"}), states


# ---- encoder-decoders


class SourceEncoder(nn.Module):
    """The tensors of the state before the first token that depend on the source."""

    def __init__(self, model: nn.Module, states: Layout, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.states, self.names = model, states, names

    def forward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        model: Any = self.model
        initial = model.encode(inputs["source"], inputs["source_mask"])
        tensors = zip(self.states.parts, _walk(self.states.template, initial), strict=True)
        values = {part.input: before for part, (_, before, _) in tensors if before is not None}
        return tuple(values[name] for name in self.names)


class DecoderStep(Step):
    """Log-probabilities of the next token (B, V), and the new state, after one token (B, 1)."""

    def forward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        model: Any = self.model
        log_probs, state = model.step(inputs["tokens"][:, 0], self.state(inputs))
        return log_probs, *self.states.named(state).values()


def encoder_decoder_graphs(model: Any, *, source_vocab_size: int, vocab_size: int) -> tuple[Sequence[Graph], Layout]:
    """The encoder, and the step of the decoder. Outputs of the encoder are inputs of the decoder with the same names."""

    def source(rows: int, length: int) -> Inputs:
        mask = token_mask(rows, length)
        return {"source": random_tokens(rows, length, source_vocab_size).masked_fill(~mask, 0), "source_mask": mask}

    def probe(inputs: Inputs) -> tuple[Any, Any]:
        with torch.no_grad():
            initial = model.encode(*inputs.values())
            return model.step(torch.zeros(2, dtype=torch.long), initial)[1], initial

    shorter = source(2, 3)
    (new, initial), (other, _) = probe(shorter), probe(source(2, 4))
    states = make_layout(new, initial, shorter, other, counts=counts_tokens(model.decoder))
    from_source = {
        part.input: part.axes
        for part, (_, before, _) in zip(states.parts, _walk(new, initial), strict=True)
        if before is not None and part.name not in ("", NUM_READ, *SOURCE)
    }
    reference = SourceEncoder(model, states, list(from_source))
    step = DecoderStep(model, states, traced=False)
    outputs: dict[str, Axes] = {"log_probs": ("batch", vocab_size), **states.outputs()}

    def sample(rows: int, length: int) -> Inputs:
        """A source of `length` tokens, and half as many tokens before the one that is read."""
        inputs = source(rows, length)
        with torch.no_grad():
            state = {**states.empty(rows), **inputs, **dict(zip(from_source, reference(inputs), strict=True))}
            for _ in range(length // 2):
                token = {"tokens": random_tokens(rows, 1, vocab_size)}
                values = dict(zip(outputs, step({**token, **state}), strict=True))
                state |= {name: values[part.output] for name, part in states.inputs().items() if part.changes}
        return {"tokens": random_tokens(rows, 1, vocab_size), **{name: state[name] for name in states.inputs()}}

    traced = exportable(model)
    masks = {name: "source_mask" for name, axes in from_source.items() if axes[-2:-1] == ("source",)}
    encoder = Graph("encoder", SourceEncoder(traced, states, list(from_source)), reference, SOURCE, from_source, source, masks)
    inputs = {"tokens": ("batch", 1), **{name: part.axes for name, part in states.inputs().items()}}
    decoder = Graph("decoder", DecoderStep(traced, states, traced=True), step, inputs, outputs, sample)
    return [encoder, decoder], states
