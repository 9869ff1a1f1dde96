"""ARPA files, the common format of n-gram models: log10, one line per n-gram, plain or gzip.

A word of an ARPA file cannot contain whitespace, but a token can: ' ' is a token of character models. Characters that are not
allowed are written as hexadecimal code points, `\\x{20}`; `\\x{}` is the empty token; a backslash that would start such an
escape is `\\x{5c}`. Zero probability is -99, as usual; <s>, which is never predicted, gets 0, as in lmplz.
"""

from __future__ import annotations

import gzip
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat, zip_longest
from pathlib import Path
from typing import IO, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from weft.errors import ModelError
from weft.files import atomic_write
from weft.models.ngram import NgramLevel, NgramModel
from weft.models.ngram_index import Ints, binary_search
from weft.text.compression import MAX_RATIO, DecompressionBomb, open_gzip
from weft.text.pipelines import SPECIALS
from weft.text.tokenizers import Tokenizer, from_vocab

ZERO_LOG10 = -99.0  # log10 of zero probability; lower values are read as zero
WRITE_NGRAMS = 1 << 13  # n-grams formatted at once: their text fits into the CPU cache
READ_NGRAMS = 1 << 16  # n-grams read at once
_NOT_ALLOWED = re.compile(r"[\s\x00-\x20\x7f]|\\(?=x\{[0-9a-f]*\})")
_ESCAPE = re.compile(r"\\x\{([0-9a-f]*)\}")


class TokenNames(Protocol):
    """The part of a tokenizer that is needed to write a file."""

    @property
    def vocab_size(self) -> int: ...

    def id_to_token(self, id: int, /) -> str: ...


class Arpa(NamedTuple):
    """The content of a file. Its words are the tokens of the tokenizer; <unk>, <s> and </s> are 0, 1 and 2."""

    model: NgramModel
    tokenizer: Tokenizer


def escape(token: str) -> str:
    """A token as a word of an ARPA file."""
    if token and token.isprintable() and " " not in token and "\\" not in token:
        return token  # fast path for most tokens
    return _NOT_ALLOWED.sub(lambda match: f"\\x{{{ord(match[0]):x}}}", token) or "\\x{}"


def unescape(word: str) -> str:
    """The inverse of `escape`. A word that `escape` would not write, because it is from another tool, is returned unchanged."""
    token = _ESCAPE.sub(lambda match: chr(min(int(match[1], 16), sys.maxunicode)) if match[1] else "", word)
    return token if escape(token) == word else word


def _quads(strings: Iterable[str]) -> NDArray[np.uint32]:
    """Strings of four characters as one 32-bit number each."""
    return np.frombuffer("".join(strings).encode(), np.uint32)


# all parts of a formatted number: sign, up to two digits and the point; four decimals; three decimals and a tab
_HEAD = _quads(f"{f'-{i}.':>4}" for i in range(100))
_FOUR = _quads(f"{i:04}" for i in range(10_000))
_TAIL = _quads(f"{i:03}\t" for i in range(1000))
_WIDTH = 12  # bytes of a formatted number with its tab


def _format_numbers(values: NDArray[np.float64]) -> tuple[NDArray[np.uint8], Ints]:
    """Each value with 7 decimals and a tab, right-aligned in a row of bytes (n, 12), and its start in the row."""
    rest, tail = np.divmod(np.rint(np.abs(values) * 1e7).astype(np.uint32), 1000)
    head, four = np.divmod(rest, 10_000)
    text = np.empty((len(values), 3), np.uint32)
    text[:, 0], text[:, 1], text[:, 2] = _HEAD.take(head), _FOUR.take(four), _TAIL.take(tail)
    begin = (head < 10).astype(np.int64)
    begin += values >= 0  # no sign
    begin[(rest == 0) & (tail == 0)] = 10  # zero, the most frequent backoff weight, in two bytes
    return text.view(np.uint8), begin


