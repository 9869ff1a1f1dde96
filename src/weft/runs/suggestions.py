"""Suggestions for a path that is not a run directory: the run that the user probably means."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

RUNS_DIR = "runs"  # the default parent directory of runs
MAX_LISTED = 5  # runs in a message


def _run_names(directory: Path) -> list[str]:
    """The names of the run directories in a directory."""
    try:
        return sorted(name for name in os.listdir(directory) if os.path.isfile(directory / name / "resolved.toml"))
    except OSError:
        return []


def similar_run(path: Path) -> str:
    """`did you mean runs/labels?` if a run with a similar name is in the same directory or in runs/."""
    for directory in (path.parent, path.parent / RUNS_DIR):
        if matches := get_close_matches(path.name, _run_names(directory), n=1, cutoff=0.6):
            return f"did you mean {directory / matches[0]}?"
    return ""


def runs_inside(path: Path) -> str:
    """`choose one of the runs in it: labels, lstm` if there are any."""
    names = _run_names(path)
    if not names:
        return ""
    return f"choose one of the runs in it: {', '.join(names[:MAX_LISTED])}{', ...' if len(names) > MAX_LISTED else ''}"


def run_of_file(path: Path) -> str:
    """`use its run, runs/labels` if the path is a run file that has been trained."""
    run = path.parent / RUNS_DIR / path.stem
    return f"use its run, {run}" if path.suffix == ".toml" and os.path.isfile(run / "resolved.toml") else ""
