"""Label vocabularies: the labels of texts or the tags of words, and their IDs. Stored as `labels.json`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from weft import files
from weft.errors import DataError, ModelError

VERSION = 1
MAX_BYTES = 64 << 20  # enough for a million labels of 60 characters


@dataclass(frozen=True)
class LabelVocabulary:
    """Labels and their IDs; `names[label_id]` is a label. `hash` is the SHA-256 of the file: equal hashes, equal labels."""

    names: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.names)

    @cached_property
    def data(self) -> bytes:
        """The content of the file."""
        value = {"version": VERSION, "labels": self.names}
        return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: label_id for label_id, name in enumerate(self.names)}

    def index(self, name: str) -> int | None:
        """The ID of a label, None if it is unknown."""
        return self._ids.get(name)

    @classmethod
    def count(cls, names: Iterable[str]) -> Self:
        """The labels that occur, most frequent first, ties by name: their order in the data does not matter."""
        counts = Counter(names)
        if not counts:
            raise DataError("labels", "the training data has no labels")
        return cls(tuple(sorted(counts, key=lambda name: (-counts[name], name))))

    def save(self, path: Path) -> None:
        files.write_bytes(path, self.data)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a file that `save` wrote; an error if it is corrupted."""
        value = files.read_json(path, max_bytes=MAX_BYTES)
        if not isinstance(value, dict) or not isinstance(value.get("labels"), list):
            raise ModelError(path, "corrupted: the list of labels is missing")
        if value.get("version") != VERSION:
            raise ModelError(path, f"unsupported version {value.get('version')!r}; expected {VERSION}")
        names: list[str] = value["labels"]
        invalid = next((label_id for label_id, name in enumerate(names) if not _is_name(name)), None)
        if invalid is not None or not names:
            raise ModelError(path, f"corrupted: label {invalid or 0} is missing or not a string")
        if len(set(names)) < len(names):
            duplicate = Counter(names).most_common(1)[0][0]
            raise ModelError(path, f"corrupted: duplicate label {duplicate!r}")
        return cls(tuple(names))


def _is_name(value: Any) -> bool:
    """Whether it is a text that a file can store: JSON can encode lone surrogates."""
    return isinstance(value, str) and bool(value) and not any("\ud800" <= char <= "\udfff" for char in value)
