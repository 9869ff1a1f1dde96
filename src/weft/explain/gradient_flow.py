"""Gradient flow: the norm of d loss(t) / d h(i) over time and layers, before and after training.

A fused kernel hides its recurrence: gradients at its outputs are 0 for every earlier position. So the text is processed one
position at a time, and the tensors that each layer passes on to later positions are recorded: the state of a recurrent layer,
the input of an attention layer.

Shapes: B rows, T positions, L layers, D hidden size.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import DataError, UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, TokenSpan, align_columns, list_tokens
from weft.explain.hooks import Activation, differentiable, patch_activations, record_activations
from weft.explain.inputs import ModelInput, network, read
from weft.explain.options import ExplainConfig
from weft.explain.progress import ProgressCallback, no_progress, sub_progress
from weft.explain.recurrent_gates import recurrent_modules
from weft.explain.stacks import is_recurrent, labels, layers_of, named_parts, side_of
from weft.nn.state import tree_leaves, tree_map
from weft.plots.lines import Axis, Series, lines
from weft.runs.run import AnyRun

VIEW = "gradient-flow"
UNTRAINED, TRAINED = "untrained", "trained"
STEPS_BACK = "steps before the loss"
TABLE_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # steps back in the table
MIN_RELATIVE_NORM = 1e-20  # norms below this fraction of the maximum are not drawn


class TimeGradients(NamedTuple):
    """Gradient norms of one loss over time, as the root mean square over rows."""

    layers: list[str]  # lowest first
    norms: np.ndarray  # (L, T) float64: at the state of each layer after each position; the loss is at the last

    @property
    def total(self) -> np.ndarray:
        """The norms over all layers, (T,)."""
        norms: np.ndarray = np.sqrt((self.norms**2).sum(0))
        return norms

    def to_json(self) -> dict[str, Any]:
        return {"layers": self.layers, "norms": self.norms.tolist()}


class LayerGradients(NamedTuple):
    """Gradient norms of a loss at the input of each stack and at the output of each layer, lowest first."""

    names: list[str]
    norms: np.ndarray

    def to_json(self) -> dict[str, Any]:
        return {"places": self.names, "norms": self.norms.tolist()}


def to_float64(model: nn.Module) -> nn.Module:
    """A copy in float64, in which gradients of 1e-40 do not underflow. Weights that are frozen beside adapters have gradients
    as well."""
    return copy.deepcopy(model).double().eval().requires_grad_()


def _norm(gradients: Sequence[Tensor | None]) -> float:
    """The norm over all tensors of a row, as the root mean square over rows; 0 if there is no gradient."""
    squares = [gradient.double().flatten(1).square().sum(1) for gradient in gradients if gradient is not None]
    return float(torch.stack(squares).sum(0).mean().sqrt()) if squares else 0.0


# ---- over time


def _recorded_modules(model: nn.Module) -> dict[str, str]:
    """The modules to record, with the name of their layer: the cells of recurrent layers, and other layers themselves."""
    cells, modules = recurrent_modules(model), dict[str, str]()
    for layer in layers_of(model):
        layer_cells = [name for name in cells if name.startswith(f"{layer}.")]
        modules |= dict.fromkeys(layer_cells, layer) if layer_cells else {layer: layer}
    return modules


def _separate_states(output: Any) -> Any:
    """The output of a cell at one position with cloned states: later positions depend on each clone separately, so that the
    gradient at c does not include the path through h of the same position."""
    state = tree_map(torch.clone, output[1])
    return tree_leaves(state)[0][:, None], state


def _passed_on(activation: Activation, cells: set[str]) -> list[Tensor]:
    """The tensors that later positions depend on: a recurrent state, or the input from which attention computes keys and
    values."""
    return tree_leaves(activation.output[1]) if activation.name in cells else [activation.inputs[0]]


def gradients_over_time(
    model: Any, tokens: Tensor, state: Any = None, progress: ProgressCallback = no_progress
) -> TimeGradients:
    """d loss / d h(i) of a model that predicts the next token, for the loss of the last of tokens (B, T + 2).

    Position i is the i-th token after the first, which is <s> or precedes the text.
    """
    modules, cells, num_steps = _recorded_modules(model), set(recurrent_modules(model)), tokens.size(1) - 1
    with (
        differentiable(),
        patch_activations(model, dict.fromkeys(cells, _separate_states)),
        record_activations(model, list(modules)) as activations,
    ):
        for step in range(num_steps):
            progress(step / num_steps, "")
            loss, state = model.loss(tokens[:, step : step + 1], tokens[:, step + 1 : step + 2], state)
    calls = {name: [activation for activation in activations if activation.name == name] for name in modules}
    # feed-forward layers and cross-attention pass nothing on
    names = [name for name, called in calls.items() if len(called) == num_steps and is_recurrent(called[-1])]
    states = [[_passed_on(activation, cells) for activation in calls[name][1:]] for name in names]
    flat = [tensor for layer in states for position in layer for tensor in position]
    gradients = iter(torch.autograd.grad(loss.sum(), flat, allow_unused=True))
    norms = [[_norm([next(gradients) for _ in position]) for position in layer] for layer in states]
    return TimeGradients(labels([modules[name] for name in names]), np.array(norms))


# ---- over layers


def gradients_by_layer(model: nn.Module, compute_loss: Callable[[], Tensor]) -> LayerGradients:
    """The gradient norms of a loss from the bottom to the top of each stack."""
    layers = [name for name in layers_of(model) if ".embedder." not in name]  # without character encoders
    with differentiable(), record_activations(model, layers) as activations:
        loss = compute_loss()
    first_calls = {activation.name: activation for activation in reversed(activations)}
    called = [name for name in layers if name in first_calls and first_calls[name].output[0].requires_grad]
    names, tensors = list[str](), list[Tensor]()
    for i, (name, label) in enumerate(zip(called, named_parts(model, called), strict=True)):
        if side_of(name) not in map(side_of, called[:i]):
            names.append("input" if side_of(name) == "layer" else f"{side_of(name)} input")
            tensors.append(first_calls[name].inputs[0])
        names.append(label)
        tensors.append(first_calls[name].output[0])
    gradients = torch.autograd.grad(loss, tensors, allow_unused=True)
    return LayerGradients(names, np.array([_norm([gradient]) for gradient in gradients]))


# ---- figures


def relative_norms(gradients: TimeGradients) -> np.ndarray:
    """The norms over all layers 1, 2, ... steps before the loss, relative to 1 step before, (T - 1,).

    The position of the loss is left out: the output depends on it directly, not through memory.
    """
    norms = gradients.total[-2::-1]
    relative: np.ndarray = norms / norms[0] if norms[0] else norms
    return relative


def hide_tiny_norms(norms: np.ndarray) -> list[float]:
    """Norms with NaN in place of values that would stretch a logarithmic axis until all others look equal."""
    visible: list[float] = np.where(norms >= MIN_RELATIVE_NORM * norms.max(), norms, math.nan).tolist()
    return visible


def time_figure(runs: Mapping[str, Mapping[str, TimeGradients]], *, title: str) -> str:
    """Gradients over time of several runs, by name and by UNTRAINED or TRAINED, in one plot."""
    series = [
        Series(
            f"{run}, {weights}",
            list(range(1, gradients.norms.shape[1])),
            hide_tiny_norms(relative_norms(gradients)),
            group=run,
            dashed=weights == UNTRAINED,
        )
        for run, by_weights in runs.items()
        for weights, gradients in by_weights.items()
    ]
    y_axis = Axis("gradient norm relative to 1 step back", log=True)
    return lines(series, x_axis=Axis(STEPS_BACK), y_axis=y_axis, title=title)


def _ticks(names: Sequence[str]) -> list[str]:
    """One tick label per layer, at its last sublayer: the names of all sublayers do not fit and are in the tooltips."""
    layers = [" ".join(name.split()[:2]) for name in names]
    return ["" if layers[i + 1 : i + 2] == [layer] else layer for i, layer in enumerate(layers)]


def layer_figure(runs: Mapping[str, Mapping[str, LayerGradients]], *, title: str) -> str:
    """Gradients by layer of several runs, by name and by UNTRAINED or TRAINED, in one plot."""
    series = [
        Series(
            f"{run}, {weights}",
            list(range(len(gradients.norms))),
            gradients.norms.tolist(),
            group=run,
            dashed=weights == UNTRAINED,
            labels=gradients.names,
        )
        for run, by_weights in runs.items()
        for weights, gradients in by_weights.items()
    ]
    deepest = max((gradients.names for by_weights in runs.values() for gradients in by_weights.values()), key=len)
    x_axis = Axis("layer", names=_ticks(deepest))
    return lines(series, x_axis=x_axis, y_axis=Axis("gradient norm", log=True), title=title)


def _time_by_layer_figure(by_weights: Mapping[str, TimeGradients], *, title: str) -> str:
    """Gradients over time of one run, a line per layer."""
    series = [
        Series(
            f"{layer}, {weights}",
            list(range(len(norms))),
            hide_tiny_norms(norms[::-1]),
            group=layer,
            dashed=weights == UNTRAINED,
        )
        for weights, gradients in by_weights.items()
        for layer, norms in zip(gradients.layers, gradients.norms, strict=True)
    ]
    return lines(series, x_axis=Axis(STEPS_BACK), y_axis=Axis("gradient norm", log=True), title=title)


# ---- the view


def reinitialized(run: AnyRun) -> nn.Module:
    """The network of a run with its initial weights."""
    config, task = run.config, run.config.preset.estimator.network_task
    if task is None:
        raise UsageError("view", f"{VIEW} is not available: {why_no_gradients(run)}")
    build = task.build(config, run.vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        model: nn.Module = build()
    return model.to(run.device)


def _tokens_up_to_loss(inputs: ModelInput, options: ExplainConfig) -> tuple[Tensor, int]:
    """The tokens (1, T + 2) up to the one whose loss is explained, and the position of that token, from 1."""
    side = inputs.sides[-1]
    next_token = inputs.targets[-1:] if inputs.targets else []
    tokens = [*side.tokens, *next_token]
    num_bos = max(1, side.prefix_length)  # <s>, or the tokens that precede a separate text
    last = len(tokens) - num_bos
    if last < 3:  # two before the loss: the output depends on one directly, the other is one step back
        fix = "set a longer `target`" if side.name == "output" else "use a longer text"
        raise DataError(side.name, f"gradient flow requires at least 3 tokens, got {last}", fix)
    position = options.position or last
    if not 3 <= position <= last:
        raise UsageError("position", f"must be from 3 to {last}, got {position}")
    return torch.tensor([tokens[: num_bos + position]]), position


class GradientFlow(NamedTuple):
    """The gradients of the loss of one token, by UNTRAINED and TRAINED."""

    tokens: list[TokenSpan]  # up to that token
    position: int  # of that token, from 1
    over_time: dict[str, TimeGradients]
    by_layer: dict[str, LayerGradients]

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": list_tokens(self.tokens),
            "position": self.position,
            "time": {weights: gradients.to_json() for weights, gradients in self.over_time.items()},
            "layers": {weights: gradients.to_json() for weights, gradients in self.by_layer.items()},
        }


def _measure(
    model: nn.Module, inputs: ModelInput, tokens: Tensor, progress: ProgressCallback
) -> tuple[TimeGradients, LayerGradients]:
    model64: Any = to_float64(model)
    device = next(model64.parameters()).device
    tokens = tokens.to(device)

    def initial_state() -> Any:
        """The decoder state from the source; None for a language model."""
        if len(inputs.sides) == 1:
            return None
        source = torch.tensor([inputs.sides[0].tokens], device=device)
        return model64.encode(source, torch.ones_like(source, dtype=torch.bool))

    def mean_loss() -> Tensor:
        losses, _ = model64.loss(tokens[:, :-1], tokens[:, 1:], initial_state())
        mean: Tensor = losses.mean()
        return mean

    with torch.no_grad():
        state = initial_state()
    return gradients_over_time(model64, tokens, state, progress), gradients_by_layer(model64, mean_loss)


def measure_gradient_flow(
    run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback = no_progress
) -> GradientFlow:
    """The gradients of the loss of one token (`position`; default: the last)."""
    inputs = read(run, text, options)
    token_ids, position = _tokens_up_to_loss(inputs, options)
    tokens = [*inputs.sides[-1].spans, *inputs.output_spans[-1:]][: token_ids.size(1)]
    gradients = {
        UNTRAINED: _measure(reinitialized(run), inputs, token_ids, sub_progress(progress, 0.0, 0.5)),
        TRAINED: _measure(inputs.model, inputs, token_ids, sub_progress(progress, 0.5, 1.0)),
    }
    over_time = {weights: time for weights, (time, _) in gradients.items()}
    by_layer = {weights: layers for weights, (_, layers) in gradients.items()}
    return GradientFlow(tokens, position, over_time, by_layer)


def _table(over_time: Mapping[str, TimeGradients]) -> list[str]:
    """The relative norms at some steps before the loss."""
    norms = [relative_norms(gradients) for gradients in over_time.values()]
    num_steps = len(norms[0])
    steps = [step for step in TABLE_STEPS if step < num_steps] + [num_steps]
    rows = [
        ["steps back", *over_time],
        *([f"{step:,}", *(f"{relative[step - 1]:.2g}" for relative in norms)] for step in steps),
    ]
    all_zero = [weights for weights, relative in zip(over_time, norms, strict=True) if not relative.any()]
    notes = [f"{weights}: all gradients are zero" for weights in all_zero]
    return [*align_columns(rows, left=()), "gradient norm relative to one step back", *notes]


def why_no_gradients(run: AnyRun) -> str | None:
    """The reason why a run has no gradients; None if it has."""
    if network(run) is None:
        return f"{run.config.arch} has no gradients"
    return None


def gradient_flow(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback = no_progress) -> Explanation:
    """The gradient of the loss of one token over the preceding text and the layers."""
    flow, arch = measure_gradient_flow(run, text, options, progress), run.config.arch
    figures = [
        Figure(
            "Gradient norm over time, by layer",
            _time_by_layer_figure(flow.over_time, title=f"{arch}: gradient norm over time"),
        ),
        Figure("Gradient norm by layer", layer_figure({arch: flow.by_layer}, title=f"{arch}: gradient norm by layer")),
    ]
    title = f"Gradient flow from the loss of token {flow.position}"
    return Explanation(VIEW, title, flow.to_json(), figures, _table(flow.over_time), guides.GRADIENTS)
