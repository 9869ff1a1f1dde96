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
def there(tmp_path, monkeypatch) -> Path:
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


def test_compare_and_analyze_minimal_pairs_report_the_same_accuracy(there, capsys):
    words = ["run.toml", "--models", "ngram,lstm", "--seeds", "2", "--minimal-pairs", "pairs.tsv", "--output-dir", "all"]
    code, out, _ = compare(capsys, *words)
    assert code == 0
    document, text = pages(there / "all")
    runs = [f"all/{kind}-{seed}" for kind in ("ngram", "lstm") for seed in (5, 6)]
    assert main(["analyze", "minimal-pairs", *runs, "--suite", "pairs.tsv", "--json", "--save-pairs", "each.csv"]) == 0
    single = json.loads(capsys.readouterr().out)
    told = document["minimal_pairs"]
    assert [(row["by"], row["name"], row["pairs"]) for row in told["rows"]] == [
        (row["by"], row["name"], row["pairs"]) for row in single["rows"]
    ]
    # of two seeds the mean, of the run's own answers to every pair
    answers = list(csv.DictReader(io.StringIO((there / "each.csv").read_text())))
    for row in told["rows"]:
        wanted = {"0": ["0"], "1": ["1"], "no attractor": ["0"], "1 or more attractors": ["1"]}.get(row["name"], ["0", "1"])
        names = [row["name"]] if row["by"] == "phenomenon" else ["plain", "near"]
        mine = [one for one in answers if one["attractors"] in wanted and one["phenomenon"] in names]
        assert len(mine) == row["pairs"]
        for kind in ("ngram", "lstm"):
            means = [100 * np.mean([float(one[f"{kind}-{seed} correct"]) for one in mine]) for seed in (5, 6)]
            found = row["accuracy"][kind]
            assert found["value"] == pytest.approx(np.mean(means))
            assert 0 <= found["low"] <= found["value"] <= found["high"] <= 100
    assert told["counts"] == {row["name"]: single["counts"]["lstm-5"] for row in document["rows"]}
    assert (told["suite"], told["signature"]) == (["pairs.tsv"], single["signature"])
    # columns in the order of the table, the best first
    table, notes, pairs = out.removeprefix("\n").split("\n\n", 2)
    order = [row["name"] for row in document["rows"]]
    assert [line[3:].split()[0] for line in table.split("\n")[1:]] == order
    assert notes.split("\n")[-1].startswith("Context policy reset: ")
    assert pairs.split("\n")[0].split() == ["accuracy", "(%)", "pairs", *order]
    assert pairs.endswith(f"{told['signature']}\n")
    assert (
        document["command"] == "weft compare run.toml --models ngram,lstm --seeds 2 --minimal-pairs pairs.tsv --output-dir all"
    )
    # what the page is drawn from
    by = {one["by"]: one for one in document["breakdowns"]}
    assert by["phenomenon (minimal pairs)"]["bins"] == ["all", "plain", "near"]
    attractors = by["attractors between subject and verb (minimal pairs)"]
    rows = {row["name"]: row["accuracy"] for row in told["rows"] if row["by"] == "attractors"}
    assert attractors["values"]["lstm"] == [rows[count]["lstm"]["value"] for count in ("0", "1")]
    assert "By syntax or recency (minimal pairs)" in text and "By training frequency of the token" in text
    assert "In minimal pairs with an attractor, models follow " in text


