"""`weft fit` and `weft.fit`: from a data file to the best model."""

import io
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
import pytest
from compare_helpers import InProcessTrainer
from label_runs import single_label_rows, tagged_sentences, write_conll, write_tsv

import weft
from weft.cli.compare_progress import CompareObserver
from weft.cli.display import Display
from weft.cli.main import main
from weft.cli.signals import Stop
from weft.comparison import runner
from weft.comparison.plan import COMPARISON, PlannedRun, Variant
from weft.comparison.results import load as load_results
from weft.comparison.scores import ranking_metric
from weft.comparison.train import Outcome
from weft.errors import ModelError, TrainingInterrupted, UsageError
from weft.metrics.metric import metrics_of
from weft.plots.formatting import html
from weft.report import fit as fit_module
from weft.report import fit_refit
from weft.report.fit_candidates import RESERVE, STARTUP_SECONDS, CandidateArchs, Comparison, NetworkTime, SearchTime
from weft.report.fit_choice import standard_error
from weft.report.fit_ensemble import EnsembleScore
from weft.report.fit_refit import refit_values
from weft.runs import trial
from weft.runs.run import Run
from weft.runs.run_dir import RunDir
from weft.runs.status import read_run_status
from weft.tasks.registry import find_task

MINUTES = "5"
SECONDS = 1.0  # of each network
NETWORKS, BASELINES = ("gru", "conv"), ("naive-bayes", "logistic-regression")
SMALL = ("model.hidden_size=16", "train.batch_tokens=256", "train.num_validations=2", "train.device=cpu")


class Search(NamedTuple):
    """A finished search for the best model of reviews.tsv."""

    directory: Path
    result: dict[str, Any]  # printed by --json
    err: str
    evaluated: list[str]  # the split of each evaluation

    @property
    def output_dir(self) -> Path:
        return self.directory / "runs/fit-reviews"


def fit(*words: str, file: str = "reviews.tsv") -> int:
    return main(["fit", file, "--minutes", MINUTES, *(word for option in SMALL for word in ("--set", option)), *words])


@pytest.fixture(autouse=True)
def fast_training(monkeypatch):
    """Models are trained in this process, and networks for a moment."""
    train_fast(monkeypatch)


