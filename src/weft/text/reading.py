"""Reads text files. All text that weft reads passes through this module.

Text is decoded as UTF-8 or another encoding that the user sets. Only `\\n` ends a line: U+2028, U+0085, form feeds and the like
are content. A `\\r` before `\\n` is removed and counted; any other `\\r` is content. A byte order mark at the start is removed
and noted. A last line without `\\n` is a line. Nothing is normalized, replaced or guessed: invalid bytes, NUL characters and
lone surrogates are errors with their position. Files may be compressed (.gz, .xz, .zst).

Memory is proportional to a chunk or a line, not to the file.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from weft.errors import DataError
from weft.text.compression import read_bytes

CHUNK_CHARS = 1 << 18  # maximum size of a chunk of running text; longer lines are tokenized in parts
PREVIEW_CHARS = 100
MAX_LINE_CHARS = 1 << 24  # of a line that is a separate text: longer lines suggest a binary file
# invisible characters and those that change the text direction, which are printed as escapes
_INVISIBLE = re.compile("[\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


@dataclass
class FileSummary:
    """Counts and properties of one or several files, printed so that a wrong assumption is noticed early."""

    paths: list[Path]
    encoding: str
    lines: int = 0
    blank: int = 0
    bytes: int = 0
    characters: int = 0
    num_crlf: int = 0  # CRLF line endings
    notes: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    columns: tuple[str, ...] = ()  # of the last table: names in its header, or keys of its first object
    container: str = ""  # format of a table that has no lines of text, such as "Parquet"
    skipped: int = 0  # records without text
    first_skipped: str = ""  # location of the first skipped record

    def skip(self, location: str) -> None:
        self.skipped += 1
        self.first_skipped = self.first_skipped or location

    @property
    def count(self) -> int:
        """The number of lines, under the name that summaries of records have."""
        return self.lines

    @property
    def newline(self) -> str:
        """LF, CRLF, or mixed."""
        if not self.num_crlf:
            return "LF"
        return "CRLF" if self.num_crlf >= self.lines - len(self.paths) else "mixed"

    @property
    def encoding_info(self) -> str:
        """Encoding and line endings, for messages."""
        if self.container and not self.bytes:
            return self.container
        return f"{self.encoding}, " + (f"{self.num_crlf:,} CRLF line endings" if self.num_crlf else "LF line endings")

    def describe(self) -> str:
        """A report of several lines: files, sizes, encoding, line endings, notes, examples."""
        name = str(self.paths[0]) if len(self.paths) == 1 else f"{len(self.paths)} files ({self.paths[0]}, ...)"
        endings = f"{self.newline} line endings"
        if self.newline == "mixed":
            endings = f"mixed line endings ({self.num_crlf:,} CRLF)"
        sizes = (pluralize(self.lines, "line"), pluralize(self.characters, "character"), pluralize(self.bytes, "byte"))
        rows = [f"{preview(name)}: {', '.join(sizes)} of {self.encoding}, {endings}"]
        notes = [*self.notes, *([f"blank lines: {self.blank:,}"] if self.blank else [])]
        rows += [f"  note: {preview(note, 200)}" for note in notes]
        rows += [f"  e.g.: {preview(example)}" for example in self.examples]
        return "\n".join(rows)


class RawLine(NamedTuple):
    """A line of a file; `start + text + end` is the unchanged text of the file."""

    text: str
    end: str = "\n"  # or "\r\n", or "" at the end of the file
    start: str = ""  # a byte order mark


def pluralize(count: int, name: str) -> str:
    """A count with its noun: 1 line, 2 lines."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def subject(count: int, name: str, singular: str, plural: str) -> str:
    """A count with its noun and verb: 1 text is, 2 texts are."""
    return f"{pluralize(count, name)} {singular if count == 1 else plural}"


def listed_files(paths: Sequence[Path]) -> str:
    """The names of the first two files, and the number of the others."""
    more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""
    return preview(" and ".join(map(str, paths[:2])), 200) + more


def preview(text: str, max_chars: int = PREVIEW_CHARS) -> str:
    """`text` for one line of a terminal: shortened, with control and invisible characters as escapes."""
    chars = [
        f"\\u{{{ord(char):x}}}" if unicodedata.category(char) in ("Cc", "Cs") or _INVISIBLE.match(char) else char
        for char in text[:max_chars]
    ]
    return "".join(chars) + ("..." if len(text) > max_chars else "")


def quote(text: str, max_chars: int = PREVIEW_CHARS) -> str:
    """A preview in quotes; repr would escape its escapes again."""
    mark = '"' if "'" in text and '"' not in text else "'"
    return f"{mark}{preview(text, max_chars)}{mark}"


