"""A run file for another architecture: which options carry over, and which do not apply."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weft.errors import ConfigError, unknown_name
from weft.models.seq2seq_config import SIDES
from weft.runs.config import RunConfig
from weft.runs.resolve import resolve
from weft.tasks.registry import find_task
from weft.tasks.spec import Preset

# options that define an architecture: they mean nothing for another one
DEFINING = (
    "layer_type",
    "attention",
    "attention_placement",
    "input_feeding",
    "bridge",
    "feed_context",
    "reverse_source",
    "bidirectional",
)
# options that carry over to every architecture, even if its preset sets them
COMMON = ("hidden_size", "num_layers", "dropout", "attention_dropout", "embedding_dropout", "embedding_dim", "pooling")


class ApplicableOptions(NamedTuple):
    values: dict[str, Any]  # a run file
    dropped: list[str]  # options that do not apply to the architecture: model.num_heads


def leaves(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The options of nested tables by their dotted names."""
    options: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}.{key}" if prefix else key
        options |= leaves(value, name) if isinstance(value, Mapping) else {name: value}
    return options


def with_option(values: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The tables with the option of a dotted name set; None removes it."""
    head, _, rest = name.partition(".")
    inner = values.get(head)
    if rest:
        new: Any = with_option(inner if isinstance(inner, Mapping) else {}, rest, value)
    elif value is None:
        return {key: old for key, old in values.items() if key != head}
    else:
        new = value
    return {**values, head: new}


def everywhere(values: Mapping[str, Any], option: str, value: Any) -> dict[str, Any]:
    """The run file with `option` of [model] set for the whole model: removed from the encoder and decoder tables."""
    for side in SIDES:
        if isinstance(values["model"].get(side), Mapping):
            values = with_option(values, f"model.{side}.{option}", None)
    return with_option(values, f"model.{option}", value)


def _is_own(option: str, preset: Preset) -> bool:
    """Whether an option of another architecture is one that this architecture sets itself."""
    *path, last = option.split(".")
    if path and path[0] not in SIDES:
        return False
    decided = {name.split(".")[-1] for name in leaves(preset.values)}
    return last in DEFINING or (last in decided and last not in COMMON)


def applicable_options(values: Mapping[str, Any], arch: str, *, base: Path) -> ApplicableOptions:
    """The run file for `arch` with every option of [model] and [train] that applies, and the names of the others."""
    presets, own = find_task(values["task"]).presets, values["model"]["arch"]
    if arch not in presets:
        raise ConfigError("models", *unknown_name("architecture", arch, presets))
    if arch == own:
        return ApplicableOptions(dict(values), [])
    preset, dropped = presets[arch], []
    new = {**values, "model": {"arch": arch}}
    for option, value in leaves({key: part for key, part in values["model"].items() if key != "arch"}).items():
        if _is_own(option, preset):
            dropped.append(f"model.{option}")
        else:
            new = with_option(new, f"model.{option}", value)
    while True:
        try:
            resolve(new, base=base)
            return ApplicableOptions(new, dropped)
        except ConfigError as error:
            new, option = _without(new, error, base=base)
            dropped.append(option)


def _without(values: dict[str, Any], error: ConfigError, *, base: Path) -> tuple[dict[str, Any], str]:
    """The run file without the option that causes an error, and its name: the one that the error names, else one whose removal
    fixes it, else one whose removal leads to a different error; sizes come last. If no option of [model] or [train] causes
    the error, it is raised again."""
    names = [f"model.{name}" for name in leaves({key: value for key, value in values["model"].items() if key != "arch"})]
    names += [f"train.{name}" for name in values.get("train", {})]
    if error.where in names:
        return with_option(values, error.where, None), error.where
    ordered = sorted(names, key=lambda name: name.split(".")[-1] in COMMON)
    without = {name: try_config(with_option(values, name, None), base=base) for name in ordered}
    fixing = [name for name, result in without.items() if not isinstance(result, ConfigError)]
    changing = [name for name, result in without.items() if isinstance(result, ConfigError) and str(result) != str(error)]
    cause = next(iter(fixing or changing), None)
    if cause is None:
        raise error
    return with_option(values, cause, None), cause


def try_config(values: Mapping[str, Any], *, base: Path) -> RunConfig | ConfigError:
    """The configuration of a run file, or the error in it."""
    try:
        return resolve(values, base=base)
    except ConfigError as error:
        return error
