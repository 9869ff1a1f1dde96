"""Classifiers end to end: train, resume, load, evaluate, predict, and the command line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from command_line import expect_error, set_stdin, stream_output
from label_runs import KEYS, LabelRuns, classification_run_file, single_label_rows, text_pair_rows, write_tsv
from small_runs import SilentCallback, run_hashes, train_here

import weft
from weft.cli.main import main
from weft.errors import ConfigError, DataError, ModelError, TrainingInterrupted, UsageError
from weft.metrics.calibration import softmax_temperature
from weft.metrics.classification import LabelScore
from weft.models import logistic_regression as regression
from weft.models import naive_bayes as bayes
from weft.models.baseline_config import LogisticRegressionConfig, NaiveBayesConfig
from weft.runs.resolve import resolve
from weft.runs.run import AnyRun
from weft.tasks.classification.evaluation import balance, targets, unseen
from weft.tasks.classification.presets import PRESETS as CLASSIFY
from weft.tasks.label_report import MAX_LABELS, confusion_table, label_table
from weft.tensors import read_tensors
from weft.text.feature_union import FeatureUnion
from weft.text.features import hstack

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
NETWORKS = [kind for kind in CLASSIFY if kind not in ("naive-bayes", "logistic-regression")]
TEXT = {"animal": "the old cat", "colour": "some blue here", "tool": "a drill near there"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return LabelRuns(tmp_path_factory.mktemp("runs"))


def loaded(runs: LabelRuns, name: str) -> AnyRun:
    run = weft.load(runs.run_dir(name), device="cpu")
    assert run.task == "classification"
    return run


def loaded_from(folder: Path) -> AnyRun:
    run = weft.load(folder, device="cpu")
    assert run.task == "classification"
    return run


def values_of(run: AnyRun, data: Any = None) -> dict[str, float]:
    return {score.name: score.value for score in run.evaluate(data)}


def copied(runs: LabelRuns, name: str, place: Path) -> Path:
    return shutil.copytree(runs.run_dir(name), place / name)


# ---- training


@pytest.mark.parametrize("kind", CLASSIFY)
def test_every_architecture_learns_the_task(runs, kind):
    run = loaded(runs, f"labels-{kind}")
    assert values_of(run)["accuracy"] >= 95
    assert [item.labels for item in run.predict(list(TEXT.values()))] == [(name,) for name in TEXT]


@pytest.mark.parametrize("kind", ["naive-bayes", "logistic-regression", "lstm", "transformer"])
def test_multilabel_texts_may_have_several_labels_or_none(runs, kind):
    run = loaded(runs, f"several-{kind}")
    result = values_of(run)
    assert result["f1_micro"] >= 90
    assert "accuracy" not in result
    both, none = run.predict(["the red cat", "the old"])
    assert set(both.labels) == {"animal", "colour"}
    assert none.labels == () or kind in ("naive-bayes", "transformer")  # to them, words that say nothing say something
    assert all(0 <= share <= 1 for share in both.probabilities.values())
    assert list(both.probabilities.values()) == sorted(both.probabilities.values(), reverse=True)


@pytest.mark.parametrize("kind", ["logistic-regression", "lstm", "transformer"])
def test_the_order_of_a_text_pair_matters(runs, kind):
    run = loaded(runs, f"pairs-{kind}")
    assert values_of(run)["accuracy"] >= 95
    result = run.predict([("the cat", "a new"), ("a new", "the cat")])
    assert [item.labels for item in result] == [("first",), ("second",)]
    alone = run.predict(("the cat", "a new"))  # a tuple is one pair
    assert alone.labels == result[0].labels and alone.probabilities == pytest.approx(result[0].probabilities, abs=1e-6)
    with pytest.raises(DataError) as caught:
        run.predict(["the cat"])
    assert str(caught.value) == f"line 1: has 1 text, but {run.directory.path} expects 2"


@pytest.mark.parametrize("name", ["labels-lstm", "pairs-transformer", "several-conv"])
def test_a_resumed_run_equals_an_uninterrupted_one(runs, tmp_path, name):
    values = runs.values(
        name, "train.max_steps=8", "train.num_validations=4", "model.dropout=0.2", "model.class_weight=balanced"
    )
    train_here(values, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "cut", SilentCallback(stop_at=5))
    again = SilentCallback()
    train_here(values, tmp_path / "cut", again)
    assert again.notes == ["resuming at step 5"]
    assert run_hashes(tmp_path / "cut") == run_hashes(tmp_path / "whole")


def test_temperature_is_fitted_on_validation_data_and_stored_with_the_weights(runs):
    folder = runs.run_dir("several-gru")
    saved = read_tensors(folder / "model.safetensors")[0]["head.temperature"]
    assert 0.1 <= saved.item() <= 10 and saved.item() != 1
    assert loaded(runs, "several-gru").predictor.model.temperature == pytest.approx(saved.item())
    run = loaded(runs, "labels-gru")
    valid = run.config.datasets["valid"]
    examples = list(valid.records())
    head = run.model.head
    head.temperature.fill_(1.0)
    scores = run.predictor.model.log_probs([example.texts for example in examples])
    gold = targets([example.labels for example in examples], run.vocabulary.labels, multilabel=False)[:, 0]
    saved = read_tensors(run.directory.weights)[0]["head.temperature"]
    assert softmax_temperature(scores, gold) == pytest.approx(saved.item(), rel=1e-3)


def test_without_validation_data_the_temperature_is_one_and_evaluation_is_refused(tmp_path):
    data = write_tsv(tmp_path / "data.tsv", single_label_rows(30))
    for kind in ("gru", "naive-bayes"):
        values = classification_run_file(data, kind, "train.max_steps=2")
        values["data"] = {"train": str(data)}
        run = weft.load(train_here(values, tmp_path / kind).path)
        assert run.task == "classification"
        assert run.predictor.model.temperature == 1.0
        with pytest.raises(UsageError) as caught:
            run.evaluate()
        assert str(caught.value) == f"{tmp_path / kind}: the run has no test or validation data; set `data`"
        assert len(run.evaluate(data).scores) == 6


def test_class_weight_balanced_gives_labels_equal_weight():
    labels = np.array([[0], [0], [0], [1]])
    np.testing.assert_allclose(balance(labels, 2), [4 / 6, 4 / 2], rtol=1e-6)
    np.testing.assert_allclose(balance(np.array([[1, 0], [1, 1], [1, 0]]), 2), [4 / 6, 4 / 2], rtol=1e-6)


def test_class_weight_balanced_helps_a_rare_label(tmp_path):
    rows = [row for index, row in enumerate(single_label_rows(300)) if row[0] != "tool" or index % 30 == 2]
    data, output = write_tsv(tmp_path / "data.tsv", rows), []
    for option in ("none", "balanced"):
        values = classification_run_file(data, "conv", "train.max_steps=6", f"model.class_weight={option}")
        run = weft.load(train_here(values, tmp_path / option).path)
        assert run.task == "classification"
        output.append(np.mean([item.probabilities["tool"] for item in run.predict([text for _, text in rows])]))
    assert output[1] > 2 * output[0]


def test_any_number_of_labels():
    names = [("b",), ("a",), ("new",)]
    labels = weft.text.labels.LabelVocabulary(("a", "b"))
    assert targets(names, labels, multilabel=False).tolist() == [[1], [0], [-1]]
    assert unseen(names, labels).tolist() == [0, 0, 1]
    several = [("b", "new", "a"), (), ("new", "newer")]
    assert targets(several, labels, multilabel=True).tolist() == [[1, 1], [0, 0], [0, 0]]
    assert unseen(several, labels).tolist() == [1, 0, 2]


def test_an_unseen_validation_label_counts_as_wrong(tmp_path):
    train, valid = (
        write_tsv(tmp_path / "a.tsv", single_label_rows(60)),
        write_tsv(tmp_path / "b.tsv", [("food", "a"), ("tool", "axe")]),
    )
    for kind in ("conv", "naive-bayes"):
        values = classification_run_file(train, kind, f"data.valid={valid}", "train.max_steps=20")
        del values["data"]["test"]
        folder = train_here(values, tmp_path / kind).path
        last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        assert last["valid_accuracy"] == 50.0


def test_long_texts_are_truncated_and_counted_or_refused(tmp_path):
    data = write_tsv(tmp_path / "data.tsv", [*single_label_rows(60), ("tool", "axe " * 30)])
    watcher = SilentCallback()
    values = classification_run_file(data, "lstm", "train.max_steps=1", "data.max_length=20")
    train_here(values, tmp_path / "run", watcher)
    assert any(note == "train: 1 text is longer than data.max_length = 20 tokens and is truncated" for note in watcher.notes)
    run = weft.load(tmp_path / "run")
    assert run.task == "classification"
    fits, long = run.predict("axe " * 18), run.predict("axe " * 300)
    assert fits == long._replace(truncated=False) and long.truncated
    with pytest.raises(DataError, match=r"has 32 tokens, more than data\.max_length \(20\); increase it"):
        train_here(classification_run_file(data, "lstm", "data.max_length=20", "data.truncate=false"), tmp_path / "other")


def test_without_truncation_long_texts_are_refused_in_prediction(tmp_path, monkeypatch, capsys):
    rows = write_tsv(tmp_path / "pairs.tsv", text_pair_rows(40), "label\tone\ttwo")
    settings = ('data.text_column=["one", "two"]', "data.truncate=false", "data.max_length=20", "train.max_steps=1")
    folder = train_here(classification_run_file(rows, "lstm", *settings), tmp_path / "run").path
    run = weft.load(folder)
    assert run.task == "classification"
    fits, long = ("axe " * 9, "cat " * 8), ("axe " * 9, "cat " * 9)  # and <s>, </s>, </s>
    message = "has 21 tokens, more than the model's limit of 20 (data.truncate = false); shorten it"
    assert run.predictor.invalid_inputs([fits, long]) == {1: message}
    assert run.predictor.invalid_inputs([]) == {}
    assert len(run.predict([fits])) == 1
    with pytest.raises(DataError) as caught:
        run.predict([fits, long])
    assert str(caught.value) == f"line 2: {message}"
    set_stdin(monkeypatch, f"{long[0]}\t{long[1]}\na\tb\nalone\n\n".encode())
    assert main(["predict", str(folder)]) == 3
    captured = capsys.readouterr()
    assert captured.err == (
        f"weft: warning: line 1: {message}; skipped\nweft: warning: line 3: expected 2 tab-separated texts, got 1; skipped\n"
    )
    assert [bool(line) for line in captured.out.split("\n")] == [False, True, False, False, False]
    held = write_tsv(tmp_path / "held.tsv", [("first", *fits), ("second", *long)], "label\tone\ttwo")
    with pytest.raises(DataError) as caught:
        run.evaluate(held)
    assert str(caught.value) == f"{held}:3: {message}"


def test_baselines_read_whole_texts_without_tokenizing(tmp_path, capsys):
    data = write_tsv(tmp_path / "data.tsv", [*single_label_rows(60), ("tool", "axe " * 30)])
    for truncate in ("true", "false"):
        watcher, folder = SilentCallback(), tmp_path / truncate
        values = classification_run_file(data, "naive-bayes", "data.max_length=20", f"data.truncate={truncate}")
        train_here(values, folder, watcher)
        assert not any("cut" in note for note in watcher.notes)
        splits = ("test", "train", "valid")  # which files were read for each, and no tokens
        assert sorted(path.name for path in (folder / "data").iterdir()) == [f"{split}.files.json" for split in splits]
        run = weft.load(folder)
        assert run.predictor.invalid_inputs([("axe " * 300,)]) == {} and run.predict("axe " * 300).labels == ("tool",)
        assert main(["predict", str(folder), "axe " * 300]) == 0
        assert capsys.readouterr().err == ""


def test_a_metric_that_the_task_lacks_cannot_be_monitored(runs):
    with pytest.raises(ConfigError) as caught:
        resolve(runs.values("labels-lstm", "train.monitor=exact_match"), base=Path())
    assert str(caught.value) == "train.monitor: 'exact_match' is not available with data.multilabel = false; use 'accuracy'"
    with pytest.raises(ConfigError) as caught:
        resolve(runs.values("several-lstm", "train.monitor=accuracy"), base=Path())
    assert str(caught.value) == "train.monitor: 'accuracy' is not available with data.multilabel = true; use 'exact_match'"
    assert resolve(runs.values("several-lstm", "train.monitor=log_loss"), base=Path()).train.monitor == "log_loss"


@pytest.mark.slow
@pytest.mark.parametrize("settings", [("train.optimizer=muon", "train.micro_batches=3"), ("train.precision=bfloat16",)])
def test_other_training_options_learn_the_task(runs, tmp_path, settings):
    folder = train_here(runs.values("labels-transformer", *settings, "train.max_steps=40"), tmp_path / "run").path
    assert values_of(loaded_from(folder))["accuracy"] >= 90


# ---- baselines


@pytest.mark.parametrize("name", ["labels", "several", "pairs"])
@pytest.mark.parametrize("kind", ["naive-bayes", "logistic-regression"])
def test_a_baseline_equals_one_fitted_by_hand(runs, name, kind):
    run = loaded(runs, f"{name}-{kind}")
    examples = list(run.config.datasets["train"].records())
    columns = list(zip(*(example.texts for example in examples), strict=True))
    if kind == "naive-bayes":
        table: Any = NaiveBayesConfig(**run.model.options, features=run.model.features[0].parts[0].config)
    else:
        table = LogisticRegressionConfig(**run.model.options)
    features = [FeatureUnion.fit(column, table.features) for column in columns]
    right = targets([example.labels for example in examples], run.vocabulary.labels, multilabel=name == "several")
    expected: Any = right.astype(bool) if name == "several" else right[:, 0]
    sparse = hstack([part.transform(column) for part, column in zip(features, columns, strict=True)])
    fit: Any = bayes.fit if kind == "naive-bayes" else regression.fit
    model = fit(sparse, expected, len(run.labels), table)
    tests = [example.texts for example in run.config.datasets["test"].records()]
    there = hstack([part.transform(column) for part, column in zip(features, zip(*tests, strict=True), strict=True)])
    scores = torch.from_numpy(model.logits(there) / run.model.temperature)
    output = torch.nn.functional.logsigmoid(scores) if name == "several" else scores.log_softmax(1)
    np.testing.assert_allclose(run.model.log_probs(tests), output.numpy(), rtol=0, atol=1e-9)
    assert run.model.num_parameters == (sum(part.num_features for part in features) + 1) * len(run.labels)


def test_options_of_baselines_change_them(runs, tmp_path):
    for index, option in enumerate(
        ("model.class_weight=balanced", "model.event_model=bernoulli", "model.features.analyzer=char")
    ):
        folder = train_here(runs.values("labels-naive-bayes", option), tmp_path / str(index)).path
        run = weft.load(folder)
        assert run.task == "classification"
        assert values_of(run)["accuracy"] > 50


def test_a_baseline_refuses_init_from(runs):
    with pytest.raises(ConfigError) as caught:
        resolve(runs.values("labels-logistic-regression", "train.init_from=elsewhere"), base=Path())
    assert (
        str(caught.value) == "train.init_from: not available for logistic-regression, which has no initial weights; remove it"
    )


# ---- starting from another run


def test_a_classifier_can_be_initialized_from_one_with_the_same_labels(runs, tmp_path):
    still = ("train.lr=1e-30", "train.max_steps=1", "train.ema_decay=0")
    first, watcher = runs.run_dir("labels-lstm"), SilentCallback()
    train_here(runs.values("labels-lstm", *still, f"train.init_from={first}"), tmp_path / "run", watcher)
    before, after = (read_tensors(folder / "model.safetensors")[0] for folder in (first, tmp_path / "run"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert f"Initialized {len(before)} tensors from {first}" in watcher.notes
    data, watcher = write_tsv(tmp_path / "data.tsv", [("yes", "the cat"), ("no", "an axe")] * 20), SilentCallback()
    tokens = f"tokenizer.file={first / 'tokenizer.json'}"
    values = classification_run_file(data, "lstm", *still, f"train.init_from={first}", tokens)
    with pytest.raises(ConfigError) as caught:
        train_here(values, tmp_path / "other")
    assert str(caught.value) == (
        f"train.init_from: the weights of {first} would compute another function here (labels: ['animal', 'colour', 'tool'] "
        f"there, ['no', 'yes'] here); use the same options, or set train.init_strict = false to skip these weights"
    )


def test_a_new_stack_on_the_same_embedding_lists_its_new_tensors(runs, tmp_path):
    first, watcher = runs.run_dir("labels-lstm"), SilentCallback()
    options = ("train.max_steps=1", f"train.init_from={first}", "model.layer_type=conv", "model.kernel_size=2")
    values = runs.values("labels-gru", *options, f"tokenizer.file={first / 'tokenizer.json'}")
    train_here(values, tmp_path / "run", watcher)
    output = next(note for note in watcher.notes if note.startswith("Initialized "))
    assert "; not in " in output and "encoder.stack.layers.0.mixer.backward_mixer" in output


# ---- reading back


@pytest.mark.parametrize("kind", ["lstm", "transformer", "logistic-regression"])
def test_predictions_are_probabilities_independent_of_their_batch(runs, kind):
    run = loaded(runs, f"labels-{kind}")
    texts = [text for _, text in single_label_rows(40, seed=5)] + ["", "words never seen"]
    together = run.predict(texts)
    for text, result in zip(texts, together, strict=True):
        alone = run.predict(text)
        assert alone.labels == result.labels
        assert alone.probabilities == pytest.approx(result.probabilities, abs=1e-5)
        assert sum(result.probabilities.values()) == pytest.approx(1)
        assert result.labels == (next(iter(result.probabilities)),)
        assert list(result.probabilities.values()) == sorted(result.probabilities.values(), reverse=True)
    assert run.predict([]) == []
    with pytest.raises(DataError, match="line 2"):
        run.predict(["cat", "a\0b"])


def test_options_that_the_task_lacks_are_refused_by_name(runs):
    run = loaded(runs, "labels-naive-bayes")
    for asked in (lambda: run.predict("the cat", beam_size=3), lambda: run.evaluate(stric=True)):
        with pytest.raises(UsageError) as caught:
            asked()
        assert str(caught.value).startswith(("beam_size: unknown option", "stric: unknown option; did you mean 'strict'?"))


def test_evaluation_scores_the_predictions(runs):
    reported: list[tuple[int, int]] = []
    run = loaded(runs, "several-lstm")
    result = run.evaluate(progress=lambda what, done, total: reported.append((done, total)))
    scores, items = list(result), result.items
    examples = list(run.config.datasets["test"].records())
    result = run.predict([example.texts for example in examples])
    exact = np.mean([set(item.labels) == set(example.labels) for item, example in zip(result, examples, strict=True)])
    assert (scores[0].name, scores[0].value) == ("exact_match", pytest.approx(100 * exact))
    assert len(items.keys) == len(examples) == 36
    assert reported[-1] == (36, 36)
    assert f"|labels:{run.vocabulary.labels.hash[:8]}|several|temperature:" in scores[0].signature
    assert run.evaluate([run.config.data.train])["exact_match"].value != scores[0].value  # other data


def test_info_describes_a_classifier(runs):
    run = loaded(runs, "labels-logistic-regression")
    assert run.labels == ("animal", "colour", "tool")
    info = run.info()
    assert (info["task"], info["arch"], info["labels"]) == (
        "classification",
        "logistic-regression",
        ["animal", "colour", "tool"],
    )
    assert info["parameters"] == run.num_parameters


@pytest.mark.parametrize("name", ["labels-lstm", "labels-naive-bayes"])
def test_changed_or_damaged_labels_are_refused_by_name(runs, tmp_path, name):
    folder = copied(runs, name, tmp_path)
    path = folder / "labels.json"
    original = path.read_text()
    path.write_text(original.replace("animal", "beast"))
    with pytest.raises(ModelError) as caught:
        weft.load(folder).model  # noqa: B018
    first = folder / ("tokenizer.json" if name == "labels-lstm" else "features.0.json")
    assert str(caught.value) == f"{first} or {path}: not the file that the weights were trained with"
    path.write_text(original[:20])
    with pytest.raises(ModelError) as caught:
        weft.load(folder)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_changed_or_damaged_features_and_tokens_are_refused_by_name(runs, tmp_path, capsys):
    folder = copied(runs, "labels-logistic-regression", tmp_path)
    path = folder / "features.0.json"
    original = path.read_text()
    content = json.loads(original)
    path.write_text(json.dumps({**content, "documents": content["documents"] + 1}))
    assert expect_error(capsys, "predict", str(folder), "a cat") == (
        4, f"{path.with_suffix('.char.json')} or {path} or {folder / 'labels.json'}: not the file that the weights were "
        "trained with"
    )  # fmt: skip
    path.write_text(original[:-30])
    code, message = expect_error(capsys, "predict", str(folder), "a cat")
    assert code == 4 and message.startswith(f"{path}: ")
    path.unlink()
    code, message = expect_error(capsys, "predict", str(folder), "a cat")
    assert code == 4 and message.startswith(f"{path}: ")
    folder = copied(runs, "labels-lstm", tmp_path)
    shutil.copy(runs.run_dir("pairs-lstm") / "tokenizer.json", folder / "tokenizer.json")
    code, message = expect_error(capsys, "predict", str(folder), "a cat")
    assert (code, message) == (
        4, f"{folder / 'tokenizer.json'} or {folder / 'labels.json'}: not the file that the weights were trained with"
    )  # fmt: skip


def test_baseline_weights_without_a_temperature_are_refused(runs, tmp_path):
    folder = copied(runs, "labels-logistic-regression", tmp_path)
    run = weft.load(folder)
    tensors, notes = read_tensors(run.directory.weights)
    tensors = {name: part.clone() for name, part in tensors.items() if name != "temperature"}
    run.directory.write_weights(tensors, notes["vocabulary"], 1)
    with pytest.raises(ModelError) as caught:
        run.model  # noqa: B018
    assert str(caught.value) == f"{run.directory.weights}: corrupted: temperature is missing"


# ---- the command line


def said_by(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main([*words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_predict_prints_one_line_per_input_line(runs, capsys, monkeypatch):
    folder = str(runs.run_dir("labels-lstm"))
    set_stdin(monkeypatch, b"the cat\n\n  \nblue\r\n\xff cat\na drill")
    code, out, err = said_by(capsys, "predict", folder)
    rows = out.split("\n")
    assert [row.split("\t")[0] for row in rows] == ["animal", "", "", "colour", "", "tool", ""]
    assert all(0.9 < float(row.split("\t")[1]) <= 1 for row in rows if row)
    assert (code, err) == (3, "weft: warning: standard input:5: invalid utf-8 (byte 0xff); convert it first; skipped\n")
    assert said_by(capsys, "predict", folder, "the cat")[:2] == (0, rows[0] + "\n")


def test_predict_files_as_json(runs, capsys, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"the cat\n\n\xffcat\n")
    code, out, err = said_by(capsys, "predict", str(runs.run_dir("labels-logistic-regression")), "--input", str(path), "--json")
    first, second, third = (json.loads(line) for line in out.splitlines())
    assert code == 3 and err.count("\n") == 1
    assert (first["text"], first["labels"]) == ("the cat", ["animal"])
    assert set(first["probabilities"]) == set(KEYS)
    assert second == {"text": "", "labels": [], "probabilities": {}}
    assert third == {"text": None, "labels": [], "probabilities": {},
                     "error": f"{path}:3: invalid utf-8 (byte 0xff); convert it first"}  # fmt: skip


def test_multilabel_predictions_have_a_probability_per_label(runs, capsys):
    folder = str(runs.run_dir("several-lstm"))
    code, out, _ = said_by(capsys, "predict", folder, "the red cat")
    assert code == 0
    assert sorted(part.split(":")[0] for part in out.strip().split("\t")) == ["animal", "colour"]
    # one of several is said as several are
    assert said_by(capsys, "predict", folder, "the cat here")[1].startswith("animal:")
    assert said_by(capsys, "predict", folder, "the old")[:2] == (0, "\n")


def test_text_pairs_are_separated_by_a_tab(runs, capsys, monkeypatch):
    folder = str(runs.run_dir("pairs-lstm"))
    set_stdin(monkeypatch, b"the cat\ta new\na new\tthe cat\nalone\n\na\tb\tc\n")
    code, out, err = said_by(capsys, "predict", folder)
    assert [row.split("\t")[0] for row in out.split("\n")] == ["first", "second", "", "", "", ""]
    assert code == 3
    assert err == (
        "weft: warning: line 3: expected 2 tab-separated texts, got 1; skipped\n"
        "weft: warning: line 5: expected 2 tab-separated texts, got 3; skipped\n"
    )


@pytest.mark.parametrize(
    "words", [["--beam-size", "3"], ["--n-best", "2"], ["--truncate"], ["--top-k", "3"], ["--ban-token", "x"], ["--seed", "1"]]
)
def test_decoding_options_are_refused(runs, capsys, words):
    folder = runs.run_dir("labels-logistic-regression")
    assert expect_error(capsys, "predict", str(folder), "a cat", *words) == (
        2, f"{words[0]}: not available for task 'classification'"
    )  # fmt: skip


@pytest.mark.parametrize("words", [["--beam-size", "3"], ["--patience", "2"], ["--context", "carry"], ["--truncate"]])
def test_evaluation_options_of_other_tasks_are_refused(runs, capsys, words):
    folder = runs.run_dir("labels-logistic-regression")
    assert expect_error(capsys, "evaluate", str(folder), *words) == (
        2, f"{words[0]}: not available for task 'classification'"
    )  # fmt: skip


def test_other_commands_name_the_command_to_use(runs, capsys):
    folder = runs.run_dir("labels-logistic-regression")
    assert expect_error(capsys, "generate", str(folder)) == (
        2,
        f"{folder}: is a classifier; use weft predict",
    )
    assert expect_error(capsys, "score", str(folder)) == (
        2, f"{folder}: models of task 'classification' do not give texts a probability"
    )  # fmt: skip
    assert said_by(capsys, "info", str(folder))[0] == 0


def test_evaluate_prints_scores_per_label_and_confusions(runs, capsys):
    code, out, _ = said_by(capsys, "evaluate", str(runs.run_dir("labels-logistic-regression")), "--quiet")
    assert code == 0
    assert "accuracy    100.0  [100.0, 100.0]\n" in out
    tables = out.split("\n\n")[1:]
    assert tables[1].split("\n")[:2] == [
        "        precision  recall     F1  examples",
        "animal      100.0   100.0  100.0        12",
    ]
    assert tables[2].rstrip("\n").split("\n") == [
        "gold \\ predicted  animal  colour  tool",
        "animal                12       0     0",
        "colour                 0      12     0",
        "tool                   0       0    12",
    ]
    code, out, _ = said_by(capsys, "evaluate", str(runs.run_dir("several-lstm")), "--quiet")
    assert "exact match" in out and "gold \\ predicted" not in out


def test_many_labels_have_no_confusion_matrix():
    names = [f"l{index}" for index in range(MAX_LABELS + 1)]
    assert confusion_table(names, np.eye(MAX_LABELS + 2, MAX_LABELS + 1, dtype=int)) == ""
    counts = np.array([[3, 1], [0, 0], [0, 2]])
    assert confusion_table(["a", "b"], counts) == "gold \\ predicted  a  b\na                 3  1\n(unseen)          0  2\n"
    rows = label_table(["a", "b"], [LabelScore(50.0, 25.0, 33.333, 1234), LabelScore(0.0, 0.0, 0.0, 0)])
    assert (
        rows
        == "   precision  recall    F1  examples\na       50.0    25.0  33.3     1,234\nb        0.0     0.0   0.0         0\n"
    )


def test_predictions_are_streamed_before_the_input_ends(runs, monkeypatch):
    """A program that writes a line and waits for its label gets it."""
    chunks = [b"the cat\na dr", b"ill\n", b"blue\n"]
    counts, _ = stream_output(monkeypatch, chunks, "predict", str(runs.run_dir("labels-naive-bayes")))
    assert counts == [0, 1, 2, 3]


def test_labels_neither_gold_nor_predicted_have_no_row(runs, tmp_path, capsys):
    """They are no part of macro F1 either; of several labels an example all are."""
    data = write_tsv(tmp_path / "few.tsv", [("tool", "axe saw axe saw")])
    code, out, _ = said_by(capsys, "evaluate", str(runs.run_dir("labels-naive-bayes")), "--data", str(data), "--quiet")
    assert code == 0
    assert [line.split()[0] for line in out.split("\n\n")[2].split("\n")[1:] if line] == ["tool"]


def test_info_describes_a_baseline(runs, capsys):
    code, out, _ = said_by(capsys, "info", str(runs.run_dir("labels-naive-bayes")))
    assert code == 0
    assert re.search(r"^Task +classification\nModel +naive-bayes, [\d,]+ parameters$", out, re.MULTILINE)
    assert re.search(r"^Training +fitted to 168 examples$", out, re.MULTILINE)


def test_check_reads_labeled_texts(runs, capsys, tmp_path):
    for name in ("labels-lstm", "pairs-lstm"):
        (tmp_path / "run.toml").write_text(tomli_w.dumps(runs.values(name)))
        code, out, err = said_by(capsys, "check", str(tmp_path / "run.toml"), "--json", "--quiet")
        assert (code, err) == (0, "")
        data = json.loads(out)
        names = ["text"] if name == "labels-lstm" else ["one", "two"]
        assert list(data["splits"]["train"]) == ["rows", *names]
        # nothing is said about one text that follows from another
        assert {finding["name"] for finding in data["findings"]} <= {"duplicate", "overlap", "unknown_tokens"}
    code, out, _ = said_by(capsys, "check", str(tmp_path / "run.toml"), "--quiet", "--set", "data.max_length=4")
    assert code == 0 and "have more tokens than data.max_length (4)" in out.replace("\n         ", " ")


def test_unseen_labels_are_named_and_counted_as_wrong_or_refused(runs, capsys, tmp_path):
    folder = runs.run_dir("labels-logistic-regression")
    data = write_tsv(tmp_path / "new.tsv", [("animal", "the cat"), ("food", "a saw"), ("tool", "an axe"), ("food", "cat")])
    code, out, err = said_by(capsys, "evaluate", str(folder), "--data", str(data), "--signature")
    assert code == 0
    assert "accuracy      50.0     [0.0, 100.0]\n" in out and "|unseen:2|" in out
    assert "(unseen)               1       0     1" in out
    assert err.splitlines()[-1] == (
        "weft: warning: 2 examples have labels that are not in the training data and count as errors: food (2)"
    )
    code, out, err = said_by(capsys, "evaluate", str(folder), "--data", str(data), "--json", "--quiet")
    document = json.loads(out)
    assert (document["unseen"], document["data"], err) == ({"food": 2}, [str(data)], "")
    assert document["scores"][0]["value"] == 50
    assert expect_error(capsys, "evaluate", str(folder), "--data", str(data), "--strict", "--quiet") == (
        3, f"{data}:3: label 'food' is not in the training data of {folder}"
    )  # fmt: skip
    assert said_by(capsys, "evaluate", str(folder), "--strict", "--quiet")[0] == 0


def test_strict_refuses_unseen_labels(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("a b c d e f g\n" * 20)
    values = {"task": "lm", "data": {"train": str(tmp_path / "text.txt"), "read_as": "lines"}, "model": {"arch": "ngram"}}
    train_here(values, tmp_path / "run")
    assert expect_error(capsys, "evaluate", str(tmp_path / "run"), "--strict", "--quiet") == (
        2, "--strict: not available for task 'lm'"
    )  # fmt: skip


# ---- other shapes of data


def test_training_from_a_directory_with_one_file_per_label(tmp_path, capsys):
    for name in KEYS:
        path = tmp_path / "data" / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{text}\n" for label, text in single_label_rows(120) if label == name))
    run = weft.load(train_here(classification_run_file(tmp_path / "data", "naive-bayes"), tmp_path / "run").path)
    assert run.task == "classification"
    assert run.labels == ("animal", "colour", "tool")
    assert values_of(run)["accuracy"] >= 95
    code, out, _ = said_by(capsys, "evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "data"), "--quiet", "--json")
    assert code == 0 and "|examples:120|" in json.loads(out)["scores"][0]["signature"]


def test_training_and_prediction_read_latin_1(tmp_path, capsys, monkeypatch):
    rows = [(label, text + (" café" if label == "tool" else "")) for label, text in single_label_rows(90)]
    data = write_tsv(tmp_path / "data.tsv", rows, encoding="latin-1")
    for kind in ("naive-bayes", "gru"):
        folder = str(train_here(classification_run_file(data, kind, "data.encoding=latin-1"), tmp_path / kind).path)
        set_stdin(monkeypatch, "here axe café\n".encode("latin-1"))
        code, out, _ = said_by(capsys, "predict", folder, "--json")
        document = json.loads(out)
        assert (code, document["text"], document["labels"]) == (0, "here axe café", ["tool"])
        run = weft.load(folder)
        assert run.task == "classification" and run.vocabulary.tokenizer.encode("café").tolist() != [0]
        assert said_by(capsys, "evaluate", folder, "--data", str(data), "--quiet")[0] == 0


def test_the_command_line_trains_from_a_csv_file(tmp_path, capsys):
    (tmp_path / "data.csv").write_text(
        "label,text\n" + "".join(f'{label},"{text}, so"\n' for label, text in single_label_rows(60))
    )
    (tmp_path / "run.toml").write_text(
        'task = "classification"\n[data]\ntrain = "data.csv"\nvalid = 0.2\n[model]\narch = "logistic-regression"\n'
    )
    code, _, err = said_by(capsys, "train", str(tmp_path / "run.toml"), "--output-dir", str(tmp_path / "run"))
    assert code == 0, err
    assert said_by(capsys, "predict", str(tmp_path / "run"), "a cat, so")[1].startswith("animal\t")


def test_a_classifier_embeds_texts(runs, tmp_path, capsys):
    run = loaded(runs, "labels-lstm")
    texts = list(TEXT.values())
    vectors = run.embed(texts)
    assert vectors.shape == (3, run.config.model.hidden_size)
    np.testing.assert_allclose(run.embed(texts[:1])[0], vectors[0], atol=1e-5)
    assert not np.allclose(run.embed(texts, pooling="first"), vectors)
    assert main(["embed", str(runs.run_dir("labels-lstm")), texts[0], "--output", str(tmp_path / "x.npy"), "--quiet"]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "x.npy")[0], vectors[0], atol=1e-5)


def test_baselines_cannot_embed_texts(runs):
    folder = runs.run_dir("labels-naive-bayes")
    with pytest.raises(UsageError) as caught:
        loaded(runs, "labels-naive-bayes").embed(["a text"])
    assert str(caught.value) == f"{folder}: naive-bayes has no text encoder"


def test_a_truncated_line_is_reported(runs, capsys):
    folder = str(runs.run_dir("labels-lstm"))
    assert main(["predict", folder, "the old cat " * 1000]) == 0
    assert capsys.readouterr().err == "weft: warning: truncated 1 line that was too long for the model\n"
    assert main(["predict", folder, "the old cat"]) == 0
    assert main(["predict", folder, "the old cat " * 1000, "--quiet"]) == 0
    assert main(["predict", str(runs.run_dir("labels-naive-bayes")), "the old cat " * 1000]) == 0  # which reads all of it
    assert capsys.readouterr().err == ""


def test_truncated_lines_are_reported_once(runs, capsys, monkeypatch):
    monkeypatch.setattr("weft.tasks.classification.lines.LabelLines.batch_size", 1)
    set_stdin(monkeypatch, b"the old cat " * 1000 + b"\nthe cat\n" + b"a new axe " * 1000 + b"\n")
    code, out, err = said_by(capsys, "predict", str(runs.run_dir("labels-lstm")))
    assert (code, out.count("\n"), err) == (0, 3, "weft: warning: truncated 2 lines that were too long for the model\n")
