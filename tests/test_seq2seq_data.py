"""Seq2seq data from tables and parallel files: reading, error messages, splits and tokenized corpora."""

from __future__ import annotations

import gzip
import json
import lzma
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config import parse_config, to_dict
from weft.data.corpus import open_corpus, write_corpus
from weft.data.dataset import Dataset
from weft.errors import ConfigError, DataError
from weft.tasks.seq2seq.data import PairDataConfig, PairFormat, limit_side
from weft.tasks.seq2seq.data import pairs as pairs_of
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

PAIRS = [("a cat", "eine Katze"), ("the dog", "der Hund"), ("", "nichts"), ("nothing", ""), ("é, \u2028 ü", "ß\u0085")]


def write(path: Path, text: str) -> Path:
    data = text.encode()
    packers = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}
    path.write_bytes(packers.get(path.suffix, bytes)(data))
    return path


def read(*paths: Path, columns: tuple[str, str] = ("source", "target")) -> list[tuple[str, str]]:
    return list(pairs_of(Dataset(paths, PairFormat(pair_columns=columns))))


def error_message(action, error=DataError) -> str:
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


# ---- what is read


def as_tsv(pairs: list[tuple[str, str]]) -> str:
    return "".join(f"{source}\t{target}\n" for source, target in pairs)


def as_csv(pairs: list[tuple[str, str]]) -> str:
    return "".join(",".join('"' + text.replace('"', '""') + '"' for text in pair) + "\n" for pair in pairs)


def as_jsonl(pairs: list[tuple[str, str]]) -> str:
    return "".join(json.dumps({"id": 1, "target": target, "source": source}) + "\n" for source, target in pairs)


@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "TSV"])
def test_every_table_format_with_and_without_compression(kind, packing, tmp_path):
    written = {"tsv": as_tsv, "csv": as_csv, "jsonl": as_jsonl}[kind.lower()](PAIRS)
    path = write(tmp_path / f"a.{kind}{packing}", written)
    assert read(path) == PAIRS
    assert read(path, path) == PAIRS * 2


@pytest.mark.parametrize("packing", ["", ".gz"])
def test_two_parallel_files(packing, tmp_path):
    paths = [
        write(tmp_path / f"a.{side}{packing}", "".join(pair[index] + "\n" for pair in PAIRS))
        for index, side in enumerate(("en", "de"))
    ]
    assert read(*paths) == PAIRS