def train_fast(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(trial, "_measure", lambda *_: (6000.0, 0.001))
    patch.setattr(SearchTime, "part", lambda self: SECONDS)
    patch.setattr(InProcessTrainer, "trained", [], raising=False)
    for module in (runner, fit_refit):
        patch.setattr(module, "ParallelTrainer", InProcessTrainer)


@pytest.fixture(scope="module")
def search(tmp_path_factory) -> Iterator[Search]:
    directory, evaluated, out, err = tmp_path_factory.mktemp("fit"), list[str](), io.StringIO(), io.StringIO()
    write_tsv(directory / "reviews.tsv", single_label_rows(300))
    evaluate = Run.evaluate

    def spy(self: Run[Any, Any], *args: Any, **options: Any) -> Any:
        evaluated.append("test" if "test" in self.config.datasets else "valid")
        return evaluate(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(directory)
        train_fast(patch)
        patch.setattr(Run, "evaluate", spy)
        assert fit("--json") == 0
    yield Search(directory, json.loads(out.getvalue()), err.getvalue(), evaluated)


def lines_of(run: Path) -> dict[str, set[int]]:
    """The lines of each split of a run."""
    return {name: {record.line for record in split.records()} for name, split in weft.load(run).config.datasets.items()}


def test_the_best_model_on_validation_data_is_tested_once(search):
    result = search.result
    assert result["task"] == "classification" and result["metric"] == "accuracy"
    assert {row["name"] for row in result["models"]} == {*NETWORKS, *BASELINES}
    chosen, *others = [row["valid"]["accuracy"] for row in result["models"]]
    assert others == sorted(others, reverse=True) and result["run"] == result["models"][0]["run"]
    assert chosen >= others[0] or result["models"][0]["name"] in BASELINES
    assert search.evaluated == [*["valid"] * (4 + 2), "test"]  # of the candidates, and of two ensembles


def test_of_equally_good_models_the_simplest_is_the_best(search):
    runs = {name: load_results(search.output_dir / "results" / f"{name}-0") for name in ("gru", "conv", *BASELINES)}
    equal = {name: result._replace(scores=runs["gru"].scores) for name, result in runs.items()}
    ranked, _ = fit_module._rank(find_task("classification"), [equal], [])
    first, second, *networks = ranked
    assert {first.name, second.name} == set(BASELINES) and first.num_parameters < second.num_parameters
    assert networks[0].num_parameters < networks[1].num_parameters


@pytest.mark.parametrize(("errors_of_baseline", "best"), [(2, "logistic-regression"), (8, "gru")])
def test_a_network_must_be_significantly_better_than_a_baseline(search, errors_of_baseline, best):
    """With e more errors in 30 texts, the standard error of the difference is about sqrt(e) texts."""
    gru, regression = (load_results(search.output_dir / "results" / f"{name}-0") for name in ("gru", "logistic-regression"))
    texts = len(gru.items.keys)
    results = {}
    for name, result, errors in (("gru", gru, 0), ("logistic-regression", regression, errors_of_baseline)):
        statistics = {**result.items.statistics, "exact": (np.arange(texts) >= errors).astype(float)}
        scores = [
            score._replace(value=100 * (1 - errors / texts)) if score.name == "accuracy" else score for score in result.scores
        ]
        results[name] = result._replace(items=replace(result.items, statistics=statistics), scores=scores)
    ranked, metric = fit_module._rank(find_task("classification"), [results], [])
    error = standard_error([results["gru"]], [results["logistic-regression"]], metric)
    fraction = errors_of_baseline / texts
    assert error == pytest.approx(100 * np.sqrt(fraction * (1 - fraction) / texts), rel=0.1)
    assert ranked[0].name == best and len(ranked) == 2


def test_the_standard_error_is_that_of_the_examples_of_all_folds(search):
    gru, bayes = (load_results(search.output_dir / "results" / f"{name}-0") for name in ("gru", "naive-bayes"))
    accuracy = metrics_of(find_task("classification").eval_suites, ["accuracy"])["accuracy"]
    correct = np.arange(len(gru.items.keys)) % 3 > 0
    gru, bayes = (
        result._replace(items=replace(result.items, statistics={"exact": values, "examples": np.ones(len(values))}))
        for result, values in ((gru, np.ones(len(correct))), (bayes, correct.astype(float)))
    )
    expected = 100 * np.sqrt(1 / 3 * 2 / 3 / len(correct))
    assert standard_error([gru], [bayes], accuracy) == pytest.approx(expected, rel=0.1)
    assert standard_error([gru] * 4, [bayes] * 4, accuracy) == pytest.approx(expected / 2, rel=0.1)
    other = bayes._replace(items=replace(bayes.items, keys=bayes.items.keys + 1))
    assert standard_error([gru], [other], accuracy) == 0.0  # nothing to compare


def test_few_validation_examples_are_noted(search):
    assert (
        "note: 30 validation examples can hardly tell models apart; --folds compares on all of the training data" in search.err
    )


def test_the_best_model_is_an_ordinary_run(search):
    run = weft.load(search.directory / search.result["run"])
    assert search.result["test"]["accuracy"] == run.evaluate()["accuracy"].value >= 80
    label, text = single_label_rows(1)[0]
    assert run.predict(text).label == label
    assert (search.directory / search.result["report"]).is_file()


def test_training_and_test_data_do_not_overlap(search):
    splits = [lines_of(search.output_dir / "naive-bayes-0")[name] for name in ("train", "valid", "test")]
    assert [len(split) for split in splits] == [240, 30, 30] and len(set.union(*splits)) == 300


def test_options_of_the_user_are_those_of_all_networks(search):
    for arch in NETWORKS:
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


def test_the_report_has_the_command_with_its_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fit_module, "candidate_archs", lambda _: CandidateArchs(["naive-bayes"], []))
    for name, count in (("my reviews", 100), ("v", 60), ("t", 60)):
        write_tsv(Path(f"{name}.tsv"), single_label_rows(count, seed=count))
    words = ["fit", "my reviews.tsv", "--minutes", "0.5", "--task", "classification", "--valid", "v.tsv", "--test", "t.tsv"]
    words += ["--refit", "--set", "train.device=cpu", "--output-dir", "out"]
    assert main([*words, "--overwrite"]) == 0
    command = json.loads(Path("out", COMPARISON).read_text())["command"]
    assert command == shlex.join(["weft", *words]) and f'<pre class="command">{html(command)}</pre>' in report_of("out")
    assert main([*words, "--folds", "2", "--output-dir", "folds"]) == 0
    words = [*words[:-4], "--folds", "2", *words[-4:-2], "--output-dir", "folds"]
    assert json.loads(Path("folds/fold-1", COMPARISON).read_text())["command"] == shlex.join(["weft", *words])
    weft.fit("my reviews.tsv", output_dir="python")
    assert "weft.fit(&#x27;my reviews.tsv&#x27;, ...)" in report_of("python")


def report_of(directory: str) -> str:
    return Path(directory, "report.html").read_text()


@pytest.mark.parametrize("is_better", [True, False])
def test_the_report_names_the_model_that_was_chosen_as_the_terminal_does(is_better, search, monkeypatch, capsys):
    monkeypatch.chdir(search.directory)
    monkeypatch.setattr(fit_module, "is_significant", lambda *_: is_better)
    assert fit() == 0
    best, reason, test = re.findall(r"\nBest: (\S+?)(?: \((.*)\))?\. Test: (.*)\n", capsys.readouterr().out)[0]
    text = report_of(str(search.output_dir))
    (line,) = [row for row in text.split("</tr>") if "<tr class=best>" in row and 'class="wide"' in row]
    assert f">{best}</bdi>" in line.replace("<wbr>", "") and 'title="chosen"' in line
    visible = re.sub("<.*?>", "", text)
    assert f"{best} is chosen. On validation data: accuracy " in visible and f"On test data: {test}." in visible
    assert (f"; {reason}." in visible) if reason else ("not significantly better" not in visible)
    assert "test items" not in visible and "reviews.tsv (validation data)" in visible


def test_of_equal_models_the_chosen_one_is_the_best_of_the_report(search, monkeypatch):
    monkeypatch.chdir(search.directory)
    names = ("gru", "conv", *BASELINES)
    results = {name: load_results(search.output_dir / "results" / f"{name}-0") for name in names}
    items = results["gru"].items
    equal = {name: [result._replace(scores=results["gru"].scores, items=items)] for name, result in results.items()}
    monkeypatch.setattr(fit_module, "evaluate_runs", lambda *_, **__: (equal, []))
    assert fit() == 0
    document = json.loads((search.output_dir / COMPARISON).read_text())
    assert document["rows"][0]["name"] == document["choice"]["name"] in BASELINES and document["rows"][0]["best"]


def test_another_time_is_refused_in_the_same_directory(search, monkeypatch, capsys):
    monkeypatch.chdir(search.directory)
    assert fit("--minutes", "0.2") == 2
    assert "different options (budget.max_minutes: 5.0, now 0.2)" in capsys.readouterr().err


def test_networks_that_cannot_be_trained_in_the_time_are_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "_measure", lambda *_: (6000.0, 60.0))
    for name, count in (("reviews", 100), ("valid", 40), ("test", 50)):
        write_tsv(Path(f"{name}.tsv"), single_label_rows(count, seed=count))
    assert fit("--valid", "valid.tsv", "--test", "test.tsv") == 0
    captured = capsys.readouterr()
    # a step takes a minute; 8% of the time is for the evaluation
    reason = "100 steps of gru take 1h40m, and its part of the time is 1.0s"
    assert (
        f"conv: left out so that gru has more time: {reason}; 21" in captured.err
        and captured.err.count(" minutes are enough") == 2
    )
    assert f"gru: left out: {reason}; 10" in captured.err
    assert "naive-bayes" in captured.out and "gru" not in captured.out
    monkeypatch.setattr(trial, "_measure", lambda *_: pytest.fail("the search is finished"))
    assert fit("--valid", "valid.tsv", "--test", "test.tsv") == 0
    assert capsys.readouterr().out == captured.out
    sizes = {name: len(lines) for name, lines in lines_of(Path("runs/fit-reviews/naive-bayes-0")).items()}
    assert sizes == {"train": 100, "valid": 40, "test": 50}


