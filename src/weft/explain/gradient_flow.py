"""Gradient flow: the norm of d loss(t) / d h(i) over time and layers, before and after training.

A fused kernel hides its recurrence: gradients at its outputs are 0 for every earlier position. So a text is read one position
at a time, and what each layer hands on to later ones is watched: the state of a recurrent layer, what attention reads.

Shapes: B rows, T positions, L layers, D width.
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
STARTED, TRAINED = "untrained", "trained"
BACK = "steps before the loss"
PROGRESS_EVERY = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # steps back that a terminal is told of
FLOOR = 1e-20  # a line that falls below this share of its highest ends there


class TimeGradients(NamedTuple):
    """Norms of the gradient of one loss, the root of the mean square over rows."""

    layers: list[str]  # lowest first
    norms: np.ndarray  # (L, T) float64: at what each layer hands on at each position; the last is where the loss is

    @property
    def together(self) -> np.ndarray:
        """Of all layers as one, (T,)."""
        found: np.ndarray = np.sqrt((self.norms**2).sum(0))
        return found

    def to_json(self) -> dict[str, Any]:
        return {"layers": self.layers, "norms": self.norms.tolist()}


class LayerGradients(NamedTuple):
    """Norms of the gradient of a loss at what stands below the first layer and above each, lowest first."""

    places: list[str]
    norms: np.ndarray

    def to_json(self) -> dict[str, Any]:
        return {"places": self.places, "norms": self.norms.tolist()}


def exact(model: nn.Module) -> nn.Module:
    """A copy in float64, where a gradient may shrink by 1e-40 and not be lost."""
    return copy.deepcopy(model).double().eval()


# ---- over time


def _watched_parts(model: nn.Module) -> dict[str, str]:
    """The parts to watch, and the layer that each is: the cell of a recurrent layer, other layers themselves."""
    cells, found = recurrent_modules(model), dict[str, str]()
    for layer in layers_of(model):
        own = [name for name in cells if name.startswith(f"{layer}.")]
        found |= dict.fromkeys(own, layer) if own else {layer: layer}
    return found


def _apart(output: Any) -> Any:
    """What a recurrent part gives at one position, h and c each by itself: all that comes after reads these, and what made
    the one from the other stays behind."""
    state = tree_map(torch.clone, output[1])
    return tree_leaves(state)[0][:, None], state


def _handed_on(seen: Activation, cells: set[str]) -> list[Tensor]:
    """What later positions see of this one: a recurrent state, or what attention makes its keys and values from."""
    return tree_leaves(seen.output[1]) if seen.name in cells else [seen.inputs[0]]


def _norm(gradients: Sequence[Tensor | None]) -> float:
    """Over all numbers of a row, and the root of the mean square over rows."""
    squares = [gradient.double().flatten(1).square().sum(1) for gradient in gradients if gradient is not None]
    return float(torch.stack(squares).sum(0).mean().sqrt()) if squares else 0.0


def through_time(model: Any, tokens: Tensor, state: Any = None, progress: ProgressCallback = no_progress) -> TimeGradients:
    """d loss / d h(i) of a model that predicts next tokens, where the loss is that of the last of tokens (B, T + 2).

    Position i is the i-th token after the first, which starts the text and belongs to nobody.
    """
    parts, cells = _watched_parts(model), set(recurrent_modules(model))
    with (
        differentiable(),
        patch_activations(model, dict.fromkeys(cells, _apart)),
        record_activations(model, list(parts)) as seen,
    ):
        for at in range(tokens.size(1) - 1):
            progress(at / (tokens.size(1) - 1), "")
            nats, state = model.loss(tokens[:, at : at + 1], tokens[:, at + 1 : at + 2], state)
    calls = {name: [one for one in seen if one.name == name] for name in parts}
    chosen = [name for name, own in calls.items() if len(own) == tokens.size(1) - 1 and is_recurrent(own[-1])]
    handed = [[_handed_on(one, cells) for one in calls[name][1:]] for name in chosen]
    flat = [tensor for layer in handed for part in layer for tensor in part]
    found = iter(torch.autograd.grad(nats.sum(), flat, allow_unused=True))
    norms = [[_norm([next(found) for _ in part]) for part in layer] for layer in handed]
    return TimeGradients(labels([parts[name] for name in chosen]), np.array(norms))


# ---- over layers


def through_layers(model: nn.Module, loss: Callable[[], Tensor]) -> LayerGradients:
    """The norms over a stack, bottom to top, of the gradient of what `loss` computes with the model."""
    names = [name for name in layers_of(model) if ".embedder." not in name]  # those spell words, letter by letter
    with differentiable(), record_activations(model, names) as seen:
        value = loss()
    first = {one.name: one for one in reversed(seen)}
    called = [name for name in names if name in first and first[name].output[0].requires_grad]
    places, tensors = list[str](), list[Tensor]()
    for at, (name, place) in enumerate(zip(called, named_parts(model, called), strict=True)):
        if side_of(name) not in map(side_of, called[:at]):
            places.append("read" if side_of(name) == "layer" else f"{side_of(name)} reads")
            tensors.append(first[name].inputs[0])
        places.append(place)
        tensors.append(first[name].output[0])
    found = torch.autograd.grad(value, tensors, allow_unused=True)
    return LayerGradients(places, np.array([_norm([gradient]) for gradient in found]))


# ---- pictures


def relative_norms(flow: TimeGradients) -> np.ndarray:
    """The norms over all layers, 1, 2, ... steps before the loss, as fractions of the first, (T - 1,).

    What is newest does not count: the output reads it directly, and that says nothing of memory.
    """
    back = flow.together[-2::-1]
    found: np.ndarray = back / back[0] if back[0] else back
    return found


def drawable(norms: np.ndarray) -> list[float]:
    """Norms without those that are so small that all others would look alike beside them."""
    found: list[float] = np.where(norms >= FLOOR * norms.max(), norms, math.nan).tolist()
    return found


def time_figure(flows: Mapping[str, Mapping[str, TimeGradients]], *, title: str) -> str:
    """Several models in one chart: by name, before and after training."""
    series = [
        Series(f"{name}, {when}", list(range(1, flow.norms.shape[1])), drawable(relative_norms(flow)), name, when == STARTED)
        for name, both in flows.items()
        for when, flow in both.items()
    ]
    return lines(
        series,
        across=Axis(BACK),
        up=Axis("gradient norm relative to 1 step back", log=True),
        title=title,
    )


def _ticks(places: Sequence[str]) -> list[str]:
    """One name per layer, at its last part: the names of all parts do not fit, and are in the tooltips."""
    layers = [" ".join(place.split()[:2]) for place in places]
    return ["" if layers[at + 1 : at + 2] == [layer] else layer for at, layer in enumerate(layers)]


def depth_figure(depths: Mapping[str, Mapping[str, LayerGradients]], *, title: str) -> str:
    """Several models in one chart: what arrives at each layer, lowest first."""
    series = [
        Series(f"{name}, {when}", list(range(len(depth.norms))), depth.norms.tolist(), name, when == STARTED, depth.places)
        for name, both in depths.items()
        for when, depth in both.items()
    ]
    max_length = max((depth.places for both in depths.values() for depth in both.values()), key=len)
    across = Axis("layer", names=_ticks(max_length))
    return lines(series, across=across, up=Axis("gradient norm", log=True), title=title)


def _layer_picture(both: Mapping[str, TimeGradients], *, title: str) -> str:
    """One model, layer by layer."""
    series = [
        Series(f"{name}, {when}", list(range(flow.norms.shape[1])), drawable(own[::-1]), name, when == STARTED)
        for when, flow in both.items()
        for name, own in zip(flow.layers, flow.norms, strict=True)
    ]
    return lines(series, across=Axis(BACK), up=Axis("gradient norm", log=True), title=title)


# ---- the view


def reinitialized(run: AnyRun) -> nn.Module:
    """The network of a run as it was before its first step."""
    config, shape = run.config, run.config.preset.estimator.network_task
    if shape is None:
        raise UsageError("view", f"{VIEW} is not available: {why_no_gradients(run)}")
    build = shape.build(config, run.vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        model: nn.Module = build()
    return model.to(run.device)


def _tokens(reading: ModelInput, options: ExplainConfig) -> tuple[Tensor, int]:
    """What is read, (1, T + 2), to the token whose loss is meant, and how many tokens there are to choose from."""
    side = reading.sides[-1]
    following = reading.targets[-1:] if reading.targets else []
    every = [*side.tokens, *following]
    before = max(1, side.prefix_length)  # <s>, or what else the text comes after
    last = len(every) - before
    if last < 3:  # two before the loss: the newest is read directly, the other is one step back
        fix = "set a longer `target`" if side.name == "output" else "use a longer text"
        raise DataError(side.name, f"gradient flow requires at least 3 tokens, got {last}", fix)
    at = options.position or last
    if not 3 <= at <= last:
        raise UsageError("position", f"must be from 3 to {last}, got {at}")
    return torch.tensor([every[: before + at]]), at


class GradientFlow(NamedTuple):
    """What was read, and the gradients of the loss of its last token, at the start of training and after it."""

    pieces: list[TokenSpan]
    position: int  # of that token, from 1
    flows: dict[str, TimeGradients]  # by STARTED and TRAINED
    depths: dict[str, LayerGradients]

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": list_tokens(self.pieces),
            "position": self.position,
            "time": {when: flow.to_json() for when, flow in self.flows.items()},
            "layers": {when: depth.to_json() for when, depth in self.depths.items()},
        }


def _followed(
    model: nn.Module, reading: ModelInput, tokens: Tensor, progress: ProgressCallback
) -> tuple[TimeGradients, LayerGradients]:
    doubled: Any = exact(model)
    place = next(doubled.parameters()).device
    tokens = tokens.to(place)

    def state() -> Any:
        if len(reading.sides) == 1:
            return None
        source = torch.tensor([reading.sides[0].tokens], device=place)
        return doubled.encode(source, torch.ones_like(source, dtype=torch.bool))

    def loss() -> Tensor:
        nats, _ = doubled.loss(tokens[:, :-1], tokens[:, 1:], state())
        mean: Tensor = nats.mean()
        return mean

    with torch.no_grad():
        known = state()
    return through_time(doubled, tokens, known, progress), through_layers(doubled, loss)


def measure_gradient_flow(
    run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback = no_progress
) -> GradientFlow:
    """The gradients of the loss of one token (--position; the last)."""
    reading = read(run, text, options)
    tokens, at = _tokens(reading, options)
    pieces = [*reading.sides[-1].spans, *reading.output_spans[-1:]][: tokens.size(1)]
    found = {
        STARTED: _followed(reinitialized(run), reading, tokens, sub_progress(progress, 0.0, 0.5)),
        TRAINED: _followed(reading.model, reading, tokens, sub_progress(progress, 0.5, 1.0)),
    }
    flows, depths = {when: flow for when, (flow, _) in found.items()}, {when: depth for when, (_, depth) in found.items()}
    return GradientFlow(pieces, at, flows, depths)


def _lines(flows: Mapping[str, TimeGradients]) -> list[str]:
    """The share that is left after some steps, for a terminal."""
    fractions = [relative_norms(flow) for flow in flows.values()]
    far = len(fractions[0])
    chosen = [step for step in PROGRESS_EVERY if step < far] + [far]
    rows = [
        ["steps back", *flows],
        *([f"{step:,}", *(f"{fraction[step - 1]:.2g}" for fraction in fractions)] for step in chosen),
    ]
    none = [f"{when}: all gradients are zero" for when, fraction in zip(flows, fractions, strict=True) if not fraction.any()]
    return [*align_columns(rows, left=()), "gradient norm relative to one step back", *none]


def why_no_gradients(run: AnyRun) -> str | None:
    """Why no gradients of a run are followed, if they are not."""
    if network(run) is None:
        return f"{run.config.arch} has no gradients"
    return None


def gradient_flow(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback = no_progress) -> Explanation:
    """How the loss of one token reaches back through the text and down the layers."""
    found, name = measure_gradient_flow(run, text, options, progress), run.config.arch
    pictures = [
        Figure("Gradient norm over time, by layer", _layer_picture(found.flows, title=f"{name}: gradient norm over time")),
        Figure("Gradient norm by layer", depth_figure({name: found.depths}, title=f"{name}: gradient norm by layer")),
    ]
    title = f"Gradient flow from the loss of token {found.position}"
    return Explanation(VIEW, title, found.to_json(), pictures, _lines(found.flows), guides.GRADIENTS)
