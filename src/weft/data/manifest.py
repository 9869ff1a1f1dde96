"""Manifests: lists of files with a text each, such as recordings with transcripts or images with captions.

    .tsv, .csv, .xlsx, .jsonl, .json, .parquet   columns or keys with the path, one or several texts, perhaps the speaker
    .json of COCO                                images, and annotations with captions
    a directory of Kaldi                         wav.scp and text; perhaps utt2spk and segments

Paths are relative to `root`, or to the directory of the manifest; `root` may be a zip archive. `offset` and `duration` of JSON
lines (NeMo) and the times of `segments` select a part of a recording, in seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from weft import files
from weft.data.columns import Name
from weft.data.json_objects import get_string, get_value, has_key, read_objects
from weft.data.source import fingerprints
from weft.data.summary import ColumnSize
from weft.data.table_rows import (
    DEFAULT_TABLE_OPTIONS,
    OBJECT_FORMATS,
    OpenTable,
    TableOptions,
    file_format,
    file_location,
    open_table,
)
from weft.errors import DataError, ModelError
from weft.media.files import MediaFile, is_archive
from weft.text.reading import PREVIEW_CHARS, FileSummary, check_text, listed_files, pluralize, preview, read_lines

# names of columns and keys that are recognized if the run file does not name one
SOURCE_NAMES = ("path", "file", "filename", "file_name", "audio", "audio_filepath", "wav", "clip", "image", "video", "source")
TARGET_NAMES = ("text", "transcript", "transcription", "sentence", "caption", "target")
GROUP_NAMES = ("speaker", "speaker_id", "client_id", "spk")
TIME_KEYS = ("offset", "duration")
KNOWN_KEYS = (*SOURCE_NAMES, *TARGET_NAMES, *GROUP_NAMES, *TIME_KEYS)
KALDI_FILES = ("wav.scp", "text")
MAX_SECONDS = 1e9  # of a position in a recording
MAX_PATH = 4096  # characters, the limit of Linux
ARCHIVE_MEMBER = re.compile(r"(.*?\.zip)/(.+)", re.IGNORECASE | re.DOTALL)
Names = tuple[Name, ...]


class MediaRecord(NamedTuple):
    """A file with its text."""

    media: MediaFile
    texts: tuple[str, ...]  # the target, and further references
    group: str  # the speaker; "" if it is not known
    path: Path  # of the manifest
    line: int


def record_location(record: MediaRecord) -> str:
    """`manifest:line` of a record."""
    return file_location(record.path, record.line)


def media_file(path: str, base: Path) -> MediaFile:
    """The file of a path relative to `base`, which may be a zip archive; a path may lead into one."""
    if is_archive(base):
        return MediaFile(base, path)
    if (match := ARCHIVE_MEMBER.fullmatch(path)) is not None:
        return MediaFile(base / match[1], match[2])
    return MediaFile(base / path)


class ManifestColumns(NamedTuple):
    """The columns of a manifest; None: recognized by its name or, in a table without a header, by its position."""

    source: Name | None = None
    targets: Names | None = None  # the first one is trained on, all are references
    group: Name | None = None


DEFAULT_COLUMNS = ManifestColumns()


@dataclass
class ManifestSummary:
    """Summary of manifests."""

    files: FileSummary
    noun: str  # "recordings"
    count: int = 0
    targets: ColumnSize = field(default_factory=ColumnSize)
    media: set[MediaFile] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    examples: list[tuple[str, str]] = field(default_factory=list)

    @property
    def characters(self) -> int:
        return self.targets.characters

    @property
    def num_crlf(self) -> int:
        return self.files.num_crlf

    def add(self, record: MediaRecord) -> None:
        self.count += 1
        self.targets.add(record.texts[0])
        self.media.add(record.media)
        self.groups.add(record.group)
        if len(self.examples) < 3:
            name = record.media.member or record.media.path.name
            self.examples.append((name[: PREVIEW_CHARS + 1], record.texts[0][: PREVIEW_CHARS + 1]))

    def bytes_of(self, column: str) -> int:
        return self.targets.bytes

    def strata(self) -> None:
        """None: fractions are taken from the end."""

    def problem(self) -> None:
        """None: the data is not checked as a whole."""

    def describe(self) -> str:
        """A description in several lines: files, sizes, encoding, notes, examples."""
        groups = f" of {pluralize(len(self.groups), 'speaker')}" if self.groups - {""} else ""
        rows = [
            f"{listed_files(self.files.paths)}: {pluralize(len(self.media), self.noun.removesuffix('s'))}{groups},"
            f" {pluralize(self.count, 'text')}, {pluralize(self.characters, 'character')}, {self.files.encoding_info}"
        ]
        empty = [f"empty texts: {self.targets.empty:,}"] if self.targets.empty else []
        rows += [f"  note: {preview(note, 200)}" for note in [*self.files.notes, *empty]]
        rows += [f"  e.g.: {preview(name)} -> {preview(text)}" for name, text in self.examples]
        return "\n".join(rows)


@dataclass(frozen=True)
class ManifestFormat:
    """Files and their texts, listed in manifests."""

    names: ManifestColumns = DEFAULT_COLUMNS
    root: Path | None = None  # a directory or a zip archive; None: the directory of the manifest
    tables: TableOptions = DEFAULT_TABLE_OPTIONS
    rows: str = "recordings"
    columns: tuple[str, ...] = ("target",)
    in_memory: bool = True  # a record is two short strings

    @property
    def encoding(self) -> str:
        return self.tables.encoding

    def files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        """The manifests; for a directory of Kaldi, its files."""
        return tuple(file for path in inputs for file in (_kaldi_files(path) if path.is_dir() else [path]))

    def column_files(self, inputs: tuple[Path, ...]) -> tuple[Path, ...]:
        return ()

    def read(self, inputs: tuple[Path, ...], summary: FileSummary) -> Iterator[MediaRecord]:
        for path in inputs:
            count = 0
            for entry in self._entries(path, summary):
                count += 1
                where = entry.path or path
                if not 0 < len(entry.source) <= MAX_PATH:
                    problem = f"a path of {len(entry.source):,} characters" if entry.source else "no path"
                    raise DataError(file_location(where, entry.line), problem)
                yield MediaRecord(self._locate(entry, path), entry.texts, entry.group, where, entry.line)
            if not count:
                raise DataError(path, "no files are listed")

    def _entries(self, path: Path, summary: FileSummary) -> Iterator[_Entry]:
        if path.is_dir():
            return _read_kaldi(path, self.encoding, summary)
        if file_format(path) == "text":
            raise DataError(path, "not a manifest (.tsv, .csv, .jsonl, ...)", "list the files in a table: path and text")
        if file_format(path) == "json" and (coco := _coco_content(path)) is not None:
            return _read_coco(path, coco)
        read = _read_objects if file_format(path) in OBJECT_FORMATS else _read_table
        return read(path, self.names, self.tables, summary)

    def _locate(self, entry: _Entry, manifest: Path) -> MediaFile:
        """The file that an entry names."""
        base = self.root or (manifest if manifest.is_dir() else manifest.parent)
        return media_file(entry.source, base)._replace(start=entry.start, duration=entry.duration)

    def summary(self, inputs: tuple[Path, ...], summary: FileSummary) -> ManifestSummary:
        return ManifestSummary(summary, self.rows)

    def texts(self, record: MediaRecord) -> tuple[str, ...]:
        return record.texts[:1]

    def column_label(self, column: str) -> str:
        return column

    def provenance(self, inputs: tuple[Path, ...], column: str) -> dict[str, Any]:
        return {
            "columns": list(self.names),
            "root": None if self.root is None else self.root.name,
            "encoding": self.encoding,
            **self.tables.provenance(),
            "files": fingerprints(self.files(inputs)),
        }


# ---- formats of manifests


class _Entry(NamedTuple):
    """A row of a manifest."""

    source: str
    texts: tuple[str, ...]
    group: str
    line: int
    start: float = 0.0
    duration: float | None = None
    path: Path | None = None  # if not the manifest itself


def known_name(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The first of the known names that occurs, in upper or lower case."""
    by_lower = {name.strip().lower(): name for name in names}
    return next((by_lower[name] for name in known if name in by_lower), None)


