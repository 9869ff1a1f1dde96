"""Which files training read for each split: size and sums, so that a run can tell them from any other file of their name.

Every corpus of a run says so in its description (data/test.json, data/test.source.json, ...). Runs that keep no tokens have
a file of their own for it, data/test.files.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft import files
from weft.data.source import fingerprints

_LOOSE = ("file", "label")  # what a file is called; all else follows from its content
_SIZE = "bytes"


def read_record(directory: Path, split: str) -> list[Mapping[str, Any]]:
    """Fingerprints of the files that training read for a split; none where `folder` does not say."""
    found = list[Mapping[str, Any]]()
    for path in sorted({directory / f"{split}.json", *directory.glob(f"{split}.*.json")}):
        if not path.is_file():
            continue
        about = files.read_json(path)
        origin = about.get("origin") if isinstance(about, dict) else None
        each = origin.get("files") if isinstance(origin, dict) else None
        found += [one for one in each if isinstance(one, dict)] if isinstance(each, list) else []
    return found


def write_record(directory: Path, split: str, found: Sequence[Mapping[str, Any]]) -> None:
    """Keep fingerprints for `recorded`, where no corpus does."""
    directory.mkdir(exist_ok=True)
    files.write_json(directory / f"{split}.files.json", {"origin": {"files": list(found)}})


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are of the same content; a size alone proves nothing."""
    common = (one.keys() & other.keys()) - {*_LOOSE}
    return bool(common - {_SIZE}) and all(one[name] == other[name] for name in common)


def changed_file(paths: Sequence[Path], record: Sequence[Mapping[str, Any]]) -> Path | None:
    """The first of the files that is there and is none of those in the record."""
    for path in paths:
        if not path.exists():
            continue
        found = fingerprints([path])[0]
        if not any(_same(found, one) for one in record):
            return path
    return None
