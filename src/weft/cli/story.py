"""How far a run has come and how well it did, from the files in its folder."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from weft import files
from weft.config import read_toml
from weft.errors import ConfigError, ModelError
from weft.metrics.better import BETTER, is_better
from weft.train import checkpoint
from weft.train.cursor import Cursor
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
    gradients: GradientSummary | None = None  # None where none were logged

    @property
    def imported(self) -> bool:
        """Weights that came from elsewhere: nothing tells how."""
        return self.done and not self.counted and not self.steps

    def to_json(self) -> dict[str, Any]:
        best = None if self.best is None else {"name": self.best[0], "value": self.best[1], "step": self.best_step}
        progress = {"done": self.done, "counted": self.counted, "steps": self.steps, "tokens": self.tokens}
        gradients = None if self.gradients is None else self.gradients.to_json()
        return {**progress, "training_seconds": self.seconds, "best_valid": best, "gradients": gradients}


def _records(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, up to one that a killed process left torn."""
    found: list[dict[str, Any]] = []
    if not path.is_file():
        return found
    with suppress(ValueError), path.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise ModelError(f"{path}: line {len(found) + 1} is no record of a run; the file is damaged")
            found.append(record)
    return found


def _best(records: list[dict[str, Any]], monitor: str | None) -> tuple[tuple[str, float] | None, int]:
    """The best value of the score that a run is judged by: the one it names, or the first of each record."""
    best: tuple[str, float] | None = None
    step = 0
    for record in records:
        scores = {name.removeprefix(VALID): value for name, value in record.items() if name.startswith(VALID)}
        name = monitor or next(iter(scores), "")
        value = scores.get(name)
        if isinstance(value, float) and (best is None or is_better(name, value, best[1])):
            best, step = (name, value), record["step"]
    return best, step


def _monitor(path: Path) -> str | None:
    """The score that resolved.toml names."""
    with suppress(ConfigError):
        monitor = read_toml(path / "resolved.toml").get("train", {}).get("monitor")
        return monitor if monitor in BETTER else None
    return None


def read_story(path: Path) -> Story:
    """What the newest whole checkpoint and metrics.jsonl tell."""
    records = _records(path / "metrics.jsonl")
    best, best_step = _best(records, _monitor(path))
    folder, _ = checkpoint.newest(path)
    if folder is not None:
        place = folder / "cursor.json"
        cursor = Cursor.from_json(files.read_json(place), str(place))
        gradients = summarize(records)
        return Story(cursor.done, cursor.step, cursor.tokens, cursor.seconds, best, best_step, gradients=gradients)
    # a run by gradients logs its training loss from the first step on; one made by counting has none
    if not (path / "model.safetensors").exists() or any(name.startswith("train_") for record in records for name in record):
        return Story(False, 0, 0, None, None, 0)
    if not records:  # weights that came from elsewhere
        return Story(True, 0, 0, None, None, 0)
    return Story(True, records[-1]["step"], records[-1].get("tokens", 0), None, best, best_step, counted=True)


def read_timing(path: Path) -> tuple[float, float]:
    """Seconds of training, and tokens read in each of them."""
    last = (_records(path / "timings.jsonl") or [{}])[-1]
    seconds = float(last.get("seconds") or 0.0)
    return seconds, read_story(path).tokens / seconds if seconds else 0.0
