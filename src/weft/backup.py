"""Backup of a directory while its content is replaced: .previous has the old content until the new content is usable."""

from __future__ import annotations

import os
from pathlib import Path

from weft import files
from weft.errors import ResourceError

NAME = ".previous"


class Backup:
    """Moves the content of a directory to its backup and back. The caller must hold the lock of the directory.

    `marker` is the name of the file that identifies the directory. It is moved last and restored first. So the next process
    recognizes the directory, and whether its backup is complete, wherever the previous process was killed.
    """

    def __init__(self, directory: Path, marker: str) -> None:
        self.directory, self.marker, self.path = directory, directory / marker, directory / NAME

    def exists(self) -> bool:
        """Whether a complete backup exists."""
        return os.path.isfile(self.path / self.marker.name)  # unlike Path.is_file, accepts names of any length

    def contents(self) -> list[Path]:
        """Files and subdirectories without the backup, the marker last."""
        paths = (path for path in self.directory.iterdir() if not path.name.startswith("."))
        return sorted(paths, key=lambda path: (path == self.marker, path))

    def repair(self) -> None:
        """Restore the content if a process was killed while moving it to the backup or back."""
        files.refuse_link(self.path)
        if self.marker.is_file() and self.path.is_dir() and not self.exists():
            self._move_back()

    def create(self) -> None:
        """Move the content of the directory to the backup. An existing backup is kept, and the content is removed."""
        if self.exists():
            return self.clear()
        files.make_subdirectory(self.path)
        paths = self.contents()
        for path in paths[:-1]:
            _move(path, self.path)
        self._sync()  # otherwise a power failure could leave the marker moved and other files not
        for path in paths[-1:]:
            _move(path, self.path)
        self._sync()

    def clear(self) -> None:
        """Remove the content of the directory, but not the backup."""
        for path in self.contents():
            files.remove(path)

    def restore(self) -> None:
        """Replace the content of the directory with the backup."""
        files.refuse_link(self.path)
        self.clear()
        self._move_back()

    def _move_back(self) -> None:
        paths = (path for path in self.path.iterdir() if not path.name.startswith("."))
        for path in sorted(paths, key=lambda path: (path.name != self.marker.name, path)):
            _move(path, self.directory)
            if path.name == self.marker.name:
                self._sync()
        self._sync()
        files.remove(self.path)

    def _sync(self) -> None:
        """Flush the moves so far to disk."""
        with files.wrap_os_errors(self.directory, "its backup may reappear after a power failure"):
            files.sync_directory(self.path)
            files.sync_directory(self.directory)

    def delete(self) -> None:
        """Remove the backup."""
        files.refuse_link(self.path)
        if self.exists():
            files.remove(self.path)


def _move(path: Path, directory: Path) -> None:
    try:
        path.rename(directory / path.name)
    except OSError as error:
        raise ResourceError(path, f"cannot move to {directory}: {error.strerror}") from None
