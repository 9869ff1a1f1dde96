"""Logit lens (nostalgebraist 2020): the next-token prediction of each layer, by the final norm and the LM head on its output.

Shapes: T positions, D width, V words, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, TokenSpan, align_columns, list_tokens
from weft.explain.hooks import Activation, record_activations
from weft.explain.inputs import ModelInput, explaining, network, read
from weft.explain.options import ExplainConfig
from weft.explain.stacks import is_recurrent, labels, layers_of
from weft.plots.lines import Axis, Series, lines
from weft.plots.token_table import TokenGuess, token_table
from weft.runs.run import AnyRun

VIEW = "logit-lens"
READ, SAID = "embedding", "output"
Show = Callable[[int], str]  # a token by its number


class Lens(NamedTuple):
    """Log-probabilities of what comes next, by layer."""

    layers: list[str]  # L, lowest first; the last is the model's own
    log_probs: np.ndarray  # (L, T, V)


class Readout(NamedTuple):
    """How vectors of a stack become predictions, and at which positions."""

    stack: str  # as the model has it
    head: Callable[[Tensor], Tensor]  # what leaves the stack (T, D) -> log-probabilities (T, V)
    positions: list[int]  # that are looked at
    following: list[int | None]  # what does come at each of them, where that is known


def _readout(run: AnyRun, reading: ModelInput) -> Readout:
    find = explaining(run).readout
    if find is None:
        raise UsageError("view", f"{VIEW} is not available: {why_no_lens(run)}")
    return find(run, reading)


def _ends(calls: dict[str, list[Activation]]) -> list[str]:
    """Of the layers that were called those that end a block: after them comes one that remembers, or none."""
    names = list(calls)
    return [name for at, name in enumerate(names) if at + 1 == len(names) or is_recurrent(calls[names[at + 1]][-1])]


@torch.no_grad()
def layer_log_probs(run: AnyRun, reading: ModelInput) -> Lens:
    """What each layer of the stack that speaks says at each position."""
    stack, head, *_ = _readout(run, reading)
    model, top = reading.model, f"{stack}.final_norm"
    outlet = model.get_submodule(top)
    names = [name for name in layers_of(model) if name.startswith(f"{stack}.")]
    with record_activations(model, [*names, top]) as seen:
        reading.log_probs(torch.zeros(1, dtype=torch.long, device=run.device))
    calls = {name: own for name in names if (own := [one for one in seen if one.name == name])}
    final = next(one for one in reversed(seen) if one.name == top)
    width = final.inputs[0].size(-1)
    ends = _ends(calls)
    # input feeding and attention before a step call their layers position by position
    states = [(READ, torch.cat([one.inputs[0] for one in calls[names[0]]], dim=1))]
    states += [
        (label, torch.cat([one.output[0] for one in calls[name]], dim=1))
        for name, label in zip(ends, labels(ends), strict=True)
    ]
    fitting = [(label, state) for label, state in states if state.size(-1) == width]
    if fitting and torch.equal(fitting[-1][1], final.inputs[0]):
        fitting.pop()  # the model's own says it
    found = [(label, head(outlet(state)[0])) for label, state in fitting]
    found.append((SAID, head(final.output[0])))
    return Lens([label for label, _ in found], np.stack([said.float().cpu().numpy() for _, said in found]))


def _best(said: np.ndarray, top: int, show: Show) -> list[dict[str, Any]]:
    """The most probable tokens at one position."""
    order = np.argsort(-said, kind="stable")[:top]
    return [{"token": show(int(at)), "probability": round(float(np.exp(said[at])), 6)} for at in order]


def _data(found: Lens, wanted: Sequence[int | None], top: int, show: Show) -> list[dict[str, Any]]:
    """Layer by layer and position by position the best guesses, and the rank and probability of what does come."""
    layers = []
    for label, said in zip(found.layers, found.log_probs, strict=True):
        places = []
        for at, token in enumerate(wanted):
            place: dict[str, Any] = {"predictions": _best(said[at], top, show)}
            if token is not None and token < said.shape[1]:
                place["rank"] = 1 + int((said[at] > said[at, token]).sum())
                place["probability"] = round(float(np.exp(said[at, token])), 6)
            places.append(place)
        layers.append({"layer": label, "positions": places})
    return layers


def _cell(said: np.ndarray, wanted: int | None, top: int, show: Show) -> TokenGuess:
    best = _best(said, top, show)
    progress = "\n".join(f"{one['token']}  {one['probability']:.3f}" for one in best)
    return TokenGuess(best[0]["token"], min(1.0, best[0]["probability"]), progress, wanted == int(said.argmax()))


def _table(found: Lens, wanted: Sequence[int | None], pieces: Sequence[TokenSpan], top: int, show: Show) -> Figure:
    rows = [[_cell(said[at], token, top, show) for at, token in enumerate(wanted)] for said in found.log_probs]
    table = token_table(
        rows[::-1],
        rows=found.layers[::-1],
        columns=[piece.text for piece in pieces],
        corner="input",
        note="probability of the prediction; a frame marks correct ones",
    )
    return Figure("Prediction of each layer", table)


def _curve(found: Lens, wanted: Sequence[int | None]) -> list[Figure]:
    """The mean nats of what does come, from layer to layer; nothing where that is not known."""
    known = [(at, token) for at, token in enumerate(wanted) if token is not None]
    if not known:
        return []
    means = [float(np.mean([-said[at, token] for at, token in known])) for said in found.log_probs]
    line = Series("", list(range(len(means))), means, labels=found.layers)
    chart = lines([line], x_axis=Axis("layer", names=found.layers), y_axis=Axis("loss (nats/token)"))
    return [Figure("Loss by layer", chart)]


def why_no_lens(run: AnyRun) -> str | None:
    """Why a run has no layers that could say something next, if it has none."""
    if network(run) is None:
        return f"{run.config.arch} has no layers"
    return None if explaining(run).readout else f"task {run.config.task!r} does not predict tokens"


def logit_lens(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The prediction of each layer at each position: of a language model, of the decoder of a seq2seq model, at the masks of a
    masked language model."""
    reading = read(run, text, options)
    found = layer_log_probs(run, reading)
    _, _, columns, wanted = _readout(run, reading)
    pieces = [reading.sides[-1].pieces[at] for at in columns]
    kept = Lens(found.layers, found.log_probs[:, columns])
    data = {"tokens": list_tokens(pieces), "layers": _data(kept, wanted, options.top, reading.show)}
    progress = [["layer", "prediction", "probability"]]
    progress += [
        [label, repr(best["token"]), f"{best['probability']:.3f}"]
        for label, said in zip(kept.layers, kept.log_probs, strict=True)
        for best in _best(said[-1], 1, reading.show)
    ]
    pictures = [_table(kept, wanted, pieces, options.top, reading.show), *_curve(kept, wanted)]
    return Explanation(
        VIEW, f"Logit lens of {run.directory.path}", data, pictures, align_columns(progress, left=(0, 1)), guides.LENS
    )
