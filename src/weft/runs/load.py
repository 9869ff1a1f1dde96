"""From a run directory to a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from weft.errors import UsageError, unknown_name
from weft.runs.config import RunConfig
from weft.runs.resolve import read_settings
from weft.runs.run import Run
from weft.runs.run_dir import RunDir, open_run_dir
from weft.tasks.spec import I, P, Task

DEVICES = ("auto", "cpu", "cuda")
LM_WEIGHT = 0.3
R = TypeVar("R", bound=Run[Any, Any])


def _read(path: str | Path) -> tuple[RunDir, RunConfig]:
    directory = open_run_dir(Path(path))
    return directory, read_settings(directory)


def _check_device(name: str) -> None:
    """Refuse a device that is not there. torch is asked only where it has to say something."""
    if name not in DEVICES:
        raise UsageError("device", *unknown_name("device", name, DEVICES))
    if name != "cuda":
        return
    import torch

    if not torch.cuda.is_available():
        raise UsageError("device", "'cuda' was asked for, but torch sees no GPU", "use 'auto' or 'cpu'")


@overload
def load(path: str | Path, task: Task[I, P], *, device: str = "auto") -> Run[I, P]: ...


@overload
def load(path: str | Path, task: None = None, *, device: str = "auto") -> Run[Any, Any]: ...


def load(path: str | Path, task: Task[I, P] | None = None, *, device: str = "auto") -> Run[Any, Any]:
    """Load the run in a directory that `weft.training` or `weft train` wrote.

    Its files are checked; none of them is run as code. Its weights, which it may not have yet, are read when they are first
    needed.

    Args:
        path: The run directory.
        task: Refuse runs of another task; a type checker then knows the predictions: `load("runs/x", CLASSIFICATION)`.
        device: "cpu" or "cuda"; "auto", a GPU if there is one.

    Returns:
        The run: `predict`, `evaluate`, `score`, `generate`, `embed`, `explain`.

    Raises:
        ModelError: There is no run, or it is damaged.
        UsageError: It is of another task than `task`, or the device is not there.

    Example:
        >>> weft.load("runs/run").evaluate()
    """
    _check_device(device)
    directory, config = _read(path)
    run = Run[Any, Any](directory, config, config.spec.data.load(directory), device)
    if task is not None and task.name != config.task:
        raise run.refuse(f"use weft {run.task.use}")
    return run


def prepared(run: R) -> R:
    """A run that is about to be used: what is wrong with its weights, or with several together, is said now."""
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
    """Join several encoder-decoder runs into one, which predicts by the weighted mean of their probabilities.

    Args:
        paths: Run directories; the runs share a target tokenizer.
        weights: How much each of them counts; all alike by default.
        lm: A run of a language model of the targets that helps to choose.
        lm_weight: How much of its log-probability is added.
        device: "cpu" or "cuda"; "auto", a GPU if there is one.

    Returns:
        A run with the same methods.

    Raises:
        ModelError: A run is missing or damaged.
        UsageError: The runs do not fit together, or a weight is wrong.

    Example:
        >>> weft.ensemble(["runs/a", "runs/b"]).predict("giacchetta").text
    """
    from weft.runs.ensemble import EnsembleRun, FusionLM

    members = [load(path, device=device) for path in paths]
    for path, run in zip(paths, members, strict=True):
        if not run.task.joins:
            raise UsageError("ensemble", f"{path} is a run of task {run.config.task!r}, not of 'translate'")
    if lm is None:
        return prepared(EnsembleRun(members, weights=weights))
    if not 0 < lm_weight < math.inf:
        raise UsageError("--lm-weight", f"must be a number above 0, not {lm_weight:g}", "without --lm the model chooses alone")
    helper = load(lm, device=device)
    if not helper.generates or not helper.reader.lines:
        raise UsageError("--lm", f"{lm} must be a language model of lines (task = 'lm', data.read_as = 'lines')")
    fused = FusionLM(helper.directory, helper.model, lm_weight, helper.num_parameters)
    return prepared(EnsembleRun(members, weights=weights, lm=fused))
