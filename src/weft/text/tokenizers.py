"""Tokenizers: text to token IDs and back. Each is a `tokenizer.json` that Hugging Face `tokenizers` can load.

The first IDs are the special tokens <unk> = 0, <s> = 1 (BOS), </s> = 2 (EOS). In a text, these strings are not special: they
never get the special IDs. (For the type `whitespace`, the word <unk> is an unknown word.)

    char        characters; lossless for those in the training data
    byte        UTF-8 bytes; lossless, always 259 tokens
    bpe         byte-pair encoding over bytes (Sennrich et al. 2016); lossless
    unigram     unigram language model over bytes (Kudo 2018); lossless
    word        words and punctuation marks; whitespace other than newlines is lost
    whitespace  split at whitespace; whitespace other than newlines is lost
    wordpiece   WordPiece; whitespace other than newlines is lost
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
from weft.config import Choice, Config, invalid
from weft.errors import DataError, ModelError
from weft.text.external_tokenizer import check_expansion, parse_tokenizer, wrap_errors
from weft.text.pipelines import PIPELINES, SPECIALS, assemble, byte_chars, frequent_words, lowercased, word_level_model
from weft.text.reading import check_text, split_at_newlines
from weft.text.start_tokens import read_start_tokens
from weft.text.word_cache import WordCache

TYPES = tuple(PIPELINES)
LOSSLESS = {name: pipeline.lossless for name, pipeline in PIPELINES.items()}
MAX_BYTES = 128 << 20  # the largest tokenizers in use have 35 MB
ENCODE_ERROR = "tokenizer: cannot encode a text"
MIN_VOCAB_SIZE = {"bpe": 259, "unigram": 259}  # special tokens and 256 bytes
MAX_VOCAB_SIZE = {
    "bpe": 1 << 20,
    "unigram": 1 << 20,
    "wordpiece": 1 << 20,
}  # trainers allocate memory for all tokens

Flat = tuple[np.ndarray, np.ndarray]  # token IDs of B texts, concatenated, (T,), and number of tokens of each, (B,)


class TokenizerConfig(Config):
    """How text is split into tokens."""

    type: Annotated[str, Choice(TYPES, "type")] = "char"
    """Tokenization algorithm."""
    vocab_size: int = 8000
    """Maximum vocabulary size, including the three special tokens."""
    lowercase: bool = False
    """Lowercase all text."""
    file: str | None = None
    """Use this tokenizer.json instead of training a tokenizer."""

    @model_validator(mode="after")
    def check_tokenizer(self) -> Self:
        minimum, maximum = MIN_VOCAB_SIZE.get(self.type, len(SPECIALS) + 1), MAX_VOCAB_SIZE.get(self.type, 2**31 - 1)
        if self.vocab_size < minimum:
            raise invalid("vocab_size", f"must be at least {minimum} for type {self.type!r}, got {self.vocab_size}")
        if self.vocab_size > maximum:
            raise invalid("vocab_size", f"must be at most {maximum} for type {self.type!r}, got {self.vocab_size}")
        if self.file is not None and (conflicts := self.model_fields_set & {"type", "vocab_size", "lowercase"}):
            raise invalid("file", f"cannot be combined with {', '.join(sorted(conflicts))}", "remove one of them")
        return self


class Tokenizer:
    """Text to token IDs and back. `hash` is the SHA-256 of the file: equal hashes mean equal tokenizers."""

    unk_id, bos_id, eos_id = 0, 1, 2

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.hash = data, hashlib.sha256(data).hexdigest()
        self._tokenizer = _parse(data, where)
        self.vocab_size = _vocab_size(self._tokenizer, where)
        self.start_tokens = read_start_tokens(data, self.vocab_size, where)
        self.type, self.lowercase = _detect_type(data)
        self._is_external = self.type not in TYPES
        self.lossless = LOSSLESS.get(self.type, False) and not self.lowercase
        self._encode_flat = self._fastest_encoder()

    def _fastest_encoder(self) -> Callable[[list[str]], Flat]:
        """The fastest function with the same results as the library."""
        if self.type in ("char", "byte"):
            encode = _CharEncoder(self._tokenizer).encode if self.type == "char" else _encode_bytes
            return (lambda texts: encode([lowercased(text) for text in texts])) if self.lowercase else encode
        return WordCache(self._encode_with_library).encode if self.type in TYPES else self._encode_texts

    def _encode_with_library(self, texts: list[str]) -> list[list[int]]:
        """Encode each text with the library."""
        try:
            # an external file may lack its unknown token, or have a pattern with exponential run time
            with wrap_errors(ENCODE_ERROR, external=self._is_external):
                return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        except TypeError:
            raise _invalid_input(texts) from None

    def _encode_texts(self, texts: list[str]) -> Flat:
        encoded = self._encode_with_library(texts)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.fromiter(chain.from_iterable(encoded), np.int64, int(lengths.sum())), lengths

    def encode_lines(self, lines: list[str]) -> Flat:
        """Encode lines that `split_at_newlines` returned: without inner newlines, of limited length."""
        try:
            return self._encode_flat(lines)
        except UnicodeEncodeError:
            raise _invalid_input(lines) from None

    def encode_concatenated(self, texts: Sequence[str]) -> Flat:
        """Encode texts line by line."""
        lines = [split_at_newlines(text) for text in texts]
        ids, lengths = self.encode_lines(list(chain.from_iterable(lines)))
        line_edges = np.concatenate([[0], np.cumsum(lengths)])
        edges = line_edges[np.fromiter(accumulate(map(len, lines), initial=0), np.int64, len(lines) + 1)]
        return ids, np.diff(edges)

    def encode(self, text: str) -> np.ndarray:
        """Token IDs, int64 (T,). Lines are encoded separately, as for a file."""
        return self.encode_concatenated([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode several texts at once."""
        ids, lengths = self.encode_concatenated(texts)
        edges = [0, *np.cumsum(lengths).tolist()]
        return [ids[start:stop] for start, stop in pairwise(edges)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each token of `encode(text)` in characters. All bytes of a character have its offsets."""
        lines, offsets, start = split_at_newlines(text), list[tuple[int, int]](), 0
        with wrap_errors(ENCODE_ERROR, external=self._is_external):
            encoded = self._tokenizer.encode_batch(lines, add_special_tokens=False)
        for line, encoding in zip(lines, encoded, strict=True):
            offsets += [(start + low, start + high) for low, high in encoding.offsets]
            start += len(line)
        return offsets

    def unknown_parts(self, texts: list[str]) -> list[str]:
        """The parts of the texts that are encoded as <unk>, in order."""
        with wrap_errors(ENCODE_ERROR, external=self._is_external):
            encoded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [
            text[low:high]
            for text, encoding in zip(texts, encoded, strict=True)
            for token_id, (low, high) in zip(encoding.ids, encoding.offsets, strict=True)
            if token_id == self.unk_id
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the token IDs, without special tokens; incomplete characters become U+FFFD."""
        token_ids = [int(token_id) for token_id in ids if token_id >= len(SPECIALS)]
        with wrap_errors("tokenizer: cannot decode tokens", external=self._is_external):
            text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def id_to_token(self, token_id: int) -> str:
        """The vocabulary entry of a token, which is unique. `token_text` is for display."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None:
            raise IndexError(f"token ID {token_id} is not in the vocabulary of {self.vocab_size} tokens")
        return token

    def token_text(self, token_id: int) -> str:
        """The text of a token; incomplete characters are escapes, special tokens have their names."""
        token = self.id_to_token(token_id)
        if token_id < len(SPECIALS) or self.type not in ("byte", "bpe", "unigram"):
            return token
        return bytes(_byte_values()[char] for char in token).decode("utf-8", "backslashreplace")

    def by_name(self) -> dict[str, Tokenizer]:
        """The tokenizer by its name in output, as for a pair."""
        return {"tokenizer": self}

    def save(self, path: Path) -> None:
        files.write_bytes(path, self.data)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a tokenizer file; an error if it is corrupted or unsuitable."""
        try:
            files.refuse_device(path)
            if path.stat().st_size > MAX_BYTES:
                raise ModelError(path, f"larger than {MAX_BYTES >> 20} MB; not a tokenizer file")
            data = path.read_bytes()
        except OSError as error:
            raise ModelError(path, f"cannot read the file: {error.strerror}") from None
        return cls(data, str(path))


class _CharEncoder:
    """Encodes characters with a lookup table over code points."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        vocab = {ord(char): token_id for char, token_id in tokenizer.get_vocab().items() if token_id >= len(SPECIALS)}
        # the last entry is for all larger code points
        self.table = np.zeros(max(vocab, default=0) + 2, dtype=np.int64)
        self.table[list(vocab)] = list(vocab.values())

    def encode(self, texts: list[str]) -> Flat:
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32)
        ids = self.table[np.minimum(codes, len(self.table) - 1)]
        return ids, np.fromiter(map(len, texts), np.int64, len(texts))


def _encode_bytes(texts: list[str]) -> Flat:
    encoded = [text.encode() for text in texts]
    ids = np.frombuffer(b"".join(encoded), dtype=np.uint8).astype(np.int64) + len(SPECIALS)
    return ids, np.fromiter(map(len, encoded), np.int64, len(encoded))


@cache
def _byte_values() -> dict[str, int]:
    return {char: value for value, char in enumerate(byte_chars())}


def _invalid_input(texts: Sequence[str]) -> Exception:
    try:
        for text in texts:
            check_text(text.replace("\0", " "), "text")
    except DataError as error:
        return error
    return TypeError("texts must be str")


def _parse(data: bytes, where: str) -> tokenizers.Tokenizer:
    tokenizer = parse_tokenizer(data, where)
    check_expansion(json.loads(data), where)
    for token_id, special in enumerate(SPECIALS):
        if tokenizer.id_to_token(token_id) != special:
            raise ModelError(
                where,
                f"token {token_id} is {tokenizer.id_to_token(token_id)!r}, expected {special!r}",
                f"the first three tokens must be {', '.join(SPECIALS)}",
            )
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _vocab_size(tokenizer: tokenizers.Tokenizer, where: str) -> int:
    """The vocabulary size. Token IDs must be consecutive, because they index the rows of the embedding."""
    token_ids = set(tokenizer.get_vocab().values())
    if token_ids != set(range(len(token_ids))) or len(token_ids) != tokenizer.get_vocab_size():
        raise ModelError(where, f"the IDs of its {tokenizer.get_vocab_size()} tokens are not consecutive from 0")
    return len(token_ids)


def _detect_type(data: bytes) -> tuple[str, bool]:
    """The type of a tokenizer file, by its pipeline, and whether it lowercases; 'file' and False for other pipelines."""
    parts: dict[str, Any] = json.loads(data)
    normalizer = parts.get("normalizer")
    if normalizer not in (None, {"type": "Lowercase"}) or parts.get("added_tokens"):
        return "file", False
    name = _type_of_parts(parts)
    return name, normalizer is not None and name != "file"


def _type_of_parts(parts: dict[str, Any]) -> str:
    model = parts["model"]
    pipeline = (model.get("type"), parts.get("pre_tokenizer"), parts.get("decoder"))
    name = next((name for name in TYPES if pipeline == _pipeline_parts(name)), "file")
    # weft encodes char and byte without the library, which is correct only for such vocabularies
    if name == "char" and any(len(token) != 1 for token, token_id in model["vocab"].items() if token_id >= len(SPECIALS)):
        return "file"
    if name == "byte" and (model["merges"] or list(model["vocab"])[len(SPECIALS) :] != byte_chars()):
        return "file"
    return name


@cache
def _pipeline_parts(name: str) -> tuple[str, Any, Any]:
    """Model type, pre-tokenizer and decoder of a type, as in tokenizer.json."""
    parts = json.loads(assemble(name, word_level_model([])).to_str())
    return PIPELINES[name].model, parts["pre_tokenizer"], parts["decoder"]


def from_vocab(words: Sequence[str]) -> Tokenizer:
    """A `whitespace` tokenizer with these words after the special tokens."""
    return _build("whitespace", word_level_model(word for word in words if word not in SPECIALS))


def _build(name: str, model: tokenizers.models.Model, *, lowercase: bool = False) -> Tokenizer:
    return Tokenizer(assemble(name, model, lowercase=lowercase).to_str().encode(), f"{name} tokenizer")


def train_tokenizer(config: TokenizerConfig, texts: Iterator[str]) -> Tokenizer:
    """Train a tokenizer, or load `config.file`. Equal texts give a byte-identical file."""
    if config.file is not None:
        return Tokenizer.load(Path(config.file))
    if config.lowercase:
        texts = map(lowercased, texts)
    return _build(config.type, PIPELINES[config.type].train(texts, config.vocab_size), lowercase=config.lowercase)


def word_tokenizer(type: str, words: Iterable[str], *, lowercase: bool) -> Tokenizer:
    """A tokenizer of type word or whitespace with this vocabulary. A newline is its first token."""
    return _build(type, word_level_model(["\n", *(word for word in words if word != "\n")]), lowercase=lowercase)


def train_word_tokenizer(config: TokenizerConfig, texts: Iterator[str], *, min_count: int) -> Tokenizer:
    """`word_tokenizer` with the words of the texts that occur at least `min_count` times, the most frequent first."""
    if config.lowercase:
        texts = map(lowercased, texts)
    words = frequent_words(PIPELINES[config.type].split(), texts, config.vocab_size, min_count=min_count)
    return word_tokenizer(config.type, words, lowercase=config.lowercase)
