"""`weft compare` end to end: a table and a page from a run file or from runs; interrupted, killed, resumed, refused."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import expect_error
from compare_helpers import InProcessTrainer, compare

from weft import files
from weft.cli.compare_result import JSON_KEYS
from weft.cli.main import main
from weft.comparison import evaluation as measuring
from weft.comparison import results as evidence
from weft.comparison import runner as comparing
from weft.comparison import shared_tokenizer as tokens
from weft.comparison.train import ParallelTrainer, ThreadBudget, lock_holder
from weft.errors import ModelError, ResourceError, TrainingInterrupted, UsageError
from weft.lock import Lock
from weft.runs.resolve import resolve
from weft.runs.status import read_run_status
from weft.tensors import read_tensors
from weft.training import checkpoint

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
ROOT = Path(__file__).parents[1]
RUN = """
task = "lm"
seed = 5
[data]
train = "text.txt"
valid = 0.1
test = 0.1
read_as = "lines"
[tokenizer]
type = "char"
[model]
arch = "lstm"
hidden_size = 8
num_layers = 1
[train]
max_steps = 6
batch_tokens = 128
num_validations = 2
"""
NAMES = "".join(
    f"{a}{b}{c}\n" for a in ("an", "ber", "cla") for b in ("a", "ni", "to", "ka") for c in ("", "s", "ra", "mi", "l")
)


@pytest.fixture
def work_dir(tmp_path, monkeypatch) -> Path:
    """A folder with a run file, where runs are trained in this process."""
    (tmp_path / "text.txt").write_text(NAMES)
    (tmp_path / "run.toml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparing, "ParallelTrainer", InProcessTrainer)
    monkeypatch.setattr(InProcessTrainer, "trained", [], raising=False)
    return tmp_path


def by_name(out: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in files.read_json(out / "comparison.json")["rows"]}


# ---- a run file


def test_one_command_gives_a_table_and_a_page(work_dir, capsys):
    words = ["run.toml", "--models", "ngram,lstm,lstm", "--seeds", "2"]
    code, out, err = compare(capsys, *words)
    assert code == 0
    directory = work_dir / "runs" / "run-comparison"
    assert InProcessTrainer.trained == [f"{name}-{seed}" for seed in (5, 6) for name in ("ngram", "lstm", "lstm#2")]
    assert err.startswith("ngram: ignoring hidden_size and num_layers\n")
    assert err.endswith("Report: runs/run-comparison/report.html\n")
    assert all(name in out for name in ("ngram", "lstm", "lstm#2"))
    # two variants that are the same do the same, to the last bit
    for seed in (5, 6):
        for name in ("model.safetensors", "metrics.jsonl", "tokenizer.json"):
            assert (directory / f"lstm-{seed}" / name).read_bytes() == (directory / f"lstm#2-{seed}" / name).read_bytes()
    rows = by_name(directory)
    assert rows["lstm"]["scores"] == rows["lstm#2"]["scores"] and rows["lstm"]["seeds"] == [5, 6]
    assert rows["ngram"]["scores"] != rows["lstm"]["scores"]
    document = files.read_json(directory / "comparison.json")
    assert document["command"] == "weft compare run.toml --models ngram,lstm,lstm --seeds 2"
    assert document["failures"] == []
    assert "<!DOCTYPE html>" in (directory / "report.html").read_text()
    # all of them read the same tokens
    assert len({(path / "data" / "train.tokens").read_bytes() for path in directory.glob("*-[56]")}) == 1

    def fails(*ignored: object, **others: object) -> None:
        raise AssertionError("it was measured again")

    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(evidence, "evaluate_run", fails)
    InProcessTrainer.trained.clear()
    again = compare(capsys, *words)
    monkeypatch.undo()
    assert again[:2] == (0, out) and InProcessTrainer.trained == []


def test_a_run_file_alone_is_compared_with_the_default_architectures(work_dir, capsys):
    """Options of the run file can be changed, too, in all kinds alike."""
    words = ["run.toml", "--set", "train.max_epochs=1", "--set", "model.hidden_size=12", "--output-dir", "here"]
    code, _, err = compare(capsys, *words)
    assert code == 0 and InProcessTrainer.trained == ["lstm-5", "ngram-5", "transformer-5"]
    assert err.startswith(
        "Comparing lstm (from the run file), ngram (baseline), transformer (typical network);"
        " set --models to choose others, or to all for all 9 architectures\n"
    )
    document = files.read_json(work_dir / "here" / "comparison.json")
    assert document["command"] == f"weft compare {' '.join(words)}"
    settings = [resolve(files_of(work_dir / "here" / name), base=work_dir) for name in ("lstm-5", "transformer-5")]
    assert [(setting.train.max_epochs, setting.train.max_steps, setting.model.hidden_size) for setting in settings] == [
        (1.0, None, 12)
    ] * 2
    message = "--set: requires a run file; existing runs are not trained"
    assert expect_error(capsys, "compare", "here/lstm-5", "--set", "seed=1") == (2, message)
    InProcessTrainer.trained.clear()
    assert compare(capsys, *words, "--models", "lstm,ngram,transformer")[0] == 0 and InProcessTrainer.trained == []


def test_results_as_json_csv_and_latex(work_dir, capsys):
    words = ["run.toml", "--models", "ngram,lstm", "--quiet"]
    code, out, err = compare(capsys, *words, "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert list(data) == [
        "title",
        "task",
        "data",
        "metric",
        "test",
        "test_items",
        "insufficient_data",
        "context",
        "rows",
        "failures",
    ]
    assert [row["name"] for row in data["rows"]].count("lstm") == 1
    _, out, _ = compare(capsys, *words, "--csv", "-")
    assert len(list(csv.reader(io.StringIO(out)))) == 3
    _, out, _ = compare(capsys, *words, "--markdown", "table.md", "--latex", "table.tex", "--csv", "table.csv")
    assert "lstm" in out
    assert (work_dir / "table.md").read_text().startswith("|")
    assert "\\begin{tabular}" in (work_dir / "table.tex").read_text()
    assert len((work_dir / "table.csv").read_text().strip().split("\n")) == 3


def test_another_plan_is_refused_without_overwrite(work_dir, capsys):
    assert compare(capsys, "run.toml", "--models", "lstm", "--output-dir", "here", "--quiet")[0] == 0
    assert expect_error(capsys, "compare", "run.toml", "--models", "lstm", "--output-dir", "here", "--seeds", "2") == (
        2,
        "here: contains a comparison with different options (seeds: 1, now 2); choose another --output-dir or use --overwrite",
    )
    assert (
        compare(capsys, "run.toml", "--models", "lstm", "--output-dir", "here", "--seeds", "2", "--overwrite", "--quiet")[0]
        == 0
    )
    assert sorted(path.name for path in (work_dir / "here").glob("lstm-*")) == ["lstm-5", "lstm-6"]


def test_a_comparison_is_deleted_when_the_new_one_is_finished(work_dir, capsys, monkeypatch):
    assert compare(capsys, "run.toml", "--models", "lstm", "--output-dir", "here", "--quiet")[0] == 0
    page = (work_dir / "here/report.html").read_bytes()
    (work_dir / "bad.toml").write_text(RUN.replace("text.txt", "nowhere.txt"))
    reported = ["run.toml", "--models", "lstm", "--output-dir", "here", "--seeds", "2"]
    assert expect_error(capsys, "compare", "bad.toml", "--output-dir", "here", "--overwrite") == (
        3,
        f"{work_dir / 'nowhere.txt'}: file not found",
    )

    def pressed(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(tokens, "train_once", pressed)
        assert compare(capsys, *reported, "--overwrite") == (130, "", "Stopped before the first run. here is unchanged.\n")
    assert (work_dir / "here/report.html").read_bytes() == page and not (work_dir / "here/.previous").exists()
    with monkeypatch.context() as patched:
        patched.setattr(InProcessTrainer, "train", lambda self, plan: (_ for _ in ()).throw(TrainingInterrupted("", "stopped")))
        for again, output in ((["--overwrite"], "the same command without --overwrite"), ([], "the same command")):
            code, _, err = compare(capsys, *reported, *again)
            assert code == 130
            assert err.endswith(
                f"Stopped. Saved to here. Run {output} to resume. The previous comparison is in here/.previous "
                "until this one is finished.\n"
            )
    assert main(["compare", "here/.previous", "--report", "again.html"]) == 0
    assert (work_dir / "again.html").read_bytes() == page
    capsys.readouterr()
    assert compare(capsys, *reported, "--quiet")[0] == 0
    assert not (work_dir / "here/.previous").exists() and (work_dir / "here/report.html").read_bytes() != page


def test_a_refused_comparison_deletes_nothing(work_dir, capsys, monkeypatch):
    """Neither the comparison that waits, nor the one that was to replace it, whose run still saves."""
    assert compare(capsys, "run.toml", "--models", "lstm", "--output-dir", "here", "--quiet")[0] == 0
    with monkeypatch.context() as patched:
        patched.setattr(InProcessTrainer, "train", lambda self, plan: (_ for _ in ()).throw(TrainingInterrupted("", "stopped")))
        assert compare(capsys, "run.toml", "--models", "lstm", "--output-dir", "here", "--seeds", "2", "--overwrite")[0] == 130
    (work_dir / "here/lstm-6").mkdir()
    (work_dir / "bad.toml").write_text(RUN.replace("text.txt", "nowhere.txt"))
    with Lock(work_dir / "here/lstm-6"):
        code, message = expect_error(
            capsys, "compare", "run.toml", "--models", "lstm", "--output-dir", "here", "--seeds", "3", "--overwrite"
        )
        assert code == 5 and message.startswith("here/lstm-6: in use by another process (process ")
    assert expect_error(capsys, "compare", "bad.toml", "--output-dir", "here", "--overwrite") == (
        3,
        f"{work_dir / 'nowhere.txt'}: file not found",
    )
    assert (work_dir / "here/lstm-6").is_dir() and (work_dir / "here/.previous/comparison.json").is_file()


def test_an_empty_comparison_replaces_nothing(work_dir, capsys, monkeypatch):
    assert compare(capsys, "run.toml", "--models", "lstm", "--output-dir", "here", "--quiet")[0] == 0
    page = (work_dir / "here/report.html").read_bytes()
    (work_dir / "wild.toml").write_text(f"{RUN}lr = 1e38\n")
    code, _, err = compare(capsys, "wild.toml", "--models", "lstm", "--output-dir", "here", "--overwrite", "--quiet")
    assert code == 6 and err.endswith("\nweft: warning: the previous comparison is back in here\n")
    assert (work_dir / "here/report.html").read_bytes() == page and not (work_dir / "here/.previous").exists()
    with monkeypatch.context() as patched:
        patched.setattr(measuring, "_results", lambda *_: (_ for _ in ()).throw(ModelError("", "damaged")))
        code, _, err = compare(
            capsys, "run.toml", "--models", "lstm", "--seeds", "2", "--output-dir", "here", "--overwrite", "--quiet"
        )
    assert code == 4 and err.endswith("\nweft: warning: the previous comparison is kept in here/.previous\n")
    assert (work_dir / "here/.previous/report.html").read_bytes() == page
    assert expect_error(capsys, "compare", "here/.previous/lstm-5", "--output-dir", "here") == (
        2,
        "here: contains the comparison of a run file; choose another --output-dir",
    )
    assert expect_error(capsys, "compare", "run.toml", "--models", "lstm", "--output-dir", "here/.previous") == (
        2,
        "here/.previous: .previous is reserved for backups; choose another --output-dir",
    )
    (work_dir / "here/plan.toml").unlink()
    assert compare(capsys, "run.toml", "--models", "lstm", "--output-dir", "here", "--quiet")[0] == 0
    assert (work_dir / "here/report.html").exists() and InProcessTrainer.trained == [
        "lstm-5",
        "lstm-5",
        "lstm-5",
        "lstm-6",
    ]  # no more


def test_interrupted_during_evaluation_it_resumes_without_overwrite(work_dir, capsys, monkeypatch):
    assert compare(capsys, "run.toml", "--models", "lstm", "--output-dir", "here", "--quiet")[0] == 0
    with monkeypatch.context() as patched:
        patched.setattr(measuring, "_results", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        code, _, err = compare(
            capsys, "run.toml", "--models", "lstm", "--seeds", "2", "--output-dir", "here", "--overwrite", "--quiet"
        )
    assert code == 130 and err == (
        "Stopped. The results so far are saved. Run the same command without --overwrite to resume. The previous comparison is "
        "in here/.previous until this one is finished.\n"
    )
    assert compare(capsys, "run.toml", "--models", "lstm", "--seeds", "2", "--output-dir", "here", "--quiet")[0] == 0
    assert not (work_dir / "here/.previous").exists()


def test_a_failed_run_is_a_row_with_a_reason_and_others_continue(work_dir, capsys):
    code, out, err = compare(
        capsys, "run.toml", "--grid", "train.lr=0.01,1e38", "--grid", "train.max_grad_norm=1.0", "--output-dir", "here"
    )
    assert code == 6
    assert "lstm,lr=0.01,max_grad_norm=1.0" in out and "1e+38" not in out
    reason = "weft: warning: lstm,lr=1e+38,max_grad_norm=1.0, seed 5: step "
    assert reason in err
    (failure,) = files.read_json(work_dir / "here" / "comparison.json")["failures"]
    assert (failure["name"], failure["seed"], failure["code"]) == ("lstm,lr=1e+38,max_grad_norm=1.0", 5, 6)
    code, out, err = compare(
        capsys, "run.toml", "--models", "gpt", "--grid", "model.num_heads=2,3", "--quiet", "--output-dir", "other"
    )
    assert code == 2 and "gpt,num_heads=2" in out
    assert (
        err
        == "weft: warning: gpt,num_heads=3: model.num_heads: hidden_size 8 is not divisible by 3; change one of them or set head_dim\n"
    )


def test_if_all_runs_fail_there_is_no_table(work_dir, capsys):
    code, out, err = compare(capsys, "run.toml", "--grid", "train.lr=1e38", "--quiet", "--output-dir", "here")
    assert (code, out) == (6, "") and err.startswith("weft: warning: lstm,lr=1e+38, seed 5: step ")
    assert not (work_dir / "here" / "comparison.json").exists()


def test_one_size_for_all(work_dir, capsys):
    words = ["--models", "ngram,rnn,lstm,transformer", "--match-params", "3k", "--max-tokens", "256", "--output-dir", "here"]
    code, _, err = compare(capsys, "run.toml", *words)
    assert code == 0
    rows = by_name(work_dir / "here")
    assert "ngram: ignoring --match-params (its size depends on the data)" in err
    for name in ("rnn", "lstm", "transformer"):
        assert abs(rows[name]["num_parameters"] - 3000) < 300
        assert f"{name}: hidden_size " in err and f", {rows[name]['num_parameters']:,} parameters" in err
        settings = resolve(files_of(work_dir / "here" / f"{name}-5"), base=work_dir)
        assert settings.train.max_tokens == 256 and settings.train.max_steps is None
    assert expect_error(
        capsys, "compare", "run.toml", "--match-params", "3k", "--grid", "model.hidden_size=8,16", "--quiet"
    ) == (
        2,
        "--match-params: cannot be combined with model.hidden_size in --grid; remove one of them",
    )


def files_of(run: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads((run / "resolved.toml").read_text())


def test_options_are_tuned_first(work_dir, capsys):
    words = ["run.toml", "--models", "ngram,lstm", "--tune-trials", "2", "--output-dir", "here"]
    code, _, err = compare(capsys, *words)
    assert code == 0
    trials = files.read_json(work_dir / "here" / "tune" / "trials.json")
    assert list(trials) == ["ngram", "lstm"] and [trial["trial"] for trial in trials["lstm"]] == [0, 1]
    assert InProcessTrainer.trained == [f"{kind}-rung0-{index}" for kind in ("ngram", "lstm") for index in (0, 1)] + [
        "ngram-5",
        "lstm-5",
    ]
    assert "ngram: best trial: " in err and "nothing to tune" not in err
    tuning = files.read_json(work_dir / "here" / "comparison.json")["tuning"]
    assert {name: item["trials"] for name, item in tuning.items()} == trials
    for name, item in tuning.items():
        scores = [trial["score"]["value"] for trial in item["trials"]]
        assert scores[item["chosen"]] == min(scores), name
    assert "Hyperparameter search" in (work_dir / "here" / "report.html").read_text()
    better = min(trials["lstm"], key=lambda trial: trial["score"]["value"])
    settings = resolve(files_of(work_dir / "here" / "lstm-5"), base=work_dir)
    chosen = {"lr": settings.train.lr, "dropout": settings.model.dropout, "hidden_size": settings.model.hidden_size}
    assert better["options"] == chosen
    assert settings.train.max_steps == 6
    InProcessTrainer.trained.clear()
    assert compare(capsys, *words)[0] == 0 and InProcessTrainer.trained == []


def test_a_comparison_that_cannot_start_leaves_no_files(work_dir, capsys):
    (work_dir / "text.txt").write_bytes(b"a\0b\n")
    assert main(["compare", "run.toml", "--models", "lstm", "--quiet"]) == 3
    assert not (work_dir / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-minutes", "1", "--max-tokens", "5"], "--max-minutes and --max-tokens cannot be combined"),
        (["--max-minutes", "0"], "--max-minutes: must be greater than 0, got 0"),
        (["--models", "lstm,"], "--models: expected a comma-separated list such as lstm,gru,transformer, got 'lstm,'"),
        (["--match-params", "some"], "--match-params: expected a count such as 250000, 250k or 1M, got 'some'"),
        (["--tune-trials", "1"], "--tune-trials: must be at least 2, got 1"),
        (["--csv", "no/t.csv"], "--csv: directory no does not exist"),
        (["--latex", "."], "--latex: . is a directory; name a file"),
        (["--markdown", "-", "--json"], "--markdown and --json cannot both use standard output; write one of them to a file"),
    ],
)
def test_errors_before_any_file_is_created(work_dir, capsys, words, said):
    assert expect_error(capsys, "compare", "run.toml", *words) == (2, said)
    assert not (work_dir / "runs").exists()


def test_unknown_names(work_dir, capsys):
    code, message = expect_error(capsys, "compare", "run.toml", "--metric", "bits_per_tokn")
    assert code == 2 and message == "--metric: unknown metric 'bits_per_tokn'; did you mean 'bits_per_token'?"
    code, message = expect_error(capsys, "compare", "run.toml", "--metric", "bleu")  # a score, but of translations
    assert code == 2 and message.startswith("--metric: unknown metric 'bleu'; choose from loss, ")
    code, message = expect_error(capsys, "compare", "run.toml", "--models", "lstm,grue")
    assert code == 2 and message == "--models: unknown architecture 'grue'; did you mean 'gru'?"


def test_without_test_or_validation_data_nothing_is_trained(work_dir, capsys):
    (work_dir / "run.toml").write_text(RUN.replace("valid = 0.1\ntest = 0.1\n", ""))
    message = "compare: the run file has no test or validation data; set data.test or data.valid"
    assert expect_error(capsys, "compare", "run.toml", "--models", "lstm") == (2, message)
    assert not (work_dir / "runs").exists()


def test_runs_of_changed_data_are_not_mixed(work_dir, capsys):
    words = ["run.toml", "--models", "ngram,rnn", "--output-dir", "all", "--quiet"]
    assert compare(capsys, *words)[0] == 0
    shutil.rmtree(work_dir / "all" / "rnn-5")
    text = work_dir / "text.txt"
    text.write_text(NAMES[: len(NAMES) // 2])
    message = f"all: {text} has changed since runs were trained on it; choose another --output-dir or use --overwrite"
    assert expect_error(capsys, "compare", *words) == (2, message)
    text.write_text(NAMES)
    assert compare(capsys, *words)[0] == 0 and InProcessTrainer.trained == ["ngram-5", "rnn-5", "rnn-5"]
    # other test data is measured, not learned: it may change
    text.with_name("test.txt").write_text("anas\nberto\n" * 5)
    (work_dir / "run.toml").write_text(RUN.replace("test = 0.1", 'test = "test.txt"'))
    words[4] = "other"
    assert compare(capsys, *words)[0] == 0
    before = by_name(work_dir / "other")["ngram"]["score"]
    text.with_name("test.txt").write_text("clatos\n" * 9)
    InProcessTrainer.trained.clear()
    assert compare(capsys, *words)[0] == 0 and InProcessTrainer.trained == []
    assert by_name(work_dir / "other")["ngram"]["score"] != before


def test_it_resumes_from_another_working_directory(work_dir, capsys, monkeypatch):
    (work_dir / "deep").mkdir()
    (work_dir / "deep" / "run.toml").write_text(RUN.replace('"text.txt"', '"../text.txt"'))
    options = ["--models", "ngram,rnn", "--quiet"]
    assert compare(capsys, "deep/run.toml", "--output-dir", "all", *options)[0] == 0
    InProcessTrainer.trained.clear()
    (work_dir / "beside").mkdir()
    monkeypatch.chdir(work_dir / "beside")
    assert compare(capsys, "../deep/run.toml", "--output-dir", "../all", *options)[0] == 0
    assert InProcessTrainer.trained == []


@pytest.mark.slow
@pytest.mark.parametrize("task", ["lm", "seq2seq"])
def test_a_moved_comparison_resumes(work_dir, capsys, monkeypatch, task):
    """The tokenizer of all runs moves with them: what it holds is the same, though its path is another."""
    models = "ngram,rnn"
    if task == "seq2seq":
        (work_dir / "pairs.tsv").write_text("".join(f"{name}\t{name[::-1]}\n" for name in NAMES.split()))
        other = 'task = "seq2seq"\nseed = 5\n[data]\ntrain = "pairs.tsv"\nvalid = 0.1\ntest = 0.1\n'
        other += '[tokenizer.source]\ntype = "char"\n'
        other += '[tokenizer.target]\ntype = "char"\n[model]\narch = "rnn"\nhidden_size = 8\n[train]\nmax_steps = 4\nbatch_tokens = 128\n'
        (work_dir / "run.toml").write_text(other)
        models = "rnn,gru"
    words = ["run.toml", "--models", models, "--quiet"]
    assert compare(capsys, *words, "--output-dir", "cmp")[0] == 0
    before = (work_dir / "cmp" / "comparison.json").read_bytes()
    (work_dir / "cmp").rename(work_dir / "moved")
    # one of them had not yet come to its end
    begun = work_dir / "moved" / "rnn-5"
    for name in ("model.safetensors", "metrics.jsonl"):
        (begun / name).unlink()
    shutil.rmtree(begun / "checkpoints", ignore_errors=True)
    InProcessTrainer.trained.clear()
    code, _, err = compare(capsys, *words, "--output-dir", "moved")
    assert (code, err) == (0, "") and InProcessTrainer.trained == ["rnn-5"]
    ours, theirs = (json.loads(text)["rows"] for text in (before, (work_dir / "moved" / "comparison.json").read_bytes()))
    assert {row["name"]: row["scores"] for row in ours} == {row["name"]: row["scores"] for row in theirs}
    # another tokenizer is another run, wherever it lies
    file = next((work_dir / "moved" / "tokenizer").glob("tokenizer*.json"))
    file.write_text(file.read_text().replace('"a"', '"\u00e4"', 1))
    settings = resolve(files_of(work_dir / "moved" / "rnn-5"), base=work_dir)
    table = settings.to_dict()["tokenizer"]
    assert "contains a run with different options (tokenizer" in str(
        moved_to(table, work_dir / "moved" / "rnn-5", settings, file)
    )


def moved_to(table: dict[str, Any], run: Path, settings: Any, file: Path) -> str:
    """What is said where a run is to go on with the tokenizer in `file`."""
    from weft.runs.run_dir import RunDir

    side = file.name.removeprefix("tokenizer.").removesuffix(".json").removesuffix("json").rstrip(".")
    there = {**table, side: {"file": str(file)}} if side else {"file": str(file)}
    asked = resolve({**settings.to_dict(), "tokenizer": there}, base=run)
    with pytest.raises(UsageError) as caught:
        RunDir(run).begin(asked, "", overwrite=False)
    return str(caught.value)


def test_if_all_runs_fail_json_reports_it(work_dir, capsys):
    (work_dir / "run.toml").write_text(RUN + "lr = 1e30\n")
    code, out, _ = compare(capsys, "run.toml", "--models", "lstm", "--json", "--quiet")
    data = json.loads(out)
    assert code == 6 and list(data) == [key for key in JSON_KEYS if key != "minimal_pairs"]
    assert data["rows"] == [] and [(failure["name"], failure["seed"], failure["code"]) for failure in data["failures"]] == [
        ("lstm", 5, 6)
    ]


def test_evaluation_locks_the_directory_and_removes_leftovers(work_dir, capsys):
    words = ["run.toml", "--models", "ngram", "--output-dir", "all", "--quiet", "--csv", "all/table.csv"]
    assert compare(capsys, *words)[0] == 0 and (work_dir / "all" / "table.csv").exists()
    left = files.temporary_path(work_dir / "all" / "results" / "ngram-5")  # as a process that was killed leaves it
    left.mkdir()

    def held(*ignored: object, **others: object) -> None:
        result = lock_holder(work_dir / "all")
        assert result is not None
        raise ResourceError("", result)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "load_or_evaluate", held)
        code, message = expect_error(capsys, "compare", *words)
    assert code == 5 and message.startswith(f"{work_dir / 'all'}: in use by another process (process ")
    assert not left.exists()


def test_ctrl_c_during_evaluation_keeps_all_results(work_dir, capsys, monkeypatch):
    def pressed(*ignored: object, **others: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evidence, "evaluate_run", pressed)
    code, out, err = compare(capsys, "run.toml", "--models", "ngram", "--quiet")
    assert (code, out) == (130, "")
    assert err == "Stopped. The results so far are saved. Run the same command to resume.\n"


def test_a_run_file_needs_no_arch_if_models_are_named(work_dir, capsys):
    (work_dir / "run.toml").write_text(RUN.replace('arch = "lstm"\n', ""))
    assert compare(capsys, "run.toml", "--models", "rnn,gru", "--quiet")[0] == 0
    assert InProcessTrainer.trained == ["rnn-5", "gru-5"]


def test_a_single_model_gets_a_suggestion_of_others(work_dir, capsys):
    code, _, err = compare(capsys, "run.toml", "--models", "lstm", "--output-dir", "one")
    message = "weft: note: lstm is the only model; set --models to some of lstm,ngram,conv,rnn,gru,mingru,minlstm,transformer,gpt, or to all"
    assert code == 0 and message in err.split("\n")
    assert "is the only model" not in compare(capsys, "run.toml", "--models", "ngram,lstm", "--output-dir", "two")[2]


# ---- runs that are there


def test_existing_runs_are_compared(work_dir, capsys):
    assert compare(capsys, "run.toml", "--models", "ngram,lstm", "--seeds", "2", "--output-dir", "runs/all", "--quiet")[0] == 0
    runs = [str(path.relative_to(work_dir)) for path in sorted((work_dir / "runs" / "all").glob("*-[56]"))]
    InProcessTrainer.trained.clear()
    code, _, err = compare(capsys, *runs, "runs/all")
    assert code == 0 and InProcessTrainer.trained == []
    assert err.startswith("weft: note: skipped runs/all: a comparison, not a run\n")
    ours, theirs = by_name(work_dir / "runs" / "comparison"), by_name(work_dir / "runs" / "all")
    assert {name: row["scores"] for name, row in ours.items()} == {name: row["scores"] for name, row in theirs.items()}
    assert ours["lstm"]["seeds"] == [5, 6]
    assert expect_error(capsys, "compare", *runs, "--models", "lstm") == (
        2,
        "--models: requires a run file; existing runs are not trained",
    )
    assert expect_error(capsys, "compare", *runs, "--output-dir", "runs/all") == (
        2,
        "runs/all: contains the comparison of a run file; choose another --output-dir",
    )
    assert expect_error(capsys, "compare", *runs, "--seeds", "2")[1].startswith("--seeds: requires a run file;")
    (work_dir / "mine").mkdir()
    (work_dir / "mine" / "notes.txt").touch()
    assert expect_error(capsys, "compare", *runs, "--output-dir", "mine") == (
        2,
        "mine: not empty and not a comparison (contains notes.txt); choose another --output-dir",
    )
    assert expect_error(capsys, "compare", "runs/all", "runs/comparison", "--quiet") == (
        2,
        "compare: no run; name run directories or a run file",
    )


def test_a_run_may_be_the_current_directory(work_dir, capsys, monkeypatch):
    assert compare(capsys, "run.toml", "--models", "ngram,lstm", "--output-dir", "all", "--quiet")[0] == 0
    monkeypatch.chdir(work_dir / "all" / "lstm-5" / "data")
    assert compare(capsys, "..", "../../ngram-5", "--output-dir", str(work_dir / "here"), "--quiet")[0] == 0
    monkeypatch.chdir(work_dir / "all" / "lstm-5")
    assert compare(capsys, ".", "../ngram-5", "--output-dir", str(work_dir / "here"), "--quiet")[0] == 0
    assert sorted(path.name for path in (work_dir / "here" / "results").iterdir()) == ["lstm-5", "ngram-5"]


def test_a_run_with_a_damaged_config_does_not_stop_the_others(work_dir, capsys):
    assert compare(capsys, "run.toml", "--models", "ngram,lstm", "--output-dir", "all", "--quiet")[0] == 0
    os.truncate("all/lstm-5/resolved.toml", 7)
    code, out, err = compare(capsys, "all/ngram-5", "all/lstm-5", "--output-dir", "some", "--quiet")
    assert code == 4 and "ngram" in out and err.startswith("weft: warning: lstm-5: all/lstm-5/resolved.toml: invalid TOML: ")
    assert main(["compare", "all/ngram-5", "all/lstm-5", "--report", "page.html", "--quiet"]) == 4
    assert "ngram" in Path("page.html").read_text() and "resolved.toml" in capsys.readouterr().err
    os.truncate("all/ngram-5/resolved.toml", 7)
    code, line = expect_error(capsys, "compare", "all/ngram-5", "all/lstm-5", "--output-dir", "none", "--quiet")
    assert code == 4 and line.startswith("all/ngram-5/resolved.toml: invalid TOML: ")


def test_a_run_with_an_invalid_config_does_not_stop_the_others(work_dir, capsys):
    assert compare(capsys, "run.toml", "--models", "ngram,lstm", "--output-dir", "all", "--quiet")[0] == 0
    resolved, message = Path("all/lstm-5/resolved.toml"), "all/lstm-5/resolved.toml: corrupted, or from another version: "
    original = resolved.read_text()
    for old, new in (("arch =", "arhc ="), ('task = "', 'task = "x'), ('arch = "lstm', 'arch = "x')):
        resolved.write_text(original.replace(old, new))
        code, out, err = compare(capsys, "all/ngram-5", "all/lstm-5", "--output-dir", "some", "--quiet")
        assert code == 4 and "ngram" in out and err.startswith(f"weft: warning: lstm-5: {message}")
        assert expect_error(capsys, "compare", "all/lstm-5", "--output-dir", "none", "--quiet")[1].startswith(message)


def test_a_path_that_is_not_a_run_is_refused(work_dir, capsys):
    (work_dir / "empty").mkdir()
    assert expect_error(capsys, "compare", "run.toml", "run.toml")[1] == "run.toml: is a run file, not a run directory"
    assert expect_error(capsys, "compare", "empty") == (4, "empty: not a run directory (resolved.toml is missing)")


# ---- stopped and killed


SLOW = """
import signal, sys, time
out = sys.argv[sys.argv.index("--output-dir") + 1]
signal.signal(signal.SIGINT, lambda number, frame: sys.exit(130))
open(out + ".ready", "w").close()
time.sleep(60)
"""


def test_ctrl_c_stops_every_run(work_dir, capsys, monkeypatch):
    """The runs are scripts that wait for it; that a real one saves is what test_resume.py is about."""
    (work_dir / "slow.py").write_text(SLOW)
    monkeypatch.setattr(comparing, "ParallelTrainer", ParallelTrainer)
    monkeypatch.setattr(comparing, "ThreadBudget", partial(ThreadBudget, command=(sys.executable, "-S", "-E", "slow.py")))

    def press() -> None:
        while len(list(work_dir.glob("here/*.ready"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    code, out, err = compare(
        capsys, "run.toml", "--models", "lstm,gru,rnn", "--jobs", "2", "--output-dir", "here", "--overwrite"
    )
    assert (code, out) == (130, "")
    assert err.endswith("Stopped. Saved to here. Run the same command without --overwrite to resume.\n")
    assert sorted(path.name for path in work_dir.glob("here/*.ready")) == ["gru-5.ready", "lstm-5.ready"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_after_a_kill_it_resumes_to_the_same_table(work_dir, capsys):
    """kill -9 in the middle of its second run; then the same command to its end."""
    (work_dir / "run.toml").write_text(RUN.replace("steps = 6", "steps = 400").replace("validations = 2", "validations = 8"))
    words = ["run.toml", "--models", "ngram,lstm", "--output-dir", "here"]
    run = work_dir / "here" / "lstm-5"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "weft", "compare", *words, "--quiet"], cwd=work_dir, env=environment)
    while not checkpoint.names(run):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    while lock_holder(run) is not None:  # what it started ends by itself, having saved
        time.sleep(0.01)
    assert 0 < read_run_status(run).steps <= 400 and not (work_dir / "here" / "comparison.json").exists()

    assert compare(capsys, *words, "--quiet")[0] == 0
    assert InProcessTrainer.trained in (["lstm-5"], [])
    assert compare(capsys, *words[:-1], "whole", "--quiet")[0] == 0
    left_alone = work_dir / "whole" / "lstm-5"
    assert (run / "metrics.jsonl").read_bytes() == (left_alone / "metrics.jsonl").read_bytes()
    ours, theirs = (read_tensors(item / "model.safetensors")[0] for item in (run, left_alone))
    assert ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    resumed, whole = by_name(work_dir / "here"), by_name(work_dir / "whole")
    for column in ("score", "scores", "p", "best", "num_parameters", "seeds"):
        assert {name: row[column] for name, row in resumed.items()} == {name: row[column] for name, row in whole.items()}
