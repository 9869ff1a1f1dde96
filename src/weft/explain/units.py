"""Inside recurrent networks: what units, gates and cell states do while a text is read, and which units follow what in it.

Shapes: T positions, D units, N tokens of the longer text that units are judged by.
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
from weft.explain.inputs import ModelInput, explaining, network, read
from weft.explain.options import ExplainConfig
from weft.explain.recurrent_gates import cell_values, recurrent
from weft.explain.stacks import stack_of
from weft.explain.unit_correlations import UnitCorrelation, features, ranked
from weft.plots.diverging_heatmap import diverging_heatmap
from weft.plots.lines import Axis, Series, lines
from weft.plots.token_heatmap import token_heatmap
from weft.runs.run import AnyRun

JUDGED, FEW = 4000, 50  # characters of text that units are judged by; tokens that are too few
DRAWN = 24  # units of a layer in one heat map
BAND = 72  # tokens side by side in one
TOLD = ("hidden", "cell")  # what may follow something in the text
MAX_UNITS = 0.3  # a smaller correlation is none, over so few tokens


class Layer(NamedTuple):
    """What went on in one recurrent layer; a layer that reads from both ends is two."""

    number: int  # from 1
    name: str  # as in the model
    pieces: list[TokenSpan]  # T
    values: dict[str, np.ndarray]  # by quantity, (T, D)


def _backwards(name: str, reading: ModelInput) -> bool:
    """Whether a part reads from the end."""
    stack = stack_of(name, reading.stacks)
    return name.endswith(".backward_mixer") != (stack is not None and stack.backwards)


def _pieces(reading: ModelInput, name: str, length: int) -> list[TokenSpan]:
    """The token spans at the positions that a part reads: of its own sequence, or words."""
    stack = stack_of(name, reading.stacks)
    sides = sorted(reading.sides, key=lambda side: stack is None or side.name != stack.side)
    known = [*(side.pieces for side in sides), reading.places]
    return next(
        (pieces for pieces in known if len(pieces) == length), [TokenSpan(str(at), 0, 0) for at in range(1, length + 1)]
    )


def _names(model: nn.Module) -> list[str]:
    """The recurrent layers, without those that spell words letter by letter."""
    return [name for name in recurrent(model) if ".embedder." not in name]


def why_no_units(run: AnyRun) -> str | None:
    """Why a run has no recurrent units, if it has none."""
    model = network(run)
    return None if model is not None and _names(model) else f"a run of kind {run.config.arch!r} has no recurrent layer"


@torch.no_grad()
def layers(run: AnyRun, reading: ModelInput) -> list[Layer]:
    """Every recurrent layer of a run's network while it reads."""
    names, found = _names(reading.model), list[Layer]()
    with record_activations(reading.model, names) as seen:
        reading.log_probs(torch.zeros(1, dtype=torch.long, device=run.device))
    for number, name in enumerate(names, 1):
        parts = [cell_values(one) for one in seen if one.name == name]
        values = {
            quantity: np.concatenate([part[quantity][0].double().cpu().numpy() for part in parts]) for quantity in parts[0]
        }
        if _backwards(name, reading):
            values = {quantity: numbers[::-1] for quantity, numbers in values.items()}
        found.append(Layer(number, name, _pieces(reading, name, len(values["hidden"])), values))
    return found


# ---- which units follow what