def test_a_time_in_which_nothing_can_be_trained_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "_measure", lambda *_: (6000.0, 60.0))
    write_conll(tmp_path / "tags.conll", tagged_sentences(200))
    assert main(["fit", "tags.conll", "--minutes", "0.1"]) == 2
    message = "--minutes: 0.1 is too short for any model; use at least 108.8"
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_last_network_is_left_out_if_the_time_is_enough_for_the_first_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "_measure", lambda *_: (6000.0, 0.015))  # 100 steps take 1.5 seconds
    monkeypatch.setattr(SearchTime, "part", lambda self: 2.0 / self.num_parts)
    write_tsv(Path("reviews.tsv"), single_label_rows(100))
    assert fit() == 0
    captured = capsys.readouterr()
    reason = "100 steps of gru take 1.5s, and its part of the time is 1.0s"
    assert f"conv: left out so that gru has more time: {reason}; " in captured.err and " minutes are enough" in captured.err
    assert "gru" in captured.out and "conv" not in captured.out


def test_networks_share_the_time_that_is_left(monkeypatch, tmp_path):
    now = 0.0
    monkeypatch.undo()  # of `part`
    monkeypatch.setattr("time.monotonic", lambda: now)
    clock = SearchTime(10.0, {"gru": 2, "conv": 2}, trains_again=True, seconds_used=60.0)
    seconds = 600 * (1 - RESERVE) - 60
    assert clock.part() == pytest.approx(seconds / 5 - STARTUP_SECONDS)
    clock.networks = {"gru": NetworkTime(clock.part(), 1.0), "conv": NetworkTime(clock.part(), 1.0)}
    baseline, gru = (planned_run(arch, tmp_path) for arch in ("naive-bayes", "gru"))
    assert clock.before_start(baseline) is baseline
    started = clock.before_start(gru)
    assert isinstance(started, PlannedRun) and started.values["train"]["max_minutes"] * 60 == pytest.approx(
        seconds / 5 - STARTUP_SECONDS, abs=0.01
    )
    now = 200.0
    assert clock.part() == pytest.approx((seconds - 200) / 4 - STARTUP_SECONDS)  # what the first did not need is shared
    now = 545.0
    outcome = clock.before_start(gru)
    assert isinstance(outcome, Outcome) and outcome.reason == "left out, because no time was left for it"


