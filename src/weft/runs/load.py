"""`weft.load` and `weft.ensemble`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from weft.errors import UsageError, unknown_name
from weft.runs.config import RunConfig
from weft.runs.resolve import read_config
from weft.runs.run import Run
from weft.runs.run_dir import RunDir, open_run_dir
from weft.tasks.spec import I, P, Task

if TYPE_CHECKING:
    from weft.runs.ensemble import FusionLM, Weights

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


CacheOptions = bool | Mapping[str, float]


@overload
def load(
    path: str | Path,
    task: Task[I, P],
    *,
    device: str = "auto",
    cache: CacheOptions = False,
    engine: str = "torch",
    quantization: str | None = None,
) -> Run[I, P]: ...


@overload
def load(
    path: str | Path,
    task: None = None,
    *,
    device: str = "auto",
    cache: CacheOptions = False,
    engine: str = "torch",
    quantization: str | None = None,
) -> Run[Any, Any]: ...


def load(
    path: str | Path,
    task: Task[I, P] | None = None,
    *,
    device: str = "auto",
    cache: CacheOptions = False,
    engine: str = "torch",
    quantization: str | None = None,
) -> Run[Any, Any]:
    """Load a run from its run directory.

    The files are checked and never executed as code. The weights are read when they are first needed.

    Args:
        path: The run directory.
        task: Refuse runs of another task. Type checkers then know the type of the predictions:
            `load("runs/x", CLASSIFICATION)`.
        device: "cpu", "cuda", or "auto" for the GPU if there is one.
        cache: Add a neural cache to a neural language model. True fits its size, theta and weight on the validation data;
            a dict sets them: `{"size": 500, "theta": 0.3, "weight": 0.1}`, and missing ones are fitted. `run.cache` has the
            values.
        engine: "torch", or "ctranslate2" to decode with CTranslate2: the same outputs, faster. The model is exported into
            the run directory when it is first used.
        quantization: Precision of the weights of CTranslate2: "float32" (default), "int8", "int16", "float16", "bfloat16".

    Returns:
        The run, with `predict`, `evaluate`, `score`, `generate`, `embed` and `explain`.

    Raises:
        ModelError: The directory is not a run, or the run is corrupted.
        UsageError: The run has another task than `task`, the device does not exist, or the engine cannot compute the model.

    Example:
        >>> weft.load("runs/run").evaluate()
    """
    _check_device(device)
    directory, config = _read(path)
    run = Run[Any, Any](directory, config, config.spec.data.load(directory), device)
    if task is not None and task.name != config.task:
        raise run.wrong_task()
    if engine != "torch" or quantization is not None:
        return _with_engine(run, engine, quantization, cache)
    return run if cache is False else with_model(_with_cache(run, cache))


def _with_engine(run: Run[I, P], engine: str, quantization: str | None, cache: CacheOptions) -> Run[I, P]:
    """The run with its engine opened: an engine that cannot compute the model is refused now."""
    from weft.runs.engines import EngineRun, check_engine

    check_engine(engine, quantization)
    if cache is not False:
        raise UsageError("engine", "cannot be combined with `cache`", "use one of them")
    engine_run = EngineRun(run, engine, quantization)
    _ = engine_run.decoder
    return engine_run


def _with_cache(run: Run[I, P], cache: CacheOptions) -> Run[I, P]:
    from weft.runs.cached import CachedRun, cache_config

    return CachedRun(run, cache_config(cache))


def with_model(run: R) -> R:
    """The run with its weights loaded: errors in them are raised now."""
    _ = run.model
    return run


def _check_members(paths: Sequence[str | Path], members: Sequence[Run[Any, Any]]) -> None:
    """Refuse runs that cannot be combined."""
    for path, run in zip(paths, members, strict=True):
        if not run.spec.supports_ensembles:
            raise UsageError("ensemble", f"{path} has task {run.task!r}, whose runs cannot be combined")
        first = members[0]
        if run.task != first.task:
            raise UsageError("ensemble", f"{paths[0]} has task {first.task!r}, {path} has task {run.task!r}")
        if run.generates and run.predictor.reads_lines != first.predictor.reads_lines:
            kinds = ["lines" if each.predictor.reads_lines else "running text" for each in (first, run)]
            raise UsageError("ensemble", f"{paths[0]} reads {kinds[0]}, {path} reads {kinds[1]}", "set the same data.read_as")


def _fusion_lm(members: Sequence[Run[Any, Any]], lm: str | Path, weight: float, device: str) -> FusionLM:
    """The language model of shallow fusion."""
    from weft.runs.ensemble import FusionLM

    if not 0 < weight < math.inf:
        raise UsageError("lm_weight", f"must be above 0, got {weight:g}", "leave out `lm` to predict without a language model")
    if members and members[0].generates:
        raise UsageError("lm", f"not available for task {members[0].task!r}", "add it to the `ensemble`")
    if members and members[0].spec.decode is None:
        raise UsageError("lm", f"not available for task {members[0].task!r}", "leave it out")
    run = load(lm, device=device)
    if not run.generates or not run.predictor.reads_lines:
        raise UsageError("lm", f"{lm} is not a language model of lines (task 'lm' with data.read_as = 'lines')")
    return FusionLM(run.directory, run.model, weight, run.num_parameters)


def _with_caches(members: Sequence[Run[Any, Any]], cache: CacheOptions) -> list[Run[Any, Any]]:
    """The members, each neural one with a cache."""
    by_steps = [run.config.preset.estimator.by_steps for run in members]
    if not any(by_steps):
        raise UsageError("cache", "no run is a neural model")
    return [_with_cache(run, cache) if has_states else run for run, has_states in zip(members, by_steps, strict=True)]


def ensemble(
    paths: Sequence[str | Path],
    *,
    weights: Weights = None,
    lm: str | Path | None = None,
    lm_weight: float = LM_WEIGHT,
    cache: CacheOptions = False,
    device: str = "auto",
) -> Run[Any, Any]:
    """Combine several runs into one that predicts with the weighted mean of their probabilities.

    Args:
        paths: The run directories: seq2seq runs with the same target tokenizer, classification runs with the same labels, or
            language models, also n-gram models, with the same tokenizer.
        weights: The weight of each run; equal weights by default. "fitted" finds the weights with the highest likelihood of
            the validation data of the first run, for language models. `run.weights` has the values.
        lm: The run directory of a language model of the targets, for shallow fusion.
        lm_weight: The weight of its log-probabilities.
        cache: Add a neural cache to each neural language model, as in `weft.load`.
        device: "cpu", "cuda", or "auto" for the GPU if there is one.

    Returns:
        A run with the same methods.

    Raises:
        ModelError: A run is missing or corrupted.
        UsageError: The runs cannot be combined, or a weight is invalid.

    Example:
        >>> weft.ensemble(["runs/a", "runs/b"]).predict("giacchetta").text
        >>> weft.ensemble(["runs/lstm", "runs/ngram"], weights="fitted").evaluate()
    """
    from weft.runs.ensemble import FITTED, EnsembleRun

    if isinstance(paths, str | Path):  # the characters of a string would be paths
        raise UsageError("ensemble", "expected a list of run directories, got one path", "use [path]")
    if isinstance(weights, str) and weights != FITTED:
        raise UsageError("weights", f"expected numbers or {FITTED!r}, got {weights!r}")
    members = [load(path, device=device) for path in paths]
    _check_members(paths, members)
    fusion = None if lm is None else _fusion_lm(members, lm, lm_weight, device)
    members = members if cache is False else _with_caches(members, cache)
    return with_model(EnsembleRun(members, weights=weights, lm=fusion))
