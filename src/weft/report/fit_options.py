"""The options of `weft.fit`, and the run file that follows from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from weft.config import BUDGETS, Config, apply_overrides
from weft.data.config import training
from weft.data.dataset import Dataset
from weft.errors import ConfigError, DataError, UsageError
from weft.runs.config import RunConfig
from weft.tasks.detection import Detection
from weft.text.reading import as_paths

FRACTION = 0.1  # of the data for validation, and for the test, unless there are files for them
SPLITS = {"train": "training data", "valid": "validation data", "test": "test data"}


class FitOptions(Config):
    """The keyword options of `weft.fit`."""

    valid: str | list[str] | float | None = None  # validation data: files, or a fraction of the training data
    test: str | list[str] | float | None = None  # test data, in the same way
    refit: bool = False  # train the best model again, on training and validation data
    folds: int | None = Field(default=None, ge=2, le=100)  # of cross-validation
    overrides: list[str] | dict[str, Any] = Field(default_factory=list)  # run file options of all models, as in weft.train
    overwrite: bool = False  # start over and replace the search in the directory


def default_output_dir(paths: Sequence[Path]) -> Path:
    """runs/fit-NAME, by the name of the first file up to its first dot."""
    stem = re.sub(r"[^\w-]", "_", paths[0].resolve().name.partition(".")[0])[:80] or "data"
    return Path("runs") / f"fit-{stem}"


def run_file(paths: Sequence[Path], detection: Detection, options: FitOptions) -> dict[str, Any]:
    """The run file of all candidates, without an architecture, with validation and test data."""
    train = str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]
    _check_overrides(apply_overrides({}, options.overrides), detection.task)
    values = apply_overrides({"task": detection.task, "data": {**detection.data, "train": train}}, options.overrides)
    data = values["data"]
    splits = {"valid": options.valid or data.get("valid") or FRACTION, "test": options.test or data.get("test") or FRACTION}
    _check_files({"train": train, **splits})
    return {**values, "data": {**data, **splits}}


def _check_overrides(given: Mapping[str, Any], task: str) -> None:
    """Raise for options that contradict the arguments of a search: they would have no effect."""
    data, train = (table if isinstance(table := given.get(name), dict) else {} for name in ("data", "train"))
    if given.get("task", task) != task:
        raise UsageError("task", f"set to {task!r} and to {given['task']!r}", "leave out one of them")
    if "train" in data:
        raise ConfigError("data.train", "the training data of a search is its argument", "leave out this option")
    for name in BUDGETS:
        if name in train:
            raise ConfigError(f"train.{name}", "the time of a search is divided among its models", "set `minutes` instead")


def _check_files(splits: Mapping[str, Any]) -> None:
    """Raise for a file that is missing, or named twice: a score on training data says nothing about new data."""
    split_of = dict[Path, str]()
    for split, value in splits.items():
        for path in [] if isinstance(value, float) else as_paths(value):
            if not path.exists():
                raise DataError(path, "file not found")
            other = split_of.get(path.resolve())
            if other == split:
                raise DataError(path, "named twice", "name each file once")
            if other is not None:
                problem = f"{path} is also the {SPLITS[other]}"
                raise UsageError(split, problem, f"name another file, or leave out `{split}` for a tenth of the training data")
            split_of[path.resolve()] = split


def check_data(config: RunConfig, num_folds: int | None) -> None:
    """Raise if all labels are equal, since every model would be perfect, or if a fold would be empty."""
    train = training(config.datasets)
    if not isinstance(train, Dataset):
        return
    strata, count = train.summary.strata(), round(train.fraction * train.summary.count)
    if strata is not None and len(strata) and (strata == strata[0]).all():
        fix = "add examples with other labels, or set data.label_column"
        raise DataError(train.name, "all examples have the same label", fix)
    if num_folds is not None and count < num_folds:
        raise UsageError("folds", f"{count} training {train.format.rows} are too few for {num_folds} folds", "use fewer")
