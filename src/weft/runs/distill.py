"""`weft.distill`: the run file of a student, and its training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.config import Overrides, apply_overrides
from weft.errors import UsageError
from weft.runs.config import RunConfig
from weft.runs.job import with_tokenizer_from
from weft.runs.resolve import read_config
from weft.runs.run_dir import open_run_dir
from weft.runs.train import train
from weft.tasks.registry import TASKS

if TYPE_CHECKING:
    from weft.runs.callback import TrainCallback
    from weft.runs.run import Run


def _student_like(config: RunConfig, arch: str | None) -> dict[str, Any]:
    """The run file of a student with the options of a teacher, or with the recommended options of another architecture."""
    values = config.to_dict()
    if arch is None and not config.preset.estimator.by_steps:
        arch = TASKS[config.task].arch
    if arch is None or arch == config.arch:
        return {name: values[name] for name in ("task", "seed", "recommend", "data", "model", "train")}
    return {"task": config.task, "seed": config.seed, "data": values["data"], "model": {"arch": arch}, "train": {}}


def student_run_file(runs: Sequence[str | Path], *, arch: str | None = None, overrides: Overrides = ()) -> dict[str, Any]:
    """The run file of a student of these runs: data, options and tokenizer are those of the first network among them."""
    if isinstance(runs, str | Path):  # the characters of a string would be paths
        raise UsageError("runs", "expected a list of run directories, got one path", "use [path]")
    if not runs:
        raise UsageError("runs", "no runs", "pass at least one run directory")
    paths = [Path(path).absolute() for path in runs]
    configs = {path: read_config(open_run_dir(path)) for path in paths}
    networks = [path for path, config in configs.items() if config.preset.estimator.by_steps]
    values = _student_like(configs[(networks or paths)[0]], arch)
    values["train"] = {**values["train"], "distill_from": [str(path) for path in paths]}
    if values["train"].get("init_from") in values["train"]["distill_from"]:
        del values["train"]["init_from"]  # an averaged or pruned run starts from itself
    values = apply_overrides(values, overrides)
    return with_tokenizer_from(values, networks[0]) if networks and "tokenizer" not in values else values


def distill(
    runs: Sequence[str | Path],
    output_dir: str | Path,
    *,
    arch: str | None = None,
    overrides: Overrides = (),
    overwrite: bool = False,
    callback: TrainCallback | None = None,
) -> Run[Any, Any]:
    """Distill one or more runs into one model: train it on the same data, with the labels and the mean of their probabilities.

    Args:
        runs: The run directories of the teachers. The student has the data, options and tokenizer of the first network.
        output_dir: The run directory of the student.
        arch: The architecture of the student, with the options that are recommended for the data.
        overrides: Options to change, as in `weft.train`, such as `"train.distill_weight=0.9"`.
        overwrite: Start over. The new run replaces the one in the directory as soon as it has weights.
        callback: Receives the progress and can stop training.

    Returns:
        The trained student. It does not need its teachers any more.

    Raises:
        ModelError: A run is missing or corrupted.
        ConfigError: A teacher does not have the tokenizer or the labels of the student, or an option is invalid.
        TrainingInterrupted: Training was interrupted after saving; the same call, without `overwrite`, resumes.

    Example:
        >>> student = weft.distill(["runs/a", "runs/b", "runs/c"], "runs/student")
        >>> student.evaluate()
    """
    values = student_run_file(runs, arch=arch, overrides=overrides)
    return train(values, output_dir=output_dir, overwrite=overwrite, callback=callback)
