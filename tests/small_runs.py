"""Toy text, run files and callbacks for small training runs."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from weft import files
from weft.data.corpus import Corpus
from weft.runs.job import train
from weft.runs.run_dir import RunDir
from weft.training import checkpoint
from weft.training.loop import Loop

WORDS = ["the", "a", "cat", "dog", "bird", "sees", "hears", "finds", "old", "and", "then", "in", "by", "tree", "river", "."]


def make_text(path: Path, *, words: int = 600, seed: int = 0) -> Path:
    """Write lines of 2 to 8 random words."""
    rng = random.Random(seed)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(2, 8))) for _ in range(words // 5)]
    path.write_text("\n".join(lines) + "\n")
    return path


def make_corpus(tokens: list[int]) -> Corpus:
    """Running text of these tokens, in memory."""
    offsets = np.array([[0] * 4, [len(tokens)] * 4], dtype=np.int64)
    return Corpus("train", np.array(tokens, dtype=np.uint16), None, offsets, "")


class SilentCallback:
    """A callback that records what it receives, and stops the run after step `stop_at`."""

    def __init__(self, stop_at: int | None = None, inspect: Callable[[Loop], None] | None = None) -> None:
        self.stop_at, self.inspect = stop_at, inspect
        self.notes: list[str] = []
        self.losses: list[float] = []
        self.scores: list[tuple[int, float]] = []
        self.step = 0

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_data(self, summary: str) -> None:
        self.notes.append(summary)

    def on_progress(self, name: str, done: int, total: int) -> None:
        pass

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None:
        self.step = loop.train_state.step
        self.losses.append(loss)
        if self.inspect is not None:
            self.inspect(loop)

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None:
        self.scores.append((loop.train_state.step, next(iter(scores.values()))))

    def on_fit(self, parameters: int, scores: dict[str, float]) -> None:
        pass

    def should_stop(self) -> bool:
        return self.step == self.stop_at


MODELS: dict[str, dict[str, Any]] = {
    "conv": {"arch": "conv", "hidden_size": 8, "kernel_size": 3, "dropout": 0.1},
    "lstm": {"arch": "lstm", "hidden_size": 8, "num_layers": 2, "dropout": 0.2},
    "mingru": {"arch": "mingru", "hidden_size": 8, "dropout": 0.2},
    "transformer": {"arch": "transformer", "hidden_size": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.2},
    "gpt": {"arch": "gpt", "hidden_size": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.1},
}


def run_file(text: Path, model: str = "conv", **options: Any) -> dict[str, Any]:
    """A run file for `text`; options are passed as `train__max_steps=5`."""
    values: dict[str, Any] = {
        "task": "lm",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(text), "valid": 0.1, "read_as": "windows", "context_length": 16},
        "model": dict(MODELS[model]),
        "train": {"max_steps": 20, "batch_tokens": 64, "num_validations": 4, "lr": 0.01, "device": "cpu"},
    }
    for name, value in options.items():
        table, _, option = name.partition("__")
        if option:
            values[table][option] = value
        else:
            values[table] = value
    for budget in ("max_tokens", "max_epochs", "max_minutes"):
        if budget in values["train"]:
            values["train"].pop("max_steps")
    return values


def train_here(values: dict[str, Any], out: Path, callback: SilentCallback | None = None, *, overwrite: bool = False) -> RunDir:
    """Train in this process; paths in `values` are relative to the parent of the run directory."""
    return train(values, out, base=out.parent, callback=callback or SilentCallback(), overwrite=overwrite)


def run_hashes(out: Path) -> dict[str, str]:
    """SHA-256 of everything in a finished run that must not depend on interruptions."""
    newest = out / "checkpoints" / checkpoint.names(out)[-1]
    checksums = {path.stem: files.sha256(path) for path in newest.glob("*.safetensors")}
    train_state = {**files.read_json(newest / "train_state.json"), "seconds": 0.0, "validation_seconds": 0.0}
    checksums["train_state"] = hashlib.sha256(repr(sorted(train_state.items())).encode()).hexdigest()
    return checksums | {"best": files.sha256(out / "model.safetensors"), "metrics": files.sha256(out / "metrics.jsonl")}


def leftovers(out: Path) -> list[Path]:
    """Hidden files and directories that a finished run must not leave behind."""
    return [path for path in out.rglob(".*") if path.name != ".lock"]


def flip_bit(path: Path, bit: int | None = None) -> None:
    """Change one bit of a file, by default the middle one."""
    data = bytearray(path.read_bytes())
    bit = len(data) * 4 if bit is None else bit
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
