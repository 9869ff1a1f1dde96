"""Runs of speech recognition on synthesized numbers, with a model that says something after one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from small_runs import SilentCallback

import weft
from weft.cli.formant_synthesis import RATE, speak, speaker
from weft.media.audio import to_int16, write_wav
from weft.runs.job import train
from weft.runs.run import AnyRun

TEXTS = ("two nine", "six", "eleven forty", "three", "one two three", "ninety")


def sounds(count: int = len(TEXTS)) -> list[np.ndarray]:
    """Utterances, float32 (T,)."""
    rng = np.random.default_rng(5)
    return [speak(TEXTS[index % len(TEXTS)].split(), speaker("a", rng), rng) for index in range(count)]


def write_sounds(directory: Path) -> Path:
    """A manifest of six utterances in this directory."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = ["path\ttext\tspeaker"]
    for number, (sound, text) in enumerate(zip(sounds(), TEXTS, strict=True)):
        write_wav(directory / f"{number}.wav", sound, RATE)
        rows.append(f"{number}.wav\t{text}\tspeaker {number % 2}")
    (directory / "train.tsv").write_text("\n".join(rows) + "\n")
    return directory / "train.tsv"


def spoken_values(manifest: Path, arch: str, *, tokenizer: str = "char", **model: Any) -> dict[str, Any]:
    """A run file that is trained for one step."""
    encoder = {"bidirectional": False, "subsampling_channels": 4, **model.pop("encoder", {})}
    return {
        "task": "asr",
        "recommend": False,
        "data": {"train": str(manifest), "valid": 0.34, "sample_rate": RATE},
        "tokenizer": {"type": tokenizer},
        "model": {"arch": arch, "hidden_size": 16, "num_layers": 2, "num_mels": 16, "encoder": encoder, **model},
        "train": {"max_steps": 1, "batch_tokens": 512, "num_validations": 1},
    }


def spoken_run(directory: Path, arch: str, *, tokenizer: str = "char", **model: Any) -> Path:
    """A run directory, trained for one step."""
    values = spoken_values(write_sounds(directory / "data"), arch, tokenizer=tokenizer, **model)
    train(values, directory / "run", base=directory, callback=SilentCallback())
    return directory / "run"


@torch.no_grad()
def talkative(path: Path) -> AnyRun:
    """A run whose CTC output changes often: its logits have the same mean and variance over time for all labels."""
    run = weft.load(path)
    head, encoder = run.model.ctc_head, run.model.encoder
    torch.manual_seed(3)
    for weight in encoder.stack.parameters():
        if weight.dim() > 1:
            weight.mul_(4.0)
    head.weight.normal_()
    head.bias.zero_()
    samples = torch.tensor(to_int16(np.concatenate(sounds(3)))[: 2 * RATE]).view(1, -1, RATE // 100)
    logits = head.logits(encoder(samples, torch.ones(samples.shape[:2], dtype=torch.bool)).values)[0]
    head.weight /= logits.std(0)[:, None]
    head.bias -= logits.mean(0) / logits.std(0)
    head.bias[run.model.blank] += 0.5
    return run