def _joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _told(found: Sequence[Layer], text: str) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Of each layer the states at real tokens, by quantity, and the features there; all layers must read the same."""
    real = np.array([piece.end > piece.start for piece in found[0].pieces])
    states = [{name: one.values[name][real] for name in TOLD if name in one.values} for one in found]
    return states, features(text, [piece for piece in found[0].pieces if piece.end > piece.start])


def correlate(run: AnyRun, text: str, found: Sequence[Layer], options: ExplainConfig) -> tuple[str, int, list[UnitCorrelation]]:
    """What units are judged by, how many tokens that is, and the units that follow each feature best."""
    sample = explaining(run).sample_texts
    split, texts = ("", list[str]()) if sample is None else sample(run, JUDGED)
    if texts:
        readings = [read(run, one, ExplainConfig()) for one in texts]
        judged = [_told(layers(run, reading), one) for one, reading in zip(texts, readings, strict=True)]
        numbers = [one.number for one in found]
    else:
        # layers of a decoder read another text than those of its encoder; units are judged by the text that was given
        first = [one for one in found if [piece.text for piece in one.pieces] == [piece.text for piece in found[0].pieces]]
        judged, numbers = [_told(first, text)], [one.number for one in first]
    judged = [(states, progress) for states, progress in judged if progress]
    if not judged:
        return split or "the text", 0, []
    progress = _joined([progress for _, progress in judged])
    count = len(next(iter(progress.values())))
    if count < FEW:
        return split or "the text", count, []
    states = [_joined([one[at] for one, _ in judged]) for at in range(len(numbers))]
    chosen = [(number, values) for number, values in zip(numbers, states, strict=True) if options.layer in (None, number)]
    return split or "the text", count, ranked(chosen, progress, options.top)


def _read_by(layer: Layer, reading: ModelInput, text: str, options: ExplainConfig) -> str:
    """The text whose tokens a layer reads: of a decoder the output."""
    stack = stack_of(layer.name, reading.stacks)
    return text if stack is None or stack.side == reading.sides[0].name else options.target or reading.written


# ---- pictures


def _moving(one: Layer, limit: int) -> list[int]:
    """The units of a layer that move most, from 1, in their order."""
    spread = one.values["hidden"].std(0)
    return sorted(1 + int(at) for at in np.argsort(-spread, kind="stable")[:limit])


def _chosen_units(one: Layer, options: ExplainConfig) -> list[int]:
    """From 1: those asked for, or those that move most."""
    width = one.values["hidden"].shape[1]
    if wrong := [unit for unit in options.unit if unit > width]:
        raise UsageError("unit", f"must be from 1 to {width} in layer {one.number}, got {wrong[0]}")
    return options.unit or _moving(one, DRAWN)


def _maps(values: np.ndarray, rows: Sequence[str], pieces: Sequence[TokenSpan], title: str, name: str) -> Iterator[Figure]:
    """Values (rows, T) as heat maps, a long text in several."""
    size = -(-len(pieces) // -(-len(pieces) // BAND))
    for low in range(0, len(pieces), size):
        part = slice(low, low + size)
        tokens = [piece.text for piece in pieces[part]]
        where = f", tokens {low + 1} to {low + len(tokens)}" if len(pieces) > BAND else ""
        drawn = diverging_heatmap(values[:, part], rows=rows, columns=tokens, title=title + where, name=name)
        yield Figure(title + where, drawn)


def _layer_pictures(one: Layer, units: Sequence[int]) -> Iterator[Figure]:
    """Hidden states of some units, and of every gate the mean over all units."""
    hidden = one.values["hidden"][:, [unit - 1 for unit in units]].T
    title = f"Layer {one.number}: hidden states of {len(units)} units"
    yield from _maps(hidden, [str(unit) for unit in units], one.pieces, title, "hidden state")
    gates = [name for name in one.values if name.endswith("gate")]
    if gates:
        at, tokens = list(range(1, 1 + len(one.pieces))), [piece.text for piece in one.pieces]
        series = [Series(name, at, one.values[name].mean(1).tolist(), labels=tokens) for name in gates]
        title = f"Layer {one.number}: gate activations, mean over units"
        yield Figure(title, lines(series, across=Axis("token"), up=Axis("gate (0 closed, 1 open)"), title=title))


def _unit_pictures(one: Layer, unit: int) -> Iterator[Figure]:
    """The text in the colors of one unit's state, and all its states and gates."""
    title = f"Layer {one.number}, unit {unit}"
    state = TOLD[-1] if TOLD[-1] in one.values else TOLD[0]
    text = f"{title}: {state}"
    tokens = [piece.text for piece in one.pieces]
    yield Figure(text, token_heatmap(tokens, one.values[state][:, unit - 1], name=state, title=text))
    rows = np.stack([values[:, unit - 1] for values in one.values.values()])
    names = [name.removesuffix(" gate") for name in one.values]
    yield from _maps(rows, names, one.pieces, title, "states, gates and candidate")


