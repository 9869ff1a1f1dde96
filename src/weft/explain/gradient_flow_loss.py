"""Gradient flow in an encoder: d loss / d h(i) of labels, tags, masked tokens and answers at every token of the text.

A bidirectional layer has two states per token, and both count. While gradients are measured, recurrent modules process the
text token by token, because fused kernels do not expose their states.

Shapes: T tokens, L layers, D hidden size.
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
    TRAINED,
    UNTRAINED,
    VIEW,
    LayerGradients,
    TimeGradients,
    gradients_by_layer,
    hide_tiny_norms,
    layer_figure,
    reinitialized,
    to_float64,
)
from weft.explain.hooks import differentiable, record_activations
from weft.explain.inputs import ExplainedOutput, outputs_to_explain, read
from weft.explain.options import ExplainConfig
from weft.explain.recurrent_gates import recurrent_modules
from weft.explain.stacks import layers_of, named_parts
from weft.nn.state import tree_leaves, tree_map
from weft.plots.lines import Axis, Series, lines
from weft.runs.run import AnyRun

States = dict[str, list[list[Tensor]]]  # by module name: the tensors of its state after each token


def _forward_stepwise(module: nn.Module, x: Tensor) -> tuple[Any, list[list[Tensor]]]:
    """The output of a recurrent module for x (1, T, D), computed token by token, and the tensors of its state after each."""
    state, states = None, list[list[Tensor]]()
    for i in range(x.size(1)):
        state = tree_map(torch.clone, module.forward(x[:, i : i + 1], state)[1])
        states.append(tree_leaves(state))
    return (torch.stack([tensors[0] for tensors in states], dim=1), state), states


def _stepwise_hook(states: States, name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    """A forward hook that computes the same output token by token and stores the states under `name`."""
    output, states[name] = _forward_stepwise(module, inputs[0])
    return output


@contextmanager
def unrolled(model: nn.Module, names: Sequence[str]) -> Iterator[States]:
    """Within the block, the named recurrent modules run token by token; yields their states."""
    states: States = {}
    with ExitStack() as hooks:
        for name in names:
            handle = model.get_submodule(name).register_forward_hook(partial(_stepwise_hook, states, name))
            hooks.callback(handle.remove)
        yield states


def _squared_norms(loss: Tensor, states: list[list[Tensor]]) -> np.ndarray:
    """The squared norms (T,) of the gradient at the states of a module."""
    flat = iter(torch.autograd.grad(loss, [*chain(*states)], retain_graph=True, allow_unused=True))
    by_token = [[next(flat) for _ in tensors] for tensors in states]
    return np.array([sum(float(gradient.square().sum()) for gradient in row if gradient is not None) for row in by_token])


def gradients_by_token(model: nn.Module, compute_loss: Callable[[], Tensor]) -> TimeGradients:
    """The gradient norms of a loss of an encoder on one text: at the states of recurrent layers, at the inputs of others."""
    names = [name for name in layers_of(model) if ".embedder." not in name]  # without character encoders
    cells = {layer: [name for name in recurrent_modules(model) if name.startswith(f"{layer}.")] for layer in names}
    not_recurrent = [layer for layer in names if not cells[layer]]
    with (
        differentiable(),
        unrolled(model, [*chain(*cells.values())]) as states,
        record_activations(model, not_recurrent) as activations,
    ):
        loss = compute_loss()
    inputs = {activation.name: activation.inputs[0] for activation in activations}
    squares = list[np.ndarray]()
    for layer in names:
        if layer in inputs:
            (gradient,) = torch.autograd.grad(loss, inputs[layer], retain_graph=True)
            squares.append(gradient[0].square().sum(-1).cpu().numpy())
        else:
            by_cell = {name: _squared_norms(loss, states[name]) for name in cells[layer]}
            in_text_order = [values[::-1] if name.endswith(".backward_mixer") else values for name, values in by_cell.items()]
            squares.append(np.sum(in_text_order, axis=0))
    return TimeGradients(named_parts(model, names), np.sqrt(np.array(squares)))


def _with_model(run: AnyRun, model: nn.Module) -> AnyRun:
    """The run with another network."""
    other = AnyRun(run.directory, run.config, run.vocabulary, run.device_name)
    other.model = model
    return other


def _measure(
    run: AnyRun, model: nn.Module, text: str, options: ExplainConfig, output: ExplainedOutput
) -> tuple[TimeGradients, LayerGradients]:
    model64 = to_float64(model)
    inputs = read(_with_model(run, model64), text, options)
    position = torch.tensor([output.position], device=run.device)

    def loss() -> Tensor:
        return -inputs.log_probs(position)[0, output.target]

    return gradients_by_token(model64, loss), gradients_by_layer(model64, loss)


def _token_figure(by_weights: Mapping[str, TimeGradients], tokens: Sequence[str], *, title: str) -> str:
    series = [
        Series(
            f"{layer}, {weights}",
            list(range(len(tokens))),
            hide_tiny_norms(norms),
            group=layer,
            dashed=weights == UNTRAINED,
            labels=tokens,
        )
        for weights, gradients in by_weights.items()
        for layer, norms in zip(gradients.layers, gradients.norms, strict=True)
    ]
    return lines(series, x_axis=Axis("token", names=tokens), y_axis=Axis("gradient norm", log=True), title=title)


def _table(by_weights: Mapping[str, TimeGradients], tokens: Sequence[str], loss: str) -> list[str]:
    """The norms over all layers at each token, relative to the largest."""
    norms = [gradients.total / (gradients.total.max() or 1.0) for gradients in by_weights.values()]
    rows = [[token, *(f"{relative[i]:.2g}" for relative in norms)] for i, token in enumerate(tokens)]
    return [*align_columns([["token", *by_weights], *rows]), f"the gradient of {loss} at each token, relative to the largest"]


def gradient_flow_to_loss(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The gradient of the loss of a label, a tag or a mask (`position`; default: the last) over the text and the layers."""
    inputs = read(run, text, options)
    output = outputs_to_explain(run, inputs, options)[-1]
    models = {UNTRAINED: reinitialized(run), TRAINED: inputs.model}
    gradients = {weights: _measure(run, model, text, options, output) for weights, model in models.items()}
    by_token = {weights: tokens for weights, (tokens, _) in gradients.items()}
    by_layer = {weights: layers for weights, (_, layers) in gradients.items()}
    spans, arch = inputs.sides[0].spans, run.config.arch
    word = inputs.output_spans[output.position].text
    loss = f"the loss of {output.span.text!r}" + (f" at {word!r}" if word else "")
    data = {
        "tokens": list_tokens(spans),
        "position": output.position + 1,
        "output": output.span.text,
        "text": {weights: tokens.to_json() for weights, tokens in by_token.items()},
        "layers": {weights: layers.to_json() for weights, layers in by_layer.items()},
    }
    labels = unique_labels(spans)
    figures = [
        Figure("Gradient norm by token and layer", _token_figure(by_token, labels, title=f"{arch}: gradient of {loss}")),
        Figure("Gradient norm by layer", layer_figure({arch: by_layer}, title=f"{arch}: gradient norm by layer")),
    ]
    return Explanation(VIEW, f"Gradient flow from {loss}", data, figures, _table(by_token, labels, loss), guides.GRADIENTS)
