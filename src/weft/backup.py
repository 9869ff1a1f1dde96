"""What a folder held before it was begun anew: it waits in .previous until something has taken its place."""

from __future__ import annotations

import os
from pathlib import Path

from weft import files
from weft.errors import ResourceError

NAME = ".previous"


class Backup:
    """Sets the content of a folder aside and brings it back. Call under the folder's lock.

    The mark is the file that makes a folder what it is. It is moved last and comes back first, so that whatever moment a
    process is killed at, the next one knows the folder for its own, and whether all of it was moved.
    """

    def __init__(self, directory: Path, mark: str) -> None:
        self.directory, self.mark, self.path = directory, directory / mark, directory / NAME

    def exists(self) -> bool:
        """Whether something is set aside, and all of it."""
        return os.path.isfile(self.path / self.mark.name)  # Path.is_file fails on too long a name

    def contents(self) -> list[Path]:
        """What is in the folder now, the mark last."""
        found = (path for path in self.directory.iterdir() if not path.name.startswith("."))
        return sorted(found, key=lambda path: (path == self.mark, path))

    def repair(self) -> None:
        """If a process was killed while it set something aside, or brought it back, it is back."""
        files.refuse_link(self.path)
        if self.mark.is_file() and self.path.is_dir() and not self.exists():
            self._move_back()

    def move_in(self) -> None:
        """Set aside what is in the folder; if something waits already, that goes on waiting, and what is here goes."""
        if self.exists():
            return self.clear()
        files.own_directory(self.path)
        parts = self.contents()
        for part in parts[:-1]:
            _move(part, self.path)
        self._sync()  # or a power cut could leave the mark moved, and not all of the rest
        for part in parts[-1:]:
            _move(part, self.path)
        self._sync()

    def clear(self) -> None:
        for part in self.contents():
            files.remove(part)

    def restore(self) -> None:
        """What waits takes the place of what is here."""
        files.refuse_link(self.path)
        self.clear()
        self._move_back()

    def _move_back(self) -> None:
        waiting = (path for path in self.path.iterdir() if not path.name.startswith("."))
        for part in sorted(waiting, key=lambda path: (path.name != self.mark.name, path)):
            _move(part, self.directory)
            if part.name == self.mark.name:
                self._sync()
        self._sync()
        files.remove(self.path)

    def _sync(self) -> None:
        """Make what was moved survive a power cut, in the order that it was moved in."""
        with files.wrap_os_errors(self.directory, "what is set aside there may come back after a power cut"):
            files.sync_directory(self.path)
            files.sync_directory(self.directory)

    def drop(self) -> None:
        """Something has taken its place."""
        files.refuse_link(self.path)
        if self.exists():
            files.remove(self.path)


def _move(path: Path, directory: Path) -> None:
    try:
        path.rename(directory / path.name)
    except OSError as error:
        raise ResourceError(path, f"can't be moved to {directory}: {error.strerror}") from None
