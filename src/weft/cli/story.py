"""How far a run has come and how well it did, from the files in its folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from weft.config import read_toml
from weft.errors import ConfigError
from weft.log import read_log
from weft.metrics.better import BETTER, is_better
from weft.runs.folder import RunFolder
from weft.train import checkpoint
from weft.train.gradients import GradientSummary, summarize

VALID = "valid_"


class Story(NamedTuple):
    done: bool
    steps: int
    tokens: int
    seconds: float | None  # of training; None where the run was counted, or has no checkpoint yet
    best: tuple[str, float] | None  # name and value of the best validation score
    best_step: int
    counted: bool = False  # made by counting, in one go
    examples: int | None = None  # what was counted, where that is told
    gradients: GradientSummary | None = None  # None where none were logged

    @property
    def imported(self) -> bool:
        """Weights that came from elsewhere: nothing tells how."""
        return self.done and not self.counted and not self.steps

    def to_json(self) -> dict[str, Any]:
        best = None if self.best is None else {"name": self.best[0], "value": self.best[1], "step": self.best_step}
        progress = {"done": self.done, "counted": self.counted, "steps": self.steps, "tokens": self.tokens}
        examples = {} if self.examples is None else {"examples": self.examples}
        gradients = None if self.gradients is None else self.gradients.to_json()
        return {**progress, **examples, "training_seconds": self.seconds, "best_valid": best, "gradients": gradients}


def _best(records: list[dict[str, Any]], monitor: str | None) -> tuple[tuple[str, float] | None, int]:
    """The best value of the score that a run is judged by: the one it names, or the first of each record."""
    best: tuple[str, float] | None = None
    step = 0
    for record in records:
        scores = {name.removeprefix(VALID): value for name, value in record.items() if name.startswith(VALID)}
        name = monitor or next(iter(scores), "")
        value = scores.get(name)
        if isinstance(value, float) and name in BETTER and (best is None or is_better(name, value, best[1])):
            best, step = (name, value), record["step"]
    return best, step


def _monitor(path: Path) -> str | None:
    """The score that resolved.toml names."""
    with suppress(ConfigError):
        train = read_toml(path / "resolved.toml").get("train")
        monitor = train.get("monitor") if isinstance(train, dict) else None
        return monitor if isinstance(monitor, str) and monitor in BETTER else None
    return None


def read_story(path: Path) -> Story:
    """What the newest whole checkpoint and metrics.jsonl tell."""
    folder, _ = checkpoint.newest(path)
    cursor = None if folder is None else checkpoint.read_cursor(folder)
    records = read_log(path / "metrics.jsonl", length=0 if cursor is None else cursor.metrics)
    best, best_step = _best(records, _monitor(path))
    if cursor is not None:
        gradients = summarize(records)
        return Story(cursor.done, cursor.step, cursor.tokens, cursor.seconds, best, best_step, gradients=gradients)
    # a run by gradients logs its training loss from the first step on; one made by counting has none
    if not (path / "model.safetensors").exists() or any(name.startswith("train_") for record in records for name in record):
        return Story(False, 0, 0, None, None, 0)
    if not records:  # weights that came from elsewhere, or a run that was killed, twice, before its first checkpoint
        return Story(not RunFolder(path).weights_step(), 0, 0, None, None, 0)
    last = records[-1]
    tokens, examples = last.get("tokens", 0), last.get("examples")
    return Story(True, last["step"], tokens, None, best, best_step, counted=True, examples=examples)


def read_timing(path: Path) -> tuple[float, float]:
    """Seconds of training, and tokens read in each of them."""
    last = (read_log(path / "timings.jsonl") or [{}])[-1]
    seconds = float(last.get("seconds") or 0.0)
    return seconds, read_story(path).tokens / seconds if seconds else 0.0
