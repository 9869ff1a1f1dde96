"""Labeled texts from lines, tables and directories: parsing, error messages and splits."""

from __future__ import annotations

import gzip
import json
import lzma
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config import parse_config, to_dict
from weft.data.corpus import write_corpus
from weft.data.dataset import Dataset, stratified_order
from weft.errors import ConfigError, DataError
from weft.tasks.classification.data import LabeledDataConfig, LabeledFormat, count_long, labels_of
from weft.tasks.classification.files import Reading, Record
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

EXAMPLES = [("pos", "a good film"), ("neg", "dull, é \u2028 \u00a0 x"), ("pos", 'the "best"')]


def write(path: Path, text: str) -> Path:
    data = text.encode()
    packers = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packers.get(path.suffix, bytes)(data))
    return path


def labelled(*paths: Path, reading: Reading | None = None, high: float = 1.0, skip_empty: bool = True) -> Dataset[Record]:
    return Dataset(paths, LabeledFormat(reading or Reading(), skip_empty), high=high)


def read(*paths: Path, reading: Reading | None = None, skip_empty: bool = True) -> list[tuple[str, ...]]:
    """Labels joined, then the texts."""
    source = labelled(*paths, reading=reading, skip_empty=skip_empty)
    return [("+".join(example.labels), *example.texts) for example in source.records()]


def refusal(action, error=DataError) -> str:
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


# ---- what is read


def as_lines(rows: list[tuple[str, str]]) -> str:
    return "".join(f"{label} {text}\n" for label, text in rows)


def as_tsv(rows: list[tuple[str, str]]) -> str:
    return "".join(f"{label}\t{text}\n" for label, text in rows)


def as_csv(rows: list[tuple[str, str]]) -> str:
    return "".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) + "\n" for row in rows)


def as_jsonl(rows: list[tuple[str, str]]) -> str:
    return "".join(json.dumps({"id": 1, "text": text, "label": label}) + "\n" for label, text in rows)


WRITTEN = {"txt": as_lines, "all": as_lines, "tsv": as_tsv, "csv": as_csv, "jsonl": as_jsonl}


