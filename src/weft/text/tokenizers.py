"""Tokenizers: text to ids and back, one `tokenizer.json` each, which plain Hugging Face `tokenizers` loads as well.

Every one starts with the special tokens <unk> = 0, <s> = 1 (begin), </s> = 2 (end). They are no text: typing them
gives no special id. (The kind `space` reads a word <unk> as what it says, an unknown word.)

    char       characters; lossless for those seen in training
    byte       bytes of UTF-8; lossless, 259 tokens whatever `size` says
    bpe        byte pairs merged by frequency; lossless
    unigram    pieces of a unigram model over bytes; lossless
    word       words and punctuation marks, white space but newlines lost
    space      what stands between white space, white space but newlines lost
    wordpiece  pieces of words, white space but newlines lost
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import tokenizers
from pydantic import model_validator

from weft import files
from weft.config import Choice, Config
from weft.errors import DataError, ModelError
from weft.text.external_tokenizer import check_expansion, parsed, wrap_errors
from weft.text.pipelines import PIPELINES, SPECIALS, assemble, byte_letters, lowercased, word_level_model
from weft.text.reading import check_text, split_at_newlines
from weft.text.word_cache import WordCache

TYPES = tuple(PIPELINES)
LOSSLESS = {kind: pipeline.lossless for kind, pipeline in PIPELINES.items()}
MAX_BYTES = 128 << 20  # bytes; the largest that are in use have 35 million
UNSUPPORTED = "tokenizer: can't encode a text"
# specials and 256 bytes
_LEAST = {"bpe": 259, "unigram": 259}
# their trainers take memory for all tokens at once, seen or not
_MOST = {"bpe": 1 << 20, "unigram": 1 << 20, "wordpiece": 1 << 20}

Flat = tuple[np.ndarray, np.ndarray]


class TokenizerConfig(Config):
    """How text becomes tokens."""

    type: Annotated[str, Choice(TYPES, "type")] = "char"
    vocab_size: int = 8000  # most tokens kept, the three special ones included
    lowercase: bool = False  # A and a are one, and a decoded text has no capitals
    file: str | None = None  # a tokenizer.json to use as it is, instead of training one

    @model_validator(mode="after")
    def check_options(self) -> Self:
        minimum = _LEAST.get(self.type, len(SPECIALS) + 1)
        if self.vocab_size < minimum:
            raise ValueError(f"size={self.vocab_size} is too small for kind='{self.type}': at least {minimum}")
        if self.vocab_size > (limit := _MOST.get(self.type, 2**31 - 1)):
            raise ValueError(f"size={self.vocab_size} is too large for kind='{self.type}': at most {limit}")
        if self.file is not None and self.model_fields_set & {"type", "vocab_size", "lowercase"}:
            raise ValueError("file and kind, size or lowercase can't both be given: the file says what it is")
        return self


class Tokenizer:
    """Text to ids and back. `hash` is the SHA-256 of the file: equal hashes, equal vocabularies."""

    unk_id, bos_id, eos_id = 0, 1, 2

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.hash = data, hashlib.sha256(data).hexdigest()
        self._inner = _parse(data, where)
        self.vocab_size = _size(self._inner, where)
        self.type, self.lowercase = _kind(data)
        self._foreign = self.type not in TYPES
        self.lossless = LOSSLESS.get(self.type, False) and not self.lowercase
        self._flat = self._way()

    def _way(self) -> Callable[[list[str]], Flat]:
        """The fastest way to encode that gives the same ids."""
        if self.type in ("char", "byte"):
            encode = _Characters(self._inner).encode if self.type == "char" else _encode_bytes
            return (lambda texts: encode([lowercased(text) for text in texts])) if self.lowercase else encode
        return WordCache(self._slowly).encode if self.type in TYPES else self._by_texts

    def _slowly(self, texts: list[str]) -> list[list[int]]:
        """By the library underneath, each text whole."""
        try:
            # a file from elsewhere may lack its unknown token, or have a pattern that takes for ever
            with wrap_errors(UNSUPPORTED, foreign=self._foreign):
                return [found.ids for found in self._inner.encode_batch_fast(texts, add_special_tokens=False)]
        except TypeError:
            raise _refused(texts) from None

    def _by_texts(self, texts: list[str]) -> Flat:
        found = self._slowly(texts)
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        return np.fromiter(chain.from_iterable(found), np.int64, int(lengths.sum())), lengths

    def encode_pieces(self, pieces: list[str]) -> Flat:
        """`encode_flat` of what `gate.cut` gave, or would give: no newline inside, none too long."""
        try:
            return self._flat(pieces)
        except UnicodeEncodeError:
            raise _refused(pieces) from None

    def encode_concatenated(self, texts: Sequence[str]) -> Flat:
        """The ids of all texts one after another, int64 (T,), and how many each has (B,)."""
        pieces = [split_at_newlines(text) for text in texts]
        ids, lengths = self.encode_pieces(list(chain.from_iterable(pieces)))
        ends = np.concatenate([[0], np.cumsum(lengths)])
        edges = ends[np.fromiter(accumulate(map(len, pieces), initial=0), np.int64, len(pieces) + 1)]
        return ids, np.diff(edges)

    def encode(self, text: str) -> np.ndarray:
        """int64 (T,): the ids of its lines one after another, just as those of a file are."""
        return self.encode_concatenated([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each, in one go."""
        ids, lengths = self.encode_concatenated(texts)
        edges = [0, *np.cumsum(lengths).tolist()]
        return [ids[start:stop] for start, stop in pairwise(edges)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Where each token of `encode(text)` stands in the text, in characters; bytes of one character stand where it does."""
        pieces, found, before = split_at_newlines(text), list[tuple[int, int]](), 0
        with wrap_errors(UNSUPPORTED, foreign=self._foreign):
            encoded = self._inner.encode_batch(pieces, add_special_tokens=False)
        for piece, coded in zip(pieces, encoded, strict=True):
            found += [(before + low, before + high) for low, high in coded.offsets]
            before += len(piece)
        return found

    def count_unknown(self, texts: list[str]) -> list[str]:
        """What in the texts has no token and becomes <unk>, one after another."""
        with wrap_errors(UNSUPPORTED, foreign=self._foreign):
            found = self._inner.encode_batch(texts, add_special_tokens=False)
        return [
            text[low:high]
            for text, coded in zip(texts, found, strict=True)
            for number, (low, high) in zip(coded.ids, coded.offsets, strict=True)
            if number == self.unk_id
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text that the ids stand for, special ones dropped; half characters show as U+FFFD."""
        kept = [int(number) for number in ids if number >= len(SPECIALS)]
        with wrap_errors("tokenizer: can't decode tokens", foreign=self._foreign):
            text: str = self._inner.decode(kept, skip_special_tokens=False)
        return text

    def id_to_token(self, number: int) -> str:
        """The entry of the vocabulary: no two are the same. `show` says what it looks like in a text."""
        token: str | None = self._inner.id_to_token(number)
        if token is None:
            raise IndexError(f"token {number} of {self.vocab_size}")
        return token

    def token_text(self, number: int) -> str:
        """The token as it looks in a text: bytes that are no whole character as escapes, special ones by name."""
        token = self.id_to_token(number)
        if number < len(SPECIALS) or self.type not in ("byte", "bpe", "unigram"):
            return token
        return bytes(_byte_values()[letter] for letter in token).decode("utf-8", "backslashreplace")

    def by_name(self) -> dict[str, Tokenizer]:
        """What a person calls it."""
        return {"tokenizer": self}

    def save(self, path: Path) -> None:
        files.write_bytes(path, self.data)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The tokenizer of a file; a damaged or unsuitable one is refused by name."""
        try:
            files.refuse_device(path)
            if path.stat().st_size > MAX_BYTES:
                raise ModelError(path, f"is larger than {MAX_BYTES >> 20} MB", "no tokenizer is")
            data = path.read_bytes()
        except OSError as error:
            raise ModelError(path, f"can't be read: {error.strerror}") from None
        return cls(data, str(path))


class _Characters:
    """A table over code points."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        vocabulary = {ord(char): number for char, number in inner.get_vocab().items() if number >= len(SPECIALS)}
        # the last entry stands for all that lie beyond the table
        self.table = np.zeros(max(vocabulary, default=0) + 2, dtype=np.int64)
        self.table[list(vocabulary)] = list(vocabulary.values())

    def encode(self, texts: list[str]) -> Flat:
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32)
        ids = self.table[np.minimum(codes, len(self.table) - 1)]
        return ids, np.fromiter(map(len, texts), np.int64, len(texts))


