"""Naive Bayes against scikit-learn and a worked example; the linear model of the baselines and its file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weft import tensors as tensor_files
from weft.config import parse_config, to_dict
from weft.errors import ConfigError, DataError, ModelError
from weft.models import naive_bayes as bayes
from weft.models.baseline_config import LogisticRegressionConfig, NaiveBayesConfig
from weft.models.linear import LinearModel, transposed
from weft.models.linear_fit import matmul
from weft.models.linear_targets import class_sums
from weft.text.features import FeatureConfig, Features, Sparse

both = pytest.mark.parametrize("events", ["multinomial", "bernoulli"])


def random_texts(seed: int, rows: int, columns: int = 30) -> tuple[Sparse, np.ndarray]:
    """Sparse counts with some empty rows, and the same as a dense matrix."""
    generator = np.random.default_rng(seed)
    matrix = generator.poisson(0.25, (rows, columns)).astype(float)
    matrix[:2] = 0
    indptr = np.append(0, np.cumsum((matrix > 0).sum(1)))
    row, column = np.nonzero(matrix)
    return Sparse(indptr, column, matrix[row, column], columns), matrix


def targets_for(seed: int, rows: int, classes: int) -> np.ndarray:
    """Targets in which every class occurs, with different frequencies."""
    generator = np.random.default_rng(seed)
    return np.append(np.arange(classes), np.minimum(generator.geometric(0.4, rows - classes) - 1, classes - 1))


def labels_for(seed: int, rows: int, classes: int) -> np.ndarray:
    actual = np.random.default_rng(seed).random((rows, classes)) < 0.3
    actual[0], actual[1] = True, False
    return actual


def table(**options) -> NaiveBayesConfig:
    return NaiveBayesConfig(**options)


def theirs(events: str, alpha: float):
    actual = pytest.importorskip("sklearn.naive_bayes")
    return {"multinomial": actual.MultinomialNB, "bernoulli": actual.BernoulliNB}[events](alpha=alpha)


def test_sparse_products_equal_dense_products():
    sparse, matrix = random_texts(0, 9)
    right, left = torch.randn(30, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    np.testing.assert_allclose(matmul(sparse, right), matrix @ right.numpy(), atol=1e-12)
    np.testing.assert_allclose(matmul(transposed(sparse), left), matrix.T @ left.numpy(), atol=1e-12)
    np.testing.assert_allclose(class_sums(sparse, left.numpy()), matrix.T @ left.numpy(), atol=1e-12)
    one_hot = np.eye(4)[[0, 1, 1, 3, 0, 1, 3, 3, 0]]  # class 2 has no texts
    np.testing.assert_array_equal(class_sums(sparse, one_hot), matrix.T @ one_hot)
    again = transposed(transposed(sparse))
    for mine, other in zip(again, sparse, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_rows_without_any_term_are_zero():
    empty = Sparse(np.zeros(3, np.int64), np.zeros(0, np.int64), np.zeros(0), 5)
    assert matmul(empty, torch.ones(5, 2, dtype=torch.float64)).tolist() == [[0, 0], [0, 0]]
    assert transposed(empty).rows == 5
    assert class_sums(empty, np.ones((2, 3))).tolist() == [[0, 0, 0]] * 5


@both
@pytest.mark.parametrize("alpha", [1.0, 0.01])
@pytest.mark.parametrize("classes", [2, 5])
def test_probabilities_match_scikit_learn(events, alpha, classes):
    (train, dense_train), (test, dense_test) = random_texts(1, 80), random_texts(2, 20)
    targets = targets_for(3, 80, classes)
    model = bayes.fit(train, targets, classes, table(event_model=events, alpha=alpha))
    other = theirs(events, alpha).fit(dense_train, targets)
    np.testing.assert_allclose(model.log_probs(test), other.predict_log_proba(dense_test), atol=1e-9)


@both
def test_example_weights_equal_repeated_texts(events):
    (train, dense_train), (test, dense_test) = random_texts(1, 80), random_texts(2, 20)
    targets, weights = targets_for(3, 80, 3), np.array([1.0, 2.5, 7.0])
    model = bayes.fit(train, targets, 3, table(event_model=events), weights=weights)
    other = theirs(events, 1.0).fit(dense_train, targets, sample_weight=weights[targets])
    np.testing.assert_allclose(model.log_probs(test), other.predict_log_proba(dense_test), atol=1e-9)


@both
def test_multilabel_has_one_model_per_label(events):
    (train, dense_train), (test, dense_test) = random_texts(1, 80), random_texts(2, 20)
    labels, weights = labels_for(3, 80, 4), np.array([1.0, 2.0, 1.0, 0.5])
    model = bayes.fit(train, labels, 4, table(event_model=events), weights=weights)
    for label in range(4):
        counts = np.where(labels[:, label], weights[label], 1.0)
        other = theirs(events, 1.0).fit(dense_train, labels[:, label], sample_weight=counts)
        expected = other.predict_log_proba(dense_test)[:, 1]
        np.testing.assert_allclose(model.log_probs(test)[:, label], expected, atol=1e-9)


def test_a_worked_example():
    """Manning, Raghavan and Schuetze 2008, example 13.1: P(China | d5) is 0.0003 against 0.0001 before normalising."""
    texts = ["Chinese Beijing Chinese", "Chinese Chinese Shanghai", "Chinese Macao", "Tokyo Japan Chinese"]
    features = Features.fit(texts, FeatureConfig(ngram_range=[1, 1], tfidf=False))
    model = bayes.fit(features.transform(texts), np.array([1, 1, 1, 0]), 2, table())
    china, other = 3 / 4 * (3 / 7) ** 3 * (1 / 14) ** 2, 1 / 4 * (2 / 9) ** 5
    actual = np.exp(model.log_probs(features.transform(["Chinese Chinese Chinese Tokyo Japan"])))
    np.testing.assert_allclose(actual, [[other / (china + other), china / (china + other)]])


def test_bernoulli_uses_presence_not_counts():
    train, _ = random_texts(1, 60)
    model = bayes.fit(train, targets_for(3, 60, 3), 3, table(event_model="bernoulli"))
    more = train._replace(values=train.values * 3)
    np.testing.assert_array_equal(model.log_probs(more), model.log_probs(train))
    again = bayes.fit(more, targets_for(3, 60, 3), 3, table(event_model="bernoulli"))
    assert np.array_equal(again.weight, model.weight)


@both
def test_a_class_without_examples_has_probability_0_and_does_not_affect_others(events):
    train, _ = random_texts(1, 40)
    actual = bayes.fit(train, targets_for(3, 40, 3), 4, table(event_model=events)).log_probs(train)
    assert (actual[:, 3] == -np.inf).all() and np.isfinite(actual[:, :3]).all()
    labels = labels_for(3, 40, 3)
    labels[:, 1], labels[:, 2] = False, True
    actual = bayes.fit(train, labels, 3, table(event_model=events)).log_probs(train)
    assert np.isfinite(actual[:, 0]).all() and (actual[:, 1] == -np.inf).all() and (actual[:, 2] == 0).all()


@both
@pytest.mark.parametrize("several", [False, True])
def test_saving_and_loading_preserves_the_model(tmp_path, events, several):
    train, _ = random_texts(1, 40)
    targets = labels_for(3, 40, 3) if several else targets_for(3, 40, 3)
    model = bayes.fit(train, targets, 3, table(event_model=events))
    tensor_files.write_tensors(tmp_path / "model.safetensors", model.arrays())
    back = LinearModel.from_arrays(tensor_files.read_arrays(tmp_path / "model.safetensors")[0])
    np.testing.assert_array_equal(back.log_probs(train), model.log_probs(train))
    np.testing.assert_array_equal(back.logits(train), model.logits(train))
    assert (back.num_classes, back.num_parameters, back.multilabel, back.binary) == (3, 93, several, events == "bernoulli")


def good() -> dict[str, np.ndarray]:
    return LinearModel(np.ones((4, 2)), np.ones(2), multilabel=False).arrays()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"weight": np.ones((4, 2), np.float32)},
            "linear model: array 'weight' is missing or has the wrong type; the file is corrupted",
        ),
        ({"flags": np.array(True)}, "linear model: array 'flags' is missing or has the wrong type; the file is corrupted"),
        (
            {"bias": np.ones(3)},
            "linear model: weights of shape (4, 2) do not match 3 classes and 2 flags; the file is corrupted",
        ),
        (
            {"flags": np.array([True])},
            "linear model: weights of shape (4, 2) do not match 2 classes and 1 flags; the file is corrupted",
        ),
    ],
)
def test_damaged_arrays_are_rejected(change, message):
    assert LinearModel.from_arrays(good()).num_classes == 2
    with pytest.raises(ModelError) as caught:
        LinearModel.from_arrays(good() | change)
    assert str(caught.value) == message


def test_other_features_are_rejected():
    model = LinearModel.from_arrays(good())
    with pytest.raises(ModelError) as caught:
        model.log_probs(random_texts(0, 5)[0])
    assert str(caught.value) == ("linear model: expected 4 features, got 30; use the features that it was trained with")


@pytest.mark.parametrize(
    ("targets", "weights", "message"),
    [
        (np.zeros(9, np.int64), None, "targets: shape (9,) does not match 10 texts and 3 classes"),
        (np.zeros((10, 2), bool), None, "targets: shape (10, 2) does not match 10 texts and 3 classes"),
        (np.arange(10) - 1, None, "targets: must be from 0 to 2, got -1 to 8"),
        (np.arange(10) % 3, np.arange(3.0), "class weights: expected 3 positive numbers, got [0.0, 1.0, 2.0]"),
        (np.arange(10) % 3, np.ones(2), "class weights: expected 3 positive numbers, got [1.0, 1.0]"),
    ],
)
def test_incompatible_targets_are_rejected(targets, weights, message):
    with pytest.raises(DataError) as caught:
        bayes.fit(random_texts(0, 10)[0], targets, 3, table(), weights=weights)
    assert str(caught.value) == message


def test_configs_have_default_features_and_reject_incompatible_ones():
    assert parse_config(NaiveBayesConfig, {}, prefix="model").features is None  # to be chosen
    features = parse_config(LogisticRegressionConfig, {}, prefix="model").features
    assert features.tfidf and features.sublinear_tf and features.ngram_range == [1, 2]
    assert not FeatureConfig(tfidf=False).sublinear_tf and not FeatureConfig(binary=True).sublinear_tf
    custom = parse_config(NaiveBayesConfig, {"features": {"analyzer": "char", "ngram_range": [1, 4]}}, prefix="model")
    assert parse_config(NaiveBayesConfig, to_dict(custom), prefix="model") == custom
    for values, message in [
        ({"alpha": 0.0}, "model.alpha: must be greater than 0, got 0.0"),
        ({"event_model": "gaussian"}, "model.event_model: unknown event model 'gaussian'; choose from multinomial, bernoulli"),
        ({"features": {"analyser": "char"}}, "model.features.analyser: unknown option; did you mean 'analyzer'?"),
    ]:
        with pytest.raises(ConfigError) as caught:
            parse_config(NaiveBayesConfig, values, prefix="model")
        assert str(caught.value).startswith(message)
