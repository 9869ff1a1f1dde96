"""Corpora: encoding, units, splits, caching and damaged files."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config import parse_config
from weft.data import source as source_module
from weft.data.config import TextDataConfig
from weft.data.corpus import open_corpus, write_corpus
from weft.data.source import Row, Source
from weft.data.unit_counts import count_units
from weft.errors import ConfigError, DataError, ModelError
from weft.text import reading as gate
from weft.text.tokenizers import TYPES, Tokenizer, TokenizerConfig, train_tokenizer

TEXT = "The cat sat.\nDer Hund läuft.\n\nOne more line, and é.\nno newline at the end"
SHAKESPEARE = Path(__file__).parents[2] / "shared" / "data" / "tinyshakespeare" / "input.txt"

every_kind = pytest.mark.parametrize("kind", TYPES)


@cache
def trained(kind: str) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(type=kind, vocab_size=300), iter([TEXT]))


def write(folder: Path, text: str = TEXT, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def refusal(error, action) -> str:
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


def words_of(line: str) -> int:
    return len(line.split()) + 1


@every_kind
def test_running_text_is_the_text_encoded(kind, tmp_path):
    corpus = write_corpus(Source((write(tmp_path),)), trained(kind), tmp_path / "new" / "folder", "train")
    assert corpus.tokens.tolist() == trained(kind).encode(TEXT).tolist()
    assert corpus.tokens.dtype == np.uint16
    assert (corpus.starts, corpus.lines, corpus.tokenizer) == (None, 0, trained(kind).hash)


@every_kind
def test_each_line_is_followed_by_eos_if_lines_are_sequences(kind, tmp_path):
    corpus = write_corpus(Source((write(tmp_path),), lines=True), trained(kind), tmp_path, "train")
    lines = TEXT.split("\n")
    assert corpus.lines == len(lines)
    for number, line in enumerate(lines):
        row = corpus.tokens[corpus.starts[number] : corpus.starts[number + 1]]
        assert row.tolist() == [*trained(kind).encode(line).tolist(), 2]


@every_kind
@pytest.mark.parametrize("as_lines", [True, False])
def test_units_are_exact_at_line_boundaries(kind, as_lines, tmp_path):
    corpus = write_corpus(Source((write(tmp_path),), lines=as_lines), trained(kind), tmp_path, "train")
    lines = [line + "\n" for line in TEXT.split("\n")]
    if not as_lines:
        lines[-1] = lines[-1][:-1]
    found = corpus.units(corpus.line_edges())
    assert found["characters"].tolist() == [len(line) for line in lines]
    assert found["bytes"].tolist() == [len(line.encode()) for line in lines]
    assert found["words"].tolist() == [len(line.split()) + line.endswith("\n") for line in lines]
    whole = corpus.units(np.array([0, len(corpus.tokens)]))
    assert whole["characters"].tolist() == [sum(map(len, lines))]
    if as_lines:
        assert corpus.line_edges().tolist() == corpus.starts.tolist()
    each = corpus.units(np.arange(len(corpus.tokens) + 1))
    assert np.isclose(each["bytes"].sum(), len("".join(lines).encode()))
    assert (each["bytes"] > 0).all()
    if kind == "char":
        assert np.allclose(each["characters"], 1)
    if kind == "byte" and not as_lines:
        assert np.allclose(each["bytes"], 1)


@given(texts=st.lists(st.text(st.sampled_from("ab \t\n\u00a0\u3000\x1cé日🙂")), max_size=6))
@settings(deadline=None)
def test_units_equal_python_counts(texts):
    lines = [text.replace("\n", " ") + "\n" for text in texts]
    expected = [[len(line), len(line.encode()), words_of(line)] for line in lines]
    assert count_units(lines).tolist() == expected


@pytest.mark.parametrize("kind", ["char", "bpe", "whitespace"])
def test_very_long_lines_and_trailing_whitespace(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "CHUNK_CHARS", 16)
    text = "one two three four five six seven\n" + "x" * 50 + "\n\nshort\n" + " " * 40
    corpus = write_corpus(Source((write(tmp_path, text),)), trained(kind), tmp_path, "a")
    assert corpus.tokens.tolist() == trained(kind).encode(text).tolist()
    assert corpus.units(np.array([0, len(corpus.tokens)]))["characters"].tolist() == [len(text)]
    assert (np.diff(corpus.line_edges()) > 0).all()


def test_a_tokenizer_trained_on_lines_has_no_newline(tmp_path):
    source = Source((write(tmp_path, "emma\nolivia\n" * 3),), lines=True)
    tokenizer = train_tokenizer(TokenizerConfig(type="char"), source.texts())
    assert [tokenizer.id_to_token(number) for number in range(3, tokenizer.vocab_size)] == list("aeilmov")


def test_many_batches_of_lines_are_one_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(source_module, "BATCH_LINES", 3)
    lines = ["a" * (number % 7) for number in range(20)]
    corpus = write_corpus(Source((write(tmp_path, "\n".join(lines)),), lines=True), trained("char"), tmp_path, "a")
    assert np.diff(corpus.starts).tolist() == [len(line) + 1 for line in lines]


def test_splits_are_taken_from_the_end_in_order(tmp_path):
    write(tmp_path, "".join(f"{number:03}\n" for number in range(100)))
    for read, total in (("windows", 400), ("lines", 100)):
        sources = TextDataConfig(train="a.txt", valid=0.1, test=0.2, read_as=read).sources(tmp_path)
        end = "\n" if read == "lines" else ""
        texts = {name: "".join(text + end for text in source.texts()) for name, source in sources.items()}
        assert list(texts) == ["train", "valid", "test"]
        assert "".join(texts.values()) == (tmp_path / "a.txt").read_text()
        size = {name: len(text) * total // 400 for name, text in texts.items()}
        assert size == {"train": total * 7 // 10, "valid": total // 10, "test": total // 5}
    own = TextDataConfig(train="a.txt", valid="a.txt", test=0.5).sources(tmp_path)
    assert "".join(own["valid"].texts()) == (tmp_path / "a.txt").read_text()
    assert len("".join(own["train"].texts())) == 200


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="the Tiny Shakespeare text is not here")
def test_a_tenth_of_tiny_shakespeare_is_the_usual_split():
    text = SHAKESPEARE.read_text()
    sources = TextDataConfig(train=SHAKESPEARE.name, valid=0.1).sources(SHAKESPEARE.parent)
    # the usual place, and from there to the nearest line end
    place = int(len(text) * 0.9)
    assert text[place - 2 : place + 2] == "re?\n"
    assert "".join(sources["train"].texts()) == text[: place + 2]
    assert "".join(sources["valid"].texts()) == text[place + 2 :]


def test_a_split_of_too_little_text_is_refused(tmp_path):
    path = write(tmp_path, "one\ntwo\n")
    source = TextDataConfig(train="a.txt", valid=0.1, read_as="lines").sources(tmp_path)["train"]
    assert list(source.batches()) == [["one"]]
    path = write(tmp_path, "one\n")
    source = TextDataConfig(train="a.txt", valid=0.1, read_as="lines").sources(tmp_path)["train"]
    assert refusal(DataError, lambda: list(source.batches())) == (
        f"{path}: 1 line is too few for the fraction from 0 to 0.9;"
        " add text, or use separate files for data.valid and data.test"
    )


def test_an_unchanged_corpus_is_not_rebuilt(tmp_path):
    source = Source((write(tmp_path),))
    made = write_corpus(source, trained("char"), tmp_path, "a")
    before = (tmp_path / "a.tokens").stat()
    write_corpus(source, trained("char"), tmp_path, "a", must_match=made.provenance)
    assert (tmp_path / "a.tokens").stat().st_ino == before.st_ino
    write_corpus(source, trained("byte"), tmp_path, "a")
    assert open_corpus(tmp_path, "a").tokenizer == trained("byte").hash
    write(tmp_path, TEXT + "!")
    assert len(write_corpus(source, trained("byte"), tmp_path, "a").tokens) == len((TEXT + "!").encode())


def test_a_changed_file_is_refused_if_it_must_be_unchanged(tmp_path):
    path = write(tmp_path)
    source = Source((path,))
    known = write_corpus(source, trained("char"), tmp_path, "a").provenance
    told = refusal(
        DataError, lambda: write_corpus(Source((path,), "latin-1"), trained("char"), tmp_path, "a", must_match=known)
    )
    head = f"{path}: not the text that the run was started with "
    assert told == head + "(encoding was 'utf-8', now 'latin-1'); restore it or start a new run"
    two = Source((path, write(tmp_path, "b", "b.txt")))
    told = refusal(DataError, lambda: write_corpus(two, trained("char"), tmp_path, "a", must_match=known))
    assert told == (
        f"{path} and 1 more: not the text that the run was started with (there were 1 files, now 2);"
        " restore it or start a new run"
    )
    write(tmp_path, TEXT.replace("cat", "dog"))
    told = refusal(DataError, lambda: write_corpus(source, trained("char"), tmp_path, "a", must_match=known))
    assert told == head + f"({path} has changed); restore it or start a new run"
    path.unlink()
    told = refusal(DataError, lambda: write_corpus(source, trained("char"), tmp_path, "a", must_match=known))
    assert told == f"{path}: file not found"


def test_a_failed_corpus_leaves_no_files(tmp_path):
    source = Source((write(tmp_path, "good\n" * 100000 + "bad \0\n"),))
    folder = tmp_path / "out"
    with pytest.raises(DataError):
        write_corpus(source, trained("char"), folder, "a")
    assert list(folder.iterdir()) == []

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(Source((write(tmp_path),)), trained("char"), folder, "a", progress=stop)
    assert list(folder.iterdir()) == []


def test_text_without_a_token_is_refused(tmp_path):
    path = write(tmp_path, "   \t ")
    told = refusal(DataError, lambda: write_corpus(Source((path,)), trained("whitespace"), tmp_path, "a"))
    assert told == f"{path}: no tokens; the file has no text"


def test_progress_is_reported_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "CHUNK_CHARS", 64)
    text = "some words and é\n" * 50
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (write(tmp_path, text), packed):
        seen: list[tuple[int, int]] = []
        write_corpus(Source((path,)), trained("char"), tmp_path, "a", progress=lambda *told, seen=seen: seen.append(told))
        assert len(seen) > 10
        assert seen == sorted(seen)
        assert seen[-1] == (len(text.encode()), len(text.encode()))


def test_damaged_corpora_are_refused_by_name(tmp_path):
    def told():
        return refusal(ModelError, lambda: open_corpus(tmp_path, "a"))

    about, tokens = tmp_path / "a.json", tmp_path / "a.tokens"
    assert told() == f"{about}: file not found"
    write_corpus(Source((write(tmp_path),), lines=True), trained("char"), tmp_path, "a")
    count = len(open_corpus(tmp_path, "a").tokens)
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:-2])
    assert told() == f"{tokens}: corrupted: expected {count} tokens, got {count - 1}; delete {about} to have it written again"
    tokens.write_bytes(whole[:-1])
    assert told().startswith(f"{tokens}: corrupted: ")
    for part in ("tokens", "starts", "counts"):
        path = tmp_path / f"a.{part}"
        data = tokens.write_bytes(whole) and path.read_bytes()
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        assert told() == f"{path}: checksum mismatch; delete {about} to have it written again"
        path.write_bytes(data)
    tokens.unlink()
    assert told() == f"{tokens}: file not found; delete {about} to have it written again"
    about.write_text("[]")
    assert told() == f"{about}: not the description of a corpus; delete it to have the corpus written again"
    about.write_text(
        '{"dtype": "<u2", "tokens": 1, "checksums": {}, "provenance": {"lines": false, "version": 99, "tokenizer": ""}}'
    )
    assert told() == f"{about}: written by another version of weft; delete it to have the corpus written again"
    # whoever has the text just makes it anew
    about.write_text("{ damaged")
    assert len(write_corpus(Source((write(tmp_path),), lines=True), trained("char"), tmp_path, "a").tokens) == count


def test_large_vocabularies_take_four_bytes(tmp_path, monkeypatch):
    tokenizer = train_tokenizer(TokenizerConfig(type="char", vocab_size=300), iter([TEXT]))
    tokenizer.vocab_size = 1 << 17
    assert write_corpus(Source((write(tmp_path),)), tokenizer, tmp_path, "a").tokens.dtype == np.uint32


def test_the_config_fills_in_its_stride_and_finds_its_files(tmp_path):
    assert TextDataConfig(train="a").with_defaults().stride == 256
    assert TextDataConfig(train="a", context_length=64, stride=16).with_defaults().stride == 16
    assert TextDataConfig(train="a", read_as="lines").with_defaults().stride is None
    table = parse_config(
        TextDataConfig, {"train": ["a", "b/c"], "valid": "d", "encoding": "latin-1", "read_as": "lines"}, prefix="data"
    )
    sources = table.sources(tmp_path)
    assert sources["train"] == Source((tmp_path / "a", tmp_path / "b/c"), "latin-1", True)
    assert sources["valid"] == Source((tmp_path / "d",), "latin-1", True)
    assert "test" not in sources


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "data.train: required option is missing"),
        ({"train": ""}, "data.train: expected file names, got ''"),
        ({"train": []}, "data.train: expected file names, got []"),
        ({"train": "a", "valid": 1.5}, "data.valid: a fraction must be between 0 and 1, got 1.5"),
        ({"train": "a", "test": 0.0}, "data.test: a fraction must be between 0 and 1, got 0"),
        ({"train": "a", "valid": 0.5, "test": 0.5}, "data: valid (0.5) and test (0.5) leave no training data"),
        ({"train": "a", "context_length": 0}, "data.context_length: must be at least 1, got 0"),
        ({"train": "a", "context_length": 8, "stride": 9}, "data.stride: must be between 1 and context_length (8), got 9"),
        ({"train": "a", "stride": 0}, "data.stride: must be between 1 and context_length (256), got 0"),
        ({"train": "a", "read_as": "lines", "stride": 4}, "data.stride: not used with read_as 'lines'; remove it"),
        (
            {"train": "a", "encoding": "utf9"},
            "data.encoding: unknown text encoding 'utf9'; common ones are utf-8, latin-1, cp1252 and utf-16",
        ),
    ],
)
def test_invalid_configs_are_refused(values, told):
    assert refusal(ConfigError, lambda: parse_config(TextDataConfig, values, prefix="data")) == told


def test_rows_are_lines_with_their_positions(tmp_path):
    one, other = write(tmp_path, "a\nbb\n\nccc\n", "1.txt"), write(tmp_path, "d\nee", "2.txt")
    rows = [Row((text,), (path,), line) for path, line, text in [
        (one, 1, "a"), (one, 2, "bb"), (one, 3, ""), (one, 4, "ccc"), (other, 1, "d"), (other, 2, "ee"),
    ]]  # fmt: skip
    for as_lines in (True, False):
        assert list(Source((one, other), lines=as_lines).rows()) == rows
    assert list(Source((one, other), lines=True, low=0.5).rows()) == rows[3:]
    assert list(Source((one, other), lines=True, high=0.5).rows()) == rows[:3]
    # of 14 characters the first 7 end after the first of the fourth line
    halves = [list(Source((one, other), low=low, high=low + 0.5).rows()) for low in (0.0, 0.5)]
    assert halves == [[*rows[:3], Row(("c",), (one,), 4)], [Row(("cc",), (one,), 4), *rows[4:]]]
