"""Reading text files: line ends, encodings, compressed files, invalid input and statistics."""

from __future__ import annotations

import gzip
import importlib
import lzma
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import DataError
from weft.text import compression as unpack
from weft.text import reading as gate
from weft.text.reading import check_text, preview, read_lines, read_text, split_at_newlines, summarize


def write(folder: Path, data: bytes, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def error_message(action) -> str:
    with pytest.raises(DataError) as caught:
        action()
    return str(caught.value)


@pytest.fixture
def short_pieces(monkeypatch):
    monkeypatch.setattr(gate, "CHUNK_CHARS", 16)
    monkeypatch.setattr(unpack, "CHUNK_BYTES", 5)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\r\r\nb\r", ["a\r", "b\r"]),
        (b"\n\na\n\n", ["", "", "a", ""]),
        ("a\u2028b\u0085c\x0bd\x1ce\n".encode(), ["a\u2028b\u0085c\x0bd\x1ce"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"  a \t\n", ["  a \t"]),
    ],
)
def test_a_line_ends_at_a_newline_only(tmp_path, data, lines):
    path = write(tmp_path, data)
    assert list(read_lines(path)) == lines
    assert "".join(read_text(path)) == "\n".join(lines) + ("\n" if data.endswith(b"\n") else "")


@given(
    data=st.text(st.sampled_from("ab \t\r\n\u2028é𝄞"), min_size=1).filter(lambda text: text.strip("\r\n")),
    chunk=st.integers(1, 7),
)
def test_chunk_size_does_not_change_the_text(tmp_path_factory, data, chunk):
    path = write(tmp_path_factory.getbasetemp(), data.encode(), "chunks.txt")
    full = data.replace("\r\n", "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "CHUNK_CHARS", 8)
        patch.setattr(unpack, "CHUNK_BYTES", chunk)
        pieces = list(read_text(path))
        # a file and the same text are split equally
        assert [part for piece in pieces for part in split_at_newlines(piece)] == split_at_newlines(full)
        assert all(len(piece) <= 8 for piece in pieces)
        lines = list(read_lines(path))
    assert "".join(pieces) == full
    assert lines == (full[:-1] if full.endswith("\n") else full).split("\n")


def test_a_long_line_is_split_before_whitespace_if_possible(tmp_path, short_pieces):
    path = write(tmp_path, b"short\n" + b"one two three four five six\n" + b"x" * 40 + b"\nend\n")
    assert list(read_text(path)) == [
        "short\n", "one two three", " four five six\n", "x" * 16, "x" * 16, "x" * 8 + "\nend\n",
    ]  # fmt: skip
    assert list(read_lines(path)) == ["short", "one two three four five six", "x" * 40, "end"]


def test_another_encoding_is_read_on_request(tmp_path):
    assert list(read_lines(write(tmp_path, "café\n".encode("latin-1")), "latin-1")) == ["café"]
    assert list(read_lines(write(tmp_path, "café\r\nb".encode("utf-16")), "utf-16")) == ["café", "b"]
    message = error_message(lambda: list(read_lines(write(tmp_path, b"a"), "utf-9")))
    assert message == "data.encoding: unknown text encoding 'utf-9'; common ones are utf-8, latin-1, cp1252 and utf-16"
    assert error_message(lambda: summarize(write(tmp_path, b"a"), "rot13")).startswith("data.encoding: unknown text encoding")


def test_several_files_are_one_text_and_lines_stay_separate(tmp_path):
    paths = [str(write(tmp_path, b"a b", "1")), str(write(tmp_path, b"c\n", "2")), str(write(tmp_path, b"d", "3"))]
    assert "".join(read_text(paths)) == "a b\nc\nd"
    assert list(read_lines(paths)) == ["a b", "c", "d"]


def test_invalid_bytes_are_rejected_with_their_position(tmp_path, short_pieces):
    path = write(tmp_path, b"good\nalso good\ncaf\xe9 x\n")
    message = f'{path}:3: invalid UTF-8 (byte 0xe9 at offset 18); convert the file or set data.encoding, e.g. "latin-1"'
    assert error_message(lambda: list(read_text(path))) == message
    path = write(tmp_path, b"cut off \xe2\x82")
    message = f'{path}:1: invalid UTF-8 (byte 0xe2 at offset 8); convert the file or set data.encoding, e.g. "latin-1"'
    assert error_message(lambda: summarize(path)) == message
    path = write(tmp_path, b"a\xff\n")
    message = f"{path}:1: invalid ascii (byte 0xff at offset 1); convert the file or set data.encoding"
    assert error_message(lambda: summarize(path, "ascii")) == message
    path = write(tmp_path, b"plain bytes!")
    message = f"{path}: invalid utf-16: UTF-16 stream does not start with BOM; set data.encoding"
    assert error_message(lambda: summarize(path, "utf-16")) == message


def test_nul_and_utf_16_are_rejected(tmp_path):
    path = write(tmp_path, b"a\nb\nc\0d\n")
    message = f"{path}:3: NUL character; is this a binary or UTF-16 file? For UTF-16, set data.encoding"
    assert error_message(lambda: list(read_lines(path))) == message
    path = write(tmp_path, "abc\n".encode("utf-16"))
    assert (
        error_message(lambda: summarize(path))
        == f'{path}: looks like UTF-16, not UTF-8; convert the file or set data.encoding = "utf-16"'
    )


def test_files_without_text_are_rejected(tmp_path):
    path = tmp_path / "none.txt"
    assert error_message(lambda: list(read_text(path))) == f"{path}: file not found"
    assert error_message(lambda: summarize(tmp_path)) == f"{tmp_path}: is a directory; name the files in it"
    path = write(tmp_path, b"")
    assert error_message(lambda: list(read_lines(path))) == f"{path}: file is empty"
    assert error_message(lambda: summarize(write(tmp_path, b"\xef\xbb\xbf"))) == f"{path}: file is empty"
    path = write(tmp_path, b"\n\r\n\n")
    message = f"{path}: no text, only 3 empty lines"
    assert error_message(lambda: list(read_text(path))) == message
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    message = f"{pipe}: not a regular file; text is read more than once, so save it to a file first"
    assert error_message(lambda: summarize(pipe)) == message


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (gzip.compress(b"a", mtime=0), "gzip data; name it .gz"),
        (lzma.compress(b"a"), "xz data; name it .xz"),
        (b"PK\x03\x04....", "a zip archive; decompress it first"),
        (b"%PDF-1.5", "a PDF document; extract its text first"),
    ],
)
def test_binary_formats_are_named(tmp_path, data, kind):
    path = write(tmp_path, data)
    assert error_message(lambda: summarize(path)) == f"{path}: is {kind}"


