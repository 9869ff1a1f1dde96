"""Untrusted logs and notes of a run: a one-line error and an exit code, no traceback, bounded memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import expect_error
from small_runs import make_text, run_file, train_here

from weft import files
from weft.cli.main import main
from weft.errors import ModelError
from weft.log import CHECKSUM, read_log, with_checksum
from weft.text.labels import LabelVocabulary


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any) -> Path:
    directory: Path = tmp_path_factory.mktemp("run")
    return train_here(run_file(make_text(directory / "text.txt"), train__max_steps=4), directory / "run").path


BAD = [
    '{"step": 1, "valid_loss": "3.1"}',
    '{"step": 1, "tokens": "many", "train_loss": 2.0}',
    '{"step": 1, "valid_loss": 1' + "0" * 400 + "}",
    '{"step": 1, "valid_loss": NaN}',
    '{"step": -1}',
    '{"step": true}',
    '{"step": 1, "more": {"a": 1}}',
    '{"step": 1, "more": ' + "[" * 100_000 + "]" * 100_000 + "}",
]


def signed(line: str) -> str:
    """The line with a valid checksum, which a forger can compute, too."""
    try:
        return json.dumps(with_checksum({name: value for name, value in json.loads(line).items() if name != CHECKSUM}))
    except (RecursionError, ValueError):
        return line


@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_an_invalid_line_is_rejected_by_its_number(line, run, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    metrics = run / "metrics.jsonl"
    full = metrics.read_text()
    metrics.write_text(f"{full}{signed(line)}\n")
    number = full.count("\n") + 1
    why = (
        "not a log record of weft; the file is corrupted",
        "checksum mismatch; the file is corrupted; run weft train again to restore it",
    )
    try:
        for words in (["info", str(run)], ["compare", str(run), "--report", "report.html", "-q"]):
            assert expect_error(capsys, *words) in [(4, f"{metrics}:{number}: {reason}") for reason in why]
        with pytest.raises(ModelError):
            read_log(metrics)
    finally:
        metrics.write_text(full)


def test_unknown_scores_are_ignored(run, capsys, monkeypatch, tmp_path):
    """Scores of another version, or forged with valid checksums."""
    monkeypatch.chdir(tmp_path)
    metrics = run / "metrics.jsonl"
    full = metrics.read_text()
    lines = full.replace("valid_loss", "valid_nats_per_tokfn").split("\n")[:-1]
    metrics.write_text("".join(f"{signed(line)}\n" for line in lines))
    try:
        assert main(["info", str(run), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["progress"]["best"] is None
        assert main(["compare", str(run), "--report", "report.html", "-q"]) == 0
    finally:
        metrics.write_text(full)


def test_a_timing_without_its_seconds(run, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    lines = ['{"step": 1, "seconds": null}', '{"step": 2, "seconds": 1e300, "peak_memory": 1}']
    (run / "timings.jsonl").write_text("".join(f"{signed(line)}\n" for line in lines))
    assert main(["compare", str(run), "--report", "report.html", "-q"]) == 0


def sparse(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def test_large_files_need_bounded_memory(tmp_path, monkeypatch):
    """A sparse file of gigabytes that needs no disk space."""
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("it was read"))
    for path, load, limit in (
        (sparse(tmp_path / "labels.json", 3 << 30), LabelVocabulary.load, 64),
        (sparse(tmp_path / "x.json", 3 << 30), files.read_json, 256),
    ):
        with pytest.raises(ModelError) as caught:
            load(path)
        assert str(caught.value) == f"{path}: file is larger than {limit} MB"
    with pytest.raises(ModelError) as caught:
        read_log(sparse(tmp_path / "metrics.jsonl", 3 << 30))
    assert str(caught.value) == f"{tmp_path / 'metrics.jsonl'}: log is larger than 256 MB"


def test_a_torn_line_is_skipped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(with_checksum({"step": 1})) + "\n" + "[" * 1000)
    assert read_log(path) == [{"step": 1}]
    assert read_log(tmp_path / "none.jsonl") == []


def test_environment_size_is_limited(run, capsys):
    path = run / "environment.json"
    full = path.read_bytes()
    sparse(path, (1 << 20) + 1)
    try:
        assert expect_error(capsys, "info", str(run)) == (4, f"{path}: file is larger than 1 MB")
    finally:
        path.write_bytes(full)
