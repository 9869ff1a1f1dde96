"""Adding a task takes one file, tests/regress/task.py, and one line in the registry. Every command works with it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import expect_error, set_stdin
from compare_helpers import compare
from regress.task import TASK, Estimate
from small_runs import SilentCallback, run_hashes, train_here

import weft
from weft.cli.main import main
from weft.config import read_toml
from weft.errors import DataError, TrainingInterrupted
from weft.runs.load import load
from weft.tasks import registry, templates
from weft.tasks.registry import TaskEntry, find_task
from weft.tasks.spec import InvalidInput

VALUES = {"good": 2.0, "fine": 1.0, "poor": -1.0, "bad": -2.0, "film": 0.0, "the": 0.0, "was": 0.0}
RUN = """
task = "regress"
seed = 1
[data]
train = "films.tsv"
valid = 0.1
test = 0.2
max_length = 9
[model]
arch = "gru"
hidden_size = 16
[train]
max_steps = 60
batch_tokens = 256
num_validations = 3
lr = 0.02
device = "cpu"
"""


def films(count: int, *, seed: int = 0) -> list[tuple[str, float]]:
    rng, rows = random.Random(seed), []
    for _ in range(count):
        words = rng.choices(list(VALUES), k=rng.randint(2, 7))
        rows.append((" ".join(words), sum(VALUES[word] for word in words)))
    return rows


def write(path: Path, rows: list[tuple[str, float]]) -> Path:
    path.write_text("text\tnumber\n" + "".join(f"{text}\t{value:g}\n" for text, value in rows))
    return path


@pytest.fixture(autouse=True)
def regress(monkeypatch, tmp_path) -> Iterator[None]:
    """Register the task and write its training data."""
    monkeypatch.setitem(registry.TASKS, "regress", TaskEntry("regress", "gru", "predict a number from a text"))  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "films.tsv", films(160))
    (tmp_path / "run.toml").write_text(RUN)
    yield
    find_task.cache_clear()
    templates.find_template.cache_clear()


@pytest.fixture
def trained_dir(tmp_path) -> Path:
    return train_here(read_toml(tmp_path / "run.toml"), tmp_path / "run").path


def output_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main([*words]) == code, capsys.readouterr()
    return capsys.readouterr().out


def test_the_task_is_one_short_file():
    assert Path(__file__).parent.joinpath("regress", "task.py").read_text().count("\n") <= 240


def test_data_and_gradients_are_checked(capsys):
    report = json.loads(output_of(capsys, "check", "run.toml", "--json"))
    assert report["splits"]["train"]["rows"] == 112 and report["splits"]["test"]["rows"] == 32
    report = json.loads(output_of(capsys, "check", "run.toml", "--gradients", "--entries", "1", "--json"))
    correct = {row["tensor"]: row["correct"] for row in report["gradients"]["tensors"]}
    assert "head.weight" in correct and all(correct.values())
    assert 'task = "regress"' in (init := output_of(capsys, "init", "regress")) and 'arch = "gru"' in init
    rows = write(Path("films.tsv"), films(40)).read_text().split("\n")
    Path("films.tsv").write_text("\n".join([rows[0], rows[1], "bad\tlow", *rows[3:]]))
    with pytest.raises(DataError) as caught:
        train_here(read_toml(Path("run.toml")), Path("other"))
    assert "films.tsv:3: expected a number, got 'low'" in str(caught.value)


def test_training_learns_and_resuming_is_exact(tmp_path, trained_dir):
    values = read_toml(tmp_path / "run.toml")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "stopped", SilentCallback(stop_at=25))
    callback = SilentCallback()
    train_here(values, tmp_path / "stopped", callback)
    assert "resuming at step 25" in callback.notes and run_hashes(tmp_path / "stopped") == run_hashes(trained_dir)
    scores = {score.name: score.value for score in weft.load(trained_dir).evaluate()}
    assert list(scores) == ["rmse", "mae", "pearson"] and scores["pearson"] > 0.9


def test_scores_follow_from_predictions(trained_dir):
    run, rows = load(trained_dir, TASK), films(160)[128:]
    predicted = np.array([estimate.value for estimate in run.predict([text for text, _ in rows])])
    gold = np.array([value for _, value in rows])
    scored = run.evaluate()
    assert scored["rmse"].value == pytest.approx(math.sqrt(((predicted - gold) ** 2).mean()), rel=1e-5)
    assert scored["mae"].value == pytest.approx(np.abs(predicted - gold).mean(), rel=1e-5)
    assert scored["pearson"].value == pytest.approx(np.corrcoef(predicted, gold)[0, 1], rel=1e-5)
    assert scored["rmse"].low < scored["rmse"].value < scored["rmse"].high
    assert run.evaluate("films.tsv").units == 160
    observed = scored.details()
    assert observed.inputs[0] == rows[0][0] and observed.lengths[0] == len(rows[0][0].split())


def test_predictions_for_lines_tables_and_in_python(trained_dir, capsys, monkeypatch):
    set_stdin(monkeypatch, b"good film\n\nbad \xff\nthe bad film\n" + b"film " * 20 + b"\n")
    assert main(["predict", str(trained_dir)]) == 3
    printed = capsys.readouterr()
    lines = printed.out.split("\n")
    assert float(lines[0]) > 1 and lines[1] == lines[2] == "" and float(lines[3]) < -1 and len(lines) == 6
    assert "standard input:3: " in printed.err and "truncated 1 line that was too long" in printed.err
    set_stdin(monkeypatch, b"good film\n\n")
    rows = [json.loads(line) for line in output_of(capsys, "predict", str(trained_dir), "--json").split("\n") if line]
    assert rows == [{"text": "good film", "number": pytest.approx(float(lines[0]), abs=1e-3)}, {"text": "", "number": None}]
    Path("new.csv").write_text("id,text\n7,good film\n8,the bad film\n")
    table = output_of(capsys, "predict", str(trained_dir), "--input", "new.csv").split("\n")
    assert table[0] == "id,text,prediction" and table[1].startswith("7,good film,") and len(table) == 4
    run: Any = weft.load(trained_dir)
    results = run.try_predict(iter(["good film", "a\0b", 7, "film " * 20]))
    assert isinstance(results[0], Estimate) and not results[0].truncated and results[3].truncated
    assert results[1:3] == [
        InvalidInput("NUL at character 1; is this binary data?"),
        InvalidInput("expected a string, got int"),
    ]


def test_info_and_missing_capabilities(trained_dir, capsys):
    rows = [line.split() for line in output_of(capsys, "info", str(trained_dir)).split("\n")]
    assert ["Task", "regress"] in rows and ["Model", "gru,"] in [row[:2] for row in rows]
    assert json.loads(output_of(capsys, "info", str(trained_dir), "--json"))["task"] == "regress"
    message = f"{trained_dir}: is a regression model; use weft predict"
    assert expect_error(capsys, "generate", str(trained_dir), "good") == (2, message)
    no_encoder = f"{trained_dir}: models of task 'regress' have no text encoder"
    assert expect_error(capsys, "embed", str(trained_dir), "good") == (2, no_encoder)
    closed = f"{trained_dir}: explanations are not available for task 'regress'"
    assert expect_error(capsys, "explain", str(trained_dir), "good") == (2, closed)
    assert expect_error(capsys, "prune", str(trained_dir)) == (2, closed)


def test_comparison_and_report(capsys, tmp_path):
    for kind in ("gru", "lstm"):
        values = read_toml(tmp_path / "run.toml")
        train_here({**values, "model": {**values["model"], "arch": kind}}, tmp_path / kind)
    code, out, err = compare(capsys, "gru", "lstm", "--output-dir", "compared", "--json")
    assert code == 0, err
    comparison = json.loads(out)
    assert [row["name"] for row in comparison["rows"]] and len(comparison["rows"]) == 2
    assert "rmse" in out and "pearson" in out
    page = (tmp_path / "compared" / "report.html").read_text(encoding="utf-8")
    assert "rmse" in page and "regression model" in page
