"""Learning-rate schedules: functions of the progress of a run, from 0 to 1, which have no state to restore."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

Schedule = Callable[[float], float]


def constant(progress: float) -> float:
    return 1.0


def linear(progress: float) -> float:
    return 1.0 - progress


def cosine(progress: float) -> float:
    """Half a cosine, down to a tenth (Hoffmann et al. 2022)."""
    return 0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * progress))


def inverse_square_root(progress: float, *, peak: float = 0.01) -> float:
    """Constant up to `peak` (1% of the run, or the end of warmup), then proportional to 1 / sqrt(progress)."""
    return min(1.0, math.sqrt(peak / progress)) if progress > 0 else 1.0


def warmup_stable_decay(progress: float, *, decay: float = 0.4) -> float:
    """Constant, then linear to zero over the last part of the run; together with warmup, "warmup-stable-decay"."""
    return min(1.0, (1.0 - progress) / decay)


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "inverse-sqrt": inverse_square_root,
    "warmup-stable-decay": warmup_stable_decay,
}


def schedule(name: str, *, warmup: float) -> Schedule:
    """The factor of the learning rate as a function of the progress: linear warmup times the named schedule."""
    decay = partial(inverse_square_root, peak=warmup) if name == "inverse-sqrt" and warmup else SCHEDULES[name]

    def factor(progress: float) -> float:
        return min(1.0, progress / warmup if warmup else 1.0) * decay(min(progress, 1.0))

    return factor