def test_the_suite_does_not_change_the_table_and_is_removed_from_the_next_page(there, capsys):
    words = ["run.toml", "--models", "ngram,lstm", "--output-dir", "all", "--quiet"]
    code, plain, _ = compare(capsys, *words)
    assert code == 0
    before, _ = pages(there / "all")
    InProcessTrainer.trained.clear()
    code, out, _ = compare(capsys, *words, "--minimal-pairs", "pairs.tsv")
    assert code == 0 and InProcessTrainer.trained == [] and out.startswith(plain + "\n")
    after, text = pages(there / "all")
    assert {
        name: value for name, value in after.items() if name not in ("minimal_pairs", "breakdowns", "command", "checksum")
    } == {name: value for name, value in before.items() if name not in ("breakdowns", "command", "checksum")}
    assert after["breakdowns"][: len(before["breakdowns"])] == before["breakdowns"] and "minimal_pairs" not in before
    (there / "pairs.tsv").rename("moved.tsv")
    (there / "all" / "report.html").unlink()
    assert main(["compare", "all"]) == 0
    assert (there / "all" / "report.html").read_text() == text
    capsys.readouterr()
    code, out, _ = compare(capsys, *words, "--minimal-pairs", "moved.tsv", "--json")
    found = json.loads(out)
    assert list(found) == list(JSON_KEYS)
    assert found["minimal_pairs"] == {**after["minimal_pairs"], "suite": ["moved.tsv"]}
    assert compare(capsys, *words)[1] == plain and pages(there / "all")[0] == before


def test_existing_runs_and_masked_lms(there, capsys):
    (there / "run.toml").write_text(RUN.format(task="masked-lm"))
    words = ["run.toml", "--models", "lstm,bert", "--output-dir", "all", "--quiet", "--minimal-pairs", "pairs.tsv"]
    assert compare(capsys, *words)[0] == 0
    ours = pages(there / "all")[0]
    runs = ["all/lstm-5", "all/bert-5", "--minimal-pairs", "pairs.tsv"]
    assert compare(capsys, *runs, "--output-dir", "mine", "--quiet")[0] == 0
    theirs = pages(there / "mine")[0]
    assert theirs["minimal_pairs"] == ours["minimal_pairs"] and set(ours["minimal_pairs"]["counts"]) == {"lstm", "bert"}
    assert theirs["command"] == "weft compare all/lstm-5 all/bert-5 --minimal-pairs pairs.tsv --output-dir mine"
    assert any(one["by"] == "training frequency of the token" for one in ours["breakdowns"])
    # a pattern after --suite gives it the first file only
    said = "text.txt: a file, not a run directory; repeat --minimal-pairs before every file, or name their directory"
    assert expect_error(capsys, "compare", *runs, "text.txt") == (2, said)


def test_a_bad_suite_is_refused_before_anything_is_trained(there, capsys):
    (there / "bad.tsv").write_text("good\tbad\nthe cat\tthe cat\n")
    said = "bad.tsv:2: good and bad sentence are identical: 'the cat'"
    assert expect_error(capsys, "compare", "run.toml", "--minimal-pairs", "bad.tsv") == (3, said)
    assert expect_error(capsys, "compare", "run.toml", "--minimal-pairs", "gone.tsv")[0] == 3
    assert InProcessTrainer.trained == [] and not (there / "runs").exists()


def test_other_tasks_have_no_minimal_pairs(there, capsys):
    rows = "".join(f"{word}\t{word[::-1]}\n" for word in ("anna", "berta", "clara", "dora") * 10)
    (there / "names.tsv").write_text(rows)
    values = RUN.format(task="seq2seq").replace('"text.txt"', '"names.tsv"').replace('read_as = "lines"\n', "")
    (there / "other.toml").write_text(values)
    said = "--minimal-pairs: not available for task 'seq2seq'; it requires task 'lm' or 'masked-lm'"
    assert expect_error(capsys, "compare", "other.toml", "--minimal-pairs", "gone.tsv") == (2, said)
    assert InProcessTrainer.trained == [] and not (there / "runs").exists()
    assert compare(capsys, "other.toml", "--models", "lstm", "--output-dir", "all", "--quiet")[0] == 0
    assert expect_error(capsys, "compare", "all/lstm-5", "--minimal-pairs", "pairs.tsv") == (2, said)


