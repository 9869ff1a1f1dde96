"""Adapts a run file to another architecture: which options carry over, and which do not apply."""

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

# options that define an architecture: they do not carry over to another one
ARCH_OPTIONS = (
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
SHARED_OPTIONS = ("hidden_size", "num_layers", "dropout", "attention_dropout", "embedding_dropout", "embedding_dim", "pooling")


class ApplicableOptions(NamedTuple):
    values: dict[str, Any]  # a run file
    ignored: list[str]  # options that do not apply to the architecture, such as model.num_heads


def flatten_options(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to options by dotted name."""
    options: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}.{key}" if prefix else key
        options |= flatten_options(value, name) if isinstance(value, Mapping) else {name: value}
    return options


def with_option(values: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A copy of the tables with the option of a dotted name set; None removes it."""
    head, _, rest = name.partition(".")
    inner = values.get(head)
    if rest:
        new: Any = with_option(inner if isinstance(inner, Mapping) else {}, rest, value)
    elif value is None:
        return {key: old for key, old in values.items() if key != head}
    else:
        new = value
    return {**values, head: new}


def with_model_option(values: Mapping[str, Any], option: str, value: Any) -> dict[str, Any]:
    """The run file with `option` of [model] set; the encoder and decoder tables no longer override it."""
    for side in SIDES:
        if isinstance(values["model"].get(side), Mapping):
            values = with_option(values, f"model.{side}.{option}", None)
    return with_option(values, f"model.{option}", value)


def _is_set_by_preset(option: str, preset: Preset) -> bool:
    """Whether the architecture of the preset decides this option, so that another architecture's value does not apply."""
    *path, last = option.split(".")
    if path and path[0] not in SIDES:
        return False
    preset_options = {name.split(".")[-1] for name in flatten_options(preset.values)}
    return last in ARCH_OPTIONS or (last in preset_options and last not in SHARED_OPTIONS)


def applicable_options(values: Mapping[str, Any], arch: str, *, base: Path) -> ApplicableOptions:
    """The run file with architecture `arch` and all options of [model] and [train] that apply to it."""
    presets, base_arch = find_task(values["task"]).presets, values["model"]["arch"]
    if arch not in presets:
        raise ConfigError("models", *unknown_name("architecture", arch, presets))
    if arch == base_arch:
        return ApplicableOptions(dict(values), [])
    preset, ignored = presets[arch], []
    new = {**values, "model": {"arch": arch}}
    for option, value in flatten_options({key: part for key, part in values["model"].items() if key != "arch"}).items():
        if _is_set_by_preset(option, preset):
            ignored.append(f"model.{option}")
        else:
            new = with_option(new, f"model.{option}", value)
    while True:
        try:
            resolve(new, base=base)
            return ApplicableOptions(new, ignored)
        except ConfigError as error:
            new, option = _remove_cause(new, error, base=base)
            ignored.append(option)


def _remove_cause(values: dict[str, Any], error: ConfigError, *, base: Path) -> tuple[dict[str, Any], str]:
    """Remove the option that causes an error; returns the run file and the name of the option.

    That is the option that the error names, else one whose removal fixes the error, else one whose removal leads to a
    different error; options that all architectures share are tried last. If no option causes the error, it is raised again.
    """
    names = [
        f"model.{name}" for name in flatten_options({key: value for key, value in values["model"].items() if key != "arch"})
    ]
    names += [f"train.{name}" for name in values.get("train", {})]
    if error.where in names:
        return with_option(values, error.where, None), error.where
    ordered = sorted(names, key=lambda name: name.split(".")[-1] in SHARED_OPTIONS)
    results = {name: try_config(with_option(values, name, None), base=base) for name in ordered}
    fixing = [name for name, result in results.items() if not isinstance(result, ConfigError)]
    changing = [name for name, result in results.items() if isinstance(result, ConfigError) and str(result) != str(error)]
    cause = next(iter(fixing or changing), None)
    if cause is None:
        raise error
    return with_option(values, cause, None), cause


def try_config(values: Mapping[str, Any], *, base: Path) -> RunConfig | ConfigError:
    """The resolved configuration of a run file, or its error."""
    try:
        return resolve(values, base=base)
    except ConfigError as error:
        return error
