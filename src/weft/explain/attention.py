"""Where each head of each layer looks: patterns, recomputed from what went into the fused kernels, and drawn.

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
from weft.nn.attention import LostHeads
from weft.nn.cross_attention import Looks
from weft.nn.pooling import Weighs
from weft.plots.formatting import on_one_line
from weft.plots.grid import Map, grid
from weft.plots.heatmap import heatmap, visible
from weft.runs.run import AnyRun

NAMES = {  # of the parts, for people
    "cross": "attention from the output to its source",
    "encoder": "the encoder's self-attention",
    "decoder": "the decoder's self-attention",
    "pooling": "the pool's attention over the text",
}
MIN_WEIGHT = 0.05  # what less is looked at is not named in a terminal
RESIDUAL_WEIGHT = ("residual", "post-norm")  # connections that add what a layer read to what it found


class Site(NamedTuple):
    """One layer of attention."""

    component: str
    layer: int  # from 1, among those of its part
    name: str  # as the model has it


class AttentionMap(NamedTuple):
    """What one layer of attention did with a text."""

    site: Site
    rows: list[TokenSpan]  # T, who looks: what a position reads, or, across to a source, what it writes
    columns: list[TokenSpan]  # S, what is looked at
    weights: np.ndarray  # (H, T, S), float32; each row adds up to 1
    heads: list[int]  # H, their numbers from 1


def sites(model: nn.Module) -> list[Site]:
    """Every layer that weighs positions, by part and from the bottom up. (Not the encoder of letters of a tagger, whose
    positions are none of the text's, and not attention to a summary alone, which has one place to look at.)"""
    parts = dict(model.named_modules())
    found: list[tuple[str, str]] = []
    for name, part in parts.items():
        lost, holder = isinstance(part, LostHeads), parts.get(name.rpartition(".")[0])
        across = part.across if isinstance(part, LostHeads) else holder.to_source if isinstance(holder, Looks) else None
        if name == "pool" and isinstance(part, Weighs):
            found.append(("pool", name))
        elif (lost or name.endswith(".attend")) and across is not False and ".char_encoder." not in name:
            kind = "cross" if across else "encoder" if name.startswith("encoder.") else "decoder"
            found.append((kind, "" if lost else name))  # without heads it counts as a layer
    counts = dict.fromkeys(NAMES, 0)
    numbered = list[Site]()
    for kind, name in found:
        counts[kind] += 1
        numbered.append(Site(kind, counts[kind], name))
    numbered = [site for site in numbered if site.name]
    return sorted(numbered, key=lambda site: list(NAMES).index(site.component))


def _chosen(known: Sequence[Site], options: ExplainConfig) -> list[Site]:
    """The layers that were asked for."""
    parts = list(dict.fromkeys(site.component for site in known))
    if options.component is not None and options.component not in parts:
        raise UsageError(f"--component {options.component}", "this model has none", f"it has: {', '.join(parts)}")
    mine = [site for site in known if options.component in (None, site.component)]
    if options.layer is None:
        return mine
    highest = max(site.layer for site in mine)
    if options.layer > highest:
        raise UsageError("--layer", f"must be from 1 to {highest}, not {options.layer}")
    return [site for site in mine if site.layer == options.layer]


def one_head(seen: Activation, head: int) -> Activation:
    """The same call with one head in it, so that only that one is computed."""
    q, k, v, mask, causal = seen.inputs
    if head > q.size(1):
        raise UsageError("--head", f"must be from 1 to {q.size(1)}, not {head}")
    own = slice(head - 1, head)
    mask = mask if mask is None or mask.size(1) == 1 else mask[:, own]
    return seen._replace(inputs=(q[:, own], k[:, own], v[:, own], mask, causal))


def _weights(calls: Sequence[Activation], part: str, head: int | None) -> np.ndarray:
    """(H, T, S) of all calls of one site; attention before a step, and input feeding, look once for each position."""
    if part == "pool":
        return np.asarray(attention_weights(calls[0])[:, None].float().cpu().numpy())
    found = [attention_weights(one if head is None else one_head(one, head)) for one in calls]
    return torch.cat(found, dim=2)[0].float().cpu().numpy()


def _axes(reading: ModelInput, site: Site) -> tuple[list[TokenSpan], list[TokenSpan]]:
    sides = [side.pieces for side in reading.sides]
    if site.component == "pool":
        return [TokenSpan("label", 0, 0)], sides[0]
    if site.component == "cross":
        return reading.places, sides[0]
    own = sides[1] if site.component == "decoder" and len(sides) > 1 else sides[0]
    return own, own


@torch.no_grad()
def read_attention(reading: ModelInput, wanted: Sequence[Site], head: int | None, device: torch.device) -> list[AttentionMap]:
    """What each of the sites did, in one pass over the input."""
    with record_activations(reading.model, [site.name for site in wanted]) as seen:
        reading.log_probs(torch.zeros(1, dtype=torch.long, device=device))
    backwards = [stack.part for stack in reading.stacks if stack.backwards]
    found = []
    for site in wanted:
        weights = _weights([one for one in seen if one.name == site.name], site.component, head)
        if site.component in backwards:
            weights = weights[:, ::-1, ::-1]
        heads = list(range(1, len(weights) + 1)) if head is None else [head]
        found.append(AttentionMap(site, *_axes(reading, site), weights, heads))
    return found


# ---- for people


def _entropy(weights: np.ndarray) -> float:
    """In nats, the mean over rows."""
    return abs(float((weights * np.log(weights.clip(1e-12))).sum(-1).mean()))


def _fraction(weights: np.ndarray, back: int) -> str:
    """How much on average goes to the token so far back."""
    return f"{np.diagonal(weights, -back).mean():.2f}" if len(weights) > back else "-"


def _strongest(looked: AttentionMap, weights: np.ndarray) -> str:
    first = 1 if looked.site.component == "decoder" and len(weights) > 1 else 0  # what comes first sees itself alone
    row, column = np.unravel_index(int(weights[first:].argmax()), weights[first:].shape)
    who, what = unique_labels(looked.rows)[first + row], unique_labels(looked.columns)[column]
    return f"{who} -> {what} {weights[first:].max():.2f}"


def _summary(found: Sequence[AttentionMap]) -> list[str]:
    """A line a head: how spread out it looks, and where to."""
    rows: list[Sequence[str]] = [("part", "layer", "head", "entropy", "to itself", "one back", "to first", "strongest")]
    for one in found:
        for head, weights in zip(one.heads, one.weights, strict=True):
            own = one.site.component in ("encoder", "decoder")
            fractions = [_fraction(weights, 0), _fraction(weights, 1)] if own else ["-", "-"]
            numbers = (f"{_entropy(weights):.2f}", *fractions, f"{weights[:, 0].mean():.2f}")
            rows.append((one.site.component, str(one.site.layer), str(head), *numbers, _strongest(one, weights)))
    return align_columns(rows, left=(0, 7))


def _written(found: Sequence[AttentionMap], top: int) -> list[str]:
    """A line a token of the output: where it looked in its source, by the mean of all heads."""
    mine = [one for one in found if one.site.component == "cross"]
    if not mine:
        return []
    weights = np.mean([one.weights.mean(0) for one in mine], axis=0)
    names = unique_labels(mine[0].columns)
    rows = [("output", "looked at, by the mean of these heads")]
    for piece, row in zip(mine[0].rows, weights, strict=True):
        best = [at for at in np.argsort(-row, kind="stable")[:top].tolist() if row[at] >= MIN_WEIGHT]
        rows.append((visible(piece.text), "  ".join(f"{names[at]} {row[at]:.2f}" for at in best)))
    return ["", *align_columns(rows, left=(0, 1))]


def _detail(one: AttentionMap, weights: np.ndarray, what: str) -> Figure:
    rows, columns = ([piece.text for piece in axis] for axis in (one.rows, one.columns))
    axes = (
        "output" if one.site.component == "cross" else "looks",
        "source" if one.site.component == "cross" else "is looked at",
    )
    return Figure(what, heatmap(weights, rows=rows, columns=columns, title=what, axes=axes))


def _pictures(found: Sequence[AttentionMap]) -> list[Figure]:
    """Of each part all heads, small, and the mean of each layer's, large; or the one head that was asked for."""
    pictures = list[Figure]()
    for part in dict.fromkeys(one.site.component for one in found):
        mine = [one for one in found if one.site.component == part]
        if sum(len(one.heads) for one in mine) > 1:
            rows = [
                (
                    f"layer {one.site.layer}",
                    [
                        Map(f"head {head}", weights, f"of layer {one.site.layer}: {_strongest(one, weights)}")
                        for head, weights in zip(one.heads, one.weights, strict=True)
                    ],
                )
                for one in mine
            ]
            what = f"{NAMES[part].capitalize()}: every head"
            pictures.append(Figure(what, grid(rows, key=f"grid-{part}", title=what)))
        top = mine[-1]
        heads = f"head {top.heads[0]}" if len(top.heads) == 1 else f"mean of {len(top.heads)} heads"
        pictures.append(_detail(top, top.weights.mean(0), f"{NAMES[part].capitalize()}: layer {top.site.layer}, {heads}"))
    return pictures


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
        raise UsageError("attention", f"{run.directory.path} is a run of kind {run.config.arch!r}, in which nothing attends")
    return known


def attention(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The patterns of all heads, or of those asked for; of a translation, while its output is written."""
    reading = read(run, text, options)
    wanted = _chosen(_known(run, reading.model), options)
    found = read_attention(reading, wanted, options.head, run.device)
    data = {"tokens": list_tokens(reading.sides[0].pieces), "layers": [_layer_data(one) for one in found]}
    if len(reading.sides) > 1:
        data["output"] = list_tokens(reading.places)
    lines = [*_summary(found), *_written(found, options.top), *([TRUNCATED] if reading.truncated else [])]
    title = f"Attention of {run.directory.path}" + (
        f" while it writes {on_one_line(reading.written)}" if reading.written else ""
    )
    return Explanation("attention", title, data, _pictures(found), lines, guides.ATTENTION)


# ---- rollout


def attention_rollout(layers: Sequence[np.ndarray]) -> np.ndarray:
    """(T, T): how much of each input token is in each position on top (Abnar and Zuidema 2020), from (H, T, T) of each layer,
    lowest first: heads count alike, and what a layer adds to counts as much as what it finds."""
    whole = np.eye(layers[0].shape[-1])
    for weights in layers:
        whole = (weights.mean(0).astype(np.float64) + np.eye(len(whole))) / 2 @ whole
    return whole


def why_no_rollout(run: AnyRun) -> str | None:
    """Why rollout does not apply, if it does not: it goes through the stack that is read first."""
    model = network(run)
    lowest = None if model is None else stacks(run)[0]
    if model is None or lowest is None or not lowest.attention:
        return "it follows self-attention from layer to layer, and this run has none below what it says"
    if lowest.config.skip_connection not in RESIDUAL_WEIGHT:
        return f"it counts what a layer adds to, and connection = {lowest.config.skip_connection!r} does not add"
    if not any(site.component == lowest.part for site in sites(model)):
        return "it follows self-attention from layer to layer, and all heads of this run were cut out"
    return None


def rollout(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """How attention carries input tokens through all layers; of a translation, through those of the encoder."""
    if reason := why_no_rollout(run):
        raise UsageError("rollout", f"{reason}")
    if options.layer is not None or options.head is not None:
        raise UsageError("rollout", "goes through all layers and heads", "drop --layer and --head")
    reading = read(run, text, options)
    part = reading.stacks[0].part
    found = read_attention(reading, [site for site in sites(reading.model) if site.component == part], None, run.device)
    weights = attention_rollout([one.weights for one in found])
    what = f"Rollout through {len(found)} layer{'s' if len(found) > 1 else ''}"
    own = found[-1]
    names = [piece.text for piece in own.rows]
    svg = heatmap(weights, rows=names, columns=names, title=what, axes=("position on top", "input token"))
    shown, rows = unique_labels(own.rows), [("token", "strongest inputs")]
    for at, row in enumerate(weights):
        best = [one for one in np.argsort(-row, kind="stable")[: options.top].tolist() if row[one] >= MIN_WEIGHT]
        rows.append((shown[at], "  ".join(f"{shown[one]} {row[one]:.2f}" for one in best)))
    data = {"tokens": list_tokens(own.rows), "weights": weights.round(4).tolist(), "part": part, "layers": len(found)}
    return Explanation(
        "rollout",
        f"{what} of {run.directory.path}",
        data,
        [Figure(what, svg)],
        align_columns(rows, left=(0, 1)),
        guides.ROLLOUT,
    )
