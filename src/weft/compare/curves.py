"""How runs learned: the lines of metrics.jsonl, with the tokens and seconds that they took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.log import read_log
from weft.metrics.better import BETTER

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


def curve(run: Path, score: str) -> dict[str, Any]:
    """Losses of training, and of the validation data `score`, or, where validation does not know it, its first score."""
    lines, timings = read_log(run / "metrics.jsonl"), read_log(run / "timings.jsonl")
    seconds = [(line["step"], line["seconds"]) for line in timings if line.get("seconds") is not None]
    tokens = [(line["step"], line["tokens"]) for line in lines if line.get("tokens") is not None]
    names = list(dict.fromkeys(name for line in lines for name in line))
    train = next((name for name in names if name.startswith("train_")), "train_nats_per_token")
    known = [name for name in names if name.startswith("valid_") and name.removeprefix("valid_") in BETTER]
    valid = f"valid_{score}" if f"valid_{score}" in known else next(iter(known), f"valid_{score}")
    return {
        "train": _points(lines, train, tokens, seconds),
        "valid": _points(lines, valid, tokens, seconds),
        "scores": {"train": train.removeprefix("train_"), "valid": valid.removeprefix("valid_")},
    }
