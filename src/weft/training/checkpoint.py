"""Checkpoints: a folder a step, complete or not there, with the sums of its files. No pickle is written or read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft import files
from weft.errors import ModelError, ResourceError
from weft.log import METRICS
from weft.training.train_state import TrainState

MAX_CHECKPOINTS = 2  # the newest, and one more in case that is damaged


def owner(root: Path) -> str:
    """The sum of resolved.toml: weights of the same shapes may be those of another run. Empty where there is none."""
    resolved = root / "resolved.toml"
    return files.sha256(resolved) if resolved.exists() else ""


def checkpoints_dir(root: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return root / "checkpoints"


def read_log(root: Path) -> bytes:
    """The log of a run; empty where there is none."""
    try:
        return (root / METRICS).read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ResourceError(root / METRICS, f"can't be read: {error.strerror}") from None


def read_metrics(run_dir: Path, train_state: TrainState) -> bytes:
    """What a run had logged when the checkpoint was written."""
    found = read_log(run_dir)
    if len(found) != train_state.metrics:
        raise ModelError(
            run_dir / METRICS, f"has {len(found)} bytes, but the cursor knows {train_state.metrics}", "it is damaged"
        )
    return found


def previous(root: Path) -> list[Path]:
    """The checkpoints that nobody needs any more."""
    return [checkpoints_dir(root) / name for name in names(root)[:-MAX_CHECKPOINTS]]


def drop_previous(root: Path) -> None:
    files.refuse_link(checkpoints_dir(root))
    for run_dir in previous(root):
        files.remove(run_dir)


def drop_after(root: Path, start: Path | None) -> None:
    """Drop the checkpoints that are newer than the one that a run goes on from, all of them where there is none: they are
    damaged, and the next ones must not be taken for older than these."""
    files.refuse_link(checkpoints_dir(root))
    for name in names(root):
        if start is None or int(name) > int(start.name):
            files.remove(checkpoints_dir(root) / name)


def known(run_dir: Path) -> dict[str, Any]:
    """What a checkpoint knows of the files that it goes with: by name the SHA-256 of those that give its numbers their meaning
    (`beside`), and of what each split was made from (`data`)."""
    found = files.read_json(run_dir / files.MANIFEST)
    return {part: values for part in ("beside", "data") if isinstance(values := found.get(part), dict)}


def names(root: Path) -> list[str]:
    """The checkpoints of a run, oldest first."""
    run_dir = checkpoints_dir(root)
    return sorted((p.name for p in run_dir.iterdir() if p.name.isdigit()), key=int) if run_dir.is_dir() else []


def read_train_state(run_dir: Path) -> TrainState:
    path = run_dir / "train_state.json"
    return TrainState.from_json(files.read_json(path), str(path))


def newest(root: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and what was found wrong with newer ones. Where one can't be read, and none before
    it is whole, that is raised: it may be whole, on a disk that has come loose."""
    problems: list[ModelError | ResourceError] = []
    for name in reversed(names(root)):
        run_dir = checkpoints_dir(root) / name
        try:
            files.verify(run_dir)
        except (ModelError, ResourceError) as error:
            problems.append(error)
            continue
        return run_dir, [str(problem) for problem in problems]
    if unread := [problem for problem in problems if isinstance(problem, ResourceError)]:
        raise unread[0]
    return None, [str(problem) for problem in problems]
