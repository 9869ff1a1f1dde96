"""The labels of a run: the classes of texts, or the tags of words, and their numbers. One `labels.json` each."""

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
MAX_BYTES = 64 << 20  # bytes of a file: a million labels of sixty letters


@dataclass(frozen=True)
class LabelVocabulary:
    """Names to numbers and back: `names[number]`. `hash` is the SHA-256 of the file: equal hashes, equal labels."""

    names: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.names)

    @cached_property
    def data(self) -> bytes:
        """What the file holds."""
        value = {"version": VERSION, "labels": self.names}
        return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def index(self, name: str) -> int | None:
        """The label's number; None for one that is not among them."""
        return self._numbers.get(name)

    @classmethod
    def count(cls, names: Iterable[str]) -> Self:
        """The labels that occur, the most frequent first; equally frequent ones by name, so their order in the data is no
        matter."""
        counts = Counter(names)
        if not counts:
            raise DataError("labels", "the training data has none", "give data with labels")
        return cls(tuple(sorted(counts, key=lambda name: (-counts[name], name))))

    def save(self, path: Path) -> None:
        files.write_bytes(path, self.data)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The labels of a file that `save` wrote; a damaged one is refused by name."""
        value = files.read_json(path, max_bytes=MAX_BYTES)
        if not isinstance(value, dict) or not isinstance(value.get("labels"), list):
            raise ModelError(path, "is damaged: it lists no labels")
        if value.get("version") != VERSION:
            raise ModelError(path, f"is of version {value.get('version')!r}", f"this weft reads version {VERSION}")
        names: list[str] = value["labels"]
        wrong = next((number for number, name in enumerate(names) if not _is_name(name)), None)
        if wrong is not None or not names:
            raise ModelError(path, f"is damaged: label {wrong or 0} is missing or no text")
        if len(set(names)) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise ModelError(path, f"is damaged: it lists {twice!r} twice")
        return cls(tuple(names))


def _is_name(value: Any) -> bool:
    """Whether it is a text that a file can hold: JSON can spell half of a surrogate pair."""
    return isinstance(value, str) and bool(value) and not any("\ud800" <= char <= "\udfff" for char in value)
