"""Text of a split: a fraction of some files, read as lines or as running text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from weft.errors import DataError
from weft.text.compression import COMPRESSED_SUFFIXES, check_regular_file, read_error
from weft.text.reading import MAX_LINE_CHARS, FileSummary, read_lines, read_text, split_at_newlines, summarize

BATCH_LINES = 1 << 14
BATCH_CHARS = 1 << 20
# A split of running text is moved to a line end within 1/LINE_END_DIVISOR of the text, or else to whitespace within
# 1/SPACE_DIVISOR of it, but by at most MAX_SHIFT_CHARS.
LINE_END_DIVISOR, SPACE_DIVISOR, MAX_SHIFT_CHARS = 100, 20, 1 << 16


class Row(NamedTuple):
    """A line of text or a pair, with one or two sides."""

    texts: tuple[str, ...]
    paths: tuple[Path, ...]  # file of each side
    line: int  # first line in the file, from 1


class Readable(Protocol):
    """Input of a corpus: the text of a split, or one side of its pairs."""

    @property
    def name(self) -> str:
        """File names for messages."""

    @property
    def paths(self) -> tuple[Path, ...]: ...

    @property
    def lines(self) -> bool:
        """Whether every line is a separate sequence."""

    def texts(self) -> Iterator[str]:
        """Texts to train a tokenizer."""

    def batches(self) -> Iterator[list[str]]:
        """Batches of lines to tokenize. Lines of running text include their newlines."""

    def size(self) -> int:
        """Approximate size of the text in bytes."""

    def provenance(self) -> dict[str, Any]:
        """Everything that the text depends on: equal provenance means equal text. `files` has a fingerprint per path."""


def display_name(paths: Sequence[Path]) -> str:
    """File names for messages."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def split_position(text: str, position: int, max_line_shift: int) -> int:
    """The position closest to `position` where a text can be split: after a line end at most `max_line_shift` characters away,
    or else before whitespace, or else `position` itself. The first one wins a tie."""
    line_ends = [match.end() for match in re.finditer("\n", text) if abs(match.end() - position) <= max_line_shift]
    candidates = line_ends or [match.start() for match in re.finditer(r"\s+", text) if match.start() > 0]
    return min(candidates, key=lambda candidate: abs(candidate - position), default=position)


class RowCount(NamedTuple):
    """Number of units, e.g. lines, to take fractions of."""

    name: str  # file names for messages
    total: int
    unit: str
    more: str  # noun for the data to add if there is too little

    def span(self, low: float, high: float) -> tuple[int, int | None]:
        """Start and stop of the units between two fractions; a stop of None is the end."""
        # 90 * 0.7 is slightly less than 63 in floating point
        start, stop = int(self.total * low + 1e-9), int(self.total * high + 1e-9) if high < 1 else None
        return self.check_nonempty(low, high, start, stop)

    def check_nonempty(self, low: float, high: float, start: int, stop: int | None) -> tuple[int, int | None]:
        """Return (start, stop); an empty range is an error."""
        if start >= (self.total if stop is None else stop):
            count = f"1 {self.unit.removesuffix('s')} is" if self.total == 1 else f"{self.total:,} {self.unit} are"
            raise DataError(
                self.name,
                f"{count} too few for the fraction from {low:g} to {high:g}",
                f"add {self.more}, or use separate files for data.valid and data.test",
            )
        return start, stop


