"""Which text a split is: files, their encoding, how they are read, and the part of them that is meant."""

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
from weft.text.compression import PACKED, check_kind, unreadable
from weft.text.reading import MAX_LINE_CHARS, FileSummary, read_lines, read_text, split_at_newlines, summarize

# how many lines are handed on at once
LINES = 1 << 14
_EDGE = 1 << 20
# a share of running text is cut at a line end if one is within a hundredth of the text, or else at white space within a
# twentieth; beyond FAR characters nobody looks
ENDS, SPACES, FAR = 100, 20, 1 << 16


class Row(NamedTuple):
    """One line of a text, or a pair: `texts` has one side or two, `paths` where each comes from."""

    texts: tuple[str, ...]
    paths: tuple[Path, ...]
    line: int  # where it starts in its file, from 1


class Readable(Protocol):
    """What a corpus is made from: the text of a split, or one side of its pairs."""

    @property
    def name(self) -> str:
        """The files, for messages."""

    @property
    def paths(self) -> tuple[Path, ...]: ...

    @property
    def lines(self) -> bool:
        """Whether every line is a text of its own."""

    def texts(self) -> Iterator[str]:
        """What a tokenizer is trained on."""

    def batches(self) -> Iterator[list[str]]:
        """What is tokenised, many at a time: lines without their newlines, or those of running text with them."""

    def size(self) -> int:
        """About how many bytes of text that will be."""

    def provenance(self) -> dict[str, Any]:
        """What it depends on: the same origin, the same text; `files` has a fingerprint for each path."""