def invalid_text(text: object) -> str | None:
    """The reason why a text file cannot contain `text`: not a string, a NUL, or a lone surrogate; None if it can."""
    if not isinstance(text, str):
        return f"expected a string, got {type(text).__name__}"
    position = text.find("\0")
    if position >= 0:
        return f"NUL at character {position}; is this binary data?"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        return f"lone surrogate {code} at character {error.start}; use whole characters"
    return None


def check_text(text: str, where: str) -> str:
    """Return `text`; an error if a text file cannot contain it."""
    if (reason := invalid_text(text)) is not None:
        raise DataError(where, reason)
    return text


def check_encoding(name: str) -> str:
    """The canonical name of a text encoding; an error if Python does not know it."""
    try:
        "a".encode(name).decode(name)
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise DataError(
            "data.encoding", f"unknown text encoding {name!r}", "common ones are utf-8, latin-1, cp1252 and utf-16"
        ) from None


def as_paths(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """One or several paths as a list."""
    return [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]


class _Reader:
    """Iterates over chunks of decoded text with `\\n` line endings."""

    def __init__(self, path: Path, encoding: str, summary: FileSummary) -> None:
        self.path, self.encoding, self.summary = path, check_encoding(encoding), summary
        self.line = 1

    def __iter__(self) -> Iterator[str]:
        pending, is_start = "", True
        for chunk in self._decode():
            text = pending + chunk
            if is_start and text:
                is_start = False
                if text[0] == "\ufeff":
                    text = text[1:]
                    self.summary.notes.append(f"{self.path.name}: removed a byte order mark at the start")
            # the \n of a final \r may be at the start of the next chunk
            pending = "\r" if text.endswith("\r") else ""
            yield self._check(text[: len(text) - len(pending)])
        if pending:
            yield self._check(pending)

    def _decode(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(self.encoding)("strict")
        num_bytes = 0
        for chunk in read_bytes(self.path):
            if num_bytes == 0 and self.encoding == "utf-8" and chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise DataError(self.path, "looks like UTF-16, not UTF-8", 'convert the file or set data.encoding = "utf-16"')
            num_pending = len(decoder.getstate()[0])
            try:
                yield decoder.decode(chunk)
            except UnicodeError as error:
                raise self._decoding_error(error, num_bytes - num_pending) from None
            num_bytes += len(chunk)
            self.summary.bytes += len(chunk)
        num_pending = len(decoder.getstate()[0])
        try:
            yield decoder.decode(b"", final=True)
        except UnicodeError as error:
            raise self._decoding_error(error, num_bytes - num_pending) from None

    def _check(self, text: str) -> str:
        """Refuse invalid characters, convert CRLF to LF, and update the summary."""
        position = text.find("\0")
        if position >= 0:
            line = self.line + text.count("\n", 0, position)
            fix = "is this a binary or UTF-16 file? For UTF-16, set data.encoding"
            raise DataError(f"{self.path}:{line}", "NUL character", fix)
        if self.encoding != "utf-8" and not text.isascii():  # some encodings, such as UTF-7, can produce lone surrogates
            check_text(text, f"{self.path}: after line {self.line}")
        self.line += text.count("\n")
        if "\r\n" in text:
            length, text = len(text), text.replace("\r\n", "\n")
            self.summary.num_crlf += length - len(text)
        self.summary.characters += len(text)
        return text

    def _decoding_error(self, error: UnicodeError, start: int) -> DataError:
        """The error for a chunk that starts at byte `start` of the file."""
        if not isinstance(error, UnicodeDecodeError):
            return DataError(self.path, f"invalid {self.encoding}: {error}", "set data.encoding")
        line = self.line + error.object[: error.start].count(b"\n")
        byte, offset = error.object[error.start], start + error.start
        fix = "convert the file or set data.encoding" + (', e.g. "latin-1"' if self.encoding == "utf-8" else "")
        name = "UTF-8" if self.encoding == "utf-8" else self.encoding
        return DataError(f"{self.path}:{line}", f"invalid {name} (byte 0x{byte:02x} at offset {offset})", fix)


def _split_point(text: str, max_chars: int) -> int:
    """Where to split a line of more than `max_chars`: before the last whitespace in the second half, or at the limit."""
    for position in range(max_chars, max_chars // 2, -1):
        if text[position].isspace():
            return position
    return max_chars


def split_at_newlines(text: str) -> list[str]:
    """Split `text` after every `\\n`, and lines longer than CHUNK_CHARS at whitespace. Joined, the result is `text`."""
    if len(text) <= CHUNK_CHARS and text.find("\n") in (-1, len(text) - 1):
        return [text] if text else []
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    if len(text) <= CHUNK_CHARS:
        return lines if lines[-1] else lines[:-1]
    parts: list[str] = []
    for line in lines:
        while len(line) > CHUNK_CHARS:
            end = _split_point(line, CHUNK_CHARS)
            parts.append(line[:end])
            line = line[end:]
        if line:
            parts.append(line)
    return parts


def _rechunk(chunks: Iterable[str]) -> Iterator[str]:
    """The same text in chunks of at most CHUNK_CHARS that end after a newline, or where `split_at_newlines` splits a line."""
    buffer = ""
    for chunk in chunks:
        buffer += chunk
        start = 0
        # one character more than a chunk, because _split_point reads the character at the limit
        while len(buffer) - start > CHUNK_CHARS:
            end = buffer.rfind("\n", start, start + CHUNK_CHARS) + 1
            if end <= start:
                end = start + _split_point(buffer[start : start + CHUNK_CHARS + 1], CHUNK_CHARS)
            yield buffer[start:end]
            start = end
        buffer = buffer[start:]
    if buffer:
        yield buffer


def _files(paths: str | Path | Sequence[str | Path], summary: FileSummary) -> Iterator[Iterator[str]]:
    for path in as_paths(paths):
        yield _read_file(path, summary)


def _read_file(path: Path, summary: FileSummary) -> Iterator[str]:
    """Chunks of one file; an error at its end if it has no text."""
    num_before, is_blank = summary.characters, True
    for chunk in _rechunk(_Reader(path, summary.encoding, summary)):
        is_blank = is_blank and not chunk.strip("\n")
        yield chunk
    if summary.characters == num_before:
        raise DataError(path, "file is empty")
    if is_blank:
        raise DataError(path, f"no text, only {pluralize(summary.characters - num_before, 'empty line')}")


def read_text(
    paths: str | Path | Sequence[str | Path],
    encoding: str = "utf-8",
    summary: FileSummary | None = None,
    *,
    separate_files: bool = False,
) -> Iterator[str]:
    """Running text in chunks of at most CHUNK_CHARS. Between files, a missing `\\n` is inserted; with `separate_files`, also an
    empty line."""
    summary = summary or FileSummary(as_paths(paths), encoding)
    last_char = ""
    for file in _files(paths, summary):
        if last_char and (separate_files or last_char != "\n"):
            yield "\n" if last_char == "\n" or not separate_files else "\n\n"
        for chunk in file:
            last_char = chunk[-1]
            yield chunk


def read_file_text(path: Path, encoding: str = "utf-8", summary: FileSummary | None = None) -> str:
    """A file as one text, which may be empty."""
    summary = summary or FileSummary([path], encoding)
    return "".join(_rechunk(_Reader(path, summary.encoding, summary)))


def _lines(chunks: Iterable[str], where: str, max_length: int | None) -> Iterator[str]:
    open_line: list[str] = []  # parts of a line that spans chunks
    number, size = 1, 0
    for chunk in chunks:
        first, *rest = chunk.split("\n")
        open_line.append(first)
        size += len(first)
        if max_length is not None and size > max_length:
            raise DataError(f"{where}:{number}", f"line has more than {max_length:,} characters", "is this a text file?")
        if rest:
            yield "".join(open_line)
            yield from rest[:-1]
            open_line, number, size = [rest[-1]], number + len(rest), len(rest[-1])
    if last := "".join(open_line):
        yield last


def read_lines(
    paths: str | Path | Sequence[str | Path],
    encoding: str = "utf-8",
    summary: FileSummary | None = None,
    *,
    max_length: int | None = MAX_LINE_CHARS,
) -> Iterator[str]:
    """Lines without `\\n`. A line longer than `max_length` characters is an error; None: no limit."""
    summary = summary or FileSummary(as_paths(paths), encoding)
    for path, file in zip(as_paths(paths), _files(paths, summary), strict=True):
        yield from _lines(file, str(path), max_length)


def summarize(paths: str | Path | Sequence[str | Path], encoding: str = "utf-8") -> FileSummary:
    """Read all files once to check them, count their content and collect three examples."""
    summary = FileSummary(as_paths(paths), check_encoding(encoding))
    for file in _files(paths, summary):
        # of a line longer than a chunk, only the start is kept
        start = ""
        for chunk in file:
            lines = chunk.split("\n")
            lines[0] = start + lines[0]
            start = lines.pop()[:CHUNK_CHARS]
            _add_lines(summary, lines)
        _add_lines(summary, [start] if start else [])
    return summary


def _add_lines(summary: FileSummary, lines: list[str]) -> None:
    summary.lines += len(lines)
    summary.blank += lines.count("")
    if len(summary.examples) < 3:
        previews = [line[: PREVIEW_CHARS + 1] for line in lines if line.strip()]
        summary.examples += previews[: 3 - len(summary.examples)]
