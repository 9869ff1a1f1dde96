"""ARPA files: round trips, agreement with KenLM, and errors that name the damaged line."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.decode.ensemble import Ensemble, LinearEnsemble
from weft.decode.generate import Frame, generate
from weft.decode.options import GenerationConfig
from weft.errors import ModelError
from weft.interop import arpa
from weft.interop.arpa import escape, read_arpa, unescape, write_arpa
from weft.models.ngram import NgramConfig, NgramModel, fit
from weft.text.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer

SENTENCES = [
    "the cat sat on the mat",
    "the cat sat",
    "a dog saw the cat",
    "the dog sat on a mat",
    "",
    "größe \\o/ naïve",
    "the cat saw a dog on the mat",
]


class Words:
    """A tokenizer, as far as writing goes."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.vocab_size = words, len(words)

    def id_to_token(self, id: int) -> str:
        return self.words[id]


def train(lines: list[list[str]], **options) -> tuple[NgramModel, Words]:
    ids = {"<unk>": 0, "<s>": 1, "</s>": 2}
    units = [[ids.setdefault(word, len(ids)) for word in line] + [2] for line in lines]
    tokens = np.array([id for unit in units for id in unit])
    starts = np.cumsum([0, *map(len, units)])
    model = fit(tokens, starts, NgramConfig(**options), vocab_size=len(ids), vocabulary="v")
    return model, Words(list(ids))


def sentences(**options) -> tuple[NgramModel, Words]:
    return train([line.split() for line in SENTENCES], **options)


def log10(model: NgramModel, words: list[str], line: str) -> float:
    ids = [words.index(word) if word in words else 0 for word in line.split()] + [2]
    return float(model.score_corpus(np.array(ids), np.array([0, len(ids)])).sum(dtype=float)) / math.log(10)


def words_of(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.id_to_token(number) for number in range(tokenizer.vocab_size)]


def equal(one: NgramModel, two: NgramModel) -> None:
    assert one.counts == two.counts
    for a, b in zip(one.levels, two.levels, strict=True):
        np.testing.assert_array_equal(a.keys, b.keys)
        np.testing.assert_allclose(a.log_prob, b.log_prob, atol=2e-7)
        np.testing.assert_allclose(a.back_off, b.back_off, atol=2e-7)


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("smoothing", ["kneser-ney", "backoff", "add-delta", "mle"])
@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
def test_a_model_round_trips_through_a_file(tmp_path, order, smoothing, name):
    model, tokenizer = sentences(order=order, smoothing=smoothing)
    write_arpa(tmp_path / name, model, tokenizer)
    again, own = read_arpa(tmp_path / name)
    assert words_of(own) == tokenizer.words
    assert again.vocabulary == own.hash
    equal(model, again)


@pytest.mark.parametrize("smoothing", ["kneser-ney", "backoff", "add-delta"])
@pytest.mark.parametrize("options", [{"order": 2}, {"order": 4}, {"order": 4, "prune": [0, 0, 1]}])
def test_kenlm_reads_our_files_and_gives_the_same_scores(tmp_path, smoothing, options):
    kenlm = pytest.importorskip("kenlm")
    model, tokenizer = sentences(smoothing=smoothing, **options)
    write_arpa(tmp_path / "model.arpa", model, tokenizer)
    theirs = kenlm.Model(str(tmp_path / "model.arpa"))
    assert theirs.order == model.order
    for line in [*SENTENCES, "the mat sat", "a unicorn sat on the cat", "cat cat cat", "größe"]:
        assert log10(model, tokenizer.words, line) == pytest.approx(theirs.score(line), abs=1e-4)


def test_the_file_has_the_format_of_lmplz(tmp_path):
    model, tokenizer = train([["a", "b"], ["a"]], order=2)
    write_arpa(tmp_path / "model.arpa", model, tokenizer)
    # the numbers are those of the example worked by hand in test_ngram.py
    assert (tmp_path / "model.arpa").read_text() == (
        "\\data\\\nngram 1=5\nngram 2=4\n\n\\1-grams:\n"
        "-0.9030900\t<unk>\t0\n0\t<s>\t-0.3010300\n-0.4259687\t</s>\t0\n"
        "-0.6020600\ta\t-0.3010300\n-0.6020600\tb\t-0.3010300\n\n\\2-grams:\n"
        "-0.2041200\t<s> a\n-0.3590219\ta </s>\n-0.4259687\ta b\n-0.1627273\tb </s>\n\n\\end\\\n"
    )


def test_tokens_with_whitespace_round_trip(tmp_path):
    letters = ["\n", " ", "a", "\u3000", "\\x{20}", "\\", "", "ab c", "\\x", "\x00"]
    model, tokenizer = train([letters, letters[::-1]], order=3)
    write_arpa(tmp_path / "model.arpa", model, tokenizer)
    again, own = read_arpa(tmp_path / "model.arpa")
    assert words_of(own) == tokenizer.words
    equal(model, again)
    assert escape(" ") == "\\x{20}" and escape("") == "\\x{}" and escape("\\o/") == "\\o/"
    assert escape("\\x{20}") == "\\x{5c}x{20}"
    assert [unescape(word) for word in ("\\x{61}", "\\x{ffffffff}", "\\x{}a")] == ["\\x{61}", "\\x{ffffffff}", "\\x{}a"]


