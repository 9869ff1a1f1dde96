"""Tokenizers of every type: round trips, special tokens, files, lowercasing, speed and damaged files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.text.tokenizers
from weft.config import parse_config
from weft.errors import ConfigError, DataError, ModelError
from weft.text import reading as gate
from weft.text import word_cache as words
from weft.text.tokenizers import LOSSLESS, TYPES, Tokenizer, TokenizerConfig, from_vocab, train_tokenizer

TEXT = (
    "The cat sat on the mat. The cats don't sit; they lie, well-fed and warm.\n"
    "\n"
    "Ein Hund läuft über die Straße, 1234 Katzen schauen zu: „Na so was!“\n"
    "def f(x):\n    return x ** 2  # a comment\n"
    "日本語のテキスト、それから 한국어 텍스트.\ttabs\tand  double  spaces \n"
) * 5

every_type = pytest.mark.parametrize("tokenizer_type", TYPES)
lossless_kind = pytest.mark.parametrize(
    "tokenizer_type", [tokenizer_type for tokenizer_type in TYPES if LOSSLESS[tokenizer_type] and tokenizer_type != "char"]
)
any_text = st.text(st.characters(exclude_categories=["Cs"]))
# characters that the patterns distinguish, in all combinations
wild_text = st.text(st.sampled_from("ab'sStT 1\n\n\t\r\0  \u00a0\u3000\x1c\u2028<>/unk.-é́日🙂"), max_size=40)


@cache
def trained(tokenizer_type: str) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(type=tokenizer_type, vocab_size=400), iter([TEXT]))


@cache
def folded(tokenizer_type: str) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(type=tokenizer_type, vocab_size=400, lowercase=True), iter([TEXT]))


@cache
def plain(tokenizer_type: str) -> tokenizers.Tokenizer:
    """The encoding of the underlying library for the saved file."""
    return tokenizers.Tokenizer.from_str(trained(tokenizer_type).data.decode())


def error_message(error, action) -> str:
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


@every_type
def test_special_tokens_come_first_and_ids_are_below_vocab_size(tokenizer_type):
    tokenizer = trained(tokenizer_type)
    assert [tokenizer.id_to_token(number) for number in range(3)] == ["<unk>", "<s>", "</s>"]
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    assert tokenizer.type == tokenizer_type
    ids = tokenizer.encode(TEXT)
    assert ids.dtype == np.int64
    assert ids.max() < tokenizer.vocab_size <= 400
    assert len({tokenizer.id_to_token(number) for number in range(tokenizer.vocab_size)}) == tokenizer.vocab_size
    assert tokenizer.hash == hashlib.sha256(tokenizer.data).hexdigest()


@every_type
@given(text=wild_text)
@settings(max_examples=150, deadline=None)
def test_fast_encoding_equals_the_library(tokenizer_type, text):
    assert trained(tokenizer_type).encode(text).tolist() == plain(tokenizer_type).encode(text, add_special_tokens=False).ids


@every_type
def test_fast_encoding_equals_the_library_on_a_real_text(tokenizer_type):
    assert trained(tokenizer_type).encode(TEXT).tolist() == plain(tokenizer_type).encode(TEXT).ids
    lines = gate.split_at_newlines(TEXT)
    assert np.concatenate(trained(tokenizer_type).encode_batch(lines)).tolist() == plain(tokenizer_type).encode(TEXT).ids


@every_type
@given(texts=st.lists(wild_text, max_size=5))
@settings(max_examples=50, deadline=None)
def test_batch_encoding_equals_single_encoding(tokenizer_type, texts):
    tokenizer = trained(tokenizer_type)
    batch = tokenizer.encode_batch(texts)
    assert [ids.tolist() for ids in batch] == [tokenizer.encode(text).tolist() for text in texts]
    flat, lengths = tokenizer.encode_concatenated(texts)
    assert lengths.tolist() == [len(ids) for ids in batch]
    assert flat.tolist() == [number for ids in batch for number in ids.tolist()]


@lossless_kind
@given(text=any_text)
@settings(deadline=None)
def test_lossless_types_round_trip_any_text(tokenizer_type, text):
    assert trained(tokenizer_type).lossless
    assert trained(tokenizer_type).decode(trained(tokenizer_type).encode(text)) == text


@given(text=st.text(st.sampled_from(sorted(set(TEXT)))))
def test_char_round_trips_training_characters(text):
    assert trained("char").decode(trained("char").encode(text)) == text


def test_char_keeps_every_character_up_to_vocab_size():
    assert {trained("char").id_to_token(number) for number in range(3, trained("char").vocab_size)} == set(TEXT)
    few = train_tokenizer(TokenizerConfig(type="char", vocab_size=5), iter(["abbccc", "cb"]))
    assert [few.id_to_token(number) for number in range(few.vocab_size)] == ["<unk>", "<s>", "</s>", "b", "c"]
    assert few.encode("abcx𝄞").tolist() == [0, 3, 4, 0, 0]


def test_byte_ids_are_byte_values():
    tokenizer = trained("byte")
    assert tokenizer.vocab_size == 259
    assert tokenizer.encode("aé").tolist() == [3 + value for value in "aé".encode()]
    assert tokenizer.decode([3 + 0xC3]) == "\ufffd"
    assert tokenizer.token_text(3 + 0xC3) == "\\xc3"


@pytest.mark.parametrize(
    ("tokenizer_type", "pieces"),
    [
        ("word", ["The", "cats", "don't", "well-fed", ";", "\n", "\n", "mat", "."]),
        ("whitespace", ["The", "cats", "don't", "well-fed;", "\n", "\n", "mat."]),
    ],
)
def test_words_and_newlines_are_tokens(tokenizer_type, pieces):
    tokenizer = train_tokenizer(TokenizerConfig(type=tokenizer_type), iter(["The cats don't well-fed;\n\nmat."]))
    ids = tokenizer.encode("The  cats\u00a0don't well-fed; \n\n mat.")
    assert [tokenizer.id_to_token(number) for number in ids] == pieces
    assert tokenizer.decode(ids) == (
        "The cats don't well-fed ;\n\nmat ." if tokenizer_type == "word" else "The cats don't well-fed;\n\nmat."
    )
    assert tokenizer.encode("unseen").tolist() == [0]


def test_wordpiece_joins_the_tokens_of_a_word():
    tokenizer = trained("wordpiece")
    assert tokenizer.decode(tokenizer.encode("The cats lie  warm\nand sit.")) == "The cats lie warm\nand sit ."


@every_type
@pytest.mark.parametrize("text", ["</s>", "a <s> b", "<unk>", "</s><s>", "x</s>\n</s> y", "<s", "( </s> )"])
def test_a_special_token_in_a_text_is_only_text(tokenizer_type, text):
    source = TEXT + "</s> <s> <unk> </s><s>\n" * 50
    tokenizer = train_tokenizer(TokenizerConfig(type=tokenizer_type, vocab_size=400), iter([source]))
    ids = tokenizer.encode(text).tolist()
    assert not {1, 2} & set(ids)
    assert ids == tokenizers.Tokenizer.from_str(tokenizer.data.decode()).encode(text).ids
    if tokenizer_type not in ("whitespace", "word", "char"):
        assert 0 not in ids
    if LOSSLESS[tokenizer_type]:
        assert tokenizer.decode(ids) == text


def test_unk_is_the_unknown_token_of_a_tokenizer_made_from_a_vocabulary():
    assert from_vocab(["the", "<unk>", "end"]).encode("the <unk> end").tolist() == [3, 0, 4]


@every_type
def test_a_saved_tokenizer_is_the_same(tokenizer_type, tmp_path):
    path = tmp_path / "tokenizer.json"
    trained(tokenizer_type).save(path)
    again = Tokenizer.load(path)
    assert (again.hash, again.type, again.vocab_size, again.lossless) == (
        trained(tokenizer_type).hash, tokenizer_type, trained(tokenizer_type).vocab_size, LOSSLESS[tokenizer_type],
    )  # fmt: skip
    assert again.encode(TEXT).tolist() == tokenizers.Tokenizer.from_file(str(path)).encode(TEXT).ids
    assert again.decode(again.encode(TEXT)) == trained(tokenizer_type).decode(trained(tokenizer_type).encode(TEXT))


def test_the_same_text_gives_the_same_file_in_every_process(tmp_path):
    # the library's trainers depend on hash-map order, which differs between maps and processes
    text = TEXT + " ".join(f"{number} word{number % 70}ing" for number in range(3000))
    (tmp_path / "text").write_text(text, encoding="utf-8")
    code = (
        "import sys; from weft.text.tokenizers import *\n"
        "text = open(sys.argv[1], encoding='utf-8').read()\n"
        "for kind in TYPES:\n"
        "    print(train_tokenizer(TokenizerConfig(type=kind, vocab_size=500), iter([text])).hash)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "text")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    other = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout.split()
    for _ in range(3):
        assert [
            train_tokenizer(TokenizerConfig(type=tokenizer_type, vocab_size=500), iter([text])).hash for tokenizer_type in TYPES
        ] == other


@pytest.mark.parametrize("tokenizer_type", ["bpe", "unigram", "wordpiece", "word", "whitespace"])
@pytest.mark.parametrize("unit", ["abcdefghij", "語", ".", "7", "é́"])
def test_encoding_a_very_long_word_is_not_quadratic(tokenizer_type, unit):
    text = unit * (200_000 // len(unit))
    trained(tokenizer_type).encode("warm up")
    start = time.process_time()
    ids = trained(tokenizer_type).encode(text)
    assert time.process_time() - start < 3
    if LOSSLESS[tokenizer_type]:
        assert trained(tokenizer_type).decode(ids) == text


def test_training_on_a_very_long_word_is_not_quadratic():
    for tokenizer_type in ("bpe", "unigram", "wordpiece"):
        start = time.process_time()
        train_tokenizer(TokenizerConfig(type=tokenizer_type, vocab_size=300), iter(["abcdefghij" * 20_000, " b"]))
        assert time.process_time() - start < 5


def test_word_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(words, "MAX_WORDS", 20)
    monkeypatch.setattr(words, "MAX_CHARS", 100)
    tokenizer = train_tokenizer(TokenizerConfig(type="bpe", vocab_size=300), iter([TEXT]))
    for start in range(0, 100, 7):
        text = " ".join(str(number) for number in range(start, start + 9))
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert len(tokenizer._encode_flat.__self__._row) <= 20


@every_type
def test_lone_surrogates_are_rejected(tokenizer_type):
    message = "text: lone surrogate U+D800 at character 1; use whole characters"
    assert error_message(DataError, lambda: trained(tokenizer_type).encode("a\ud800b")) == message


@every_type
@pytest.mark.parametrize("text", ["", "\n", "a", " ", "🙂"])
def test_a_tiny_text_trains_every_type(tokenizer_type, text):
    tokenizer = train_tokenizer(TokenizerConfig(type=tokenizer_type, vocab_size=300), iter([text]))
    assert tokenizer.encode("").tolist() == []
    if LOSSLESS[tokenizer_type]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_invalid_tokenizer_files_are_rejected_by_name(tmp_path):
    path = tmp_path / "tokenizer.json"
    assert error_message(ModelError, lambda: Tokenizer.load(path)) == f"{path}: cannot read the file: No such file or directory"
    path.write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weft.text.tokenizers, "MAX_BYTES", 1)
        assert error_message(ModelError, lambda: Tokenizer.load(path)) == f"{path}: larger than 0 MB; not a tokenizer file"
    message = f"{path}: not a tokenizer.json, or corrupted: "
    assert error_message(ModelError, lambda: Tokenizer.load(path)).startswith(message)
    foreign = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "[CLS]": 1, "a": 2}, unk_token="[PAD]"))
    foreign.save(str(path))
    message = f"{path}: token 0 is '[PAD]', expected '<unk>'; the first three tokens must be <unk>, <s>, </s>"
    assert error_message(ModelError, lambda: Tokenizer.load(path)) == message


def test_a_foreign_file_with_the_right_special_tokens_is_used(tmp_path):
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4}
    foreign = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    foreign.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    foreign.add_special_tokens(["<s>", "</s>"])
    foreign.enable_truncation(2)
    foreign.enable_padding(length=9)
    foreign.save(str(tmp_path / "t.json"))
    tokenizer = Tokenizer.load(tmp_path / "t.json")
    assert (tokenizer.type, tokenizer.lossless) == ("file", False)
    assert tokenizer.encode("a b </s> a").tolist() == [3, 4, 0, 0, 0, 3]
    assert train_tokenizer(TokenizerConfig(file=str(tmp_path / "t.json")), iter([])).hash == tokenizer.hash


@every_type
def test_a_damaged_file_is_rejected_or_works(tokenizer_type, tmp_path):
    data = trained(tokenizer_type).data
    random = np.random.default_rng(0)
    for _ in range(30):
        index, length = random.integers(len(data)), random.integers(1, 9)
        path = tmp_path / "t.json"
        path.write_bytes(data[:index] + random.bytes(length) * int(random.integers(2)) + data[index + length :])
        try:
            Tokenizer.load(path).encode("The cat")
        except ModelError as error:
            assert str(error).startswith(f"{path}: ")


def test_invalid_configs_are_rejected():
    def told(values):
        return error_message(ConfigError, lambda: parse_config(TokenizerConfig, values, prefix="tokenizer"))

    assert told({"type": "bpee"}) == "tokenizer.type: unknown type 'bpee'; did you mean 'bpe'?"
    assert told({"type": "bpe", "vocab_size": 200}) == "tokenizer.vocab_size: must be at least 259 for type 'bpe', got 200"
    assert told({"vocab_size": 3}) == "tokenizer.vocab_size: must be at least 4 for type 'char', got 3"
    conflicting = {"file": "t.json", "type": "bpe"}
    assert told(conflicting) == "tokenizer.file: cannot be combined with type; remove one of them"


def test_tokens_by_id():
    tokenizer = trained("bpe")
    number = int(tokenizer.encode(" the")[0])
    assert (tokenizer.id_to_token(number), tokenizer.token_text(number)) == ("Ġthe", " the")
    assert tokenizer.token_text(2) == "</s>"
    with pytest.raises(IndexError, match="token ID 9999 is not in the vocabulary of 400"):
        tokenizer.id_to_token(9999)
    assert json.loads(tokenizer.data)["added_tokens"] == []


@pytest.mark.parametrize(
    ("tokenizer_type", "expected"),
    [
        ("char", ["ß", "ß", "∞"]),
        ("word", ["Straße", "Straße", "∞"]),
        ("whitespace", ["Straße,", "Straße", "∞"]),
        ("bpe", []),
        ("byte", []),
        ("unigram", []),
    ],
)
def test_unknown_characters_are_reported(tokenizer_type, expected):
    tokenizer = train_tokenizer(TokenizerConfig(type=tokenizer_type, vocab_size=400), iter(["die Strae, am Meer\n"]))
    texts = ["die Straße, die Straße", "am Meer", "", "∞"]
    assert tokenizer.unknown_parts(texts) == expected
    assert sum(int((ids == tokenizer.unk_id).sum()) for ids in tokenizer.encode_batch(texts)) == len(expected)
    assert tokenizer.unknown_parts([]) == []


# ---- lower case

# context-dependent lowercase (Σ), two-character lowercase (İ), a recently added script, and special tokens
capitals = st.text(st.sampled_from("aAbBsS'TΣσςİIıßẞ\u1c89\u0307 <>/unkUNK.-\n\t日🙂"), max_size=40)


@every_type
@given(text=st.one_of(wild_text, capitals))
@settings(max_examples=100, deadline=None)
def test_lowercased_fast_encoding_equals_the_library(tokenizer_type, text):
    reference = tokenizers.Tokenizer.from_str(folded(tokenizer_type).data.decode())
    assert folded(tokenizer_type).encode(text).tolist() == reference.encode(text, add_special_tokens=False).ids
    small = tokenizers.normalizers.Lowercase().normalize_str(text)
    assert folded(tokenizer_type).encode(text).tolist() == folded(tokenizer_type).encode(small).tolist()


@every_type
def test_lowercase_is_an_attribute_and_survives_saving(tokenizer_type, tmp_path):
    tokenizer = folded(tokenizer_type)
    assert (tokenizer.type, tokenizer.lowercase, tokenizer.lossless) == (tokenizer_type, True, False)
    assert not trained(tokenizer_type).lowercase
    tokenizer.save(tmp_path / "t.json")
    again = Tokenizer.load(tmp_path / "t.json")
    assert (again.type, again.lowercase, again.lossless) == (tokenizer_type, True, False)
    assert json.loads(tokenizer.data)["normalizer"] == {"type": "Lowercase"}
    assert tokenizer.encode("The CAT").tolist() == tokenizer.encode("the cat").tolist()
    assert tokenizer.decode(tokenizer.encode("The CAT")) == "the cat"


@every_type
def test_lowercased_training_sees_the_lowercased_text(tokenizer_type):
    small = "".join(tokenizers.normalizers.Lowercase().normalize_str(char) for char in TEXT)
    plainly = json.loads(train_tokenizer(TokenizerConfig(type=tokenizer_type, vocab_size=400), iter([small])).data)
    assert json.loads(folded(tokenizer_type).data)["model"] == plainly["model"]
    # both train on the lowercased text, so no token has a capital that cannot occur
    if tokenizer_type in ("char", "word", "whitespace"):
        assert all(token == token.lower() for token in plainly["model"]["vocab"])


def test_lowercasing_may_give_two_characters():
    tokenizer = train_tokenizer(TokenizerConfig(type="char", lowercase=True), iter(["İA"]))
    assert [tokenizer.id_to_token(number) for number in range(3, tokenizer.vocab_size)] == ["a", "i", "\u0307"]
    ids, lengths = tokenizer.encode_concatenated(["İ", "Aİ", ""])
    assert (ids.tolist(), lengths.tolist()) == ([4, 5, 3, 4, 5], [2, 3, 0])
    assert tokenizer.decode(ids) == "i\u0307ai\u0307"


@every_type
def test_an_uppercase_special_token_is_only_text(tokenizer_type):
    tokenizer = train_tokenizer(
        TokenizerConfig(type=tokenizer_type, vocab_size=400, lowercase=True), iter([TEXT + "</S> <S> <s>\n" * 50])
    )
    for text in ("</S>", "a <S> b", "</S><s>", "<UNK> </s>"):
        assert not {1, 2} & set(tokenizer.encode(text).tolist())


def test_unknown_characters_are_reported_in_their_original_case():
    tokenizer = train_tokenizer(TokenizerConfig(type="whitespace", lowercase=True), iter(["die see am meer\n"]))
    assert tokenizer.unknown_parts(["Die SEE", "İm Meer, Der See"]) == ["İm", "Meer,", "Der"]
    letters = train_tokenizer(TokenizerConfig(type="char", lowercase=True), iter(["abi"]))
    assert letters.unknown_parts(["AXİB"]) == ["X", "İ"]


def test_another_normalizer_marks_a_foreign_file():
    parts = json.loads(folded("char").data)
    for normalizer in ({"type": "NFC"}, {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFC"}]}):
        odd = Tokenizer(json.dumps({**parts, "normalizer": normalizer}).encode(), "x")
        assert (odd.type, odd.lowercase, odd.lossless) == ("file", False, False)


def test_lowercasing_is_read_from_the_file():
    values = {"file": "t.json", "lowercase": True}
    message = error_message(ConfigError, lambda: parse_config(TokenizerConfig, values, prefix="tokenizer"))
    assert message == "tokenizer.file: cannot be combined with lowercase; remove one of them"