def planned_run(arch: str, directory: Path) -> PlannedRun:
    return PlannedRun(Variant(arch, {"model": {"arch": arch}, "train": {"max_minutes": 1.0}}), 0, directory / arch)


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_a_time_that_is_none_is_refused(minutes, capsys):
    assert main(["fit", "missing.csv", "--minutes", minutes]) == 2
    assert "must be greater than 0" in capsys.readouterr().err


def test_data_that_does_not_fit_the_task_is_refused(search, monkeypatch, capsys):
    monkeypatch.chdir(search.directory)
    assert fit("--task", "tagging") == 3
    assert "does not fit task tagging" in capsys.readouterr().err


def test_a_search_in_which_every_training_fails_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_conll(tmp_path / "tags.conll", tagged_sentences(200))
    assert (
        main(["fit", "tags.conll", "--set", "train.device=cpu", "--set", "train.lr=1e37", "--set", "model.hidden_size=8"]) == 4
    )
    assert "no model could be trained: lstm, seed 0: step" in capsys.readouterr().err


def test_a_run_file_is_not_data(capsys):
    assert main(["fit", "run.toml"]) == 2
    assert "run.toml is a run file, not data; use weft train run.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("reviews.tsv",), "reviews.tsv: named twice; name each file once"),
        (("--test", "copy.tsv"), "--test: copy.tsv is also the training data; name another file, or leave out --test"),
        (("--valid", "other.tsv", "--test", "other.tsv"), "--test: other.tsv is also the validation data"),
        (("--valid", "missing.tsv"), "missing.tsv: file not found"),
        (("--set", "data.train=other.tsv"), "data.train: the training data of a search is its argument"),
        (("--set", "train.max_steps=5"), "train.max_steps: the time of a search is divided among its models; set --minutes"),
        (("--task", "classification", "--set", "task=lm"), "--task: set to 'classification' and to 'lm'"),
        (("--task", "clasification"), "--task: unknown task 'clasification'; did you mean 'classification'?"),
        (("--set", "data.label_column=source"), "reviews.tsv: all examples have the same label; add examples with other"),
        (("--folds", "95"), "--folds: 90 training examples are too few for 95 folds; use fewer"),
    ],
)
def test_a_search_that_cannot_give_a_result_is_refused_before_training(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("reviews", 0), ("other", 1)):
        rows = [(label, text, "web") for label, text in single_label_rows(100, seed=seed)]
        write_tsv(Path(f"{name}.tsv"), rows, header="label\ttext\tsource")
    Path("copy.tsv").symlink_to("reviews.tsv")
    assert fit(*words) in (2, 3)
    assert message in capsys.readouterr().err and not Path("runs").exists()


