"""Fingerprints (sizes and checksums) of the files that training read for each split, so that a run recognizes a changed file.

They are in the description of each corpus (data/test.json, data/test.source.json, ...). Runs that store no corpus write
data/test.files.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft import files
from weft.data.source import fingerprints

_NAMES = {"file", "label"}  # entries that do not depend on the content of a file
_SIZE = "bytes"


def read_fingerprints(directory: Path, split: str) -> list[Mapping[str, Any]]:
    """Fingerprints of the files that training read for a split; an empty list if none are stored in `directory`."""
    stored = list[Mapping[str, Any]]()
    for path in sorted({directory / f"{split}.json", *directory.glob(f"{split}.*.json")}):
        if not path.is_file():
            continue
        description = files.read_json(path)
        provenance = description.get("provenance") if isinstance(description, dict) else None
        entries = provenance.get("files") if isinstance(provenance, dict) else None
        stored += [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return stored


def write_fingerprints(directory: Path, split: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Store fingerprints for a run that stores no corpus; `read_fingerprints` reads them."""
    directory.mkdir(exist_ok=True)
    files.write_json(directory / f"{split}.files.json", {"provenance": {"files": list(entries)}})


def _same_content(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two fingerprints belong to the same content. Equal sizes alone are not enough."""
    common = (first.keys() & second.keys()) - _NAMES
    return bool(common - {_SIZE}) and all(first[name] == second[name] for name in common)


def changed_file(paths: Sequence[Path], stored: Sequence[Mapping[str, Any]]) -> Path | None:
    """The first existing file whose content matches none of the stored fingerprints; None if all match."""
    for path in paths:
        if not path.exists():
            continue
        fingerprint = fingerprints([path])[0]
        if not any(_same_content(fingerprint, entry) for entry in stored):
            return path
    return None
