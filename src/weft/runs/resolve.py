"""Resolves a run file: defaults, presets and absolute paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field

from weft.config import Choice, Config, parse_config
from weft.errors import ConfigError, ModelError, synonym, unknown_name
from weft.runs.config import RunConfig
from weft.tasks.registry import TASKS, find_task, known_task
from weft.training.config import BUDGETS, TrainConfig

if TYPE_CHECKING:
    from weft.runs.run_dir import RunDir

T = TypeVar("T", bound=Config)
# options that are paths
PATHS = (
    *("train", "valid", "test", "prepared", "root", "file", "feature_encoder", "reward_from", "judge_from"),
    *("init_from", "init_embeddings", "distill_from"),
)


class RunFile(Config):
    """The top level of a run file. The classes of its tables depend on the task and the architecture."""

    task: Annotated[str, Choice(TASKS, "task")]
    """What to learn: lm, masked-lm, denoising, seq2seq, classification, tagging, qa, asr, captioning or word-vectors."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Random seed for initialization, batch order and dropout."""
    recommend: bool = True
    """Fill in options that are left out with values that suit the data. If false, they have the defaults of the reference."""
    data: dict[str, Any] = Field(default_factory=dict)
    """The data, and how it is read."""
    tokenizer: dict[str, Any] = Field(default_factory=dict)
    """How text is split into tokens."""
    model: dict[str, Any] = Field(default_factory=dict)
    """The architecture and its options."""
    train: dict[str, Any] = Field(default_factory=dict)
    """How long to train, and how."""


def resolve(values: Mapping[str, Any], *, base: Path) -> RunConfig:
    """The resolved configuration: the defaults of the tables, overridden by the preset, overridden by the run file. Paths are
    relative to `base`."""
    try:
        return _resolve(values, base)
    except ConfigError as error:
        if not error.is_unknown or not (other := _in_other_table(error.where, values)):
            raise
        fix = f"did you mean {other!r}?"
        raise ConfigError(error.where, error.problem, fix, is_unknown=True, has_suggestion=error.has_suggestion) from None


def _in_other_table(option: str, values: Mapping[str, Any]) -> str | None:
    """The dotted name of an option that was set in the wrong table, such as train.lr for learning_rate; None if no table has
    it, or if its own table has a synonym."""
    table, _, name = option.rpartition(".")
    task = known_task(values.get("task"))
    classes: dict[str, type[Config]] = {"train": TrainConfig}
    if task is not None:
        model = values.get("model")
        preset = task.presets.get(str(model.get("arch"))) if isinstance(model, Mapping) else None
        classes |= {"data": task.data.data_config} | ({} if preset is None else {"model": preset.config_class})
    if table in classes and synonym(name, classes[table].model_fields) is not None:
        return None
    names = {key: name if name in cls.model_fields else synonym(name, cls.model_fields) for key, cls in classes.items()}
    return next((f"{key}.{match}" for key, match in names.items() if match is not None and key != table), None)


def _resolve(values: Mapping[str, Any], base: Path) -> RunConfig:
    run = parse_config(RunFile, values, prefix="")
    options = dict(run.model)
    task = find_task(run.task)
    arch = options.pop("arch", None)
    if arch is None:
        raise ConfigError("model.arch", "required option is missing", f'add arch = "{TASKS[run.task].arch}" under [model]')
    if not isinstance(arch, str):
        raise ConfigError("model.arch", f"expected a string, got {arch!r}")
    if arch not in task.presets:
        raise ConfigError("model.arch", *unknown_name("architecture", arch, task.presets))
    preset = task.presets[arch]
    model = parse_config(preset.config_class, preset.merged(options), prefix="model")
    train = parse_config(TrainConfig, _merge_train(preset.train_defaults, run.train), prefix="train")
    data: Any = parse_config(task.data.data_config, run.data, prefix="data")
    tokenizer = parse_config(task.data.tokenizer_config, run.tokenizer, prefix="tokenizer")
    config = RunConfig(
        run.task,
        run.seed,
        _with_absolute_paths(data.with_defaults(), base).with_detected(),
        _with_absolute_paths(tokenizer, base),
        arch,
        model.with_defaults(),
        _with_absolute_paths(train.with_defaults(), base),
    )
    preset.estimator.check(config)
    return config


def _merge_train(preset: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run file over those of a preset. A budget replaces the preset's, and options of the preset that another
    optimizer does not have are removed."""
    replaced = set(BUDGETS) if any(name in options for name in BUDGETS) else set()
    if options.get("optimizer") == "sgd":
        replaced.add("adam_beta2")
    return {**{name: value for name, value in preset.items() if name not in replaced}, **options}


def _check_utf8(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(path, "a run file cannot contain a file name that is not UTF-8", "rename the file") from None
    return path


def _with_absolute_paths(config: T, base: Path) -> T:
    """The options with absolute paths, so that a run can be resumed and evaluated from any directory."""
    values = {name: getattr(config, name) for name in type(config).model_fields}
    paths = {name: values[name] for name in PATHS if name in values}
    tables = {name: _with_absolute_paths(value, base) for name, value in values.items() if isinstance(value, Config)}

    def absolute(value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(item) for item in value]
        return _check_utf8(str((base / value).absolute())) if isinstance(value, str) else value

    return config.model_copy(update={name: absolute(value) for name, value in paths.items()} | tables)


def read_config(directory: RunDir) -> RunConfig:
    """The resolved configuration of a run."""
    try:
        return resolve(directory.read_resolved(), base=directory.path)
    except ConfigError as error:
        raise ModelError(directory.resolved, f"corrupted, or from another version: {error}") from None