def test_compressed_files_are_read(tmp_path):
    text = b"one\ntwo\n" * 1000
    assert "".join(read_text(write(tmp_path, gzip.compress(text), "a.gz"))).encode() == text
    assert "".join(read_text(write(tmp_path, lzma.compress(text), "a.xz"))).encode() == text
    zstandard = pytest.importorskip("zstandard")
    frames = zstandard.compress(text) + zstandard.compress(text)
    assert "".join(read_text(write(tmp_path, frames, "a.zst"))).encode() == text + text


def test_damaged_compressed_files_are_rejected(tmp_path):
    path = write(tmp_path, b"no gzip", "a.gz")
    assert error_message(lambda: summarize(path)) == f"{path}: corrupted or not .gz data: not a gzipped file (b'no')"
    path = write(tmp_path, gzip.compress(b"abc" * 1000)[:-12], "b.gz")
    message = f"{path}: corrupted or not .gz data: compressed file ended before the end-of-stream marker was reached"
    assert error_message(lambda: summarize(path)) == message
    path = write(tmp_path, b"no xz at all", "a.xz")
    message = f"{path}: corrupted or not .xz data: input format not supported by decoder"
    assert error_message(lambda: summarize(path)) == message
    pytest.importorskip("zstandard")
    path = write(tmp_path, b"no zstd at all", "a.zst")
    assert error_message(lambda: summarize(path)).startswith(f"{path}: corrupted or not .zst data: ")


def test_zst_without_its_package_names_the_package(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    path = write(tmp_path, b"", "a.zst")
    assert error_message(lambda: summarize(path)) == f"{path}: .zst needs zstandard; run pip install zstandard"


def test_a_decompression_bomb_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(unpack, "MIN_RATIO_BYTES", 1 << 16)
    path = write(tmp_path, gzip.compress(b"a\n" * (4 << 20)), "a.gz")
    message = f"{path}: decompresses to more than 200 times its size; if this is right, decompress it first"
    assert error_message(lambda: summarize(path)) == message


def test_memory_does_not_grow_with_the_length_of_a_line(tmp_path):
    path = write(tmp_path, b"ab " * (8 << 20))
    tracemalloc.start()
    length = sum(len(piece) for piece in read_text(path))
    assert summarize(path).lines == 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert length == 24 << 20
    assert peak < 12 << 20


def test_strings_that_are_not_valid_utf_8_are_rejected():
    assert check_text("a\u2028é", "prompt") == "a\u2028é"
    message = "prompt: lone surrogate U+D800 at character 1; use whole characters"
    assert error_message(lambda: check_text("a\ud800b", "prompt")) == message
    message = "prompt: NUL at character 2; is this binary data?"
    assert error_message(lambda: check_text("ab\0", "prompt")) == message


def test_statistics_include_three_examples(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbfone\r\n\r\ntwo \xe2\x80\xae\x07\r\n" + b"x" * 200 + b"\r\nfour")
    seen = summarize(path)
    assert (seen.lines, seen.blank, seen.newline, seen.encoding) == (5, 1, "CRLF", "utf-8")
    assert seen.characters == 4 + 1 + 7 + 201 + 4
    assert seen.bytes == path.stat().st_size
    assert seen.describe() == (
        f"{path}: 5 lines, 217 characters, 226 bytes of utf-8, CRLF line endings\n"
        "  note: a.txt: removed a byte order mark at the start\n"
        "  note: blank lines: 1\n"
        "  e.g.: one\n"
        "  e.g.: two \\u{202e}\\u{7}\n"
        f"  e.g.: {'x' * 100}..."
    )
    mixed = summarize(write(tmp_path, b"a\nb\r\nc\nd\n"))
    assert mixed.describe().split("\n")[0].endswith("4 lines, 8 characters, 9 bytes of utf-8, mixed line endings (1 CRLF)")
    both = summarize([str(path), str(path)])
    assert both.describe().startswith(f"2 files ({path}, ...): 8 lines")


def test_control_characters_are_printed_as_escapes():
    assert preview("a\tb\u202ec\x1b[31m\ud800") == "a\\u{9}b\\u{202e}c\\u{1b}[31m\\u{d800}"
    assert preview("abc", 2) == "ab..."
