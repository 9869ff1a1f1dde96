"""`weft.training`: a run from Python."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.config import Overrides, read_run_file
from weft.errors import TrainingInterrupted
from weft.lock import Lock
from weft.runs import job
from weft.runs.callback import CallbackAdapter, TrainCallback, interruptible
from weft.runs.finished import is_finished, remove_on_failure
from weft.runs.load import load, prepared
from weft.runs.memory_data import place_inputs, write_inputs
from weft.runs.resolve import resolve
from weft.runs.run_dir import RunDir

if TYPE_CHECKING:
    from weft.runs.run import Run


def train(
    run_file: str | Path | Mapping[str, Any],
    *,
    output_dir: str | Path | None = None,
    overrides: Overrides = (),
    overwrite: bool = False,
    callback: TrainCallback | None = None,
    data: Mapping[str, object] | None = None,
) -> Run[Any, Any]:
    """Train what a run file says, or resume the run that is in the output directory; a run that is finished is loaded.

    The first interrupt (Ctrl-C, or a notebook's stop button) saves and stops; a second one stops at once.

    Args:
        run_file: A path, or the run file as a dict. Paths in a file are relative to it, those in a dict to the current
            directory.
        output_dir: The run directory; `runs/NAME` of the run file by default, `runs/run` of a dict.
        overrides: Options to change: strings such as `"model.hidden_size=512"`, or a dict, nested or with dotted keys.
        overwrite: Start over: the new run replaces the one in the directory, once it has weights.
        callback: Hears of progress, and can stop training. Without one there is a progress bar in a terminal or notebook,
            and nothing elsewhere.
        data: The data, in place of the run file's: `"train"`, `"valid"` and `"test"`, each of them a path, a list of records
            (texts, dicts, or tuples of inputs and then outputs), a dict of columns, a table of pandas, polars or Arrow, or an
            iterator; `"valid"` and `"test"` may be a part of train, such as 0.1. What is in memory is kept in the run
            directory, in `inputs/`.

    Returns:
        The trained run.

    Raises:
        ConfigError: The run file or an override is wrong.
        DataError: The data can't be used.
        UsageError: The directory holds another run, or this run with other data.
        DivergedError: The loss became NaN or infinite; the last checkpoint is kept.
        TrainingInterrupted: Training was interrupted and has saved; the same call, without `overwrite`, resumes.

    Example:
        >>> reviews = {"text": ["Great soup.", "Far too slow."], "label": ["good", "bad"]}
        >>> run = weft.train({"task": "classify", "model": {"kind": "naive-bayes"}}, data={"train": reviews})
        >>> run.predict("Great soup.").labels
        ('good',)
    """
    values, base, name = read_run_file(run_file, overrides)
    out = Path("runs") / name if output_dir is None else Path(output_dir)
    values, held = (values, {}) if data is None else place_inputs(values, data, out)
    return _trained(_Plan(values, base, out, held), callback, overwrite=overwrite)


class _Plan(NamedTuple):
    """What is to be trained, and where."""

    values: dict[str, Any]
    base: Path  # that paths are seen from
    out: Path
    held: dict[str, object]  # data in memory, by split


def _trained(plan: _Plan, callback: TrainCallback | None, *, overwrite: bool) -> Run[Any, Any]:
    values, base, out, held = plan
    config = resolve(values, base=base)  # a wrong run file is refused before anything is looked at
    if not overwrite and is_finished(out, config):
        if held:
            with Lock(out):
                write_inputs(config, RunDir(out), held)
        RunDir(out).drop_backup()
        return prepared(load(out))
    with remove_on_failure(out), _shown(callback) as shown:
        watcher = CallbackAdapter(shown)
        with interruptible(watcher):
            try:
                job.train(values, out, base=base, callback=watcher, overwrite=overwrite, held=held)
            except TrainingInterrupted:
                raise TrainingInterrupted(out, "training was interrupted and has saved", "train again to resume") from None
    return prepared(load(out))


def _shown(callback: TrainCallback | None) -> AbstractContextManager[TrainCallback]:
    """The callback, or else a progress bar, while a block runs."""
    if callback is not None:
        return nullcontext(callback)
    from weft.runs.progress_bar import progress_bar

    return progress_bar()