def _tracking_pictures(found: Sequence[Layer], tracks: Sequence[UnitCorrelation]) -> Iterator[Figure]:
    """The text in the colors of the unit that follows each feature best."""
    best = {one.feature: one for one in reversed(tracks) if abs(one.r) >= MAX_UNITS}
    for one in sorted(best.values(), key=lambda one: -abs(one.r)):
        layer = next(layer for layer in found if layer.number == one.layer)
        title = f"{one.feature}: unit {one.unit} of layer {one.layer}, r = {one.r:.2f}"
        values = layer.values[one.quantity][:, one.unit - 1]
        yield Figure(title, token_heatmap([piece.text for piece in layer.pieces], values, name=one.quantity, title=title))


def _layer_data(one: Layer, units: Sequence[int]) -> dict[str, Any]:
    """The chosen units, (units, T) for each quantity."""
    at = [unit - 1 for unit in units]
    values = {name: numbers[:, at].T.round(6).tolist() for name, numbers in one.values.items()}
    return {"layer": one.number, "part": one.name, "tokens": list_tokens(one.pieces), "units": list(units), **values}


def _tables(wanted: Sequence[Layer], options: ExplainConfig, scores: Scores | None) -> list[str]:
    """The activations of a short text, layer by layer: of all units if there are few, else of the units that vary most."""
    found = list[str]()
    for one in wanted:
        if len(one.pieces) <= TOKENS:
            width = one.values["hidden"].shape[1]
            chosen = options.unit[:UNITS] or _moving(one, width if width <= UNITS else options.top)
            title = f"layer {one.number}" + (f", {len(chosen)} of {width} units" if len(chosen) < width else "")
            found += [*layer_table(title, one.pieces, one.values, chosen), ""]
    return found if scores is None or not found else [*found, *score_table(wanted[0].pieces, scores), ""]


def _lines(tracks: Sequence[UnitCorrelation], judged: str) -> list[str]:
    rows = [["feature", "layer", "unit", "state", "r"]]
    rows += [[one.feature, str(one.layer), str(one.unit), one.quantity, f"{one.r:+.3f}"] for one in tracks]
    return (
        [*align_columns(rows, left=(0, 3)), judged] if tracks else [f"what units follow takes a longer text to tell: {judged}"]
    )


def units(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """Hidden states, cell states and gates of recurrent layers over a text, and the units that follow quotes, brackets, lines
    and words; --layer and --unit choose."""
    reading = read(run, text, options)
    found = layers(run, reading)
    if options.layer is not None and options.layer > len(found):
        raise UsageError("layer", f"must be from 1 to {len(found)}, got {options.layer}")
    split, count, tracks = correlate(run, _read_by(found[0], reading, text, options), found, options)
    wanted = [one for one in found if options.layer in (None, one.number)]
    chosen = {one.number: _chosen_units(one, options) for one in wanted}
    judged = f"judged by {count:,} tokens of {split if split == 'the text' else f'the {split} data'}"
    pictures = list[Figure]()
    for one in wanted:
        if options.unit:
            pictures += [picture for unit in options.unit for picture in _unit_pictures(one, unit)]
        else:
            pictures += _layer_pictures(one, chosen[one.number])
    if not options.unit:
        pictures = [*_tracking_pictures(found, tracks), *pictures]
    scores = output_scores(reading)
    data = {
        "tokens": list_tokens(found[0].pieces),
        **({} if scores is None else {"output": scores.to_json()}),
        "follows": [one.to_json() for one in tracks],
        "judged": {"by": split, "tokens": count},
        "layers": [_layer_data(one, chosen[one.number]) for one in wanted],
    }
    lines = [*_tables(wanted, options, scores), *_lines(tracks, judged)]
    return Explanation("units", f"Inside {run.config.arch}", data, pictures, lines, guides.UNITS)
