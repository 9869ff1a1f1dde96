"""The seven kinds of tokenizer, as pipelines of Hugging Face `tokenizers`, and how each vocabulary is made.

A newline is always a pre-token of its own, so a text cut after any newline is tokenised as the whole is. What subword
models see is bounded in length, so that a megabyte without a space takes no quadratic time. Every file is a function of
the text alone: what the trainers leave to the order of a hash map (ids of "##x", scores of unseen bytes, last digits)
is put right.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

UNK, BEGIN, END = "<unk>", "<s>", "</s>"
SPECIALS = (UNK, BEGIN, END)

# letters never join punctuation, so none of these can build a special token out of text that looks like one
_SUBWORD = (
    r"\n|'(?:s|t|re|ve|m|ll|d)| ?[\p{L}\p{M}]{1,64}| ?\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]{1,32}"
    r"|[^\S\n]{1,64}(?!\S)|[^\S\n]"
)
# an apostrophe, straight or curly, or a hyphen between letters belongs to the word
_WORD = r"\n|[\p{L}\p{M}\p{N}_]+(?:['\x{2019}\-][\p{L}\p{M}\p{N}_]+)*|[^\s\p{L}\p{M}\p{N}_]"
_WORDPIECE = r"\n|[\p{L}\p{M}\p{N}_]{1,40}|[^\s\p{L}\p{M}\p{N}_]"
# <s> and </s> in a text are cut in two; <unk> is what any unknown word is, so it may stand
_SPACE = r"\n|(?<!\S)<(?=/?s>(?!\S))|\S+"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


class Pipeline(NamedTuple):
    model: str
    split: Callable[[], pre_tokenizers.PreTokenizer]
    decoder: Callable[[], decoders.Decoder]
    train: Callable[[Iterable[str], int], models.Model]
    lossless: bool


def _isolated(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _byte_level(pattern: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([_isolated(pattern), byte_level])


def _matches(pattern: str) -> pre_tokenizers.PreTokenizer:
    """What matches is a pre-token, what lies between is dropped."""
    return pre_tokenizers.Split(Regex(pattern), "removed", invert=True)


def _spaced(prefix: str) -> decoders.Decoder:
    """Words with spaces between, newlines without; what starts with `prefix` goes on with the word before."""
    joined = decoders.WordPiece(prefix=prefix, cleanup=False)
    return decoders.Sequence([joined, decoders.Fuse(), decoders.Replace(Regex(r" ?\n ?"), "\n")])


def _numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate([*SPECIALS, *tokens])}


def word_level_model(words: Iterable[str]) -> models.Model:
    """A model that looks each pre-token up."""
    return models.WordLevel(vocab=_numbered(words), unk_token=UNK)


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """The same characters in fewer pieces."""
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size > 1 << 18:
            yield "".join(held)
            held, size = [], 0
    yield "".join(held)


def count_characters(texts: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Every character with its count, most frequent first, equal ones by code point."""
    counts = np.zeros(0x110000, dtype=np.int64)
    for text in _joined(texts):
        found = np.bincount(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32))
        counts[: len(found)] += found
    for code in np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]:
        yield chr(code), int(counts[code])


def _train_char(texts: Iterable[str], size: int) -> models.Model:
    kept = [char for char, _ in count_characters(texts)][: size - len(SPECIALS)]
    return word_level_model(sorted(kept))


def _train_words(split: pre_tokenizers.PreTokenizer, texts: Iterable[str], size: int) -> models.Model:
    draft = Tokenizer(models.WordLevel(unk_token=UNK))
    draft.pre_tokenizer = split
    trainer = trainers.WordLevelTrainer(vocab_size=size, special_tokens=list(SPECIALS), show_progress=False)
    draft.train_from_iterator(texts, trainer)
    vocabulary = draft.get_vocab()
    return word_level_model(word for word in sorted(vocabulary, key=lambda word: vocabulary[word]) if word not in SPECIALS)


def _train_byte(texts: Iterable[str], size: int) -> models.Model:
    # by value, so that id = byte + 3; the letters of the byte-level alphabet stand for values in another order
    return models.BPE(vocab=_numbered(byte_letters()), merges=[], unk_token=UNK)


