"""The one gate through which all text enters.

Bytes are read as UTF-8, or as the encoding that is asked for, and a line ends at `\\n` only: U+2028, U+0085, form feed
and the like are content. A `\\r` right before `\\n` is dropped and counted; a lone `\\r` is content. A byte order mark
at the start is dropped and noted. A last line without `\\n` is a line. Nothing is normalised, replaced or guessed:
invalid bytes, NUL characters and lone surrogates are refused with their place. Files may be packed (.gz, .xz, .zst).

Memory is bounded by the piece or the line that is asked for, never by the file.
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

# running text is handed on in pieces of at most so many characters, and no longer line is tokenised in one go
CHUNK_CHARS = 1 << 18
PREVIEW_CHARS = 100
MAX_LINE_CHARS = 1 << 24  # characters of a line that is a text of its own: what has more has no lines
# what would turn the direction of the terminal's text, or hide: shown as escapes
_BIDI = re.compile("[\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


@dataclass
class FileSummary:
    """What was found in one or several files: shown to the user, so that a wrong guess is noticed early."""

    paths: list[Path]
    encoding: str
    lines: int = 0
    blank: int = 0
    bytes: int = 0
    characters: int = 0
    has_crlf: int = 0
    notes: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    columns: tuple[str, ...] = ()  # of the latest table: the names of its header, or the keys of its first object
    container: str = ""  # what rows come from that are no lines of text: "Parquet"
    skipped: int = 0  # records that nothing can be done with, and that are left out
    first_skipped: str = ""  # its place

    def skip(self, place: str) -> None:
        self.skipped += 1
        self.first_skipped = self.first_skipped or place

    @property
    def newline(self) -> str:
        """LF, CRLF, or mixed."""
        if not self.has_crlf:
            return "LF"
        return "CRLF" if self.has_crlf >= self.lines - len(self.paths) else "mixed"

    @property
    def written(self) -> str:
        """How, in a word or two: encoding and line ends."""
        if self.container and not self.bytes:
            return self.container
        return f"{self.encoding}, " + (f"CRLF line ends in {self.has_crlf:,} places" if self.has_crlf else "LF line ends")

    @property
    def crlf(self) -> int:
        """CRLF line endings."""
        return self.has_crlf

    def describe(self) -> str:
        """Several lines for people: files, sizes, encoding, line ends, notes, examples."""
        name = str(self.paths[0]) if len(self.paths) == 1 else f"{len(self.paths)} files ({self.paths[0]}, ...)"
        ends = f"{self.newline} line ends"
        if self.newline == "mixed":
            ends = f"mixed line ends ({self.has_crlf:,} CRLF)"
        sizes = (pluralize(self.lines, "line"), pluralize(self.characters, "character"), pluralize(self.bytes, "byte"))
        rows = [f"{preview(name)}: {', '.join(sizes)} of {self.encoding}, {ends}"]
        notes = [*self.notes, *([f"blank lines: {self.blank:,}"] if self.blank else [])]
        rows += [f"  note: {preview(note, 200)}" for note in notes]
        rows += [f"  e.g.: {preview(example)}" for example in self.examples]
        return "\n".join(rows)


class RawLine(NamedTuple):
    """A line of a file, and what it has besides: all three joined are what was read."""

    text: str
    end: str = "\n"  # or "\r\n"; "" where the file ends without one
    start: str = ""  # a byte order mark


def pluralize(count: int, name: str) -> str:
    """A number and what it is of, for people: 1 line, 2 lines."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def subject(count: int, name: str, one: str, several: str) -> str:
    """The same with a verb that fits: 1 text is, 2 texts are."""
    return f"{pluralize(count, name)} {one if count == 1 else several}"


def listed_files(paths: Sequence[Path]) -> str:
    """Some files, for people: the first two by name."""
    more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""
    return preview(" and ".join(map(str, paths[:2])), 200) + more


def preview(text: str, max_chars: int = PREVIEW_CHARS) -> str:
    """`text` for one line of a terminal: cut, with control and direction characters as escapes."""
    kept = text[:max_chars]
    parts = [
        f"\\u{{{ord(char):x}}}" if unicodedata.category(char) in ("Cc", "Cs") or _BIDI.match(char) else char for char in kept
    ]
    return "".join(parts) + ("..." if len(text) > max_chars else "")


def quote(text: str, max_chars: int = PREVIEW_CHARS) -> str:
    """The same in quotes; repr would spell the escapes once more."""
    mark = '"' if "'" in text and '"' not in text else "'"
    return f"{mark}{preview(text, max_chars)}{mark}"


