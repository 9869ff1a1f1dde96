"""`weft.train`: train a run from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.config import Overrides, read_run_file
from weft.errors import TrainingInterrupted
from weft.lock import Lock
from weft.runs import job
from weft.runs.callback import CallbackAdapter, TrainCallback, interruptible
from weft.runs.finished import is_finished, remove_on_failure
from weft.runs.load import load, with_model
from weft.runs.memory_data import place_inputs, staged_inputs, write_inputs
from weft.runs.recommend import complete, with_arch
from weft.runs.resolve import resolve
from weft.runs.run_dir import RunDir

if TYPE_CHECKING:
    from weft.runs.job import RewardFunction
    from weft.runs.run import Run


def train(
    run_file: str | Path | Mapping[str, Any],
    *,
    output_dir: str | Path | None = None,
    overrides: Overrides = (),
    overwrite: bool = False,
    callback: TrainCallback | None = None,
    data: Mapping[str, object] | None = None,
    reward: RewardFunction | None = None,
) -> Run[Any, Any]:
    """Train the run of a run file, or resume it. If the run in the output directory is finished, it is only loaded.

    The first interrupt (Ctrl-C, or a notebook's stop button) saves a checkpoint and stops; a second one stops at once.

    Args:
        run_file: A path, or the run file as a dict. Paths in a file are relative to it, paths in a dict to the current
            directory.
        output_dir: The run directory. Default: `runs/NAME` for the run file `NAME.toml`, `runs/run` for a dict.
        overrides: Options to change: strings such as `"model.hidden_size=512"`, or a dict, nested or with dotted keys.
        overwrite: Start over. The new run replaces the one in the directory as soon as it has weights.
        callback: Receives the progress and can stop training. Without a callback, a progress bar is shown in terminals and
            notebooks.
        data: Data that replaces that of the run file: `"train"`, `"valid"` and `"test"`. Each is a path, a list of records
            (texts, dicts, or tuples of inputs and then outputs), a dict of columns, a pandas, polars or Arrow table, or an
            iterator; `"valid"` and `"test"` can also be a fraction of the training data, such as 0.1. Data in memory is
            saved in the run directory, in `inputs/`.
        reward: For the task "policy-gradient", a function from a list of prompts and a list of responses to a list of rewards.
            It is not saved: pass it again to resume.

    Returns:
        The trained run.

    Raises:
        ConfigError: The run file or an override is invalid.
        DataError: The data cannot be used.
        UsageError: The directory contains another run, or this run with other data.
        DivergedError: The loss became NaN or infinite; the last checkpoint is intact.
        TrainingInterrupted: Training was interrupted after saving; the same call, without `overwrite`, resumes.

    Example:
        >>> reviews = {"text": ["Great soup.", "Far too slow."], "label": ["good", "bad"]}
        >>> run = weft.train({"task": "classification", "model": {"arch": "naive-bayes"}}, data={"train": reviews})
        >>> run.predict("Great soup.").label
        'good'
    """
    values, base, name = read_run_file(run_file, overrides)
    out = Path("runs") / name if output_dir is None else Path(output_dir)
    values, memory_data = (values, {}) if data is None else place_inputs(values, data, out)
    return _train(_Request(values, base, out, memory_data, reward), callback, overwrite=overwrite)


class _Request(NamedTuple):
    """A run to train."""

    values: dict[str, Any]  # the run file
    base: Path  # the directory that paths are relative to
    out: Path  # the run directory
    memory_data: dict[str, object]  # by split
    reward: RewardFunction | None = None


def _train(request: _Request, callback: TrainCallback | None, *, overwrite: bool) -> Run[Any, Any]:
    """Load the run if it is finished; otherwise train it."""
    values, base, out, memory_data, reward = request
    resolve(with_arch(values), base=base)  # an invalid run file is refused before anything else happens
    with staged_inputs(values, memory_data) as inputs:
        completed = complete(values, out, base=base, overwrite=overwrite, inputs=inputs)
        if overwrite or not is_finished(out, completed.config):
            given = job.JobInputs(inputs, reward)
            train_run = partial(job.train, values, out, base=base, overwrite=overwrite, inputs=given, completed=completed)
            _train_until_done(train_run, out, callback)
            return with_model(load(out))
        if inputs:
            with Lock(out):
                write_inputs(RunDir(out), inputs)
    RunDir(out).drop_backup()
    return with_model(load(out))


def _train_until_done(train_run: Callable[..., RunDir], out: Path, callback: TrainCallback | None) -> None:
    """Train with a callback that the user can interrupt."""
    with remove_on_failure(out), _callback_or_bar(callback) as train_callback:
        adapter = CallbackAdapter(train_callback)
        with interruptible(adapter):
            try:
                train_run(callback=adapter)
            except TrainingInterrupted:
                raise TrainingInterrupted(out, "training was interrupted and has saved", "train again to resume") from None


def _callback_or_bar(callback: TrainCallback | None) -> AbstractContextManager[TrainCallback]:
    """The callback, or a progress bar if there is none."""
    if callback is not None:
        return nullcontext(callback)
    from weft.runs.progress_bar import progress_bar

    return progress_bar()
