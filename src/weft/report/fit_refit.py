"""Training the chosen model once more, on training and validation data together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from weft import files
from weft.comparison.observer import Observer
from weft.comparison.plan import RUN_FILES, PlannedRun, Variant
from weft.comparison.train import ParallelTrainer, ThreadBudget
from weft.config import BUDGETS
from weft.data.dataset import Dataset
from weft.errors import ModelError, UsageError
from weft.lock import Lock
from weft.runs.config import RunConfig
from weft.runs.finished import is_finished
from weft.runs.load import load
from weft.runs.resolve import resolve
from weft.runs.run_dir import RunDir
from weft.runs.status import read_run_status
from weft.text.reading import as_paths

NEEDS_VALIDATION = ("patience", "monitor", "num_samples", "sample_prompts")  # options of [train]


def joined_data(config: RunConfig) -> dict[str, Any]:
    """[data] with the validation data as part of the training data. The test data stays the same.

    Raises:
        UsageError: The files cannot be joined.
    """
    data: dict[str, Any] = config.to_dict()["data"]
    valid, joined = data.get("valid"), {name: value for name, value in data.items() if name not in ("valid", "fold")}
    if valid is None or isinstance(
        valid, float
    ):  # a fraction for the test comes from the end, with and without validation data
        return joined
    if isinstance(data.get("test"), float):
        problem = "the validation data is a file, but the test data is a fraction of the training data"
        raise UsageError("refit", problem, "set `test` to a file as well, or leave out `valid`")
    train = config.datasets["train"]
    if isinstance(train, Dataset) and train.format.column_files(train.inputs):
        raise UsageError("refit", "parallel files cannot be joined", "use a table for the pairs, or leave out `valid`")
    return {**joined, "train": [str(path) for files in (data["train"], valid) for path in as_paths(files)]}


def refit_values(run: Path, tokenizer: Mapping[str, Any] | None) -> dict[str, Any]:
    """The run file of a model like the one in `run`, trained on training and validation data.

    It is trained for as many steps as that run needed for its best weights, and has the options that it chose on validation
    data. `tokenizer`: the options of a new tokenizer; None: that of the run.
    """
    trained = load(run, device="cpu")
    config, estimator = trained.config, trained.config.preset.estimator
    values = config.to_dict()
    train = {name: value for name, value in values["train"].items() if name not in (*NEEDS_VALIDATION, *BUDGETS)}
    if estimator.by_steps:
        train["max_steps"] = read_run_status(run).best_step
    values |= {"data": joined_data(config), "train": train}
    values["model"] = {**values["model"], **estimator.chosen_options(trained.model)}
    return values if tokenizer is None else {**values, "tokenizer": dict(tokenizer)}


def refit(values: dict[str, Any], run_dir: Path, observer: Observer, *, overwrite: bool) -> None:
    """Train a run, or resume it. A run with other options in its directory is replaced: it belongs to an earlier search."""
    config = resolve(values, base=run_dir.parent)
    if RunDir(run_dir).resolved.is_file() and (overwrite or RunDir(run_dir).changes(config)):
        files.remove(run_dir)
    variant = Variant(run_dir.name, {name: value for name, value in values.items() if name != "seed"})
    budget = ThreadBudget(run_dir.parent / RUN_FILES, 1, torch.get_num_threads())
    with Lock(run_dir.parent):
        trainer = ParallelTrainer(budget, observer.runs("training"), is_finished)
        (outcome,) = trainer.train([PlannedRun(variant, config.seed, run_dir)])
    observer.clear()
    if outcome.code:
        raise ModelError(run_dir, f"could not be trained: {outcome.reason}")
