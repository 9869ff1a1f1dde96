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
from weft.text.reading import pluralize

COMPONENT_NAMES = {
    "cross": "cross-attention",
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "pooling": "attention pooling",
}
MIN_WEIGHT = 0.05  # smaller weights are not listed in a terminal


class Site(NamedTuple):
    """One attention layer."""

    component: str  # a key of COMPONENT_NAMES
    layer: int  # from 1, within its component
    name: str  # of the module


class AttentionMap(NamedTuple):
    """The attention weights of one layer for a text."""

    site: Site
    rows: list[TokenSpan]  # T queries: input tokens, in cross-attention output tokens
    columns: list[TokenSpan]  # S keys
    weights: np.ndarray  # (H, T, S), float32; each row sums to 1
    heads: list[int]  # H head numbers, from 1


def _component(name: str, module: nn.Module, parent: nn.Module | None) -> str | None:
    """The component of an attention module, or None for other modules."""
    if name == "pooling" and isinstance(module, WeightedPooling):
        return "pooling"
    if ".char_encoder." in name:
        return None
    if isinstance(module, WithoutHeads):
        is_cross = module.cross
    elif name.endswith(".attend"):
        is_cross = parent.to_source if isinstance(parent, AttendsToMemory) else None
    else:
        return None
    if is_cross is False:  # attention to a single summary vector
        return None
    return "cross" if is_cross else "encoder" if name.startswith("encoder.") else "decoder"


def sites(model: nn.Module) -> list[Site]:
    """All attention layers, by component and from the bottom up.

    Without those of a character encoder, whose positions are not tokens, and without attention to a single summary vector.
    A layer whose heads were all pruned is not listed, but counts in the numbers of the layers above it."""
    modules = dict(model.named_modules())
    counts = dict.fromkeys(COMPONENT_NAMES, 0)
    numbered = list[Site]()
    for name, module in modules.items():
        component = _component(name, module, modules.get(name.rpartition(".")[0]))
        if component is None:
            continue
        counts[component] += 1
        if not isinstance(module, WithoutHeads):
            numbered.append(Site(component, counts[component], name))
    return sorted(numbered, key=lambda site: list(COMPONENT_NAMES).index(site.component))


def _select(available: Sequence[Site], options: ExplainConfig) -> list[Site]:
    """The layers that the options select."""
    components = list(dict.fromkeys(site.component for site in available))
    if options.component is not None and options.component not in components:
        raise UsageError("component", f"the model has no {options.component} attention", f"choose from {', '.join(components)}")
    selected = [site for site in available if options.component in (None, site.component)]
    if options.layer is None:
        return selected
    num_layers = max(site.layer for site in selected)
    if options.layer > num_layers:
        raise UsageError("layer", f"must be from 1 to {num_layers}, got {options.layer}")
    return [site for site in selected if site.layer == options.layer]


def select_head(call: Activation, head: int) -> Activation:
    """The call with the inputs of one head only, so that the others are not computed."""
    q, k, v, mask, causal = call.inputs
    if head > q.size(1):
        raise UsageError("head", f"must be from 1 to {q.size(1)}, got {head}")
    index = slice(head - 1, head)
    mask = mask if mask is None or mask.size(1) == 1 else mask[:, index]
    return call._replace(inputs=(q[:, index], k[:, index], v[:, index], mask, causal))


def _weights(calls: Sequence[Activation], component: str, head: int | None) -> np.ndarray:
    """(H, T, S) from all calls of one layer. Input feeding, and attention before the recurrent step, call it per position."""
    if component == "pooling":
        return np.asarray(attention_weights(calls[0])[:, None].float().cpu().numpy())
    weights = [attention_weights(call if head is None else select_head(call, head)) for call in calls]
    return torch.cat(weights, dim=2)[0].float().cpu().numpy()


def _axes(model_input: ModelInput, site: Site) -> tuple[list[TokenSpan], list[TokenSpan]]:
    """The queries and keys of a layer."""
    sides = [side.spans for side in model_input.sides]
    if site.component == "pooling":
        return [TokenSpan("label", 0, 0)], sides[0]
    if site.component == "cross":
        return model_input.output_spans, sides[0]
    tokens = sides[1] if site.component == "decoder" and len(sides) > 1 else sides[0]
    return tokens, tokens


