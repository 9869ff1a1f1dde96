"""How many threads compute, and how they wait. It must be said before torch is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # what a container is held to: "microseconds period", or "max period"


def cpus() -> int:
    """The CPUs that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return allowed


def set_threads(number: int | None) -> None:
    """`number`, or what OMP_NUM_THREADS says, or one a CPU."""
    # threads that spin while they wait slow a busy machine down tenfold
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if number is None:
        os.environ.setdefault("OMP_NUM_THREADS", str(cpus()))
        return
    os.environ["OMP_NUM_THREADS"] = str(number)
    if "torch" in sys.modules:  # imported before: by whoever called `main` from Python
        sys.modules["torch"].set_num_threads(number)


def threads() -> int:
    """How many threads torch computes with, which need not be imported for it."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(told) if told.isascii() and told.isdigit() and int(told) > 0 else cpus()
