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
from weft.config import no_such
from weft.data.opening import FILE as OPENING
from weft.data.record import recorded, write_record
from weft.errors import UsageError
from weft.explain import guides
from weft.explain.attention import NAMES
from weft.explain.heads import Head, Heads, cut_out, cut_settings, every, kept, named, without
from weft.explain.held_loss import Portion, loss
from weft.explain.importance import MEASURES, by_gradient, by_masking
from weft.explain.view import Picture, View, aligned
from weft.plots.diverging_heatmap import signed_map
from weft.plots.lines import Axis, Series, lines
from weft.runs.folder import RunFolder, make_folder
from weft.runs.resolve import resolve
from weft.runs.run import AnyRun
from weft.runs.staging import staged

ROUNDS = 8  # of measuring, unless told how many heads go at once
Told = Callable[[int, int], None]  # passes over the data: done, in all


class Step(NamedTuple):
    """What the loss is when so many heads are gone."""

    gone: list[Head]  # in this step
    loss: float


class Pruning(NamedTuple):
    """What was found out."""

    layers: list[Heads]
    importance: dict[Head, float]  # of every head, in the whole model
    steps: list[Step]  # the first is the whole model

    @property
    def gone(self) -> list[Head]:
        return [head for step in self.steps for head in step.gone]


def count(text: str, heads: int) -> int:
    """How many of so many heads are meant: `8`, or `50%`."""
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdigit()):
        raise UsageError(f"--heads: must be a number or a share, such as 8 or 50%, not {text!r}")
    found = int(number) if number == text else math.floor(int(number) / 100 * heads)
    if not 1 <= found <= heads:
        raise UsageError(f"--heads: must be from 1 to {heads}, which the model has, not {text}")
    return found


def passes(heads: int, wanted: int, at_once: int, measure: str) -> int:
    """How often the data is read: for every head that is left before a step, or once, and after it."""
    before = [heads - done for done in range(0, wanted, at_once)] or [heads]
    return sum((1 if measure == "gradient" else left) for left in before) + len(before) + 1