class _LineFormatter:
    """Formats lines by copying bytes from one buffer of numbers and words, without a Python object per line."""

    def __init__(self, words: list[bytes]) -> None:
        room = b" " * (2 * _WIDTH * WRITE_NGRAMS)
        self.buffer = np.frombuffer(bytearray(room + b" ".join(words) + b" "), np.uint8)
        self.length = np.array([len(word) + 1 for word in words])
        self.start = np.cumsum(self.length) - self.length + len(room)

    def format(self, ids: Ints, numbers: list[NDArray[np.float64]]) -> NDArray[np.uint8]:
        """The lines of the n-grams `ids` (n, k), n <= WRITE_NGRAMS, as bytes. `numbers` are their log-probabilities and, except
        at the highest order, their backoff weights."""
        n, k = ids.shape
        source = np.empty((n, k + len(numbers)), np.int64)
        length = np.empty_like(source)
        source[:, 1 : k + 1], length[:, 1 : k + 1] = self.start.take(ids), self.length.take(ids)
        for i, values in enumerate(numbers):
            text, begin = _format_numbers(values)
            self.buffer[i * text.size : (i + 1) * text.size] = text.reshape(-1)
            source[:, i * (k + 1)] = begin + np.arange(i * text.size, (i + 1) * text.size, _WIDTH)
            length[:, i * (k + 1)] = _WIDTH - begin
        ends = np.cumsum(length).reshape(length.shape)
        # byte i of the text is byte i + shift of the buffer, with one shift per field
        source -= ends
        source += length
        shift = np.repeat(source.reshape(-1), length.reshape(-1))
        shift += np.arange(len(shift))
        lines = self.buffer.take(shift)
        lines[ends[:, k] - 1] = ord("\t")
        lines[ends[:, -1] - 1] = ord("\n")
        return lines


