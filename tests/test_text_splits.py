"""Splits of running text: boundaries are at line ends, or else between words."""

from __future__ import annotations

import random

import numpy as np
import pytest

from weft.data.config import TextDataConfig
from weft.data.source import Source, split_position
from weft.errors import DataError
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

WORDS = ["eclair", "strawberry", "a", "marzipan", "tart", "gingerbread"]


def splits(path, valid=0.05, test=0.05) -> dict[str, str]:
    table = TextDataConfig(train=str(path), valid=valid, test=test)
    return {name: "".join(source.chunks()) for name, source in table.sources(path.parent).items()}


def lines_of(count: int, words: int, seed: int = 0) -> str:
    chance = random.Random(seed)
    return "".join(" ".join(chance.choices(WORDS, k=words)) + "\n" for _ in range(count))


@pytest.mark.parametrize("words", [1, 5, 20])
def test_splits_are_whole_lines_if_lines_are_short(tmp_path, words):
    text = lines_of(6000 // words, words)
    (tmp_path / "text.txt").write_text(text)
    actual = splits(tmp_path / "text.txt")
    assert "".join(actual.values()) == text
    assert all(part.endswith("\n") for part in actual.values())
    for name, share in (("train", 0.9), ("valid", 0.05), ("test", 0.05)):
        # each boundary moves by at most 1% of the text
        assert len(actual[name]) / len(text) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("seed", range(10))
def test_no_word_is_split_if_lines_are_long(tmp_path, seed):
    chance = random.Random(seed)
    text = " ".join(chance.choices(WORDS, k=3000 + chance.randrange(100)))
    (tmp_path / "text.txt").write_text(text)
    actual = splits(tmp_path / "text.txt", valid=chance.uniform(0.02, 0.3), test=chance.uniform(0.02, 0.3))
    assert "".join(actual.values()) == text
    assert {word for part in actual.values() for word in part.split()} <= set(WORDS)
    # a subword tokenizer reads " tart" and "tart" as two tokens: the space goes with the word after it
    assert actual["valid"][0] == actual["test"][0] == " "


def test_a_text_without_whitespace_is_split_at_the_exact_fraction(tmp_path):
    (tmp_path / "text.txt").write_text("甲乙丙丁" * 250)
    assert {name: len(part) for name, part in splits(tmp_path / "text.txt", 0.1, 0.1).items()} == {
        "train": 800,
        "valid": 100,
        "test": 100,
    }


def test_splits_over_several_files_and_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.text.reading.CHUNK_CHARS", 64)
    text = lines_of(300, 3)
    (tmp_path / "a.txt").write_text(text[: len(text) // 2])
    (tmp_path / "b.txt").write_text(text[len(text) // 2 :])
    paths = (tmp_path / "a.txt", tmp_path / "b.txt")
    parts = ["".join(Source(paths, low=low, high=high).chunks()) for low, high in ((0.0, 0.7), (0.7, 0.85), (0.85, 1.0))]
    assert "".join(parts) == "".join(Source(paths).chunks())
    assert all(part.endswith("\n") for part in parts)
    assert [row.texts[0] for row in Source(paths, low=0.7, high=0.85).rows()] == parts[1].split("\n")[:-1]


def test_word_tokenizers_see_no_partial_words(tmp_path):
    (tmp_path / "text.txt").write_text(" ".join(random.Random(3).choices(WORDS, k=2000)))
    table = TextDataConfig(train=str(tmp_path / "text.txt"), valid=0.1, test=0.1)
    sources = table.sources(tmp_path)
    tokenizer = train_tokenizer(TokenizerConfig(type="word"), sources["train"].texts())
    assert sorted(tokenizer.id_to_token(number) for number in range(3, tokenizer.vocab_size)) == sorted(WORDS)
    for source in sources.values():
        assert tokenizer.unk_id not in np.concatenate(tokenizer.encode_batch(list(source.texts())))


@pytest.mark.parametrize(
    ("text", "position", "lines", "expected"),
    [
        ("ecl air\ntart", 3, 9, 8),  # a line end that is near enough wins
        ("ecl air\ntart", 2, 2, 3),  # otherwise the first whitespace
        ("ecl   air", 5, 0, 3),
        ("eclair", 3, 6, 3),
        (" eclair", 1, 0, 1),  # nothing precedes the first word
        ("a b c", 2, 0, 1),
        ("a\nb\nc", 3, 5, 2),
    ],
)
def test_nearest_boundary(text, position, lines, expected):
    assert split_position(text, position, lines) == expected


def test_a_fraction_of_empty_data_is_rejected(tmp_path):
    (tmp_path / "text.txt").write_text("strawberries " * 3)
    source = Source((tmp_path / "text.txt",), low=0.5, high=0.51)
    with pytest.raises(DataError) as caught:
        list(source.chunks())
    assert str(caught.value) == (
        f"{tmp_path / 'text.txt'}: 39 characters are too few for the fraction from 0.5 to 0.51;"
        " add text, or use separate files for data.valid and data.test"
    )
