"""The architectures of a comparison: those requested, all of a task, or a default choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import UsageError
from weft.nn.mixers import MIXERS
from weft.tasks.registry import find_task
from weft.tasks.spec import Preset

ALL = "all"  # every architecture of the task


def parse_models(text: str) -> list[str]:
    """'lstm, gru' -> ['lstm', 'gru']."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError("models", f"expected a comma-separated list such as lstm,gru,transformer, got {text!r}")
    return names


def select_archs(values: Mapping[str, Any], models: Sequence[str]) -> list[str]:
    """The architectures to compare: those requested, all of the task, or only that of the run file, which comes first."""
    base_arch = values["model"]["arch"]
    if list(models) == [ALL]:
        return [base_arch, *(arch for arch in find_task(values["task"]).presets if arch != base_arch)]
    return list(models) or [base_arch]


def _layer_types(values: Mapping[str, Any]) -> set[Any]:
    """The layer types of a preset, including those of encoder and decoder."""
    inner = [value for value in values.values() if isinstance(value, Mapping)]
    return {values.get("layer_type")}.union(*map(_layer_types, inner)) - {None}


def _typical_networks(presets: Mapping[str, Preset]) -> list[str]:
    """The recurrent network with the largest state (LSTM before GRU and RNN) and the first that only attends; the other
    networks are variants of these."""
    recurrent = sorted((arch for arch in presets if arch in MIXERS), key=lambda arch: -MIXERS[arch].num_state_vectors)[:1]
    layers = {arch: [MIXERS[name] for name in _layer_types(preset.values)] for arch, preset in presets.items()}
    attending = [arch for arch in presets if layers[arch] and all(mixer.attends for mixer in layers[arch])][:1]
    return [arch for arch in presets if arch in (*recurrent, *attending)]


def default_archs(values: Mapping[str, Any]) -> list[str]:
    """The architectures to compare if none is requested: that of the run file, the baselines of its task, which train in
    seconds, and a recurrent network and a Transformer, unless the run file's architecture has the same layers. A run that is
    initialized from another run is compared with baselines only: no other architecture could start from those weights."""
    presets, base_arch = find_task(values["task"]).presets, values["model"]["arch"]
    baselines = [arch for arch in presets if not presets[arch].estimator.by_steps]
    networks = [] if "init_from" in values.get("train", {}) else _typical_networks(presets)
    base_layer_types = _layer_types(presets[base_arch].values) if base_arch in presets else set()
    different = [arch for arch in networks if not _layer_types(presets[arch].values) <= base_layer_types]
    return list(dict.fromkeys([base_arch, *baselines, *different]))


def describe_choice(values: Mapping[str, Any], archs: Sequence[str]) -> str:
    """Which architectures are compared by default, and why, in one sentence."""
    presets, base_arch = find_task(values["task"]).presets, values["model"]["arch"]
    parts = [f"{base_arch} (from the run file)"]
    if baselines := [arch for arch in archs if arch != base_arch and not presets[arch].estimator.by_steps]:
        parts.append(f"{' and '.join(baselines)} (baseline{'s' * (len(baselines) > 1)})")
    if networks := [arch for arch in archs if arch != base_arch and arch not in baselines]:
        parts.append(f"{' and '.join(networks)} (typical network{'s' * (len(networks) > 1)})")
    return f"Comparing {', '.join(parts)}; set `models` to choose others, or to all for all {len(presets)} architectures"
