"""A tiny run of every kind of task, for tests of the page of `weft serve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import caption_runs
from media_files import encoded
from serve_runs import ServeRuns, make_runs
from small_runs import SilentCallback, train_here
from speech_runs import make_recordings, speech_run_file
from toy_qa import make_questions, qa_run_file, write_tsv

TRAIN: dict[str, Any] = {"max_steps": 2, "num_validations": 1, "batch_tokens": 256, "device": "cpu"}
TEXTS = ("lm", "ngram", "mt", "labels", "tags", "chat")  # from serve_runs
OTHERS = ("answers", "masked", "words", "reward", "speech", "captions")


class PageRuns:
    """Run directories by name, and files to send."""

    def __init__(self, directory: Path) -> None:
        (directory / "text").mkdir()
        self.directory = directory
        self._texts: ServeRuns = make_runs(directory / "text")
        (directory / "square.png").write_bytes(encoded(caption_runs.square("red"), "PNG"))

    @property
    def image(self) -> Path:
        return self.directory / "square.png"

    @property
    def recording(self) -> Path:
        return self.directory / "wav" / "train0.wav"

    def get(self, name: str) -> Path:
        if name in TEXTS:
            return self._texts.get(name)
        run_dir = self.directory / name
        if not run_dir.exists():
            train_here(self._values(name), run_dir, SilentCallback())
        return run_dir

    def _values(self, name: str) -> dict[str, Any]:
        if name == "speech":
            return speech_run_file(make_recordings(self.directory))
        if name == "captions":
            caption_runs.write_images(self.directory, count=6)
            return caption_runs.run_values(
                {"train": "images.tsv", "root": "images.zip", "valid": 0.3}, train={"max_steps": 30, "lr": 0.02}
            )
        if name == "answers":
            return qa_run_file(write_tsv(self.directory / "qa.tsv", make_questions(40)), "lstm", "train.max_steps=2")
        if name == "reward":
            rows = [{"chosen": f"a good soup {number}", "rejected": f"a bad soup {number}"} for number in range(20)]
            path = self.directory / "pairs.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            data = {"train": str(path), "valid": 0.2}
            return {"task": "reward-model", "data": data, "model": {"arch": "gru", "hidden_size": 8}, "train": TRAIN}
        data = {"train": str(self._texts.text), "read_as": "lines"}
        if name == "words":
            data = {"train": str(self._texts.text)}
            model = {"arch": "ppmi", "vector_size": 4, "subsample": 0.0, "shift": 1.0}
            return {"task": "word-vectors", "data": data, "tokenizer": {"min_count": 2}, "model": model}
        return {
            "task": "masked-lm",
            "data": {**data, "valid": 0.1, "context_length": 48},
            "tokenizer": {"type": "word", "vocab_size": 40},
            "model": {"arch": "bert", "hidden_size": 16, "num_layers": 1, "num_heads": 2},
            "train": TRAIN,
        }
