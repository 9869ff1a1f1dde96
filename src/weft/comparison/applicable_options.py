"""A run file for another kind: what of its tables the kind takes over, and what does not apply to it."""

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

# what tells a kind from others: it means nothing beside another one
MAKES = (
    "layer_type",
    "attention",
    "attention_placement",
    "input_feeding",
    "bridge",
    "feed_context",
    "reverse_source",
    "bidirectional",
)
# what all may have in common, whatever a preset says of it
COMMON = ("hidden_size", "num_layers", "dropout", "attention_dropout", "embedding_dropout", "embedding_dim", "pooling")


class ApplicableOptions(NamedTuple):
    values: dict[str, Any]  # a run file
    dropped: list[str]  # options that do not apply to the kind: model.width


def leaves(table: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The options of nested tables by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{at}.{key}" if at else key
        found |= leaves(value, name) if isinstance(value, Mapping) else {name: value}
    return found


def with_option(values: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The same tables with the option of a dotted name set; None takes it away."""
    head, _, rest = name.partition(".")
    inner = values.get(head)
    if rest:
        new: Any = with_option(inner if isinstance(inner, Mapping) else {}, rest, value)
    elif value is None:
        return {key: kept for key, kept in values.items() if key != head}
    else:
        new = value
    return {**values, head: new}


def everywhere(values: Mapping[str, Any], option: str, value: Any) -> dict[str, Any]:
    """The run file with `option` of [model] set for the whole model: an encoder-decoder's sides say nothing else of it."""
    for side in SIDES:
        if isinstance(values["model"].get(side), Mapping):
            values = with_option(values, f"model.{side}.{option}", None)
    return with_option(values, f"model.{option}", value)


def _is_own(option: str, preset: Preset) -> bool:
    """Whether an option of another kind is one that this kind decides for itself."""
    *path, last = option.split(".")
    if path and path[0] not in SIDES:
        return False
    decided = {name.split(".")[-1] for name in leaves(preset.values)}
    return last in MAKES or (last in decided and last not in COMMON)


def applicable_options(values: Mapping[str, Any], kind: str, *, base: Path) -> ApplicableOptions:
    """The run file for `kind`: every option of its [model] and [train] that applies to it, and which do not."""
    presets, own = find_task(values["task"]).presets, values["model"]["arch"]
    if kind not in presets:
        raise ConfigError("--models", *unknown_name("arch", kind, presets))
    if kind == own:
        return ApplicableOptions(dict(values), [])
    preset, dropped = presets[kind], []
    new = {**values, "model": {"arch": kind}}
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
    """The run file without the option that an error is about, and its name: the one that the error names, else one without
    which all is well, else one without which something else is wrong; sizes are the last to blame. An error that no option of
    [model] or [train] is to blame for is raised again."""
    given = [f"model.{name}" for name in leaves({key: value for key, value in values["model"].items() if key != "arch"})]
    given += [f"train.{name}" for name in values.get("train", {})]
    if error.where in given:
        return with_option(values, error.where, None), error.where
    ordered = sorted(given, key=lambda name: name.split(".")[-1] in COMMON)
    without = {name: try_config(with_option(values, name, None), base=base) for name in ordered}
    well = [name for name, found in without.items() if not isinstance(found, ConfigError)]
    other = [name for name, found in without.items() if isinstance(found, ConfigError) and str(found) != str(error)]
    blamed = next(iter(well or other), None)
    if blamed is None:
        raise error
    return with_option(values, blamed, None), blamed


def try_config(values: Mapping[str, Any], *, base: Path) -> RunConfig | ConfigError:
    """What a run file means, or why it is refused."""
    try:
        return resolve(values, base=base)
    except ConfigError as error:
        return error
