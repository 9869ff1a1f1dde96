"""Recurrent units: hidden states, cell states and gates over a text, and the units that correlate with its features.

Shapes: T positions, D units, N tokens of the text that units are correlated on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.activations import TOKENS, UNITS, Scores, layer_table, output_scores, score_table
from weft.explain.explanation import Explanation, Figure, TokenSpan, align_columns, list_tokens
from weft.explain.hooks import record_activations
from weft.explain.inputs import ModelInput, explain_spec, network, read
from weft.explain.options import ExplainConfig
from weft.explain.recurrent_gates import cell_values, recurrent_modules
from weft.explain.stacks import stack_of
from weft.explain.unit_correlations import UnitCorrelation, rank_units, token_features
from weft.plots.diverging_heatmap import diverging_heatmap
from weft.plots.lines import Axis, Series, lines
from weft.plots.token_heatmap import token_heatmap
from weft.runs.run import AnyRun

SAMPLE_CHARS = 4000  # of the validation data that units are correlated on
MIN_TOKENS = 50  # correlations over fewer tokens are not reported
MIN_CORRELATION = 0.3  # |r| from which a unit gets a figure
MAX_UNITS = 24  # per heat map
MAX_COLUMNS = 72  # tokens per heat map
STATES = ("hidden", "cell")  # the quantities that are correlated with features


class LayerActivations(NamedTuple):
    """The activations of one recurrent layer over a text; a bidirectional layer counts as two."""

    number: int  # from 1
    name: str  # of the module
    tokens: list[TokenSpan]  # T
    values: dict[str, np.ndarray]  # by quantity, (T, D)


def _is_backward(name: str, inputs: ModelInput) -> bool:
    """Whether a layer reads the sequence from its end."""
    stack = stack_of(name, inputs.stacks)
    return name.endswith(".backward_mixer") != (stack is not None and stack.backwards)


def _input_tokens(inputs: ModelInput, name: str, length: int) -> list[TokenSpan]:
    """The `length` tokens that a layer reads: those of its own side or another, or words; numbers if nothing matches."""
    stack = stack_of(name, inputs.stacks)
    sides = sorted(inputs.sides, key=lambda side: stack is None or side.name != stack.side)
    candidates = [*(side.spans for side in sides), inputs.output_spans]
    numbered = [TokenSpan(str(number), 0, 0) for number in range(1, length + 1)]
    return next((tokens for tokens in candidates if len(tokens) == length), numbered)


def _recurrent_layers(model: nn.Module) -> list[str]:
    """The names of the recurrent layers, without those of character encoders."""
    return [name for name in recurrent_modules(model) if ".embedder." not in name]


def why_no_units(run: AnyRun) -> str | None:
    """The reason why a run has no recurrent units; None if it has."""
    model = network(run)
    if model is not None and _recurrent_layers(model):
        return None
    return f"architecture {run.config.arch!r} has no recurrent layers"


@torch.no_grad()
def layer_activations(run: AnyRun, inputs: ModelInput) -> list[LayerActivations]:
    """States and gates of every recurrent layer, positions in the order of the text."""
    names, layers = _recurrent_layers(inputs.model), list[LayerActivations]()
    with record_activations(inputs.model, names) as activations:
        inputs.log_probs(torch.zeros(1, dtype=torch.long, device=run.device))
    for number, name in enumerate(names, 1):
        # a decoder with input feeding is called once per position
        calls = [cell_values(activation) for activation in activations if activation.name == name]
        values = {
            quantity: np.concatenate([call[quantity][0].double().cpu().numpy() for call in calls]) for quantity in calls[0]
        }
        if _is_backward(name, inputs):
            values = {quantity: array[::-1] for quantity, array in values.items()}
        layers.append(LayerActivations(number, name, _input_tokens(inputs, name, len(values["hidden"])), values))
    return layers


# ---- correlation with features of the text


def _concatenate(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _states_and_features(
    layers: Sequence[LayerActivations], text: str
) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """The states of each layer by quantity, (N, D), and the features, (N,), at the tokens of the text, without special
    tokens. All layers must read the same tokens."""
    tokens = layers[0].tokens
    in_text = np.array([token.end > token.start for token in tokens])
    states = [{name: layer.values[name][in_text] for name in STATES if name in layer.values} for layer in layers]
    return states, token_features(text, [token for token in tokens if token.end > token.start])


def correlate(
    run: AnyRun, text: str, layers: Sequence[LayerActivations], options: ExplainConfig
) -> tuple[str, int, list[UnitCorrelation]]:
    """The name of the data that units are correlated on, its number of tokens, and the best units for each feature."""
    sample = explain_spec(run).sample_texts
    split, texts = ("", list[str]()) if sample is None else sample(run, SAMPLE_CHARS)
    if texts:
        samples = [(read(run, sample_text, ExplainConfig()), sample_text) for sample_text in texts]
        measured = [_states_and_features(layer_activations(run, inputs), sample_text) for inputs, sample_text in samples]
    else:
        # a decoder reads another text than the encoder: use the layers that read the same text as the first
        first = [token.text for token in layers[0].tokens]
        layers = [layer for layer in layers if [token.text for token in layer.tokens] == first]
        measured = [_states_and_features(layers, text)]
    measured = [(states, features) for states, features in measured if features]
    if not measured:
        return split or "the text", 0, []
    features = _concatenate([features for _, features in measured])
    num_tokens = len(next(iter(features.values())))
    if num_tokens < MIN_TOKENS:
        return split or "the text", num_tokens, []
    selected = [
        (layer.number, _concatenate([states[i] for states, _ in measured]))
        for i, layer in enumerate(layers)
        if options.layer in (None, layer.number)
    ]
    return split or "the text", num_tokens, rank_units(selected, features, options.top)


def _layer_text(layer: LayerActivations, inputs: ModelInput, text: str, options: ExplainConfig) -> str:
    """The text that a layer reads: the output if it belongs to a decoder."""
    stack = stack_of(layer.name, inputs.stacks)
    return text if stack is None or stack.side == inputs.sides[0].name else options.target or inputs.output_text


# ---- figures


def _most_variable_units(layer: LayerActivations, limit: int) -> list[int]:
    """The units whose hidden state varies most, from 1, in ascending order."""
    deviation = layer.values["hidden"].std(0)
    return sorted(1 + int(i) for i in np.argsort(-deviation, kind="stable")[:limit])


def _select_units(layer: LayerActivations, options: ExplainConfig) -> list[int]:
    """The requested units, from 1, or else those that vary most."""
    hidden_size = layer.values["hidden"].shape[1]
    if invalid := [unit for unit in options.unit if unit > hidden_size]:
        raise UsageError("unit", f"must be from 1 to {hidden_size} in layer {layer.number}, got {invalid[0]}")
    return options.unit or _most_variable_units(layer, MAX_UNITS)


def _heatmaps(values: np.ndarray, rows: Sequence[str], tokens: Sequence[TokenSpan], title: str, name: str) -> Iterator[Figure]:
    """Values (rows, T) as heat maps of about equal width, with at most MAX_COLUMNS tokens each."""
    num_maps = -(-len(tokens) // MAX_COLUMNS)
    size = -(-len(tokens) // num_maps)
    for start in range(0, len(tokens), size):
        columns = [token.text for token in tokens[start : start + size]]
        caption = title + (f", tokens {start + 1} to {start + len(columns)}" if num_maps > 1 else "")
        svg = diverging_heatmap(values[:, start : start + size], rows=rows, columns=columns, title=caption, name=name)
        yield Figure(caption, svg)


def _layer_figures(layer: LayerActivations, units: Sequence[int]) -> Iterator[Figure]:
    """The hidden states of some units, and the mean of each gate over all units."""
    hidden = layer.values["hidden"][:, [unit - 1 for unit in units]].T
    title = f"Layer {layer.number}: hidden states of {len(units)} units"
    yield from _heatmaps(hidden, [str(unit) for unit in units], layer.tokens, title, "hidden state")
    gates = [name for name in layer.values if name.endswith("gate")]
    if gates:
        x, labels = list(range(1, 1 + len(layer.tokens))), [token.text for token in layer.tokens]
        series = [Series(name, x, layer.values[name].mean(1).tolist(), labels=labels) for name in gates]
        title = f"Layer {layer.number}: gate activations, mean over units"
        yield Figure(title, lines(series, x_axis=Axis("token"), y_axis=Axis("gate (0 closed, 1 open)"), title=title))


def _unit_figures(layer: LayerActivations, unit: int) -> Iterator[Figure]:
    """The text colored by the state of one unit, and all its states and gates."""
    title = f"Layer {layer.number}, unit {unit}"
    state = "cell" if "cell" in layer.values else "hidden"
    caption = f"{title}: {state}"
    tokens = [token.text for token in layer.tokens]
    yield Figure(caption, token_heatmap(tokens, layer.values[state][:, unit - 1], name=state, title=caption))
    values = np.stack([array[:, unit - 1] for array in layer.values.values()])
    rows = [name.removesuffix(" gate") for name in layer.values]
    yield from _heatmaps(values, rows, layer.tokens, title, "states, gates and candidate")


def _correlation_figures(layers: Sequence[LayerActivations], correlations: Sequence[UnitCorrelation]) -> Iterator[Figure]:
    """The text colored by the best unit for each feature, strongest correlation first."""
    best = {unit.feature: unit for unit in reversed(correlations) if abs(unit.r) >= MIN_CORRELATION}
    for unit in sorted(best.values(), key=lambda unit: -abs(unit.r)):
        layer = next(layer for layer in layers if layer.number == unit.layer)
        title = f"{unit.feature}: unit {unit.unit} of layer {unit.layer}, r = {unit.r:.2f}"
        values = layer.values[unit.quantity][:, unit.unit - 1]
        yield Figure(title, token_heatmap([token.text for token in layer.tokens], values, name=unit.quantity, title=title))


def _layer_json(layer: LayerActivations, units: Sequence[int]) -> dict[str, Any]:
    """The selected units, (units, T) per quantity."""
    columns = [unit - 1 for unit in units]
    values = {name: array[:, columns].T.round(6).tolist() for name, array in layer.values.items()}
    return {"layer": layer.number, "part": layer.name, "tokens": list_tokens(layer.tokens), "units": list(units), **values}


# ---- text


def _activation_tables(layers: Sequence[LayerActivations], options: ExplainConfig, scores: Scores | None) -> list[str]:
    """One table per layer that reads a short text: all units if there are few, else those that vary most."""
    table = list[str]()
    for layer in layers:
        if len(layer.tokens) <= TOKENS:
            hidden_size = layer.values["hidden"].shape[1]
            units = options.unit[:UNITS] or _most_variable_units(layer, hidden_size if hidden_size <= UNITS else options.top)
            title = f"layer {layer.number}" + (f", {len(units)} of {hidden_size} units" if len(units) < hidden_size else "")
            table += [*layer_table(title, layer.tokens, layer.values, units), ""]
    return table if scores is None or not table else [*table, *score_table(layers[0].tokens, scores), ""]


def _correlation_table(correlations: Sequence[UnitCorrelation], sample: str) -> list[str]:
    if not correlations:
        return [f"too few tokens to correlate units with features of the text: {sample}"]
    rows = [["feature", "layer", "unit", "state", "r"]]
    rows += [[unit.feature, str(unit.layer), str(unit.unit), unit.quantity, f"{unit.r:+.3f}"] for unit in correlations]
    return [*align_columns(rows, left=(0, 3)), f"correlations over {sample}"]


def units(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """Hidden states, cell states and gates of recurrent layers over a text, and the units that correlate with quotes,
    brackets, lines and words. `layer` and `unit` select."""
    inputs = read(run, text, options)
    layers = layer_activations(run, inputs)
    if options.layer is not None and options.layer > len(layers):
        raise UsageError("layer", f"must be from 1 to {len(layers)}, got {options.layer}")
    split, num_tokens, correlations = correlate(run, _layer_text(layers[0], inputs, text, options), layers, options)
    selected = [(layer, _select_units(layer, options)) for layer in layers if options.layer in (None, layer.number)]
    figures = list[Figure]() if options.unit else [*_correlation_figures(layers, correlations)]
    for layer, layer_units in selected:
        if options.unit:
            figures += [figure for unit in options.unit for figure in _unit_figures(layer, unit)]
        else:
            figures += _layer_figures(layer, layer_units)
    scores = output_scores(inputs)
    data = {
        "tokens": list_tokens(layers[0].tokens),
        **({} if scores is None else {"output": scores.to_json()}),
        "follows": [unit.to_json() for unit in correlations],
        "judged": {"by": split, "tokens": num_tokens},
        "layers": [_layer_json(layer, layer_units) for layer, layer_units in selected],
    }
    sample = f"{num_tokens:,} tokens of {split if split == 'the text' else f'the {split} data'}"
    lines = [
        *_activation_tables([layer for layer, _ in selected], options, scores),
        *_correlation_table(correlations, sample),
    ]
    return Explanation("units", f"Recurrent units of {run.config.arch}", data, figures, lines, guides.UNITS)
