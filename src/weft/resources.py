"""What the machine has left, and what work takes of it."""

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
    """Bytes of the pages that the system calls so; None where it has no such name, as macOS has none for free ones."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf(name)
    except (ValueError, OSError):
        return None


def _available() -> int:
    """Bytes that can be had without swapping: as Linux says; elsewhere free pages, or, where nobody counts those, all."""
    status = Path("/proc/meminfo")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().split("\n") if ":" in line)
        if "MemAvailable" in lines:
            return int(lines["MemAvailable"].split()[0]) * 1024
    found = _pages("SC_AVPHYS_PAGES")
    return found if found is not None else _pages("SC_PHYS_PAGES") or sys.maxsize


# where a container's limit, its use, and the details of it are; the last name is that of what was read from files and can go
_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" is no limit
        return None


def _allowed() -> list[int]:
    """Bytes that each group of processes that this one is in may still have. Pages of files that were read count as used, but
    the kernel gives them up when memory is asked for."""
    found = list[int]()
    for root, limit, used, cached in _GROUPS:
        for place in _places(root):
            most, now = _number(place / limit), _number(place / used)
            if most is not None and now is not None:
                found.append(most - max(0, now - _detail(place / "memory.stat", cached)))
    return found


def _places(root: str) -> list[Path]:
    """The folders of the groups that this process is in, from the outermost on; in a container only the first is there."""
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
    """The most bytes that this process has had; the system counts them in kilobytes, but on macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def free_memory() -> int:
    """Bytes that can still be had of the machine, less what a container is held to."""
    return max(0, min([_available(), *_allowed()]))


def free(device: torch.device) -> int:
    """Bytes that can still be had: of the GPU, or of the machine."""
    if device.type == "cuda":
        import torch

        # torch keeps what was freed for the next to ask
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    return free_memory()


def _traced(work: Callable[[int], object], rows: int) -> list[int]:
    """Bytes that the work has allocated and not freed, after each operation in it."""
    from weft.allocations import Alive

    noted = Alive()
    with noted:
        work(rows)
    return noted.trace


def measure_peak_memory(work: Callable[[int], object], rows: int) -> int:
    """The most bytes that `work(rows)` has allocated at once; many rows are not run, but told from a few.

    Each row more adds as much after each operation, so what rows share, such as a mask, is counted once.
    """
    if rows <= 3:
        return max(_traced(work, rows), default=0)
    two, three = _traced(work, 2), _traced(work, 3)  # one row is a case of its own to some kernels
    if len(two) != len(three):  # other kernels were chosen
        return max(three, default=0) * rows // 3
    return max((last + (rows - 3) * (last - first) for first, last in zip(two, three, strict=True)), default=0)
