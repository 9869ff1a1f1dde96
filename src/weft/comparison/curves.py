"""How runs learned: the lines of metrics.jsonl, with the tokens and seconds that they took."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.config import read_toml
from weft.errors import ConfigError
from weft.log import read_log
from weft.training.gradients import summarize
from weft.training.sample_outputs import FILE as SAMPLES

Record = dict[str, Any]


def _at(step: float, known: Sequence[tuple[float, float]]) -> float | None:
    """What there was at a step, between the steps where it is known; nothing before the first step."""
    if not known:
        return None
    steps, values = zip((0.0, 0.0), *sorted(known), strict=True)
    return float(np.interp(step, steps, values))


def _points(lines: Sequence[Record], name: str, tokens: Any, seconds: Any) -> list[Record]:
    return [
        {
            "step": line["step"],
            "tokens": line.get("tokens", round(_at(line["step"], tokens) or 0)),
            "seconds": _at(line["step"], seconds),
            "value": line[name],
        }
        for line in lines
        if line.get(name) is not None
    ]


STEPS, TEXTS = 8, 3  # of samples.jsonl: validations that are shown, and texts of each


def samples_of(run: Path) -> list[Record]:
    """What a run wrote at some of its validations, from the first to the last; nothing where train.num_samples was 0."""
    lines = read_log(run / SAMPLES, texts=True)
    steps = list(dict.fromkeys(line["step"] for line in lines))
    chosen = {steps[round(at * (len(steps) - 1) / max(1, min(len(steps), STEPS) - 1))] for at in range(min(len(steps), STEPS))}
    return [line for step in sorted(chosen) for line in [one for one in lines if one["step"] == step][:TEXTS]]


def _clip(run: Path) -> float | None:
    """The largest norm that a gradient may have; None where there is no limit, or the run is gone."""
    try:
        clip = read_toml(run / "resolved.toml").get("train", {}).get("clip")
    except ConfigError:
        return None
    return float(clip) if isinstance(clip, int | float) else None


def curve(run: Path, score: str, validated: Collection[str]) -> dict[str, Any]:
    """Losses of training, and of the validation data `score`, or, where validation does not know it, its first score; norms of
    the gradient, and the learning rate. `validated` are the names of what the task's validation measures."""
    lines, timings = read_log(run / "metrics.jsonl"), read_log(run / "timings.jsonl")
    seconds = [(line["step"], line["seconds"]) for line in timings if line.get("seconds") is not None]
    tokens = [(line["step"], line["tokens"]) for line in lines if line.get("tokens") is not None]
    names = list(dict.fromkeys(name for line in lines for name in line))
    train = next((name for name in names if name.startswith("train_")), "train_loss")
    known = [name for name in names if name.startswith("valid_") and name.removeprefix("valid_") in validated]
    valid = f"valid_{score}" if f"valid_{score}" in known else next(iter(known), f"valid_{score}")
    return {
        "train": _points(lines, train, tokens, seconds),
        "valid": _points(lines, valid, tokens, seconds),
        "norm": _points(lines, "grad_norm", tokens, seconds),
        "norm_max": _points(lines, "grad_norm_max", tokens, seconds),
        "rate": _points(lines, "learning_rate", tokens, seconds),
        "gradients": None if (found := summarize(lines)) is None else {**found.to_json(), "clip": _clip(run)},
        "scores": {"train": train.removeprefix("train_"), "valid": valid.removeprefix("valid_")},
    }