@given(st.text(alphabet=st.sampled_from("\\x{}25c \n\tab\u2028ü")) | st.text())
def test_escaping_round_trips(token):
    word = escape(token)
    assert word.split() == [word]
    assert unescape(word) == token


def test_an_imported_model_has_its_own_tokenizer(tmp_path):
    model, tokenizer = sentences(order=3)
    write_arpa(tmp_path / "model.arpa", model, tokenizer)
    again, own = read_arpa(tmp_path / "model.arpa")
    assert (own.vocab_size, own.hash) == (again.vocab_size, again.vocabulary)
    for line in SENTENCES:
        assert [own.id_to_token(id) for id in own.encode(line)] == line.split()
    both = Ensemble([again, read_arpa(tmp_path / "model.arpa").model], LinearEnsemble([0.5, 0.5]))
    (found,) = generate(both, own, ["the cat"], GenerationConfig(max_new_tokens=8, temperature=0.0), frame=Frame(own.eos_id))
    assert found[0].text == " sat on the mat"


def test_a_model_can_be_read_with_another_tokenizer(tmp_path):
    """Characters and a space among them: to split at spaces would be wrong."""
    characters = train_tokenizer(TokenizerConfig(type="char"), iter(SENTENCES))
    ids = [np.append(found, characters.eos_id) for found in characters.encode_batch(SENTENCES)]
    tokens, starts = np.concatenate(ids), np.cumsum([0, *map(len, ids)])
    model = fit(tokens, starts, NgramConfig(order=3), vocab_size=characters.vocab_size, vocabulary=characters.hash)
    path = tmp_path / "model.arpa"
    write_arpa(path, model, characters)
    again, own = read_arpa(path, tokenizer=characters)
    assert own is characters and again.vocabulary == model.vocabulary
    Ensemble([model, again], LinearEnsemble([0.5, 0.5]))
    other, words = train_tokenizer(TokenizerConfig(type="char"), iter(["cat"])), words_of(characters)
    with pytest.raises(ModelError) as caught:
        read_arpa(path, tokenizer=other)
    first = next(number for number, word in enumerate(words) if number >= other.vocab_size or other.id_to_token(number) != word)
    assert str(caught.value) == (
        f"{path}: word {first} is {words[first]!r}, but token {first} of the tokenizer is {other.id_to_token(first)!r}"
    )


def test_numbers_of_every_magnitude_are_written_exactly():
    values = np.array([0.0, -0.0, -1e-9, -1e-7, 0.25, -9.9999999, -10.0, -12.3456789, 3.0, -99.0, 99.0, -0.1])
    shown = [bytes(row[begin:]).decode() for row, begin in zip(*arpa._format_numbers(values), strict=True)]
    assert shown == [
        "0\t", "0\t", "0\t", "-0.0000001\t", "0.2500000\t", "-9.9999999\t", "-10.0000000\t", "-12.3456789\t",
        "3.0000000\t", "-99.0000000\t", "99.0000000\t", "-0.1000000\t",
    ]  # fmt: skip


def test_a_file_longer_than_a_chunk_is_written_and_read_completely(tmp_path, monkeypatch):
    model, tokenizer = sentences(order=3)
    write_arpa(tmp_path / "whole.arpa", model, tokenizer)
    monkeypatch.setattr(arpa, "WRITE_NGRAMS", 4)
    monkeypatch.setattr(arpa, "READ_NGRAMS", 5)
    write_arpa(tmp_path / "model.arpa", model, tokenizer)
    assert (tmp_path / "model.arpa").read_bytes() == (tmp_path / "whole.arpa").read_bytes()
    equal(model, read_arpa(tmp_path / "model.arpa").model)


OTHERS = """made by another tool

\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-1.0\ta\t-0.5
-99\t<s>
-0.7 </s>
-2 <UNK>

\\2-grams:
-0.2\t<s>  a
-inf\ta </s>

\\end\\
"""


def test_files_of_other_tools_may_lack_backoff_weights_and_have_any_whitespace(tmp_path):
    (tmp_path / "model.arpa").write_text(OTHERS.replace("\n", "\r\n"))
    model, own = read_arpa(tmp_path / "model.arpa")
    words = words_of(own)
    assert words == ["<unk>", "<s>", "</s>", "a"]
    log_prob, back_off = (values / math.log(10) for values in model.levels[0][1:])
    np.testing.assert_allclose(log_prob, [-2, -math.inf, -0.7, -1.0], rtol=1e-6)
    np.testing.assert_allclose(back_off, [0, 0, 0, -0.5], rtol=1e-6)
    assert log10(model, words, "a a") == -math.inf
    assert log10(model, words, "") == pytest.approx(-0.7, rel=1e-6)
    assert log10(model, words, "a b") == pytest.approx(-0.2 - 0.5 - 2 - 0.7, rel=1e-6)


