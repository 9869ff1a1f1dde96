"""Frames on disk: sounds, images and video as rows of numbers, written as a stream and read memory-mapped.

An item is a file: its frames (T, F) are T rows of `values`. A record refers to an item, because an image with five captions is
five records. Frames `name` are little-endian files in a directory:

    name.values  (N, F)                frames of all items, one after another
    name.starts  int64 (items + 1,)    first frame of each item, and N
    name.index   int64 (records,)      item of each record
    name.json    shape, provenance, and a checksum of each array; written last
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from weft import files
from weft.data.array_files import (
    ChecksumWriter,
    array_path,
    checksum,
    has_provenance,
    memory_map,
    provenance_hash,
    stored_provenance,
)
from weft.data.dataset import Dataset
from weft.data.manifest import MediaRecord, record_location
from weft.errors import DataError, ModelError, ResourceError
from weft.media.files import MediaFile
from weft.text.reading import pluralize, subject

VERSION = 1
DTYPES = ("<i2", "|u1", "<f4")
ARRAYS = ("values", "starts", "index")
MAX_WIDTH = 1 << 28  # numbers per frame
MAX_SKIPPED = 3  # names of skipped files in a note
ESTIMATED_FROM = 16  # files
ProgressCallback = Callable[[int, int], None]


class FrameReader(Protocol):
    """Reads files as frames."""

    @property
    def dtype(self) -> str:
        """int16, uint8 or float32, as in DTYPES."""

    @property
    def width(self) -> int:
        """F, the numbers per frame."""

    @property
    def skips_errors(self) -> bool:
        """Whether a file that cannot be read is skipped instead of an error."""

    def read(self, file: MediaFile) -> np.ndarray:
        """The frames (T, F) of a file. Raises DataError."""

    def provenance(self) -> dict[str, Any]:
        """Everything besides the files that the frames depend on."""


class FrameColumn(NamedTuple):
    """A column of a task whose values are files: it becomes `Frames`."""

    name: str
    reader: FrameReader


@dataclass(frozen=True)
class Frames:
    """The frames of the files of a split."""

    name: str
    values: np.ndarray  # (N, F)
    starts: np.ndarray  # int64 (items + 1,)
    index: np.ndarray  # int64 (records,)
    provenance: str = ""  # SHA-256 of the provenance

    @property
    def lines(self) -> int:
        """Number of records."""
        return len(self.index)

    def lengths(self) -> np.ndarray:
        """int64 (records,): number of frames of each record; 0 for a file that was skipped."""
        lengths: np.ndarray = np.diff(self.starts)[self.index]
        return lengths

    def frames(self, record: int) -> np.ndarray:
        """The frames (T, F) of a record."""
        item = self.index[record]
        return self.values[self.starts[item] : self.starts[item + 1]]

    def select(self, records: np.ndarray) -> Frames:
        """The frames of some of the records."""
        return replace(self, index=self.index[records])


def frames_from_arrays(name: str, arrays: list[np.ndarray]) -> Frames:
    """Frames in memory, one array (T, F) per record."""
    starts = np.concatenate([[0], np.cumsum([len(array) for array in arrays])])
    return Frames(name, np.concatenate(arrays), starts, np.arange(len(arrays)))


@dataclass(frozen=True)
class _Source:
    """The files of a split, as the origin of frames."""

    dataset: Dataset[MediaRecord]
    reader: FrameReader

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.dataset.paths

    def provenance(self, media: str) -> dict[str, Any]:
        """The manifest, the digest of the content of all files, and how they are read."""
        provenance = self.dataset.format.provenance(self.dataset.inputs, "source")
        return {"version": VERSION, **self.reader.provenance(), "media": media, **provenance}

    def digest(self, items: dict[MediaFile, MediaRecord]) -> str:
        """SHA-256 of the content of all files, which are read for it."""
        digest = hashlib.sha256()
        for file, record in items.items():
            digest.update(self._fingerprint(file, record).encode())
        return digest.hexdigest()

    def _fingerprint(self, file: MediaFile, record: MediaRecord) -> str:
        try:
            return file.fingerprint()
        except DataError as error:
            if self.reader.skips_errors:
                return "missing"
            raise DataError(record_location(record), str(error)) from None


class _Writer:
    """Writes the frames of one file after another."""

    def __init__(self, reader: FrameReader, write: Callable[[bytes], None], name: str) -> None:
        self.reader, self.write, self.name = reader, write, name
        self.starts, self.skipped = [0], list[str]()

    def add(self, file: MediaFile, record: MediaRecord) -> None:
        try:
            frames = self.reader.read(file)
        except DataError as error:
            if not self.reader.skips_errors:
                raise DataError(record_location(record), str(error)) from None
            self.skipped.append(str(error))
            frames = np.zeros((0, self.reader.width))
        self.write(np.ascontiguousarray(frames, dtype=self.reader.dtype).tobytes())
        self.starts.append(self.starts[-1] + len(frames))

    def check_space(self, directory: Path, num_items: int) -> None:
        """Refuse to fill the disk: images of 4,096 x 4,096 pixels take 50 MB each, whatever the size of their files."""
        item_bytes = self.starts[-1] * self.reader.width * np.dtype(self.reader.dtype).itemsize / (len(self.starts) - 1)
        needed, free = item_bytes * (num_items - len(self.starts) + 1), shutil.disk_usage(directory).free
        if needed > free:
            raise ResourceError(
                self.name,
                f"the frames of {pluralize(num_items, 'file')} take about {needed / 1e9:,.1f} GB on disk;"
                f" {free / 1e9:,.1f} GB are free",
                "use smaller or fewer frames, or free some space",
            )

    def note(self) -> str | None:
        """A remark on the files that were skipped."""
        if not self.skipped:
            return None
        more = f" and {len(self.skipped) - MAX_SKIPPED:,} more" if len(self.skipped) > MAX_SKIPPED else ""
        problems = "; ".join(self.skipped[:MAX_SKIPPED])
        return f"{self.name}: {subject(len(self.skipped), 'file', 'was', 'were')} skipped: {problems}{more}"


def _items(dataset: Dataset[MediaRecord]) -> tuple[dict[MediaFile, MediaRecord], np.ndarray]:
    """The files of a split with the first record of each, and the item of each record."""
    items, index = dict[MediaFile, MediaRecord](), list[int]()
    numbers: dict[MediaFile, int] = {}
    for record in dataset.records():
        items.setdefault(record.media, record)
        index.append(numbers.setdefault(record.media, len(numbers)))
    return items, np.array(index, dtype="<i8")


def write_frames(
    dataset: Dataset[MediaRecord],
    reader: FrameReader,
    directory: Path,
    name: str,
    *,
    must_match: str | None = None,
    progress: ProgressCallback | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Frames:
    """Open the frames `name` in `directory` if they are those of these files, otherwise read the files and write them. See
    `write_corpus` for `must_match`."""
    source = _Source(dataset, reader)
    items, index = _items(dataset)
    base, provenance = directory / name, source.provenance(source.digest(items))
    description = array_path(base, "json")
    if has_provenance(description, provenance, source, must_match=must_match):
        with suppress(ModelError):  # corrupted or missing, but from the same files: write them again
            return open_frames(directory, name)
    files.remove(description)
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        outputs = {array: ChecksumWriter(stack.enter_context(files.atomic_write(array_path(base, array)))) for array in ARRAYS}
        writer = _Writer(reader, outputs["values"], dataset.name)
        for done, (file, record) in enumerate(items.items()):
            if progress is not None:
                progress(done, len(items))
            writer.add(file, record)
            if done + 1 == ESTIMATED_FROM:
                writer.check_space(directory, len(items))
        if not writer.starts[-1]:
            raise DataError(dataset.name, f"none of {pluralize(len(items), 'file')} can be used", "; ".join(writer.skipped[:1]))
        outputs["starts"](np.array(writer.starts, dtype="<i8").tobytes())
        outputs["index"](index.tobytes())
    content = {
        "dtype": reader.dtype,
        "width": reader.width,
        "frames": writer.starts[-1],
        "checksums": {array: output.checksum for array, output in outputs.items()},
    }
    files.write_json(description, {**content, "provenance": provenance})
    if on_note is not None and (note := writer.note()) is not None:
        on_note(note)
    return open_frames(directory, name, check=False)


def open_written(dataset: Dataset[MediaRecord], reader: FrameReader, directory: Path, name: str, provenance: str) -> Frames:
    """Open the frames `name` that another process of this run has written or checked, whose provenance hash is `provenance`.
    The files are not read again, only the manifest is compared."""
    description, source = array_path(directory / name, "json"), _Source(dataset, reader)
    media = stored_provenance(description).get("media", "")
    if not has_provenance(description, source.provenance(media), source, must_match=provenance):
        raise ModelError(
            description, "not what another process of this run has written", "use a directory that all hosts share"
        )
    return open_frames(directory, name)


def open_frames(directory: Path, name: str, *, check: bool = True) -> Frames:
    """The finished frames `name` in `directory`, memory-mapped. `check` reads them once to verify their checksums."""
    base = directory / name
    description = array_path(base, "json")
    content, fix = files.read_json(description), "delete it to have the frames written again"
    try:
        dtype, width, count = str(content["dtype"]), int(content["width"]), int(content["frames"])
        checksums, provenance = {array: int(content["checksums"][array]) for array in ARRAYS}, content["provenance"]
        version = provenance["version"]
    except (KeyError, TypeError, ValueError):
        raise ModelError(description, "not the description of frames", fix) from None
    if version != VERSION or dtype not in DTYPES or not 1 <= width <= MAX_WIDTH:
        raise ModelError(description, "written by another version of weft", fix)
    values = memory_map(base, "values", np.dtype((dtype, (width,))))
    starts, index = (memory_map(base, array, np.dtype("<i8")) for array in ("starts", "index"))
    if len(values) != count or starts[-1] != count or (len(index) and index.max() + 1 >= len(starts)):
        raise ModelError(array_path(base, "values"), f"corrupted: expected {count} frames, got {len(values)}", fix)
    for array in ARRAYS if check else ():
        if checksum(array_path(base, array)) != checksums[array]:
            raise ModelError(array_path(base, array), "checksum mismatch", fix)
    return Frames(name, values, starts, index, provenance_hash(provenance))
