"""Arrays on disk: written as a stream with a checksum, read memory-mapped, and described by a JSON file with their provenance.

The description is written last, so arrays without it are incomplete.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from weft import files
from weft.errors import DataError, ModelError

CHUNK_BYTES = 1 << 20
Write = Callable[[bytes], None]


class Origin(Protocol):
    """What arrays are made from."""

    @property
    def name(self) -> str:
        """File names for messages."""

    @property
    def paths(self) -> Sequence[Path]: ...


class ChecksumWriter:
    """Writes data and computes its CRC-32, which detects accidental corruption ten times as fast as SHA-256."""

    def __init__(self, write: Write) -> None:
        self.write, self.checksum = write, 0

    def __call__(self, data: bytes) -> None:
        self.checksum = zlib.crc32(data, self.checksum)
        self.write(data)


def array_path(base: Path, name: str) -> Path:
    return base.with_name(f"{base.name}.{name}")


def stored_provenance(description: Path) -> dict[str, Any]:
    """The provenance of a finished corpus; {} if its description is corrupted."""
    try:
        provenance = files.read_json(description)["provenance"]
    except (ModelError, KeyError, TypeError):
        return {}
    return provenance if isinstance(provenance, dict) else {}


def provenance_hash(provenance: dict[str, Any]) -> str:
    """SHA-256 of a provenance, independent of the order of its entries."""
    return hashlib.sha256(json.dumps(provenance, sort_keys=True, default=str).encode(errors="surrogatepass")).hexdigest()


def _describe_change(old: dict[str, Any], new: dict[str, Any], source: Origin) -> str:
    """Describe the first difference between two provenances."""
    for key in new:
        if key == "media" and old.get(key) != new[key]:
            return "the content of a file has changed"
        if key != "files" and old.get(key) != new[key]:
            return f"{key} was {old.get(key)!r}, now {new[key]!r}"
    old_files, new_files = old.get("files", []), new["files"]
    for path, before, after in zip(source.paths, old_files, new_files, strict=False):
        if before != after:
            return f"{path} has changed"
    return f"there were {len(old_files)} files, now {len(new_files)}"


def has_provenance(description: Path, provenance: dict[str, Any], source: Origin, *, must_match: str | None) -> bool:
    """Whether the description of arrays has this provenance. A resumed run passes the provenance hash of its arrays as
    `must_match`: another source is then an error."""
    stored = stored_provenance(description)
    if must_match is not None and must_match != provenance_hash(provenance):
        if provenance_hash(stored) != must_match:
            problem = f"corrupted, and {source.name} is not the text that the run was started with"
            raise ModelError(description, problem, "restore both or start a new run")
        problem = f"not the text that the run was started with ({_describe_change(stored, provenance, source)})"
        raise DataError(source.name, problem, "restore it or start a new run")
    return provenance_hash(stored) == provenance_hash(provenance)  # equal as JSON: a tuple was stored as a list


def checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:  # not memory-mapped: mapped pages would count as memory in use
        while chunk := file.read(CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def memory_map(base: Path, name: str, dtype: np.dtype[Any]) -> np.ndarray:
    path, fix = array_path(base, name), f"delete {array_path(base, 'json')} to have it written again"
    files.refuse_device(path)
    try:
        # a plain array, because slicing a memmap is slow
        return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
    except FileNotFoundError:
        raise ModelError(path, "file not found", fix) from None
    except (OSError, ValueError) as error:
        raise ModelError(path, f"corrupted: {error}", fix) from None