def _encode_bytes(texts: list[str]) -> Flat:
    coded = [text.encode() for text in texts]
    ids = np.frombuffer(b"".join(coded), dtype=np.uint8).astype(np.int64) + len(SPECIALS)
    return ids, np.fromiter(map(len, coded), np.int64, len(coded))


@cache
def _byte_values() -> dict[str, int]:
    return {letter: value for value, letter in enumerate(byte_letters())}


def _refused(texts: Sequence[str]) -> Exception:
    try:
        for text in texts:
            check_text(text.replace("\0", " "), "text")
    except DataError as error:
        return error
    return TypeError("texts must be str")


def _parse(data: bytes, where: str) -> tokenizers.Tokenizer:
    inner = parsed(data, where)
    check_expansion(json.loads(data), where)
    for number, special in enumerate(SPECIALS):
        if inner.id_to_token(number) != special:
            raise ModelError(
                where,
                f"token {number} is {inner.id_to_token(number)!r}, not {special!r}",
                f"weft needs {', '.join(SPECIALS)} as tokens 0, 1, 2",
            )
    inner.encode_special_tokens = True
    inner.no_truncation()
    inner.no_padding()
    return inner


def _size(inner: tokenizers.Tokenizer, where: str) -> int:
    """How many tokens there are; they must be numbered without a gap, for a number is a row of the embedding."""
    numbers = set(inner.get_vocab().values())
    if numbers != set(range(len(numbers))) or len(numbers) != inner.get_vocab_size():
        raise ModelError(where, f"its {inner.get_vocab_size()} tokens do not have the numbers from 0 on, one each")
    return len(numbers)