def damaged(path: Path, old: str, new: str) -> Path:
    assert old in OTHERS
    path.write_text(OTHERS.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("\\data\\\n", "", 6, "'\\1-grams:' before \\data\\"),
        ("ngram 2=2", "ngram 3=2", 5, "expected the number of 2-grams, got 'ngram 3=2'"),
        ("ngram 1=4\nngram 2=2\n", "", 5, "expected 'ngram 1=...', got '\\1-grams:'"),
        ("ngram 1=4", "ngram 1=5", 12, "fewer 1-grams than in the header"),
        ("ngram 1=4", "ngram 1=3", 11, "expected '\\2-grams:', got '-2 <UNK>'"),
        ("ngram 2=2", "ngram 2=3", 16, "fewer 2-grams than in the header"),
        (
            "-0.7 </s>",
            "-0.7 </s> 0 0",
            10,
            "expected a number and a 1-gram, optionally with another number, got '-0.7 </s> 0 0'",
        ),
        ("-0.2\t<s>  a", "-0.2\t<s>  a -1", 14, "expected a number and a 2-gram, got '-0.2\\t<s>  a -1'"),
        ("-1.0\ta", "-1,0\ta", 8, "expected a number, got '-1,0'"),
        ("-1.0\ta\t-0.5", "-1.0\ta\tnan", 8, "expected a number, got 'nan'"),
        ("-1.0\ta", "1.0\ta", 8, "log-probability 1 is greater than 0"),
        ("-2 <UNK>", "-2 a", 11, "duplicate word 'a'"),
        ("-inf\ta </s>", "-1\t<s> a", 15, "duplicate 2-gram"),
        ("-inf\ta </s>", "-1\tb </s>", 15, "'b' is not one of the 1-grams"),
        ("\\end\\", "\\fin\\", 17, "expected '\\end\\', got '\\fin\\'"),
        ("\n\\end\\\n", "", 15, "the file ends before \\end\\; it is incomplete"),
        ("-inf\ta </s>\n\n\\end\\\n", "", 14, "the file ends, 1 2-grams are missing; it is incomplete"),
    ],
)
def test_an_error_names_the_line_of_a_damaged_file(tmp_path, old, new, line, what):
    path = damaged(tmp_path / "model.arpa", old, new)
    with pytest.raises(ModelError) as caught:
        read_arpa(path)
    assert str(caught.value) == f"{path}:{line}: {what}"


def test_a_missing_context_is_named(tmp_path):
    path = tmp_path / "model.arpa"
    path.write_text("\\data\\\nngram 1=3\nngram 2=1\nngram 3=1\n\\1-grams:\n-1 a\n-1 b\n-1 </s>\n"
                    "\\2-grams:\n-1 a b\n\\3-grams:\n-1 b a b\n\\end\\\n")  # fmt: skip
    with pytest.raises(ModelError) as caught:
        read_arpa(path)
    assert str(caught.value) == f"{path}:12: its context 'b a' is not one of the 2-grams"


def test_a_file_that_is_not_arpa_is_refused(tmp_path):
    path = tmp_path / "model.arpa"
    with pytest.raises(ModelError) as missing:
        read_arpa(path)
    assert str(missing.value) == f"{path}: cannot read the file: No such file or directory"
    path.write_bytes(b"just text\n" * 2000)
    with pytest.raises(ModelError) as other:
        read_arpa(path)
    assert str(other.value) == f"{path}:1001: no \\data\\ in the first 1,000 lines; not an ARPA file"
    path.write_bytes(OTHERS.encode().replace(b"\ta", b"\t\xff").replace(b" a", b" \xff"))
    with pytest.raises(ModelError) as latin:
        read_arpa(path)
    assert str(latin.value) == f"{path}: its words are not UTF-8; convert the file"
    path.write_text(
        OTHERS.replace("<UNK>", "\\x{61}")
        .replace("\ta\t", "\t\\x{5c}x{61}\t")
        .replace(" a", " </s>")
        .replace("\ta ", "\t</s> ")
    )
    with pytest.raises(ModelError) as same:
        read_arpa(path)
    assert str(same.value) == (f"{path}: two of its words are the same token; one of them is written with \\x{{5c}}")
    path.write_bytes(gzip.compress(OTHERS.encode())[:12])
    with pytest.raises(ModelError) as cut:
        read_arpa(path)
    assert str(cut.value) == f"{path}: the compressed file is corrupted after line 0"


def test_tokens_that_do_not_match_the_model_are_refused_and_nothing_is_written(tmp_path):
    model, tokenizer = sentences(order=2)
    with pytest.raises(ModelError) as fewer:
        write_arpa(tmp_path / "model.arpa", model, Words(tokenizer.words[:-1]))
    assert str(fewer.value) == (
        f"ARPA: the tokenizer has {model.vocab_size - 1} tokens, the model {model.vocab_size}; use its own tokenizer"
    )
    with pytest.raises(ModelError) as twice:
        write_arpa(tmp_path / "model.arpa", model, Words([*tokenizer.words[:-1], "the"]))
    last = model.vocab_size - 1
    assert str(twice.value) == f"ARPA: tokens 3 and {last} are both 'the'; words must be unique"
    assert list(tmp_path.iterdir()) == []
