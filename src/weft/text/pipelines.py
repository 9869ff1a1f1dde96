"""The seven tokenizer types as pipelines of Hugging Face `tokenizers`, with the training of their vocabularies.

A newline is always a separate pre-token, so that the lines of a text can be tokenized separately. The pre-tokens of subword
models have a maximum length, so that a megabyte without spaces does not take quadratic time. The tokenizer file depends only on
the text: where the trainers depend on the order of a hash map (IDs of "##x", scores of unseen bytes, last digits), the result
is made deterministic.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

UNK, BOS, EOS = "<unk>", "<s>", "</s>"
SPECIALS = (UNK, BOS, EOS)
JOINED_CHARS = 1 << 18

# letters and punctuation are never in one pre-token, so text that looks like a special token never becomes one
_SUBWORD = (
    r"\n|'(?:s|t|re|ve|m|ll|d)| ?[\p{L}\p{M}]{1,64}| ?\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]{1,32}"
    r"|[^\S\n]{1,64}(?!\S)|[^\S\n]"
)
# a straight or curly apostrophe or a hyphen between letters is part of the word
_WORD = r"\n|[\p{L}\p{M}\p{N}_]+(?:['\x{2019}\-][\p{L}\p{M}\p{N}_]+)*|[^\s\p{L}\p{M}\p{N}_]"
_WORDPIECE = r"\n|[\p{L}\p{M}\p{N}_]{1,40}|[^\s\p{L}\p{M}\p{N}_]"
# <s> and </s> in a text are split in two; <unk> is not, because it means an unknown word anyway
_WHITESPACE = r"\n|(?<!\S)<(?=/?s>(?!\S))|\S+"
BYTE_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


class Pipeline(NamedTuple):
    model: str  # type in tokenizer.json
    split: Callable[[], pre_tokenizers.PreTokenizer]
    decoder: Callable[[], decoders.Decoder]
    train: Callable[[Iterable[str], int], models.Model]  # from texts and vocabulary size
    lossless: bool


def _isolated(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Every match is a pre-token, and so is the text between matches."""
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _byte_level(pattern: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([_isolated(pattern), byte_level])


def _matches(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Every match is a pre-token; the text between matches is dropped."""
    return pre_tokenizers.Split(Regex(pattern), "removed", invert=True)


def _spaced(prefix: str) -> decoders.Decoder:
    """Join words with spaces, but not around newlines; a token that starts with `prefix` continues the previous word."""
    joined = decoders.WordPiece(prefix=prefix, cleanup=False)
    return decoders.Sequence([joined, decoders.Fuse(), decoders.Replace(Regex(r" ?\n ?"), "\n")])


def _with_ids(tokens: Iterable[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate([*SPECIALS, *tokens])}


def word_level_model(words: Iterable[str]) -> models.Model:
    """A model in which each pre-token is a token."""
    return models.WordLevel(vocab=_with_ids(words), unk_token=UNK)


def _join_texts(texts: Iterable[str]) -> Iterator[str]:
    """The same text in chunks of about JOINED_CHARS."""
    pending: list[str] = []
    size = 0
    for text in texts:
        pending.append(text)
        size += len(text)
        if size > JOINED_CHARS:
            yield "".join(pending)
            pending, size = [], 0
    yield "".join(pending)


def count_characters(texts: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Characters with their counts, most frequent first, ties by code point."""
    counts = np.zeros(0x110000, dtype=np.int64)
    for text in _join_texts(texts):
        text_counts = np.bincount(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32))
        counts[: len(text_counts)] += text_counts
    for code in np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]:
        yield chr(code), int(counts[code])


def _train_char(texts: Iterable[str], size: int) -> models.Model:
    chars = [char for char, _ in count_characters(texts)][: size - len(SPECIALS)]
    return word_level_model(sorted(chars))


def frequent_words(split: pre_tokenizers.PreTokenizer, texts: Iterable[str], size: int, *, min_count: int = 0) -> list[str]:
    """The pre-tokens of the texts that occur at least `min_count` times, the most frequent first, without special tokens;
    `size` includes those."""
    draft = Tokenizer(models.WordLevel(unk_token=UNK))
    draft.pre_tokenizer = split
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, min_frequency=min_count, special_tokens=list(SPECIALS), show_progress=False
    )
    draft.train_from_iterator(texts, trainer)
    vocab = draft.get_vocab()
    return [word for word in sorted(vocab, key=lambda word: vocab[word]) if word not in SPECIALS]


def _train_words(split: pre_tokenizers.PreTokenizer, texts: Iterable[str], size: int) -> models.Model:
    return word_level_model(frequent_words(split, texts, size))


def _train_byte(texts: Iterable[str], size: int) -> models.Model:
    # in the order of values, so that the ID of a byte is its value + 3
    return models.BPE(vocab=_with_ids(byte_chars()), merges=[], unk_token=UNK)


