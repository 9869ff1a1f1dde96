"""Preparation of the data of a run: vocabulary and token files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import files
from weft.data.config import training
from weft.data.corpus import Corpus, write_corpus
from weft.data.frames import FrameColumn, Frames, open_written, write_frames
from weft.tasks.data_spec import Column, Prepared, corpus_name
from weft.tasks.prepared_data import open_prepared
from weft.tasks.spec import Task
from weft.training import checkpoint

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import JobCallback
    from weft.runs.run_dir import RunDir


def _prepare_column(
    name: str,
    dataset: Any,
    column: Column | FrameColumn,
    directory: RunDir,
    callback: JobCallback,
    expected: Mapping[str, str] | None,
) -> Corpus | Frames:
    """Write the token file or the frames of a column, or open the existing ones if the data has not changed."""

    def progress(done: int, total: int) -> None:
        callback.on_progress(f"{'reading' if isinstance(column, FrameColumn) else 'tokenizing'} {name}", done, total)

    names = checkpoint.names(directory.path)
    checksums = checkpoint.checksums(checkpoint.checkpoints_dir(directory.path) / names[-1]).get("data", {}) if names else {}
    files.make_subdirectory(directory.data)
    must_match = str(checksums.get(name, "")) if names else None
    if expected is not None:
        must_match = expected[name]
    if isinstance(column, FrameColumn) and expected is not None:
        return open_written(dataset, column.reader, directory.data, name, expected[name])
    if isinstance(column, FrameColumn):
        return write_frames(
            dataset, column.reader, directory.data, name, progress=progress, must_match=must_match, on_note=callback.on_note
        )
    source = column.source(dataset)
    return write_corpus(
        source, column.tokenizer, directory.data, name, progress=progress, must_match=must_match, on_note=callback.on_note
    )


def _vocabulary(task: Task[Any, Any], config: RunConfig, directory: RunDir, callback: JobCallback) -> Any:
    """The saved vocabulary if the run has a checkpoint; otherwise a new one, since the data may have changed."""
    builder = task.data.vocabulary
    if checkpoint.names(directory.path):
        return builder.load(directory.path)
    train = training(config.datasets)
    callback.on_data(train.summary.describe())
    total = train.summary.characters

    def with_progress(texts: Iterator[str]) -> Iterator[str]:
        done = 0
        for text in texts:
            callback.on_progress("reading training data", done, total)
            done += len(text)
            yield text
        callback.on_progress("training tokenizer", 0, 1)

    vocabulary = builder.build(config, train, with_progress, callback.on_note)
    builder.save(vocabulary, directory.path)
    return vocabulary


def tokenize(task: Task[Any, Any], config: RunConfig, vocabulary: Any, dataset: Any, directory: Path) -> Sequence[Any]:
    """Tokenize the columns of a data set, and read its columns of files, into files in `directory`. Long texts are refused or
    truncated."""
    columns = [
        write_frames(dataset, column.reader, directory, f"data.{column.name}")
        if isinstance(column, FrameColumn)
        else write_corpus(column.source(dataset), column.tokenizer, directory, corpus_name("data", column.name))
        for column in task.data.columns(config, vocabulary)
    ]
    return task.data.limit_lengths(config, dataset, columns).columns


def prepare(
    task: Task[Any, Any],
    config: RunConfig,
    directory: RunDir,
    callback: JobCallback,
    *,
    expected: Mapping[str, str] | None = None,
) -> Prepared:
    """Prepare the vocabulary of a run, and the token files and frames of all columns of all splits; or open those of
    `data.prepared`. If another process has prepared them, `expected` are their checksums by column: other data in this process
    is then an error."""
    opened: Mapping[str, Any] = {}
    if config.data.prepared is not None:
        vocabulary, opened = open_prepared(config, directory, callback, expected=expected)
    elif expected is None:
        vocabulary = _vocabulary(task, config, directory, callback)
    else:
        vocabulary = task.data.vocabulary.load(directory.path)
    columns = task.data.columns(config, vocabulary)
    prepared_columns: dict[str, Any] = {}
    for split, dataset in config.datasets.items() if columns else ():
        names = [corpus_name(split, column.name) for column in columns]
        written = [
            opened[name] if opened else _prepare_column(name, dataset, column, directory, callback, expected)
            for name, column in zip(names, columns, strict=True)
        ]
        split_columns = task.data.limit_lengths(config, dataset, written)
        prepared_columns |= zip(names, split_columns.columns, strict=True)
        if split_columns.note is not None:
            callback.on_note(f"{split}: {split_columns.note}")
    prepared = Prepared(vocabulary, prepared_columns)
    if task.data.on_prepared is not None and expected is None and not checkpoint.names(directory.path):
        task.data.on_prepared(config, prepared, directory.path, callback.on_note)
    return prepared
