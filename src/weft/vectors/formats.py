"""Files of word vectors: the text and binary formats of word2vec, safetensors, and .npy with a list of words.

    .txt, .vec    "V D" on the first line (GloVe has none), then a word and D numbers per line; .gz, .xz and .zst as well
    .bin          the same header, then each word, a space, D float32 numbers
    .safetensors  "vectors" (V, D), and "words", their UTF-8 text with a newline after each, as bytes
    .npy          an array (V, D); the words are in a file of the same name that ends in .words.txt, one per line

A word cannot have spaces or newlines in the formats of word2vec.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from weft import files
from weft.errors import DataError, UsageError
from weft.tensors import read_external_arrays, write_tensors
from weft.text.compression import COMPRESSED_SUFFIXES, read_error
from weft.text.reading import quote, read_lines
from weft.vectors.rows import Floats
from weft.vectors.word_vectors import WordVectors, dense_vectors

SUFFIXES = (".txt", ".vec", ".bin", ".safetensors", ".npy")
HEADER_BYTES = 64
FIX = "all vectors of a file must have the same dimension"


def vector_format(path: Path) -> str:
    """The suffix that determines the format."""
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSED_SUFFIXES else path.suffix
    if suffix not in SUFFIXES:
        raise UsageError(path, "not a file of word vectors", f"use a name that ends in {', '.join(SUFFIXES)}")
    return suffix


def read_vectors(path: Path) -> WordVectors:
    """Read a file of word vectors."""
    suffix = vector_format(path)
    files.refuse_device(path)
    if not path.is_file():
        raise DataError(path, "file not found")
    try:
        if suffix == ".bin":
            words, array = _read_binary(path)
        elif suffix == ".safetensors":
            words, array = _read_safetensors(path)
        elif suffix == ".npy":
            words, array = _read_npy(path)
        else:
            words, array = _read_text(path)
    except OSError as error:
        raise read_error(path, error) from None
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(1))[0])
        raise DataError(path, f"the vector of {quote(words[row])} has NaN or infinite values", "remove the word")
    rows = sorted({word: row for row, word in reversed(list(enumerate(words)))}.values())  # of equal words, the first
    return dense_vectors([words[row] for row in rows], array if len(rows) == len(words) else array[rows], str(path))


def write_vectors(vectors: WordVectors, path: Path) -> list[str]:
    """Write vectors in the format of the file name. Returns notes for the user."""
    suffix = vector_format(path)
    if path.suffix in COMPRESSED_SUFFIXES:
        raise UsageError(path, "vectors are not compressed when they are written", f"name it {path.with_suffix('').name}")
    array, words = np.ascontiguousarray(vectors.dense(), np.float32), vectors.words
    if suffix == ".safetensors":
        text = np.frombuffer("".join(f"{word}\n" for word in words).encode(), np.uint8)
        write_tensors(path, {"vectors": array, "words": text.copy()})
        return []
    if suffix == ".npy":
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, array)
        files.write_bytes(path, buffer.getvalue(), user_path=True)
        files.write_text(words_file(path), "".join(f"{word}\n" for word in words), user_path=True)
        return [f"the words are in {words_file(path)}"]
    kept = [row for row, word in enumerate(words) if word and not any(char.isspace() for char in word)]
    _write_word2vec(path, [words[row] for row in kept], array[kept], binary=suffix == ".bin")
    skipped = len(words) - len(kept)
    return [f"{skipped:,} words with spaces were left out, which this format cannot have"] if skipped else []


def _write_word2vec(path: Path, words: Sequence[str], array: Floats, *, binary: bool) -> None:
    with files.atomic_write(path, user_path=True) as write:
        write(f"{len(words)} {array.shape[1]}\n".encode())
        for word, vector in zip(words, array, strict=True):
            if binary:
                write(word.encode() + b" " + vector.astype("<f4").tobytes() + b"\n")
            else:
                write(f"{word} {' '.join(map(str, vector))}\n".encode())


def words_file(path: Path) -> Path:
    """The file with the words of an .npy file."""
    return path.with_suffix(".words.txt")


# ---- readers


def _read_text(path: Path) -> tuple[list[str], Floats]:
    words, rows, size = list[str](), list[Floats](), 0
    expected: int | None = None
    for number, line in enumerate(read_lines(path), 1):
        cells = line.rstrip().split(" ") if "\t" not in line else line.rstrip().split("\t")
        if number == 1 and len(cells) == 2 and cells[0].isdecimal() and cells[1].isdecimal():
            expected, size = int(cells[0]), int(cells[1])
            continue
        if not line.strip():
            continue
        size = size or len(cells) - 1
        if len(cells) - 1 < size or size < 1:
            problem = f"expected a word and {max(1, size)} numbers, got {len(cells) - 1} after the word"
            raise DataError(f"{path}:{number}", problem, FIX)
        words.append(" ".join(cells[:-size]))  # some files have words with spaces
        rows.append(_numbers(cells[-size:], path, number))
    if expected is not None and expected != len(words):
        raise DataError(path, f"has {len(words):,} vectors, but its first line says {expected:,}", "is the file complete?")
    if not words:
        raise DataError(path, "has no vectors", "use a file with a word and its numbers on each line")
    return words, np.stack(rows)


def _numbers(cells: Sequence[str], path: Path, number: int) -> Floats:
    try:
        with np.errstate(over="ignore"):  # a number that is too large is infinite, and refused with its word
            return np.array(cells, np.float32)
    except ValueError:
        where, given = f"{path}:{number}", quote(" ".join(cells), 40)
        raise DataError(where, f"expected a word and {len(cells)} numbers, got {given}", FIX) from None


def _read_binary(path: Path) -> tuple[list[str], Floats]:
    data = path.read_bytes()
    line, newline, _ = data[:HEADER_BYTES].partition(b"\n")
    header = line.split()
    if not newline or len(header) != 2 or not all(cell.isdigit() and int(cell) > 0 for cell in header):
        raise DataError(path, "not a binary file of word2vec", "name a text file .txt or .vec")
    count, size = int(header[0]), int(header[1])
    start, row_bytes = len(line) + 1, 2 + 4 * size  # a word has at least one byte, and a space follows
    if count * row_bytes > len(data) - start:
        complete = (len(data) - start) // row_bytes
        raise DataError(path, f"has room for {complete:,} of {count:,} vectors", "is the file complete?")
    array, words = np.empty((count, size), np.float32), list[str]()
    for row in range(count):
        end = data.find(b" ", start)
        if end < 0 or end + 1 + 4 * size > len(data):
            raise DataError(path, f"ends after {row:,} of {count:,} vectors", "is the file complete?")
        words.append(data[start:end].lstrip(b"\n").decode(errors="replace"))
        array[row] = np.frombuffer(data, "<f4", size, end + 1)
        start = end + 1 + 4 * size
    return words, array


def _read_safetensors(path: Path) -> tuple[list[str], Floats]:
    arrays, _ = read_external_arrays(path)
    if not {"vectors", "words"} <= arrays.keys() or arrays["vectors"].ndim != 2 or arrays["words"].dtype != np.uint8:
        raise DataError(path, 'needs a tensor "vectors" (words, dimensions), and "words", UTF-8 with a newline after each')
    words = bytes(arrays["words"]).decode(errors="replace").split("\n")[:-1]
    return _matched(words, arrays["vectors"].astype(np.float32), path, path)


def _read_npy(path: Path) -> tuple[list[str], Floats]:
    if not (names := words_file(path)).is_file():
        raise DataError(names, "file not found; it has the words of the vectors, one per line", f"write it beside {path.name}")
    return _matched(list(read_lines(names)), _load(path), path, names)


def _load(path: Path) -> Floats:
    try:
        with path.open("rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, EOFError):
        raise DataError(path, "not an .npy file of numbers") from None
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise DataError(path, f"expected numbers of shape (words, dimensions), got {array.dtype} {array.shape}")
    return np.asarray(array, np.float32)


def _matched(words: list[str], array: Floats, path: Path, names: Path) -> tuple[list[str], Floats]:
    if len(words) != len(array):
        raise DataError(names, f"has {len(words):,} words, but {path.name} has {len(array):,} vectors")
    return words, array
