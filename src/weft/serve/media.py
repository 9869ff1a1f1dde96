"""Files that a request contains: written to a temporary directory while they are read, and never named in an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from weft import files
from weft.media.files import MediaFile
from weft.serve.jobs import Media

_NOT_SAFE = re.compile("[^0-9A-Za-z._-]+")
MAX_NAME_CHARS = 80


class Stored(NamedTuple):
    """Inputs whose content is in files, and the directory of the files."""

    inputs: list[Any]
    directory: str

    def hide(self, value: Any) -> Any:
        """A text, or JSON, without the name of the directory."""
        if not self.directory:
            return value
        if isinstance(value, str):
            return re.sub(rf"{re.escape(self.directory)}/\d+/", "", value)
        if isinstance(value, dict):
            return {self.hide(key): self.hide(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(inner) for inner in value]
        return value


def safe_name(name: str) -> str:
    """The last part of a file name, of letters, digits and .-_ only; it never starts with a dot."""
    last = _NOT_SAFE.sub("_", name.replace("\\", "/").rpartition("/")[2])[-MAX_NAME_CHARS:].lstrip(".")
    return last or "file"


@contextmanager
def stored(inputs: Sequence[Any]) -> Iterator[Stored]:
    """The inputs, with a `MediaFile` in place of each `Media`, while the block runs."""
    if not any(isinstance(value, Media) for value in inputs):
        yield Stored(list(inputs), "")
        return
    with TemporaryDirectory(prefix="weft-serve-") as name:
        values = list[Any]()
        for number, value in enumerate(inputs):
            if isinstance(value, Media):
                directory = Path(name) / str(number)
                directory.mkdir()
                path = directory / safe_name(value.name)
                files.write_bytes(path, value.content)
                values.append(MediaFile(path))
            else:
                values.append(value)
        yield Stored(values, name)
