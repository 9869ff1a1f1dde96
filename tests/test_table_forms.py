"""Common table formats: other delimiters, JSON lists, nested keys, unknown headers, directories, and foreign files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from weft.config import parse_config
from weft.data.check import check_data
from weft.data.config import TextDataConfig
from weft.data.dataset import Dataset
from weft.data.findings import CheckOptions
from weft.errors import DataError
from weft.tasks.classification.data import LabeledDataConfig, LabeledFormat
from weft.tasks.classification.files import Reading, Record
from weft.tasks.qa.data import QuestionFormat
from weft.tasks.seq2seq.data import PairFormat
from weft.tasks.seq2seq.data import pairs as pairs_of
from weft.text.reading import read_lines

LABELLED = CheckOptions(("text",), labels="label", labels_of=lambda record: record.labels)
REVIEW = Reading(text=("review",), label="sentiment")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def labelled(path: Path, reading: Reading | None = None) -> Dataset[Record]:
    return Dataset((path,), LabeledFormat(reading or Reading()))


def read(path: Path, reading: Reading | None = None) -> list[tuple[str, ...]]:
    source = labelled(path, reading)
    return [(*example.labels, *example.texts) for example in source.records()]


def error_message(action) -> str:
    with pytest.raises(DataError) as caught:
        action()
    return str(caught.value)


# ---- what separates the columns


def test_csv_with_semicolons_or_tabs(tmp_path):
    rows = 'id;sentiment;review\n1;pos;"good; and, cheap"\n2;neg;"two\nlines, dull"\n'
    expected = [("pos", "good; and, cheap"), ("neg", "two\nlines, dull")]
    assert read(write(tmp_path / "a.csv", rows), REVIEW) == expected
    assert read(write(tmp_path / "a.csv.gz", "\ufeff" + rows), REVIEW) == expected
    assert labelled(tmp_path / "a.csv", REVIEW).summary.notes()[0] == "a.csv: columns are separated by semicolons"
    tabs = write(tmp_path / "b.csv", 'label\ttext\npos\t"a ""b"", c"\n')
    assert read(tabs) == [("pos", 'a "b", c')]
    # commas win if there is one outside quotes
    assert read(write(tmp_path / "c.csv", "pos,so; so\n")) == [("pos", "so; so")]
    assert read(write(tmp_path / "d.csv", '"a,b";text;label\nx;y;z\n')) == [("z", "y")]
    pairs = write(tmp_path / "p.csv", "source;target\na;b\n")
    assert list(pairs_of(Dataset((pairs,), PairFormat()))) == [("a", "b")]
    qa_file = write(tmp_path / "q.csv", "question;passage;answer\nWho?;Ida sang.;Ida\n")
    assert [record.passage for record in Dataset((qa_file,), QuestionFormat()).records()] == ["Ida sang."]


def test_a_row_with_the_wrong_number_of_fields_names_the_delimiter(tmp_path):
    path = write(tmp_path / "a.csv", "label;text\npos;x\nneg;y;z\n")
    assert error_message(lambda: read(path)) == (f"{path}:3: expected 2 semicolon-separated columns, got 3: 'neg', 'y', 'z'")


# ---- JSON


def test_json_file_is_a_list_of_objects_or_jsonl(tmp_path):
    rows = [{"text": "a\nb", "label": "pos"}, {"text": "c", "label": 1}]
    expected = [("pos", "a\nb"), ("1", "c")]
    assert read(write(tmp_path / "a.json", json.dumps(rows, indent=2))) == expected
    assert read(write(tmp_path / "b.json.gz", json.dumps(rows))) == expected
    assert read(write(tmp_path / "c.json", "".join(json.dumps(row) + "\n" for row in rows))) == expected
    assert labelled(tmp_path / "a.json").location(1) == f"{tmp_path / 'a.json'}:6"
    pairs = write(tmp_path / "p.json", '[{"source": "a", "target": "b"}]')
    assert list(pairs_of(Dataset((pairs,), PairFormat()))) == [("a", "b")]
    qa_file = write(tmp_path / "q.json", '[{"question": "Who?", "passage": "Ida sang.", "answer": "Ida"}]')
    assert [record.answers[0].start for record in Dataset((qa_file,), QuestionFormat()).records()] == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"data": []\n}',
            ":1: invalid JSON: Expecting ',' delimiter: line 1 column 12 (char 11); .jsonl files need one object per line",
        ),
        ('[{"text": "a", "label": "b"},\n 3]', ":2: expected an object with 'label' and 'text', got a number"),
        ('[{"text": "a", "label": "b"},\n {"label": "b"}]', ":2: no key 'text'; available: label"),
        (
            '[{"text": "a"\n',
            ":1: invalid JSON: Expecting ',' delimiter; write a list of objects or one object per line",
        ),
        ("[]", "the list is empty"),
        ("3", ":1: expected an object with 'label' and 'text', got a number"),
    ],
)
def test_invalid_json_lists_are_rejected(text, message, tmp_path):
    path = write(tmp_path / "a.json", text)
    assert error_message(lambda: read(path)).removeprefix(f"{path}").removeprefix(": ") == message


def test_dotted_keys_reach_into_objects(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"doc": {"body": "x"}, "annotation": {"label": "pos"}, "a.b": {"c": 1}}\n')
    assert read(path, Reading(text=("doc.body",), label="annotation.label")) == [("pos", "x")]
    plain = write(tmp_path / "b.jsonl", '{"a.b": "whole", "a": {"b": "inner"}, "label": "pos"}\n')
    assert read(plain, Reading(text=("a.b",))) == [("pos", "whole")]
    assert error_message(lambda: read(path, Reading(text=("doc.boddy",), label="annotation.label"))) == (
        f"{path}:1: no key 'doc.boddy'; did you mean 'doc.body'?"
    )
    assert error_message(lambda: read(path, Reading(text=("doc",), label="annotation.label"))) == (
        f"{path}:1: expected a string as 'doc', got an object; use one of its keys: doc.body"
    )


# ---- headers with other names

HEADERS = [
    "id,sentiment,review\n1,pos,good and cheap\n2,neg,dull\n",
    "sentiment;review\npos;good and cheap\nneg;dull\n",
    "Category,Message\nham,Go until jurong point\nspam,Free entry\nham,U dun say\n",
    "star_rating,review_body\n5,good\n1,bad\n",
    # no common column names, but numbers in one column, sentences in the other, and unique names
    "a1,zzz\n" + "".join(f"{at % 3},one two three four five\n" for at in range(12)),
]


@pytest.mark.parametrize("text", HEADERS)
def test_a_header_with_other_names_is_rejected_with_its_columns(text, tmp_path):
    path = write(tmp_path / "a.csv", text)
    columns = text.partition("\n")[0].replace(";", ",").replace(",", ", ")
    assert error_message(lambda: read(path)) == (
        f"{path}:1: no columns 'label' and 'text' in the header {columns}; set data.label_column and data.text_column,"
        " to 1 and 2 if this line is not a header"
    )
    assert len(read(path, Reading(text=(2,), label=1))) == text.count("\n")  # indices imply that there is no header


@pytest.mark.parametrize(
    "text",
    [
        "pos,Great\nneg,Dull film\npos,Fine\n",  # a repeated label
        "pos,Great\n",
        "a,x\nb,y\nc,z\n",
        "Polish,Dania\nRussian,Ivanov\nPolish,Nowak\n",
        "question,What is this?\nanswer,A film\nquestion,Which one?\n",
        "3,Wall St.,Short-sellers\n4,Carlyle,Looks\n",
        "good,I would come again: the ending was funny.\nbad,dull\n",
    ],
)
def test_label_first_files_without_a_header_are_read(text, tmp_path):
    assert len(read(write(tmp_path / "a.csv", text))) == text.count("\n")


def test_unique_labels_for_every_example_are_rejected_for_training(tmp_path):
    path = write(tmp_path / "a.tsv", "id\ttext\n" + "".join(f"n{index}\tsome words\n" for index in range(20)))
    source = labelled(path, Reading(label="id"))
    message = (
        f"{path}: 20 labels for 20 examples, n0, n1, n10 and so on: nearly every example has a label of its own, and none can"
        " be learned"
    )
    assert source.summary.problem() == message
    # reported once, for train only: a test file may have a few examples of each of many labels
    splits = {name: labelled(path, Reading(label="id")) for name in ("train", "valid")}
    actual = [finding for finding in check_data(splits, list, LABELLED).findings if finding.severity == "error"]
    fix = "check data.label_column = 'id'; columns: id, text"
    assert [(finding.name, finding.split, finding.message, finding.fix) for finding in actual] == [
        ("unique_labels", "train", message, fix)
    ]
    few = write(tmp_path / "b.tsv", "label\ttext\n" + "".join(f"{index % 17}\tsome words\n" for index in range(20)))
    assert labelled(few).summary.problem() is None
    lines = write(tmp_path / "c.txt", "".join(f"w{index} and so on\n" for index in range(12)))
    assert labelled(lines).summary.problem() == (
        f"{lines}: 12 labels for 12 examples, w0, w1, w10 and so on: nearly every example has a label of its own, and none can"
        " be learned"
    )
    assert labelled(lines).summary.label_hint() == "a line is read as a label, white space, and a text"


def test_an_error_of_one_file_is_reported_once(tmp_path):
    write(tmp_path / "a.csv", HEADERS[0])
    table = parse_config(LabeledDataConfig, {"train": "a.csv", "valid": 0.2, "test": 0.2}, prefix="data")
    findings = check_data(table.sources(tmp_path), list, LABELLED).findings
    assert [(item.name, item.split, item.message.partition(":")[2][:32]) for item in findings] == [
        ("unreadable", "train", "1: no columns 'label' and 'text'")
    ]


# ---- files of other programs


@pytest.mark.parametrize(
    ("name", "data", "description"),
    [
        ("a.parquet", b"PAR1\x15\x80", "a Parquet file; export its texts as lines first"),
        ("a.csv", b"PAR1\x15\x80", "a Parquet file; name it .parquet"),
        ("a.xlsx", b"PK\x03\x04rest", "an Excel workbook; save its texts as lines first"),
        ("a.csv", b"PK\x03\x04[Content_Types].xml xl/workbook.xml", "an Excel workbook; name it .xlsx"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Excel or Word file; save it as CSV UTF-8 or text first"),
        ("a.ods", b"PK\x03\x04rest", "an OpenDocument spreadsheet; save it as CSV first"),
        ("a.docx", b"PK\x03\x04rest", "a Word document; save it as text first"),
        ("a.feather", b"ARROW1\x00\x00", "an Arrow file; export it as CSV or JSONL first"),
        ("a.db", b"SQLite format 3\x00", "an SQLite database; export a table as CSV first"),
        ("a.zip", b"PK\x03\x04rest", "a zip archive; decompress it first"),
    ],
)
def test_files_of_other_programs_are_named(name, data, description, tmp_path):
    path = tmp_path / name
    path.write_bytes(data)
    assert error_message(lambda: list(read_lines(path))) == f"{path}: is {description}"


# ---- a corpus of many files


def corpus(folder: Path, train: str | list[str]) -> list[str]:
    table = parse_config(TextDataConfig, {"train": train, "read_as": "lines"}, prefix="data")
    return [path.relative_to(folder).as_posix() for path in table.sources(folder)["train"].paths]


def test_data_can_be_a_directory_or_a_pattern(tmp_path):
    for name in ("texts/b.txt", "texts/a.txt", "texts/more/c.txt.gz", "texts/notes.md", "texts/.hidden.txt", "x[1].txt"):
        write(tmp_path / name, f"{name}\n")
    assert corpus(tmp_path, "texts") == ["texts/a.txt", "texts/b.txt", "texts/more/c.txt.gz"]
    assert corpus(tmp_path, "texts/*.txt") == ["texts/a.txt", "texts/b.txt"]
    assert corpus(tmp_path, "texts/**/*.txt*") == ["texts/a.txt", "texts/b.txt", "texts/more/c.txt.gz"]
    assert corpus(tmp_path, ["texts/b.txt", "texts/?.txt"]) == ["texts/b.txt", "texts/a.txt", "texts/b.txt"]
    assert corpus(tmp_path, "x[1].txt") == ["x[1].txt"]  # a file with exactly this name wins
    table = parse_config(TextDataConfig, {"train": "texts", "read_as": "lines"}, prefix="data")
    assert list(table.sources(tmp_path)["train"].texts()) == ["texts/a.txt", "texts/b.txt", "texts/more/c.txt.gz"]
    # in running text, a blank line between two files ends a text; an explicit list is unchanged
    running = parse_config(TextDataConfig, {"train": "texts", "valid": 0.4}, prefix="data").sources(tmp_path)
    full = "texts/a.txt\n\ntexts/b.txt\n\ntexts/more/c.txt.gz\n"
    assert "".join(piece for split in ("train", "valid") for piece in running[split].texts()) == full

    listed = parse_config(TextDataConfig, {"train": ["texts/a.txt", "texts/b.txt"]}, prefix="data").sources(tmp_path)["train"]
    assert "".join(listed.texts()) == "texts/a.txt\ntexts/b.txt\n" and "separate_files" not in listed.provenance()
    # missing files are reported on reading: a run can be loaded without its text
    none = parse_config(TextDataConfig, {"train": "none/*.txt"}, prefix="data").sources(tmp_path)["train"]
    assert error_message(lambda: none.summary) == f"{tmp_path / 'none/*.txt'}: no file matches this pattern"
    (tmp_path / "empty").mkdir()
    empty = parse_config(TextDataConfig, {"train": "empty"}, prefix="data").sources(tmp_path)["train"]
    assert error_message(lambda: empty.summary) == f"{tmp_path / 'empty'}: is a directory; name the files in it"
