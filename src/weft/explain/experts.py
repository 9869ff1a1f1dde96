"""Which experts take which tokens of a text, and how much each expert is used.

Shapes: T tokens, K experts per token, E experts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.explanation import TRUNCATED, Explanation, Figure, TokenSpan, align_columns, list_tokens
from weft.explain.hooks import record_activations
from weft.explain.inputs import ModelInput, explain_spec, network, read
from weft.explain.options import ExplainConfig
from weft.explain.stacks import side_of, stack_of
from weft.nn.experts import RoutesTokens, expert_layers
from weft.nn.stack import layer_indices
from weft.plots.formatting import on_one_line
from weft.plots.token_table import TokenGuess, token_table
from weft.runs.run import AnyRun
from weft.text.reading import pluralize

VIEW = "experts"
SAMPLE_CHARS = 4000  # of the run's data, to measure the load on


class RoutedLayer(NamedTuple):
    """The experts of one layer for the tokens of a text."""

    label: str  # such as `decoder 2`
    spans: list[TokenSpan]  # T
    experts: np.ndarray  # int64 (T, K), from 0
    gates: np.ndarray  # float32 (T, K)
    num_experts: int


def expert_modules(model: nn.Module) -> dict[str, RoutesTokens]:
    """The mixture-of-experts layers by name, without those of a character encoder, whose positions are not tokens."""
    return {name: layer for name, layer in expert_layers(model).items() if ".char_encoder." not in name}


def why_no_experts(run: AnyRun) -> str | None:
    """Why the view is not available, or None."""
    model = network(run)
    return None if model is not None and expert_modules(model) else f"{run.config.arch} has no experts (model.num_experts)"


def _labels(model: nn.Module, names: Sequence[str]) -> list[str]:
    """`layer 1`, or `decoder 1`; a layer with two of them has `layer 1` and `layer 1 (2)`."""
    indices = layer_indices(model)
    labels = list[str]()
    for name in names:
        index = max((len(layer), index) for layer, index in indices.items() if name.startswith(f"{layer}."))[1]
        label = f"{side_of(name)} {index + 1}"
        labels.append(f"{label} (2)" if label in labels else label)
    return labels


@torch.no_grad()
def routed_layers(run: AnyRun, model_input: ModelInput) -> list[RoutedLayer]:
    """The experts of all tokens in all layers, from one forward pass."""
    model = model_input.model
    modules, sides = expert_modules(model), {side.name: side.spans for side in model_input.sides}
    with record_activations(model, [f"{name}.router" for name in modules]) as calls:
        model_input.log_probs(torch.zeros(1, dtype=torch.long, device=run.device))
    layers = []
    for (name, module), label in zip(modules.items(), _labels(model, list(modules)), strict=True):
        # input feeding, and attention before the recurrent step, call a layer position by position
        outputs = [call.output for call in calls if call.name == f"{name}.router"]
        experts, gates = (torch.cat([output[part] for output in outputs]).cpu().numpy() for part in (0, 1))
        stack = stack_of(name, model_input.stacks)
        spans = next(iter(sides.values())) if stack is None else sides[stack.side]
        if stack is not None and stack.backwards:
            experts, gates = experts[::-1], gates[::-1]
        layers.append(RoutedLayer(label, spans, experts[: len(spans)], gates[: len(spans)], module.router.num_experts))
    return layers


# ---- the load


def expert_load(layers: Sequence[RoutedLayer]) -> np.ndarray:
    """The fraction of the tokens' uses that each expert of a layer has, (E,), over several texts."""
    chosen = np.concatenate([layer.experts.flatten() for layer in layers])
    return np.bincount(chosen, minlength=layers[0].num_experts) / max(1, len(chosen))


def _frequent_tokens(layers: Sequence[RoutedLayer], expert: int, top: int) -> list[str]:
    """The tokens that an expert takes most often, over several texts."""
    counts = Counter[str]()
    for layer in layers:
        counts.update(layer.spans[row].text for row in np.flatnonzero((layer.experts == expert).any(1)).tolist())
    return [text for text, _ in counts.most_common(top)]


def _measure(run: AnyRun, layers: list[RoutedLayer]) -> tuple[str, list[list[RoutedLayer]]]:
    """The data that the load is measured on, and its routed layers: for each layer, one entry per text."""
    sample = explain_spec(run).sample_texts
    split, texts = ("", list[str]()) if sample is None else sample(run, SAMPLE_CHARS)
    if not texts:
        return "the text", [[layer] for layer in layers]
    samples = [routed_layers(run, read(run, text, ExplainConfig())) for text in texts]
    return f"{split} data", [list(layer) for layer in zip(*samples, strict=True)]


