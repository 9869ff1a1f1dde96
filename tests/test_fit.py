"""`weft fit`: from a data file to the best model."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from label_runs import single_label_rows, tagged_sentences, write_conll, write_tsv

import weft
from weft.cli.compare_progress import CompareObserver
from weft.cli.display import Display
from weft.cli.main import main
from weft.cli.signals import Stop
from weft.comparison.plan import FailedRun
from weft.errors import ModelError
from weft.report.comparison import ComparisonInfo
from weft.report.fit import _choose
from weft.runs import trial
from weft.runs.run import Run
from weft.runs.run_dir import RunDir
from weft.tasks.registry import find_task

MINUTES = "0.05"
SMALL = ("model.hidden_size=16", "train.batch_tokens=256", "train.num_validations=2", "train.device=cpu")


class Search(NamedTuple):
    """A finished search for the best model of reviews.tsv."""

    directory: Path
    result: dict[str, Any]  # printed by --json
    err: str
    evaluated: list[str]  # the split of each evaluation


def fit(*words: str, file: str = "reviews.tsv") -> int:
    return main(["fit", file, "--minutes", MINUTES, *(word for option in SMALL for word in ("--set", option)), *words])


@pytest.fixture(scope="module")
def search(tmp_path_factory) -> Iterator[Search]:
    """Every network is trained for its part of the time."""
    directory, evaluated, out, err = tmp_path_factory.mktemp("fit"), list[str](), io.StringIO(), io.StringIO()
    write_tsv(directory / "reviews.tsv", single_label_rows(300))
    evaluate = Run.evaluate

    def spy(self: Run[Any, Any], *args: Any, **options: Any) -> Any:
        evaluated.append("test" if "test" in self.config.datasets else "valid")
        return evaluate(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(directory)
        patch.setattr(trial, "_measure", lambda *_: (6000.0, 0.001))
        patch.setattr(Run, "evaluate", spy)
        assert fit("--json") == 0
    yield Search(directory, json.loads(out.getvalue()), err.getvalue(), evaluated)


def test_the_best_model_on_validation_data_is_tested_once(search):
    result = search.result
    assert result["task"] == "classification" and result["metric"] == "accuracy"
    assert [row["name"] for row in result["models"]] != [] and len(result["models"]) == 4
    accuracies = [row["valid"]["accuracy"] for row in result["models"]]
    assert accuracies == sorted(accuracies, reverse=True) and result["run"] == result["models"][0]["run"]
    assert search.evaluated == [*["valid"] * 4, "test"]


def test_the_best_model_is_an_ordinary_run(search):
    run = weft.load(search.directory / search.result["run"])
    assert search.result["test"]["accuracy"] == run.evaluate()["accuracy"].value >= 80
    label, text = single_label_rows(1)[0]
    assert run.predict(text).label == label
    assert (search.directory / search.result["report"]).is_file()


def test_training_and_test_data_do_not_overlap(search):
    datasets = weft.load(search.directory / "runs/fit-reviews/naive-bayes-0").config.datasets
    splits = [{record.line for record in datasets[name].records()} for name in ("train", "valid", "test")]
    assert [len(split) for split in splits] == [240, 30, 30] and len(set.union(*splits)) == 300


def test_options_of_the_user_are_those_of_all_networks(search):
    for arch in ("lstm", "transformer"):
        values = RunDir(search.directory / f"runs/fit-reviews/{arch}-0").read_resolved()
        assert (values["recommend"], values["model"]["hidden_size"], values["train"]["batch_tokens"]) == (False, 16, 256)


def test_the_same_command_resumes_and_prints_a_table(search, monkeypatch, capsys):
    monkeypatch.chdir(search.directory)
    monkeypatch.setattr(trial, "_measure", lambda *_: pytest.fail("the settings are known"))
    weights = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("model.safetensors")}
    assert fit() == 0
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("model.safetensors")} == weights
    captured = capsys.readouterr()
    assert "reviews.tsv: classification: " in captured.err
    assert "valid accuracy" in captured.out and f"\nBest: {search.result['models'][0]['name']}. Test: accuracy " in captured.out
    assert "Report: runs/fit-reviews/report.html\nNext: weft predict runs/fit-reviews/" in captured.err


def test_another_time_is_refused_in_the_same_directory(search, monkeypatch, capsys):
    monkeypatch.chdir(search.directory)
    assert fit("--minutes", "0.2") == 2
    assert "different options (budget.max_minutes: 0.05, now 0.2)" in capsys.readouterr().err


@pytest.mark.slow
def test_networks_that_cannot_be_trained_in_the_time_are_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "_measure", lambda *_: (6000.0, 60.0))
    for name, count in (("reviews", 100), ("valid", 40), ("test", 50)):
        write_tsv(Path(f"{name}.tsv"), single_label_rows(count, seed=count))
    assert fit("--valid", "valid.tsv", "--test", "test.tsv") == 0
    captured = capsys.readouterr()
    assert "is too short for lstm: a step takes 60 seconds" in captured.err
    assert "naive-bayes" in captured.out and "lstm" not in captured.out
    datasets = weft.load("runs/fit-reviews/naive-bayes-0").config.datasets
    assert {name: len(list(data.records())) for name, data in datasets.items()} == {"train": 100, "valid": 40, "test": 50}


def test_a_time_in_which_nothing_can_be_trained_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "_measure", lambda *_: (6000.0, 60.0))
    write_conll(tmp_path / "tags.conll", tagged_sentences(200))
    assert main(["fit", "tags.conll", "--minutes", "0.1"]) == 2
    assert "0.1 is too short for any model; 0.05 is too short for lstm: a step takes 60 seconds" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_a_time_that_is_none_is_refused(minutes, capsys):
    assert main(["fit", "missing.csv", "--minutes", minutes]) == 2
    assert "must be greater than 0" in capsys.readouterr().err


def test_data_that_does_not_fit_the_task_is_refused(search, monkeypatch, capsys):
    monkeypatch.chdir(search.directory)
    assert fit("--task", "tagging") == 3
    assert "does not fit task tagging" in capsys.readouterr().err


def test_a_search_in_which_every_training_fails_says_why(tmp_path):
    info = ComparisonInfo("fit", "weft fit", None, [FailedRun("lstm", 0, "loss became NaN", 6)])
    with pytest.raises(ModelError, match="no model could be trained: lstm, seed 0: loss became NaN"):
        _choose(find_task("classification"), {}, info, tmp_path, CompareObserver(Display(quiet=True), Stop()))


def test_a_run_file_is_not_data(capsys):
    assert main(["fit", "run.toml"]) == 2
    assert "run.toml is a run file, not data; use weft train run.toml" in capsys.readouterr().err