def _column(table: OpenTable, name: Name) -> int:
    """0-based index of a column that is selected by its name in the header or by its 1-based index."""
    if isinstance(name, int):
        if not 1 <= name <= len(table.first):
            raise DataError(file_location(table.path, 1), f"no column {name}: the table has {len(table.first)} columns")
        return name - 1
    if table.first.count(name) != 1:
        names = ", ".join(preview(cell, 40) for cell in table.first)
        raise DataError(file_location(table.path, 1), f"no column {name!r}", f"available: {names}")
    return table.first.index(name)


def _read_table(path: Path, names: ManifestColumns, options: TableOptions, summary: FileSummary) -> Iterator[_Entry]:
    table = open_table(path, options, summary)
    known_source, known_target = known_name(table.first, SOURCE_NAMES), known_name(table.first, TARGET_NAMES)
    has_names = any(isinstance(name, str) for name in (names.source, names.group, *(names.targets or ())))
    has_header = has_names or (known_source is not None and known_target is not None)
    source: Name | None = names.source or known_source
    target: Name | Names | None = names.targets or known_target
    group = names.group
    if known_source is not None and target is None:
        header = ", ".join(preview(cell, 40) for cell in table.first)
        raise DataError(file_location(path, 1), f"no column of texts in the header {header}", "name it: data.target_column")
    if not has_header or source is None or target is None:
        source, target = names.source or 1, names.targets or 2
        if len(table.first) < 2:
            raise table.wrong_column_count(1, table.first, "at least 2")
        if names.source is None and names.targets is None:
            summary.notes.append(f"{path.name}: no header; the path is column {source}, the text column {target}")
    elif group is None:
        group = known_name(table.first, GROUP_NAMES)
    targets = target if isinstance(target, tuple) else (target,)
    source_index, *indices = (_column(table, name) for name in (source, *targets))
    group_index = None if group is None else _column(table, group)
    rows = table.rows() if has_header else iter([(1, table.first), *table.rows()])
    for line, cells in rows:
        texts = tuple(cells[index] for index in indices)
        yield _Entry(cells[source_index], texts, "" if group_index is None else cells[group_index], line)