def test_the_metric_of_the_table_is_tested(search, monkeypatch, capsys):
    monkeypatch.chdir(search.directory)
    monkeypatch.setattr(fit_module, "ranking_metric", lambda task, runs, _: ranking_metric(task, runs, "f1_macro"))
    assert fit() == 0
    out = capsys.readouterr().out
    assert "valid F1 (macro)" in out and " Test: F1 (macro) " in out


def test_infinite_scores_are_null_in_json(search, monkeypatch, capsys):
    monkeypatch.chdir(search.directory)
    evaluate = Run.evaluate

    def infinite(self: Run[Any, Any], *args: Any, **options: Any) -> Any:
        evaluation = evaluate(self, *args, **options)
        return replace(evaluation, scores={name: score._replace(value=inf) for name, score in evaluation.scores.items()})

    monkeypatch.setattr(Run, "evaluate", infinite)
    assert fit("--json") == 0
    assert json.loads(capsys.readouterr().out)["test"]["accuracy"] is None


@pytest.mark.parametrize("failures", [1, [1], [{"name": "gru"}]])
def test_damaged_failures_of_an_earlier_search_are_ignored(failures, tmp_path):
    (tmp_path / COMPARISON).write_text(json.dumps({"failures": failures}))
    assert Comparison(tmp_path, {}, overwrite=False).earlier_failures() == []


def weights_of(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("model.safetensors")}


# ---- refit


