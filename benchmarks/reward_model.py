"""Reward models of UKPConvArg1Strict (Habernal and Gurevych 2016), 26 topics: pairs of arguments, of which one is more
convincing. In five folds, the test data has topics that the training data does not have. Prints the accuracy over all pairs and
that of length alone.

    python benchmarks/reward_model.py DATA/preferences-ukp/ukpconvarg1-strict.26-topics.jsonl.gz [--networks]

Published, over all 32 topics: SVM with many features 78, bidirectional LSTM 76.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import weft

NUM_FOLDS = 5
NETWORK = {"max_steps": 150, "lr": 1e-3}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear": ({"arch": "linear"}, {}),
    "linear, no length": ({"arch": "linear", "length_feature": False}, {}),
    "gru, length": ({"arch": "gru", "hidden_size": 64, "length_feature": True}, NETWORK),
    "gru": ({"arch": "gru", "hidden_size": 64}, NETWORK),
    "conv, length": ({"arch": "conv", "hidden_size": 64, "length_feature": True}, NETWORK),
}


def write_folds(pairs: list[dict[str, str]], directory: Path) -> None:
    """Training and test data of each fold. Topic i, in alphabetical order, is in the test data of fold i mod 5."""
    folds = {topic: number % NUM_FOLDS for number, topic in enumerate(sorted({pair["topic"] for pair in pairs}))}
    for fold in range(NUM_FOLDS):
        for name, is_test in (("train", False), ("test", True)):
            chosen = [pair for pair in pairs if (folds[pair["topic"]] == fold) == is_test]
            lines = (json.dumps(pair, ensure_ascii=False) + "\n" for pair in chosen)
            (directory / f"{name}{fold}.jsonl").write_text("".join(lines), encoding="utf-8")


def cross_validate(directory: Path, model: dict[str, Any], train: dict[str, Any], seed: int) -> tuple[float, float]:
    """Accuracy of a model and of length alone, in percent, over the test data of all folds."""
    correct, longer = list[np.ndarray](), list[np.ndarray]()
    for fold in range(NUM_FOLDS):
        files = {"train": str(directory / f"train{fold}.jsonl"), "test": str(directory / f"test{fold}.jsonl")}
        data = {**files, "group_column": "topic"}
        run = weft.train(
            {"task": "reward-model", "seed": seed, "data": data, "model": model, "train": train},
            output_dir=directory / "run",
            overwrite=True,
        )
        statistics = run.evaluate().items.statistics
        correct.append(statistics["correct"])
        longer.append(statistics["longer"])
    return 100 * float(np.concatenate(correct).mean()), 100 * float(np.concatenate(longer).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--networks", action="store_true", help="networks as well, with three seeds")
    arguments = parser.parse_args()
    with gzip.open(arguments.file, "rt", encoding="utf-8") as lines:
        pairs = [json.loads(line) for line in lines]
    print(f"{'model':<20} {'accuracy':>8} {'length':>7} {'seconds':>8}")
    with TemporaryDirectory() as name:
        write_folds(pairs, Path(name))
        for label, (model, train) in MODELS.items():
            is_network = bool(train)
            if is_network and not arguments.networks:
                continue
            for seed in range(3 if is_network else 1):
                start = time.monotonic()
                accuracy, length = cross_validate(Path(name), model, train, seed)
                title = f"{label}, seed {seed}" if is_network else label
                print(f"{title:<20} {accuracy:>8.1f} {length:>7.1f} {time.monotonic() - start:>8.0f}", flush=True)


if __name__ == "__main__":
    main()
