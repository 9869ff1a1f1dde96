"""ARPA files, the common format of n-gram models: log10, one line an n-gram, plain or gzip.

A word of an ARPA file can't hold white space, a token of ours can (a character model has ' '). What can't stand there
is written as its code point in hexadecimal, `\\x{20}`; `\\x{}` is the empty token; a backslash that would be read as
the beginning of that is `\\x{5c}`. Zero probability is -99, as is usual; <s>, never predicted, gets 0, as lmplz does.
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

ZERO = -99.0  # log10 of what can't be; this low or lower is read so
PIECE = 1 << 13  # n-grams written at once: their text is put together in the processor's cache
READ = 1 << 16  # n-grams read at once
_CANT_STAND = re.compile(r"[\s\x00-\x20\x7f]|\\(?=x\{[0-9a-f]*\})")
_ESCAPE = re.compile(r"\\x\{([0-9a-f]*)\}")


class Names(Protocol):
    """What is needed of a tokenizer to write a file."""

    @property
    def vocab_size(self) -> int: ...

    def id_to_token(self, id: int, /) -> str: ...


class Arpa(NamedTuple):
    """A file that was read; its words are the tokens of the tokenizer, <unk>, <s> and </s> are 0, 1 and 2."""

    model: NgramModel
    tokenizer: Tokenizer


def escape(token: str) -> str:
    """A token as a word of an ARPA file."""
    if token and token.isprintable() and " " not in token and "\\" not in token:
        return token  # nearly all are so, and it is quick to see
    return _CANT_STAND.sub(lambda found: f"\\x{{{ord(found[0]):x}}}", token) or "\\x{}"


def unescape(word: str) -> str:
    """The token that `escape` wrote so; what it would not write is itself, a word of another tool."""
    token = _ESCAPE.sub(lambda found: chr(min(int(found[1], 16), sys.maxunicode)) if found[1] else "", word)
    return token if escape(token) == word else word


def _quads(strings: Iterable[str]) -> NDArray[np.uint32]:
    """Strings of four letters as one number each, to be picked at once."""
    return np.frombuffer("".join(strings).encode(), np.uint32)


# the parts of a number: sign, up to two digits and the point; four decimals; three more and a tab
_HEAD = _quads(f"{f'-{i}.':>4}" for i in range(100))
_FOUR = _quads(f"{i:04}" for i in range(10_000))
_TAIL = _quads(f"{i:03}\t" for i in range(1000))
_WIDTH = 12


def _digits(values: NDArray[np.float64]) -> tuple[NDArray[np.uint8], Ints]:
    """Each value with 7 decimals and a tab, on the right of a row of bytes (n, 12), and where in its row it begins."""
    rest, tail = np.divmod(np.rint(np.abs(values) * 1e7).astype(np.uint32), 1000)
    head, four = np.divmod(rest, 10_000)
    text = np.empty((len(values), 3), np.uint32)
    text[:, 0], text[:, 1], text[:, 2] = _HEAD.take(head), _FOUR.take(four), _TAIL.take(tail)
    begin = (head < 10).astype(np.int64)
    begin += values >= 0  # no sign
    begin[(rest == 0) & (tail == 0)] = 10  # a plain zero, the commonest back-off of all, in two bytes
    return text.view(np.uint8), begin


class _Lines:
    """Puts lines together from one buffer, numbers in front and then all words: no Python object for any piece."""

    def __init__(self, words: list[bytes]) -> None:
        room = b" " * (2 * _WIDTH * PIECE)
        self.buffer = np.frombuffer(bytearray(room + b" ".join(words) + b" "), np.uint8)
        self.length = np.array([len(word) + 1 for word in words])
        self.at = np.cumsum(self.length) - self.length + len(room)

    def write(self, ids: Ints, numbers: list[NDArray[np.float64]]) -> NDArray[np.uint8]:
        """A line for each row of ids (n, k), n <= PIECE, with its log-probability and perhaps its back-off."""
        n, k = ids.shape
        source = np.empty((n, k + len(numbers)), np.int64)
        length = np.empty_like(source)
        source[:, 1 : k + 1], length[:, 1 : k + 1] = self.at.take(ids), self.length.take(ids)
        for i, values in enumerate(numbers):
            text, begin = _digits(values)
            self.buffer[i * text.size : (i + 1) * text.size] = text.reshape(-1)
            source[:, i * (k + 1)] = begin + np.arange(i * text.size, (i + 1) * text.size, _WIDTH)
            length[:, i * (k + 1)] = _WIDTH - begin
        ends = np.cumsum(length).reshape(length.shape)
        # byte i of the text comes from byte i + shift of the buffer, shift being one number a piece
        source -= ends
        source += length
        shift = np.repeat(source.reshape(-1), length.reshape(-1))
        shift += np.arange(len(shift))
        line = self.buffer.take(shift)
        line[ends[:, k] - 1] = ord("\t")
        line[ends[:, -1] - 1] = ord("\n")
        return line


def _log10(values: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.clip(values.astype(np.float64) / math.log(10), ZERO, -ZERO)


def _text(model: NgramModel, tokenizer: Names) -> Iterator[bytes | memoryview]:
    words = [escape(tokenizer.id_to_token(i)).encode() for i in range(model.size)]
    lines = _Lines(words)
    first: dict[bytes, int] = {}
    for i, word in enumerate(words):
        if first.setdefault(word, i) != i:
            raise ModelError(
                "ARPA", f"tokens {first[word]} and {i} are both {word.decode()!r}", "a word must stand for one token"
            )
    header = [f"ngram {k}={count}" for k, count in enumerate(model.counts, start=1)]
    yield "\n".join(["\\data\\", *header, ""]).encode()
    ids = np.arange(model.size)[:, None]
    for k, level in enumerate(model.levels, start=1):
        if k > 1:
            context, last = np.divmod(level.keys, model.size)
            ids = np.concatenate([ids[context], last[:, None]], axis=1)
        numbers = [_log10(part) for part in (level.log_prob, level.back_off) if len(part)]
        if k == 1:
            numbers[0][model.bos_id] = 0.0
        yield f"\n\\{k}-grams:\n".encode()
        for low in range(0, len(ids), PIECE):
            piece = slice(low, low + PIECE)
            yield lines.write(ids[piece], [values[piece] for values in numbers]).data
    yield b"\n\\end\\\n"


def write_arpa(path: Path, model: NgramModel, tokenizer: Names) -> None:
    """Write the model with its tokenizer's words; a path that ends in .gz is compressed."""
    if tokenizer.vocab_size != model.size:
        raise ModelError(
            "ARPA", f"the tokenizer has {tokenizer.vocab_size} tokens, the model {model.size}", "use its own tokenizer"
        )
    packer = zlib.compressobj(level=6, wbits=31) if path.suffix == ".gz" else None
    with atomic_write(path, named=True) as write:
        for text in _text(model, tokenizer):
            write(packer.compress(text) if packer else text)
        if packer:
            write(packer.flush())