def test_the_best_model_is_trained_again_with_the_validation_data(search, monkeypatch, capsys):
    monkeypatch.chdir(search.directory)
    assert fit("--refit", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    name = result["models"][0]["name"]
    run = search.output_dir / f"{name}-refit"
    assert search.directory / result["run"] == run
    before, after = lines_of(search.output_dir / f"{name}-0"), lines_of(run)
    assert after["test"] == before["test"] and len(after["test"]) == 30
    assert after["train"] == before["train"] | before["valid"] and "valid" not in after
    assert result["test"]["accuracy"] == weft.load(run).evaluate()["accuracy"].value
    weights = weights_of(search.directory)
    assert fit("--refit") == 0 and weights_of(search.directory) == weights  # the same command trains nothing
    assert f"Best: {name} trained again. Test: accuracy" in capsys.readouterr().out


def test_a_network_is_trained_again_up_to_its_best_step(search):
    run = search.output_dir / "gru-0"
    old, new = RunDir(run).read_resolved(), refit_values(run, None)
    assert new["train"]["max_steps"] == read_run_status(run).best_step > 0 and "max_minutes" not in new["train"]
    assert new["tokenizer"] == old["tokenizer"] and "file" in new["tokenizer"]
    assert new["model"] == {**old["model"], "temperature": weft.load(run).predictor.model.temperature}
    assert new["data"] == {name: value for name, value in old["data"].items() if name != "valid"}


def test_a_baseline_is_trained_again_with_the_options_that_it_chose(search):
    run = search.output_dir / "logistic-regression-0"
    new, model = refit_values(run, None)["model"], weft.load(run).model
    assert (new["C"], new["temperature"]) == (model.options["C"], model.temperature)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"train": "a.tsv", "valid": "b.tsv", "test": 0.1}, "the validation data is a file, but the test data is a fraction"),
        ({"train": ["a.en", "a.de"], "valid": ["b.en", "b.de"], "test": ["c.en", "c.de"]}, "parallel files cannot be joined"),
    ],
)
def test_files_that_cannot_be_joined_are_refused_before_training(data, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.tsv", "b.tsv"):
        write_tsv(Path(name), single_label_rows(120))
    for name in ("a", "b", "c"):
        for side in ("en", "de"):
            Path(f"{name}.{side}").write_text("".join(f"the {side} word {number}\n" for number in range(120)))
    with pytest.raises(UsageError, match=problem):
        weft.fit(data["train"], valid=data["valid"], test=data["test"], refit=True)
    assert not Path("runs").exists()


def test_validation_files_become_training_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fit_module, "candidate_archs", lambda _: CandidateArchs(["naive-bayes"], []))
    for seed, name in enumerate(("a", "b", "c")):
        write_tsv(Path(f"{name}.tsv"), single_label_rows(60, seed=seed))
    result = weft.fit("a.tsv", valid="b.tsv", test="c.tsv", refit=True, output_dir="out")
    data = weft.load(result.best.run).config.data
    assert [Path(path).name for path in data.train] == ["a.tsv", "b.tsv"] and Path(data.test).name == "c.tsv"
    assert data.valid is None and result.best.run == Path("out") / f"{result.best.name}-refit"


def test_a_model_that_cannot_be_trained_again_is_an_error(search):
    values = {**refit_values(search.output_dir / "gru-0", None), "task": "classification"}
    values["train"] = {**values["train"], "lr": 1e37, "max_steps": 50}
    with (
        Display(quiet=True) as display,
        pytest.raises(ModelError, match=r"broken: could not be trained: step \d+: loss is nan"),
    ):
        fit_refit.refit(values, search.output_dir / "broken", CompareObserver(display, Stop()), overwrite=False)


# ---- folds


def test_cross_validation(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fit_module, "candidate_archs", lambda _: CandidateArchs(["naive-bayes"], []))
    write_tsv(Path("reviews.tsv"), single_label_rows(150))
    assert fit("--folds", "3", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in result["models"]} == {"naive-bayes"} and result["ensemble"] is None
    folds = [Path(f"runs/fit-reviews/fold-{number}") for number in (1, 2, 3)]
    for row in result["models"]:
        runs = [weft.load(fold / f"{row['name']}-0") for fold in folds]
        for run in runs:
            run.config.hide_test_data()
        scores = [run.evaluate()["accuracy"].value for run in runs]
        assert row["valid"]["accuracy"] == pytest.approx(fmean(scores))
        assert row["standard_deviation"]["accuracy"] == pytest.approx(stdev(scores))
    splits = [lines_of(fold / "naive-bayes-0") for fold in folds]
    refitted = lines_of(Path(result["run"]))
    assert set.union(*(split["valid"] for split in splits)) == refitted["train"] and len(refitted["train"]) == 135
    assert all(split["test"] == refitted["test"] and not split["train"] & split["valid"] for split in splits)
    weights = weights_of(tmp_path)
    assert fit("--folds", "3") == 0 and weights_of(tmp_path) == weights
    choice = json.loads((folds[0] / COMPARISON).read_text())["choice"]
    assert "the mean over 3 folds; this page shows the first" in choice["score"]
    assert choice["test"].endswith(", trained again on all training data")
    out = capsys.readouterr().out
    assert "valid accuracy  std" in out and "trained again. Test: accuracy" in out


