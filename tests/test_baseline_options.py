"""Options of baselines that are chosen on validation data, the union of features, naive Bayes weights, and ensembles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from label_runs import LabelRuns, classification_run_file, single_label_rows, write_tsv
from small_runs import SilentCallback, train_here
from test_features import NEW, TEXTS, dense
from test_naive_bayes import labels_for, random_texts, targets_for

import weft
from weft.config import parse_config
from weft.errors import ConfigError, UsageError
from weft.metrics.calibration import softmax_temperature
from weft.models import logistic_regression as regression
from weft.models.baseline_config import LogisticRegressionConfig
from weft.models.linear import log_softmax
from weft.models.linear_fit import MergedColumns, merge_columns
from weft.models.logistic_regression import WarmStart
from weft.tasks.classification.baselines import search_bayes, search_regression
from weft.tasks.classification.presets import BAYES_CHOICES, REGRESSION_CHOICES
from weft.tasks.classification.selection import Examples, OptionValues, choose, describe
from weft.text.feature_union import FeatureUnion, with_char_ngrams
from weft.text.features import FeatureConfig, Sparse

pytestmark = pytest.mark.usefixtures("restore_openmp_env")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return LabelRuns(tmp_path_factory.mktemp("runs"))


# ---- features


def test_a_union_of_words_and_characters_equals_that_of_scikit_learn():
    text = pytest.importorskip("sklearn.feature_extraction.text")
    pipeline = pytest.importorskip("sklearn.pipeline")
    words = text.TfidfVectorizer(token_pattern=r"(?u)\w+|[^\w\s]", ngram_range=(1, 2), sublinear_tf=True)
    characters = text.TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True)
    other = pipeline.FeatureUnion([("words", words), ("characters", characters)]).fit(TEXTS)
    features = FeatureUnion.fit(TEXTS, FeatureConfig(max_char_ngram=3))
    for texts in (TEXTS, NEW):
        np.testing.assert_allclose(dense(features.transform(texts)), other.transform(texts).toarray(), atol=1e-12)
    assert features.terms == [*words.get_feature_names_out(), *characters.get_feature_names_out()]


def test_character_ngrams_depend_on_the_amount_of_text_unless_they_are_set(monkeypatch):
    monkeypatch.setattr("weft.text.feature_union.MAX_CHARS", 10)
    assert [with_char_ngrams(FeatureConfig(), [text]).max_char_ngram for text in ("x" * 10, "x" * 11)] == [5, 0]
    assert with_char_ngrams(FeatureConfig(max_char_ngram=2), ["x" * 11]).max_char_ngram == 2
    assert with_char_ngrams(FeatureConfig(analyzer="char"), ["x"]).max_char_ngram == 0
    with pytest.raises(ConfigError) as caught:
        parse_config(FeatureConfig, {"analyzer": "char", "max_char_ngram": 2}, prefix="features")
    assert str(caught.value) == "features.max_char_ngram: requires n-grams of words, got analyzer 'char'; remove it"


def test_a_union_is_saved_in_one_file_per_part(tmp_path):
    features = FeatureUnion.fit(TEXTS, FeatureConfig(max_char_ngram=2))
    features.save(tmp_path, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features.0.char.json", "features.0.json"]
    again = FeatureUnion.load(tmp_path, 0)
    assert again.hash == features.hash and again.num_features == features.num_features == len(again.terms)
    words = FeatureUnion.fit(TEXTS, FeatureConfig(max_char_ngram=0))
    words.save(tmp_path, 0)  # removes the characters
    assert FeatureUnion.load(tmp_path, 0).hash == words.hash


# ---- naive Bayes weights


def test_naive_bayes_weights_of_two_classes_equal_scaled_features_in_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model")
    (train, dense_train), (test, dense_test) = random_texts(1, 120), random_texts(2, 30)
    targets = targets_for(3, 120, 2)
    present = dense_train > 0
    p, q = (1 + present[targets == label].sum(0) for label in (1, 0))
    r = np.log(p / p.sum()) - np.log(q / q.sum())
    other = linear.LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000).fit(dense_train * r, targets)
    model = regression.fit(train, targets, 2, LogisticRegressionConfig(C=2.0, naive_bayes_weights=True))
    np.testing.assert_allclose(np.exp(model.log_probs(test)), other.predict_proba(dense_test * r), atol=5e-4)


@pytest.mark.parametrize("multilabel", [False, True])
def test_naive_bayes_weights_minimize_their_objective(multilabel):
    train, matrix = random_texts(1, 60)
    targets: Any = labels_for(3, 60, 3) if multilabel else targets_for(3, 60, 3)
    model = regression.fit(train, targets, 3, LogisticRegressionConfig(C=2.0, naive_bayes_weights=True))
    one_hot = targets if multilabel else np.eye(3, dtype=bool)[targets]
    p, q = ((1 + (matrix > 0).T @ part.astype(float)) for part in (one_hot, ~one_hot))
    r = torch.from_numpy(np.log(p / p.sum(0)) - np.log(q / q.sum(0)))
    V = (torch.from_numpy(model.weight) / r).requires_grad_()
    bias = torch.from_numpy(model.bias.copy()).requires_grad_()
    logits, gold = torch.from_numpy(matrix) @ (r * V) + bias, torch.from_numpy(one_hot.astype(float))
    softmax_loss = -(gold * logits.log_softmax(1)).sum()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, gold, reduction="sum") if multilabel else softmax_loss
    (2.0 * loss + V.square().sum() / 2).backward()
    assert V.grad is not None and bias.grad is not None
    assert max(V.grad.abs().max(), bias.grad.abs().max()) < 2e-3


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("scaled", [False, True])
def test_starting_from_another_solution_gives_the_same_model(classes, scaled):
    train, _ = random_texts(1, 80)
    targets = targets_for(3, 80, classes)
    one, two = (LogisticRegressionConfig(C=C, naive_bayes_weights=scaled) for C in (1.0, 3.0))
    expected, steps = regression.fit(train, targets, classes, two), list[int]()
    near = regression.fit(train, targets, classes, two, start=WarmStart(expected), progress=steps.append)
    far = regression.fit(train, targets, classes, two, start=WarmStart(regression.fit(train, targets, classes, one)))
    assert len(steps) == 1  # it is a minimum already
    for model in (near, far):
        np.testing.assert_allclose(np.exp(model.log_probs(train)), np.exp(expected.log_probs(train)), atol=5e-4)


@pytest.mark.parametrize("scaled", [False, True])
def test_equal_columns_are_merged_without_changing_the_model(scaled):
    matrix = random_texts(1, 80, 12)[1]
    repeats = np.array([1, 3, 1, 1, 5, 1, 2, 1, 1, 1, 1, 1])
    twins = np.repeat(matrix, repeats, axis=1)
    row, column = np.nonzero(twins)
    train = Sparse(np.append(0, np.cumsum((twins > 0).sum(1))), column, twins[row, column], twins.shape[1])
    merged = merge_columns(train)
    assert merged.features.columns == 12
    np.testing.assert_allclose(dense(merged.features)[:, merged.group] / merged.root.numpy()[merged.group, 0], twins)
    targets = targets_for(3, 80, 3)
    config = LogisticRegressionConfig(C=2.0, naive_bayes_weights=scaled)
    model = regression.fit(train, targets, 3, config)
    with pytest.MonkeyPatch.context() as patch:
        identity = MergedColumns(train, np.arange(train.columns), np.arange(train.columns), torch.ones(train.columns, 1))
        patch.setattr(regression, "merge_columns", lambda features: identity)
        expected = regression.fit(train, targets, 3, config)
    np.testing.assert_allclose(model.log_probs(train), expected.log_probs(train), atol=2e-3)
    np.testing.assert_allclose(model.weight, expected.weight, atol=2e-3)


# ---- choosing


def labeled(count: int, *, seed: int = 0, noise: float = 0.3) -> Examples:
    """Texts with three labels, some of them wrong, so that regularization matters."""
    rng = np.random.default_rng(seed)
    rows = single_label_rows(count, seed=seed)
    names = sorted({label for label, _ in rows})
    gold = np.array([[names.index(label)] for label, _ in rows])
    wrong = rng.random(count) < noise
    gold[wrong, 0] = rng.integers(0, 3, wrong.sum())
    return Examples([(text,) for _, text in rows], gold, np.zeros(count, np.int64), multilabel=False)


def by_hand(config: Any, train: Examples, valid: Examples) -> float:
    """The log loss of a configuration after temperature scaling."""
    features = FeatureUnion.fit(train.columns()[0], config.features)
    inputs, gold = features.transform(train.columns()[0]), train.targets[:, 0]
    model = regression.fit(inputs, gold, 3, config)
    logits, gold = model.logits(features.transform(valid.columns()[0])), valid.targets[:, 0]
    log_probs = log_softmax(logits / softmax_temperature(logits, gold))
    return float(-log_probs[np.arange(len(gold)), gold].mean())


def test_the_chosen_values_have_the_lowest_validation_loss():
    train, valid = labeled(60), labeled(60, seed=1)
    config = LogisticRegressionConfig(features=FeatureConfig(max_char_ngram=0))
    choices = REGRESSION_CHOICES
    progress = list[tuple[int, int]]()
    chosen = choose(
        config, choices, search_regression, train, valid, num_labels=3, progress=lambda *state: progress.append(state)
    )
    losses = {C: by_hand(config.model_copy(update={"C": C}), train, valid) for C in choices[0].values}
    assert min(losses, key=lambda C: losses[C]) == chosen.C
    assert chosen.C not in (choices[0].values[0], choices[0].values[-1])  # a choice that the data makes
    assert progress == [(1, 1)] and describe(chosen, choices) == f"C = {chosen.C:g}"


def test_cross_validation_sees_every_example_once_and_tiny_data_gets_the_defaults():
    sizes = list[int]()

    def search(data: Any, config: Any, start: Any) -> Any:
        sizes.append(data.features.rows)
        return search_bayes(data, config, start)

    config = weft.tasks.classification.presets.PRESETS["naive-bayes"].config_class()
    options: dict[str, Any] = {"num_labels": 3, "progress": lambda done, total: None}
    features = FeatureConfig(tfidf=False)
    alpha = [OptionValues("alpha", (0.1, 1.0), 7.0, is_ordered=True)]
    chosen = choose(config.model_copy(update={"features": features}), alpha, search, labeled(53), None, **options)
    assert chosen.alpha in (0.1, 1.0) and sum(53 - size for size in sizes[::2]) == 53
    tiny = choose(config, BAYES_CHOICES, search, labeled(9), None, **options)
    assert tiny.alpha == 1.0 and tiny.features == BAYES_CHOICES[0].default


def test_values_after_the_minimum_are_skipped():
    tried = list[float]()

    def search(data: Any, config: Any, start: Any) -> Any:
        tried.append(config.C)
        return search_regression(data, config, start)

    config = LogisticRegressionConfig(features=FeatureConfig(max_char_ngram=0))
    values = [OptionValues("C", (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0), 1.0, is_ordered=True)]
    choose(config, values, search, labeled(60), labeled(60, seed=1), num_labels=3, progress=lambda done, total: None)
    assert 2 < len(tried) < 7 and tried == sorted(tried)


def test_without_errors_the_strongest_regularization_is_chosen():
    train, valid = labeled(120, noise=0.0), labeled(60, seed=1, noise=0.0)
    config = LogisticRegressionConfig()
    choices = [OptionValues("C", (1e4, 1e6, 1e8), 1.0, is_ordered=True)]
    options: dict[str, Any] = {"num_labels": 3, "progress": lambda done, total: None}
    assert choose(config, choices, search_regression, train, valid, **options).C == 1e4


@pytest.mark.parametrize("kind", ["naive-bayes", "logistic-regression"])
def test_a_run_with_chosen_options_equals_one_with_the_same_options_set(runs, tmp_path, kind):
    watcher, values = SilentCallback(), runs.values(f"labels-{kind}")
    chosen = weft.load(train_here(values, tmp_path / "chosen", watcher).path)
    (note,) = (note for note in watcher.notes if "lowest log loss" in note)
    options = chosen.model.options
    if kind == "naive-bayes":
        options = {**options, "features": {**chosen.model.features[0].parts[0].config.model_dump(exclude_none=True)}}
    assert f"{'alpha' if kind == 'naive-bayes' else 'C'} = " in note
    watcher = SilentCallback()
    fixed = weft.load(train_here({**values, "model": {"arch": kind, **options}}, tmp_path / "set", watcher).path)
    assert not any("lowest log loss" in note for note in watcher.notes)
    np.testing.assert_array_equal(fixed.model.model.weight, chosen.model.model.weight)
    texts = [(text,) for _, text in single_label_rows(20, seed=7)]
    np.testing.assert_array_equal(fixed.model.log_probs(texts), chosen.model.log_probs(texts))


@pytest.mark.parametrize("arch", ["naive-bayes", "logistic-regression"])
def test_a_run_with_the_options_that_another_has_chosen_is_the_same_model(tmp_path, arch):
    train, valid = (write_tsv(tmp_path / f"{name}.tsv", noisy_rows(90, seed)) for seed, name in enumerate(("train", "valid")))
    values = classification_run_file(train, arch)
    chosen = train_here({**values, "data": {"train": str(train), "valid": str(valid)}}, tmp_path / "chosen")
    first = weft.load(chosen.path)
    options = first.config.preset.estimator.chosen_options(first.model)
    assert options["temperature"] != 1 and {"alpha", "C"} & options.keys()
    refitted = {**values, "data": {"train": str(train)}, "model": {**values["model"], **options}}
    second = weft.load(train_here(refitted, tmp_path / "refitted").path)
    texts = [(text,) for _, text in single_label_rows(20, seed=7)]
    np.testing.assert_array_equal(second.model.log_probs(texts), first.model.log_probs(texts))


def noisy_rows(count: int, seed: int) -> list[tuple[str, str]]:
    """Every fifth label is wrong, so that probabilities of 1 are not calibrated."""
    rows = single_label_rows(count, seed=seed)
    return [(rows[index - 1][0] if index % 5 == 0 else label, text) for index, (label, text) in enumerate(rows)]


def test_a_temperature_of_the_run_file_is_not_fitted(tmp_path):
    data = write_tsv(tmp_path / "data.tsv", single_label_rows(60))
    for arch in ("logistic-regression", "gru"):
        values = classification_run_file(data, arch, "model.temperature=2.5", "data.valid=0.2", "train.max_steps=2")
        run = weft.load(train_here(values, tmp_path / arch).path)
        assert run.predictor.model.temperature == 2.5
        assert run.config.preset.estimator.chosen_options(run.model)["temperature"] == 2.5


# ---- ensembles


def test_an_ensemble_of_a_baseline_and_a_network_averages_their_probabilities(runs, capsys):
    paths = [runs.run_dir("labels-logistic-regression"), runs.run_dir("labels-lstm")]
    texts = [text for _, text in single_label_rows(12, seed=9)]
    for order in (paths, paths[::-1]):
        first, second = (weft.load(path, device="cpu").predict(texts) for path in order)
        combined = weft.ensemble(order, weights=[0.75, 0.25], device="cpu")
        for one, two, both in zip(first, second, combined.predict(texts), strict=True):
            expected = {name: 0.75 * one.probabilities[name] + 0.25 * two.probabilities[name] for name in one.probabilities}
            assert both.probabilities == pytest.approx(expected, abs=1e-6)
        with pytest.raises(UsageError, match="explain: not available for an ensemble; explain one run"):
            combined.explain(texts[0])
    assert weft.ensemble(paths, device="cpu").evaluate()["accuracy"].value >= 95
    from weft.cli.main import main

    assert main(["evaluate", str(paths[0]), "--ensemble", str(paths[1])]) == 0
    assert "accuracy" in capsys.readouterr().out


def test_classifiers_that_cannot_be_combined_are_refused(runs, tmp_path):
    path = runs.run_dir("labels-naive-bayes")
    data = write_tsv(tmp_path / "data.tsv", [("yes", "the cat"), ("no", "an axe")] * 20)
    other = train_here(classification_run_file(data, "naive-bayes"), tmp_path / "other").path
    for options, message in [
        ({"paths": [path, other]}, f"ensemble: {other} has other labels than {path}: ['no', 'yes'] instead of "),
        ({"paths": [path, path], "weights": [0.5, 0.6]}, "ensemble: weights must be positive and sum to 1, got [0.5, 0.6]"),
        ({"paths": [path, path], "weights": [1.0]}, "ensemble: 2 models, but 1 weights"),
        ({"paths": [path], "lm": Path("lm")}, "lm: not available for task 'classification'; leave it out"),
    ]:
        with pytest.raises(UsageError) as caught:
            weft.ensemble(**options)
        assert str(caught.value).startswith(message)
