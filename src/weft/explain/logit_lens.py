"""Logit lens (nostalgebraist 2020): the final norm and the LM head applied to the output of each layer.

Shapes: L layers, T positions, D hidden size, V vocabulary size.
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
from weft.explain.inputs import ModelInput, explain_spec, network, read
from weft.explain.options import ExplainConfig
from weft.explain.stacks import is_recurrent, labels, layers_of
from weft.plots.lines import Axis, Series, lines
from weft.plots.token_table import TokenGuess, token_table
from weft.runs.run import AnyRun

VIEW = "logit-lens"
TokenText = Callable[[int], str]  # token ID -> text


class LayerPredictions(NamedTuple):
    """The log-probabilities of the next token by layer."""

    layers: list[str]  # L labels: "embedding", the layers from the bottom up, "output"
    log_probs: np.ndarray  # (L, T, V)


class Readout(NamedTuple):
    """How hidden states of a stack become predictions."""

    stack: str  # name of the module
    head: Callable[[Tensor], Tensor]  # output of the stack (T, D) -> log-probabilities (T, V)
    positions: list[int]  # the positions to display
    targets: list[int | None]  # the correct token at each of them, if known


def why_no_lens(run: AnyRun) -> str | None:
    """Why the logit lens is not available, or None."""
    if network(run) is None:
        return f"{run.config.arch} has no layers"
    return None if explain_spec(run).readout else f"task {run.config.task!r} does not predict tokens"


def _readout(run: AnyRun, model_input: ModelInput) -> Readout:
    readout = explain_spec(run).readout
    if readout is None:
        raise UsageError("view", f"{VIEW} is not available: {why_no_lens(run)}")
    return readout(run, model_input)


def _block_ends(calls: dict[str, list[Activation]]) -> list[str]:
    """The last layer of each block. A layer with a state (attention or recurrent) starts a block, a feed-forward layer does
    not."""
    names = list(calls)
    return [name for i, name in enumerate(names) if i + 1 == len(names) or is_recurrent(calls[names[i + 1]][-1])]


@torch.no_grad()
def layer_log_probs(run: AnyRun, model_input: ModelInput) -> LayerPredictions:
    """The predictions of each layer of the stack below the LM head, at all positions."""
    stack, head, *_ = _readout(run, model_input)
    model, norm_name = model_input.model, f"{stack}.final_norm"
    final_norm = model.get_submodule(norm_name)
    names = [name for name in layers_of(model) if name.startswith(f"{stack}.")]
    with record_activations(model, [*names, norm_name]) as activations:
        model_input.log_probs(torch.zeros(1, dtype=torch.long, device=run.device))
    calls = {name: layer for name in names if (layer := [call for call in activations if call.name == name])}
    final = next(call for call in reversed(activations) if call.name == norm_name)
    # input feeding, and attention before the recurrent step, call the layers position by position
    states = [("embedding", torch.cat([call.inputs[0] for call in calls[names[0]]], dim=1))]
    ends = _block_ends(calls)
    for name, label in zip(ends, labels(ends), strict=True):
        states.append((label, torch.cat([call.output[0] for call in calls[name]], dim=1)))
    hidden_size = final.inputs[0].size(-1)
    states = [(label, state) for label, state in states if state.size(-1) == hidden_size]
    if states and torch.equal(states[-1][1], final.inputs[0]):
        states.pop()  # equal to the output of the model
    predictions = [(label, head(final_norm(state)[0])) for label, state in states]
    predictions.append(("output", head(final.output[0])))
    log_probs = np.stack([layer.float().cpu().numpy() for _, layer in predictions])
    return LayerPredictions([label for label, _ in predictions], log_probs)


def _top_tokens(log_probs: np.ndarray, top: int, token_text: TokenText) -> list[dict[str, Any]]:
    """The most probable tokens at one position, from log-probabilities (V,)."""
    tokens = np.argsort(-log_probs, kind="stable")[:top].tolist()
    return [{"token": token_text(token), "probability": round(float(np.exp(log_probs[token])), 6)} for token in tokens]


def _data(lens: LayerPredictions, targets: Sequence[int | None], top: int, token_text: TokenText) -> list[dict[str, Any]]:
    """For each layer and position: the best predictions, and the rank and probability of the target."""
    layers = []
    for label, layer in zip(lens.layers, lens.log_probs, strict=True):
        positions = []
        for log_probs, target in zip(layer, targets, strict=True):
            position: dict[str, Any] = {"predictions": _top_tokens(log_probs, top, token_text)}
            if target is not None and target < len(log_probs):
                position["rank"] = 1 + int((log_probs > log_probs[target]).sum())
                position["probability"] = round(float(np.exp(log_probs[target])), 6)
            positions.append(position)
        layers.append({"layer": label, "positions": positions})
    return layers


def _cell(log_probs: np.ndarray, target: int | None, top: int, token_text: TokenText) -> TokenGuess:
    best = _top_tokens(log_probs, top, token_text)
    tooltip = "\n".join(f"{token['token']}  {token['probability']:.3f}" for token in best)
    is_correct = target == int(log_probs.argmax())
    return TokenGuess(best[0]["token"], min(1.0, best[0]["probability"]), tooltip, is_correct)


def _table(
    lens: LayerPredictions, targets: Sequence[int | None], spans: Sequence[TokenSpan], top: int, token_text: TokenText
) -> Figure:
    rows = [
        [_cell(log_probs, target, top, token_text) for log_probs, target in zip(layer, targets, strict=True)]
        for layer in lens.log_probs
    ]
    table = token_table(
        rows[::-1],
        rows=lens.layers[::-1],
        columns=[span.text for span in spans],
        corner="input",
        note="probability of the prediction; a frame marks correct ones",
    )
    return Figure("Prediction of each layer", table)


def _loss_curve(lens: LayerPredictions, targets: Sequence[int | None]) -> list[Figure]:
    """The mean loss of the targets by layer; no figure if there are none."""
    known = [(i, target) for i, target in enumerate(targets) if target is not None]
    if not known:
        return []
    losses = [float(np.mean([-layer[i, target] for i, target in known])) for layer in lens.log_probs]
    line = Series("", list(range(len(losses))), losses, labels=lens.layers)
    chart = lines([line], x_axis=Axis("layer", names=lens.layers), y_axis=Axis("loss (nats/token)"))
    return [Figure("Loss by layer", chart)]


def logit_lens(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The prediction of each layer at each position: of a language model, of the decoder of a seq2seq model, at the masks of a
    masked language model."""
    model_input = read(run, text, options)
    _, _, positions, targets = _readout(run, model_input)
    lens = layer_log_probs(run, model_input)
    lens = lens._replace(log_probs=lens.log_probs[:, positions])
    spans, token_text = [model_input.sides[-1].spans[position] for position in positions], model_input.target_text
    data = {"tokens": list_tokens(spans), "layers": _data(lens, targets, options.top, token_text)}
    rows = [["layer", "prediction", "probability"]]
    for label, layer in zip(lens.layers, lens.log_probs, strict=True):
        (best,) = _top_tokens(layer[-1], 1, token_text)  # at the last position
        rows.append([label, repr(best["token"]), f"{best['probability']:.3f}"])
    figures = [_table(lens, targets, spans, options.top, token_text), *_loss_curve(lens, targets)]
    title = f"Logit lens of {run.directory.path}"
    return Explanation(VIEW, title, data, figures, align_columns(rows, left=(0, 1)), guides.LENS)
