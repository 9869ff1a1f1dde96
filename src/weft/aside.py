"""What a folder held before it was begun anew: it waits in .set-aside until something has taken its place."""

from __future__ import annotations

import os
from pathlib import Path

from weft import files
from weft.errors import ResourceError

NAME = ".set-aside"


class Aside:
    """Sets the content of a folder aside and brings it back. Call under the folder's lock.

    The mark is the file that makes a folder what it is. It is moved last and comes back first, so that whatever moment a
    process is killed at, the next one knows the folder for its own, and whether all of it was moved.
    """

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder, self.mark, self.place = folder, folder / mark, folder / NAME

    def is_there(self) -> bool:
        """Whether something is set aside, and all of it."""
        return os.path.isfile(self.place / self.mark.name)  # Path.is_file fails on too long a name

    def contents(self) -> list[Path]:
        """What is in the folder now, the mark last."""
        found = (path for path in self.folder.iterdir() if not path.name.startswith("."))
        return sorted(found, key=lambda path: (path == self.mark, path))

    def mend(self) -> None:
        """If a process was killed while it set something aside, or brought it back, it is back."""
        files.refuse_link(self.place)
        if self.mark.is_file() and self.place.is_dir() and not self.is_there():
            self._move_back()

    def put(self) -> None:
        """Set aside what is in the folder; if something waits already, that goes on waiting, and what is here goes."""
        if self.is_there():
            return self.clear()
        files.own_folder(self.place)
        parts = self.contents()
        for part in parts[:-1]:
            _move(part, self.place)
        self._sync()  # or a power cut could leave the mark moved, and not all of the rest
        for part in parts[-1:]:
            _move(part, self.place)
        self._sync()

    def clear(self) -> None:
        for part in self.contents():
            files.remove(part)

    def bring_back(self) -> None:
        """What waits takes the place of what is here."""
        files.refuse_link(self.place)
        self.clear()
        self._move_back()

    def _move_back(self) -> None:
        waiting = (path for path in self.place.iterdir() if not path.name.startswith("."))
        for part in sorted(waiting, key=lambda path: (path.name != self.mark.name, path)):
            _move(part, self.folder)
            if part.name == self.mark.name:
                self._sync()
        self._sync()
        files.remove(self.place)

    def _sync(self) -> None:
        """Make what was moved survive a power cut, in the order that it was moved in."""
        with files.refusing(self.folder, "what is set aside there may come back after a power cut"):
            files.sync_folder(self.place)
            files.sync_folder(self.folder)

    def drop(self) -> None:
        """Something has taken its place."""
        files.refuse_link(self.place)
        if self.is_there():
            files.remove(self.place)


def _move(path: Path, folder: Path) -> None:
    try:
        path.rename(folder / path.name)
    except OSError as error:
        raise ResourceError(f"{path}: can't be moved to {folder}: {error.strerror}") from None
