"""Toy data, run files and runs of seq2seq models: letters to phones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from small_runs import SilentCallback, train_here

from weft.config import override
from weft.runs.job import with_tokenizer_from

LETTERS = "abcdef"


def make_pairs(path: Path, count: int = 240, *, seed: int = 0) -> Path:
    """Words and their pronunciations: each letter becomes its capital, doubled after an `a`."""
    rng, lines = random.Random(seed), []
    for _ in range(count):
        word = "".join(rng.choices(LETTERS, k=rng.randint(1, 5)))
        phones = [letter.upper() * (1 + (before == "a")) for before, letter in zip(" " + word, word, strict=False)]
        lines.append(f"{word}\t{' '.join(phones)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


SEPARATE = {"source": {"type": "char"}, "target": {"type": "whitespace"}}
MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"arch": "lstm", "hidden_size": 24, "dropout": 0.1},
    "luong": {"arch": "luong", "hidden_size": 16, "num_layers": 1},
    "bahdanau": {"arch": "bahdanau", "hidden_size": 16},
    "sutskever": {"arch": "sutskever", "hidden_size": 16, "num_layers": 1},
    "transformer": {"arch": "transformer", "hidden_size": 24, "num_heads": 2, "num_layers": 2, "dropout": 0.0},
    "learned": {"arch": "transformer", "hidden_size": 16, "num_heads": 2, "num_layers": 1, "position_encoding": "learned"},
    "joint": {"arch": "lstm", "hidden_size": 16, "share_embeddings": True, "tie_embeddings": True, "copy_mechanism": True},
}


def seq2seq_run_file(pairs: Path, model: str = "lstm", *overrides: str) -> dict[str, Any]:
    """Run file of a seq2seq model, with `--set` overrides."""
    values: dict[str, Any] = {
        "task": "seq2seq",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(pairs), "valid": 0.1, "test": 0.1, "max_length": 16},
        "tokenizer": {"type": "char"} if model == "joint" else SEPARATE,
        "model": MODELS[model],
        "train": {"max_steps": 20, "batch_tokens": 400, "num_validations": 2, "lr": 0.01, "ema_decay": 0.5, "device": "cpu"},
    }
    return override(values, overrides)


class Seq2SeqRuns:
    """Run directories by name, each trained on first use; seq2seq runs share their tokenizers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pairs = make_pairs(directory / "pairs.tsv")
        targets = [line.split("\t")[1] for line in self.pairs.read_text().splitlines()]
        (directory / "phones.txt").write_text("\n".join(targets) + "\n")

    def run_dir(self, name: str, *overrides: str) -> Path:
        """`model`, or `model-suffix` with overrides; `lm-ARCH` is a language model of the targets."""
        run_dir = self.directory / name
        if run_dir.exists():
            return run_dir
        model = name.split("-")[0]
        if model == "lm":
            values = self._lm_run_file(name.split("-")[1])
        else:
            values = seq2seq_run_file(self.pairs, model)
            if name != "lstm" and model != "joint":
                values = with_tokenizer_from(values, self.run_dir("lstm"))
        train_here(override(values, overrides), run_dir, SilentCallback())
        return run_dir

    def _lm_run_file(self, arch: str) -> dict[str, Any]:
        values: dict[str, Any] = {
            "task": "lm",
            "recommend": False,
            "data": {"train": str(self.directory / "phones.txt"), "read_as": "lines"},
        }
        values |= {"model": {"arch": arch}, "tokenizer": {"file": str(self.run_dir("lstm") / "tokenizer.target.json")}}
        if arch != "ngram":
            values["model"] |= {"hidden_size": 8, "num_layers": 1}
            values["train"] = {"max_steps": 5, "batch_tokens": 200, "device": "cpu"}
        return values
