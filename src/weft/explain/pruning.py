"""Which heads can go: those that matter least are taken away, some at a time, and what that costs is measured; then they are
cut out of the weights, and a run is written that is smaller and faster."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from weft import files
from weft.data.bos import FILE as OPENING
from weft.data.provenance import read_record, write_record
from weft.errors import UsageError, unknown_name
from weft.explain import guides
from weft.explain.attention import NAMES
from weft.explain.eval_loss import EvalBatch, loss
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.heads import Head, LayerHeads, all_heads, masked_heads, named, pruned_config, remaining_heads, remove_heads
from weft.explain.importance import MEASURES, importance_by_gradient, importance_by_masking
from weft.plots.diverging_heatmap import diverging_heatmap
from weft.plots.lines import Axis, Series, lines
from weft.runs.atomic_dir import staged_directory
from weft.runs.resolve import resolve
from weft.runs.run import AnyRun
from weft.runs.run_dir import RunDir, make_directory

ROUNDS = 8  # of measuring. Default: without `heads_per_round`
ProgressCallback = Callable[[int, int], None]  # passes over the data: done, in all


class Step(NamedTuple):
    """The loss after removing this number of heads."""

    removed: list[Head]  # in this step
    loss: float


class Pruning(NamedTuple):
    """What was found out."""

    layers: list[LayerHeads]
    importance: dict[Head, float]  # of every head, in the whole model
    steps: list[Step]  # the first is the whole model

    @property
    def removed(self) -> list[Head]:
        return [head for step in self.steps for head in step.removed]


def count(text: str, heads: int) -> int:
    """The number of heads in `8` or `50%`."""
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdigit()):
        raise UsageError("remove", f"expected a number or a percentage such as 8 or 50%, got {text!r}")
    found = int(number) if number == text else math.floor(int(number) / 100 * heads)
    if not 1 <= found <= heads:
        raise UsageError("remove", f"must be from 1 to {heads} heads, got {text}")
    return found


def count_passes(heads: int, wanted: int, heads_per_round: int, measure: str) -> int:
    """How often the data is read: for every head that is left before a step, or once, and after it."""
    before = [heads - done for done in range(0, wanted, heads_per_round)] or [heads]
    return sum((1 if measure == "gradient" else left) for left in before) + len(before) + 1


def prune(
    model: nn.Module,
    layers: Sequence[LayerHeads],
    parts: Sequence[EvalBatch],
    *,
    wanted: int,
    heads_per_round: int | None = None,
    measure: str = "masking",
    progress: ProgressCallback | None = None,
) -> Pruning:
    """Remove `wanted` heads, the least important first, and measure again after `heads_per_round`; with none, only measure."""
    if measure not in MEASURES:
        raise UsageError("importance", *unknown_name("importance measure", measure, MEASURES))
    if heads_per_round is not None and heads_per_round < 1:
        raise UsageError("heads_per_round", f"must be at least 1, got {heads_per_round}")
    important, stride = (
        {"masking": importance_by_masking, "gradient": importance_by_gradient}[measure],
        heads_per_round or max(1, -(-wanted // ROUNDS)),
    )
    total, done = count_passes(len(all_heads(layers)), wanted, stride, measure), 0

    def passed() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    steps, removed = [Step([], loss(parts))], list[Head]()
    passed()
    first = found = important(model, layers, parts, removed, passed)
    while len(removed) < wanted:
        if removed:
            found = important(model, layers, parts, removed, passed)
        minimum = sorted(found, key=lambda head: found[head])[: min(stride, wanted - len(removed))]
        removed += minimum
        with masked_heads(model, layers, removed):
            steps.append(Step(minimum, loss(parts)))
        passed()
    return Pruning(list(layers), first, steps)


# ---- for people


def _importance(found: Pruning) -> list[Figure]:
    """A map for each part: a row a layer, a column a head."""
    pictures = []
    maximum = 1000 * max(map(abs, found.importance.values()), default=0.0) or None
    for part in dict.fromkeys(one.part for one in found.layers):
        mine = [at for at, one in enumerate(found.layers) if one.part == part and one.heads]
        if not mine:
            continue
        values = np.zeros((len(mine), max(found.layers[at].heads for at in mine)))
        for row, at in enumerate(mine):
            own = [found.importance[Head(at, head)] for head in range(found.layers[at].heads)]
            values[row, : len(own)] = 1000 * np.array(own)
        what = f"What each head is worth: {NAMES[part]}"
        svg = diverging_heatmap(
            values,
            rows=[str(found.layers[at].layer) for at in mine],
            columns=[str(head + 1) for head in range(values.shape[1])],
            name="loss without it, minus loss; thousandths of a nat",
            title=what,
            axes=("layer", "head"),
            maximum=maximum,
        )
        pictures.append(Figure(what, svg))
    return pictures


def _curve(found: Pruning, unit: str) -> Figure:
    taken = np.cumsum([len(step.removed) for step in found.steps]).tolist()
    names = [", ".join(named(found.layers, head) for head in step.removed) or "whole" for step in found.steps]
    what = "Loss as heads are taken away"
    one = Series("", taken, [step.loss for step in found.steps], labels=names)
    return Figure(what, lines([one], across=Axis("heads removed"), up=Axis(f"loss, {unit}"), title=what))


IMPORTANCE_LABEL = {"masking": "loss without it", "gradient": "loss without it, about"}


def _important(found: Pruning, name: str, top: int) -> list[str]:
    """The heads by what they are worth, the least first."""
    order = sorted(found.importance, key=lambda head: found.importance[head])
    shown = [order] if len(order) <= 2 * top else [order[:top], order[-top:]]
    rows: list[Sequence[str]] = [("head", name)]
    for part in shown:
        rows += [("...", "")] if len(rows) > 1 else []
        rows += [(named(found.layers, head), f"{found.importance[head]:+.4f}") for head in part]
    return align_columns(rows)


def _steps(found: Pruning) -> list[str]:
    rows: list[Sequence[str]] = [("heads gone", "loss", "change", "gone in this step")]
    taken = 0
    for step in found.steps:
        taken += len(step.removed)
        change = f"{step.loss - found.steps[0].loss:+.4f}" if step.removed else ""
        names = ", ".join(named(found.layers, head) for head in step.removed)
        rows.append((str(taken), f"{step.loss:.4f}", change, names))
    return align_columns(rows, left=(3,))


def _unit(run: AnyRun) -> str:
    return f"nats per {run.spec.loss_unit}"


def record(run: AnyRun, found: Pruning, measured: dict[str, Any]) -> dict[str, Any]:
    """What was found out, for programs; `measured` says with what."""
    whole = all_heads(found.layers)
    return {
        "run": str(run.directory.path),
        **measured,
        "unit": _unit(run),
        "heads": len(whole),
        "importance": [{**_told(found.layers, head), "value": found.importance[head]} for head in whole],
        "steps": [{"gone": [_told(found.layers, head) for head in step.removed], "loss": step.loss} for step in found.steps],
    }


def _told(layers: Sequence[LayerHeads], head: Head) -> dict[str, Any]:
    return {"part": layers[head.layer].part, "layer": layers[head.layer].layer, "head": head.head + 1}


def view(run: AnyRun, found: Pruning, measured: dict[str, Any], *, top: int = 8) -> Explanation:
    """The importance of all heads, and the loss as some of them are taken away."""
    pictures = _importance(found)
    said = _important(found, IMPORTANCE_LABEL[measured["measure"]], top)
    if len(found.steps) > 1:
        pictures.insert(0, _curve(found, _unit(run)))
        said += ["", *_steps(found)]
    return Explanation(
        "heads", f"Heads of {run.directory.path}", record(run, found, measured), pictures, said, guides.HEADS_IMPORTANCE
    )


# ---- the smaller run


def check_free(output_dir: Path) -> RunDir:
    """A directory that a run can be written into."""
    directory = make_directory(output_dir)
    directory.check_is_run_dir()
    if directory.resolved.is_file():
        raise UsageError(output_dir, "already contains a run", "choose another `output_dir`")
    return directory


def write(run: AnyRun, output_dir: Path, found: Pruning, measured: dict[str, Any]) -> RunDir:
    """A run directory of the model without the removed heads. Its run file resumes training; prune.json records the result; of
    its training before there is nothing in it but the weights."""
    directory = check_free(output_dir)
    stay = remaining_heads(found.layers, set(found.removed))
    values = pruned_config(run, found.layers, stay)
    # its run file trains it on from here
    values["train"]["init_from"] = str(output_dir.absolute())
    config = resolve(values, base=Path())
    tensors = remove_heads(run.directory.read_weights(run.vocabulary.hash), found.layers, stay)
    with staged_directory(output_dir, last=directory.resolved.name) as place:
        made = RunDir(place)
        made.begin(config, config.to_toml(), overwrite=False)
        made.write_environment()
        for path in _vocabulary(run.directory.path):
            files.write_bytes(place / path.name, path.read_bytes())
        for split in config.datasets:
            if known := read_record(run.directory.data, split):
                write_record(made.data, split, known)
        files.write_json(place / "prune.json", record(run, found, measured))
        made.write_weights(tensors, run.vocabulary.hash, 0)
    return directory


def _vocabulary(directory: Path) -> Collection[Path]:
    """The files that say what tokens and labels are, and what a text comes after."""
    return sorted([*directory.glob("tokenizer*.json"), *directory.glob("labels.json"), *directory.glob(OPENING)])