def in_batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Batches of at most BATCH_LINES lines and about BATCH_CHARS characters."""
    batch: list[str] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if len(batch) >= BATCH_LINES or size > BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def range_size(low: float, high: float, without: tuple[float, float] | None) -> float:
    """The size of a range without an inner one."""
    return high - low - (0.0 if without is None else without[1] - without[0])


def provenance_of_range(low: float, high: float, without: tuple[float, float] | None) -> dict[str, Any]:
    return {"low": low, "high": high, **({} if without is None else {"without": list(without)})}


@dataclass(frozen=True)
class Source:
    """Lines or running text of files, from fraction `low` to fraction `high`, without an inner range."""

    paths: tuple[Path, ...]
    encoding: str = "utf-8"
    lines: bool = False
    low: float = 0.0
    high: float = 1.0
    without: tuple[float, float] | None = None
    separate_files: bool = False  # whether running text has an empty line between files
    known_spans: Sequence[tuple[int, int | None]] | None = None  # the result of `spans`; otherwise files are read to find it

    @property
    def fraction(self) -> float:
        """The fraction of the files that the split has."""
        return range_size(self.low, self.high, self.without)

    @property
    def name(self) -> str:
        """File names for messages."""
        return display_name(self.paths)

    @cached_property
    def summary(self) -> FileSummary:
        """Summary of the whole files, read once."""
        return summarize(self.paths, self.encoding)

    def spans(self) -> list[tuple[int, int | None]]:
        """Start and stop of each part of the split, in lines, or in characters of running text; a stop of None is the end."""
        if self.known_spans is not None:
            return list(self.known_spans)
        start, stop = self._span(self.low, self.high)
        if self.without is None:
            return [(start, stop)]
        first, last = self._span(*self.without)
        after = [] if last is None or last == stop else [(last, stop)]
        return [*([(start, first)] if start < first else []), *after]

    def _span(self, low: float, high: float) -> tuple[int, int | None]:
        """Start and stop of the rows or characters between two fractions."""
        if (low, high) == (0.0, 1.0):
            return 0, None
        # without the newlines that read_text inserts between files, which hardly changes a fraction
        total = self.summary.lines if self.lines else self.summary.characters
        rows = RowCount(self.name, total, "lines" if self.lines else "characters", "text")
        start, stop = rows.span(low, high)
        if self.lines:
            return start, stop
        first, last = self._split_position(start, total), None if stop is None else self._split_position(stop, total)
        return rows.check_nonempty(low, high, first, last)

    def _split_position(self, position: int, total: int) -> int:
        """`split_position` for the running text."""
        max_shift = min(total // SPACE_DIVISOR, MAX_SHIFT_CHARS)
        if not 0 < position < total or max_shift == 0:
            return position
        # read the text from low to high
        low, high, text, offset = max(0, position - max_shift), position + max_shift, "", 0
        for chunk in read_text(self.paths, self.encoding):
            text += chunk[max(0, low - offset) : max(0, high - offset)]
            offset += len(chunk)
            if offset >= high:
                break
        return low + split_position(text, position - low, min(total // LINE_END_DIVISOR, MAX_SHIFT_CHARS))

    def texts(self) -> Iterator[str]:
        """Chunks of running text, or lines without newlines."""
        if not self.lines:
            yield from self.chunks()
            return
        for lines in self.batches():
            yield from lines

    def chunks(self) -> Iterator[str]:
        """Chunks of the running text of the split."""
        for start, stop in self.spans():
            yield from self._chunks(start, stop)

    def _chunks(self, start: int, stop: int | None) -> Iterator[str]:
        offset = 0
        for chunk in read_text(self.paths, self.encoding, separate_files=self.separate_files):
            selected = chunk[max(0, start - offset) : None if stop is None else max(0, stop - offset)]
            offset += len(chunk)
            if selected:
                yield selected
            if stop is not None and offset >= stop:
                return

    def batches(self) -> Iterator[list[str]]:
        """Batches of lines of the split; lines of running text include their newlines."""
        if not self.lines:
            yield from map(split_at_newlines, self.chunks())
            return
        for start, stop in self.spans():
            yield from in_batches(islice(read_lines(self.paths, self.encoding), start, stop))

    def rows(self) -> Iterator[Row]:
        """Lines of the split with their locations. In running text, the first and the last line may be partial."""
        for start, stop in self.spans():
            yield from self._rows(start, stop)

    def _rows(self, start: int, stop: int | None) -> Iterator[Row]:
        position = 0
        for path in self.paths:
            lines = read_lines(path, self.encoding, max_length=MAX_LINE_CHARS if self.lines else None)
            for number, line in enumerate(lines, 1):
                size = 1 if self.lines else len(line) + 1
                low, high = max(0, start - position), size if stop is None else min(size, stop - position)
                if low < high:
                    yield Row((line if self.lines else line[low:high],), (path,), number)
                position += size
            position += self.separate_files and not self.lines

    def size(self) -> int:
        """Approximate size of the text in bytes. Only compressed files are read to determine it."""
        is_compressed = any(path.suffix in COMPRESSED_SUFFIXES for path in self.paths)
        total = self.summary.bytes if is_compressed else sum(path.stat().st_size for path in self.paths)
        return int(total * self.fraction)

    def provenance(self) -> dict[str, Any]:
        options = provenance_of_range(self.low, self.high, self.without)
        if not self.lines and self.fraction != 1.0:
            options["split_at"] = "line ends or whitespace"
        if self.separate_files:
            options["separate_files"] = True
        return {"encoding": self.encoding, "lines": self.lines, **options, "files": fingerprints(self.paths)}


def fingerprints(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of each file."""
    return [_fingerprint(path) for path in paths]


class FileState(NamedTuple):
    """A file by name, size and modification time."""

    name: str
    size: int
    mtime_ns: int


_known_digests: ContextVar[Mapping[FileState, str]] = ContextVar("_known_digests", default={})  # noqa: B039 never changed


@contextmanager
def known_digests(digests: Mapping[FileState, str]) -> Iterator[None]:
    """Within the block, `fingerprints` does not read files that have one of these states: a file that was not changed since
    its digest was computed has it still. A file that does not exist has the digest of the only state with its name."""
    token = _known_digests.set(digests)
    try:
        yield
    finally:
        _known_digests.reset(token)


def file_state(path: Path) -> FileState:
    """The current state of a file."""
    stat = path.stat()
    return FileState(path.name, stat.st_size, stat.st_mtime_ns)


def _fingerprint(path: Path) -> dict[str, Any]:
    known = _known_digests.get()
    if known and not path.exists():
        states = [state for state in known if state.name == path.name]
        if len(states) == 1:
            return {"file": path.name, "bytes": states[0].size, "sha256": known[states[0]]}
    check_regular_file(path)
    try:
        stat = path.stat()
        digest = known.get(FileState(path.name, stat.st_size, stat.st_mtime_ns))
        if digest is None:
            # cached, because splits and columns often share a file; st_ctime_ns changes even if the mtime is restored
            digest = _digest(path, (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    except OSError as error:
        raise read_error(path, error) from None
    return {"file": path.name, "bytes": stat.st_size, "sha256": digest}


@lru_cache(maxsize=1 << 16)
def _digest(path: Path, state: tuple[int, ...]) -> str:
    """SHA-256 of a file, cached as long as `state` is the same."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
