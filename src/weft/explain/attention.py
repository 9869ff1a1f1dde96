"""Attention weights of each head and layer, recomputed from the inputs of the fused kernels, and attention rollout.

Shapes: H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.explanation import TRUNCATED, Explanation, Figure, TokenSpan, align_columns, list_tokens, unique_labels
from weft.explain.hooks import Activation, attention_weights, record_activations
from weft.explain.inputs import ModelInput, network, read, stacks
from weft.explain.options import ExplainConfig
from weft.nn.attention import WithoutHeads
from weft.nn.cross_attention import AttendsToMemory
from weft.nn.pooling import WeightedPooling
from weft.plots.formatting import on_one_line
from weft.plots.grid import Map, grid
from weft.plots.heatmap import heatmap, visible
from weft.runs.run import AnyRun

NAMES = {
    "cross": "cross-attention",
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "pooling": "attention pooling",
}
MIN_WEIGHT = 0.05  # smaller weights are not listed in a terminal


class Site(NamedTuple):
    """One attention layer."""

    component: str
    layer: int  # from 1, within its component
    name: str  # of the module


class AttentionMap(NamedTuple):
    """The attention weights of one layer for a text."""

    site: Site
    rows: list[TokenSpan]  # T queries: the input token, or in cross-attention the output token
    columns: list[TokenSpan]  # S keys
    weights: np.ndarray  # (H, T, S), float32; each row sums to 1
    heads: list[int]  # H numbers from 1


def sites(model: nn.Module) -> list[Site]:
    """All attention layers, by component and from the bottom up. (Not those of a character encoder, whose positions
    are not tokens, and not attention to a single summary vector.)"""
    parts = dict(model.named_modules())
    layers: list[tuple[str, str]] = []
    for name, part in parts.items():
        lost, holder = isinstance(part, WithoutHeads), parts.get(name.rpartition(".")[0])
        across = (
            part.cross if isinstance(part, WithoutHeads) else holder.to_source if isinstance(holder, AttendsToMemory) else None
        )
        if name == "pooling" and isinstance(part, WeightedPooling):
            layers.append(("pooling", name))
        elif (lost or name.endswith(".attend")) and across is not False and ".char_encoder." not in name:
            component = "cross" if across else "encoder" if name.startswith("encoder.") else "decoder"
            layers.append((component, "" if lost else name))  # without heads it still counts as a layer
    counts = dict.fromkeys(NAMES, 0)
    numbered = list[Site]()
    for component, name in layers:
        counts[component] += 1
        numbered.append(Site(component, counts[component], name))
    numbered = [site for site in numbered if site.name]
    return sorted(numbered, key=lambda site: list(NAMES).index(site.component))


def _select(known: Sequence[Site], options: ExplainConfig) -> list[Site]:
    """The layers that the options select."""
    components = list(dict.fromkeys(site.component for site in known))
    if options.component is not None and options.component not in components:
        raise UsageError("component", f"the model has no {options.component} attention", f"choose from {', '.join(components)}")
    selected = [site for site in known if options.component in (None, site.component)]
    if options.layer is None:
        return selected
    highest = max(site.layer for site in selected)
    if options.layer > highest:
        raise UsageError("layer", f"must be from 1 to {highest}, got {options.layer}")
    return [site for site in selected if site.layer == options.layer]


def one_head(call: Activation, head: int) -> Activation:
    """The call with only one head, so that only that one is computed."""
    q, k, v, mask, causal = call.inputs
    if head > q.size(1):
        raise UsageError("head", f"must be from 1 to {q.size(1)}, got {head}")
    own = slice(head - 1, head)
    mask = mask if mask is None or mask.size(1) == 1 else mask[:, own]
    return call._replace(inputs=(q[:, own], k[:, own], v[:, own], mask, causal))


def _weights(calls: Sequence[Activation], component: str, head: int | None) -> np.ndarray:
    """(H, T, S) of all calls of one layer; with attention before a step, or input feeding, there is one call per position."""
    if component == "pooling":
        return np.asarray(attention_weights(calls[0])[:, None].float().cpu().numpy())
    weights = [attention_weights(call if head is None else one_head(call, head)) for call in calls]
    return torch.cat(weights, dim=2)[0].float().cpu().numpy()


def _axes(reading: ModelInput, site: Site) -> tuple[list[TokenSpan], list[TokenSpan]]:
    sides = [side.pieces for side in reading.sides]
    if site.component == "pooling":
        return [TokenSpan("label", 0, 0)], sides[0]
    if site.component == "cross":
        return reading.places, sides[0]
    own = sides[1] if site.component == "decoder" and len(sides) > 1 else sides[0]
    return own, own


@torch.no_grad()
def read_attention(reading: ModelInput, selected: Sequence[Site], head: int | None, device: torch.device) -> list[AttentionMap]:
    """The weights of all selected layers, from one pass over the input."""
    with record_activations(reading.model, [site.name for site in selected]) as calls:
        reading.log_probs(torch.zeros(1, dtype=torch.long, device=device))
    backwards = [stack.part for stack in reading.stacks if stack.backwards]
    maps = []
    for site in selected:
        weights = _weights([call for call in calls if call.name == site.name], site.component, head)
        if site.component in backwards:
            weights = weights[:, ::-1, ::-1]
        heads = list(range(1, len(weights) + 1)) if head is None else [head]
        maps.append(AttentionMap(site, *_axes(reading, site), weights, heads))
    return maps


# ---- text and figures


def _entropy(weights: np.ndarray) -> float:
    """The mean entropy of the rows, in nats."""
    return abs(float((weights * np.log(weights.clip(1e-12))).sum(-1).mean()))


def _fraction(weights: np.ndarray, back: int) -> str:
    """The mean weight of the token `back` positions before."""
    return f"{np.diagonal(weights, -back).mean():.2f}" if len(weights) > back else "-"


def _strongest(attention_map: AttentionMap, weights: np.ndarray) -> str:
    # the first token of a decoder attends only to itself
    first = 1 if attention_map.site.component == "decoder" and len(weights) > 1 else 0
    row, column = np.unravel_index(int(weights[first:].argmax()), weights[first:].shape)
    query, key = unique_labels(attention_map.rows)[first + row], unique_labels(attention_map.columns)[column]
    return f"{query} -> {key} {weights[first:].max():.2f}"


def _summary(found: Sequence[AttentionMap]) -> list[str]:
    """A line per head: entropy, and the tokens with the largest weights."""
    rows: list[Sequence[str]] = [("component", "layer", "head", "entropy", "self", "previous", "first", "strongest")]
    for one in found:
        for head, weights in zip(one.heads, one.weights, strict=True):
            own = one.site.component in ("encoder", "decoder")
            fractions = [_fraction(weights, 0), _fraction(weights, 1)] if own else ["-", "-"]
            numbers = (f"{_entropy(weights):.2f}", *fractions, f"{weights[:, 0].mean():.2f}")
            rows.append((one.site.component, str(one.site.layer), str(head), *numbers, _strongest(one, weights)))
    return align_columns(rows, left=(0, 7))


def _alignment(found: Sequence[AttentionMap], top: int) -> list[str]:
    """A line per output token: its source tokens by cross-attention, mean over heads."""
    cross = [one for one in found if one.site.component == "cross"]
    if not cross:
        return []
    weights = np.mean([one.weights.mean(0) for one in cross], axis=0)
    names = unique_labels(cross[0].columns)
    rows = [("output", "source (weight)")]
    for piece, row in zip(cross[0].rows, weights, strict=True):
        best = [at for at in np.argsort(-row, kind="stable")[:top].tolist() if row[at] >= MIN_WEIGHT]
        rows.append((visible(piece.text), "  ".join(f"{names[at]} {row[at]:.2f}" for at in best)))
    return ["", *align_columns(rows, left=(0, 1))]


def _detail(one: AttentionMap, weights: np.ndarray, title: str) -> Figure:
    rows, columns = ([piece.text for piece in axis] for axis in (one.rows, one.columns))
    axes = (
        "output" if one.site.component == "cross" else "query",
        "source" if one.site.component == "cross" else "key",
    )
    return Figure(title, heatmap(weights, rows=rows, columns=columns, title=title, axes=axes))


def _figures(found: Sequence[AttentionMap]) -> list[Figure]:
    """For each component a grid of all heads and the mean of the last layer, or the selected head."""
    figures = list[Figure]()
    for part in dict.fromkeys(one.site.component for one in found):
        layers = [one for one in found if one.site.component == part]
        if sum(len(one.heads) for one in layers) > 1:
            rows = [
                (
                    f"layer {one.site.layer}",
                    [
                        Map(f"head {head}", weights, f"layer {one.site.layer}: {_strongest(one, weights)}")
                        for head, weights in zip(one.heads, one.weights, strict=True)
                    ],
                )
                for one in layers
            ]
            title = f"{NAMES[part].capitalize()}, all heads"
            figures.append(Figure(title, grid(rows, key=f"grid-{part}", title=title)))
        top = layers[-1]
        heads = f"head {top.heads[0]}" if len(top.heads) == 1 else f"mean of {len(top.heads)} heads"
        figures.append(_detail(top, top.weights.mean(0), f"{NAMES[part].capitalize()}, layer {top.site.layer}, {heads}"))
    return figures


def _layer_data(one: AttentionMap) -> dict[str, Any]:
    return {
        **one.site._asdict(),
        "heads": one.heads,
        "rows": list_tokens(one.rows),
        "columns": list_tokens(one.columns),
        "weights": one.weights.round(4).astype(float).tolist(),
    }


def _known(run: AnyRun, model: nn.Module) -> list[Site]:
    known = sites(model)
    if not known:
        raise UsageError("attention", f"{run.config.arch} has no attention ({run.directory.path})")
    return known


def attention(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The attention weights of all or selected heads; for seq2seq, those of decoding the output."""
    reading = read(run, text, options)
    selected = _select(_known(run, reading.model), options)
    found = read_attention(reading, selected, options.head, run.device)
    data = {"tokens": list_tokens(reading.sides[0].pieces), "layers": [_layer_data(one) for one in found]}
    if len(reading.sides) > 1:
        data["output"] = list_tokens(reading.places)
    lines = [*_summary(found), *_alignment(found, options.top), *([TRUNCATED] if reading.truncated else [])]
    title = f"Attention of {run.directory.path}" + (f", output {on_one_line(reading.written)}" if reading.written else "")
    return Explanation("attention", title, data, _figures(found), lines, guides.ATTENTION)