def byte_chars() -> list[str]:
    """Character of the byte-level alphabet (GPT-2) for each byte value."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    substitutes = iter(range(256, 512))
    return [chr(value) if value in printable else chr(next(substitutes)) for value in range(256)]


def _train_bpe(texts: Iterable[str], size: int) -> models.Model:
    draft = Tokenizer(models.BPE(unk_token=UNK))
    draft.pre_tokenizer = _byte_level(_SUBWORD)
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIALS), initial_alphabet=BYTE_ALPHABET, show_progress=False
    )
    draft.train_from_iterator(texts, trainer)
    trained: models.Model = draft.model
    return trained


def _train_unigram(texts: Iterable[str], size: int) -> models.Model:
    draft = Tokenizer(models.Unigram())
    draft.pre_tokenizer = _byte_level(_SUBWORD)
    trainer = trainers.UnigramTrainer(
        vocab_size=size, unk_token=UNK, initial_alphabet=BYTE_ALPHABET, show_progress=False, special_tokens=list(SPECIALS)
    )
    draft.train_from_iterator(texts, trainer)
    return models.Unigram(_deterministic_scores(draft), unk_id=0, byte_fallback=False)


def _deterministic_scores(draft: Tokenizer) -> list[tuple[str, float]]:
    """The tokens of a trained unigram model, with scores that do not depend on the order of a hash map."""
    scores: list[tuple[str, float | None]] = json.loads(draft.to_str())["model"]["vocab"]
    # without any text, every score is infinite and null in JSON
    tokens = {token: -1.0 if score is None else score for token, score in scores if token not in SPECIALS}
    lowest = min(tokens.values())
    # the trainer gives unseen bytes the lowest score minus 0.0001, 0.0002, ... in random order
    threshold = lowest + 0.0001 * (len(BYTE_ALPHABET) + 1)
    rounded = {token: round(lowest if len(token) == 1 and score < threshold else score, 4) for token, score in tokens.items()}
    ordered = sorted(rounded.items(), key=lambda pair: (-pair[1], pair[0]))
    return [(special, 0.0) for special in SPECIALS] + ordered


def _train_wordpiece(texts: Iterable[str], size: int) -> models.Model:
    words: Counter[str] = Counter()
    for text in texts:
        words.update(text.split())
        words["\n"] += text.count("\n")
    chars: Counter[str] = Counter()
    for word, count in words.items():
        chars.update(dict.fromkeys(word, count))
    alphabet = sorted(sorted(chars, key=lambda char: (-chars[char], char))[: size // 4])
    # passed as special tokens to fix their order: the trainer would use the order of a hash map
    continuations = ["##" + char for char in alphabet if char == "_" or unicodedata.category(char)[0] in "LMN"]
    draft = Tokenizer(models.WordPiece(unk_token=UNK))
    draft.pre_tokenizer = _matches(_WORDPIECE)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=[*SPECIALS, *continuations], initial_alphabet=alphabet, limit_alphabet=len(alphabet),
        show_progress=False,
    )  # fmt: skip
    draft.train_from_iterator(_repeat_words(words), trainer)
    return models.WordPiece(vocab=draft.get_vocab(), unk_token=UNK, max_input_chars_per_word=100)


def _repeat_words(words: Counter[str]) -> Iterator[str]:
    """Texts with every word repeated as often as it was counted."""
    for word in sorted(words):
        for start in range(0, words[word], 1000):
            yield " ".join([word] * min(1000, words[word] - start))


def _train_word(texts: Iterable[str], size: int) -> models.Model:
    return _train_words(_matches(_WORD), texts, size)


def _train_whitespace(texts: Iterable[str], size: int) -> models.Model:
    return _train_words(_matches(_WHITESPACE), texts, size)


# fmt: off
PIPELINES: dict[str, Pipeline] = {
    "char": Pipeline("WordLevel", lambda: _isolated(r"[\s\S]"), decoders.Fuse, _train_char, lossless=True),
    "word": Pipeline("WordLevel", lambda: _matches(_WORD), lambda: _spaced(" "), _train_word, lossless=False),
    "whitespace": Pipeline("WordLevel", lambda: _matches(_WHITESPACE), lambda: _spaced(" "), _train_whitespace, lossless=False),
    "byte": Pipeline("BPE", lambda: _byte_level(r"[\s\S]{1,256}"), decoders.ByteLevel, _train_byte, lossless=True),
    "bpe": Pipeline("BPE", lambda: _byte_level(_SUBWORD), decoders.ByteLevel, _train_bpe, lossless=True),
    "unigram": Pipeline("Unigram", lambda: _byte_level(_SUBWORD), decoders.ByteLevel, _train_unigram, lossless=True),
    "wordpiece": Pipeline(
        "WordPiece", lambda: _matches(_WORDPIECE), lambda: _spaced("##"), _train_wordpiece, lossless=False
    ),
}
# fmt: on


def lowercased(text: str) -> str:
    """Lowercase a text like the `Lowercase` normalizer: every character independently."""
    # str.lower depends on the context (final sigma), and its Unicode version may be older than that of the library
    lower: str = text.lower() if text.isascii() else normalizers.Lowercase().normalize_str(text)
    return lower


def assemble(type: str, model: models.Model, *, lowercase: bool = False) -> Tokenizer:
    """A tokenizer of a type with this model. It does not add special tokens."""
    tokenizer = Tokenizer(model)
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = PIPELINES[type].split()
    tokenizer.decoder = PIPELINES[type].decoder()
    return tokenizer
