"""Data sets of any task: splits, origins and columns, for a toy task that predicts a number from a text."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from small_runs import SilentCallback

from weft.data.config import DataFilesConfig, datasets
from weft.data.dataset import Dataset
from weft.data.formats import TableFormat, TableRecord, number
from weft.data.input_records import InputFile
from weft.errors import DataError
from weft.runs.config import RunConfig
from weft.runs.run_dir import RunDir
from weft.tasks import registry
from weft.tasks.classification.task import CLASSIFICATION
from weft.tasks.prepare import prepare
from weft.tasks.table_data import table_data
from weft.text.reading import read_lines

ROWS = [(f"text {at} of\tten"[: 6 + at % 3].replace("\t", " "), at / 2) for at in range(10)]


# ---- a toy task: a number for a text


class NumberTable(DataFilesConfig):
    text: str = "text"
    number: str = "number"

    def resolved(self) -> Self:
        return self

    def sources(self, base: Path) -> dict[str, Dataset[TableRecord]]:
        form = TableFormat((self.text,), (self.number,), self.encoding)
        return datasets(base, form, self)


NUMBERS = table_data(NumberTable)


@pytest.fixture
def toy(monkeypatch) -> str:
    """The toy task, whose models are another's: only its data is looked at."""
    from dataclasses import replace

    task: Any = replace(CLASSIFICATION, name="numbers", data=NUMBERS)
    monkeypatch.setattr(registry, "TASKS", {**registry.TASKS, "numbers": "toy"})
    monkeypatch.setattr("weft.runs.config.find_task", lambda name: task)
    return "numbers"


def settings_of(path: Path, task: str, **options: Any) -> RunConfig:
    data = NumberTable(train=str(path), **options)
    return RunConfig(task, 0, data, NUMBERS.tokenizer_config(), "lstm", None, None)  # type: ignore[arg-type]


def write(path: Path, rows: list[tuple[str, Any]] = ROWS) -> Path:
    if path.suffix == ".jsonl":
        lines = [json.dumps({"number": value, "text": text}) for text, value in rows]
    elif path.suffix == ".json":
        lines = [json.dumps([{"text": text, "number": value} for text, value in rows])]
    else:
        mark = "\t" if path.suffix == ".tsv" else ","
        lines = [mark.join(["id", "number", "text"]), *(mark.join(["x", str(value), text]) for text, value in rows)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_the_toy_task_has_a_vocabulary_and_corpora(toy, tmp_path):
    settings = settings_of(write(tmp_path / "a.tsv"), toy, valid=0.2)
    folder = RunDir(tmp_path)
    vocabulary, corpora = prepare(settings.spec, settings, folder, SilentCallback())
    assert sorted(corpora) == ["train.text", "valid.text"]
    for split, rows in (("train", ROWS[:8]), ("valid", ROWS[8:])):
        corpus = corpora[f"{split}.text"]
        expected = [[*vocabulary.encode(text).tolist(), vocabulary.eos_id] for text, _ in rows]
        starts = corpus.line_starts()
        assert [corpus.tokens[low:high].tolist() for low, high in pairwise(starts)] == expected
        assert [number(record) for record in settings.datasets[split].records()] == [value for _, value in rows]
    assert NUMBERS.load(folder).hash == vocabulary.hash


def test_the_toy_task_is_checked_and_its_input_files_are_opened(toy, tmp_path):
    path = write(tmp_path / "a.tsv", [*ROWS, ROWS[0]])
    settings = settings_of(path, toy)
    plan = NUMBERS.check(settings)
    from weft.data.check import check_data

    report = check_data(settings.datasets, plan.tokenizers, plan.options)
    assert report.sizes["train"]["rows"] == 11 and report.sizes["train"]["text"]["tokens"] > 11
    assert "duplicate" in {finding.name for finding in report.findings}
    other = tmp_path / "b.csv"
    other.write_text("text,number,more\nabc,1,x\n")
    opened = NUMBERS.open_input(settings.data, InputFile(other, lambda: read_lines(other)))
    assert opened is not None and [entry.texts for entry in opened.entries] == [("abc",)]
    text = tmp_path / "c.txt"
    text.write_text("abc\n")
    assert NUMBERS.open_input(settings.data, InputFile(text, lambda: read_lines(text))) is None
    assert list(islice(NUMBERS.input_output_pairs(settings.datasets["train"]), 2)) == [(ROWS[0][0], None), (ROWS[1][0], None)]


# ---- tables


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "json"])
def test_tables_of_all_formats_have_the_same_records(kind, tmp_path):
    path = write(tmp_path / f"a.{kind}")
    data = Dataset((path,), TableFormat(("text",), ("number",)))
    assert [(record.texts[0], number(record)) for record in data.records()] == ROWS
    assert data.summary.count == 10 and data.summary.characters == sum(len(text) for text, _ in ROWS)
    first, *rest = data.summary.describe().split("\n")
    assert first == f"{path}: 10 examples, {data.summary.characters} characters, utf-8, LF line endings"
    assert rest[-3:] == [f"  e.g.: {text} -> {value}" for text, value in ROWS[:3]]


def test_columns_have_their_own_names_origins_and_sizes(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\nxy\té\nz\t\n")
    data = Dataset((path,), TableFormat(("a", "b")))
    single, two = data.column("a"), data.column("b")
    assert (single.name, two.name) == (f"{path} (a)", f"{path} (b)")
    assert (list(single.texts()), list(two.texts())) == (["xy", "z"], ["é", ""])
    assert (single.size(), two.size()) == (3, 2)
    assert (
        single.provenance() != two.provenance()
        and single.provenance() == Dataset((path,), TableFormat(("a",))).column("a").provenance()
    )
    assert data.location(1) == f"{path}:3"
    assert "  note: empty b: 1" in data.summary.describe()
    assert [row.texts for row in data.rows()] == [("xy", "é"), ("z", "")]


def test_splits_are_taken_from_the_end(tmp_path):
    path = write(tmp_path / "a.csv")
    splits = DataFilesConfig(train=path.name, valid=0.2, test=0.3)
    result = datasets(tmp_path, TableFormat(("text",), ("number",)), splits)
    values = {name: [number(record) for record in part.records()] for name, part in result.items()}
    expected = np.arange(10) / 2
    assert values == {"train": expected[:5].tolist(), "valid": expected[5:7].tolist(), "test": expected[7:].tolist()}


def test_invalid_configs(tmp_path):
    def refusal(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(DataError) as caught:
            [number(record) for record in Dataset((path,), TableFormat(("text",), ("number",))).records()]
        return str(caught.value).removeprefix(f"{path}").removeprefix(": ")

    assert (
        refusal("a.txt", "x\n")
        == "not a table (.tsv, .csv, .xlsx, .jsonl, .json or .parquet); use a table with the columns text, number"
    )
    assert refusal("a.tsv", "text\tn\nx\t1\n") == ":1: no column 'number'; available: text, n"
    assert refusal("b.tsv", "text\tnumber\n") == "no examples below the header"
    assert refusal("c.tsv", "text\tnumber\nx\t1\ny\tmany\n") == ":3: expected a number, got 'many'"
    assert refusal("d.jsonl", '{"text": "x", "number": "nan"}\n') == ":1: expected a number, got 'nan'"
    assert refusal("e.jsonl", '{"text": "x", "number": true}\n') == (
        ":1: expected a string as 'number', got a boolean; put it in quotes"
    )
