"""Progress and best validation score of a run, from the files in its directory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from weft.config import read_toml
from weft.errors import ConfigError
from weft.log import read_log
from weft.metrics.metric import Metric, metric_names, metrics_of
from weft.runs.run_dir import RunDir
from weft.tasks.registry import known_task
from weft.training import checkpoint
from weft.training.gradients import GradientSummary, summarize

VALID = "valid_"


class RunStatus(NamedTuple):
    done: bool
    steps: int
    tokens: int
    seconds: float | None  # training time; None if the model was fitted without steps, or the run has no checkpoint yet
    best: tuple[Metric, float] | None  # the monitored metric and its best value on the validation data
    best_step: int
    is_fitted: bool = False  # fitted without training steps
    examples: int | None = None  # number of examples, if the model was fitted on examples
    gradients: GradientSummary | None = None  # None if none were logged

    @property
    def imported(self) -> bool:
        """Whether the weights were imported, so that nothing is known about their training."""
        return self.done and not self.is_fitted and not self.steps

    def to_json(self) -> dict[str, Any]:
        best = None if self.best is None else {"name": self.best[0].name, "value": self.best[1], "step": self.best_step}
        progress = {"done": self.done, "fitted": self.is_fitted, "steps": self.steps, "tokens": self.tokens}
        examples = {} if self.examples is None else {"examples": self.examples}
        gradients = None if self.gradients is None else self.gradients.to_json()
        return {**progress, **examples, "train_seconds": self.seconds, "best": best, "gradients": gradients}


class _Selection(NamedTuple):
    """The options in resolved.toml that say how weights are selected; None if it cannot be read."""

    task: str | None
    monitor: str | None


def _read_selection(path: Path) -> _Selection:
    with suppress(ConfigError):
        values = read_toml(path / "resolved.toml")
        task, train = values.get("task"), values.get("train")
        monitor = train.get("monitor") if isinstance(train, dict) else None
        return _Selection(*(name if isinstance(name, str) else None for name in (task, monitor)))
    return _Selection(None, None)


def _best(records: list[dict[str, Any]], selection: _Selection) -> tuple[tuple[Metric, float] | None, int]:
    """The best value of the monitored metric, and its step: the metric of train.monitor, or the first of each record."""
    best: tuple[Metric, float] | None = None
    step = 0
    task = known_task(selection.task)
    suites = () if task is None else task.validation_suites
    monitor = selection.monitor if selection.monitor in metric_names(suites) else None
    for record in records:
        scores = {name.removeprefix(VALID): value for name, value in record.items() if name.startswith(VALID)}
        metrics = metrics_of(suites, scores)
        metric = next(iter(metrics.values()), None) if monitor is None else metrics.get(monitor)
        value = None if metric is None else scores[metric.name]
        if metric is not None and isinstance(value, float) and (best is None or metric.is_better(value, best[1])):
            best, step = (metric, value), record["step"]
    return best, step


def read_run_status(path: Path) -> RunStatus:
    """The status from the newest intact checkpoint and metrics.jsonl."""
    directory, _ = checkpoint.newest(path)
    state = None if directory is None else checkpoint.read_train_state(directory)
    records = read_log(path / "metrics.jsonl", min_bytes=0 if state is None else state.metrics)
    best, best_step = _best(records, _read_selection(path))
    if state is not None:
        gradients = summarize(records)
        return RunStatus(state.done, state.step, state.tokens, state.seconds, best, best_step, gradients=gradients)
    # a network logs its training loss from the first step on; a fitted model has no training loss
    if not (path / "model.safetensors").exists() or any(name.startswith("train_") for record in records for name in record):
        return RunStatus(False, 0, 0, None, None, 0)
    if not records:  # imported weights, or a run that was killed, twice, before its first checkpoint
        return RunStatus(not RunDir(path).weights_step(), 0, 0, None, None, 0)
    last = records[-1]
    tokens, examples = last.get("tokens", 0), last.get("examples")
    return RunStatus(True, last["step"], tokens, None, best, best_step, is_fitted=True, examples=examples)


def best(path: Path) -> tuple[Metric, float] | None:
    """The monitored metric of a run, and its best value on the validation data."""
    return read_run_status(path).best


def read_timing(path: Path) -> tuple[float, float]:
    """The training time in seconds, and the tokens per second."""
    last = (read_log(path / "timings.jsonl") or [{}])[-1]
    seconds = float(last.get("seconds") or 0.0)
    return seconds, read_run_status(path).tokens / seconds if seconds else 0.0
