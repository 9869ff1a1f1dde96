"""Backup of a directory while its content is replaced: the old content is in .previous until the new one is usable."""

from __future__ import annotations

import os
from pathlib import Path

from weft import files
from weft.errors import ResourceError

NAME = ".previous"


class Backup:
    """Moves the content of a directory to its backup and back. Call with the lock of the directory.

    The mark is the file that identifies the directory. It is moved last and restored first. So, whenever a process is
    killed, the next one recognizes the directory, and knows whether all of it was moved.
    """

    def __init__(self, directory: Path, mark: str) -> None:
        self.directory, self.mark, self.path = directory, directory / mark, directory / NAME

    def exists(self) -> bool:
        """Whether there is a complete backup."""
        return os.path.isfile(self.path / self.mark.name)  # Path.is_file fails if the name is too long

    def contents(self) -> list[Path]:
        """The content of the directory without the backup, the mark last."""
        paths = (path for path in self.directory.iterdir() if not path.name.startswith("."))
        return sorted(paths, key=lambda path: (path == self.mark, path))

    def repair(self) -> None:
        """Restore the content if a process was killed while it moved it to the backup or back."""
        files.refuse_link(self.path)
        if self.mark.is_file() and self.path.is_dir() and not self.exists():
            self._move_back()

    def move_in(self) -> None:
        """Move the content of the directory to the backup. If there is one already, it stays, and the content is removed."""
        if self.exists():
            return self.clear()
        files.own_directory(self.path)
        parts = self.contents()
        for part in parts[:-1]:
            _move(part, self.path)
        self._sync()  # otherwise, after a power failure, the mark could be moved and other files not
        for part in parts[-1:]:
            _move(part, self.path)
        self._sync()

    def clear(self) -> None:
        for part in self.contents():
            files.remove(part)

    def restore(self) -> None:
        """Replace the content of the directory with the backup."""
        files.refuse_link(self.path)
        self.clear()
        self._move_back()

    def _move_back(self) -> None:
        backup = (path for path in self.path.iterdir() if not path.name.startswith("."))
        for part in sorted(backup, key=lambda path: (path.name != self.mark.name, path)):
            _move(part, self.directory)
            if part.name == self.mark.name:
                self._sync()
        self._sync()
        files.remove(self.path)

    def _sync(self) -> None:
        """Make the moves so far survive a power failure."""
        with files.wrap_os_errors(self.directory, "its backup may reappear after a power failure"):
            files.sync_directory(self.path)
            files.sync_directory(self.directory)

    def drop(self) -> None:
        """Remove the backup."""
        files.refuse_link(self.path)
        if self.exists():
            files.remove(self.path)


def _move(path: Path, directory: Path) -> None:
    try:
        path.rename(directory / path.name)
    except OSError as error:
        raise ResourceError(path, f"cannot move to {directory}: {error.strerror}") from None
