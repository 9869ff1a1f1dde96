"""Pruning of attention heads: remove the least important ones, measure the loss after each step, and write a smaller run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from weft.errors import UsageError, unknown_name
from weft.explain import guides
from weft.explain.attention import COMPONENT_NAMES
from weft.explain.eval_loss import EvalBatch, mean_loss
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.heads import (
    Head,
    LayerHeads,
    all_heads,
    head_name,
    masked_heads,
    pruned_config,
    remaining_heads,
    remove_heads,
)
from weft.explain.importance import MEASURES, importance_by_gradient, importance_by_masking
from weft.nn.lora import adapter_names
from weft.plots.diverging_heatmap import diverging_heatmap
from weft.plots.lines import Axis, Series, lines
from weft.runs.derived_run import write_derived_run
from weft.runs.run import AnyRun
from weft.runs.run_dir import RunDir

DEFAULT_ROUNDS = 8  # importance is measured this often unless `heads_per_round` is set
ProgressCallback = Callable[[int, int], None]  # passes over the data: done, total


class PruningStep(NamedTuple):
    removed: list[Head]  # in this step
    loss: float  # after it


class Pruning(NamedTuple):
    """The importance of all heads, and the heads that were removed."""

    layers: list[LayerHeads]
    importance: dict[Head, float]  # of each head in the unpruned model
    steps: list[PruningStep]  # the first is the unpruned model

    @property
    def removed(self) -> list[Head]:
        return [head for step in self.steps for head in step.removed]


def parse_num_heads(text: str, num_heads: int) -> int:
    """The number of heads to remove: `8`, or `50%` of `num_heads`."""
    digits = text.removesuffix("%")
    if not (digits.isascii() and digits.isdigit()):
        raise UsageError("remove", f"expected a number or a percentage such as 8 or 50%, got {text!r}")
    number = int(digits) if digits == text else math.floor(int(digits) / 100 * num_heads)
    if not 1 <= number <= num_heads:
        raise UsageError("remove", f"must be from 1 to {num_heads} heads, got {text}")
    return number


def count_passes(num_heads: int, num_removed: int, heads_per_round: int, measure: str) -> int:
    """Passes over the data: one per round, or per remaining head if heads are masked, and one per loss."""
    remaining = [num_heads - removed for removed in range(0, num_removed, heads_per_round)] or [num_heads]
    return sum((1 if measure == "gradient" else heads) for heads in remaining) + len(remaining) + 1


def prune(
    model: nn.Module,
    layers: Sequence[LayerHeads],
    batches: Sequence[EvalBatch],
    *,
    num_removed: int,
    heads_per_round: int | None = None,
    measure: str = "masking",
    progress: ProgressCallback | None = None,
) -> Pruning:
    """Mask `num_removed` heads, the least important first, and measure importance again after every `heads_per_round`.

    With `num_removed` 0, importance is only measured. The weights do not change.
    """
    if measure not in MEASURES:
        raise UsageError("importance", *unknown_name("importance measure", measure, MEASURES))
    if heads_per_round is not None and heads_per_round < 1:
        raise UsageError("heads_per_round", f"must be at least 1, got {heads_per_round}")
    measure_importance = {"masking": importance_by_masking, "gradient": importance_by_gradient}[measure]
    heads_per_round = heads_per_round or max(1, -(-num_removed // DEFAULT_ROUNDS))
    total, done = count_passes(len(all_heads(layers)), num_removed, heads_per_round, measure), 0

    def count_pass() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    removed, steps = list[Head](), [PruningStep([], mean_loss(batches))]
    count_pass()
    first = importance = measure_importance(model, layers, batches, removed, count_pass)
    while len(removed) < num_removed:
        if removed:
            importance = measure_importance(model, layers, batches, removed, count_pass)
        ranking = sorted(importance, key=lambda head: importance[head])
        least_important = ranking[: min(heads_per_round, num_removed - len(removed))]
        removed += least_important
        with masked_heads(model, layers, removed):
            steps.append(PruningStep(least_important, mean_loss(batches)))
        count_pass()
    return Pruning(list(layers), first, steps)


# ---- figures and text


def _importance_figures(pruning: Pruning) -> list[Figure]:
    """One heat map per component: a row per layer, a column per head. All have the same scale."""
    figures = []
    maximum = 1000 * max(map(abs, pruning.importance.values()), default=0.0) or None
    for component in dict.fromkeys(layer.component for layer in pruning.layers):
        indices = [i for i, layer in enumerate(pruning.layers) if layer.component == component and layer.num_heads]
        if not indices:
            continue
        values = np.zeros((len(indices), max(pruning.layers[i].num_heads for i in indices)))
        for row, i in enumerate(indices):
            importance = [pruning.importance[Head(i, head)] for head in range(pruning.layers[i].num_heads)]
            values[row, : len(importance)] = 1000 * np.array(importance)
        title = f"Head importance: {COMPONENT_NAMES[component]}"
        svg = diverging_heatmap(
            values,
            rows=[str(pruning.layers[i].layer) for i in indices],
            columns=[str(head + 1) for head in range(values.shape[1])],
            name="increase of the loss without the head, in thousandths of a nat",
            title=title,
            axes=("layer", "head"),
            maximum=maximum,
        )
        figures.append(Figure(title, svg))
    return figures


def _loss_figure(pruning: Pruning, unit: str) -> Figure:
    num_removed = np.cumsum([len(step.removed) for step in pruning.steps]).tolist()
    labels = [", ".join(head_name(pruning.layers, head) for head in step.removed) or "unpruned" for step in pruning.steps]
    title = "Loss by number of removed heads"
    series = Series("", num_removed, [step.loss for step in pruning.steps], labels=labels)
    return Figure(title, lines([series], x_axis=Axis("heads removed"), y_axis=Axis(f"loss, {unit}"), title=title))


IMPORTANCE_LABEL = {"masking": "loss increase", "gradient": "loss change (estimate)"}


def _importance_table(pruning: Pruning, label: str, top: int) -> list[str]:
    """The heads by importance, the least important first; of a long list both ends."""
    ranking = sorted(pruning.importance, key=lambda head: pruning.importance[head])
    sections = [ranking] if len(ranking) <= 2 * top else [ranking[:top], ranking[-top:]]
    rows: list[Sequence[str]] = [("head", label)]
    for section in sections:
        rows += [("...", "")] if len(rows) > 1 else []
        rows += [(head_name(pruning.layers, head), f"{pruning.importance[head]:+.4f}") for head in section]
    return align_columns(rows)


def _step_table(pruning: Pruning) -> list[str]:
    rows: list[Sequence[str]] = [("heads removed", "loss", "change", "removed in this step")]
    num_removed = 0
    for step in pruning.steps:
        num_removed += len(step.removed)
        change = f"{step.loss - pruning.steps[0].loss:+.4f}" if step.removed else ""
        names = ", ".join(head_name(pruning.layers, head) for head in step.removed)
        rows.append((str(num_removed), f"{step.loss:.4f}", change, names))
    return align_columns(rows, left=(3,))


def _unit(run: AnyRun) -> str:
    return f"nats per {run.spec.loss_unit}"


def _head_json(layers: Sequence[LayerHeads], head: Head) -> dict[str, Any]:
    return {"part": layers[head.layer].component, "layer": layers[head.layer].layer, "head": head.head + 1}


def pruning_json(run: AnyRun, pruning: Pruning, setup: dict[str, Any]) -> dict[str, Any]:
    """The result as JSON data; `setup` is the importance measure and the data."""
    layers, heads = pruning.layers, all_heads(pruning.layers)
    return {
        "run": str(run.directory.path),
        **setup,
        "unit": _unit(run),
        "heads": len(heads),
        "importance": [{**_head_json(layers, head), "value": pruning.importance[head]} for head in heads],
        "steps": [{"gone": [_head_json(layers, head) for head in step.removed], "loss": step.loss} for step in pruning.steps],
    }


def view(run: AnyRun, pruning: Pruning, setup: dict[str, Any], *, top: int = 8) -> Explanation:
    """The importance of all heads, and the loss after each step if heads were removed."""
    figures = _importance_figures(pruning)
    text = _importance_table(pruning, IMPORTANCE_LABEL[setup["measure"]], top)
    if len(pruning.steps) > 1:
        figures.insert(0, _loss_figure(pruning, _unit(run)))
        text += ["", *_step_table(pruning)]
    data = pruning_json(run, pruning, setup)
    return Explanation("heads", f"Heads of {run.directory.path}", data, figures, text, guides.HEADS_IMPORTANCE)


# ---- the smaller run


def check_prunable(run: AnyRun) -> None:
    """Refuse a model with adapters, whose matrices belong to all heads."""
    if adapter_names(run.members[0].model.state_dict()):
        problem = "has LoRA adapters, which do not belong to single heads"
        raise UsageError(run.directory.path, problem, "merge them with weft merge")


def write_pruned_run(run: AnyRun, output_dir: Path, pruning: Pruning, setup: dict[str, Any]) -> RunDir:
    """Write a run without the removed heads; prune.json records the result."""
    remaining = remaining_heads(pruning.layers, set(pruning.removed))
    values = pruned_config(run, pruning.layers, remaining)
    tensors = remove_heads(run.directory.read_weights(run.vocabulary.hash), pruning.layers, remaining)
    return write_derived_run(run, output_dir, values, tensors, {"prune.json": pruning_json(run, pruning, setup)})
