"""Imports files of word vectors as runs, and exports runs as such files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft.errors import ModelError, UsageError
from weft.interop.export_record import ExportOptions
from weft.interop.import_run import ImportedRun, ImportPlan, make_run
from weft.runs.config import RunConfig
from weft.runs.open_vectors import vectors_of
from weft.runs.run import AnyRun
from weft.text.pipelines import SPECIALS
from weft.text.tokenizers import word_tokenizer
from weft.vectors.formats import read_vectors, write_vectors

RESERVED = (*SPECIALS, "\n")


def import_vectors(source: Path, output_dir: Path) -> ImportedRun:
    """Import a file of word vectors as a run of task 'word-vectors'. Of equal words, the first counts."""
    if source.is_dir():
        raise ModelError(source, "is a directory; word vectors are a file")
    vectors = read_vectors(source)
    rows = [row for word, row in sorted(vectors.index.items(), key=lambda item: item[1]) if word and word not in RESERVED]
    if len(rows) < 2:
        raise ModelError(source, "has fewer than two words")
    words = [vectors.words[row] for row in rows]
    array = np.ascontiguousarray(vectors.rows.take(np.array(rows)))
    left_out = len(vectors.words) - len(rows)
    notes = [f"left out {left_out:,} words: repeated, or names of special tokens"] if left_out else []
    table = {"arch": "skip-gram", "vector_size": vectors.size, "add_contexts": False}
    plan = ImportPlan(
        {"task": "word-vectors", "data": {"train": False}, "model": table}, lambda config: {"vectors": array}, notes
    )
    return make_run(plan, word_tokenizer("whitespace", words, lowercase=False), output_dir, source=source)


def problems(config: RunConfig) -> list[str]:
    """Why a model has no word vectors."""
    if config.spec.word_vectors is not None:
        return []
    return [f"a run of task {config.task!r} has no word vectors; use a run of task 'word-vectors'"]


def export(run: AnyRun, path: Path, options: ExportOptions) -> list[str]:
    """Write the word vectors of a run; the suffix of the file selects the format. Returns notes for the user."""
    if path.is_dir():
        raise UsageError("export", f"{path} is a directory", f"name a file, such as {path / 'vectors.txt'}")
    vectors = vectors_of(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    notes = write_vectors(vectors, path)
    if vectors.subwords is not None:
        notes.append("the vectors of character n-grams are left out: unseen words have no vector in this file")
    return notes
