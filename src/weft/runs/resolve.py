"""From a run file to settings that name every option."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field

from weft.config import Choice, Config, parse_config
from weft.errors import ConfigError, ModelError, unknown_name
from weft.runs.config import RunConfig
from weft.tasks.registry import TASKS, find_task
from weft.training.config import BUDGETS, TrainConfig

if TYPE_CHECKING:
    from weft.runs.run_dir import RunDir

T = TypeVar("T", bound=Config)


class RunFile(Config):
    """The top of a run file; what its tables hold depends on the task and on the kind."""

    task: Annotated[str, Choice(TASKS, "task")]
    seed: int = Field(0, ge=0, lt=2**31)
    data: dict[str, Any]
    tokenizer: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any]
    train: dict[str, Any] = Field(default_factory=dict)


def resolve(values: Mapping[str, Any], *, base: Path) -> RunConfig:
    """Table defaults, then the preset's values, then the run file's; paths are seen from `base`."""
    run = parse_config(RunFile, values, at="")
    options = dict(run.model)
    task = find_task(run.task)
    presets = task.presets
    if "arch" not in options:
        raise ConfigError("model.arch", "required option is missing", f"choose from {', '.join(presets)}")
    kind = options.pop("arch")
    if not isinstance(kind, str):
        raise ConfigError("model.arch", f"expected a string, got {kind!r}")
    if kind not in presets:
        raise ConfigError("model.arch", *unknown_name("architecture", kind, presets))
    preset = presets[kind]
    model = parse_config(preset.config_class, preset.merged(options), at="model")
    train = parse_config(TrainConfig, _trained(preset.train_defaults, run.train), at="train")
    data: Any = parse_config(task.data.table, run.data, at="data")
    data, tokenizer = (
        _placed(data.with_defaults(), base),
        _placed(parse_config(task.data.tokenizer, run.tokenizer, at="tokenizer"), base),
    )
    config = RunConfig(run.task, run.seed, data, tokenizer, kind, model.with_defaults(), _placed(train.with_defaults(), base))
    preset.estimator.check(config)
    return config


def _trained(preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's values under those of a run file; a run has one budget, so any that is given replaces the preset's, and
    one optimiser: what only the preset's has goes with it."""
    replaced = set(BUDGETS) if any(name in given for name in BUDGETS) else set()
    if given.get("optimizer") == "sgd":
        replaced.add("adam_beta2")
    return {**{name: value for name, value in preset.items() if name not in replaced}, **given}


def _utf_8(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(path, "its name is not UTF-8, so no run file can hold it", "rename it") from None
    return path


def _placed(config: T, base: Path) -> T:
    """The same table with absolute paths: a run is resumed and evaluated from anywhere."""
    given = {name: getattr(config, name) for name in type(config).model_fields}
    named = {name: given[name] for name in ("train", "valid", "test", "file", "init_from") if name in given}
    inner = {name: _placed(value, base) for name, value in given.items() if isinstance(value, Config)}

    def absolute(value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(part) for part in value]
        return _utf_8(str((base / value).absolute())) if isinstance(value, str) else value

    return config.model_copy(update={name: absolute(value) for name, value in named.items()} | inner)


def read_settings(directory: RunDir) -> RunConfig:
    """The settings of a trained run."""
    try:
        return resolve(directory.read_resolved(), base=directory.path)
    except ConfigError as error:
        raise ModelError(directory.resolved, f"is damaged, or of another version: {error}") from None
