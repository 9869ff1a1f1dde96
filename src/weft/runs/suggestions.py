"""Which run is meant by a path that is none: the part of a message that helps whoever mistyped it."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

RUNS = "runs"  # where `weft train` puts runs, unless told otherwise
SHOWN = 5  # runs that are named


def _runs(place: Path) -> list[str]:
    """The names of the run folders in a folder."""
    try:
        return sorted(name for name in os.listdir(place) if os.path.isfile(place / name / "resolved.toml"))
    except OSError:
        return []


def like(path: Path) -> str:
    """'; did you mean runs/labels?', if there is a run of a like name beside it, or among runs."""
    for place in (path.parent, path.parent / RUNS):
        if found := get_close_matches(path.name, _runs(place), n=1, cutoff=0.6):
            return f"; did you mean {place / found[0]}?"
    return ""


def inside(path: Path) -> str:
    """'; runs in it: labels, lstm', if there are some."""
    if not (found := _runs(path)):
        return ""
    return f"; runs in it: {', '.join(found[:SHOWN])}{', ...' if len(found) > SHOWN else ''}"


def made_of(path: Path) -> str:
    """'; its run is in runs/labels', of a run file of which there is one."""
    run = path.parent / RUNS / path.stem
    return f"; its run is in {run}" if path.suffix == ".toml" and os.path.isfile(run / "resolved.toml") else ""
