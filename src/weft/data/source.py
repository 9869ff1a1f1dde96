"""The text of a split: files, their encoding, how they are read, and a fraction of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
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
# Running text is split at a line end within 1/LINE_END_FRACTION of the text, or else at whitespace within
# 1/SPACE_FRACTION of it, but never more than MAX_SHIFT_CHARS away.
LINE_END_FRACTION, SPACE_FRACTION, MAX_SHIFT_CHARS = 100, 20, 1 << 16


class Row(NamedTuple):
    """A line of text or a pair: `texts` has one side or two, `paths` the file of each."""

    texts: tuple[str, ...]
    paths: tuple[Path, ...]
    line: int  # where it starts in its file, from 1


class Readable(Protocol):
    """The input of a corpus: the text of a split, or one side of its pairs."""

    @property
    def name(self) -> str:
        """The files, for messages."""

    @property
    def paths(self) -> tuple[Path, ...]: ...

    @property
    def lines(self) -> bool:
        """Whether every line is a separate sequence."""

    def texts(self) -> Iterator[str]:
        """The texts to train a tokenizer on."""

    def batches(self) -> Iterator[list[str]]:
        """Batches of lines to tokenize: without newlines, or with them in running text."""

    def size(self) -> int:
        """Approximate size of the text in bytes."""

    def provenance(self) -> dict[str, Any]:
        """Everything that the text depends on: equal provenance means equal text. `files` has a fingerprint per path."""


def display_name(paths: Sequence[Path]) -> str:
    """File names for messages."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def split_position(text: str, position: int, max_line_shift: int) -> int:
    """The nearest position where a text can be split: after a line end at most `max_line_shift` characters away, or else before
    whitespace; `position` itself if there is neither. Of two equally near ones, the first."""
    line_ends = [match.end() for match in re.finditer("\n", text) if abs(match.end() - position) <= max_line_shift]
    candidates = line_ends or [match.start() for match in re.finditer(r"\s+", text) if match.start() > 0]
    return min(candidates, key=lambda candidate: abs(candidate - position), default=position)


class RowCount(NamedTuple):
    """The number of units, e.g. lines, that fractions are taken of."""

    name: str  # the files
    total: int
    unit: str
    more: str  # what to add if there are too few

    def span(self, low: float, high: float) -> tuple[int, int | None]:
        """The first unit between two fractions and the one after the last; None: to the end."""
        # 90 times 0.7 is a little less than 63 in binary
        start, stop = int(self.total * low + 1e-9), int(self.total * high + 1e-9) if high < 1 else None
        return self.check_nonempty(low, high, start, stop)

    def check_nonempty(self, low: float, high: float, start: int, stop: int | None) -> tuple[int, int | None]:
        """(start, stop) itself; an empty range is an error."""
        if start >= (self.total if stop is None else stop):
            count = f"1 {self.unit.removesuffix('s')} is" if self.total == 1 else f"{self.total:,} {self.unit} are"
            raise DataError(
                self.name,
                f"{count} too few for the fraction from {low:g} to {high:g}",
                f"add {self.more}, or use separate files for data.valid and data.test",
            )
        return start, stop


def in_batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Batches of lines, limited in lines and characters."""
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


@dataclass(frozen=True)
class Source:
    """The lines, or the characters of running text, from fraction `low` to fraction `high` of some files."""

    paths: tuple[Path, ...]
    encoding: str = "utf-8"
    lines: bool = False
    low: float = 0.0
    high: float = 1.0
    separate_files: bool = False  # every file is a separate text: running text has an empty line between them

    @property
    def name(self) -> str:
        """The files, for messages."""
        return display_name(self.paths)

    @cached_property
    def summary(self) -> FileSummary:
        """A summary of the whole files, read once."""
        return summarize(self.paths, self.encoding)

    def span(self) -> tuple[int, int | None]:
        """The first line or character of the split and the one after the last; None: to the end."""
        if (self.low, self.high) == (0.0, 1.0):
            return 0, None
        # newlines that read_text inserts between files are not in the summary, which does not matter for a fraction
        total = self.summary.lines if self.lines else self.summary.characters
        rows = RowCount(self.name, total, "lines" if self.lines else "characters", "text")
        start, stop = rows.span(self.low, self.high)
        if self.lines:
            return start, stop
        first, last = self._split_position(start, total), None if stop is None else self._split_position(stop, total)
        return rows.check_nonempty(self.low, self.high, first, last)

    def _split_position(self, position: int, total: int) -> int:
        """Where to split running text near a character position: at the nearest line end, or else at whitespace."""
        max_shift = min(total // SPACE_FRACTION, MAX_SHIFT_CHARS)
        if not 0 < position < total or max_shift == 0:
            return position
        low, text, before = max(0, position - max_shift), "", 0
        for chunk in read_text(self.paths, self.encoding):
            text += chunk[max(0, low - before) : max(0, position + max_shift - before)]
            before += len(chunk)
            if before >= position + max_shift:
                break
        return low + split_position(text, position - low, min(total // LINE_END_FRACTION, MAX_SHIFT_CHARS))

    def texts(self) -> Iterator[str]:
        """Chunks of running text, or lines without newlines."""
        if not self.lines:
            yield from self.chunks()
            return
        for lines in self.batches():
            yield from lines

    def chunks(self) -> Iterator[str]:
        """The running text of the split."""
        start, stop = self.span()
        position = 0
        for chunk in read_text(self.paths, self.encoding, separate_files=self.separate_files):
            part = chunk[max(0, start - position) : None if stop is None else max(0, stop - position)]
            position += len(chunk)
            if part:
                yield part
            if stop is not None and position >= stop:
                return

    def batches(self) -> Iterator[list[str]]:
        """Batches of the lines of the split, in running text with their newlines."""
        if not self.lines:
            yield from map(split_at_newlines, self.chunks())
            return
        yield from in_batches(islice(read_lines(self.paths, self.encoding), *self.span()))

    def rows(self) -> Iterator[Row]:
        """The lines of the split with their locations. In running text, the first and the last line may be partial."""
        start, stop = self.span()
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
        """Approximate size of the text in bytes. Only compressed files are read for it."""
        compressed = any(path.suffix in COMPRESSED_SUFFIXES for path in self.paths)
        total = self.summary.bytes if compressed else sum(path.stat().st_size for path in self.paths)
        return int(total * (self.high - self.low))

    def provenance(self) -> dict[str, Any]:
        options: dict[str, Any] = {"low": self.low, "high": self.high}
        if not self.lines and (self.low, self.high) != (0.0, 1.0):
            options["split_at"] = "line ends or whitespace"
        if self.separate_files:
            options["separate_files"] = True
        return {"encoding": self.encoding, "lines": self.lines, **options, "files": fingerprints(self.paths)}


def fingerprints(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Size and SHA-256 of each file, which reveal any change."""
    return [_fingerprint(path) for path in paths]


def _fingerprint(path: Path) -> dict[str, Any]:
    check_regular_file(path)
    try:
        stat = path.stat()
        # cached, because splits and columns often share a file; st_ctime_ns reveals a change even if the mtime was restored
        digest = _digest(path, (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    except OSError as error:
        raise read_error(path, error) from None
    return {"file": path.name, "bytes": stat.st_size, "sha256": digest}


@lru_cache(maxsize=1 << 16)
def _digest(path: Path, state: tuple[int, ...]) -> str:
    """The SHA-256 of a file, cached for this process as long as `state` is the same."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
