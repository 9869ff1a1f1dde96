"""Instruction tuning on databricks-dolly-15k (6,400 instructions): nats per response token on test instructions, for the
language model as it is, for a model that is trained on instructions from random weights, and for one that starts from the
language model. No instruction of the test data occurs in the training data.

    python benchmarks/instructions.py DATA/instructions-dolly/dolly-6400.jsonl.gz --text TEXT [--size full] [--seeds 0 1 2]

TEXT is running text for the language model, such as a part of Wikipedia. --size tiny trains small models for a minute,
middle for two minutes on a GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import numpy as np

import weft

# what the language model and the models of instructions have in common, the steps of the former and the epochs of the latter
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "model": {"num_layers": 1, "hidden_size": 64}, "steps": 40, "epochs": 3.0, "batch_tokens": 2048, "vocab_size": 1000,
    },
    "middle": {
        "model": {"num_layers": 4, "hidden_size": 256}, "steps": 300, "epochs": 10.0, "batch_tokens": 8192, "vocab_size": 4000,
    },
    "full": {
        "model": {"num_layers": 8, "hidden_size": 512}, "steps": 2000, "epochs": 3.0, "batch_tokens": 32768, "vocab_size": 8000,
    },
}  # fmt: skip
TEST, VALID = 0.1, 0.05  # fractions of the instructions
MAX_LENGTH = 512


def write_splits(path: Path, directory: Path) -> None:
    """Training, validation and test data. The split depends on the instruction alone, so that equal ones are in one split."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    files = {name: (directory / f"{name}.jsonl").open("w", encoding="utf-8") for name in ("train", "valid", "test")}
    for row in rows:
        place = crc32(row["instruction"].strip().lower().encode()) / 2**32
        split = "test" if place < TEST else "valid" if place < TEST + VALID else "train"
        files[split].write(json.dumps(row, ensure_ascii=False) + "\n")
    for file in files.values():
        file.close()


def tune(directory: Path, base: Path, options: dict[str, Any], *, init: bool, learns: bool, seed: int) -> float:
    """Nats per response token of the test data; without `learns`, of the language model itself."""
    model = {**weft.load(base).config.to_dict()["model"], "dropout": 0.1 if learns else 0.0}
    # the same budget for both; the best weights are those with the best validation loss
    train = {"max_epochs": options["epochs"], "lr": 1e-3, "batch_tokens": options["batch_tokens"], "num_validations": 10}
    if not learns:
        train = {"max_steps": 1, "lr": 1e-12, "batch_tokens": 2048, "num_validations": 1}
    if init:
        train["init_from"] = str(base)
    data = {name: str(directory / f"{name}.jsonl") for name in ("train", "valid", "test")}
    values = {
        "task": "instruction-tuning",
        "seed": seed,
        "data": {**data, "max_length": MAX_LENGTH},
        "tokenizer": {"file": str(base / "tokenizer.json")},
        "model": model,
        "train": train,
    }
    return float(weft.train(values, output_dir=directory / "tuned", overwrite=True).evaluate()["loss"].value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    arguments = parser.parse_args()
    options = SIZES[arguments.size]
    with TemporaryDirectory() as name:
        directory = Path(name)
        write_splits(arguments.file, directory)
        losses: dict[str, list[float]] = {"base": [], "from scratch": [], "from the language model": []}
        for seed in arguments.seeds:
            base = directory / f"lm-{seed}"
            weft.train(
                {
                    "task": "lm",
                    "seed": seed,
                    "recommend": False,
                    "data": {"train": str(arguments.text), "valid": 0.01, "context_length": MAX_LENGTH},
                    "tokenizer": {"type": "bpe", "vocab_size": options["vocab_size"]},
                    "model": {"arch": "gpt", **options["model"]},
                    "train": {"max_steps": arguments.steps or options["steps"], "batch_tokens": options["batch_tokens"]},
                },
                output_dir=base,
            )
            for label, init, learns in (
                ("base", True, False),
                ("from scratch", False, True),
                ("from the language model", True, True),
            ):
                losses[label].append(tune(directory, base, options, init=init, learns=learns, seed=seed))
                print(f"seed {seed}, {label}: {losses[label][-1]:.3f} nats per response token", flush=True)
    for label, values in losses.items():
        print(f"{label}: {np.mean(values):.3f} (standard deviation {np.std(values):.3f}, {len(values)} seeds)")


if __name__ == "__main__":
    main()
