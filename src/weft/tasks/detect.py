"""Detects the task of data files and the options of [data] that read them, from their first lines.

The values decide, and column names help: a column with few, short and repeated values has labels, whatever its name is. The
result is checked by reading the first examples with the reader of the task. What cannot be told is an error that shows what the
file contains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from weft.config import parse_config
from weft.data.config import expand_files
from weft.data.sample import SAMPLE_BYTES, SAMPLE_ROWS, TableSample, detect_encoding, sample_lines, sample_objects, sample_table
from weft.data.source import Source, display_name
from weft.data.table_rows import OBJECT_FORMATS, TYPED_TABLES, TableOptions, file_format
from weft.errors import DataError, UsageError, unknown_name
from weft.tasks.classification.files import File, find_files
from weft.tasks.detect_lines import (
    are_sentences,
    label_readings,
    refuse_without_texts,
    table_delimiter,
    tag_readings,
    text_readings,
)
from weft.tasks.detect_tables import table_readings, unclear_table
from weft.tasks.detection import DETECTED, UNKNOWN, Detection, Known
from weft.tasks.qa.files import is_squad
from weft.tasks.registry import TASKS, find_task
from weft.text.compression import COMPRESSED_SUFFIXES
from weft.text.reading import FileSummary, as_paths, pluralize, preview, read_file_text

MIN_CORRELATION = 0.3  # of the line lengths of parallel files
MAX_SAMPLED_FILES = 20  # of a directory
SPLITS = {"train", "training", "valid", "validation", "val", "dev", "test"}


# ---- one file


def _encoding(path: Path, known: Known) -> str:
    return str(known.data["encoding"]) if "encoding" in known.data else detect_encoding(path)


def _table_options(encoding: str, known: Known) -> TableOptions:
    delimiter = "\t" if known.data.get("delimiter") == "tab" else known.data.get("delimiter")
    return TableOptions(encoding, delimiter, known.data.get("sheet"))


def _with(readings: Sequence[Detection], options: Mapping[str, Any]) -> list[Detection]:
    """The readings with further options of [data]."""
    return [replace(reading, data={**reading.data, **options}) for reading in readings]


def _delimiter_option(delimiter: str | None) -> dict[str, Any]:
    return {} if delimiter is None else {"delimiter": "tab" if delimiter == "\t" else delimiter}


def _table(path: Path, sample: TableSample, known: Known) -> list[Detection]:
    readings = _with(table_readings(str(path), sample, known), _delimiter_option(sample.delimiter))
    if not readings:
        raise unclear_table(str(path), sample)
    return readings


def _text_file(path: Path, encoding: str, known: Known) -> list[Detection]:
    """Readings of a file whose name does not say what it is."""
    lines = sample_lines(path, encoding)
    tagged, labeled = tag_readings(path, lines), label_readings(lines)
    table_options = _table_options(encoding, known)
    delimiter = table_options.delimiter or table_delimiter(lines)
    if tagged:
        return tagged
    if next((line for line in lines if line.strip()), "").lstrip().startswith('{"'):
        raise DataError(path, "looks like JSON, one object per line", "rename the file to .jsonl")
    if delimiter is None:
        if known == UNKNOWN:
            refuse_without_texts(path, lines)
        return [*labeled, *text_readings(path, lines)]
    sample = sample_table(path, replace(table_options, delimiter=delimiter), known.selected_columns())
    columns = _with(table_readings(str(path), sample, known), _delimiter_option(delimiter))
    # a label, a tab and a text can be read as lines as well, where a text may have tabs
    if labeled and delimiter == "\t" and columns and columns[0].data.get("label_column") == 1:
        return [*labeled, *columns[1:]]
    if not columns and not labeled:
        raise unclear_table(str(path), sample)
    return columns or labeled


def _file(path: Path, known: Known) -> list[Detection]:
    """All readings of a file, the most likely first."""
    kind = file_format(path)
    encoding = "utf-8" if kind in TYPED_TABLES else _encoding(path, known)
    if kind == "json" and is_squad(path, encoding) and '"paragraphs"' in read_file_text(path, encoding)[:SAMPLE_BYTES]:
        readings = [Detection("qa", {}, "questions in the format of SQuAD")]
    elif kind in OBJECT_FORMATS:
        readings = _table(path, sample_objects(path, encoding), known)
    elif kind == "text":
        readings = _text_file(path, encoding, known)
    elif kind == "tsv" and (tagged := tag_readings(path, sample_lines(path, encoding))):
        readings = tagged
    else:
        readings = _table(path, sample_table(path, _table_options(encoding, known), known.selected_columns()), known)
    if encoding == "utf-8":
        return readings
    note = f"; not UTF-8, read as {encoding}" if "encoding" not in known.data else ""
    return [replace(reading, reason=reading.reason + note) for reading in _with(readings, {"encoding": encoding})]


# ---- directories and several files


def _refuse_splits(path: Path, files: Sequence[File]) -> None:
    """Raise if files or subdirectories are named after splits: these are not labels."""
    names = {file.label or "": file.path.parent if file.is_example else file.path for file in files}
    splits = [location for name, location in names.items() if SPLITS & set(re.split(r"[\W_]+", name.lower()))]
    train = next((location for location in splits if "train" in location.name.lower()), None)
    if train is not None and len(splits) > 1:
        problem = f"directory of splits ({', '.join(preview(location.name, 40) for location in splits[:3])})"
        raise DataError(path, problem, f"name the training data, {train.name}")


def _directory(path: Path, known: Known) -> list[Detection]:
    """Readings of a directory: one subdirectory or file per label, or text files for a language model."""
    texts = [file for file in expand_files(Path(), str(path)) if file != path]
    running = [Detection("lm", {"read_as": "windows"}, f"directory with {pluralize(len(texts), 'text file')}: running text")]
    files = find_files([path])
    _refuse_splits(path, files)
    labels = {file.label for file in files}
    encodings = [_encoding(file.path, known) for file in files[:MAX_SAMPLED_FILES]]
    encoding = next((name for name in encodings if name != "utf-8"), "utf-8")
    are_lists = [
        are_sentences(sample_lines(file.path, encoding)) for file in files[:MAX_SAMPLED_FILES] if file.path.stat().st_size
    ]
    unit = "subdirectory" if files[0].is_example else "file"
    labeled = [Detection("classification", {}, f"directory with one {unit} for each of {len(labels)} labels")]
    if len(labels) < 2 or not (files[0].is_example or 2 * sum(are_lists) > len(are_lists)):
        if not texts:
            raise DataError(path, "no label, and no text file (.txt) for a language model", "name the files in it")
        readings = [*running, *(labeled if len(labels) > 1 else [])]
    else:
        readings = [*labeled, *(running if texts else [])]
    return readings if encoding == "utf-8" else _with(readings, {"encoding": encoding})


def _are_parallel(paths: Sequence[Path], encoding: str) -> bool:
    """Whether line n of each file belongs to line n of the others: as many lines, and long lines with long lines."""
    samples = [sample_lines(path, encoding) for path in paths]
    count = min(map(len, samples))
    if count < SAMPLE_ROWS and len({len(sample) for sample in samples}) > 1:
        return False
    first, *others = (np.array([len(line) for line in sample[:count]], np.float64) for sample in samples)
    names = [path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path for path in paths]
    if len({name.stem for name in names}) == 1 and len({name.suffix for name in names}) == len(names):
        return True  # train.en and train.de
    if count < 2 or any(lengths.std() == 0 for lengths in (first, *others)):
        return False
    return all(np.corrcoef(first, lengths)[0, 1] >= MIN_CORRELATION for lengths in others)


def _files(paths: Sequence[Path], known: Known) -> list[Detection]:
    """Readings of several files: parallel text, or files of one format."""
    if len(paths) > 1 and all(file_format(path) == "text" and not path.is_dir() for path in paths):
        encodings = {_encoding(path, known) for path in paths}
        encoding = next((name for name in sorted(encodings) if name != "utf-8"), "utf-8")
        lines = [sample_lines(path, encoding) for path in paths]
        is_plain = not any(
            tag_readings(path, sample) or label_readings(sample) for path, sample in zip(paths, lines, strict=True)
        )
        if is_plain and _are_parallel(paths, encoding):
            reading = Detection("seq2seq", {}, f"{len(paths)} text files with corresponding lines: source and target")
            return _with([reading], {} if encoding == "utf-8" else {"encoding": encoding})
    return _directory(paths[0], known) if paths[0].is_dir() else _file(paths[0], known)


# ---- all


def _check(paths: Sequence[Path], reading: Detection) -> None:
    """Read the first examples with the reader of the task."""
    config: Any = parse_config(
        find_task(reading.task).data.data_config, {"train": list(map(str, paths)), **reading.data}, prefix="data"
    )
    dataset = config.sources(Path())["train"]
    if isinstance(dataset, Source):
        return
    summary = FileSummary(list(paths), dataset.format.encoding)
    for _ in islice(dataset.format.read(dataset.inputs, summary), SAMPLE_ROWS):
        pass


def detect(
    paths: str | Path | Sequence[str | Path], *, task: str | None = None, data: Mapping[str, Any] | None = None
) -> Detection:
    """Detect what data files are for.

    Args:
        paths: A file, a directory, or several files, such as two parallel ones.
        task: The name of the task if it is known.
        data: Options of [data] that are known, such as `{"label_column": "stars"}`.

    Returns:
        The task, the options of [data] and the reason, and the alternatives.

    Raises:
        DataError: The files cannot be read, or their task cannot be told.
        UsageError: The task is unknown, or there are no files.
    """
    files, known = as_paths(paths), Known(task, data or {})
    if not files:
        raise UsageError("paths", "no files")
    if task is not None and task not in TASKS:
        raise UsageError("task", *unknown_name("task", task, TASKS))
    if task is not None and task not in DETECTED:
        problem = f"files of task {task} are not detected, only those of {', '.join(DETECTED)}"
        raise DataError(display_name(files), problem, f"write a run file, see weft init {task}, and train it")
    readings = _files(files, known)
    # the other options of [data] do not decide how files are read
    fits = [
        reading
        for reading in readings
        if task in (None, reading.task) and all(reading.data.get(name, value) == value for name, value in known.data.items())
    ]
    if not fits:
        wanted = ", ".join(
            [*([f"task {task}"] if task else []), *(f"data.{name} = {value!r}" for name, value in known.data.items())]
        )
        problem = f"does not fit {wanted}: {preview(readings[0].reason, 200)}"
        raise DataError(display_name(files), problem, "set the columns in [data]")
    best, *others = _with(fits, known.data)
    _check(files, best)
    return replace(best, alternatives=tuple(others))
