"""Small runs of several tasks, for tests of serving."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from label_runs import LabelRuns
from seq2seq_runs import Seq2SeqRuns
from small_runs import SilentCallback, make_text, run_file, train_here

WORDS = ("apple", "river", "stone", "cloud")


class ServeRuns:
    """Run directories by name, each trained on first use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.text = make_text(directory / "text.txt")
        self._labels: LabelRuns | None = None
        self._pairs: Seq2SeqRuns | None = None

    def get(self, name: str) -> Path:
        """lm, lines, ngram (language models), mt (encoder-decoder), labels, tags, chat."""
        run_dir = self.directory / name
        if name == "mt":
            self._pairs = self._pairs or Seq2SeqRuns(self.directory / "seq2seq-data")
            return self._pairs.run_dir("transformer")
        if name in ("labels", "tags"):
            self._labels = self._labels or LabelRuns(self.directory / "label-data")
            return self._labels.run_dir({"labels": "labels-lstm", "tags": "spans-lstm"}[name])
        if not run_dir.exists():
            train_here(self._values(name), run_dir, SilentCallback())
        return run_dir

    def _values(self, name: str) -> dict[str, Any]:
        if name == "lm":
            return run_file(self.text, "gpt", train__max_steps=15)
        if name == "lines":
            data = {"train": str(self.text), "valid": 0.1, "read_as": "lines"}
            return run_file(self.text, "lstm", data=data, train__max_steps=10)
        if name == "ngram":
            data = {"train": str(self.text), "valid": 0.1, "read_as": "lines"}
            return {"task": "lm", "recommend": False, "data": data, "model": {"arch": "ngram", "order": 3}}
        rows = [{"instruction": f"Repeat {word}.", "input": "", "output": word} for word in WORDS * 8]
        path = self.directory / "chat.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {
            "task": "instruction-tuning",
            "recommend": False,
            "data": {"train": str(path), "valid": 0.1, "max_length": 64},
            "tokenizer": {"type": "char"},
            "model": {"arch": "gpt", "hidden_size": 8, "num_layers": 1, "num_heads": 2},
            "train": {"max_steps": 5, "batch_tokens": 200, "device": "cpu"},
        }


def make_runs(directory: Path) -> ServeRuns:
    for name in ("seq2seq-data", "label-data"):
        (directory / name).mkdir()
    return ServeRuns(directory)


_shared: dict[Path, ServeRuns] = {}


def shared_runs(base: Path) -> ServeRuns:
    """Runs for tests of several files, which do not change them; `base` is the directory of the session."""
    if base not in _shared:
        (base / "shared-runs").mkdir()
        _shared[base] = make_runs(base / "shared-runs")
    return _shared[base]


def random_words(rng: random.Random, low: int = 1, high: int = 9) -> str:
    return " ".join(rng.choices(["the", "cat", "dog", "sees", "old", "river"], k=rng.randint(low, high)))