def display_name(paths: Sequence[Path]) -> str:
    """Some files, for messages."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def split_at(text: str, at: int, lines: int) -> int:
    """The place nearest to `at` where a text can be cut: after a line end that is at most `lines` characters away, or else
    before white space; `at` itself where there is none. Of two equally near the first."""
    after = [match.end() for match in re.finditer("\n", text) if abs(match.end() - at) <= lines]
    places = after or [match.start() for match in re.finditer(r"\s+", text) if match.start() > 0]
    return min(places, key=lambda place: abs(place - at), default=at)


class RowCount(NamedTuple):
    """What shares are taken of: so many things, of some files."""

    name: str  # of the files
    total: int
    unit: str
    more: str  # that would help, where they are too few

    def span(self, low: float, high: float) -> tuple[int, int | None]:
        """The first of the things in a share of them and the one after the last; None: to the end."""
        # 90 times 0.7 is a little less than 63 in binary
        start, stop = int(self.total * low + 1e-9), int(self.total * high + 1e-9) if high < 1 else None
        return self.checked(low, high, start, stop)

    def checked(self, low: float, high: float, start: int, stop: int | None) -> tuple[int, int | None]:
        """The same; a share of nothing is refused."""
        if start >= (self.total if stop is None else stop):
            told = f"1 {self.unit.removesuffix('s')} is" if self.total == 1 else f"{self.total:,} {self.unit} are"
            raise DataError(
                self.name,
                f"{told} too few to take the share {low:g} to {high:g} of them",
                f"give more {self.more}, or files of their own for valid and test",
            )
        return start, stop


def in_batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """The same lines, many at a time, but not so many that they are large."""
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if len(held) >= LINES or size > _EDGE:
            yield held
            held, size = [], 0
    if held:
        yield held


@dataclass(frozen=True)
class Source:
    """The part from `low` to `high` (shares of the lines, or of the characters of running text) of some files."""

    paths: tuple[Path, ...]
    encoding: str = "utf-8"
    lines: bool = False
    low: float = 0.0
    high: float = 1.0
    separate_files: bool = False  # every file is a text of its own: in running text, an empty line stands between them

    @property
    def name(self) -> str:
        """The files, for messages."""
        return display_name(self.paths)

    @cached_property
    def summary(self) -> FileSummary:
        """What the whole files hold, read once."""
        return summarize(self.paths, self.encoding)

    def span(self) -> tuple[int, int | None]:
        """The first line or character that is meant and the one after the last; None: to the end."""
        if (self.low, self.high) == (0.0, 1.0):
            return 0, None
        # a newline that read_text puts between files is not in the survey; a share is no worse for it
        total = self.summary.lines if self.lines else self.summary.characters
        counted = RowCount(self.name, total, "lines" if self.lines else "characters", "text")
        start, stop = counted.span(self.low, self.high)
        if self.lines:
            return start, stop
        first, last = self._edge(start, total), None if stop is None else self._edge(stop, total)
        return counted.checked(self.low, self.high, first, last)

    def _edge(self, at: int, total: int) -> int:
        """Where running text is cut that is to be cut at a character: at the nearest line end, or else white space."""
        reach = min(total // SPACES, FAR)
        if not 0 < at < total or reach == 0:
            return at
        low, text, before = max(0, at - reach), "", 0
        for piece in read_text(self.paths, self.encoding):
            text += piece[max(0, low - before) : max(0, at + reach - before)]
            before += len(piece)
            if before >= at + reach:
                break
        return low + split_at(text, at - low, min(total // ENDS, FAR))

    def texts(self) -> Iterator[str]:
        """Running text in pieces, or line by line, without the newlines no line has."""
        if not self.lines:
            yield from self.chunks()
            return
        for lines in self.batches():
            yield from lines

    def chunks(self) -> Iterator[str]:
        """The running text of the part."""
        start, stop = self.span()
        at = 0
        for piece in read_text(self.paths, self.encoding, separate_files=self.separate_files):
            part = piece[max(0, start - at) : None if stop is None else max(0, stop - at)]
            at += len(piece)
            if part:
                yield part
            if stop is not None and at >= stop:
                return

    def batches(self) -> Iterator[list[str]]:
        """The lines of the part, many at a time; those of running text with their newlines."""
        if not self.lines:
            yield from map(split_at_newlines, self.chunks())
            return
        yield from in_batches(islice(read_lines(self.paths, self.encoding), *self.span()))

    def rows(self) -> Iterator[Row]:
        """The lines of the part with their places; of running text the first and the last may be cut."""
        start, stop = self.span()
        at = 0
        for path in self.paths:
            lines = read_lines(path, self.encoding, max_length=MAX_LINE_CHARS if self.lines else None)
            for number, line in enumerate(lines, 1):
                size = 1 if self.lines else len(line) + 1
                low, high = max(0, start - at), size if stop is None else min(size, stop - at)
                if low < high:
                    yield Row((line if self.lines else line[low:high],), (path,), number)
                at += size
            at += self.separate_files and not self.lines

    def size(self) -> int:
        """About how many bytes of text there are; only packed files are read for it."""
        packed = any(path.suffix in PACKED for path in self.paths)
        whole = self.summary.bytes if packed else sum(path.stat().st_size for path in self.paths)
        return int(whole * (self.high - self.low))

    def provenance(self) -> dict[str, Any]:
        part: dict[str, Any] = {"low": self.low, "high": self.high}
        if not self.lines and (self.low, self.high) != (0.0, 1.0):
            part["cut"] = "at line ends or spaces"
        if self.separate_files:
            part["apart"] = True
        return {"encoding": self.encoding, "lines": self.lines, **part, "files": fingerprints(self.paths)}


def fingerprints(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Size and SHA-256 of each file: whatever is changed in one is noticed."""
    return [_fingerprint(path) for path in paths]


def _fingerprint(path: Path) -> dict[str, Any]:
    check_kind(path)
    try:
        found = path.stat()
        # two splits, or two sides, are often of one file. Who keeps its time of change can't keep that of its inode
        digest = _digest(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    except OSError as error:
        raise unreadable(path, error) from None
    return {"file": path.name, "bytes": found.st_size, "sha256": digest}


@lru_cache(maxsize=1 << 16)
def _digest(path: Path, state: tuple[int, ...]) -> str:
    """The SHA-256 of a file in a state; kept while the process lives, and no longer."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
