"""Learning curves: the records of metrics.jsonl with tokens and seconds."""

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


def _interpolate(step: float, points: Sequence[tuple[float, float]]) -> float | None:
    """The value at a step, interpolated linearly between (step, value) points; 0 at step 0."""
    if not points:
        return None
    steps, values = zip((0.0, 0.0), *sorted(points), strict=True)
    return float(np.interp(step, steps, values))


def _points(lines: Sequence[Record], name: str, tokens: Any, seconds: Any) -> list[Record]:
    return [
        {
            "step": line["step"],
            "tokens": line.get("tokens", round(_interpolate(line["step"], tokens) or 0)),
            "seconds": _interpolate(line["step"], seconds),
            "value": line[name],
        }
        for line in lines
        if line.get(name) is not None
    ]


MAX_SAMPLED_STEPS, TEXTS_PER_STEP = 8, 3  # read from samples.jsonl


def samples_of(run: Path) -> list[Record]:
    """Texts generated at some validations of a run, the first and the last included; empty if train.num_samples is 0."""
    lines = read_log(run / SAMPLES, allow_text=True)
    steps = list(dict.fromkeys(line["step"] for line in lines))
    count = min(len(steps), MAX_SAMPLED_STEPS)
    selected = {steps[round(i * (len(steps) - 1) / max(1, count - 1))] for i in range(count)}
    texts = {step: [line for line in lines if line["step"] == step] for step in sorted(selected)}
    return [line for at_step in texts.values() for line in at_step[:TEXTS_PER_STEP]]


def _max_grad_norm(run: Path) -> float | None:
    """train.max_grad_norm of a run; None if there is no limit, or the run directory is gone."""
    try:
        limit = read_toml(run / "resolved.toml").get("train", {}).get("max_grad_norm")
    except ConfigError:
        return None
    return float(limit) if isinstance(limit, int | float) and limit else None


def curve(run: Path, metric: str, validation_metrics: Collection[str], others: Collection[str] = ()) -> dict[str, Any]:
    """Training loss, validation metric, gradient norms and learning rate of a run. The validation metric is `metric`, or the
    first one if the run does not log it. `validation_metrics` are the names of the task's validation metrics, `others` those
    that have curves of their own."""
    lines, timings = read_log(run / "metrics.jsonl"), read_log(run / "timings.jsonl")
    seconds = [(line["step"], line["seconds"]) for line in timings if line.get("seconds") is not None]
    tokens = [(line["step"], line["tokens"]) for line in lines if line.get("tokens") is not None]
    names = list(dict.fromkeys(name for line in lines for name in line))
    train = next((name for name in names if name.startswith("train_")), "train_loss")
    valid_names = [name for name in names if name.startswith("valid_") and name.removeprefix("valid_") in validation_metrics]
    valid = f"valid_{metric}" if f"valid_{metric}" in valid_names else next(iter(valid_names), f"valid_{metric}")
    return {
        "train": _points(lines, train, tokens, seconds),
        "valid": _points(lines, valid, tokens, seconds),
        "grad_norm": _points(lines, "grad_norm", tokens, seconds),
        "grad_norm_max": _points(lines, "grad_norm_max", tokens, seconds),
        "learning_rate": _points(lines, "learning_rate", tokens, seconds),
        "gradients": None if (norms := summarize(lines)) is None else {**norms.to_json(), "max_grad_norm": _max_grad_norm(run)},
        **({"others": {name: _points(lines, f"valid_{name}", tokens, seconds) for name in others}} if others else {}),
        "metrics": {"train": train.removeprefix("train_"), "valid": valid.removeprefix("valid_")},
    }
