"""Word vectors of a run or of a file."""

from __future__ import annotations

from pathlib import Path

from weft.errors import UsageError
from weft.runs.load import load
from weft.runs.run import AnyRun
from weft.vectors.formats import read_vectors
from weft.vectors.word_vectors import WordVectors


def vectors_of(run: AnyRun) -> WordVectors:
    """The word vectors of a run."""
    if run.spec.word_vectors is None:
        raise UsageError(run.path, f"a run of task {run.task!r} has no word vectors", "use a run of task 'word-vectors'")
    return run.spec.word_vectors(run)


def open_vectors(path: Path) -> WordVectors:
    """The word vectors of a run directory, or of a file that `read_vectors` reads."""
    return vectors_of(load(path, device="cpu")) if path.is_dir() else read_vectors(path)
