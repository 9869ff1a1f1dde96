"""Checkpoints: one directory per step, written atomically, with checksums of its files. Pickle is neither written nor read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft import files
from weft.errors import ModelError, ResourceError
from weft.log import METRICS
from weft.training.train_state import TrainState

MAX_CHECKPOINTS = 2  # the newest, and one more in case it is corrupted


def run_checksum(run_dir: Path) -> str:
    """The checksum of resolved.toml, which identifies a run: weights of another run may have the same shapes. Empty if the
    file is missing."""
    resolved = run_dir / "resolved.toml"
    return files.sha256(resolved) if resolved.exists() else ""


def checkpoints_dir(run_dir: Path) -> Path:
    """The directory of the checkpoints of a run."""
    return run_dir / "checkpoints"


def read_log(directory: Path) -> bytes:
    """The metrics log of a run or checkpoint; empty if the file is missing."""
    try:
        return (directory / METRICS).read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ResourceError(directory / METRICS, f"cannot read: {error.strerror}") from None


def read_metrics(checkpoint: Path, train_state: TrainState) -> bytes:
    """The metrics log at the time of a checkpoint."""
    content = read_log(checkpoint)
    if len(content) != train_state.metrics:
        raise ModelError(
            checkpoint / METRICS, f"corrupted: {len(content)} bytes, but train_state.json expects {train_state.metrics}"
        )
    return content


def names(run_dir: Path) -> list[str]:
    """The names of the checkpoints of a run, oldest first."""
    directory = checkpoints_dir(run_dir)
    return sorted((p.name for p in directory.iterdir() if p.name.isdigit()), key=int) if directory.is_dir() else []


def expired(run_dir: Path) -> list[Path]:
    """The checkpoints that are no longer needed."""
    return [checkpoints_dir(run_dir) / name for name in names(run_dir)[:-MAX_CHECKPOINTS]]


def remove_expired(run_dir: Path) -> None:
    files.refuse_link(checkpoints_dir(run_dir))
    for checkpoint in expired(run_dir):
        files.remove(checkpoint)


def remove_after(run_dir: Path, start: Path | None) -> None:
    """Remove the checkpoints after the one that a run resumes from (None: all). They are corrupted, and would be mistaken for
    newer ones than those that the run will write."""
    files.refuse_link(checkpoints_dir(run_dir))
    for name in names(run_dir):
        if start is None or int(name) > int(start.name):
            files.remove(checkpoints_dir(run_dir) / name)


def checksums(checkpoint: Path) -> dict[str, Any]:
    """The SHA-256 checksums, stored in a checkpoint, of files outside it: of tokenizers and labels (`vocabulary`), and of each
    split (`data`)."""
    manifest = files.read_json(checkpoint / files.MANIFEST)
    return {part: values for part in ("vocabulary", "data") if isinstance(values := manifest.get(part), dict)}


def read_train_state(checkpoint: Path) -> TrainState:
    path = checkpoint / "train_state.json"
    return TrainState.from_json(files.read_json(path), str(path))


def newest(run_dir: Path) -> tuple[Path | None, list[str]]:
    """The newest intact checkpoint, and the problems of newer ones. If a checkpoint cannot be read and no other is intact,
    raises that error: the checkpoint may be intact on a disk that was disconnected."""
    problems: list[ModelError | ResourceError] = []
    for name in reversed(names(run_dir)):
        checkpoint = checkpoints_dir(run_dir) / name
        try:
            files.verify(checkpoint)
        except (ModelError, ResourceError) as error:
            problems.append(error)
            continue
        return checkpoint, [str(problem) for problem in problems]
    if unreadable := [problem for problem in problems if isinstance(problem, ResourceError)]:
        raise unreadable[0]
    return None, [str(problem) for problem in problems]