def byte_letters() -> list[str]:
    """The letter that stands for each byte, by value."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(value) if value in printable else chr(next(others)) for value in range(256)]


def _train_bpe(texts: Iterable[str], size: int) -> models.Model:
    draft = Tokenizer(models.BPE(unk_token=UNK))
    draft.pre_tokenizer = _byte_level(_SUBWORD)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(SPECIALS), initial_alphabet=BYTES, show_progress=False)
    draft.train_from_iterator(texts, trainer)
    trained: models.Model = draft.model
    return trained


def _train_unigram(texts: Iterable[str], size: int) -> models.Model:
    draft = Tokenizer(models.Unigram())
    draft.pre_tokenizer = _byte_level(_SUBWORD)
    trainer = trainers.UnigramTrainer(
        vocab_size=size, unk_token=UNK, initial_alphabet=BYTES, show_progress=False, special_tokens=list(SPECIALS)
    )
    draft.train_from_iterator(texts, trainer)
    return models.Unigram(_settled(draft), unk_id=0, byte_fallback=False)


def _settled(draft: Tokenizer) -> list[tuple[str, float]]:
    """The pieces with scores that don't depend on the order of a hash map."""
    scores: list[tuple[str, float | None]] = json.loads(draft.to_str())["model"]["vocab"]
    # without any text every score is infinite, which JSON has not
    pieces = {piece: -1.0 if score is None else score for piece, score in scores if piece not in SPECIALS}
    lowest = min(pieces.values())
    # bytes that were never seen get the lowest score less 0.0001, 0.0002 ... in an order that changes from run to run
    band = lowest + 0.0001 * (len(BYTES) + 1)
    settled = {piece: round(lowest if len(piece) == 1 and score < band else score, 4) for piece, score in pieces.items()}
    ordered = sorted(settled.items(), key=lambda pair: (-pair[1], pair[0]))
    return [(special, 0.0) for special in SPECIALS] + ordered


def _train_wordpiece(texts: Iterable[str], size: int) -> models.Model:
    words: Counter[str] = Counter()
    for text in texts:
        words.update(text.split())
        words["\n"] += text.count("\n")
    letters: Counter[str] = Counter()
    for word, count in words.items():
        letters.update(dict.fromkeys(word, count))
    kept = sorted(sorted(letters, key=lambda letter: (-letters[letter], letter))[: size // 4])
    # given as specials, in this order: the trainer would number them as a hash map happens to show the words
    inner = ["##" + letter for letter in kept if letter == "_" or unicodedata.category(letter)[0] in "LMN"]
    draft = Tokenizer(models.WordPiece(unk_token=UNK))
    draft.pre_tokenizer = _matches(_WORDPIECE)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=[*SPECIALS, *inner], initial_alphabet=kept, limit_alphabet=len(kept),
        show_progress=False,
    )  # fmt: skip
    draft.train_from_iterator(_repeated(words), trainer)
    return models.WordPiece(vocab=draft.get_vocab(), unk_token=UNK, max_input_chars_per_word=100)


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Every word as often as it was counted."""
    for word in sorted(words):
        for start in range(0, words[word], 1000):
            yield " ".join([word] * min(1000, words[word] - start))


def _train_word(texts: Iterable[str], size: int) -> models.Model:
    return _train_words(_matches(_WORD), texts, size)


def _train_space(texts: Iterable[str], size: int) -> models.Model:
    return _train_words(_matches(_SPACE), texts, size)


# fmt: off
PIPELINES: dict[str, Pipeline] = {
    "char": Pipeline("WordLevel", lambda: _isolated(r"[\s\S]"), decoders.Fuse, _train_char, lossless=True),
    "word": Pipeline("WordLevel", lambda: _matches(_WORD), lambda: _spaced(" "), _train_word, lossless=False),
    "whitespace": Pipeline("WordLevel", lambda: _matches(_SPACE), lambda: _spaced(" "), _train_space, lossless=False),
    "byte": Pipeline("BPE", lambda: _byte_level(r"[\s\S]{1,256}"), decoders.ByteLevel, _train_byte, lossless=True),
    "bpe": Pipeline("BPE", lambda: _byte_level(_SUBWORD), decoders.ByteLevel, _train_bpe, lossless=True),
    "unigram": Pipeline("Unigram", lambda: _byte_level(_SUBWORD), decoders.ByteLevel, _train_unigram, lossless=True),
    "wordpiece": Pipeline(
        "WordPiece", lambda: _matches(_WORDPIECE), lambda: _spaced("##"), _train_wordpiece, lossless=False
    ),
}
# fmt: on


def lowercased(text: str) -> str:
    """The text as a `Lowercase` normalizer gives it: each character by itself, whatever stands around it."""
    # str.lower looks at neighbours (a last sigma) and may know fewer scripts than the library does
    folded: str = text.lower() if text.isascii() else normalizers.Lowercase().normalize_str(text)
    return folded


def assemble(type: str, model: models.Model, *, lowercase: bool = False) -> Tokenizer:
    """The whole pipeline of a kind around a model; it adds no special token of its own accord."""
    whole = Tokenizer(model)
    if lowercase:
        whole.normalizer = normalizers.Lowercase()
    whole.pre_tokenizer = PIPELINES[type].split()
    whole.decoder = PIPELINES[type].decoder()
    return whole
