"""Names, character by character: a bigram, a window of 3, LSTM, GRU and Transformer against published numbers.

32,033 names, shuffled with random.seed(42) and split 80/10/10; nats per character, the end of a name among them.
The bars: bigram counts with add-1 on all names 2.4546; window of 3 valid 2.11; LSTM and GRU test 2.00; Transformer test 1.92.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from _measured import HEAD, arguments, row, trained

DROPPED: dict[str, Any] = {"lr": 3e-3, "weight_decay": 0.05, "batch_tokens": 1024, "max_epochs": 20.0}
MODELS: dict[str, dict[str, Any]] = {
    "conv": {
        "model": {"arch": "conv", "kernel_size": 3, "hidden_size": 200},
        "train": {"lr": 5e-3, "weight_decay": 0.01, "batch_tokens": 2048, "max_epochs": 20.0},
    },
    "lstm": {"model": {"arch": "lstm", "num_layers": 2, "hidden_size": 192, "dropout": 0.3}, "train": DROPPED},
    "gru": {
        "model": {"arch": "gru", "num_layers": 2, "hidden_size": 192, "dropout": 0.35, "skip_connection": "residual"},
        "train": DROPPED,
    },
    "gpt": {
        "model": {
            "arch": "gpt",
            "num_layers": 6,
            "hidden_size": 96,
            "num_heads": 4,
            "dropout": 0.25,
            "embedding_dropout": 0.0,
            "activation": "swiglu",
        },
        # float32 and not compiled on a GPU either: so it was measured
        "train": {
            "muon_lr": 0.01,
            "weight_decay": 0.1,
            "batch_tokens": 2048,
            "max_epochs": 60.0,
            "ema_decay": 0.995,
            "num_validations": 20,
            "precision": "float32",
            "compile": False,
        },
    },
}
BARS = {"conv": 2.11, "lstm": 2.00, "gru": 2.00, "gpt": 1.92}  # the window's on valid, the others' on test


def split(data: Path, directory: Path) -> None:
    names = [name for name in data.read_text().split("\n") if name]
    (directory / "all.txt").write_text("\n".join(names) + "\n")
    random.seed(42)
    random.shuffle(names)
    first, second = int(0.8 * len(names)), int(0.9 * len(names))
    for part, chosen in (("train", names[:first]), ("valid", names[first:second]), ("test", names[second:])):
        (directory / f"{part}.txt").write_text("\n".join(chosen) + "\n")


def main() -> None:
    options = arguments(__doc__ or "", "names-makemore/names.txt")
    directory = options.output_dir / "names"
    directory.mkdir(parents=True, exist_ok=True)
    split(options.data, directory)
    lines = [HEAD]
    if not options.only or "bigram" in options.only:
        model = {"arch": "ngram", "order": 2, "smoothing": "add-delta", "closed_vocab": True}
        values = {"task": "lm", "data": {"train": "all.txt", "read_as": "lines"}, "model": model}
        run, seconds = trained(values, directory / "bigram", directory)
        score = {s.name: s.value for s in run.evaluate(directory / "all.txt").scores}["loss"]
        lines.append(row("bigram, all names", run, score, 2.4546, seconds))
    data = {"train": "train.txt", "valid": "valid.txt", "test": "test.txt", "read_as": "lines", "context_length": 32}
    for name, recipe in MODELS.items():
        if options.only and name not in options.only:
            continue
        run, seconds = trained({"task": "lm", "data": data, **recipe}, directory / name, directory)
        part = "valid" if name == "conv" else "test"
        score = {s.name: s.value for s in run.evaluate(directory / f"{part}.txt").scores}["loss"]
        lines.append(row(f"{name}, {part}", run, score, BARS[name], seconds))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
