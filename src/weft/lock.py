"""A lock on a folder: one process writes there at a time."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from weft.errors import InUseError, ResourceError
from weft.files import open_own, wrap_os_errors


class Lock:
    """Holds a folder for one process while the block runs; the kernel lets go of it when that process dies."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __enter__(self) -> Self:
        with wrap_os_errors(self.directory):
            self._descriptor = open_own(self.directory / ".lock")
        try:
            self._take()
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def _take(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # the holder may be between taking the lock and signing it
            holder = os.pread(self._descriptor, 100, 0).decode(errors="replace").strip() or "another process"
            raise InUseError(self.directory, f"in use by {holder}") from None
        except OSError as error:
            raise ResourceError(self.directory, f"can't be locked: {error.strerror}") from None
        with wrap_os_errors(self.directory):
            os.ftruncate(self._descriptor, 0)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            os.pwrite(self._descriptor, f"process {os.getpid()} (since {since})\n".encode(), 0)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # the file stays: unlinking it would let two processes hold two files of one name
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
