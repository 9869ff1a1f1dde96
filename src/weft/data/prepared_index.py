"""The index of a directory of prepared data: what the data was made from, and the shards of each corpus.

plan.json      task, tokenizer, source files and provenance of each corpus; written before the first shard
index.json     the same, and sums, sizes and checksums of all shards; written last, so data without it is incomplete
train/ ...     the shards of each corpus, see weft.data.shards
tokenizer.json and other files of the vocabulary, as in a run directory
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from weft import files
from weft.data.array_files import provenance_hash
from weft.data.profile import DataProfile, TextProfile
from weft.data.source import FileState, file_state, fingerprints
from weft.errors import DataError, ModelError

VERSION = 1
PLAN, INDEX = "plan.json", "index.json"
MAX_INDEX_BYTES = 1 << 30


def write_checked(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with a checksum of its content."""
    content = files.as_json(content)
    files.write_json(path, {**content, "sha256": provenance_hash(dict(content))})


def read_checked(path: Path) -> dict[str, Any]:
    """The content of a file of `write_checked`; a changed one is an error."""
    content = files.read_json(path, max_bytes=MAX_INDEX_BYTES)
    fix = "run weft prepare again"
    digest = content.pop("sha256", None) if isinstance(content, dict) else None
    if digest is None or provenance_hash(content) != digest:
        raise ModelError(path, "corrupted: checksum mismatch", fix)
    if content.get("version") != VERSION:
        raise ModelError(path, "written by another version of weft", fix)
    return dict(content)


def read_index(directory: Path) -> dict[str, Any]:
    """The index of prepared data; a directory without one is an error."""
    if not directory.is_dir():
        raise ModelError(directory, "directory not found", "run weft prepare first")
    if not (directory / INDEX).exists():
        problem = "is not complete" if (directory / PLAN).exists() else f"has no prepared data ({INDEX} is missing)"
        raise ModelError(directory, problem, f"run weft prepare with --output-dir {directory}")
    return read_checked(directory / INDEX)


def source_states(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Name, size, modification time and SHA-256 of source files."""
    distinct = sorted(set(paths))
    pairs = zip(map(file_state, distinct), fingerprints(distinct), strict=True)
    return [
        {"file": state.name, "bytes": state.size, "mtime_ns": state.mtime_ns, "sha256": entry["sha256"]}
        for state, entry in pairs
    ]


def digests(content: Mapping[str, Any]) -> dict[FileState, str]:
    """The SHA-256 of each source file, by its state when it was read. Two files of the same state have none."""
    found = dict[FileState, set[str]]()
    for entry in content["sources"]:
        found.setdefault(FileState(entry["file"], entry["bytes"], entry["mtime_ns"]), set()).add(entry["sha256"])
    return {state: next(iter(values)) for state, values in found.items() if len(values) == 1}


def describe_difference(stored: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """The first difference of two provenances; '' if they are equal."""
    for key in current:
        if key != "files" and stored.get(key) != current[key]:
            return f"{key} was {stored.get(key)!r}, now {current[key]!r}"
    old, new = stored.get("files", []), current.get("files", [])
    if len(old) != len(new):
        return f"there were {len(old)} files, now {len(new)}"
    for before, after in zip(old, new, strict=True):
        if before != after:
            return (
                f"{after['file']} has changed" if before["file"] == after["file"] else f"{before['file']} was {after['file']}"
            )
    return "" if stored == current else "other options"


def refuse_difference(
    directory: Path, name: str, stored: Mapping[str, Any] | None, current: Mapping[str, Any], source: str
) -> None:
    """Refuse prepared data that was made from another text or with other options."""
    if stored is None:
        raise DataError(source, f"{directory} has no corpus {name}", "prepare the data of this run file again")
    if difference := describe_difference(stored, files.as_json(current)):
        problem = f"not the data that {directory} was prepared from ({difference})"
        raise DataError(source, problem, "restore it, or prepare the data again into another directory")


# ---- profile of the training data, for recommended settings


def profile_json(profile: DataProfile) -> dict[str, Any]:
    """A profile without its summary, for JSON."""
    texts = [{**asdict(text), "alphabet": "".join(sorted(text.alphabet))} for text in profile.texts]
    return {"num_examples": profile.num_examples, "texts": texts}


def profile_from_json(content: Mapping[str, Any], *, has_valid: bool, is_gpu: bool) -> DataProfile:
    texts = tuple(TextProfile(**{**text, "alphabet": frozenset(text["alphabet"])}) for text in content["texts"])
    return DataProfile(content["num_examples"], texts, None, has_valid, is_gpu)