def _log10(values: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.clip(values.astype(np.float64) / math.log(10), ZERO_LOG10, -ZERO_LOG10)


def _format_model(model: NgramModel, tokenizer: TokenNames) -> Iterator[bytes | memoryview]:
    """The text of an ARPA file, in chunks."""
    words = [escape(tokenizer.id_to_token(i)).encode() for i in range(model.vocab_size)]
    formatter = _LineFormatter(words)
    first: dict[bytes, int] = {}
    for i, word in enumerate(words):
        if first.setdefault(word, i) != i:
            raise ModelError("ARPA", f"tokens {first[word]} and {i} are both {word.decode()!r}; words must be unique")
    header = [f"ngram {k}={count}" for k, count in enumerate(model.counts, start=1)]
    yield "\n".join(["\\data\\", *header, ""]).encode()
    ids = np.arange(model.vocab_size)[:, None]
    for k, level in enumerate(model.levels, start=1):
        if k > 1:
            context, last = np.divmod(level.keys, model.vocab_size)
            ids = np.concatenate([ids[context], last[:, None]], axis=1)
        numbers = [_log10(part) for part in (level.log_prob, level.back_off) if len(part)]
        if k == 1:
            numbers[0][model.bos_id] = 0.0
        yield f"\n\\{k}-grams:\n".encode()
        for low in range(0, len(ids), WRITE_NGRAMS):
            chunk = slice(low, low + WRITE_NGRAMS)
            yield formatter.format(ids[chunk], [values[chunk] for values in numbers]).data
    yield b"\n\\end\\\n"


def write_arpa(path: Path, model: NgramModel, tokenizer: TokenNames) -> None:
    """Write a model with the tokens of its tokenizer as words; a path that ends in .gz is compressed."""
    if tokenizer.vocab_size != model.vocab_size:
        raise ModelError(
            "ARPA", f"the tokenizer has {tokenizer.vocab_size} tokens, the model {model.vocab_size}", "use its own tokenizer"
        )
    compressor = zlib.compressobj(level=6, wbits=31) if path.suffix == ".gz" else None
    with atomic_write(path, user_path=True) as write:
        for text in _format_model(model, tokenizer):
            write(compressor.compress(text) if compressor else text)
        if compressor:
            write(compressor.flush())


class _Reader:
    """The lines of a file, with line numbers."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file, self.line = path, file, 0

    def fail(self, problem: str, line: int | None = None) -> NoReturn:
        raise ModelError(f"{self.path}:{line or self.line}", problem)

    def next(self) -> bytes:
        """The next line that is not blank, stripped; an error at the end of the file."""
        for line in self.file:
            self.line += 1
            if line.strip():
                return line.strip()
        self.fail("the file ends before \\end\\; it is incomplete")

    def take(self, limit: int) -> list[bytes]:
        lines = list(islice(self.file, limit))
        self.line += len(lines)
        return lines


def _read_header(reader: _Reader) -> tuple[list[int], bytes]:
    """The number of n-grams of each length, and the line after the header."""
    for line in iter(reader.next, b"\\data\\"):
        if reader.line > 1000:
            reader.fail("no \\data\\ in the first 1,000 lines; not an ARPA file")
        if line.startswith(b"\\"):
            reader.fail(f"{_show(line)} before \\data\\")
    counts: list[int] = []
    while match := re.fullmatch(rb"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})", line := reader.next()):
        if int(match[1]) != len(counts) + 1:
            reader.fail(f"expected the number of {len(counts) + 1}-grams, got {_show(line)}")
        counts.append(int(match[2]))
    if not counts:
        reader.fail(f"expected 'ngram 1=...', got {_show(line)}")
    return counts, line


def _show(line: bytes) -> str:
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:57] + "...").replace("\\\\", "\\")


class _Section(NamedTuple):
    words: list[Sequence[bytes]]  # by position in the n-gram
    log_prob: NDArray[np.float64]
    back_off: NDArray[np.float64]


def _parse_lines(reader: _Reader, lines: list[bytes], k: int, highest: bool) -> _Section:
    """The n-grams of the lines that were read last."""
    first = reader.line - len(lines) + 1
    columns = _split_regular(lines, k + 1 if highest else k + 2) or _split_any(reader, lines, k, highest)
    log_prob = _parse_numbers(reader, columns[0], first)
    positive = np.flatnonzero(log_prob > 0)
    if len(positive):
        reader.fail(f"log-probability {log_prob[positive[0]]:g} is greater than 0", first + int(positive[0]))
    back_off = np.zeros(len(lines)) if highest else _parse_numbers(reader, columns[k + 1], first)
    return _Section(columns[1 : k + 1], log_prob, back_off)


def _split_regular(lines: list[bytes], fields: int) -> list[Sequence[bytes]] | None:
    """The columns of lines, if all have this number of fields, separated by one whitespace character; else None."""
    text = b"".join(lines)
    chars = np.frombuffer(text, np.uint8)
    blanks = np.flatnonzero((chars == 32) | ((chars >= 9) & (chars <= 13)))
    is_regular = len(blanks) == fields * len(lines) and bool((chars[blanks[fields - 1 :: fields]] == 10).all())
    if not is_regular or blanks[0] == 0 or (np.diff(blanks) == 1).any():
        return None
    words = text.split()
    return [words[i::fields] for i in range(fields)]


def _split_any(reader: _Reader, lines: list[bytes], k: int, highest: bool) -> list[Sequence[bytes]]:
    """The columns of the lines that were read last; a missing backoff weight is 0."""
    first = reader.line - len(lines) + 1
    rows = list(map(bytes.split, lines))
    allowed = {k + 1} if highest else {k + 1, k + 2}
    if not set(map(len, rows)) <= allowed:
        invalid = next(i for i, row in enumerate(rows) if len(row) not in allowed)
        if not rows[invalid] or rows[invalid][0].startswith(b"\\"):
            reader.fail(f"fewer {k}-grams than in the header", first + invalid)
        form = f"a number and a {k}-gram" + ("" if highest else ", optionally with another number")
        reader.fail(f"expected {form}, got {_show(lines[invalid].strip())}", first + invalid)
    return list(zip(*(row if highest or len(row) == k + 2 else [*row, b"0"] for row in rows), strict=True))


def _to_float(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _parse_numbers(reader: _Reader, column: Sequence[bytes], first: int) -> NDArray[np.float64]:
    try:
        values = np.fromiter(map(float, column), np.float64, len(column))
    except ValueError:
        values = np.array([_to_float(text) for text in column])
    invalid = np.flatnonzero(np.isnan(values) | (values == math.inf))
    if len(invalid):
        reader.fail(f"expected a number, got {_show(column[invalid[0]])}", first + int(invalid[0]))
    return np.where(values <= ZERO_LOG10, -math.inf, values)


def _sections(reader: _Reader, count: int, k: int, highest: bool) -> Iterator[_Section]:
    """The n-grams of one length in chunks; after each, the reader is at its last line."""
    while count:
        lines = reader.take(min(count, READ_NGRAMS))
        if not lines:
            reader.fail(f"the file ends, {count} {k}-grams are missing; it is incomplete")
        count -= len(lines)
        yield _parse_lines(reader, lines, k, highest)


def _read_words(reader: _Reader, count: int, highest: bool) -> tuple[dict[bytes, int], NgramLevel]:
    """The ID of each word as written in the file, and level 1."""
    word_ids = {word.encode(): i for i, word in enumerate(SPECIALS)}
    log_prob, back_off = [np.full(3, -math.inf)], [np.zeros(3)]
    words: set[bytes] = set()
    for section in _sections(reader, count, 1, highest):
        first, ids = reader.line - len(section.log_prob) + 1, []
        for i, word in enumerate(section.words[0]):
            name = b"<unk>" if word == b"<UNK>" else word
            if name in words:
                reader.fail(f"duplicate word {_show(word)}", first + i)
            words.add(name)
            ids.append(word_ids.setdefault(name, len(word_ids)))
        num_new = len(word_ids) - sum(map(len, log_prob))
        for parts, values, default in ((log_prob, section.log_prob, -math.inf), (back_off, section.back_off, 0.0)):
            parts.append(np.full(num_new, default))
            joined = np.concatenate(parts)
            joined[ids] = values
            parts[:] = [joined]
    word_ids.setdefault(b"<UNK>", 0)
    return word_ids, _to_level(np.zeros(0, np.int64), log_prob[0], np.zeros(0) if highest else back_off[0])


def _to_level(keys: Ints, log_prob: NDArray[np.float64], back_off: NDArray[np.float64]) -> NgramLevel:
    logs = ((values * math.log(10)).astype(np.float32) for values in (log_prob, back_off))
    return NgramLevel(keys, *logs)


def _keys(reader: _Reader, section: _Section, below: list[NgramLevel], word_ids: dict[bytes, int]) -> Ints:
    """The keys of the n-grams that were read last."""
    first, vocab_size = reader.line - len(section.log_prob) + 1, len(below[0].log_prob)
    key = np.zeros(0, np.int64)
    for j, column in enumerate(section.words):
        ids = np.fromiter(map(word_ids.get, column, repeat(-1)), np.int64, len(column))
        if ids.min() < 0:
            invalid = int(np.flatnonzero(ids < 0)[0])
            reader.fail(f"{_show(column[invalid])} is not one of the 1-grams", first + invalid)
        context = binary_search(below[j - 1].keys, key) if j > 1 else key
        if j > 1 and context.min() < 0:
            invalid = int(np.flatnonzero(context < 0)[0])
            words = b" ".join(column[invalid] for column in section.words[:j])
            reader.fail(f"its context {_show(words)} is not one of the {j}-grams", first + invalid)
        key = context * vocab_size + ids if j else ids
    return key


def _read_level(reader: _Reader, count: int, below: list[NgramLevel], word_ids: dict[bytes, int], highest: bool) -> NgramLevel:
    k, first_line = len(below) + 1, reader.line + 1
    keys, log_prob, back_off = [np.zeros(0, np.int64)], [np.zeros(0)], [np.zeros(0)]
    for section in _sections(reader, count, k, highest):
        keys.append(_keys(reader, section, below, word_ids))
        log_prob.append(section.log_prob)
        back_off.append(section.back_off)
    joined = np.concatenate(keys)
    order = np.argsort(joined, kind="stable")
    duplicates = np.flatnonzero(joined[order][1:] == joined[order][:-1])
    if len(duplicates):
        reader.fail(f"duplicate {k}-gram", first_line + int(order[duplicates + 1].min()))
    back = np.zeros(0) if highest else np.concatenate(back_off)[order]
    return _to_level(joined[order], np.concatenate(log_prob)[order], back)


def _read(reader: _Reader) -> tuple[list[NgramLevel], list[str]]:
    """All levels, and the words by ID."""
    counts, line = _read_header(reader)
    levels: list[NgramLevel] = []
    word_ids: dict[bytes, int] = {}
    for k, count in enumerate(counts, start=1):
        if line != f"\\{k}-grams:".encode():
            reader.fail(f"expected '\\{k}-grams:', got {_show(line)}")
        highest = k == len(counts)
        if k == 1:
            word_ids, level = _read_words(reader, count, highest)
            level.log_prob[1] = -math.inf  # <s> is never predicted, whatever its value in the file
        else:
            level = _read_level(reader, count, levels, word_ids, highest)
        levels.append(level)
        line = reader.next()
    if line != b"\\end\\":
        reader.fail(f"expected '\\end\\', got {_show(line)}")
    word_ids.pop(b"<UNK>")
    try:
        words = [unescape(word.decode()) for word in word_ids]
    except UnicodeDecodeError:
        raise ModelError(reader.path, "its words are not UTF-8", "convert the file") from None
    if len(set(words)) < len(words):
        raise ModelError(reader.path, "two of its words are the same token; one of them is written with \\x{5c}")
    return levels, words


def _opener(path: Path) -> Callable[[], IO[bytes]]:
    """A function that opens the file, plain or gzip."""
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise ModelError(path, f"cannot read the file: {error.strerror}") from None
    return (lambda: open_gzip(path)) if is_gzip else lambda: path.open("rb")


def read_arpa(path: Path, *, tokenizer: Tokenizer | None = None) -> Arpa:
    """Read a model from a file, plain or gzip. The default tokenizer splits at whitespace."""
    with _opener(path)() as file:
        reader = _Reader(path, file)
        try:
            levels, words = _read(reader)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise ModelError(path, f"the compressed file is corrupted after line {reader.line}") from None
        except DecompressionBomb:
            raise ModelError(path, f"decompresses to more than {MAX_RATIO} times its size; not an n-gram model") from None
    tokenizer = tokenizer or from_vocab(words)
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]
    for token_id, (token, word) in enumerate(zip_longest(tokens, words)):
        if token != word:
            raise ModelError(path, f"word {token_id} is {word!r}, but token {token_id} of the tokenizer is {token!r}")
    return Arpa(NgramModel(levels, vocabulary=tokenizer.hash, bos_id=tokenizer.bos_id), tokenizer)
