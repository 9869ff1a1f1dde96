"""Directory locks: only one process at a time writes to a directory."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from weft.errors import InUseError, ResourceError
from weft.files import open_for_update, wrap_os_errors


class Lock:
    """Context manager that locks a directory. The kernel releases the lock when the process ends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __enter__(self) -> Self:
        with wrap_os_errors(self.directory):
            self._descriptor = open_for_update(self.directory / ".lock")
        try:
            self._acquire()
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def _acquire(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # empty if the owner has not written its process ID yet
            owner = os.pread(self._descriptor, 100, 0).decode(errors="replace").strip()
            problem = f"in use by another process{f' ({owner})' if owner else ''}"
            raise InUseError(self.directory, problem, "wait for it or choose another directory") from None
        except OSError as error:
            raise ResourceError(self.directory, f"cannot lock: {error.strerror}") from None
        with wrap_os_errors(self.directory):
            os.ftruncate(self._descriptor, 0)
            start_time = time.strftime("%Y-%m-%d %H:%M:%S")
            os.pwrite(self._descriptor, f"process {os.getpid()} since {start_time}\n".encode(), 0)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # keep the file: after a removal, two processes could lock two different files of this name
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
