"""Records which files training read for each split, with sizes and checksums, so that a run recognizes a changed file.

Every corpus of a run has the record in its description (data/test.json, data/test.source.json, ...). Runs that store no tokens
write a separate file, data/test.files.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft import files
from weft.data.source import fingerprints

_NAMES = ("file", "label")  # names of a file; everything else follows from its content
_SIZE = "bytes"


def read_record(directory: Path, split: str) -> list[Mapping[str, Any]]:
    """Fingerprints of the files that training read for a split; an empty list if `directory` has no record."""
    record = list[Mapping[str, Any]]()
    for path in sorted({directory / f"{split}.json", *directory.glob(f"{split}.*.json")}):
        if not path.is_file():
            continue
        description = files.read_json(path)
        origin = description.get("origin") if isinstance(description, dict) else None
        entries = origin.get("files") if isinstance(origin, dict) else None
        record += [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return record


def write_record(directory: Path, split: str, record: Sequence[Mapping[str, Any]]) -> None:
    """Write fingerprints for `read_record` of a run that stores no corpus."""
    directory.mkdir(exist_ok=True)
    files.write_json(directory / f"{split}.files.json", {"origin": {"files": list(record)}})


def _same_content(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are of the same content. Equal sizes alone are not enough."""
    common = (first.keys() & second.keys()) - {*_NAMES}
    return bool(common - {_SIZE}) and all(first[name] == second[name] for name in common)


def changed_file(paths: Sequence[Path], record: Sequence[Mapping[str, Any]]) -> Path | None:
    """The first existing file that is not in the record."""
    for path in paths:
        if not path.exists():
            continue
        fingerprint = fingerprints([path])[0]
        if not any(_same_content(fingerprint, entry) for entry in record):
            return path
    return None