class _Reader:
    """Lines of a file, with their numbers."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file, self.line = path, file, 0

    def fail(self, what: str, line: int | None = None) -> NoReturn:
        raise ModelError(f"{self.path}, line {line or self.line}", f"{what}")

    def next(self) -> bytes:
        """The next line that is not blank, without its ends; fails at the end of the file."""
        for line in self.file:
            self.line += 1
            if line.strip():
                return line.strip()
        self.fail("the file ends here, before \\end\\; it is cut off")

    def take(self, limit: int) -> list[bytes]:
        lines = list(islice(self.file, limit))
        self.line += len(lines)
        return lines


def _header(reader: _Reader) -> tuple[list[int], bytes]:
    """How many n-grams of each length the file has, and the line after."""
    for line in iter(reader.next, b"\\data\\"):
        if reader.line > 1000:
            reader.fail("no \\data\\ so far; this is not an ARPA file")
        if line.startswith(b"\\"):
            reader.fail(f"{_show(line)} before \\data\\")
    counts: list[int] = []
    while match := re.fullmatch(rb"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})", line := reader.next()):
        if int(match[1]) != len(counts) + 1:
            reader.fail(f"{_show(line)}, where the number of {len(counts) + 1}-grams should stand")
        counts.append(int(match[2]))
    if not counts:
        reader.fail(f"{_show(line)}, where 'ngram 1=...' should stand")
    return counts, line


def _show(line: bytes) -> str:
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:57] + "...").replace("\\\\", "\\")


class _Section(NamedTuple):
    words: list[Sequence[bytes]]  # by position in the n-gram
    log_prob: NDArray[np.float64]
    back_off: NDArray[np.float64]


def _columns(reader: _Reader, lines: list[bytes], k: int, highest: bool) -> _Section:
    """The fields of lines that were just taken."""
    first = reader.line - len(lines) + 1
    columns = _plain(lines, k + 1 if highest else k + 2) or _any_form(reader, lines, k, highest)
    log_prob = _numbers(reader, columns[0], first)
    above = np.flatnonzero(log_prob > 0)
    if len(above):
        reader.fail(f"log-probability {log_prob[above[0]]:g} is above 0", first + int(above[0]))
    back_off = np.zeros(len(lines)) if highest else _numbers(reader, columns[k + 1], first)
    return _Section(columns[1 : k + 1], log_prob, back_off)


def _plain(lines: list[bytes], fields: int) -> list[Sequence[bytes]] | None:
    """The columns of lines that all have so many fields, with one blank between them; None if one has not."""
    text = b"".join(lines)
    letters = np.frombuffer(text, np.uint8)
    blanks = np.flatnonzero((letters == 32) | ((letters >= 9) & (letters <= 13)))
    whole = len(blanks) == fields * len(lines) and bool((letters[blanks[fields - 1 :: fields]] == 10).all())
    if not whole or blanks[0] == 0 or (np.diff(blanks) == 1).any():
        return None
    words = text.split()
    return [words[i::fields] for i in range(fields)]


def _any_form(reader: _Reader, lines: list[bytes], k: int, highest: bool) -> list[Sequence[bytes]]:
    """The columns of lines that were just taken; a back-off may be missing, and is 0 then."""
    first = reader.line - len(lines) + 1
    rows = list(map(bytes.split, lines))
    allowed = {k + 1} if highest else {k + 1, k + 2}
    if not set(map(len, rows)) <= allowed:
        bad = next(i for i, row in enumerate(rows) if len(row) not in allowed)
        if not rows[bad] or rows[bad][0].startswith(b"\\"):
            reader.fail(f"fewer {k}-grams than the header says", first + bad)
        form = f"a number, a {k}-gram" + ("" if highest else " and perhaps a number")
        reader.fail(f"{_show(lines[bad].strip())} is not {form}", first + bad)
    return list(zip(*(row if highest or len(row) == k + 2 else [*row, b"0"] for row in rows), strict=True))


def _numbers(reader: _Reader, column: Sequence[bytes], first: int) -> NDArray[np.float64]:
    try:
        values = np.fromiter(map(float, column), np.float64, len(column))
    except ValueError:
        values = np.array([float(text) if _is_number(text) else math.nan for text in column])
    bad = np.flatnonzero(np.isnan(values) | (values == math.inf))
    if len(bad):
        reader.fail(f"{_show(column[bad[0]])} is not a number", first + int(bad[0]))
    return np.where(values <= ZERO, -math.inf, values)


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _sections(reader: _Reader, count: int, k: int, highest: bool) -> Iterator[_Section]:
    """The n-grams of one length in pieces; after each, the reader stands on its last line."""
    while count:
        lines = reader.take(min(count, READ))
        if not lines:
            reader.fail(f"the file ends here, with {count} of the {k}-grams missing; it is cut off")
        count -= len(lines)
        yield _columns(reader, lines, k, highest)


def _read_words(reader: _Reader, count: int, highest: bool) -> tuple[dict[bytes, int], NgramLevel]:
    """Number of each word as the file spells it, and level 1."""
    number = {word.encode(): i for i, word in enumerate(SPECIALS)}
    log_prob, back_off = [np.full(3, -math.inf)], [np.zeros(3)]
    seen: set[bytes] = set()
    for section in _sections(reader, count, 1, highest):
        first, ids = reader.line - len(section.log_prob) + 1, []
        for i, word in enumerate(section.words[0]):
            name = b"<unk>" if word == b"<UNK>" else word
            if name in seen:
                reader.fail(f"{_show(word)} stands here a second time", first + i)
            seen.add(name)
            ids.append(number.setdefault(name, len(number)))
        more = len(number) - sum(map(len, log_prob))
        for parts, values, blank in ((log_prob, section.log_prob, -math.inf), (back_off, section.back_off, 0.0)):
            parts.append(np.full(more, blank))
            whole = np.concatenate(parts)
            whole[ids] = values
            parts[:] = [whole]
    number.setdefault(b"<UNK>", 0)
    return number, _grams(np.zeros(0, np.int64), log_prob[0], np.zeros(0) if highest else back_off[0])


def _grams(keys: Ints, log_prob: NDArray[np.float64], back_off: NDArray[np.float64]) -> NgramLevel:
    logs = ((values * math.log(10)).astype(np.float32) for values in (log_prob, back_off))
    return NgramLevel(keys, *logs)


def _keys(reader: _Reader, section: _Section, below: list[NgramLevel], number: dict[bytes, int]) -> Ints:
    """Keys of the n-grams that were just taken."""
    first, size = reader.line - len(section.log_prob) + 1, len(below[0].log_prob)
    key = np.zeros(0, np.int64)
    for j, column in enumerate(section.words):
        ids = np.fromiter(map(number.get, column, repeat(-1)), np.int64, len(column))
        if ids.min() < 0:
            bad = int(np.flatnonzero(ids < 0)[0])
            reader.fail(f"{_show(column[bad])} is not among the 1-grams", first + bad)
        context = binary_search(below[j - 1].keys, key) if j > 1 else key
        if j > 1 and context.min() < 0:
            bad = int(np.flatnonzero(context < 0)[0])
            words = b" ".join(column[bad] for column in section.words[:j])
            reader.fail(f"its context {_show(words)} is not among the {j}-grams", first + bad)
        key = context * size + ids if j else ids
    return key


def _read_level(reader: _Reader, count: int, below: list[NgramLevel], number: dict[bytes, int], highest: bool) -> NgramLevel:
    k, begun = len(below) + 1, reader.line + 1
    keys, log_prob, back_off = [np.zeros(0, np.int64)], [np.zeros(0)], [np.zeros(0)]
    for section in _sections(reader, count, k, highest):
        keys.append(_keys(reader, section, below, number))
        log_prob.append(section.log_prob)
        back_off.append(section.back_off)
    joined = np.concatenate(keys)
    order = np.argsort(joined, kind="stable")
    twice = np.flatnonzero(joined[order][1:] == joined[order][:-1])
    if len(twice):
        reader.fail(f"this {k}-gram stands here a second time", begun + int(order[twice + 1].min()))
    back = np.zeros(0) if highest else np.concatenate(back_off)[order]
    return _grams(joined[order], np.concatenate(log_prob)[order], back)


def _open(path: Path) -> Callable[[], IO[bytes]]:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise ModelError(path, f"can't be read: {error.strerror}") from None
    return (lambda: open_gzip(path)) if packed else lambda: path.open("rb")


def read_arpa(path: Path, *, tokenizer: Tokenizer | None = None) -> Arpa:
    """The model of a file, plain or gzip, and its tokenizer: one whose words stand between spaces, unless given."""
    with _open(path)() as file:
        reader = _Reader(path, file)
        try:
            grams, words = _read(reader)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise ModelError(path, f"the compressed file is damaged after line {reader.line}") from None
        except DecompressionBomb:
            raise ModelError(path, f"unpacks to more than {MAX_RATIO} times its size", "no n-gram model does") from None
    own = tokenizer or from_vocab(words)
    tokens = [own.id_to_token(number) for number in range(own.vocab_size)]
    if tokens != words:
        pairs = enumerate(zip_longest(tokens, words))
        number, (token, word) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        raise ModelError(path, f"word {number} is {word!r}, token {number} of the tokenizer {token!r}", "read it without one")
    return Arpa(NgramModel(grams, vocabulary=own.hash, bos_id=own.bos_id), own)


def _read(reader: _Reader) -> tuple[list[NgramLevel], list[str]]:
    """All levels, and the words by number."""
    counts, line = _header(reader)
    grams: list[NgramLevel] = []
    number: dict[bytes, int] = {}
    for k, count in enumerate(counts, start=1):
        if line != f"\\{k}-grams:".encode():
            reader.fail(f"{_show(line)}, where '\\{k}-grams:' should stand")
        highest = k == len(counts)
        if k == 1:
            number, level = _read_words(reader, count, highest)
            level.log_prob[1] = -math.inf  # <s> is never predicted, whatever the file says
        else:
            level = _read_level(reader, count, grams, number, highest)
        grams.append(level)
        line = reader.next()
    if line != b"\\end\\":
        reader.fail(f"{_show(line)}, where '\\end\\' should stand")
    number.pop(b"<UNK>")
    try:
        words = [unescape(word.decode()) for word in number]
    except UnicodeDecodeError:
        raise ModelError(reader.path, "its words are not UTF-8", "convert the file first") from None
    if len(set(words)) < len(words):
        raise ModelError(reader.path, "two of its words stand for the same token", "one of them is written with \\x{5c}")
    return grams, words
