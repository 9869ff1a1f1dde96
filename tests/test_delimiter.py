"""`data.delimiter`: the column separator of tables whose first line does not show it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import expect_error
from label_runs import classification_run_file, single_label_rows
from small_runs import SilentCallback, train_here

import weft
from weft.cli.main import main
from weft.config import parse_config
from weft.data.dataset import Dataset
from weft.errors import ConfigError, DataError
from weft.tasks.classification.data import LabeledDataConfig
from weft.tasks.qa.data import QADataConfig
from weft.tasks.seq2seq.data import PairDataConfig, pairs


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_classification_seq2seq_and_qa_tables_use_it(tmp_path):
    write(tmp_path / "a.csv", 'label|text\npos|"a, ""b""|c"\nneg|x;y\n')
    source = LabeledDataConfig(train="a.csv", delimiter="|").sources(tmp_path)["train"]
    assert [(item.labels, item.texts) for item in source.records()] == [(("pos",), ('a, "b"|c',)), (("neg",), ("x;y",))]
    assert source.summary.notes() == ["a.csv: columns are separated by pipes", "labels that occur once, 2 of 2: neg, pos"]
    write(tmp_path / "b.tsv", 'a,b^"c"\nd\te^f\n')  # .tsv has no quotes, whatever separates its columns
    assert list(pairs(PairDataConfig(train="b.tsv", delimiter="^").sources(tmp_path)["train"])) == [
        ("a,b", '"c"'),
        ("d\te", "f"),
    ]
    write(tmp_path / "c.csv", "question\tpassage\tanswer\nWho, is it?\tAda, here\tAda\n")
    (result,) = QADataConfig(train="c.csv", delimiter="tab").sources(tmp_path)["train"].records()
    assert (result.question, result.passage, result.answers[0].text) == ("Who, is it?", "Ada, here", "Ada")


def test_it_overrides_the_detected_delimiter(tmp_path):
    path = write(tmp_path / "a.csv", "label;text, if any\npos;x, y\n")

    def read(**options: str) -> list[tuple[str, ...]]:
        table = parse_config(LabeledDataConfig, {"train": "a.csv", "text_column": "text, if any", **options}, prefix="data")
        return [item.texts for item in table.sources(tmp_path)["train"].records()]

    assert read(delimiter=";") == [("x, y",)]
    with pytest.raises(DataError) as caught:
        read()
    assert str(caught.value).startswith(f"{path}:1: no column 'label'; set data.label_column to one of: ")


def test_a_table_with_one_apparent_column_suggests_the_option(tmp_path):
    path = write(tmp_path / "a.csv", "label|text\npos|x\n")

    def refusal(**options: str) -> str:
        with pytest.raises(DataError) as caught:
            list(LabeledDataConfig(train="a.csv", **options).sources(tmp_path)["train"].records())
        return str(caught.value).removeprefix(f"{path}:1")

    assert refusal() == (
        ": expected at least 2 comma-separated columns, got 1: 'label|text'; set data.delimiter if the delimiter is different"
    )
    named = ": no column 'review' in the header 'label|text'"
    assert refusal(text_column="review", label_column="gold").startswith(": no column 'gold' in the header ")
    assert (
        refusal(text_column="review", label_column="label|text")
        == f"{named} (comma-separated); set data.delimiter if the delimiter is different"
    )
    assert refusal(delimiter="^") == (
        ": expected at least 2 columns separated by '^', got 1: 'label|text'; check data.delimiter"
    )


@pytest.mark.parametrize("given", ["", "ab", '"', "\n", "\r", "\0"])
def test_invalid_delimiters(given):
    with pytest.raises(ConfigError) as caught:
        parse_config(LabeledDataConfig, {"train": "a.csv", "delimiter": given}, prefix="data")
    assert str(caught.value) == (f'data.delimiter: expected one character, no quote or line break, or "tab", got {given!r}')


def test_text_files_of_any_name_are_tables_if_it_is_set(tmp_path):
    write(tmp_path / "a.txt", 'good "film\tpos\nbad film\tneg\n')  # no quotes between tabs, as in .tsv
    source = LabeledDataConfig(train="a.txt", delimiter="tab", text_column=1, label_column=2).sources(tmp_path)["train"]
    assert [(item.labels, item.texts) for item in source.records()] == [(("pos",), ('good "film',)), (("neg",), ("bad film",))]
    write(tmp_path / "b.data", 'source;target\n"a;b";c\n')
    assert list(pairs(PairDataConfig(train="b.data", delimiter=";").sources(tmp_path)["train"])) == [("a;b", "c")]
    write(tmp_path / "c.txt", "question|passage|answer\nWho?|Ada, here|Ada\n")
    (result,) = QADataConfig(train="c.txt", delimiter="|").sources(tmp_path)["train"].records()
    assert (result.question, result.passage) == ("Who?", "Ada, here")


def test_it_is_refused_for_a_directory(tmp_path):
    (tmp_path / "a").mkdir()
    path = write(tmp_path / "a" / "pos.txt", "x\n")
    with pytest.raises(DataError) as caught:
        list(LabeledDataConfig(train="a", delimiter=";").sources(tmp_path)["train"].records())
    tables = ".tsv, .csv, .xlsx, .jsonl, .json or .parquet"
    assert (
        str(caught.value)
        == f"{path}: is not a table ({tables}), but data.delimiter = ';'; remove data.delimiter or use a table"
    )


def test_it_is_part_of_the_token_cache_only_if_set(tmp_path):
    write(tmp_path / "a.csv", "label,text\npos,x\n")
    for table in (LabeledDataConfig, QADataConfig, PairDataConfig):
        name = {"LabeledDataConfig": "0", "QADataConfig": "questions", "PairDataConfig": "source"}[table.__name__]
        result: Dataset = table(train="a.csv").sources(tmp_path)["train"]
        assert not {"delimiter", "sheet"} & result.column(name).provenance().keys()
        result = table(train="a.csv", delimiter="|").sources(tmp_path)["train"]
        assert result.column(name).provenance()["delimiter"] == "|"


def test_all_files_of_a_run_use_it(tmp_path, capsys):
    """Training, check, evaluate and predict."""
    table = write(tmp_path / "a.csv", "label|text\n" + "".join(f"{label}|{text}\n" for label, text in single_label_rows(60)))
    values = classification_run_file(table, "naive-bayes", "data.delimiter=|")
    train_here(values, tmp_path / "run", SilentCallback())
    run = str(tmp_path / "run")
    assert 'delimiter = "|"' in (tmp_path / "run" / "resolved.toml").read_text()
    assert main(["evaluate", run, "--data", str(table), "--json"]) == 0
    scores = {score["name"]: score["value"] for score in json.loads(capsys.readouterr().out)["scores"]}
    assert scores["accuracy"] > 0.9
    other = write(tmp_path / "b.csv", "n|text\n1|the cat, and so on\n")
    assert main(["predict", run, "--input", str(other)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("n|text|prediction|probability\n1|the cat, and so on|animal|0.")
    assert captured.err == "weft: note: b.csv: columns are separated by pipes\n"
    write(tmp_path / "run.toml", f'task = "classification"\n[data]\ntrain = "{table}"\n[model]\narch = "naive-bayes"\n')
    assert main(["check", str(tmp_path / "run.toml"), "--set", "data.delimiter=|"]) == 0
    capsys.readouterr()
    assert main(["check", str(tmp_path / "run.toml")]) == 3
    assert "set data.delimiter if the delimiter is different" in " ".join(capsys.readouterr().out.split())
    commas = write(tmp_path / "c.csv", "n,text\n1,the cat\n")
    assert expect_error(capsys, "predict", run, "--input", str(commas)) == (
        3,
        f"{commas}:1: no column 'text' in the header 'n,text' (pipe-separated); check data.delimiter",
    )


def test_a_seq2seq_run_evaluates_other_tables_with_its_delimiter(tmp_path):
    path = write(tmp_path / "pairs.csv", "source|target\n" + "a, b|b, a\n" * 20)
    config = {
        "task": "seq2seq",
        "data": {"train": str(path), "valid": 0.1, "delimiter": "|"},
        "tokenizer": {"type": "char"},
        "model": {"arch": "lstm", "hidden_size": 8},
        "train": {"max_steps": 1, "num_validations": 1, "device": "cpu"},
    }
    run = weft.train(config, output_dir=tmp_path / "run")
    assert run.evaluate(path).units == 20
    assert run.evaluate(write(tmp_path / "pairs.txt", "a|b\n" * 5)).units == 5