def _seconds(row: dict[str, Any], key: str, where: str, *, is_text: bool) -> float | None:
    """The number of a key; with `is_text`, numbers were converted to text."""
    value: Any = row.get(key)
    if value is None:
        return None
    if is_text:
        with suppress(TypeError, ValueError):
            value = float(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_SECONDS:
        raise DataError(where, f"expected a number of seconds as {key!r}, got {preview(repr(value), 40)}")
    return float(value)


def _texts_of(row: dict[str, Any], names: Sequence[str], where: str) -> tuple[str, ...]:
    """The texts of an object; a key may have a list of references."""
    texts: list[str] = []
    for name in names:
        value = get_value(row, name, where)
        if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
            texts += [check_text(text, where) for text in value]
        else:
            texts.append(get_string(row, name, where))
    return tuple(texts)


def _read_objects(path: Path, names: ManifestColumns, options: TableOptions, summary: FileSummary) -> Iterator[_Entry]:
    keys = [name for name in (names.source, *(names.targets or ()), names.group) if isinstance(name, str)]
    is_parquet = file_format(path) == "parquet"
    expected = keys if keys or is_parquet else SOURCE_NAMES[:1]
    for line, row in read_objects(path, expected, options.encoding, summary, optional_keys=KNOWN_KEYS):
        where = file_location(path, line)
        source = names.source or known_name(tuple(row), SOURCE_NAMES) or SOURCE_NAMES[0]
        targets = names.targets or (known_name(tuple(row), TARGET_NAMES) or TARGET_NAMES[0],)
        group = names.group or known_name(tuple(row), GROUP_NAMES)
        start, duration = (_seconds(row, key, where, is_text=is_parquet) for key in TIME_KEYS)
        has_group = group is not None and has_key(row, str(group))
        yield _Entry(
            get_string(row, str(source), where),
            _texts_of(row, [str(name) for name in targets], where),
            get_string(row, str(group), where) if has_group else "",
            line,
            start or 0.0,
            None if start is None else duration,  # of a whole file, the duration is information only
        )


# ---- COCO


def _coco_content(path: Path) -> dict[str, Any] | None:
    """The content of a COCO file of captions; None if the file is something else."""
    if not path.is_file():  # the reader of objects reports it
        return None
    with path.open("rb") as file:
        if not file.read(64).lstrip().startswith(b"{"):
            return None
    try:
        content = files.read_json(path)
    except ModelError:  # one object per line: another format
        return None
    is_coco = isinstance(content, dict) and {"images", "annotations"} <= content.keys()
    return content if is_coco else None


def _read_coco(path: Path, content: dict[str, Any]) -> Iterator[_Entry]:
    """Images with all their captions, in the order of the images."""
    names, captions = dict[Any, str](), dict[Any, list[str]]()
    try:
        names = {image["id"]: get_string(image, "file_name", str(path)) for image in content["images"]}
        for annotation in content["annotations"]:
            captions.setdefault(annotation["image_id"], []).append(get_string(annotation, "caption", str(path)))
    except (KeyError, TypeError, AttributeError):
        raise DataError(path, "not the captions of COCO", "use images with id, file_name; annotations with image_id") from None
    for number, (key, name) in enumerate(names.items(), 1):
        for caption in captions.get(key, []):
            yield _Entry(name, (caption,), "", number)


# ---- Kaldi


def _kaldi_files(directory: Path) -> list[Path]:
    optional = [directory / name for name in ("utt2spk", "segments") if (directory / name).is_file()]
    return [*(directory / name for name in KALDI_FILES), *optional]


def _kaldi_table(path: Path, encoding: str, summary: FileSummary | None = None) -> dict[str, tuple[str, int]]:
    """The value and the line of each key."""
    rows: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(read_lines(path, encoding, summary), 1):
        key, *value = line.split(None, 1) or [""]
        if key in rows:
            raise DataError(file_location(path, number), f"{key!r} is repeated")
        if key:
            rows[key] = ("".join(value).strip(), number)
    return rows


def _read_kaldi(directory: Path, encoding: str, summary: FileSummary) -> Iterator[_Entry]:
    for name in KALDI_FILES:
        if not (directory / name).is_file():
            raise DataError(directory, f"no {name}", "name a manifest, or a directory of Kaldi with wav.scp and text")
    recordings = _kaldi_table(directory / "wav.scp", encoding)
    texts = _kaldi_table(directory / "text", encoding, summary)
    speakers = _kaldi_table(directory / "utt2spk", encoding) if (directory / "utt2spk").is_file() else {}
    segments = _kaldi_table(directory / "segments", encoding) if (directory / "segments").is_file() else {}
    for key, (text, line) in texts.items():
        where = file_location(directory / "text", line)
        recording, start, duration = key, 0.0, None
        if segments:
            recording, start, duration = _segment(segments, key, where)
        if recording not in recordings:
            raise DataError(where, f"{recording!r} is not in wav.scp")
        source, source_line = recordings[recording]
        if source.endswith("|"):
            location = file_location(directory / "wav.scp", source_line)
            raise DataError(location, "is a command, which is not run", "write the audio to a file and name it")
        yield _Entry(source, (text,), speakers.get(key, ("", 0))[0], line, start, duration, directory / "text")


def _segment(segments: dict[str, tuple[str, int]], key: str, where: str) -> tuple[str, float, float | None]:
    """Recording, start and duration of an utterance."""
    if key not in segments:
        raise DataError(where, f"{key!r} is not in segments")
    parts = segments[key][0].split()
    try:
        recording, start, end = parts[0], float(parts[1]), float(parts[2])
    except (IndexError, ValueError):
        raise DataError(where, f"expected recording, start and end in segments, got {' '.join(parts)!r}") from None
    if not 0 <= start < (end if end > 0 else math.inf):
        raise DataError(where, f"expected 0 <= start < end in segments, got {start:g} and {end:g}")
    return recording, start, end - start if end > 0 else None
