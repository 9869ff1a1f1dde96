"""Shared parts of tasks that read files and write texts: the [data] table, the vocabulary, checks of the files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from weft.config import invalid
from weft.data.columns import ColumnSpec, Name
from weft.data.config import TableFilesConfig, datasets, training
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.findings import MAX_ROWS, CheckOptions, CheckPlan, Finding, count_of
from weft.data.frames import FrameColumn, FrameReader, Frames
from weft.data.input_files import open_columns
from weft.data.input_records import ColumnSelection, InputFile, InputRecord, OpenedRecords
from weft.data.json_objects import json_values
from weft.data.manifest import (
    GROUP_NAMES,
    MAX_PATH,
    SOURCE_NAMES,
    TARGET_NAMES,
    TIME_KEYS,
    ManifestColumns,
    ManifestFormat,
    MediaRecord,
    known_name,
    media_file,
)
from weft.data.memory import MemoryFormat
from weft.data.table_rows import OBJECT_FORMATS, TableOptions, file_format, open_rows, open_workbook
from weft.data.workbooks import read_parquet
from weft.errors import DataError
from weft.media.files import MediaFile
from weft.tasks.data_spec import Column, SplitColumns
from weft.tasks.spec import InvalidInput
from weft.text.reading import FileSummary
from weft.text.tokenizers import Tokenizer, train_tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

TARGET = "target"
MEDIA_SUFFIXES = (
    ".aif", ".aiff", ".au", ".flac", ".m4a", ".mp3", ".oga", ".ogg", ".opus", ".wav", ".avi", ".gif", ".mkv", ".mov", ".mp4",
    ".webm", ".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp",
)  # fmt: skip


class MediaDataConfig(TableFilesConfig):
    """Files and their texts, listed in a manifest. A task adds options of the files, and `reader()`, which reads them as frames
    with these options."""

    source_column: Name | None = None
    """Column or JSON key of the path, or a 1-based index. Default: recognized, or the first column."""
    # of several columns, training reads the first; metrics use all as references
    target_column: Name | list[Name] | None = None
    """Column or JSON key of the text, or a 1-based index. Default: recognized, or the second column."""
    root: str | None = None
    """Directory or zip archive that the paths are relative to. Default: the directory of the manifest."""
    max_length: int = Field(1000, ge=2, le=2**31 - 1)
    """Maximum length of a text in tokens, including special tokens."""
    on_error: Literal["fail", "skip"] = "fail"
    """What to do about files that cannot be read: refuse to train, or skip and count them."""

    @model_validator(mode="after")
    def check_columns(self) -> Self:
        for option in ("source_column", "target_column"):
            value = getattr(self, option)
            if value == [] or value == "" or (isinstance(value, int) and value < 1):
                raise invalid(option, f"expected a column name or a 1-based index, got {value!r}")
        return self

    def file_of(self, value: object, where: str) -> str | bytes:
        """The path of a record in memory, or the content of its file. A task adds values that it reads in memory."""
        if not isinstance(value, str | Path):
            raise DataError(where, f"expected the path of a file, got {type(value).__name__}")
        # records in memory have no manifest whose directory paths could be relative to
        return str(value if self.root is not None else Path(value).absolute())

    def manifest_columns(self) -> ManifestColumns:
        targets = self.target_column
        names = None if targets is None else tuple(targets) if isinstance(targets, list) else (targets,)
        return ManifestColumns(self.source_column, names)

    def sources(self, base: Path) -> dict[str, Dataset[MediaRecord]]:
        """The data sets of train, valid and test, as far as they are set. Paths are relative to `base`."""
        root = None if self.root is None else base / self.root
        tables = TableOptions(self.encoding, self.delimiter, self.sheet)
        return datasets(base, ManifestFormat(self.manifest_columns(), root, tables, rows=self.rows()), self)

    def rows(self) -> str:
        """Noun for the files."""
        return "files"


def in_memory(config: MediaDataConfig) -> MemoryFormat:
    """Records are pairs of a file and its text, perhaps with the speaker."""
    names = config.manifest_columns()
    group = names.group or GROUP_NAMES[0]
    keys = (names.source or SOURCE_NAMES[0], *(names.targets or TARGET_NAMES[:1]), group)
    return MemoryFormat(keys, optional=(str(group),), to_file=config.file_of)


def references(dataset: Dataset[MediaRecord]) -> dict[MediaFile, tuple[str, ...]]:
    """The references of each file: all texts of all its records."""
    texts: dict[MediaFile, list[str]] = {}
    for record in dataset.records():
        texts.setdefault(record.media, []).extend(record.texts)
    return {file: tuple(dict.fromkeys(values)) for file, values in texts.items()}


def target_texts(dataset: Dataset[MediaRecord]) -> Iterator[str]:
    return dataset.texts(TARGET)


def columns(config: RunConfig, vocabulary: Tokenizer) -> list[Column | FrameColumn]:
    return [FrameColumn("source", config.data.reader()), Column(TARGET, vocabulary)]


def limit_lengths(config: RunConfig, dataset: Dataset[MediaRecord], columns: Sequence[Frames | Corpus]) -> SplitColumns:
    """Refuse texts that are longer than `max_length`."""
    lengths = np.diff(columns[1].starts) if columns[1].starts is not None else np.zeros(0)
    max_length = config.data.max_length
    for record in np.flatnonzero(lengths > max_length)[:1].tolist():
        problem = f"text has {lengths[record]:,} tokens, more than data.max_length ({max_length})"
        raise DataError(dataset.location(record), problem, "increase it or split the file")
    return SplitColumns(columns)


def pairs(dataset: Dataset[MediaRecord]) -> Iterator[tuple[str, str | None]]:
    return ((str(record.media), record.texts[0]) for record in dataset.records())


# ---- inputs


def _names(file: InputFile, options: TableOptions) -> Sequence[str]:
    """The cells of the first row of a manifest, or the keys of its first object."""
    summary, kind = FileSummary([file.path], options.encoding), file_format(file.path)
    if kind == "parquet":
        next(read_parquet(file.path, (), None, summary), None)
        return summary.columns
    if kind in OBJECT_FORMATS:
        first = next(json_values(file.path, file.raw_lines(), summary), None)
        return tuple(first.value) if first is not None and isinstance(first.value, dict) else ()
    if kind == "xlsx":
        return open_workbook(file.path, options, summary).first
    return open_rows(file.path, file.raw_lines(), options, summary).first


def find_file(path: str, base: Path, root: str | None) -> MediaFile:
    """The file of a path relative to `base` or, if only that exists, to the root of the training data."""
    files = [media_file(path, base), *([] if root is None else [media_file(path, Path(root))])]
    for file in files:
        with suppress(DataError):
            file.size()
            return file
    return files[0]


def _with_file(record: InputRecord, base: Path, root: str | None) -> InputRecord:
    """A record with the path of its file, and its target if it was read; otherwise the start and duration of a part of a
    recording, in seconds."""
    if record.problem is not None or not (path := record.texts[0].strip()):
        return record
    times: list[str] = []
    if "offset" in record.keys:
        if len(record.texts) > 1:
            return record._replace(problem="parts of recordings are not scored; cut them into files")
        row = json.loads(record.raw)
        times = ["" if row.get(key) is None else str(row[key]) for key in TIME_KEYS]
    return record._replace(texts=(str(find_file(path, base, root)), *record.texts[1:], *times))


def parse_input(texts: tuple[str, ...], root: str | None) -> MediaFile | InvalidInput | None:
    """The file of a line or record, as `open_input` reads them; None for an empty line."""
    path, *times = texts
    if not path.strip():
        return None
    if len(path) > MAX_PATH:
        return InvalidInput(f"a path of {len(path):,} characters")
    try:
        start, duration = (float(time) if time else None for time in times or ("", ""))
    except ValueError:
        return InvalidInput(f"{path}: expected seconds as 'offset' and 'duration', got {', '.join(times)}")
    file = find_file(path.strip(), Path(), root)
    return file._replace(start=start or 0.0, duration=None if start is None else duration)


def _input_columns(config: MediaDataConfig, names: Sequence[str], *, targets: bool) -> ColumnSelection:
    """The columns of a manifest that a trained run reads: the path and, with `targets`, the first text."""
    columns = config.manifest_columns()
    source, target = columns.source or known_name(names, SOURCE_NAMES), (columns.targets or (None,))[0]
    target = target or (2 if isinstance(source, int) else known_name(names, TARGET_NAMES))
    defaults = (ColumnSpec("source", SOURCE_NAMES[0]), ColumnSpec("target", TARGET_NAMES[0]))
    selected = (ColumnSpec("source", source or SOURCE_NAMES[0]), ColumnSpec("target", target or TARGET_NAMES[0]))
    if targets and isinstance(selected[0].name, int) != isinstance(selected[1].name, int):
        raise DataError("data", "one column has a name, the other an index", "use two names or two indices")
    return ColumnSelection(selected if targets else selected[:1], () if source else defaults)


def open_input(config: MediaDataConfig, file: InputFile) -> OpenedRecords | None:
    """The paths in a manifest, relative to it as in training; None for a text file, whose lines are paths."""
    if file_format(file.path) == "text":
        if file.path.suffix.lower() in MEDIA_SUFFIXES:
            raise DataError(file.path, "a file to predict from, not a list of files", "pass it without --input")
        return open_columns(file, ColumnSelection(()), config.train)
    options = TableOptions(config.encoding, config.delimiter, config.sheet)
    selection = _input_columns(config, _names(file, options), targets=file.targets)
    opened = open_columns(file, selection._replace(options=options), config.train)
    if opened is None:
        return None
    return replace(opened, entries=(_with_file(record, file.path.parent, config.root) for record in opened.entries))


# ---- checks


def _problem(reader: FrameReader, file: MediaFile) -> str | None:
    """Why a file cannot be used; None if it can."""
    try:
        reader.read(file)
    except DataError as error:
        return str(error)
    return None


def _unreadable(split: str, dataset: Dataset[MediaRecord], reader: FrameReader) -> Iterator[Finding]:
    rows, problems, total = list[int](), list[str](), 0
    checked: dict[MediaFile, str | None] = {}
    for row, record in enumerate(dataset.records()):
        total += 1
        if record.media not in checked:
            checked[record.media] = _problem(reader, record.media)
        if (problem := checked[record.media]) is not None:
            rows.append(row)
            problems.append(problem)
    if rows:
        message = f"{count_of(len(rows), total, 'files')} cannot be used: {problems[0]}"
        fix = 'restore or remove them, or set data.on_error = "skip"'
        severity: Literal["error", "warning"] = "warning" if reader.skips_errors else "error"
        yield Finding(severity, "unreadable_file", split, message, fix, len(rows), tuple(rows[:MAX_ROWS]))


def _shared(splits: Mapping[str, Dataset[MediaRecord]]) -> Iterator[Finding]:
    """Files, by content, and speakers that occur in two splits."""
    files, speakers = dict[str, str](), dict[str, str]()
    for split, dataset in splits.items():
        file_rows, speaker_rows, speaker_names = list[int](), list[int](), set[str]()
        fingerprints: dict[MediaFile, str] = {}
        records = list(dataset.records())
        for row, record in enumerate(records):
            try:
                fingerprint = fingerprints.setdefault(record.media, record.media.fingerprint())
            except DataError:  # reported by another check
                continue
            if files.setdefault(fingerprint, split) != split:
                file_rows.append(row)
            if record.group and speakers.setdefault(record.group, split) != split:
                speaker_rows.append(row)
                speaker_names.add(record.group)
        if file_rows:
            message = f"{count_of(len(file_rows), len(records), 'files')} also occur in another split"
            fix = f"remove them, or the scores on {split} are too high"
            yield Finding("warning", "file_overlap", split, message, fix, len(file_rows), tuple(file_rows[:MAX_ROWS]))
        if speaker_rows:
            message = f"{len(speaker_names):,} speakers also occur in another split: {', '.join(sorted(speaker_names)[:5])}"
            fix = "split by speaker to measure how well new speakers are recognized"
            yield Finding("warning", "speaker_overlap", split, message, fix, len(speaker_rows), tuple(speaker_rows[:MAX_ROWS]))


def _without_text(split: str, dataset: Dataset[MediaRecord]) -> Iterator[Finding]:
    """Training data whose texts are all empty, from which nothing can be learned."""
    texts = [record.texts[0] for record in dataset.records()]
    if split == "train" and not any(map(str.strip, texts)):
        yield Finding("error", "empty_texts", split, "all texts are empty", "check the column of the texts", len(texts))


def find_media_problems(reader: FrameReader, splits: Mapping[str, Dataset[MediaRecord]]) -> Iterator[Finding]:
    """Files that are missing or cannot be read, and files and speakers that two splits share."""
    for split, dataset in splits.items():
        yield from _unreadable(split, dataset, reader)
        yield from _without_text(split, dataset)
    yield from _shared(splits)


def check(config: RunConfig) -> CheckPlan:
    train = training(config.datasets)
    return CheckPlan(
        CheckOptions(("text",), config.data.max_length),
        lambda: [train_tokenizer(config.tokenizer, target_texts(train))],
        partial(find_media_problems, config.data.reader()),
    )
