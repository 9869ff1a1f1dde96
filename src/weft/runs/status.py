"""How far a run has come and how well it did, from the files in its folder."""

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


class Story(NamedTuple):
    done: bool
    steps: int
    tokens: int
    seconds: float | None  # of training; None where the run was counted, or has no checkpoint yet
    best: tuple[Metric, float] | None  # what the run is judged by, and its best value on the validation data
    best_step: int
    is_fitted: bool = False  # made by counting, in one go
    examples: int | None = None  # what was counted, where that is told
    gradients: GradientSummary | None = None  # None where none were logged

    @property
    def imported(self) -> bool:
        """Weights that came from elsewhere: nothing tells how."""
        return self.done and not self.is_fitted and not self.steps

    def to_json(self) -> dict[str, Any]:
        best = None if self.best is None else {"name": self.best[0].name, "value": self.best[1], "step": self.best_step}
        progress = {"done": self.done, "fitted": self.is_fitted, "steps": self.steps, "tokens": self.tokens}
        examples = {} if self.examples is None else {"examples": self.examples}
        gradients = None if self.gradients is None else self.gradients.to_json()
        return {**progress, **examples, "train_seconds": self.seconds, "best": best, "gradients": gradients}


class _Judged(NamedTuple):
    """What resolved.toml says of how a run is judged; both are None where nobody can read it."""

    task: str | None
    monitor: str | None


def _judged(path: Path) -> _Judged:
    with suppress(ConfigError):
        found = read_toml(path / "resolved.toml")
        task, train = found.get("task"), found.get("train")
        monitor = train.get("monitor") if isinstance(train, dict) else None
        return _Judged(*(one if isinstance(one, str) else None for one in (task, monitor)))
    return _Judged(None, None)


def _best(records: list[dict[str, Any]], judged: _Judged) -> tuple[tuple[Metric, float] | None, int]:
    """The best value of what a run is judged by: the metric it names, or the first of each record."""
    best: tuple[Metric, float] | None = None
    step = 0
    task = known_task(judged.task)
    suites = () if task is None else task.validation
    monitor = judged.monitor if judged.monitor in metric_names(suites) else None
    for record in records:
        scores = {name.removeprefix(VALID): value for name, value in record.items() if name.startswith(VALID)}
        known = metrics_of(suites, scores)
        metric = next(iter(known.values()), None) if monitor is None else known.get(monitor)
        value = None if metric is None else scores[metric.name]
        if metric is not None and isinstance(value, float) and (best is None or metric.is_better(value, best[1])):
            best, step = (metric, value), record["step"]
    return best, step


def read_run_status(path: Path) -> Story:
    """What the newest whole checkpoint and metrics.jsonl tell."""
    directory, _ = checkpoint.newest(path)
    cursor = None if directory is None else checkpoint.read_train_state(directory)
    records = read_log(path / "metrics.jsonl", length=0 if cursor is None else cursor.metrics)
    best, best_step = _best(records, _judged(path))
    if cursor is not None:
        gradients = summarize(records)
        return Story(cursor.done, cursor.step, cursor.tokens, cursor.seconds, best, best_step, gradients=gradients)
    # a run by gradients logs its training loss from the first step on; one made by counting has none
    if not (path / "model.safetensors").exists() or any(name.startswith("train_") for record in records for name in record):
        return Story(False, 0, 0, None, None, 0)
    if not records:  # weights that came from elsewhere, or a run that was killed, twice, before its first checkpoint
        return Story(not RunDir(path).weights_step(), 0, 0, None, None, 0)
    last = records[-1]
    tokens, examples = last.get("tokens", 0), last.get("examples")
    return Story(True, last["step"], tokens, None, best, best_step, is_fitted=True, examples=examples)


def best(path: Path) -> tuple[Metric, float] | None:
    """What a run is judged by, and its best value on the validation data."""
    return read_run_status(path).best


def read_timing(path: Path) -> tuple[float, float]:
    """Seconds of training, and tokens read in each of them."""
    last = (read_log(path / "timings.jsonl") or [{}])[-1]
    seconds = float(last.get("seconds") or 0.0)
    return seconds, read_run_status(path).tokens / seconds if seconds else 0.0
