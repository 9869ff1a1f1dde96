"""Free memory of the machine, and peak memory of computations."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def format_bytes(count: float) -> str:
    """1234567 -> '1.2 MB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _page_bytes(name: str) -> int | None:
    """Bytes of the memory pages that sysconf counts as `name`; None if it does not, such as free pages on macOS."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf(name)
    except (ValueError, OSError):
        return None


def _system_free_memory() -> int:
    """Bytes that are available without swapping: MemAvailable on Linux, elsewhere free pages, else all memory."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().split("\n") if ":" in line)
        if "MemAvailable" in lines:
            return int(lines["MemAvailable"].split()[0]) * 1024
    free_bytes = _page_bytes("SC_AVPHYS_PAGES")
    return free_bytes if free_bytes is not None else _page_bytes("SC_PHYS_PAGES") or sys.maxsize


# cgroup v2 and v1: root, file of the limit, file of the usage, and the entry of memory.stat for the page cache
_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" means no limit
        return None


def _cgroup_dirs(root: str) -> list[Path]:
    """The control groups of this process, outermost first; in a container only the first exists."""
    top, names = Path(root), list[str]()
    membership = Path("/proc/self/cgroup")
    for line in membership.read_text().split("\n") if membership.exists() else ():
        _, controllers, group = (*line.split(":", 2), "", "", "")[:3]
        if controllers in ("", "memory") and group.startswith("/") and ".." not in group:
            names = [name for name in group.split("/") if name] or names
    return [top, *(top.joinpath(*names[:depth]) for depth in range(1, len(names) + 1))]


def _read_entry(path: Path, name: str) -> int:
    """The entry `name` of a memory.stat file; 0 if it cannot be read."""
    try:
        lines = dict(line.split(" ", 1) for line in path.read_text().split("\n") if " " in line)
        return int(lines.get(name, 0))
    except (OSError, ValueError):
        return 0


def _cgroup_free_memory() -> list[int]:
    """Free bytes in each control group of this process. The page cache counts as usage, but the kernel frees it on demand."""
    free_bytes = list[int]()
    for root, limit_file, usage_file, cache_entry in _CGROUPS:
        for group in _cgroup_dirs(root):
            limit, usage = _read_int(group / limit_file), _read_int(group / usage_file)
            if limit is not None and usage is not None:
                free_bytes.append(limit - max(0, usage - _read_entry(group / "memory.stat", cache_entry)))
    return free_bytes


def peak_memory() -> int:
    """Peak memory of this process in bytes."""
    # the unit of ru_maxrss is a kilobyte on Linux, a byte on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def free_memory() -> int:
    """Free memory of the machine in bytes, within the limits of a container."""
    return max(0, min([_system_free_memory(), *_cgroup_free_memory()]))


def free_device_memory(device: torch.device) -> int:
    """Free memory of a device in bytes: of the GPU or, for the CPU, of the machine."""
    if device.type == "cuda":
        import torch

        # torch keeps freed memory for later allocations
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    return free_memory()


def _trace_memory(work: Callable[[int], object], rows: int) -> list[int]:
    """Allocated bytes after each operation of `work(rows)`."""
    from weft.allocations import LiveMemory

    memory = LiveMemory()
    with memory:
        work(rows)
    return memory.trace


def measure_peak_memory(work: Callable[[int], object], rows: int) -> int:
    """Peak memory of `work(rows)` in bytes, extrapolated from two and three rows if there are more.

    At each operation, every further row adds the difference between the two traces, so that memory that rows share, such as a
    mask, is counted once.
    """
    if rows <= 3:
        return max(_trace_memory(work, rows), default=0)
    two, three = _trace_memory(work, 2), _trace_memory(work, 3)  # some kernels treat a single row differently
    if len(two) != len(three):  # torch chose other kernels
        return max(three, default=0) * rows // 3
    return max((after + (rows - 3) * (after - before) for before, after in zip(two, three, strict=True)), default=0)