# ---- rollout


def attention_rollout(layers: Sequence[np.ndarray]) -> np.ndarray:
    """(T, T): the fraction of each input token in each position of the last layer (Abnar and Zuidema 2020), from (H, T, T) of
    each layer, lowest first: mean over heads, and the residual connection counts as much as the attention output."""
    whole = np.eye(layers[0].shape[-1])
    for weights in layers:
        whole = (weights.mean(0).astype(np.float64) + np.eye(len(whole))) / 2 @ whole
    return whole


def why_no_rollout(run: AnyRun) -> str | None:
    """Why rollout is not available, or None: it follows the first stack."""
    model = network(run)
    lowest = None if model is None else stacks(run)[0]
    if model is None or lowest is None or not lowest.attention:
        return f"{run.config.arch} has no self-attention in its first stack"
    if lowest.config.skip_connection != "residual":
        return f"skip_connection = {lowest.config.skip_connection!r} is not residual"
    if not any(site.component == lowest.part for site in sites(model)):
        return "all self-attention heads of this run were pruned"
    return None


def rollout(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """Attention rollout through all layers; for seq2seq through the encoder."""
    if reason := why_no_rollout(run):
        raise UsageError("rollout", reason)
    if options.layer is not None or options.head is not None:
        raise UsageError("rollout", "uses all layers and heads", "remove `layer` and `head`")
    reading = read(run, text, options)
    part = reading.stacks[0].part
    found = read_attention(reading, [site for site in sites(reading.model) if site.component == part], None, run.device)
    weights = attention_rollout([one.weights for one in found])
    name = f"Attention rollout through {len(found)} layer{'s' if len(found) > 1 else ''}"
    own = found[-1]
    names = [piece.text for piece in own.rows]
    svg = heatmap(weights, rows=names, columns=names, title=name, axes=("output position", "input token"))
    labels, rows = unique_labels(own.rows), [("token", "strongest inputs")]
    for at, row in enumerate(weights):
        best = [key for key in np.argsort(-row, kind="stable")[: options.top].tolist() if row[key] >= MIN_WEIGHT]
        rows.append((labels[at], "  ".join(f"{labels[key]} {row[key]:.2f}" for key in best)))
    data = {"tokens": list_tokens(own.rows), "weights": weights.round(4).tolist(), "component": part, "layers": len(found)}
    return Explanation(
        "rollout",
        f"{name} of {run.directory.path}",
        data,
        [Figure(name, svg)],
        align_columns(rows, left=(0, 1)),
        guides.ROLLOUT,
    )