def _kind(data: bytes) -> tuple[str, bool]:
    """Which of our kinds wrote the file, by its pipeline, and whether it lower-cases; 'file' and False if none did."""
    parts: dict[str, Any] = json.loads(data)
    normalizer = parts.get("normalizer")
    if normalizer not in (None, {"type": "Lowercase"}) or parts.get("added_tokens"):
        return "file", False
    kind = _kind_of_parts(parts)
    return kind, normalizer is not None and kind != "file"


def _kind_of_parts(parts: dict[str, Any]) -> str:
    model = parts["model"]
    found = (model.get("type"), parts.get("pre_tokenizer"), parts.get("decoder"))
    kind = next((kind for kind in TYPES if found == _own_pipeline(kind)), "file")
    # those two are encoded without asking the library: only what they are known by may do
    if kind == "char" and any(len(token) != 1 for token, number in model["vocab"].items() if number >= len(SPECIALS)):
        return "file"
    if kind == "byte" and (model["merges"] or list(model["vocab"])[len(SPECIALS) :] != byte_letters()):
        return "file"
    return kind


@cache
def _own_pipeline(kind: str) -> tuple[str, Any, Any]:
    parts = json.loads(assemble(kind, word_level_model([])).to_str())
    return PIPELINES[kind].model, parts["pre_tokenizer"], parts["decoder"]


def from_vocab(words: Sequence[str]) -> Tokenizer:
    """A tokenizer of kind `space` with just these words after the special tokens."""
    return _finished("whitespace", word_level_model(word for word in words if word not in SPECIALS))


def _finished(kind: str, model: tokenizers.models.Model, *, lowercase: bool = False) -> Tokenizer:
    return Tokenizer(assemble(kind, model, lowercase=lowercase).to_str().encode(), f"tokenizer of kind {kind}")


def train_tokenizer(config: TokenizerConfig, texts: Iterator[str]) -> Tokenizer:
    """A tokenizer for the texts: the same texts give the same file, byte for byte."""
    if config.file is not None:
        return Tokenizer.load(Path(config.file))
    if config.lowercase:
        texts = map(lowercased, texts)
    return _finished(config.type, PIPELINES[config.type].train(texts, config.vocab_size), lowercase=config.lowercase)