@given(pairs=st.lists(st.tuples(*[st.text(st.sampled_from("a\"',;\t\n é\u2028"), max_size=6)] * 2), min_size=1))
@settings(deadline=None, max_examples=50)
def test_csv_and_jsonl_represent_any_text(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    assert read(write(folder / "a.csv", as_csv(pairs))) == pairs
    assert read(write(folder / "a.jsonl", as_jsonl(pairs))) == pairs


def test_tsv_has_no_quotes(tmp_path):
    assert read(write(tmp_path / "a.tsv", '"a\t"b"\n""\t"\n')) == [('"a', '"b"'), ('""', '"')]


def test_columns_by_name_and_by_index(tmp_path):
    table = write(tmp_path / "a.tsv", "id\ttarget\tsource\n1\tKatze\tcat\n")
    assert read(table) == [("cat", "Katze")]
    assert read(table, columns=("source", "id")) == [("cat", "1")]
    assert read(write(tmp_path / "b.csv", "de,en\nKatze,cat\n"), columns=("en", "de")) == [("cat", "Katze")]
    # no matching header: the first two of three columns
    assert read(write(tmp_path / "c.tsv", "source\ts ɔː s\tnoun\ncat\tk æ t\tnoun\n")) == [
        ("source", "s ɔː s"),
        ("cat", "k æ t"),
    ]
    objects = write(tmp_path / "d.jsonl", '{"en": "cat", "de": "Katze"}\n')
    assert read(objects, columns=("en", "de")) == [("cat", "Katze")]
    assert read(write(tmp_path / "e.csv", "text\nab\n"), columns=("text", "text")) == [("ab", "ab")]


@pytest.mark.parametrize(("first", "is_noted"), [("written,iso", True), ("1. May 1949,1949-05-01", False), ("May,never", True)])
def test_a_first_pair_that_looks_like_a_header_is_noted(tmp_path, first, is_noted):
    """Every row below has digits."""
    rows = "".join(f"{1 + number}. May 1950,1950-05-{1 + number:02}\n" for number in range(20))
    summary = Dataset((write(tmp_path / "a.csv", f"{first}\n{rows}"),), PairFormat()).summary
    source, target = first.split(",")
    assert summary.count == 21
    assert summary.files.notes == is_noted * [
        f"a.csv: the first line looks like a header, but is a pair; set data.source_column = {source!r} and"
        f" data.target_column = {target!r} if it is one"
    ]


def test_each_file_of_several_has_its_own_header(tmp_path):
    one, other = write(tmp_path / "a.tsv", "source\ttarget\n1\t2\n"), write(tmp_path / "b.tsv", "target\tsource\n3\t4\n")
    assert read(one, other) == [("1", "2"), ("4", "3")]


def test_line_numbers_are_those_of_the_file(tmp_path):
    path = write(tmp_path / "a.csv", 'source,target\n"one\ntwo",x\ny,"z\n\n"\nlast,line\n')
    source = Dataset((path,), PairFormat())
    assert list(pairs_of(source)) == [("one\ntwo", "x"), ("y", "z\n\n"), ("last", "line")]
    assert [source.location(number) for number in (2, 0)] == [f"{path}:7", f"{path}:2"]
    en, de = write(tmp_path / "a.en", "a\nb\n"), write(tmp_path / "a.de", "c\nd\n")
    assert Dataset((en, de), PairFormat()).location(1) == f"{en}:2"
    assert Dataset((en, de), PairFormat()).location(1, "target") == f"{de}:2"


def test_statistics_include_three_examples(tmp_path):
    path = write(tmp_path / "a.tsv", "\ufeff\tx\r\n" + as_tsv([*PAIRS, ("three", "drei")]).replace("\n", "\r\n"))
    summary = Dataset((path,), PairFormat()).summary
    assert (summary.count, summary.source.empty, summary.target.empty, summary.files.num_crlf) == (7, 2, 1, 7)
    assert summary.source.bytes == sum(len(source.encode()) for source, _ in PAIRS) + 5
    assert summary.characters == sum(len(source + target) for source, target in PAIRS) + 10
    assert summary.describe() == (
        f"{path}: 7 pairs, 30 source and 31 target characters, utf-8, 7 CRLF line endings\n"
        "  note: a.tsv: removed a byte order mark at the start\n"
        "  note: empty sources: 2\n"
        "  note: empty targets: 1\n"
        "  e.g.: a cat -> eine Katze\n"
        "  e.g.: the dog -> der Hund\n"
        "  e.g.: é, \u2028 ü -> ß\\u{85}"
    )
    three = Dataset((path, path, path), PairFormat()).summary.describe()
    assert three.startswith(
        f"{path} and {path} and 1 more: 21 pairs, 90 source and 93 target characters, utf-8, 21 CRLF line endings\n"
    )
    assert "LF line endings\n" in Dataset((write(tmp_path / "b.tsv", "a\tb\n"),), PairFormat()).summary.describe()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "source\ttarget\na\tb\n\n \nc\t\n\t\n\n"),
        ("a.csv", 'source,target\r\na,b\r\n\r\n \r\nc,""\r\n,\r\n\r\n'),
        ("a.jsonl", '{"source": "a", "target": "b"}\n\n \n{"source": "c", "target": ""}\n{"source": "", "target": ""}\n\n'),
    ],
)
def test_blank_lines_are_skipped(tmp_path, name, text):
    """Empty cells are not; and line numbers are those of the file."""
    source = Dataset((write(tmp_path / name, text),), PairFormat())
    actual = [(record.source, record.target, record.line) for record in source.records()]
    head = int(name != "a.jsonl")
    assert actual == [("a", "b", 1 + head), ("c", "", 4 + head), ("", "", 5 + head)]
    assert "  note: skipped blank lines: 3\n" in source.summary.describe()


def test_a_blank_line_in_quotes_is_text(tmp_path):
    source = Dataset((write(tmp_path / "a.csv", 'a,"b\n\nc"\n\nd,e\n'),), PairFormat())
    assert [(record.target, record.line) for record in source.records()] == [("b\n\nc", 1), ("e", 5)]


# ---- what is refused