@torch.no_grad()
def read_attention(
    model_input: ModelInput, selected: Sequence[Site], head: int | None, device: torch.device
) -> list[AttentionMap]:
    """The attention weights of all selected layers, from one forward pass."""
    with record_activations(model_input.model, [site.name for site in selected]) as calls:
        model_input.log_probs(torch.zeros(1, dtype=torch.long, device=device))
    reversed_components = [stack.part for stack in model_input.stacks if stack.backwards]
    maps = []
    for site in selected:
        weights = _weights([call for call in calls if call.name == site.name], site.component, head)
        if site.component in reversed_components:
            weights = weights[:, ::-1, ::-1]
        heads = list(range(1, len(weights) + 1)) if head is None else [head]
        rows, columns = _axes(model_input, site)
        # a decoder that starts with several tokens has a query for each, but no output before the last
        maps.append(AttentionMap(site, rows, columns, weights[:, -len(rows) :], heads))
    return maps


# ---- text and figures


def _entropy(weights: np.ndarray) -> float:
    """The mean entropy of the rows, in nats."""
    return abs(float((weights * np.log(weights.clip(1e-12))).sum(-1).mean()))


def _mean_diagonal(weights: np.ndarray, distance: int) -> str:
    """The mean weight of the token `distance` positions before the query."""
    return f"{np.diagonal(weights, -distance).mean():.2f}" if len(weights) > distance else "-"


def _strongest(attention_map: AttentionMap, weights: np.ndarray) -> str:
    """The query and key with the largest weight of a head, (T, S)."""
    # the first token of a decoder attends only to itself
    first = 1 if attention_map.site.component == "decoder" and len(weights) > 1 else 0
    row, column = np.unravel_index(int(weights[first:].argmax()), weights[first:].shape)
    query, key = unique_labels(attention_map.rows)[first + row], unique_labels(attention_map.columns)[column]
    return f"{query} -> {key} {weights[first:].max():.2f}"


def _largest(weights: np.ndarray, labels: Sequence[str], top: int) -> str:
    """The `top` largest weights of a row (S,) with their labels."""
    indices = np.argsort(-weights, kind="stable")[:top].tolist()
    return "  ".join(f"{labels[i]} {weights[i]:.2f}" for i in indices if weights[i] >= MIN_WEIGHT)


def _summary(maps: Sequence[AttentionMap]) -> list[str]:
    """A line per head: entropy, mean weights of fixed positions, and the largest weight."""
    rows: list[Sequence[str]] = [("component", "layer", "head", "entropy", "self", "previous", "first", "strongest")]
    for layer in maps:
        is_self_attention = layer.site.component in ("encoder", "decoder")
        for head, weights in zip(layer.heads, layer.weights, strict=True):
            diagonals = [_mean_diagonal(weights, distance) if is_self_attention else "-" for distance in (0, 1)]
            numbers = (f"{_entropy(weights):.2f}", *diagonals, f"{weights[:, 0].mean():.2f}")
            rows.append((layer.site.component, str(layer.site.layer), str(head), *numbers, _strongest(layer, weights)))
    return align_columns(rows, left=(0, 7))


def _alignment(maps: Sequence[AttentionMap], top: int) -> list[str]:
    """A line per output token: its source tokens by cross-attention, mean over layers and heads."""
    cross = [layer for layer in maps if layer.site.component == "cross"]
    if not cross:
        return []
    weights = np.mean([layer.weights.mean(0) for layer in cross], axis=0)
    labels = unique_labels(cross[0].columns)
    rows = [("output", "source (weight)")]
    rows += [(visible(span.text), _largest(row, labels, top)) for span, row in zip(cross[0].rows, weights, strict=True)]
    return ["", *align_columns(rows, left=(0, 1))]


def _heatmap(layer: AttentionMap, weights: np.ndarray, title: str) -> Figure:
    rows, columns = ([span.text for span in axis] for axis in (layer.rows, layer.columns))
    axes = ("output", "source") if layer.site.component == "cross" else ("query", "key")
    return Figure(title, heatmap(weights, rows=rows, columns=columns, title=title, axes=axes))


def _grid_row(layer: AttentionMap) -> tuple[str, list[Map]]:
    name = f"layer {layer.site.layer}"
    heads = zip(layer.heads, layer.weights, strict=True)
    return name, [Map(f"head {head}", weights, f"{name}: {_strongest(layer, weights)}") for head, weights in heads]


