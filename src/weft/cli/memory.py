"""The memory of a process that trains or decodes for a long time."""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of mallopt in malloc.h
KEPT_BYTES, MAX_HEAP_BYTES = 512 << 20, 1 << 30


def keep_freed_memory() -> None:
    """Keep freed memory for the next tensors. By default, glibc gives large blocks back to the system at once, and each step of
    decoding gets them again, page by page: a sixth of the CPU time of a small model, and more outside of the main thread. In
    training it is a hundredth of the CPU time. Nothing happens with another C library."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # musl
        return
    mallopt(TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(MMAP_THRESHOLD, MAX_HEAP_BYTES)
