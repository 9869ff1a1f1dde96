"""Excel workbooks and Parquet files: the same examples as from CSV and JSONL, with row numbers in errors.

Tests that write such files need openpyxl or pyarrow and are skipped if they are not installed; the error messages for
missing packages are always tested."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import zipfile
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import pytest
from command_line import expect_error
from label_runs import classification_run_file, single_label_rows, write_tsv
from seq2seq_runs import seq2seq_run_file
from small_runs import SilentCallback, train_here

from weft.cli.main import main
from weft.config import parse_config
from weft.data.table_rows import file_format
from weft.data.workbooks import cell_text, choose_sheet
from weft.errors import ConfigError, DataError
from weft.tasks.classification.data import LabeledDataConfig
from weft.tasks.qa.data import QADataConfig
from weft.tasks.seq2seq.data import PairDataConfig, pairs
from weft.tasks.tagging.data import TaggedDataConfig

Rows = list[list[Any]]


def write_xlsx(path: Path, sheets: dict[str, Rows] | Rows) -> Path:
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed: pip install openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in (sheets if isinstance(sheets, dict) else {"Sheet": sheets}).items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def labelled(path: Path, **options: Any) -> list[tuple[str, ...]]:
    source = LabeledDataConfig(train=path.name, **options).sources(path.parent)["train"]
    return [("+".join(record.labels), *record.texts) for record in source.records()]


def error_message(path: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        labelled(path, **options)
    return str(caught.value).removeprefix(str(path)).removeprefix(": ")


# ---- what needs no package


@pytest.mark.parametrize(("name", "package"), [("a.xlsx", "openpyxl"), ("a.xlsm", "openpyxl"), ("a.parquet", "pyarrow")])
def test_a_missing_package_is_named(name, package, tmp_path, monkeypatch):
    for module in (package, f"{package}.parquet"):
        monkeypatch.setitem(sys.modules, module, None)  # simulate a missing package
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    kind = file_format(tmp_path / name)
    assert error_message(tmp_path / name) == f".{kind} files need the package {package}; run pip install {package}"
    for table, more in ((PairDataConfig, {}), (QADataConfig, {})):
        with pytest.raises(DataError, match=rf"run pip install {package}$"):
            list(table(train=name, **more).sources(tmp_path)["train"].records())


def test_packages_are_imported_lazily(tmp_path):
    write_tsv(tmp_path / "a.tsv", single_label_rows(20))
    code = (
        "import sys; from pathlib import Path; from weft.tasks.classification.data import LabeledDataConfig\n"
        f"print(len(list(LabeledDataConfig(train='a.tsv').sources(Path({str(tmp_path)!r}))['train'].records())))\n"
        "print([name for name in ('openpyxl', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "20\n[]\n"


def test_missing_and_compressed_workbooks_are_rejected(tmp_path):
    assert error_message(tmp_path / "a.xlsx") == "file not found"
    (tmp_path / "b.parquet").write_bytes(b"")
    (tmp_path / "b.xlsx.gz").write_bytes(b"")
    assert error_message(tmp_path / "b.xlsx.gz") == "compressed .xlsx files are not supported; decompress the .gz first"


def test_a_file_with_the_wrong_extension_is_reported(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"PAR1\x15\x80")
    assert error_message(tmp_path / "a.csv") == "is a Parquet file; name it .parquet"
    (tmp_path / "b.csv").write_bytes(b"PK\x03\x04[Content_Types].xml xl/workbook.xml")
    assert error_message(tmp_path / "b.csv") == "is an Excel workbook; name it .xlsx"


def test_taggers_reject_workbooks(tmp_path):
    for name in ("a.xlsx", "a.parquet"):
        with pytest.raises(
            DataError, match="is a table; a tagger reads CoNLL-U, words and tags in columns, or one sentence per line"
        ):
            list(TaggedDataConfig(train=name).sources(tmp_path)["train"].records())


def test_cells_are_read_as_displayed():
    cells = {
        "": None, "7": 7, "-7": -7.0, "0.1": 0.1, "0.3": 0.1 + 0.2, "1e+20": 1e20, "TRUE": True, "FALSE": False,
        "2026-11-16": datetime(2026, 11, 16), "2026-11-16 08:30:00": datetime(2026, 11, 16, 8, 30, 0, 400),
        "2026-11-17": date(2026, 11, 17), "08:30:00": time(8, 30), " a\nb": " a\nb",
    }  # fmt: skip
    assert [cell_text(value) for value in cells.values()] == list(cells)
    assert cell_text(float("nan")) == ""


@pytest.mark.parametrize("sheet", ["", 0, -1])
def test_invalid_sheets_are_rejected(sheet):
    with pytest.raises(ConfigError) as caught:
        parse_config(LabeledDataConfig, {"train": "a.xlsx", "sheet": sheet}, prefix="data")
    assert str(caught.value) == f"data.sheet: expected a name or a 1-based index, got {sheet!r}"


# ---- workbooks


def test_a_workbook_equals_csv(tmp_path):
    rows = [["id", "label", "text"], [1, "pos", 'a, "b"\nc'], [2.0, 5, "x"], [None, "neg", date(2026, 11, 16)]]
    path = write_xlsx(tmp_path / "a.xlsx", rows)
    assert labelled(path) == [("pos", 'a, "b"\nc'), ("5", "x"), ("neg", "2026-11-16")]
    assert labelled(path, text_column="id") == [("pos", "1"), ("5", "2")]  # the third has no text and is skipped
    source = LabeledDataConfig(train="a.xlsx").sources(tmp_path)["train"]
    assert source.summary.describe().split("\n")[:2] == [
        f"{path}: 3 examples, 19 characters, 3 labels, Excel",
        "  note: a.xlsx: sheet 'Sheet'",
    ]
    assert [record.line for record in source.records()] == [2, 3, 4] and source.location(1) == f"{path}:3"
    plain = write_xlsx(tmp_path / "b.xlsm", [["pos", "one"], ["neg", "two"]])
    assert labelled(plain) == [("pos", "one"), ("neg", "two")]
    notes = LabeledDataConfig(train="b.xlsm").sources(tmp_path)["train"].summary.files.notes
    assert notes[1] == "b.xlsm: no header; label is column 1, text is column 2 of 2"


def test_seq2seq_and_qa_workbooks(tmp_path):
    path = write_xlsx(tmp_path / "a.xlsx", [["source", "target", "n"], [17, "seventeen", 1], ["x", None, 2]])
    assert list(pairs(PairDataConfig(train="a.xlsx").sources(tmp_path)["train"])) == [("17", "seventeen"), ("x", "")]
    write_xlsx(tmp_path / "b.xlsx", [["question", "passage", "answer", "answer_start"], ["Who?", "Ada and Ada", "Ada", 8.0]])
    (actual,) = QADataConfig(train="b.xlsx").sources(tmp_path)["train"].records()
    assert actual.answers == (("Ada", 8),)
    with pytest.raises(ConfigError) as caught:
        parse_config(PairDataConfig, {"train": [str(path), "b.csv"]}, prefix="data")
    assert str(caught.value) == "data.train: different file types: csv, xlsx; use files of one type"


def test_sheets_by_name_and_by_index(tmp_path):
    sheets: dict[str, Rows] = {
        "First": [["label", "text"], ["a", "x"]],
        "Second": [["label", "text"], ["b", "y"]],
        "None": [],
    }
    path = write_xlsx(tmp_path / "a.xlsx", sheets)
    assert labelled(path) == labelled(path, sheet=1) == labelled(path, sheet="First") == [("a", "x")]
    assert labelled(path, sheet=2) == labelled(path, sheet="Second") == [("b", "y")]
    notes = LabeledDataConfig(train="a.xlsx", sheet=2).sources(tmp_path)["train"].summary.files.notes
    assert notes == ["a.xlsx: sheet 'Second', one of 3"]
    assert error_message(path, sheet="Secnd") == ("no sheet 'Secnd'; set data.sheet to one of: First, Second, None")
    assert error_message(path, sheet=4) == "no sheet 4; set data.sheet to one of: First, Second, None"
    assert error_message(path, sheet=3) == "sheet 'None' is empty; set data.sheet to another sheet"


def test_a_workbook_of_charts_has_no_data():
    with pytest.raises(DataError) as caught:
        choose_sheet(Path("a.xlsx"), [], None)
    assert str(caught.value) == "a.xlsx: no sheet with cells"


def test_empty_rows_and_cells(tmp_path):
    rows: Rows = [["label", "text", None, None], ["a", "x", "", None], [None, None], ["b", "y"], [None, " "[:0]], []]
    path = write_xlsx(tmp_path / "a.xlsx", rows)
    assert labelled(path) == [("a", "x"), ("b", "y")]
    summary = LabeledDataConfig(train="a.xlsx").sources(tmp_path)["train"].summary
    assert summary.files.blank == 1  # trailing blank rows are not counted
    assert error_message(write_xlsx(tmp_path / "b.xlsx", [["label", "text"], ["a", "x", "z"]])) == (
        ":2: expected 2 columns, got 3: 'a', 'x', 'z'"
    )
    assert error_message(write_xlsx(tmp_path / "c.xlsx", [[None, ""], ["label", "text"], ["a", "x"]])) == (
        ":1: first line of the table is blank; remove it"
    )
    assert error_message(write_xlsx(tmp_path / "d.xlsx", [["label", "words"], ["a", "x"]])) == (
        ":1: no column 'text'; set data.text_column to one of: label, words"
    )
    assert error_message(write_xlsx(tmp_path / "e.xlsx", [["label", "text"], [None, "x"]])) == (
        ":2: label is missing; add one or set data.multilabel = true"
    )


def test_invalid_workbooks_and_decompression_bombs_are_rejected(tmp_path):
    pytest.importorskip("openpyxl", reason="openpyxl is not installed: pip install openpyxl")
    path = tmp_path / "a.xlsx"
    path.write_text("label,text\n")
    assert error_message(path) == "corrupted or not an Excel workbook: file is not a zip file"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "x")
    assert error_message(path).startswith("corrupted or not an Excel workbook: ")
    path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 and more")
    assert error_message(path) == "old Excel format or password-protected; save it as .xlsx without a password"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/sharedStrings.xml", bytes(80 << 20))
    assert error_message(path) == "decompresses to more than 200 times its size; save it as CSV UTF-8 if that is intended"


# ---- Parquet


def test_parquet_equals_jsonl(tmp_path):
    columns = {
        "stars": [5.0, 1.0, None], "about": [{"text": "x", "n": 1}, {"text": "y\nz", "n": 2}, {"text": None, "n": 3}],
        "tags": [["a", "b"], [], ["c"]], "yes": [True, False, True], "n": [17, 18, 19],
    }  # fmt: skip
    path = write_parquet(tmp_path / "a.parquet", columns)
    assert labelled(path, label_column="yes", text_column="about.text") == [("true", "x"), ("false", "y\nz")]
    assert labelled(path, label_column="tags", text_column="n", multilabel=True) == [("a+b", "17"), ("", "18"), ("c", "19")]
    assert labelled(path, label_column="stars", text_column="n", multilabel=True) == [("5", "17"), ("1", "18"), ("", "19")]
    assert error_message(path) == "no column 'label'; available: stars, about, tags, yes, n"
    assert error_message(path, label_column="stars", text_column="n") == (
        ":3: label is missing; add one or set data.multilabel = true"
    )
    assert error_message(path, label_column="n", text_column="about").startswith(
        ":1: expected a string as 'about', got an object; use one of its keys:"
    )
    assert (
        error_message(path, label_column=1, text_column=2)
        == "has column names, but data.label_column is 1; set data.label_column to a name"
    )
    source = LabeledDataConfig(train="a.parquet", label_column="yes", text_column="n").sources(tmp_path)["train"]
    assert source.summary.describe().startswith(f"{path}: 3 examples, 6 characters, 2 labels, Parquet\n")
    assert source.location(2) == f"{path}:3"


def test_seq2seq_and_qa_in_hugging_face_layout(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"translation": [{"en": "yes", "de": "ja"}, {"en": "no", "de": "nein"}]})
    table = PairDataConfig(train="a.parquet", source_column="translation.en", target_column="translation.de")
    assert list(pairs(table.sources(tmp_path)["train"])) == [("yes", "ja"), ("no", "nein")]
    qa = {
        "context": ["Ada and Ada"] * 2,
        "question": ["Who?", "Why?"],
        "answers": [{"text": ["Ada", "Ada and"], "answer_start": [8, 0]}, {"text": [], "answer_start": []}],
    }
    write_parquet(tmp_path / "b.parquet", qa)
    names = {"passage_column": "context", "answer_column": "answers.text", "answer_start_column": "answers.answer_start"}
    first, second = QADataConfig(train="b.parquet", **names).sources(tmp_path)["train"].records()
    assert (first.answers, second.answers) == ((("Ada", 8), ("Ada and", 0)), ())
    plain = {"question": ["Who?"], "passage": ["Ada and Ada"], "answer": ["Ada"], "answer_start": [8]}
    write_parquet(tmp_path / "c.parquet", plain)
    (actual,) = QADataConfig(train="c.parquet").sources(tmp_path)["train"].records()
    assert actual.answers == (("Ada", 8),)


def test_invalid_text_is_rejected_with_its_row(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"label": ["a"] * 1500, "text": ["x"] * 1400 + ["\0"] * 100})
    assert error_message(path) == ":1401: 'text': NUL at character 0; is this binary data?"
    path = write_parquet(tmp_path / "b.parquet", {"label": ["a", "b"], "text": [b"caf\xc3\xa9", b"\xff\x00"]})
    assert error_message(path) == ":2: expected a string as 'text', got binary data; put it in quotes"
    path.write_bytes(b"PAR1 and more")
    assert error_message(path).startswith("corrupted or not a Parquet file: ")
    assert error_message(write_parquet(path, {"label": [], "text": []})) == "no rows"


@pytest.mark.slow
def test_large_files_are_streamed(tmp_path):
    """Only a few rows of a 40 MB file are in memory at once."""
    import tracemalloc

    count = 20_000
    write_parquet(tmp_path / "a.parquet", {"label": ["a"] * count, "text": ["x" * 2000] * count}, row_group_size=1000)
    source = LabeledDataConfig(train="a.parquet").sources(tmp_path)["train"]
    tracemalloc.start()
    try:
        assert sum(1 for _ in source.records()) == count
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


# ---- runs


def test_train_check_evaluate_and_predict_with_workbooks(tmp_path, capsys):
    rows: Rows = [["label", "text"], *map(list, single_label_rows(60))]
    path = write_xlsx(tmp_path / "a.xlsx", {"Notes": [["x"]], "Data": rows})
    run = str(tmp_path / "run")
    train_here(classification_run_file(path, "naive-bayes", "data.sheet=Data"), tmp_path / "run", SilentCallback())
    plain = write_tsv(tmp_path / "a.tsv", single_label_rows(60))
    train_here(classification_run_file(plain, "naive-bayes"), tmp_path / "same", SilentCallback())
    assert main(["evaluate", run, "--json"]) == 0
    scores = [json.loads(capsys.readouterr().out)["scores"]]
    assert main(["evaluate", str(tmp_path / "same"), "--json"]) == 0
    assert scores == [json.loads(capsys.readouterr().out)["scores"]]
    new: Rows = [["id", "text", "when"], [7, 'the "cat"', date(2026, 11, 16)], [8, None, None], [9, "a saw", None]]
    write_xlsx(tmp_path / "new.xlsx", {"Data": new})
    assert main(["predict", run, "--input", str(tmp_path / "new.xlsx")]) == 0
    captured = capsys.readouterr()
    actual = list(csv.reader(io.StringIO(captured.out), strict=True))
    assert actual[0] == ["id", "text", "when", "prediction", "probability"]
    assert [row[:4] for row in actual[1:]] == [
        ["7", 'the "cat"', "2026-11-16", "animal"],
        ["8", "", "", ""],
        ["9", "a saw", "", "tool"],
    ]
    assert captured.err == "weft: note: new.xlsx: sheet 'Data', written as CSV\n"
    run_file = tmp_path / "run.toml"
    run_file.write_text(f'task = "classification"\n[data]\ntrain = "{path}"\nsheet = "Data"\n[model]\narch = "naive-bayes"\n')
    assert main(["check", str(run_file)]) in (0, 3)
    assert "a.xlsx:" in capsys.readouterr().out
    write_xlsx(tmp_path / "bad.xlsx", {"Data": [["text"], ["the cat"], ["a", "b"]]})
    assert main(["predict", run, "--input", str(tmp_path / "bad.xlsx")]) == 3
    assert f"weft: warning: {tmp_path / 'bad.xlsx'}:3: expected 1 column, got 2: 'a', 'b'; skipped\n" in capsys.readouterr().err


def test_parquet_input_gives_jsonl_output(tmp_path, capsys):
    table = write_tsv(tmp_path / "a.tsv", single_label_rows(60))
    run = str(tmp_path / "run")
    train_here(classification_run_file(table, "naive-bayes"), tmp_path / "run", SilentCallback())
    columns = {"n": [1, 2, 3], "text": ["the cat", None, "a\0b"], "x": [0.5, float("nan"), 2.0], "raw": [b"\xff", None, b"a"]}
    path = write_parquet(tmp_path / "a.parquet", columns)
    assert main(["predict", run, "--input", str(path)]) == 3
    captured = capsys.readouterr()
    actual = [json.loads(line) for line in captured.out.split("\n")[:-1]]
    assert [{name: item[name] for name in ("n", "text", "x", "raw")} for item in actual] == [
        {"n": 1, "text": "the cat", "x": 0.5, "raw": None},
        {"n": 2, "text": None, "x": None, "raw": None},
        {"n": 3, "text": "a\0b", "x": 2.0, "raw": None},
    ]
    assert [item["prediction"] for item in actual] == ["animal", None, None]
    assert captured.err == (
        "weft: note: a.parquet: Parquet, 4 columns, written as JSONL\n"
        f"weft: warning: {path}:3: 'text': NUL at character 1; is this binary data?; skipped\n"
    )
    train_here(
        classification_run_file(table, "naive-bayes", "data.text_column=2", "data.label_column=1"),
        tmp_path / "places",
        SilentCallback(),
    )
    assert expect_error(capsys, "predict", str(tmp_path / "places"), "--input", str(path)) == (
        3,
        f"{path}: has column names, but the run was trained with data.text_column = 2; use a .csv or .tsv",
    )
    other = write_parquet(tmp_path / "b.parquet", {"review": ["x"]})
    assert expect_error(capsys, "predict", run, "--input", str(other)) == (3, f"{other}: no column 'text'; available: review")


def test_predict_seq2seq_sources_of_a_workbook(tmp_path, capsys):
    rows: Rows = [["source", "target"], *([f"a{number}", f"b{number}"] for number in range(30))]
    path = write_xlsx(tmp_path / "a.xlsx", rows)
    train_here(seq2seq_run_file(path, "lstm", "train.max_steps=2"), tmp_path / "run", SilentCallback())
    assert main(["predict", str(tmp_path / "run"), "--input", str(path)]) == 0
    assert capsys.readouterr().out.startswith("source,target,prediction")