def _figures(maps: Sequence[AttentionMap]) -> list[Figure]:
    """For each component: a grid of all heads, and a heatmap of the last layer, mean over heads or the selected head."""
    figures = list[Figure]()
    for component in dict.fromkeys(layer.site.component for layer in maps):
        layers = [layer for layer in maps if layer.site.component == component]
        name = COMPONENT_NAMES[component].capitalize()
        if sum(len(layer.heads) for layer in layers) > 1:
            title = f"{name}, all heads"
            figures.append(Figure(title, grid([_grid_row(layer) for layer in layers], key=f"grid-{component}", title=title)))
        last = layers[-1]
        heads = f"head {last.heads[0]}" if len(last.heads) == 1 else f"mean of {len(last.heads)} heads"
        figures.append(_heatmap(last, last.weights.mean(0), f"{name}, layer {last.site.layer}, {heads}"))
    return figures


def _layer_data(layer: AttentionMap) -> dict[str, Any]:
    return {
        **layer.site._asdict(),
        "heads": layer.heads,
        "rows": list_tokens(layer.rows),
        "columns": list_tokens(layer.columns),
        "weights": layer.weights.round(4).astype(float).tolist(),
    }


def attention(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The attention weights of all or selected heads; for seq2seq, those of decoding the output."""
    model_input = read(run, text, options)
    available = sites(model_input.model)
    if not available:
        raise UsageError("attention", f"{run.config.arch} has no attention ({run.directory.path})")
    maps = read_attention(model_input, _select(available, options), options.head, run.device)
    data = {"tokens": list_tokens(model_input.sides[0].spans), "layers": [_layer_data(layer) for layer in maps]}
    if len(model_input.sides) > 1:
        data["output"] = list_tokens(model_input.output_spans)
    lines = [*_summary(maps), *_alignment(maps, options.top), *([TRUNCATED] if model_input.truncated else [])]
    output = f", output {on_one_line(model_input.output_text)}" if model_input.output_text else ""
    title = f"Attention of {run.directory.path}{output}"
    return Explanation("attention", title, data, _figures(maps), lines, guides.ATTENTION)


# ---- rollout


def attention_rollout(layers: Sequence[np.ndarray]) -> np.ndarray:
    """(T, T): the fraction of each input token in each position of the last layer (Abnar and Zuidema 2020).

    `layers` are weights (H, T, T), lowest layer first. The mean over heads and the residual connection count equally."""
    result = np.eye(layers[0].shape[-1])
    for weights in layers:
        result = (weights.mean(0).astype(np.float64) + np.eye(len(result))) / 2 @ result
    return result


def why_no_rollout(run: AnyRun) -> str | None:
    """Why rollout, which uses the first stack, is not available, or None."""
    model = network(run)
    first = None if model is None else stacks(run)[0]
    if model is None or first is None or not first.attention:
        return f"{run.config.arch} has no self-attention in its first stack"
    if first.config.skip_connection != "residual":
        return f"skip_connection = {first.config.skip_connection!r} is not residual"
    if not any(site.component == first.part for site in sites(model)):
        return "all self-attention heads of this run were pruned"
    return None


def rollout(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """Attention rollout through all layers; for seq2seq through the encoder."""
    if reason := why_no_rollout(run):
        raise UsageError("rollout", reason)
    if options.layer is not None or options.head is not None:
        raise UsageError("rollout", "uses all layers and heads", "remove `layer` and `head`")
    model_input = read(run, text, options)
    component = model_input.stacks[0].part
    selected = [site for site in sites(model_input.model) if site.component == component]
    maps = read_attention(model_input, selected, None, run.device)
    weights = attention_rollout([layer.weights for layer in maps])
    tokens = maps[-1].rows
    caption = f"Attention rollout through {pluralize(len(maps), 'layer')}"
    names, labels = [span.text for span in tokens], unique_labels(tokens)
    svg = heatmap(weights, rows=names, columns=names, title=caption, axes=("output position", "input token"))
    rows = [("token", "strongest inputs")]
    rows += [(label, _largest(row, labels, options.top)) for label, row in zip(labels, weights, strict=True)]
    return Explanation(
        "rollout",
        f"{caption} of {run.directory.path}",
        {"tokens": list_tokens(tokens), "weights": weights.round(4).tolist(), "component": component, "layers": len(maps)},
        [Figure(caption, svg)],
        align_columns(rows, left=(0, 1)),
        guides.ROLLOUT,
    )
