"""Verification of the checksums of large files, in the background of a training.

A file that has the size, modification time and inode of the moment it was written or verified is not read again. Others, such
as copies on another machine, are read once by a thread while training has begun. A wrong checksum is raised as an error by the
next read. `verified.json` remembers what was verified.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from weft import files
from weft.data.array_files import checksum
from weft.data.shards import AGAIN, FileCheck, state_of
from weft.errors import InUseError, ModelError, ResourceError, WeftError
from weft.lock import Lock

RECORD = "verified.json"


def read_verified(directory: Path) -> dict[str, Any]:
    """The states of files that were verified on this file system, by path relative to `directory`."""
    with suppress(ModelError, ResourceError):
        content = files.read_json(directory / RECORD)
        return content if isinstance(content, dict) else {}
    return {}


def write_verified(directory: Path, paths: Sequence[Path]) -> None:
    """Remember that files were verified; a directory that cannot be written to remembers nothing."""
    write_states(directory, {path.relative_to(directory).as_posix(): state_of(path) for path in paths})


def write_states(directory: Path, states: Mapping[str, Sequence[int]]) -> None:
    """Remember states of files, by path relative to `directory`, in which they are verified."""
    with suppress(ResourceError):
        files.write_json(directory / RECORD, {**read_verified(directory), **states})


def verify(check: FileCheck) -> None:
    """Read a file; a wrong checksum is an error."""
    if checksum(check.path) != check.checksum:
        raise ModelError(check.path, "checksum mismatch", AGAIN)


class BackgroundVerifier:
    """Verifies files in a thread. `check` raises the error that it found."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.error: WeftError | None = None
        self._thread: threading.Thread | None = None

    def start(self, checks: Sequence[FileCheck]) -> None:
        if checks:
            self._thread = threading.Thread(target=self._run, args=(list(checks),), daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raise the error of a file that is corrupted."""
        if self.error is not None:
            raise self.error

    def wait(self) -> None:
        """Wait until all files are verified."""
        if self._thread is not None:
            self._thread.join()
        self.check()

    def _run(self, checks: Sequence[FileCheck]) -> None:
        try:
            with ExitStack() as stack:
                try:
                    stack.enter_context(Lock(self.directory))
                except InUseError:
                    return  # another process verifies the same files
                except ResourceError:  # the directory cannot be written to
                    pass
                self._verify(checks)
        except WeftError as error:
            self.error = error
        except OSError as error:
            self.error = ResourceError(self.directory, f"cannot read: {error.strerror}")

    def _verify(self, checks: Sequence[FileCheck]) -> None:
        verified = read_verified(self.directory)
        for item in checks:
            if verified.get(item.path.relative_to(self.directory).as_posix()) != state_of(item.path):
                verify(item)
                write_verified(self.directory, [item.path])
