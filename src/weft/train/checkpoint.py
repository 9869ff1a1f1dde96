"""Checkpoints: a folder a step, complete or not there, with the sums of its files. No pickle is written or read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft import files
from weft.errors import ModelError, ResourceError
from weft.log import METRICS
from weft.train.cursor import Cursor

KEPT = 2  # the newest, and one more in case that is damaged


def owner(root: Path) -> str:
    """The sum of resolved.toml: weights of the same shapes may be those of another run. Empty where there is none."""
    resolved = root / "resolved.toml"
    return files.sha256(resolved) if resolved.exists() else ""


def place(root: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return root / "checkpoints"


def read_log(root: Path) -> bytes:
    """The log of a run; empty where there is none."""
    try:
        return (root / METRICS).read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ResourceError(f"{root / METRICS}: can't be read: {error.strerror}") from None


def read_metrics(folder: Path, cursor: Cursor) -> bytes:
    """What a run had logged when the checkpoint was written."""
    found = read_log(folder)
    if len(found) != cursor.metrics:
        raise ModelError(f"{folder / METRICS}: has {len(found)} bytes, but the cursor knows {cursor.metrics}; it is damaged")
    return found


def old(root: Path) -> list[Path]:
    """The checkpoints that nobody needs any more."""
    return [place(root) / name for name in names(root)[:-KEPT]]


def drop_old(root: Path) -> None:
    files.refuse_link(place(root))
    for folder in old(root):
        files.remove(folder)


def drop_after(root: Path, start: Path | None) -> None:
    """Drop the checkpoints that are newer than the one that a run goes on from, all of them where there is none: they are
    damaged, and the next ones must not be taken for older than these."""
    files.refuse_link(place(root))
    for name in names(root):
        if start is None or int(name) > int(start.name):
            files.remove(place(root) / name)


def known(folder: Path) -> dict[str, Any]:
    """What a checkpoint knows of the files that it goes with: by name the SHA-256 of those that give its numbers their meaning
    (`beside`), and of what each split was made from (`data`)."""
    found = files.read_json(folder / files.MANIFEST)
    return {part: values for part in ("beside", "data") if isinstance(values := found.get(part), dict)}


def names(root: Path) -> list[str]:
    """The checkpoints of a run, oldest first."""
    folder = place(root)
    return sorted((p.name for p in folder.iterdir() if p.name.isdigit()), key=int) if folder.is_dir() else []


def read_cursor(folder: Path) -> Cursor:
    path = folder / "cursor.json"
    return Cursor.from_json(files.read_json(path), str(path))


def newest(root: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and what was found wrong with newer ones. Where one can't be read, and none before
    it is whole, that is raised: it may be whole, on a disk that has come loose."""
    faults: list[ModelError | ResourceError] = []
    for name in reversed(names(root)):
        folder = place(root) / name
        try:
            files.verify(folder)
        except (ModelError, ResourceError) as error:
            faults.append(error)
            continue
        return folder, [str(fault) for fault in faults]
    if unread := [fault for fault in faults if isinstance(fault, ResourceError)]:
        raise unread[0]
    return None, [str(fault) for fault in faults]
