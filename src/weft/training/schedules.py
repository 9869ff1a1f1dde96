"""Learning-rate schedules: pure functions of the progress, from 0 to 1, so a run that resumes is where it was."""

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
    """1 up to the peak (a hundredth of the run, or the warm-up's end), then falling as 1 / sqrt(progress)."""
    return min(1.0, math.sqrt(peak / progress)) if progress > 0 else 1.0


def warmup_stable_decay(progress: float, *, decay: float = 0.4) -> float:
    """Level, then linear to zero over the last part: with a warm-up, "warm-up/stable/decay"."""
    return min(1.0, (1.0 - progress) / decay)


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "inverse-sqrt": inverse_square_root,
    "warmup-stable-decay": warmup_stable_decay,
}


def schedule(name: str, *, warmup: float) -> Schedule:
    """The factor on the learning rate at each progress: a linear rise over `warmup`, times the named fall."""
    fall = partial(inverse_square_root, peak=warmup) if name == "inverse-sqrt" and warmup else SCHEDULES[name]

    def factor(progress: float) -> float:
        return min(1.0, progress / warmup if warmup else 1.0) * fall(min(progress, 1.0))

    return factor
