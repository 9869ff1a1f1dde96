"""Minimal pairs in `weft compare`: all architectures in the terminal, in comparison.json and on the page."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import expect_error
from compare_helpers import InProcessTrainer, compare
from report_documents import lm_document

from weft import files
from weft.cli.compare_result import JSON_KEYS
from weft.cli.main import main
from weft.cli.minimal_pairs_table import as_table
from weft.comparison import runner as comparing
from weft.report.page import page
from weft.report.page_check import find_problem

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
RUN = """
task = "{task}"
seed = 5
[data]
train = "text.txt"
valid = 0.1
test = 0.1
read_as = "lines"
[tokenizer]
type = "word"
vocab_size = 40
[model]
arch = "lstm"
hidden_size = 8
num_layers = 1
[train]
max_steps = 8
lr = 0.03
batch_tokens = 256
num_validations = 1
"""
NOUNS, VERBS = [("cat", "cats"), ("dog", "dogs"), ("owl", "owls")], [("sleeps", "sleep"), ("waits", "wait")]
TSV = "good\tbad\tphenomenon\tattractors\n" + "".join(
    f"the {noun[number]}{between} {verb[number]}\tthe {noun[number]}{between} {verb[1 - number]}\t{name}\t{count}\n"
    for noun in NOUNS
    for verb in VERBS
    for number in (0, 1)
    for between, name, count in (("", "plain", 0), (f" near the {NOUNS[0][1 - number]}", "near", 1))
)


@pytest.fixture
def work_dir(tmp_path, monkeypatch) -> Path:
    """A folder with a run file and a suite, where runs are trained in this process."""
    lines = [f"the {a[n]} near the {b[m]} {v[n]}" for a in NOUNS for b in NOUNS for v in VERBS for n in (0, 1) for m in (0, 1)]
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines * 2))
    (tmp_path / "run.toml").write_text(RUN.format(task="lm"))
    (tmp_path / "pairs.tsv").write_text(TSV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparing, "ParallelTrainer", InProcessTrainer)
    monkeypatch.setattr(InProcessTrainer, "trained", [], raising=False)
    return tmp_path


def pages(out: Path) -> tuple[dict[str, Any], str]:
    return files.read_json(out / "comparison.json"), (out / "report.html").read_text()


def test_compare_and_analyze_minimal_pairs_report_the_same_accuracy(work_dir, capsys):
    words = ["run.toml", "--models", "ngram,lstm", "--seeds", "2", "--minimal-pairs", "pairs.tsv", "--output-dir", "all"]
    code, out, _ = compare(capsys, *words)
    assert code == 0
    document, text = pages(work_dir / "all")
    runs = [f"all/{kind}-{seed}" for kind in ("ngram", "lstm") for seed in (5, 6)]
    assert main(["analyze", "minimal-pairs", *runs, "--suite", "pairs.tsv", "--json", "--save-pairs", "each.csv"]) == 0
    single = json.loads(capsys.readouterr().out)
    reported = document["minimal_pairs"]
    assert [(row["by"], row["name"], row["pairs"]) for row in reported["rows"]] == [
        (row["by"], row["name"], row["pairs"]) for row in single["rows"]
    ]
    # of two seeds the mean, of the run's own answers to every pair
    answers = list(csv.DictReader(io.StringIO((work_dir / "each.csv").read_text())))
    for row in reported["rows"]:
        expected = {"0": ["0"], "1": ["1"], "no attractor": ["0"], "1 or more attractors": ["1"]}.get(row["name"], ["0", "1"])
        names = [row["name"]] if row["by"] == "phenomenon" else ["plain", "near"]
        mine = [breakdown for breakdown in answers if breakdown["attractors"] in expected and breakdown["phenomenon"] in names]
        assert len(mine) == row["pairs"]
        for kind in ("ngram", "lstm"):
            means = [100 * np.mean([float(breakdown[f"{kind}-{seed} correct"]) for breakdown in mine]) for seed in (5, 6)]
            result = row["accuracy"][kind]
            assert result["value"] == pytest.approx(np.mean(means))
            assert 0 <= result["low"] <= result["value"] <= result["high"] <= 100
    assert reported["counts"] == {row["name"]: single["counts"]["lstm-5"] for row in document["rows"]}
    assert (reported["suite"], reported["signature"]) == (["pairs.tsv"], single["signature"])
    # columns in the order of the table, the best first
    table, notes, pairs = out.removeprefix("\n").split("\n\n", 2)
    order = [row["name"] for row in document["rows"]]
    assert [line[3:].split()[0] for line in table.split("\n")[1:]] == order
    assert notes.split("\n")[-1].startswith("Context policy reset: ")
    assert pairs.split("\n")[0].split() == ["accuracy", "(%)", "pairs", *order]
    assert pairs.endswith(f"{reported['signature']}\n")
    assert (
        document["command"] == "weft compare run.toml --models ngram,lstm --seeds 2 --minimal-pairs pairs.tsv --output-dir all"
    )
    # what the page is drawn from
    by = {breakdown["by"]: breakdown for breakdown in document["breakdowns"]}
    assert by["phenomenon (minimal pairs)"]["bins"] == ["all", "plain", "near"]
    attractors = by["attractors between subject and verb (minimal pairs)"]
    rows = {row["name"]: row["accuracy"] for row in reported["rows"] if row["by"] == "attractors"}
    assert attractors["values"]["lstm"] == [rows[count]["lstm"]["value"] for count in ("0", "1")]
    assert "By syntax or recency (minimal pairs)" in text and "By training frequency of the token" in text
    assert "In minimal pairs with an attractor, models follow " in text


def test_the_suite_does_not_change_the_table_and_is_removed_from_the_next_page(work_dir, capsys):
    words = ["run.toml", "--models", "ngram,lstm", "--output-dir", "all", "--quiet"]
    code, plain, _ = compare(capsys, *words)
    assert code == 0
    before, _ = pages(work_dir / "all")
    InProcessTrainer.trained.clear()
    code, out, _ = compare(capsys, *words, "--minimal-pairs", "pairs.tsv")
    assert code == 0 and InProcessTrainer.trained == [] and out.startswith(plain + "\n")
    after, text = pages(work_dir / "all")
    assert {
        name: value for name, value in after.items() if name not in ("minimal_pairs", "breakdowns", "command", "checksum")
    } == {name: value for name, value in before.items() if name not in ("breakdowns", "command", "checksum")}
    assert after["breakdowns"][: len(before["breakdowns"])] == before["breakdowns"] and "minimal_pairs" not in before
    (work_dir / "pairs.tsv").rename("moved.tsv")
    (work_dir / "all" / "report.html").unlink()
    assert main(["compare", "all"]) == 0
    assert (work_dir / "all" / "report.html").read_text() == text
    capsys.readouterr()
    code, out, _ = compare(capsys, *words, "--minimal-pairs", "moved.tsv", "--json")
    data = json.loads(out)
    assert list(data) == list(JSON_KEYS)
    assert data["minimal_pairs"] == {**after["minimal_pairs"], "suite": ["moved.tsv"]}
    assert compare(capsys, *words)[1] == plain and pages(work_dir / "all")[0] == before


def test_existing_runs_and_masked_lms(work_dir, capsys):
    (work_dir / "run.toml").write_text(RUN.format(task="masked-lm"))
    words = ["run.toml", "--models", "lstm,bert", "--output-dir", "all", "--quiet", "--minimal-pairs", "pairs.tsv"]
    assert compare(capsys, *words)[0] == 0
    ours = pages(work_dir / "all")[0]
    runs = ["all/lstm-5", "all/bert-5", "--minimal-pairs", "pairs.tsv"]
    assert compare(capsys, *runs, "--output-dir", "mine", "--quiet")[0] == 0
    theirs = pages(work_dir / "mine")[0]
    assert theirs["minimal_pairs"] == ours["minimal_pairs"] and set(ours["minimal_pairs"]["counts"]) == {"lstm", "bert"}
    assert theirs["command"] == "weft compare all/lstm-5 all/bert-5 --minimal-pairs pairs.tsv --output-dir mine"
    assert any(breakdown["by"] == "training frequency of the token" for breakdown in ours["breakdowns"])
    # a pattern after --suite gives it the first file only
    message = "text.txt: a file, not a run directory; repeat --minimal-pairs before every file, or name their directory"
    assert expect_error(capsys, "compare", *runs, "text.txt") == (2, message)


def test_a_bad_suite_is_refused_before_anything_is_trained(work_dir, capsys):
    (work_dir / "bad.tsv").write_text("good\tbad\nthe cat\tthe cat\n")
    message = "bad.tsv:2: good and bad sentence are identical: 'the cat'"
    assert expect_error(capsys, "compare", "run.toml", "--minimal-pairs", "bad.tsv") == (3, message)
    assert expect_error(capsys, "compare", "run.toml", "--minimal-pairs", "gone.tsv")[0] == 3
    assert InProcessTrainer.trained == [] and not (work_dir / "runs").exists()


def test_other_tasks_have_no_minimal_pairs(work_dir, capsys):
    rows = "".join(f"{word}\t{word[::-1]}\n" for word in ("anna", "berta", "clara", "dora") * 10)
    (work_dir / "names.tsv").write_text(rows)
    values = RUN.format(task="seq2seq").replace('"text.txt"', '"names.tsv"').replace('read_as = "lines"\n', "")
    (work_dir / "other.toml").write_text(values)
    message = "--minimal-pairs: not available for task 'seq2seq'; it requires task 'lm' or 'masked-lm'"
    assert expect_error(capsys, "compare", "other.toml", "--minimal-pairs", "gone.tsv") == (2, message)
    assert InProcessTrainer.trained == [] and not (work_dir / "runs").exists()
    assert compare(capsys, "other.toml", "--models", "lstm", "--output-dir", "all", "--quiet")[0] == 0
    assert expect_error(capsys, "compare", "all/lstm-5", "--minimal-pairs", "pairs.tsv") == (2, message)


def test_the_page_says_which_noun_each_model_follows():
    document = lm_document()
    first, second = (row["name"] for row in document["rows"][:2])
    document["minimal_pairs"] = {"follows": {first: "the subject", second: "the nearest noun", "gone": "the subject"}}
    assert find_problem(document) == ""
    output = re.sub("<.*?>", "", page(document))
    assert f"In minimal pairs with an attractor, models follow the subject: {first}; the nearest noun: {second}." in output
    document["minimal_pairs"] = {"follows": None}  # of a suite without attractors
    assert find_problem(document) == "" and "minimal pairs" not in page(document)
    document["minimal_pairs"] = {"follows": [first]}
    assert find_problem(document) == "minimal_pairs.follows is not an object"


def test_row_names_with_newlines_stay_on_one_line():
    estimate = {"value": 50.0, "low": None, "high": None}
    reported = {
        "rows": [{"by": "all", "name": "all", "pairs": 1, "accuracy": {"a\nb": estimate}}],
        "follows": None,
        "counts": {"a\nb": dict.fromkeys(("unknown", "unknown_choice", "equal", "long"), 0)},
        "signature": "weft:x",
    }
    assert as_table(reported) == "accuracy (%)  pairs   a b\nall               1  50.0\nweft:x\n"


# ---- a run that can't be read


def test_a_damaged_run_is_named_and_the_others_are_compared(work_dir, capsys):
    assert compare(capsys, "run.toml", "--models", "rnn,lstm", "--seeds", "2", "--output-dir", "all", "--quiet")[0] == 0
    runs = [f"all/{kind}-{seed}" for kind in ("rnn", "lstm") for seed in (5, 6)]
    for place in ("all/rnn-5", "all/rnn-6", "all/lstm-6"):
        weights = work_dir / place / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-7])
    words = ["--minimal-pairs", "pairs.tsv", "--quiet"]
    code, out, err = compare(capsys, *runs, *words, "--output-dir", "mine")
    reasons = [line.removeprefix("weft: warning: ") for line in err.strip().split("\n")]
    assert code == 4 and [reason.split(": ")[:2] for reason in reasons] == [
        ["rnn, seed 5", "all/rnn-5/model.safetensors"],
        ["rnn, seed 6", "all/rnn-6/model.safetensors"],
        ["lstm, seed 6", "all/lstm-6/model.safetensors"],
    ]
    document, text = pages(work_dir / "mine")
    assert [(row["name"], row["seeds"]) for row in document["rows"]] == [("lstm", [5])] and "rnn" not in out
    assert [(failure["name"], failure["seed"], failure["code"]) for failure in document["failures"]] == [
        ("rnn", 5, 4), ("rnn", 6, 4), ("lstm", 6, 4)
    ]  # fmt: skip
    assert set(document["minimal_pairs"]["counts"]) == {"lstm"} and "Not in the table: <b><bdi>rnn</bdi></b>, seed 5: " in text
    # the comparison that trained it, and a page of the runs, say the same
    code, _, again = compare(capsys, "run.toml", "--models", "rnn,lstm", "--seeds", "2", "--output-dir", "all", *words)
    assert code == 4 and sorted(again.split("\n")) == sorted(err.split("\n"))
    assert main(["compare", *runs, "--report", "page.html", "--quiet"]) == 4
    assert (
        capsys.readouterr().err == err
        and "Not in the table: <b><bdi>rnn</bdi></b>, seed 5: " in (work_dir / "page.html").read_text()
    )


def test_if_all_runs_are_damaged_nothing_is_written(work_dir, capsys):
    assert compare(capsys, "run.toml", "--models", "lstm", "--output-dir", "all", "--quiet")[0] == 0
    (work_dir / "all" / "lstm-5" / "model.safetensors").write_bytes(b"{}")
    code, out, err = compare(capsys, "all/lstm-5", "--output-dir", "mine", "--quiet")
    assert (code, out) == (4, "") and err.startswith("weft: warning: lstm, seed 5: all/lstm-5/model.safetensors: ")
    assert not (work_dir / "mine" / "comparison.json").exists()
    shutil.rmtree(work_dir / "all" / "results")
    code, message = expect_error(capsys, "compare", "all/lstm-5", "--report", "page.html")
    assert code == 4 and err == f"weft: warning: lstm, seed 5: {message}\n" and not (work_dir / "page.html").exists()
