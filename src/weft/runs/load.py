"""`weft.load` and `weft.ensemble`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from weft.errors import UsageError, unknown_name
from weft.runs.config import RunConfig
from weft.runs.resolve import read_config
from weft.runs.run import Run
from weft.runs.run_dir import RunDir, open_run_dir
from weft.tasks.spec import I, P, Task

DEVICES = ("auto", "cpu", "cuda")
LM_WEIGHT = 0.3
R = TypeVar("R", bound=Run[Any, Any])


def _read(path: str | Path) -> tuple[RunDir, RunConfig]:
    directory = open_run_dir(Path(path))
    return directory, read_config(directory)


def _check_device(name: str) -> None:
    """Refuse a device that does not exist. torch is imported only for "cuda"."""
    if name not in DEVICES:
        raise UsageError("device", *unknown_name("device", name, DEVICES))
    if name != "cuda":
        return
    import torch

    if not torch.cuda.is_available():
        raise UsageError("device", "no CUDA GPU found", "use 'auto' or 'cpu'")


@overload
def load(path: str | Path, task: Task[I, P], *, device: str = "auto") -> Run[I, P]: ...


@overload
def load(path: str | Path, task: None = None, *, device: str = "auto") -> Run[Any, Any]: ...


def load(path: str | Path, task: Task[I, P] | None = None, *, device: str = "auto") -> Run[Any, Any]:
    """Load a run from its run directory.

    The files are checked and never executed as code. The weights are read when they are first needed.

    Args:
        path: The run directory.
        task: Refuse runs of another task. Type checkers then know the type of the predictions:
            `load("runs/x", CLASSIFICATION)`.
        device: "cpu", "cuda", or "auto" for the GPU if there is one.

    Returns:
        The run, with `predict`, `evaluate`, `score`, `generate`, `embed` and `explain`.

    Raises:
        ModelError: The directory is not a run, or the run is corrupted.
        UsageError: The run has another task than `task`, or the device does not exist.

    Example:
        >>> weft.load("runs/run").evaluate()
    """
    _check_device(device)
    directory, config = _read(path)
    run = Run[Any, Any](directory, config, config.spec.data.load(directory), device)
    if task is not None and task.name != config.task:
        raise run.wrong_task()
    return run


def with_model(run: R) -> R:
    """The run with its weights loaded: errors in them are raised now."""
    _ = run.model
    return run


def ensemble(
    paths: Sequence[str | Path],
    *,
    weights: Sequence[float] | None = None,
    lm: str | Path | None = None,
    lm_weight: float = LM_WEIGHT,
    device: str = "auto",
) -> Run[Any, Any]:
    """Combine several seq2seq or classification runs into one that predicts with the weighted mean of their probabilities.

    Args:
        paths: The run directories. Seq2seq runs must have the same target tokenizer, classification runs the same labels.
        weights: The weight of each run; equal weights by default.
        lm: The run directory of a language model of the targets, for shallow fusion.
        lm_weight: The weight of its log-probabilities.
        device: "cpu", "cuda", or "auto" for the GPU if there is one.

    Returns:
        A run with the same methods.

    Raises:
        ModelError: A run is missing or corrupted.
        UsageError: The runs cannot be combined, or a weight is invalid.

    Example:
        >>> weft.ensemble(["runs/a", "runs/b"]).predict("giacchetta").text
    """
    from weft.runs.ensemble import EnsembleRun, FusionLM

    if isinstance(paths, str | Path):  # the characters of a string would be paths
        raise UsageError("ensemble", "expected a list of run directories, got one path", "use [path]")
    members = [load(path, device=device) for path in paths]
    for path, run in zip(paths, members, strict=True):
        if not run.spec.supports_ensembles:
            problem = f"{path} has task {run.task!r}; only seq2seq and classification runs can be combined"
            raise UsageError("ensemble", problem)
        if run.task != members[0].task:
            raise UsageError("ensemble", f"{path} has task {run.task!r}, but {paths[0]} has task {members[0].task!r}")
    if lm is None:
        return with_model(EnsembleRun(members, weights=weights))
    if members[0].spec.decode is None:
        raise UsageError("lm", f"not available for task {members[0].task!r}", "leave it out")
    if not 0 < lm_weight < math.inf:
        raise UsageError(
            "lm_weight", f"must be above 0, got {lm_weight:g}", "leave out `lm` to predict without a language model"
        )
    language_model = load(lm, device=device)
    if not language_model.generates or not language_model.predictor.reads_lines:
        raise UsageError("lm", f"{lm} is not a language model of lines (task 'lm' with data.read_as = 'lines')")
    fusion = FusionLM(language_model.directory, language_model.model, lm_weight, language_model.num_parameters)
    return with_model(EnsembleRun(members, weights=weights, lm=fusion))
