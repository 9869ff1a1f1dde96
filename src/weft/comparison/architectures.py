"""Which kinds a comparison is of: those that are named, all of a task, or those that nearly everybody would name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import UsageError
from weft.tasks.registry import find_task

ALL = "all"  # kinds of a task
NETWORKS = ("lstm", "transformer")  # one that reads step by step and one that attends; the others are variants of them


def parse_models(text: str) -> list[str]:
    """'lstm, gru' -> lstm and gru; 'all' -> all."""
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise UsageError(f"--models {text}", "must look like lstm,gru,transformer")
    return found


def archs_of(values: Mapping[str, Any], models: Sequence[str]) -> list[str]:
    """The kinds that are compared: those that are named; all of the task, the run file's own first; or that one alone."""
    own = values["model"]["arch"]
    if list(models) == [ALL]:
        return [own, *(kind for kind in find_task(values["task"]).presets if kind != own)]
    return list(models) or [own]


def _mixers(values: Mapping[str, Any]) -> set[Any]:
    """What a preset's layers, and those of its sides, are made of."""
    inner = [value for value in values.values() if isinstance(value, Mapping)]
    return {values.get("layer_type")}.union(*map(_mixers, inner)) - {None}


def usual(values: Mapping[str, Any]) -> list[str]:
    """The kinds to compare where none is named: the run file's own, the baselines of its task, which cost seconds, and a
    recurrent network and a Transformer, unless its own has the same layers. One that starts from another run's weights is
    compared with baselines alone: no other kind could start there."""
    presets, own = find_task(values["task"]).presets, values["model"]["arch"]
    baselines = [kind for kind in presets if not presets[kind].estimator.by_steps]
    networks = [] if "init_from" in values.get("train", {}) else [kind for kind in NETWORKS if kind in presets]
    same = _mixers(presets[own].values) if own in presets else set()
    others = [kind for kind in networks if not _mixers(presets[kind].values) <= same]
    return list(dict.fromkeys([own, *baselines, *others]))


def told(values: Mapping[str, Any], kinds: Sequence[str]) -> str:
    """Which kinds are compared, and why, in words."""
    presets, own = find_task(values["task"]).presets, values["model"]["arch"]
    parts = [f"{own} (the run file's)"]
    if baselines := [kind for kind in kinds if kind != own and not presets[kind].estimator.by_steps]:
        parts.append(f"{' and '.join(baselines)} (counted or solved in seconds: what a network must beat)")
    if networks := [kind for kind in kinds if kind != own and kind not in baselines]:
        parts.append(f"{' and '.join(networks)} (the usual network{'s' * (len(networks) > 1)} beside it)")
    return f"comparing {', '.join(parts)}; --models names others, --models all takes all {len(presets)} kinds"
