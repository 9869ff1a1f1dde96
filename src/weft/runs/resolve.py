"""From a run file to settings that name every option."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field

from weft.config import OneOf, Table, no_such, read_table
from weft.errors import ConfigError, ModelError
from weft.runs.settings import Settings
from weft.tasks.registry import TASKS, find_task
from weft.train.tables import BUDGETS, TrainTable

if TYPE_CHECKING:
    from weft.runs.folder import RunFolder

T = TypeVar("T", bound=Table)


class RunTable(Table):
    """The top of a run file; what its tables hold depends on the task and on the kind."""

    task: Annotated[str, OneOf(TASKS, "task")]
    seed: int = Field(0, ge=0, lt=2**31)
    data: dict[str, Any]
    tokenizer: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any]
    train: dict[str, Any] = Field(default_factory=dict)


def resolve(values: Mapping[str, Any], *, base: Path) -> Settings:
    """Table defaults, then the preset's values, then the run file's; paths are seen from `base`."""
    run = read_table(RunTable, values, at="")
    options = dict(run.model)
    task = find_task(run.task)
    presets = task.presets
    if "kind" not in options:
        raise ConfigError(f"model.kind: is needed and not given; known: {', '.join(presets)}")
    kind = options.pop("kind")
    if not isinstance(kind, str):
        raise ConfigError(f"model.kind: must be a valid string, not {kind!r}")
    if kind not in presets:
        raise ConfigError(f"model.kind: {no_such('kind', kind, presets)}")
    preset = presets[kind]
    model = read_table(preset.table, preset.merged(options), at="model")
    train = read_table(TrainTable, _trained(preset.train, run.train), at="train")
    data: Any = read_table(task.data.table, run.data, at="data")
    data, tokenizer = (
        _placed(data.resolved(), base),
        _placed(read_table(task.data.tokenizer, run.tokenizer, at="tokenizer"), base),
    )
    settings = Settings(run.task, run.seed, data, tokenizer, kind, model.filled(), _placed(train.filled(), base))
    preset.estimator.check(settings)
    return settings


def _trained(preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's values under those of a run file; a run has one budget, so any that is given replaces the preset's, and
    one optimiser: what only the preset's has goes with it."""
    replaced = set(BUDGETS) if any(name in given for name in BUDGETS) else set()
    if given.get("optimizer") == "sgd":
        replaced.add("beta2")
    return {**{name: value for name, value in preset.items() if name not in replaced}, **given}


def _utf_8(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{path}: its name is not UTF-8, so no run file can hold it; rename it") from None
    return path


def _placed(table: T, base: Path) -> T:
    """The same table with absolute paths: a run is resumed and evaluated from anywhere."""
    given = {name: getattr(table, name) for name in type(table).model_fields}
    named = {name: given[name] for name in ("train", "valid", "test", "file", "init_from") if name in given}
    inner = {name: _placed(value, base) for name, value in given.items() if isinstance(value, Table)}

    def absolute(value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(part) for part in value]
        return _utf_8(str((base / value).absolute())) if isinstance(value, str) else value

    return table.model_copy(update={name: absolute(value) for name, value in named.items()} | inner)


def read_settings(folder: RunFolder) -> Settings:
    """The settings of a trained run."""
    try:
        return resolve(folder.read_resolved(), base=folder.path)
    except ConfigError as error:
        raise ModelError(f"{folder.resolved}: is damaged, or of another version: {error}") from None