def prune(
    model: nn.Module,
    layers: Sequence[Heads],
    parts: Sequence[Portion],
    *,
    wanted: int,
    at_once: int | None = None,
    measure: str = "masking",
    told: Told | None = None,
) -> Pruning:
    """Take away `wanted` heads, the least important first, `at_once` between two measurings; with none wanted, only measure."""
    if measure not in MEASURES:
        raise UsageError(f"--measure: {no_such('measure', measure, MEASURES)}")
    if at_once is not None and at_once < 1:
        raise UsageError(f"--at-once: must be 1 or more, not {at_once}")
    important, stride = {"masking": by_masking, "gradient": by_gradient}[measure], at_once or max(1, -(-wanted // ROUNDS))
    total, done = passes(len(every(layers)), wanted, stride, measure), 0

    def passed() -> None:
        nonlocal done
        done += 1
        if told is not None:
            told(done, total)

    steps, gone = [Step([], loss(parts))], list[Head]()
    passed()
    first = found = important(model, layers, parts, gone, passed)
    while len(gone) < wanted:
        if gone:
            found = important(model, layers, parts, gone, passed)
        least = sorted(found, key=lambda head: found[head])[: min(stride, wanted - len(gone))]
        gone += least
        with without(model, layers, gone):
            steps.append(Step(least, loss(parts)))
        passed()
    return Pruning(list(layers), first, steps)


# ---- for people


def _importance(found: Pruning) -> list[Picture]:
    """A map for each part: a row a layer, a column a head."""
    pictures = []
    largest = 1000 * max(map(abs, found.importance.values()), default=0.0) or None
    for part in dict.fromkeys(one.part for one in found.layers):
        mine = [at for at, one in enumerate(found.layers) if one.part == part and one.heads]
        if not mine:
            continue
        values = np.zeros((len(mine), max(found.layers[at].heads for at in mine)))
        for row, at in enumerate(mine):
            own = [found.importance[Head(at, head)] for head in range(found.layers[at].heads)]
            values[row, : len(own)] = 1000 * np.array(own)
        what = f"What each head is worth: {NAMES[part]}"
        svg = signed_map(
            values,
            rows=[str(found.layers[at].layer) for at in mine],
            columns=[str(head + 1) for head in range(values.shape[1])],
            name="loss without it, minus loss; thousandths of a nat",
            title=what,
            axes=("layer", "head"),
            largest=largest,
        )
        pictures.append(Picture(what, svg))
    return pictures


def _curve(found: Pruning, unit: str) -> Picture:
    taken = np.cumsum([len(step.gone) for step in found.steps]).tolist()
    names = [", ".join(named(found.layers, head) for head in step.gone) or "whole" for step in found.steps]
    what = "Loss as heads are taken away"
    one = Series("", taken, [step.loss for step in found.steps], labels=names)
    return Picture(what, lines([one], across=Axis("heads taken away"), up=Axis(f"loss, {unit}"), title=what))


WORTH = {"masking": "loss without it", "gradient": "loss without it, about"}


def _important(found: Pruning, name: str, top: int) -> list[str]:
    """The heads by what they are worth, the least first."""
    order = sorted(found.importance, key=lambda head: found.importance[head])
    shown = [order] if len(order) <= 2 * top else [order[:top], order[-top:]]
    rows: list[Sequence[str]] = [("head", name)]
    for part in shown:
        rows += [("...", "")] if len(rows) > 1 else []
        rows += [(named(found.layers, head), f"{found.importance[head]:+.4f}") for head in part]
    return aligned(rows)


def _steps(found: Pruning) -> list[str]:
    rows: list[Sequence[str]] = [("heads gone", "loss", "change", "gone in this step")]
    taken = 0
    for step in found.steps:
        taken += len(step.gone)
        change = f"{step.loss - found.steps[0].loss:+.4f}" if step.gone else ""
        names = ", ".join(named(found.layers, head) for head in step.gone)
        rows.append((str(taken), f"{step.loss:.4f}", change, names))
    return aligned(rows, left=(3,))


def _unit(run: AnyRun) -> str:
    return f"nats a {run.task.item}"


def record(run: AnyRun, found: Pruning, measured: dict[str, Any]) -> dict[str, Any]:
    """What was found out, for programs; `measured` says with what."""
    whole = every(found.layers)
    return {
        "run": str(run.folder.path),
        **measured,
        "unit": _unit(run),
        "heads": len(whole),
        "importance": [{**_told(found.layers, head), "value": found.importance[head]} for head in whole],
        "steps": [{"gone": [_told(found.layers, head) for head in step.gone], "loss": step.loss} for step in found.steps],
    }


def _told(layers: Sequence[Heads], head: Head) -> dict[str, Any]:
    return {"part": layers[head.layer].part, "layer": layers[head.layer].layer, "head": head.head + 1}


def view(run: AnyRun, found: Pruning, measured: dict[str, Any], *, top: int = 8) -> View:
    """The importance of all heads, and the loss as some of them are taken away."""
    pictures = _importance(found)
    said = _important(found, WORTH[measured["measure"]], top)
    if len(found.steps) > 1:
        pictures.insert(0, _curve(found, _unit(run)))
        said += ["", *_steps(found)]
    return View("heads", f"Heads of {run.folder.path}", record(run, found, measured), pictures, said, guides.HEADS_IMPORTANCE)


# ---- the smaller run


def free_folder(out: Path) -> RunFolder:
    """A folder that a run can be written into."""
    folder = make_folder(out)
    folder.refuse_strangers()
    if folder.resolved.is_file():
        raise UsageError(f"{out}: holds a run already; choose another --out")
    return folder


def write(run: AnyRun, out: Path, found: Pruning, measured: dict[str, Any]) -> RunFolder:
    """A run folder of the model without the heads that are gone. Its run file trains it on; prune.json says what was done; of
    its training before there is nothing in it but the weights."""
    folder = free_folder(out)
    stay = kept(found.layers, set(found.gone))
    values = cut_settings(run, found.layers, stay)
    # its run file trains it on from here
    values["train"]["init_from"] = str(out.absolute())
    settings = resolve(values, base=Path())
    tensors = cut_out(run.folder.read_weights(run.vocabulary.hash), found.layers, stay)
    with staged(out, last=folder.resolved.name) as place:
        made = RunFolder(place)
        made.begin(settings, settings.to_toml(), fresh=False)
        made.note_environment()
        for path in _vocabulary(run.folder.path):
            files.write_bytes(place / path.name, path.read_bytes())
        for split in settings.datasets:
            if known := recorded(run.folder.data, split):
                write_record(made.data, split, known)
        files.write_json(place / "prune.json", record(run, found, measured))
        made.write_weights(tensors, run.vocabulary.hash, 0)
    return folder


def _vocabulary(folder: Path) -> Collection[Path]:
    """The files that say what tokens and labels are, and what a text comes after."""
    return sorted([*folder.glob("tokenizer*.json"), *folder.glob("labels.json"), *folder.glob(OPENING)])
