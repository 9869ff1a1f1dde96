"""Free memory of the machine, and memory that computations take."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def size(number: float) -> str:
    """1234567 -> '1.2 MB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def _pages(name: str) -> int | None:
    """The bytes of a kind of memory pages; None if the system does not report them, such as free pages on macOS."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf(name)
    except (ValueError, OSError):
        return None


def _available() -> int:
    """The bytes that are available without swapping: as reported by Linux; elsewhere free pages, or all memory if free pages
    are not reported."""
    status = Path("/proc/meminfo")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().split("\n") if ":" in line)
        if "MemAvailable" in lines:
            return int(lines["MemAvailable"].split()[0]) * 1024
    free_bytes = _pages("SC_AVPHYS_PAGES")
    return free_bytes if free_bytes is not None else _pages("SC_PHYS_PAGES") or sys.maxsize


# files with the limit and the use of a control group; the last name is that of the page cache, which can be freed
_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" means no limit
        return None


def _allowed() -> list[int]:
    """The bytes that are left in each control group of this process. The page cache counts as used, but the kernel frees it
    when memory is needed."""
    allowed = list[int]()
    for root, limit, used, cached in _GROUPS:
        for group in _groups(root):
            maximum, current = _number(group / limit), _number(group / used)
            if maximum is not None and current is not None:
                allowed.append(maximum - max(0, current - _detail(group / "memory.stat", cached)))
    return allowed


def _groups(root: str) -> list[Path]:
    """The directories of the control groups of this process, outermost first; in a container only the first exists."""
    top, names = Path(root), list[str]()
    status = Path("/proc/self/cgroup")
    for line in status.read_text().split("\n") if status.exists() else ():
        _, kinds, group = (*line.split(":", 2), "", "", "")[:3]
        if kinds in ("", "memory") and group.startswith("/") and ".." not in group:
            names = [name for name in group.split("/") if name] or names
    return [top, *(top.joinpath(*names[: at + 1]) for at in range(len(names)))]


def _detail(path: Path, name: str) -> int:
    try:
        lines = dict(line.split(" ", 1) for line in path.read_text().split("\n") if " " in line)
        return int(lines.get(name, 0))
    except (OSError, ValueError):
        return 0


def peak_memory() -> int:
    """The peak memory of this process in bytes; the system reports kilobytes, on macOS bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def free_memory() -> int:
    """The free memory of the machine in bytes, within the limits of a container."""
    return max(0, min([_available(), *_allowed()]))


def free(device: torch.device) -> int:
    """The free memory of the GPU or of the machine in bytes."""
    if device.type == "cuda":
        import torch

        # torch caches freed memory
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    return free_memory()


def _traced(work: Callable[[int], object], rows: int) -> list[int]:
    """The bytes of live memory after each operation of the work."""
    from weft.allocations import LiveMemory

    memory = LiveMemory()
    with memory:
        work(rows)
    return memory.trace


def measure_peak_memory(work: Callable[[int], object], rows: int) -> int:
    """The peak memory of `work(rows)` in bytes. For many rows it is extrapolated from a few.

    Each further row adds the same amount after each operation, so memory that rows share, such as a mask, is counted once.
    """
    if rows <= 3:
        return max(_traced(work, rows), default=0)
    two, three = _traced(work, 2), _traced(work, 3)  # some kernels treat one row specially
    if len(two) != len(three):  # other kernels were chosen
        return max(three, default=0) * rows // 3
    return max((last + (rows - 3) * (last - first) for first, last in zip(two, three, strict=True)), default=0)