@pytest.mark.slow
def test_each_fold_has_its_own_tokenizer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fit_module, "candidate_archs", lambda _: CandidateArchs([], ["gru"]))
    rows = [(label, f"{text} only{index}") for index, (label, text) in enumerate(single_label_rows(60))]
    write_tsv(Path("reviews.tsv"), rows)
    result = weft.fit("reviews.tsv", folds=2, overrides=["model.hidden_size=8", "train.device=cpu"])
    runs = [weft.load(f"runs/fit-reviews/fold-{number}/gru-0") for number in (1, 2)]
    tokenizers = [run.vocabulary.tokenizer for run in runs]
    words = [{tokenizer.token_text(token_id) for token_id in range(tokenizer.vocab_size)} for tokenizer in tokenizers]
    assert words[0] != words[1]
    for run, known in zip(runs, words, strict=True):
        valid = {word for record in run.config.datasets["valid"].records() for text in record.texts for word in text.split()}
        assert not {word for word in valid if word.startswith("only")} & known
    assert result.best.deviations.keys() == result.best.scores.keys()


def test_folds_must_be_at_least_two(search, monkeypatch, capsys):
    monkeypatch.chdir(search.directory)
    assert fit("--folds", "1") == 2
    assert "--folds: must be at least 2, got 1" in capsys.readouterr().err


def test_runs_that_cannot_be_read_are_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fit_module, "candidate_archs", lambda _: CandidateArchs(["naive-bayes"], []))
    write_tsv(Path("reviews.tsv"), single_label_rows(100))
    run = weft.fit("reviews.tsv").best.run
    shutil.rmtree(run.parent / "results")
    for path in run.glob("features*.json"):
        path.write_text("{}")
    with pytest.raises(ModelError, match="no model could be read: naive-bayes, seed 0: "):
        weft.fit("reviews.tsv")


def test_an_interrupted_search_resumes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fit_module, "candidate_archs", lambda _: CandidateArchs(["naive-bayes"], ["gru"]))
    write_tsv(Path("reviews.tsv"), single_label_rows(100))
    train = InProcessTrainer.train
    overrides = ["model.hidden_size=8", "train.device=cpu"]

    def interrupt(self: InProcessTrainer, plan: Any) -> Any:
        if plan[0].variant.arch == "gru":
            raise TrainingInterrupted("", "")
        return train(self, plan)

    with monkeypatch.context() as patch:
        patch.setattr(InProcessTrainer, "train", interrupt)
        with pytest.raises(TrainingInterrupted, match="the search was interrupted and has saved; fit again to resume"):
            weft.fit("reviews.tsv", overrides=overrides)
    result = weft.fit("reviews.tsv", overrides=overrides)
    assert InProcessTrainer.trained == ["naive-bayes-0", "gru-0"] and len(result.candidates) == 2


# ---- the ensemble


def test_the_ensemble_is_that_of_the_best(search):
    ensemble, models = search.result["ensemble"], search.result["models"]
    assert ensemble["runs"] == [row["run"] for row in models[: len(ensemble["runs"])]] and len(ensemble["runs"]) in (2, 3)
    combined = weft.ensemble([search.directory / run for run in ensemble["runs"]])
    combined.config.hide_test_data()
    assert ensemble["valid"]["accuracy"] == combined.evaluate()["accuracy"].value


