"""Gradient flow in a text that is read as a whole: d loss / d h(i) of labels, tags, masked tokens and answers.

A layer that reads from both ends hands on two states at each token, and both are counted there. While it is watched, a
recurrent part reads token by token, for fused kernels keep their states to themselves.

Shapes: T tokens, L layers, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, align_columns, list_tokens, unique_labels
from weft.explain.gradient_flow import (
    STARTED,
    TRAINED,
    LayerGradients,
    TimeGradients,
    depth_figure,
    drawable,
    exact,
    reinitialized,
    through_layers,
)
from weft.explain.hooks import differentiable, record_activations
from weft.explain.inputs import ExplainedOutput, outputs_to_explain, read
from weft.explain.options import ExplainConfig
from weft.explain.recurrent_gates import recurrent_modules
from weft.explain.stacks import layers_of, named_parts
from weft.nn.state import tree_leaves, tree_map
from weft.plots.lines import Axis, Series, lines
from weft.runs.run import AnyRun

States = dict[str, list[list[Tensor]]]  # by the name of a part: at each token the tensors of its state


def _unrolled(part: nn.Module, x: Tensor) -> tuple[Any, list[list[Tensor]]]:
    """What a recurrent part gives for x (1, T, D), read token by token, and the tensors of its state after each."""
    state, kept = None, list[list[Tensor]]()
    for at in range(x.size(1)):
        state = tree_map(torch.clone, part.forward(x[:, at : at + 1], state)[1])
        kept.append(tree_leaves(state))
    return (torch.stack([tensors[0] for tensors in kept], dim=1), state), kept


def _instead(kept: States, name: str, part: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
    """A hook: the same output, step by step, and the states kept under the part's name."""
    output, kept[name] = _unrolled(part, given[0])
    return output


@contextmanager
def unrolled(model: nn.Module, names: Sequence[str]) -> Iterator[States]:
    """While the block runs, the named recurrent parts read token by token; gives their states, T each, by name."""
    kept: States = {}
    with ExitStack() as hooks:
        for name in names:
            hook = model.get_submodule(name).register_forward_hook(partial(_instead, kept, name))
            hooks.callback(hook.remove)
        yield kept


def _of_states(value: Tensor, states: list[list[Tensor]]) -> np.ndarray:
    """The squared norms (T,) of the gradient at states."""
    found = iter(torch.autograd.grad(value, [*chain(*states)], retain_graph=True, allow_unused=True))
    gradients = [[next(found) for _ in tensors] for tensors in states]
    return np.array([sum(float(one.square().sum()) for one in own if one is not None) for own in gradients])


def through_text(model: nn.Module, loss: Callable[[], Tensor]) -> TimeGradients:
    """The norms of the gradient of what `loss` computes with an encoder and one text: at the states of recurrent layers, at
    what other layers read."""
    names = [name for name in layers_of(model) if ".embedder." not in name]
    cells = {layer: [name for name in recurrent_modules(model) if name.startswith(f"{layer}.")] for layer in names}
    others = [layer for layer in names if not cells[layer]]
    with differentiable(), unrolled(model, [*chain(*cells.values())]) as kept, record_activations(model, others) as seen:
        value = loss()
    read = {one.name: one.inputs[0] for one in seen}
    squares = list[np.ndarray]()
    for layer in names:
        if layer in read:
            (gradient,) = torch.autograd.grad(value, read[layer], retain_graph=True)
            squares.append(gradient[0].square().sum(-1).cpu().numpy())
        else:
            own = ((name, _of_states(value, kept[name])) for name in cells[layer])
            squares.append(np.sum([found[::-1] if name.endswith(".backward_mixer") else found for name, found in own], axis=0))
    return TimeGradients(named_parts(model, names), np.sqrt(np.array(squares)))


def _with(run: AnyRun, model: nn.Module) -> AnyRun:
    """A run like this one, of another network."""
    other = AnyRun(run.directory, run.config, run.vocabulary, run.device_name)
    other.model = model
    return other


def _followed(
    run: AnyRun, model: nn.Module, text: str, options: ExplainConfig, asked: ExplainedOutput
) -> tuple[TimeGradients, LayerGradients]:
    doubled = exact(model)
    reading = read(_with(run, doubled), text, options)
    place = torch.tensor([asked.position], device=run.device)

    def loss() -> Tensor:
        return -reading.log_probs(place)[0, asked.target]

    return through_text(doubled, loss), through_layers(doubled, loss)


def _picture(flows: Mapping[str, TimeGradients], tokens: Sequence[str], *, title: str) -> str:
    series = [
        Series(f"{name}, {when}", list(range(len(tokens))), drawable(own), name, when == STARTED, tokens)
        for when, flow in flows.items()
        for name, own in zip(flow.layers, flow.norms, strict=True)
    ]
    return lines(series, across=Axis("token", names=tokens), up=Axis("gradient norm", log=True), title=title)


def _lines(flows: Mapping[str, TimeGradients], tokens: Sequence[str], loss: str) -> list[str]:
    """All layers together, as shares of the largest, for a terminal."""
    fractions = [flow.together / (flow.together.max() or 1.0) for flow in flows.values()]
    rows = [[token, *(f"{fraction[at]:.2g}" for fraction in fractions)] for at, token in enumerate(tokens)]
    return [*align_columns([["token", *flows], *rows]), f"the gradient of {loss} at each token, relative to the largest"]


def gradient_flow_to_loss(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The gradient of the loss of a label, a tag or a mask (`position`; default: the last) over the text and the layers."""
    reading = read(run, text, options)
    asked = outputs_to_explain(run, reading, options)[-1]
    found = {
        when: _followed(run, model, text, options, asked)
        for when, model in ((STARTED, reinitialized(run)), (TRAINED, reading.model))
    }
    flows, depths = {when: flow for when, (flow, _) in found.items()}, {when: depth for when, (_, depth) in found.items()}
    pieces, name = reading.sides[0].spans, run.config.arch
    place = reading.output_spans[asked.position].text
    loss = f"the loss of {asked.span.text!r}" + (f" at {place!r}" if place else "")
    data = {
        "tokens": list_tokens(pieces),
        "position": asked.position + 1,
        "output": asked.span.text,
        "text": {when: flow.to_json() for when, flow in flows.items()},
        "layers": {when: depth.to_json() for when, depth in depths.items()},
    }
    tokens = unique_labels(pieces)
    pictures = [
        Figure("Gradient norm by token and layer", _picture(flows, tokens, title=f"{name}: gradient of {loss}")),
        Figure("Gradient norm by layer", depth_figure({name: depths}, title=f"{name}: gradient norm by layer")),
    ]
    return Explanation(
        "gradient-flow", f"Gradient flow from {loss}", data, pictures, _lines(flows, tokens, loss), guides.GRADIENTS
    )