def test_the_page_names_the_score_of_each_row():
    document = lm_document()
    first, second = (row["name"] for row in document["rows"][:2])
    document["minimal_pairs"] = {"follows": {first: "the subject", second: "the nearest noun", "gone": "the subject"}}
    assert find_problem(document) == ""
    said = re.sub("<.*?>", "", page(document))
    assert f"In minimal pairs with an attractor, models follow the subject: {first}; the nearest noun: {second}." in said
    document["minimal_pairs"] = {"follows": None}  # of a suite without attractors
    assert find_problem(document) == "" and "minimal pairs" not in page(document)
    document["minimal_pairs"] = {"follows": [first]}
    assert find_problem(document) == "minimal_pairs.follows is not an object"


def test_row_names_with_newlines_stay_on_one_line():
    estimate = {"value": 50.0, "low": None, "high": None}
    told = {
        "rows": [{"by": "all", "name": "all", "pairs": 1, "accuracy": {"a\nb": estimate}}],
        "follows": None,
        "counts": {"a\nb": dict.fromkeys(("unknown", "unknown_choice", "equal", "long"), 0)},
        "signature": "weft:x",
    }
    assert as_table(told) == "accuracy (%)  pairs   a b\nall               1  50.0\nweft:x\n"


# ---- a run that can't be read


def test_a_damaged_run_is_named_and_the_others_are_compared(there, capsys):
    assert compare(capsys, "run.toml", "--models", "rnn,lstm", "--seeds", "2", "--output-dir", "all", "--quiet")[0] == 0
    runs = [f"all/{kind}-{seed}" for kind in ("rnn", "lstm") for seed in (5, 6)]
    for place in ("all/rnn-5", "all/rnn-6", "all/lstm-6"):
        weights = there / place / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-7])
    words = ["--minimal-pairs", "pairs.tsv", "--quiet"]
    code, out, err = compare(capsys, *runs, *words, "--output-dir", "mine")
    reasons = [line.removeprefix("weft: warning: ") for line in err.strip().split("\n")]
    assert code == 4 and [reason.split(": ")[:2] for reason in reasons] == [
        ["rnn, seed 5", "all/rnn-5/model.safetensors"],
        ["rnn, seed 6", "all/rnn-6/model.safetensors"],
        ["lstm, seed 6", "all/lstm-6/model.safetensors"],
    ]
    document, text = pages(there / "mine")
    assert [(row["name"], row["seeds"]) for row in document["rows"]] == [("lstm", [5])] and "rnn" not in out
    assert [(one["name"], one["seed"], one["code"]) for one in document["failures"]] == [
        ("rnn", 5, 4), ("rnn", 6, 4), ("lstm", 6, 4)
    ]  # fmt: skip
    assert set(document["minimal_pairs"]["counts"]) == {"lstm"} and "Failed: <b><bdi>rnn</bdi></b>, seed 5: " in text
    # the comparison that trained it, and a page of the runs, say the same
    code, _, again = compare(capsys, "run.toml", "--models", "rnn,lstm", "--seeds", "2", "--output-dir", "all", *words)
    assert code == 4 and sorted(again.split("\n")) == sorted(err.split("\n"))
    assert main(["compare", *runs, "--report", "page.html", "--quiet"]) == 4
    assert capsys.readouterr().err == err and "Failed: <b><bdi>rnn</bdi></b>, seed 5: " in (there / "page.html").read_text()


def test_if_all_runs_are_damaged_nothing_is_written(there, capsys):
    assert compare(capsys, "run.toml", "--models", "lstm", "--output-dir", "all", "--quiet")[0] == 0
    (there / "all" / "lstm-5" / "model.safetensors").write_bytes(b"{}")
    code, out, err = compare(capsys, "all/lstm-5", "--output-dir", "mine", "--quiet")
    assert (code, out) == (4, "") and err.startswith("weft: warning: lstm, seed 5: all/lstm-5/model.safetensors: ")
    assert not (there / "mine" / "comparison.json").exists()
    shutil.rmtree(there / "all" / "results")
    code, said = expect_error(capsys, "compare", "all/lstm-5", "--report", "page.html")
    assert code == 4 and err == f"weft: warning: lstm, seed 5: {said}\n" and not (there / "page.html").exists()