@pytest.mark.parametrize("packing", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("kind", list(WRITTEN))
def test_every_file_format_compressed_or_not(kind, packing, tmp_path):
    path = write(tmp_path / f"a.{kind}{packing}", WRITTEN[kind](EXAMPLES))
    assert read(path) == EXAMPLES
    assert read(path, path) == EXAMPLES * 2


@given(
    rows=st.lists(st.tuples(st.sampled_from(["a", "b c"]), st.text(st.sampled_from("a\"',;\t\n é"), max_size=5)), min_size=1)
)
@settings(deadline=None, max_examples=40)
def test_csv_and_jsonl_round_trip_any_text(rows, tmp_path_factory):
    folder, rows = tmp_path_factory.mktemp("any"), [(label, f"x{text}") for label, text in rows]
    assert read(write(folder / "a.csv", as_csv(rows))) == rows
    assert read(write(folder / "a.jsonl", as_jsonl(rows))) == rows


def test_label_first_lines_split_at_the_first_whitespace(tmp_path):
    path = write(tmp_path / "a.txt", "DESC:manner How did  it ?\n\nENTY\t \tWhat\tis it \n  \t\n0 x")
    assert read(path) == [("DESC:manner", "How did  it ?"), ("ENTY", "What\tis it "), ("0", "x")]
    source = labelled(path)
    assert [source.location(number) for number in range(3)] == [f"{path}:{line}" for line in (1, 3, 5)]
    assert source.summary.files.blank == 2
    # other white space is content
    assert read(write(tmp_path / "b.txt", "a\u00a0b c\u2028d\n")) == [("a\u00a0b", "c\u2028d")]


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl"])
def test_blank_lines_of_tables_are_skipped_and_counted(kind, tmp_path):
    lines = WRITTEN[kind](EXAMPLES).split("\n")[:-1]
    path = write(tmp_path / f"a.{kind}", "\n\n".join([*lines, ""]))
    assert read(path) == EXAMPLES
    source = labelled(path)
    assert f"blank lines that were skipped: {len(lines)}" in " ".join(source.summary.notes())
    assert source.location(1) == f"{path}:3"


def test_strip_label_after(tmp_path):
    path = write(tmp_path / "a.txt", "DESC:manner How\nDESC:def:x What\nNUM Who\n")
    assert [label for label, _ in read(path, reading=Reading(coarse=":"))] == ["DESC", "DESC", "NUM"]
    table = write(tmp_path / "a.tsv", "A.x, A.y;B.z\tt\n")
    assert read(table, reading=Reading(multi=True, coarse=".")) == [("A", "t")]


def test_fasttext_lines(tmp_path):
    path = write(tmp_path / "a.txt", "__label__a one two\n__label__b\tthree\n")
    assert read(path) == [("a", "one two"), ("b", "three")]
    several = write(tmp_path / "b.txt", "__label__a __label__b,c x\n__label__a __label__a y z\n")
    assert read(several, reading=Reading(multi=True)) == [("a+b,c", "x"), ("a", "y z")]


def test_multilabel_texts_may_have_no_label(tmp_path):
    reading = Reading(multi=True)
    path = write(tmp_path / "a.tsv", "a, b\tone\n\ttwo\nb,,b,\tthree\n")
    assert read(path, reading=reading) == [("a+b", "one"), ("", "two"), ("b", "three")]
    assert read(write(tmp_path / "b.tsv", "a, b|c\tone\n"), reading=Reading(multi=True, separator="|")) == [("a, b+c", "one")]
    rows = '{"text": "x", "label": ["a,b", 2]}\n{"text": "y", "label": []}\n{"text": "z", "label": "a,b"}\n'
    assert read(write(tmp_path / "c.jsonl", rows), reading=reading) == [("a,b+2", "x"), ("", "y"), ("a+b", "z")]


def test_json_labels_may_be_integers_and_booleans(tmp_path):
    rows = '{"text": "x", "label": 1}\n{"text": "y", "label": true}\n{"text": "z", "label": ["a"]}\n'
    assert read(write(tmp_path / "a.jsonl", rows)) == [("1", "x"), ("true", "y"), ("a", "z")]


def test_columns_by_name_and_by_index(tmp_path):
    table = write(tmp_path / "a.tsv", "id\ttext\tlabel\n1\tgood\tpos\n")
    assert read(table) == [("pos", "good")]
    assert read(table, reading=Reading(text=("id",))) == [("pos", "1")]
    pairs = write(tmp_path / "b.csv", "premise,gold,hypothesis\nA man,yes,A person\nA,no,\n")
    reading = Reading(text=("premise", "hypothesis"), label="gold")
    assert read(pairs, reading=reading) == [("yes", "A man", "A person"), ("no", "A", "")]
    # no header: the label is first
    assert read(write(tmp_path / "c.csv", "3,Wall St.,Short-sellers\n")) == [("3", "Wall St.")]
    cola = write(tmp_path / "d.tsv", "gj04\t1\t*\tOur friends\n")
    assert read(cola, reading=Reading(text=(4,), label=2)) == [("1", "Our friends")]
    assert read(cola, reading=Reading(text=(4, 1), label=2)) == [("1", "Our friends", "gj04")]


def test_each_file_has_its_own_format_and_header(tmp_path):
    one, other = write(tmp_path / "a.tsv", "label\ttext\na\tx\n"), write(tmp_path / "b.tsv", "text\tlabel\ny\tb\n")
    assert read(one, other, write(tmp_path / "c.txt", "c z\n")) == [("a", "x"), ("b", "y"), ("c", "z")]


def test_a_directory_with_one_file_per_label(tmp_path):
    for name, text in (("b.x.txt.gz", "three\n\n four\n"), ("Ä.txt", "five six\n"), ("a.txt", "__label__z one\ntwo")):
        write(tmp_path / "names" / name, text)
    write(tmp_path / "names" / ".DS_Store", "\0")
    source = labelled(tmp_path / "names")
    assert read(tmp_path / "names") == [
        ("a", "__label__z one"), ("a", "two"), ("b.x", "three"), ("b.x", " four"), ("Ä", "five six"),
    ]  # fmt: skip
    assert source.location(3) == f"{tmp_path / 'names' / 'b.x.txt.gz'}:3"
    assert source.summary.notes()[:1] == ["names: one file per label, one example per line"]
    # names with points that are no suffix
    write(tmp_path / "news" / "alt.atheism", "x\n")
    write(tmp_path / "news" / "comp.graphics", "y\n")
    assert read(tmp_path / "news") == [("alt.atheism", "x"), ("comp.graphics", "y")]


def test_a_directory_with_one_subdirectory_per_label(tmp_path):
    for name, text in (("pos/2.txt", "b\nc\n\n"), ("pos/10.txt", "a"), ("neg/a.tsv", "label\ttext\n")):
        write(tmp_path / "films" / name, text)
    write(tmp_path / "films" / "neg" / ".hidden", "\0")
    assert read(tmp_path / "films") == [("neg", "label\ttext"), ("pos", "a"), ("pos", "b\nc\n")]
    source = labelled(tmp_path / "films")
    assert source.location(2) == f"{tmp_path / 'films' / 'pos' / '2.txt'}:1"
    assert source.summary.notes()[:1] == ["films: one directory per label, one example per file"]
    assert source.column("0").size() == 15


def test_the_summary_shows_three_examples(tmp_path):
    path = write(tmp_path / "a.tsv", "\ufeff" + as_tsv([*EXAMPLES, ("odd", "last")]).replace("\n", "\r\n"))
    seen = labelled(path).summary
    assert (seen.count, seen.num_crlf, seen.characters) == (4, 4, 38)
    assert seen.describe() == (
        f"{path}: 4 examples of 38 characters with 3 labels, utf-8, 4 CRLF line endings\n"
        "  note: a.tsv: removed a byte order mark at the start\n"
        "  note: a.tsv: no header; label is column 1, text is column 2 of 2\n"
        "  note: labels that occur once, 2 of 3: neg, odd\n"
        "  labels: pos (2), neg (1), odd (1)\n"
        "  e.g.: a good film -> pos\n"
        "  e.g.: dull, é \u2028 \u00a0 x -> neg\n"
        '  e.g.: the "best" -> pos'
    )
    pairs = write(tmp_path / "b.jsonl", '{"a": "x", "b": "", "label": []}\n{"a": "y", "b": "z", "label": ["k", "l"]}\n')
    reading = Reading(text=("a", "b"), multi=True)
    assert labelled(pairs, pairs, pairs, reading=reading).summary.describe() == (
        f"{pairs} and {pairs} and 1 more: 6 examples of 9 characters with 2 labels, utf-8, LF line endings\n"
        "  note: empty texts in column 2: 3\n"
        "  note: examples without a label: 3\n"
        "  labels: k (3), l (3)\n"
        "  e.g.: x |  -> no label\n"
        "  e.g.: y | z -> k, l\n"
        "  e.g.: x |  -> no label"
    )


def test_the_summary_shows_unlabeled_texts_and_numbers_of_files(tmp_path):
    plain_text = write(tmp_path / "a.txt", "".join(f"w{number} and so on\n" for number in range(12)))
    notes = labelled(plain_text).summary.notes()
    assert notes == ["a.txt: lines start with a label", "12 labels for 12 examples; are they labels?"]
    for number in range(13):
        write(tmp_path / "many" / "x" / str(number), "\ufefftext")
    seen = labelled(tmp_path / "many").summary
    assert seen.notes()[10:11] == ["and 4 more notes on files"]
    assert "  labels: w0, w1, w10, w11, w2, w3, w4, w5, w6, w7 and 2 more\n" in labelled(plain_text).summary.describe()


# ---- what is refused

BAD_FILES = [
    ("a.txt", "a x\npos\n", "line 2: no text after the label: pos; use lines of label, whitespace and text"),
    ("a.txt", "a x\npos \n", ":2: has the label pos but no text; add a text or remove it"),
    ("a.txt", "a x\n b y\n", "line 2: starts with whitespace, expected a label:  b y"),
    ("a.txt", "__label__a x\nb y\n", "line 2: expected __label__ at the start, as in the first line: b y"),
    ("a.txt", "__label__a x __label__b y\n", "line 1: __label__ inside the text: x __label__b y; put labels first"),
    ("a.txt", "__label__a __label__b x\n", ":1: more than one label (a, b); set data.multilabel = true"),
    ("a.txt", "__label__ x\n", "line 1: no text after the label: __label__ x; use lines of label, whitespace and text"),
    ("a.txt", "", "file is empty"),
    ("a.txt", "a x\0y\n", ":1: NUL character; is this a binary or UTF-16 file? For UTF-16, set data.encoding"),
    (
        "a.tsv",
        "sentence\tlabel\nx\t1\n",
        ":1: no column 'text'; set data.text_column to one of: sentence, label",
    ),
    (
        "a.csv",
        "Text,Class\nx,1\n",
        ":1: no column 'label'; set data.label_column to one of: Text, Class",
    ),
    ("a.tsv", "text\tlabel\ttext\nx\ty\tz\n", ":1: 2 columns are named 'text'; rename all but one"),
    ("a.tsv", "text\tlabel\n", "no examples below the header"),
    (
        "a.tsv",
        "pos\n",
        ":1: expected at least 2 tab-separated columns, got 1: 'pos'; set data.delimiter if the delimiter is different",
    ),
    ("a.tsv", "a\tx\nb\ty\tz\n", ":2: expected 2 tab-separated columns, got 3: 'b', 'y', 'z'"),
    ("a.csv", "\na,x\n", ":1: first line of the table is blank; remove it"),
    ("a.tsv", "a\tx\n \ty\n", ":2: label is missing; add one or set data.multilabel = true"),
    ("a.tsv", "a\tx\nb\t \n", ":2: has the label b but no text; add a text or remove it"),
    (
        "a.csv",
        'a,x\n"b\nc",y\n',
        ":2: the label 'b\\\\u{a}c' has a tab or a newline; is data.label_column the right column?",
    ),
    ("a.jsonl", "{\n", ":1: invalid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1);"
     " .jsonl files need one object per line"),
    ("a.jsonl", "[1]\n", ":1: expected an object with 'label' and 'text', got a list"),
    ("a.jsonl", '{"txt": "a", "label": "b"}\n', ":1: no key 'text'; did you mean 'txt'?"),
    ("a.jsonl", '{"text": "a", "labels": "b"}\n', ":1: no key 'label'; did you mean 'labels'?"),
    ("a.jsonl", '{"text": 1, "label": "b"}\n', ":1: expected a string as 'text', got a number; put it in quotes"),
    ("a.jsonl", '{"text": "a", "label": 0.5}\n', ":1: expected a string as 'label', got a number; put it in quotes"),
    ("a.jsonl", '{"text": "a", "label": null}\n', ":1: expected a string as 'label', got null; put it in quotes"),
    ("a.jsonl", '{"text": "a", "label": ["b", "c"]}\n', ":1: more than one label (b, c); set data.multilabel = true"),
    (
        "a.jsonl",
        '{"text": "a", "label": ["b", null]}\n',
        ":1: expected a list of strings or integers as 'label'; write labels as strings",
    ),
    (
        "a.jsonl",
        '{"text": "a", "label": "b\\ud83d"}\n',
        ":1: 'label': lone surrogate U+D83D at character 1; use whole characters",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), BAD_FILES)
def test_an_error_names_the_line_of_a_bad_file(name, text, message, tmp_path):
    path = write(tmp_path / name, text)
    assert refusal(lambda: read(path, skip_empty=False)) == f"{path}{message if message.startswith(':') else ': ' + message}"


def test_missing_columns(tmp_path):
    table = write(tmp_path / "a.tsv", "premise\tgold\nx\ty\n")
    assert refusal(lambda: read(table, reading=Reading(text=("premise", "hypo"), label="gold"))) == (
        f"{table}:1: no column 'hypo'; set data.text_column to one of: premise, gold"
    )
    assert refusal(lambda: read(table, reading=Reading(text=("premise",), label="golden"))) == (
        f"{table}:1: no column 'golden'; set data.label_column to one of: premise, gold"
    )
    assert refusal(lambda: read(table, reading=Reading(text=(3,), label=1))) == (
        f"{table}:1: no column 3: the table has 2 columns; set data.text_column to at most 2"
    )
    objects = write(tmp_path / "a.jsonl", '{"a": "b"}\n')
    assert refusal(lambda: read(objects, reading=Reading(text=(2,), label=1))) == (
        f"{objects}: has keys, but data.label_column is 1; set data.label_column to a name"
    )
    lines = write(tmp_path / "a.txt", "a x\n")
    message = "not a table (.tsv, .csv, .xlsx, .jsonl, .json or .parquet), but data.{0} = {1}; remove data.{0} or use a table"
    assert (
        refusal(lambda: read(lines, reading=Reading(text=("a", "b")))) == f"{lines}: {message.format('text_column', repr('a'))}"
    )
    assert refusal(lambda: read(lines, reading=Reading(label=2, text=(1,)))) == f"{lines}: {message.format('label_column', 2)}"


def test_both_texts_of_a_pair_may_not_be_empty(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tb\tlabel\nx\t\tk\n\t \tk\n")
    two = Reading(text=("a", "b"))
    assert refusal(lambda: read(path, reading=two, skip_empty=False)) == (
        f"{path}:3: has the label k but no text; add a text or remove it"
    )
    assert read(path, reading=two) == [("k", "x", "")]
    empty = write(tmp_path / "b.jsonl", '{"text": "", "label": []}\n')
    assert refusal(lambda: read(empty, reading=Reading(multi=True), skip_empty=False)) == (
        f"{empty}:1: has neither label nor text; add a text or remove it"
    )


EMPTY = {
    "a.tsv": ("label\ttext\npos\tgood film\nneg\t\nneg\tdull\npos\t  \n", 3),
    "a.csv": ('label,text\npos,good film\nneg,""\nneg,dull\npos,\n', 3),
    "a.jsonl": (
        '{"label": "pos", "text": "good film"}\n{"label": "neg", "text": ""}\n'
        '{"label": "neg", "text": "dull"}\n{"label": "pos", "text": " "}\n',
        2,
    ),
    "lines": ("pos good film\nneg\t\nneg dull\npos  \n", 2),
    "fasttext": ("__label__pos good film\n__label__neg\n__label__neg dull\n__label__pos \n", 2),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_example_without_text_is_skipped_and_counted(name, tmp_path):
    text, line = EMPTY[name]
    path = write(tmp_path / name, text)
    assert read(path) == [("pos", "good film"), ("neg", "dull")]
    source = labelled(path)
    assert source.summary.count == 2
    assert f"examples without a text that were skipped: 2, the first at {path}:{line}" in source.summary.notes()
    assert source.location(1) == f"{path}:{line + 1}"
    assert refusal(lambda: read(path, skip_empty=False)) == (
        f"{path}:{line}: has the label neg but no text; add a text or remove it"
    )


def test_an_empty_file_in_a_label_directory_is_skipped(tmp_path):
    for name, text in (("pos/1", "good film"), ("pos/2", ""), ("neg/1", "dull"), ("neg/2", "\n\n"), ("neg/3", " ")):
        write(tmp_path / "films" / name, text)
    folder = tmp_path / "films"
    assert read(folder) == [("neg", "dull"), ("pos", "good film")]
    told = f"examples without a text that were skipped: 3, the first at {folder / 'neg' / '2'}:1"
    assert told in labelled(folder).summary.notes()
    assert refusal(lambda: read(folder, skip_empty=False)) == (f"{folder / 'neg' / '2'}: no text, only 2 empty lines")


def test_files_without_any_text_are_refused(tmp_path):
    path = write(tmp_path / "a.tsv", "label\ttext\npos\t\nneg\t\n")
    assert refusal(lambda: read(path)) == (f"{path}: all 2 examples are without text; is data.text_column the right column?")


def test_split_fractions_ignore_skipped_examples(tmp_path):
    rows = [("pos" if at % 2 else "neg", "" if at in (3, 10) else f"t{at}") for at in range(22)]
    write(tmp_path / "a.tsv", "label\ttext\n" + as_tsv(rows))
    found = LabeledDataConfig(train="a.tsv", valid=0.1).sources(tmp_path)
    texts = {name: [record.texts[0] for record in part.records()] for name, part in found.items()}
    assert [len(texts[name]) for name in ("train", "valid")] == [18, 2]
    assert sorted(texts["train"] + texts["valid"]) == sorted(text for _, text in rows if text)


def test_skipped_examples_do_not_change_the_origin_of_a_corpus(tmp_path):
    """Files without empty texts have the same corpora however it is set: none is made again for it."""
    write(tmp_path / "a.tsv", "label\ttext\npos\tx\nneg\ty\n")
    origins = [
        LabeledDataConfig(train="a.tsv", skip_empty=skip).sources(tmp_path)["train"].column("0").provenance()
        for skip in (True, False)
    ]
    assert origins[0] == origins[1] and "skip_empty" not in origins[0]


def test_invalid_label_directories(tmp_path):
    folder = tmp_path / "x"
    folder.mkdir()
    empty = "directory is empty; add one file or one subdirectory per label"
    assert refusal(lambda: read(folder)) == f"{folder}: {empty}"
    write(folder / "train.tsv", "a\tb\n")
    assert refusal(lambda: read(folder)) == (
        f"{folder}: directory contains a table (train.tsv); use the table itself or one file per label"
    )
    (folder / "pos").mkdir()
    assert refusal(lambda: read(folder)) == (
        f"{folder}: directory contains both directories (such as pos) and files (such as train.tsv);"
        " use one directory per label or one file per label"
    )
    (folder / "train.tsv").unlink()
    assert refusal(lambda: read(folder)) == f"{folder / 'pos'}: {empty}"
    write(folder / "pos" / "deep" / "1.txt", "x")
    assert refusal(lambda: read(folder)) == (
        f"{folder / 'pos' / 'deep'}: directory inside the directory of a label; put the examples directly in {folder / 'pos'}"
    )
    write(tmp_path / "y" / "a.txt", "x\n")
    write(tmp_path / "y" / "a.txt.gz", "x\n")
    assert refusal(lambda: read(tmp_path / "y")) == (
        f"{tmp_path / 'y'}: has 2 files for the label 'a'; join them, or rename all but one"
    )
    assert refusal(lambda: read(tmp_path / "none")) == f"{tmp_path / 'none'}: file not found"
    # a run whose data is gone can still ask which files it had
    assert labelled(tmp_path / "none").paths == (tmp_path / "none",)


def test_a_directory_that_cannot_be_listed(tmp_path, monkeypatch):
    write(tmp_path / "x" / "a.txt", "x\n")

    def denied(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    assert refusal(lambda: read(tmp_path / "x")) == f"{tmp_path / 'x'}: cannot read: Permission denied"


OPTIONS = "train, valid, test, encoding, delimiter, sheet, text, label, multi, separator, coarse, longest, truncate, skip_empty"
MESSAGES = [
    ({"train": ""}, "data.train: expected file names, got ''"),
    ({"train": "a", "valid": 0.5, "test": 0.5}, "data: valid (0.5) and test (0.5) leave no training data"),
    ({"train": "a", "text_column": []}, "data.text_column: expected one column, or two for text pairs, got 0"),
    ({"train": "a", "text_column": ["a", "b", "c"]}, "data.text_column: expected one column, or two for text pairs, got 3"),
    ({"train": "a", "label_column": ""}, "data.label_column: expected a name or a 1-based index, got ''"),
    ({"train": "a", "text_column": 0, "label_column": 1}, "data.text_column: expected a name or a 1-based index, got 0"),
    ({"train": "a", "text_column": 2}, "data: text_column and label_column mix names and indices; use one or the other"),
    ({"train": "a", "text_column": ["x", "label"]}, "data: text_column and label_column name one column twice"),
    ({"train": "a", "multilabel": True, "label_separator": ""}, "data.label_separator: must not be empty; remove it"),
    ({"train": "a", "strip_label_after": ""}, "data.strip_label_after: must not be empty; remove it"),
    (
        {"train": "a", "label_separator": ";"},
        "data.label_separator: not used with multilabel = false; remove it or set multilabel = true",
    ),
    ({"train": "a", "max_length": 3}, "data.max_length: must be at least 4, got 3"),
    ({"train": "a", "lable": "x"}, "data.lable: unknown option; did you mean 'multilabel'?"),
]


@pytest.mark.parametrize(("values", "message"), MESSAGES)
def test_invalid_data_options(values, message):
    assert refusal(lambda: parse_config(LabeledDataConfig, values, prefix="data"), ConfigError) == message


@pytest.mark.parametrize(
    "more",
    [
        {"multilabel": True},
        {"text_column": ["a", "b"], "valid": 0.2},
        {"text_column": 2, "label_column": 1, "strip_label_after": ":"},
    ],
)
def test_data_options_round_trip(more):
    table = parse_config(LabeledDataConfig, {"train": ["a", "b"], **more}, prefix="data").with_defaults()
    assert parse_config(LabeledDataConfig, to_dict(table), prefix="data") == table == table.with_defaults()


# ---- shares


def split_of(labels: list[str], tmp_path: Path, **shares: float) -> dict[str, list[Record]]:
    write(tmp_path / "a.txt", "".join(f"{label} {number}\n" for number, label in enumerate(labels)))
    return {name: list(part.records()) for name, part in LabeledDataConfig(train="a.txt", **shares).sources(tmp_path).items()}


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    valid=st.sampled_from([0.1, 0.2, 1 / 3]),
    test=st.sampled_from([None, 0.1, 0.25]),
)
@settings(deadline=None, max_examples=40)
def test_splits_are_exact_disjoint_and_complete(sizes, valid, test, tmp_path_factory):
    labels = [f"l{at}" for at, size in enumerate(sizes) for _ in range(size)] + ["z"] * 30
    parts = split_of(labels, tmp_path_factory.mktemp("shares"), valid=valid, **({} if test is None else {"test": test}))
    numbers = {name: [int(example.texts[0]) for example in examples] for name, examples in parts.items()}
    assert sorted(number for found in numbers.values() for number in found) == list(range(len(labels)))
    assert all(a < b for found in numbers.values() for a, b in pairwise(found))
    assert all(labels[int(text)] == label for found in parts.values() for (text,), (label,), _, _ in found)
    for name, share in (("valid", valid), ("test", test)):
        if share is not None:
            assert abs(len(numbers[name]) - share * len(labels)) < 1


def test_splits_are_stratified_by_label(tmp_path):
    labels = ["a"] * 500 + ["b"] * 90 + ["c"] * 10
    parts = split_of(labels, tmp_path, valid=0.1, test=0.1)
    counts = {name: Counter(example.labels[0] for example in found) for name, found in parts.items()}
    assert counts == {
        "train": {"a": 400, "b": 72, "c": 8}, "valid": {"a": 50, "b": 9, "c": 1}, "test": {"a": 50, "b": 9, "c": 1},
    }  # fmt: skip
    # shuffled: not the end of the file, nor every tenth
    found = [int(example.texts[0]) for example in parts["valid"] if example.labels == ("a",)]
    assert min(found) < 50 and max(found) > 450
    assert len(set(np.diff(found).tolist())) > 10


def test_a_rare_label_stays_in_training(tmp_path):
    labels = ["a"] * 50 + ["b"] * 48 + ["once"] + ["twice"] * 2
    parts = split_of(labels, tmp_path, valid=0.1, test=0.1)
    assert {example.labels[0] for example in parts["valid"] + parts["test"]} == {"a", "b"}
    assert len(parts["train"]) == 80


def test_splits_keep_the_order_of_examples():
    # as it was first drawn: another order would move examples from test to train in runs that go on
    assert stratified_order(np.array([0] * 8 + [1] * 4)).tolist() == [3, 11, 2, 1, 8, 6, 0, 10, 7, 4, 9, 5]


def test_multilabel_splits_are_stratified_by_the_rarest_label(tmp_path):
    labels = ["common,rare"] * 20 + ["common"] * 180 + ["other"] * 100
    write(tmp_path / "a.txt", "".join(f"{label} {number}\n" for number, label in enumerate(labels)))
    parts = LabeledDataConfig(train="a.txt", valid=0.1, multilabel=True).sources(tmp_path)
    counts = Counter(label for labels in labels_of(parts["valid"]) for label in labels)
    assert counts == {"common": 20, "rare": 2, "other": 10}


def test_too_few_examples_for_a_split(tmp_path):
    source = labelled(write(tmp_path / "a.txt", "a b\n"), high=0.9)
    assert refusal(lambda: labels_of(source)) == (
        f"{tmp_path / 'a.txt'}: 1 example is too few for the fraction from 0 to 0.9;"
        " add examples, or use separate files for data.valid and data.test"
    )


def test_splits_in_separate_files_are_complete(tmp_path):
    write(tmp_path / "a.txt", "a x\nb y\n")
    write(tmp_path / "b.txt", "b z\n")
    sources = LabeledDataConfig(train="a.txt", valid=["b.txt"], test=0.5).sources(tmp_path)
    assert [len(labels_of(sources[name])) for name in ("train", "valid", "test")] == [1, 1, 1]
    assert labels_of(sources["valid"]) == [("b",)]


# ---- corpora


def test_the_corpus_of_a_column_is_its_encoded_texts(tmp_path):
    rows = [("a", "x y", "k"), ("two\nlines", "", "l"), ("é", "z", "k")]
    path = write(
        tmp_path / "a.jsonl", "".join(json.dumps(dict(zip(("a", "b", "label"), row, strict=True))) + "\n" for row in rows)
    )
    source = LabeledDataConfig(train="a.jsonl", text_column=["a", "b"]).sources(tmp_path)["train"]
    tokenizer = train_tokenizer(TokenizerConfig(type="char"), iter(["two lines xyz é a\n"]))
    for at in (0, 1):
        side = source.column(str(at))
        corpus = write_corpus(side, tokenizer, tmp_path, f"train.{at}", progress=lambda done, total: None)
        found = [corpus.tokens[a:b].tolist() for a, b in pairwise(corpus.starts)]
        assert found == [[*tokenizer.encode(row[at]).tolist(), 2] for row in rows]
        assert side.name == f"{path} ({'ab'[at]})"
    assert [row.texts for row in source.rows()] == [row[:2] for row in rows]
    assert [row.line for row in source.rows()] == [1, 2, 3]


def test_a_corpus_is_rebuilt_if_its_text_or_its_split_changes(tmp_path):
    write(tmp_path / "x" / "a.txt", "x\ny\n")
    write(tmp_path / "x" / "b.txt", "z\n")
    tokenizer = train_tokenizer(TokenizerConfig(type="char"), iter(["xyz"]))

    def made(folder: Path, **shares: float) -> str:
        source = LabeledDataConfig(train=folder.name, **shares).sources(tmp_path)["train"]
        return write_corpus(source.column("0"), tokenizer, tmp_path, "train", must_match=known).provenance

    known = None
    known = made(tmp_path / "x")
    assert made(tmp_path / "x") == known
    end = "); restore it or start a new run"
    start = f"{tmp_path / 'x'}: not the text that the run was started with ("
    assert refusal(lambda: made(tmp_path / "x", valid=0.4)) == f"{start}high was 1.0, now 0.6{end}"
    (tmp_path / "x" / "b.txt").rename(tmp_path / "x" / "c.txt")
    assert refusal(lambda: made(tmp_path / "x")) == f"{start}{tmp_path / 'x' / 'c.txt'} has changed{end}"


def test_a_file_moved_to_another_label_is_detected(tmp_path):
    write(tmp_path / "x" / "a" / "1", "text")
    before = labelled(tmp_path / "x").column("0").provenance()
    (tmp_path / "x" / "a").rename(tmp_path / "x" / "b")
    assert labelled(tmp_path / "x").column("0").provenance() != before


def test_texts_that_are_too_long_are_counted_or_refused_with_their_line(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tb\tlabel\nxx\tx\tk\nxxx\txxx\tk\nx\txxxxx\tk\n")
    source = LabeledDataConfig(train="a.tsv", text_column=["a", "b"]).sources(tmp_path)["train"]
    tokenizer = train_tokenizer(TokenizerConfig(type="char"), iter(["x"]))
    corpora = [write_corpus(source.column(str(at)), tokenizer, tmp_path, f"train.{at}") for at in (0, 1)]
    # <s>, the tokens of both, and two </s>
    assert [count_long(corpora, source, max_length=longest, truncate=True) for longest in (9, 8, 6, 5)] == [0, 2, 2, 3]
    assert count_long(corpora, source, max_length=9, truncate=False) == 0
    assert refusal(lambda: count_long(corpora, source, max_length=8, truncate=False)) == (
        f"{path}:3 (and 1 more): has 9 tokens, more than data.max_length (8); increase it or set data.truncate = true"
    )


def test_a_single_label_for_all_texts_is_noted(tmp_path):
    told = "all examples have the same label; there is nothing to learn"
    assert labelled(write(tmp_path / "a.csv", "label,text\na,x\na,y\n")).summary.notes() == [told]
    assert labelled(write(tmp_path / "b.csv", "label,text\na,x\na,y\nb,z\nb,z\n")).summary.notes() == []
