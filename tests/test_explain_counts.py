"""The counts view: continuations in the training data, against counts by hand and the lecture's table for "students opened
their"."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from command_line import expect_error
from small_runs import run_file, train_here

from weft.cli.main import main
from weft.explain.ngram_counts import next_tokens, why_no_counts
from weft.explain.options import ExplainConfig
from weft.explain.views import explain
from weft.runs.load import load

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def students(tmp_path, monkeypatch) -> Path:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "examples/students.toml", "--quiet"]) == 0
    return tmp_path / "runs" / "students"


def test_students_opened_their_books_four_times_in_ten(students, capsys):
    assert main(["explain", "runs/students", "students opened their", "--view", "counts", "--json"]) == 0
    (view,) = json.loads(capsys.readouterr().out)["views"]
    longest, shorter, *_, nothing = view["contexts"]
    assert longest["context"] == ["students", "opened", "their"] and longest["count"] == 50
    rows = {row["token"]: (row["count"], row["share"], row["probability"]) for row in longest["tokens"]}
    assert rows["books"] == (20, 0.4, 0.4) and rows["exams"] == (5, 0.1, 0.1)
    # teachers opened their windows
    assert shorter["context"] == ["opened", "their"] and shorter["count"] == 55
    assert nothing["context"] == [] and nothing["tokens"][0]["probability"] is None


def test_counts_equal_a_plain_loop_over_the_lines(students):
    lines = [["<s>", *line.split(), "</s>"] for line in (EXAMPLES / "data/students.txt").read_text().split("\n")[:-1]]
    found = explain(load(students), "the students", "counts", ExplainConfig(top=50), {}).data["contexts"]
    assert [one["context"] for one in found] == [["<s>", "the", "students"], ["the", "students"], ["students"], []]
    for one in found:
        size = len(one["context"])
        after = Counter(
            line[at + size]
            for line in lines
            for at in range(len(line) - size)
            if line[at : at + size] == one["context"] and line[at + size] != "<s>"
        )
        assert {row["token"]: row["count"] for row in one["tokens"]} == dict(after)
        assert one["count"] == after.total() and one["followers"] == len(after)


def test_an_unseen_context_is_reported(students, capsys):
    assert main(["explain", "runs/students", "books opened", "--view", "counts", "--top", "2"]) == 0
    out = capsys.readouterr().out.split("\n")
    assert "not in the training text" in out[1] and out[1].startswith("<s> books opened")
    assert any("(+" in line and "more)" in line for line in out)


def test_continuations_are_counted_at_every_position():
    text = np.array([1, 2, 1, 2, 3, 1, 2])
    assert next_tokens(text, [1, 2]).tolist() == [1, 3]
    assert next_tokens(text, []).tolist() == text.tolist()
    assert next_tokens(text, [9]).tolist() == next_tokens(np.array([1]), [1, 2]).tolist() == []


def test_networks_use_counts_of_their_training_data_and_other_tasks_are_refused(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 30)  # the last tenth is held out
    folder = train_here(run_file(tmp_path / "text.txt", train__max_steps=2), tmp_path / "run").path
    found = explain(load(folder), "not to", "counts", ExplainConfig(), {}).data["contexts"]
    assert found[0]["context"] == ["t", " ", "t", "o"] and found[0]["tokens"][0]["token"] == " " and found[0]["count"] == 27
    shutil.rmtree(folder / "data")
    told = "the training tokens are not in the run directory"
    assert why_no_counts(load(folder)) == told
    code, said = expect_error(capsys, "explain", str(folder), "not to", "--view", "counts")
    assert code == 2 and said.startswith(f"--view: counts is not available: {told}; choose from ")
