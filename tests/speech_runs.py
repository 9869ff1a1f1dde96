"""Small recordings and recognizers: each letter is a tone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from weft.media.audio import write_wav

RATE = 4000
TONES = {"a": 400, "b": 700, "c": 1100, "d": 1600}
SECONDS = 0.12  # of a letter
MODEL: dict[str, Any] = {
    "arch": "lstm",
    "hidden_size": 8,
    "num_layers": 1,
    "num_mels": 8,
    "num_heads": None,
    "num_freq_masks": 0,
    "num_time_masks": 0,
    "speed_perturbation": [1.0],
    "dropout": 0.0,
    "encoder": {"subsampling": 4, "subsampling_channels": 2},
}


def say(text: str, *, rate: int = RATE, seconds: float = SECONDS) -> np.ndarray:
    """The samples of a text: a tone per letter, silence for a space; float32 in [-1, 1]."""
    time = np.arange(int(seconds * rate)) / rate
    parts = [0.4 * np.sin(2 * np.pi * TONES.get(letter, 0) * time) for letter in text]
    noise = np.random.default_rng(len(text)).normal(0, 0.003, len(time) * len(parts))
    return (np.concatenate(parts) + noise).astype(np.float32)


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("abcd"), rng.integers(2, 5))) for _ in range(count)]


def make_recordings(directory: Path, count: int = 8, *, name: str = "train", seed: int = 0, rate: int = RATE) -> Path:
    """A manifest of recordings in `directory`, with its header."""
    rows = ["path\ttext"]
    (directory / "wav").mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts(count, seed)):
        write_wav(directory / "wav" / f"{name}{number}.wav", say(text, rate=rate), rate)
        rows.append(f"wav/{name}{number}.wav\t{text}")
    manifest = directory / f"{name}.tsv"
    manifest.write_text("\n".join(rows) + "\n")
    return manifest


def speech_run_file(train: Path | str, **options: Any) -> dict[str, Any]:
    """A run file; options are passed as `train__max_steps=5`."""
    values: dict[str, Any] = {
        "task": "asr",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(train), "valid": 0.25, "sample_rate": RATE},
        "tokenizer": {"type": "char"},
        "model": {key: value for key, value in MODEL.items() if value is not None},
        "train": {
            "max_steps": 4, "batch_tokens": 200, "num_validations": 2, "lr": 0.01, "ema_decay": 0.0, "device": "cpu",
        },
    }  # fmt: skip
    for name, value in options.items():
        table, _, option = name.partition("__")
        if not option:
            values[table] = value
        elif value is None:
            values[table].pop(option, None)
        else:
            values[table][option] = value
    return values
