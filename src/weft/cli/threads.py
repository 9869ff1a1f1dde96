"""The number of CPU threads, and how they wait. Both must be set before torch is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # CPU limit of a container: "microseconds period", or "max period"


def cpus() -> int:
    """The CPUs that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text().split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # missing file, or "max"
        return allowed


def set_threads(number: int | None) -> None:
    """Use `number` threads, or OMP_NUM_THREADS, or one thread per CPU."""
    # threads that spin while they wait slow a busy machine down tenfold
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if number is None:
        os.environ.setdefault("OMP_NUM_THREADS", str(cpus()))
        return
    os.environ["OMP_NUM_THREADS"] = str(number)
    if "torch" in sys.modules:  # imported by a Python program that calls `main`
        sys.modules["torch"].set_num_threads(number)


def threads() -> int:
    """The number of threads that torch uses, or will use once it is imported."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    value = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(value) if value.isascii() and value.isdigit() and int(value) > 0 else cpus()