@pytest.mark.parametrize(("difference", "is_shown"), [(0.5, True), (0.0, False)])
def test_an_ensemble_is_shown_if_it_is_better_than_every_single_model(difference, is_shown, search, monkeypatch, capsys):
    first, second = search.result["models"][:2]
    best = max(row["valid"]["accuracy"] for row in search.result["models"])
    ensemble = EnsembleScore(
        (first["name"], second["name"]), (Path(first["run"]), Path(second["run"])), best + difference, is_fitted=False
    )
    monkeypatch.chdir(search.directory)
    monkeypatch.setattr(fit_module, "best_ensemble", lambda *_: ensemble)
    # a network has the best score, but a baseline is chosen
    monkeypatch.setattr(fit_module, "is_significant", lambda *_: False)
    assert fit() == 0
    captured = capsys.readouterr()
    assert (f"ensemble of {first['name']} + {second['name']}" in captured.out) == is_shown
    assert ("Better on validation data: " in captured.err) == is_shown


def test_the_command_of_a_better_ensemble_works(search, monkeypatch, capsys):
    runs = tuple(Path(row["run"]) for row in search.result["models"][:2])
    better = EnsembleScore(("a", "b"), runs, 100.5, is_fitted=False)
    monkeypatch.chdir(search.directory)
    names = tuple(row["name"] for row in search.result["models"][:2])
    monkeypatch.setattr(fit_module, "best_ensemble", lambda *_: better._replace(names=names))
    assert fit() == 0
    (line,) = [line for line in capsys.readouterr().err.split("\n") if line.startswith("Better on validation data: ")]
    words = line.removeprefix("Better on validation data: weft ").split(" < ")[0].split()
    assert words == ["predict", str(runs[0]), "--ensemble", str(runs[1])]
    Path("input.txt").write_text("a line\n")
    assert main([*words, "--input", "input.txt"]) == 0


def test_a_mixture_of_language_models_has_fitted_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = [f"{first}{second}a{third}" for first in "bdgkl" for second in "aeiou" for third in "nrst"]
    Path("names.txt").write_text("\n".join(names * 4) + "\n")
    options = ("model.hidden_size=16", "train.device=cpu", "model.num_layers=1")
    words = [word for option in options for word in ("--set", option)]
    assert main(["fit", "names.txt", "--task", "lm", *words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    singles = [row["valid"][result["metric"]] for row in result["models"]]
    # the n-gram model is first unless a network is significantly better
    assert result["metric"] == "loss" and len(singles) >= 2 and singles[0] <= min(singles) + 0.01
    assert result["ensemble"]["valid"]["loss"] <= singles[0] + 1e-6  # the weights can leave out a model


# ---- Python


def test_fit_from_python(search, monkeypatch):
    monkeypatch.chdir(search.directory)
    notes: list[str] = []

    class Notes(weft.TrainCallback):
        def on_note(self, text: str) -> None:
            notes.append(text)

    overrides: dict[str, Any] = {"model.hidden_size": 16, "train.batch_tokens": 256}
    overrides |= {"train.num_validations": 2, "train.device": "cpu"}
    result = weft.fit("reviews.tsv", minutes=5, overrides=overrides, callback=Notes())
    assert [row.name for row in result.candidates] == [row["name"] for row in search.result["models"]]
    assert str(result.best.run) == search.result["run"] and result.report.is_file()
    assert result.test["accuracy"].value == search.result["test"]["accuracy"]
    assert weft.load(result.best.run).predict(single_label_rows(1)[0][1]).label == single_label_rows(1)[0][0]
    assert notes[0].startswith("reviews.tsv: classification: ") and repr(result).startswith(f"Fit({result.best.name}, ")
    with pytest.raises(weft.errors.UsageError, match="minutes: must be greater than 0, got -1"):
        weft.fit("reviews.tsv", minutes=-1)
    with pytest.raises(weft.errors.ConfigError, match="unknown option"):
        weft.fit("reviews.tsv", fold=3)
