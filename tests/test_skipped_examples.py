"""Examples without a text, from a run file to the scores: skipped with a warning, or rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.cli.main import main

ROWS = [("good", "a fine film"), ("bad", "dull and long"), ("good", ""), ("bad", "long"), ("good", "fine"), ("bad", " ")]
NOTE = "examples without a text that were skipped: 2, the first at"


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    table = "label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in ROWS)
    (tmp_path / "train.tsv").write_text(table)
    path = tmp_path / "run.toml"
    path.write_text(
        'task = "classification"\n[data]\ntrain = "train.tsv"\nvalid = "train.tsv"\n[model]\narch = "naive-bayes"\n'
    )
    return path


def test_training_and_evaluation_skip_them_with_a_note(run_file, tmp_path, capsys):
    out, location = tmp_path / "run", f"{tmp_path / 'train.tsv'}:4"
    assert main(["train", str(run_file), "--output-dir", str(out)]) == 0
    assert f"note: {NOTE} {location}" in capsys.readouterr().err.replace("\n", "")
    assert json.loads((out / "metrics.jsonl").read_text().splitlines()[0])["examples"] == 4
    assert main(["evaluate", str(out), "--json"]) == 0
    assert f"weft: note: {NOTE} {location}\n" in capsys.readouterr().err
    assert main(["evaluate", str(out), "--quiet"]) == 0
    assert NOTE not in capsys.readouterr().err


def test_they_are_rejected_on_request(run_file, tmp_path, capsys):
    assert main(["train", str(run_file), "--output-dir", str(tmp_path / "run"), "--set", "data.skip_empty=false"]) == 3
    refused = f"{tmp_path / 'train.tsv'}:4: has the label good but no text; add a text or remove it"
    assert refused in capsys.readouterr().err
    assert main(["check", str(run_file), "--json", "--set", "data.skip_empty=false"]) == 3
    findings = json.loads(capsys.readouterr().out)["findings"]
    errors = [f"{item['message']}; {item['fix']}" for item in findings if item["severity"] == "error"]
    assert errors == [refused]


def test_check_counts_them_once_per_file(run_file, tmp_path, capsys):
    assert main(["check", str(run_file), "--json"]) == 0
    actual = [item for item in json.loads(capsys.readouterr().out)["findings"] if item["name"] == "skipped"]
    message = f"2 of 6 texts (33.3%) are empty and skipped, the first at {tmp_path / 'train.tsv'}:4"
    cure = "remove them, or set data.skip_empty = false to make them an error"
    assert [(item["split"], item["count"], item["message"], item["fix"]) for item in actual] == [("train", 2, message, cure)]