# ---- figures


def _token_figure(layers: Sequence[RoutedLayer]) -> Figure:
    """The experts of each token: a row per layer that reads these tokens, the last layer at the top."""
    rows = []
    for layer in reversed(layers):
        hues = [360 * expert // layer.num_experts for expert in range(layer.num_experts)]
        cells = []
        for experts, gates in zip(layer.experts.tolist(), layer.gates.tolist(), strict=True):
            tooltip = "\n".join(f"expert {e + 1}  {gate:.3f}" for e, gate in zip(experts, gates, strict=True))
            cells.append(TokenGuess("+".join(str(e + 1) for e in experts), min(1.0, gates[0]), tooltip, hue=hues[experts[0]]))
        rows.append(cells)
    table = token_table(
        rows,
        rows=[layer.label for layer in reversed(layers)],
        columns=[span.text for span in layers[0].spans],
        corner="input",
        note="weight of the first expert, which has the color",
    )
    return Figure("Experts of each token", table)


def _load_figure(labels: Sequence[str], loads: Sequence[np.ndarray], data: str) -> Figure:
    width = max(map(len, loads))
    rows = [
        [TokenGuess(f"{load:.0%}", float(load), f"{label}, expert {e + 1}: {load:.1%}") for e, load in enumerate(layer)]
        + [TokenGuess("", 0.0, "")] * (width - len(layer))
        for label, layer in zip(labels, loads, strict=True)
    ]
    columns = [str(expert) for expert in range(1, width + 1)]
    note = f"fraction of the work of the layer, on {data}"
    return Figure(
        "Load of each expert", token_table(rows[::-1], rows=labels[::-1], columns=columns, corner="expert", note=note)
    )


def experts(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The experts that each layer uses for each token, and the load of all experts on the run's data or on the text."""
    model_input = read(run, text, options)
    layers = routed_layers(run, model_input)
    data_name, measured = _measure(run, layers)
    if options.layer is not None:
        selected = [i for i, layer in enumerate(layers) if layer.label.split()[1] == str(options.layer)]
        if not selected:
            raise UsageError("layer", f"no layer {options.layer} has experts", f"choose from {_numbers(layers)}")
        layers, measured = [layers[i] for i in selected], [measured[i] for i in selected]
    loads = [expert_load(entries) for entries in measured]
    num_tokens = sum(len(entry.spans) for entry in measured[0])
    table: list[Sequence[str]] = [("layer", "expert", "load", "most frequent tokens")]
    rows = list[dict[str, Any]]()
    for layer, entries, load in zip(layers, measured, loads, strict=True):
        frequent = [_frequent_tokens(entries, expert, options.top) for expert in range(layer.num_experts)]
        for expert, tokens in enumerate(frequent):
            shown = " ".join(repr(on_one_line(token)) for token in tokens)
            table.append((layer.label, str(expert + 1), f"{load[expert]:.1%}", shown))
        rows.append(
            {
                "layer": layer.label,
                "tokens": list_tokens(layer.spans),
                "experts": (layer.experts + 1).tolist(),
                "weights": [[round(gate, 6) for gate in gates] for gates in layer.gates.tolist()],
                "load": [round(value, 6) for value in load.tolist()],
                "frequent_tokens": frequent,
            }
        )
    sides: dict[tuple[str, ...], list[RoutedLayer]] = {}
    for layer in layers:  # an encoder and a decoder read different tokens
        sides.setdefault(tuple(span.text for span in layer.spans), []).append(layer)
    figures = [_token_figure(group) for group in sides.values()]
    figures.append(_load_figure([layer.label for layer in layers], loads, data_name))
    lines = [f"load on {pluralize(num_tokens, 'token')} of the {data_name.removeprefix('the ')}"]
    lines += align_columns(table, left=(0, 3))
    lines += [TRUNCATED] if model_input.truncated else []
    content = {"tokens": list_tokens(layers[0].spans), "data": data_name, "layers": rows}
    return Explanation(VIEW, f"Experts of {run.directory.path}", content, figures, lines, guides.EXPERTS)


def _numbers(layers: Sequence[RoutedLayer]) -> str:
    return ", ".join(dict.fromkeys(layer.label.split()[1] for layer in layers))
