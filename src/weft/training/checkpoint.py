"""Checkpoints: one directory per step, written atomically, with checksums of its files. Pickle is neither written nor read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft import files
from weft.errors import ModelError, ResourceError
from weft.log import METRICS
from weft.training.train_state import TrainState

MAX_CHECKPOINTS = 2  # the newest, and one more in case it is corrupted


def owner(root: Path) -> str:
    """The checksum of resolved.toml, which identifies a run: weights of another run may have the same shapes. Empty if the
    file is missing."""
    resolved = root / "resolved.toml"
    return files.sha256(resolved) if resolved.exists() else ""


def checkpoints_dir(root: Path) -> Path:
    """The directory of the checkpoints of a run."""
    return root / "checkpoints"


def read_log(root: Path) -> bytes:
    """The metrics log of a run or checkpoint; empty if there is none."""
    try:
        return (root / METRICS).read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ResourceError(root / METRICS, f"cannot read: {error.strerror}") from None


def read_metrics(run_dir: Path, train_state: TrainState) -> bytes:
    """The metrics log at the time of the checkpoint."""
    content = read_log(run_dir)
    if len(content) != train_state.metrics:
        raise ModelError(
            run_dir / METRICS, f"corrupted: {len(content)} bytes, but train_state.json expects {train_state.metrics}"
        )
    return content


def previous(root: Path) -> list[Path]:
    """The checkpoints that are no longer needed."""
    return [checkpoints_dir(root) / name for name in names(root)[:-MAX_CHECKPOINTS]]


def drop_previous(root: Path) -> None:
    files.refuse_link(checkpoints_dir(root))
    for run_dir in previous(root):
        files.remove(run_dir)


def drop_after(root: Path, start: Path | None) -> None:
    """Remove the checkpoints after the one that a run resumes from (None: all). They are corrupted, and new ones must not seem
    older than them."""
    files.refuse_link(checkpoints_dir(root))
    for name in names(root):
        if start is None or int(name) > int(start.name):
            files.remove(checkpoints_dir(root) / name)


def checksums(run_dir: Path) -> dict[str, Any]:
    """The SHA-256 values that a checkpoint has of files outside it: of tokenizers and labels (`vocabulary`), and of each
    split (`data`)."""
    manifest = files.read_json(run_dir / files.MANIFEST)
    return {part: values for part in ("vocabulary", "data") if isinstance(values := manifest.get(part), dict)}


def names(root: Path) -> list[str]:
    """The checkpoints of a run, oldest first."""
    run_dir = checkpoints_dir(root)
    return sorted((p.name for p in run_dir.iterdir() if p.name.isdigit()), key=int) if run_dir.is_dir() else []


def read_train_state(run_dir: Path) -> TrainState:
    path = run_dir / "train_state.json"
    return TrainState.from_json(files.read_json(path), str(path))


def newest(root: Path) -> tuple[Path | None, list[str]]:
    """The newest intact checkpoint, and the problems of newer ones. If a checkpoint cannot be read and no other is intact,
    raises that error: the checkpoint may be intact on a disk that was disconnected."""
    problems: list[ModelError | ResourceError] = []
    for name in reversed(names(root)):
        run_dir = checkpoints_dir(root) / name
        try:
            files.verify(run_dir)
        except (ModelError, ResourceError) as error:
            problems.append(error)
            continue
        return run_dir, [str(problem) for problem in problems]
    if unreadable := [problem for problem in problems if isinstance(problem, ResourceError)]:
        raise unreadable[0]
    return None, [str(problem) for problem in problems]
