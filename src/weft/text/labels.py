"""Label vocabularies: labels of texts or tags of words, and their IDs. Stored as `labels.json`."""

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
    """Labels by ID. `hash` is the SHA-256 of the file: equal hashes mean equal labels."""

    names: tuple[str, ...]  # the index is the label ID

    @property
    def size(self) -> int:
        return len(self.names)

    @cached_property
    def data(self) -> bytes:
        """Content of the file."""
        content = {"version": VERSION, "labels": self.names}
        return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: label_id for label_id, name in enumerate(self.names)}

    def index(self, name: str) -> int | None:
        """ID of a label; None if it is unknown."""
        return self._ids.get(name)

    @classmethod
    def count(cls, names: Iterable[str]) -> Self:
        """The distinct labels, most frequent first, ties by name, so that the order of the data does not matter."""
        counts = Counter(names)
        if not counts:
            raise DataError("labels", "the training data has no labels")
        return cls(tuple(sorted(counts, key=lambda name: (-counts[name], name))))

    def save(self, path: Path) -> None:
        files.write_bytes(path, self.data)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a saved vocabulary; an error if it is corrupted."""
        content = files.read_json(path, max_bytes=MAX_BYTES)
        if not isinstance(content, dict) or not isinstance(content.get("labels"), list):
            raise ModelError(path, "corrupted: the list of labels is missing")
        if content.get("version") != VERSION:
            raise ModelError(path, f"unsupported version {content.get('version')!r}; expected {VERSION}")
        names: list[str] = content["labels"]
        invalid_id = next((label_id for label_id, name in enumerate(names) if not _is_name(name)), None)
        if invalid_id is not None or not names:
            raise ModelError(path, f"corrupted: label {invalid_id or 0} is missing or not a string")
        if len(set(names)) < len(names):
            duplicate = Counter(names).most_common(1)[0][0]
            raise ModelError(path, f"corrupted: duplicate label {duplicate!r}")
        return cls(tuple(names))


def _is_name(value: Any) -> bool:
    """Whether a value is a nonempty string without lone surrogates, which JSON can encode but a text file cannot."""
    return isinstance(value, str) and bool(value) and not any("\ud800" <= char <= "\udfff" for char in value)