BLANK = ":1: first line of the table is blank; remove it"
BAD_FILES = [
    (
        "a.tsv",
        "a b\n",
        ":1: expected at least 2 tab-separated columns, got 1: 'a b'; set data.delimiter if the delimiter is different",
    ),
    ("a.tsv", "a\tb\nc\n", ":2: expected 2 tab-separated columns, got 1: 'c'"),
    ("a.tsv", "a\tb\nc\td\te\n", ":2: expected 2 tab-separated columns, got 3: 'c', 'd', 'e'"),
    (
        "a.csv",
        'a,b\n"c\nd",e\nf\n',
        ":4: expected 2 comma-separated columns, got 1: 'f'",
    ),
    ("a.csv", "\na,b\n", BLANK),
    ("a.tsv", " \na\tb\n", BLANK),
    (
        "a.csv",
        'a,b\nc,"d\ne,f\n',
        ":2: invalid CSV: unexpected end of data; close or double the quote (.tsv has no quotes)",
    ),
    (
        "a.csv",
        'a,"b"c\n',
        ":1: invalid CSV: ',' expected after '\"'; close or double the quote (.tsv has no quotes)",
    ),
    (
        "a.csv",
        'a,b\n"' + "x" * 200_000,
        ":2: a field is longer than the 131,072 characters that CSV allows;"
        " close the quote if it is missing, or use .tsv or .jsonl",
    ),
    ("a.csv", "source,target\n", "no pairs below the header"),
    ("a.tsv", "a\tsource\ttarget\tsource\n", ":1: 2 columns are named 'source'; rename all but one"),
    (
        "a.jsonl",
        '{"source": "a", "target": "b"}\n{"source": "a"\n',
        ":2: invalid JSON: Expecting ',' delimiter: line 1 column 15 (char 14); .jsonl files need one object per line",
    ),
    ("a.jsonl", '["a", "b"]\n', ":1: expected an object with 'source' and 'target', got a list"),
    ("a.jsonl", "null\n", ":1: expected an object with 'source' and 'target', got null"),
    ("a.jsonl", '{"source": "a", "tgt": "b"}\n', ":1: no key 'target'; did you mean 'tgt'?"),
    ("a.jsonl", '{"source": 1, "target": "b"}\n', ":1: expected a string as 'source', got a number; put it in quotes"),
    ("a.jsonl", '{"source": true, "target": "b"}\n', ":1: expected a string as 'source', got a boolean; put it in quotes"),
    ("a.jsonl", '{"source": "", "target": null}\n', ":1: expected a string as 'target', got null; put it in quotes"),
    (
        "a.jsonl",
        '{"source": "a\\ud83d", "target": "b"}\n',
        ":1: 'source': lone surrogate U+D83D at character 1; use whole characters",
    ),
    (
        "a.jsonl",
        '{"source": "a", "target": "\\u0000"}\n',
        ":1: 'target': NUL at character 0; is this binary data?",
    ),
    ("a.tsv", "", "file is empty"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD_FILES)
def test_an_invalid_file_is_rejected_with_its_line(name, text, message, tmp_path):
    path = write(tmp_path / name, text)
    assert error_message(lambda: read(path)) == f"{path}{message if message.startswith(':') else ': ' + message}"


def test_deeply_nested_json_is_rejected(tmp_path):
    path = write(tmp_path / "a.jsonl", "[" * 100_000 + "\n")
    assert error_message(lambda: read(path)).startswith(f"{path}:1: invalid JSON: maximum recursion depth exceeded")


def test_a_missing_column_is_rejected_with_the_existing_ones(tmp_path):
    path = write(tmp_path / "a.tsv", "english\tgerman\ncat\tKatze\n")
    assert error_message(lambda: read(path, columns=("xyz", "german"))) == (
        f"{path}:1: no column 'xyz'; set data.source_column to one of: english, german"
    )
    assert error_message(lambda: read(path, columns=("english", "germann"))) == (
        f"{path}:1: no column 'germann'; set data.target_column to one of: english, german"
    )


def test_unequal_parallel_files_are_rejected_with_both_counts(tmp_path):
    lengths = np.random.default_rng(0).integers(5, 80, size=500)
    en = write(tmp_path / "a.en", "".join("x" * length + "\n" for length in lengths))
    de = write(tmp_path / "a.de", "".join("y" * (length + 3) + "\n" for length in np.delete(lengths, 300)))
    assert error_message(lambda: read(en, de)) == (
        f"{en}: has 500 lines, but {de} has 499; look for a missing line near line 301"
    )
    assert "near line 301" in error_message(lambda: Dataset((de, en), PairFormat()).summary)


CURE = (
    "is not a table (.tsv, .csv, .xlsx, .jsonl, .json or .parquet);"
    ' use a table or two parallel files, e.g. {} = ["a.en", "a.de"]'
)
MESSAGES = [
    ({"train": "a.txt"}, "data.train: 'a.txt' " + CURE.format("train")),
    ({"train": ["a.en"]}, "data.train: 'a.en' " + CURE.format("train")),
    ({"train": "a.tsv", "valid": ["a.en"]}, "data.valid: 'a.en' " + CURE.format("valid")),
    ({"train": ["a.tsv", "b.csv.gz"]}, "data.train: different file types: csv, tsv; use files of one type"),
    ({"train": ["a.tsv", "a.de"]}, "data.train: different file types: text, tsv; use files of one type"),
    ({"train": ""}, "data.train: expected file names, got ''"),
    ({"train": "a.tsv", "valid": 1.5}, "data.valid: a fraction must be between 0 and 1, got 1.5"),
    ({"train": "a.tsv", "valid": 0.5, "test": 0.5}, "data: valid (0.5) and test (0.5) leave no training data"),
    (
        {"train": "a.tsv", "encoding": "utf-9"},
        "data.encoding: unknown text encoding 'utf-9'; common ones are utf-8, latin-1, cp1252 and utf-16",
    ),
    ({"train": "a.tsv", "source_column": ""}, "data.source_column: expected a column name, got ''"),
    ({"train": ["a.en", "a.de"], "target_column": "de"}, "data.target_column: parallel files have no columns; remove it"),
    ({"train": "a.tsv", "max_length": 1}, "data.max_length: must be at least 2, got 1"),
    ({"train": "a.tsv", "read_as": "lines"}, "data.read_as: unknown option; did you mean 'prepared'?"),
]


@pytest.mark.parametrize(("values", "message"), MESSAGES)
def test_invalid_configs_are_rejected(values, message):
    assert error_message(lambda: parse_config(PairDataConfig, values, prefix="data"), ConfigError) == message


def test_a_config_round_trips():
    table = parse_config(
        PairDataConfig, {"train": "a.tsv", "valid": ["a.en", "a.de"], "test": 0.1, "target_column": "ipa"}, prefix="data"
    )
    assert parse_config(PairDataConfig, to_dict(table.with_defaults()), prefix="data") == table


# ---- parts, sides, corpora


def test_fractions_split_pairs_completely(tmp_path):
    write(tmp_path / "a.tsv", "".join(f"{number}\tx{number}\n" for number in range(50)))
    table = PairDataConfig(train="a.tsv", valid=0.1, test=0.2)
    sources = table.sources(tmp_path)
    assert {name: [int(source) for source, _ in pairs_of(part)] for name, part in sources.items()} == {
        "train": list(range(35)), "valid": list(range(35, 40)), "test": list(range(40, 50)),
    }  # fmt: skip
    assert sources["valid"].location(1) == f"{tmp_path / 'a.tsv'}:37"
    few = Dataset((write(tmp_path / "b.tsv", "a\tb\n"),), PairFormat(), high=0.9)
    assert error_message(lambda: list(pairs_of(few))) == (
        f"{tmp_path / 'b.tsv'}: 1 pair is too few for the fraction from 0 to 0.9; add pairs, or use separate files for data.valid and data.test"
    )


def test_names_of_sources(tmp_path):
    assert Dataset((Path("a.en"), Path("a.de")), PairFormat()).name == "a.en and a.de"
    assert Dataset((Path("a.tsv"),), PairFormat()).name == "a.tsv"
    several = Dataset((Path("a.tsv"), Path("b.tsv"), Path("c.tsv")), PairFormat())
    assert (several.name, several.column("target").name) == ("a.tsv and 2 more", "a.tsv and 2 more (target)")
    assert Dataset((Path("a.en"), Path("a.de")), PairFormat()).column("target").name == "a.de"


def test_source_and_target_corpora_are_the_encoded_texts(tmp_path):
    pairs = [*PAIRS, ("two\nlines", "zwei\n\nZeilen")]
    source = Dataset((write(tmp_path / "a.csv", as_csv(pairs)),), PairFormat())
    tokenizer = train_tokenizer(TokenizerConfig(type="bpe", vocab_size=300), (text for pair in pairs for text in pair))
    calls = []
    for index, which in enumerate(("source", "target")):
        corpus = write_corpus(
            source.column(which),
            tokenizer,
            tmp_path,
            f"train.{which}",
            progress=lambda done, total: calls.append((done, total)),
        )
        expected = [[*tokenizer.encode(pair[index]).tolist(), 2] for pair in pairs]
        actual = [corpus.tokens[a:b].tolist() for a, b in pairwise(corpus.starts)]
        assert actual == expected
        assert corpus.units(corpus.starts)["characters"].tolist() == [len(pair[index]) + 1 for pair in pairs]
        assert calls[-1][0] == calls[-1][1] == sum(len(pair[index].encode()) for pair in pairs)


def test_source_and_target_corpora_are_not_confused(tmp_path):
    source = Dataset((write(tmp_path / "a.tsv", "a\tb\n"),), PairFormat())
    tokenizer = train_tokenizer(TokenizerConfig(type="char"), iter(["ab"]))
    provenance = write_corpus(source.column("source"), tokenizer, tmp_path, "train").provenance
    message = "not the text that the run was started with (side was 'source', now 'target'); restore it or start a new run"
    assert (
        error_message(lambda: write_corpus(source.column("target"), tokenizer, tmp_path, "train", must_match=provenance))
        == f"{tmp_path / 'a.tsv'} (target): {message}"
    )
    assert write_corpus(source.column("target"), tokenizer, tmp_path, "train").tokens.tolist() == [4, 2]


def test_a_corpus_is_rebuilt_only_if_its_own_file_changes(tmp_path, monkeypatch):
    en, de = write(tmp_path / "a.en", "a\nb\n"), write(tmp_path / "a.de", "c\nd\n")
    tokenizer = train_tokenizer(TokenizerConfig(type="char"), iter(["abcde"]))
    provenance = {
        which: write_corpus(Dataset((en, de), PairFormat()).column(which), tokenizer, tmp_path, which).provenance
        for which in ("source", "target")
    }
    write(de, "c\ne\n")
    again = Dataset((en, de), PairFormat())
    write_corpus(again.column("source"), tokenizer, tmp_path, "source", must_match=provenance["source"])
    assert error_message(
        lambda: write_corpus(again.column("target"), tokenizer, tmp_path, "target", must_match=provenance["target"])
    ) == (f"{de}: not the text that the run was started with ({de} has changed); restore it or start a new run")


@pytest.fixture
def long_lines(tmp_path):
    source = Dataset((write(tmp_path / "a.tsv", "source\ttarget\nab\tabcdefg\nabcd\ta\nabc\tabcdef\n"),), PairFormat())
    tokenizer = train_tokenizer(TokenizerConfig(type="char"), iter(["abcdefg"]))
    return source, write_corpus(source.column("target"), tokenizer, tmp_path, "train.target")


def test_too_long_examples_are_rejected_with_their_line(long_lines, tmp_path):
    source, corpus = long_lines
    assert error_message(lambda: limit_side(corpus, source, "target", max_length=6, truncate=False)) == (
        f"{tmp_path / 'a.tsv'}:2: target has 8 tokens, more than data.max_length (6) (and in 1 more);"
        " increase it or set data.truncate = true"
    )
    assert ":2: target has 8 tokens" in error_message(
        lambda: limit_side(corpus, source, "target", max_length=7, truncate=False)
    )
    assert limit_side(corpus, source, "target", max_length=8, truncate=False) is corpus
    assert limit_side(corpus, source, "target", max_length=8, truncate=True) is corpus


@pytest.mark.parametrize("max_length", [2, 5, 7])
def test_truncated_examples_keep_eos(max_length, long_lines, tmp_path):
    source, corpus = long_lines
    truncated = limit_side(corpus, source, "target", max_length=max_length, truncate=True)
    rows = [corpus.tokens[a:b].tolist() for a, b in pairwise(corpus.starts)]
    actual = [truncated.tokens[a:b].tolist() for a, b in pairwise(truncated.starts)]
    assert actual == [row if len(row) <= max_length else [*row[: max_length - 1], 2] for row in rows]
    assert (truncated.name, truncated.tokenizer, truncated.bos_id) == (corpus.name, corpus.tokenizer, corpus.bos_id)
    assert truncated.line_edges().tolist() == truncated.starts.tolist()
    # the corpus on disk is not truncated
    assert open_corpus(tmp_path, "train.target").tokens.tolist() == corpus.tokens.tolist()