def invalid_text(text: object) -> str | None:
    """Why something is no text that a file could hold, if it is none: it is no string, or has a NUL or a lone surrogate."""
    if not isinstance(text, str):
        return f"must be a string, not {type(text).__name__}"
    at = text.find("\0")
    if at >= 0:
        return f"character {at} is NUL; text has none, is this binary data?"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        return f"character {error.start} is {code}, half of a surrogate pair; send whole characters"
    return None


def check_text(text: str, where: str) -> str:
    """`text` itself; refused where it is none that a file could hold."""
    if (reason := invalid_text(text)) is not None:
        raise DataError(where, f"{reason}")
    return text


def check_encoding(name: str) -> str:
    """The encoding's usual name; refused if Python has none such for text."""
    try:
        "a".encode(name).decode(name)
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise DataError(
            "data.encoding", f"no such text encoding {name!r}", "usual ones: utf-8, latin-1, cp1252, utf-16"
        ) from None


def as_paths(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """One path or several, as a list."""
    return [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]


class _Reader:
    """One file as decoded text with `\\n` line ends, in chunks as they come off the disk."""

    def __init__(self, path: Path, encoding: str, summary: FileSummary) -> None:
        self.path, self.encoding, self.summary = path, check_encoding(encoding), summary
        self.line = 1

    def __iter__(self) -> Iterator[str]:
        held, first = "", True
        for chunk in self._decoded():
            text = held + chunk
            if first and text:
                first = False
                if text[0] == "\ufeff":
                    text = text[1:]
                    self.summary.notes.append(f"{self.path.name}: a byte order mark at the start was dropped")
            # the \n that this \r may belong to is in the next chunk
            held = "\r" if text.endswith("\r") else ""
            yield self._checked(text[: len(text) - len(held)])
        if held:
            yield self._checked(held)

    def _decoded(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(self.encoding)("strict")
        start = 0
        for chunk in read_bytes(self.path):
            if start == 0 and self.encoding == "utf-8" and chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise DataError(
                    self.path, "starts like UTF-16, not UTF-8", 'convert it, or set data.encoding = "utf-16" in the run file'
                )
            held = len(decoder.getstate()[0])
            try:
                yield decoder.decode(chunk)
            except UnicodeError as error:
                raise self._invalid(error, start - held) from None
            start += len(chunk)
            self.summary.bytes += len(chunk)
        held = len(decoder.getstate()[0])
        try:
            yield decoder.decode(b"", final=True)
        except UnicodeError as error:
            raise self._invalid(error, start - held) from None

    def _checked(self, text: str) -> str:
        at = text.find("\0")
        if at >= 0:
            line = self.line + text.count("\n", 0, at)
            raise DataError(
                self.path, f"line {line} holds a NUL character", "is it binary data, or UTF-16 (set data.encoding)?"
            )
        if self.encoding != "utf-8" and not text.isascii():  # some, like UTF-7, let half a surrogate pair through
            check_text(text, f"{self.path}: after line {self.line}")
        self.line += text.count("\n")
        if "\r\n" in text:
            whole, text = len(text), text.replace("\r\n", "\n")
            self.summary.has_crlf += whole - len(text)
        self.summary.characters += len(text)
        return text

    def _invalid(self, error: UnicodeError, before: int) -> DataError:
        if not isinstance(error, UnicodeDecodeError):
            return DataError(self.path, f"is not {self.encoding}: {error}", "set data.encoding")
        line = self.line + error.object[: error.start].count(b"\n")
        byte, at = error.object[error.start], before + error.start
        fix = (
            'convert it, or set data.encoding, e.g. "latin-1", in the run file'
            if self.encoding == "utf-8"
            else "convert it, or set data.encoding to what it is"
        )
        return DataError(self.path, f"line {line}, byte {at} (0x{byte:02x}) is not {self.encoding}", f"{fix}")


def _truncate(text: str, max_chars: int) -> int:
    """Where to end a piece of a line longer than `most`: before its last white space, or else right there."""
    for at in range(max_chars, max_chars // 2, -1):
        if text[at].isspace():
            return at
    return max_chars


def split_at_newlines(text: str) -> list[str]:
    """`text` as its lines, each with its `\\n`; those longer than PIECE cut at a white space. Joined: `text`."""
    if len(text) <= CHUNK_CHARS and text.find("\n") in (-1, len(text) - 1):
        return [text] if text else []
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    if len(text) <= CHUNK_CHARS:
        return lines if lines[-1] else lines[:-1]
    parts: list[str] = []
    for line in lines:
        while len(line) > CHUNK_CHARS:
            at = _truncate(line, CHUNK_CHARS)
            parts.append(line[:at])
            line = line[at:]
        if line:
            parts.append(line)
    return parts


def _pieces(chunks: Iterable[str]) -> Iterator[str]:
    """The same text in pieces of at most PIECE characters that end at a line end, or where `cut` would cut."""
    buffer = ""
    for chunk in chunks:
        buffer += chunk
        start = 0
        # one more than a piece: _cut looks at the character after it
        while len(buffer) - start > CHUNK_CHARS:
            at = buffer.rfind("\n", start, start + CHUNK_CHARS) + 1
            if at <= start:
                at = start + _truncate(buffer[start : start + CHUNK_CHARS + 1], CHUNK_CHARS)
            yield buffer[start:at]
            start = at
        buffer = buffer[start:]
    if buffer:
        yield buffer


def _files(paths: str | Path | Sequence[str | Path], summary: FileSummary) -> Iterator[Iterator[str]]:
    for path in as_paths(paths):
        yield _one_file(path, summary)


def _one_file(path: Path, summary: FileSummary) -> Iterator[str]:
    """The pieces of one file, refused at its end if there was nothing in it."""
    before, empty = summary.characters, True
    for piece in _pieces(_Reader(path, summary.encoding, summary)):
        empty = empty and not piece.strip("\n")
        yield piece
    if summary.characters == before:
        raise DataError(path, "is empty", "give a file with text in it")
    if empty:
        raise DataError(path, f"holds {summary.characters - before:,} empty lines and no text", "give a file with text in it")


def read_text(
    paths: str | Path | Sequence[str | Path],
    encoding: str = "utf-8",
    summary: FileSummary | None = None,
    *,
    separate_files: bool = False,
) -> Iterator[str]:
    """Running text in pieces of at most PIECE characters; between files a missing last `\\n` is put in, and an empty line if
    they are to be apart."""
    summary = summary or FileSummary(as_paths(paths), encoding)
    last = ""
    for file in _files(paths, summary):
        if last and (separate_files or last != "\n"):
            yield "\n" if last == "\n" or not separate_files else "\n\n"
        for piece in file:
            last = piece[-1]
            yield piece


def read_whole(path: Path, encoding: str = "utf-8", summary: FileSummary | None = None) -> str:
    """A file as one text, which may be empty."""
    summary = summary or FileSummary([path], encoding)
    return "".join(_pieces(_Reader(path, summary.encoding, summary)))


def _lines(pieces: Iterable[str], where: str, max_length: int | None) -> Iterator[str]:
    # parts of a line longer than a piece
    open_line: list[str] = []
    number, size = 1, 0
    for piece in pieces:
        first, *others = piece.split("\n")
        open_line.append(first)
        size += len(first)
        if max_length is not None and size > max_length:
            raise DataError(where, f"line {number} has more than {max_length:,} characters", "is it text?")
        if others:
            yield "".join(open_line)
            yield from others[:-1]
            open_line, number, size = [others[-1]], number + len(others), len(others[-1])
    if rest := "".join(open_line):
        yield rest


def read_lines(
    paths: str | Path | Sequence[str | Path],
    encoding: str = "utf-8",
    summary: FileSummary | None = None,
    *,
    max_length: int | None = MAX_LINE_CHARS,
) -> Iterator[str]:
    """Every line without its `\\n`; a longer one than any text is refused, unless `longest` is None."""
    summary = summary or FileSummary(as_paths(paths), encoding)
    for path, file in zip(as_paths(paths), _files(paths, summary), strict=True):
        yield from _lines(file, str(path), max_length)


def summarize(paths: str | Path | Sequence[str | Path], encoding: str = "utf-8") -> FileSummary:
    """Read everything once: what is there, whether it can be read at all, and three examples."""
    summary = FileSummary(as_paths(paths), check_encoding(encoding))
    for file in _files(paths, summary):
        # of a line longer than a piece only the start is kept: it may be as long as the file
        start = ""
        for piece in file:
            lines = piece.split("\n")
            lines[0] = start + lines[0]
            start = lines.pop()[:CHUNK_CHARS]
            _note(summary, lines)
        _note(summary, [start] if start else [])
    return summary


def _note(summary: FileSummary, lines: list[str]) -> None:
    summary.lines += len(lines)
    summary.blank += lines.count("")
    if len(summary.examples) < 3:
        found = [line[: PREVIEW_CHARS + 1] for line in lines if line.strip()]
        summary.examples += found[: 3 - len(summary.examples)]
