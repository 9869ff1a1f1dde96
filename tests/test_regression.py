"""Softmax regression: gradient, optimum compared with scikit-learn's, and degenerate data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_naive_bayes import labels_for, random_texts, targets_for

from weft.config import parse_config
from weft.errors import ConfigError
from weft.models import logistic_regression as regression
from weft.models.baseline_config import LogisticRegressionConfig
from weft.models.linear import LinearModel, transposed
from weft.models.linear_targets import one_hot_targets
from weft.models.logistic_regression import Objective


def table(**options) -> LogisticRegressionConfig:
    return LogisticRegressionConfig(**options)


def theirs(dense, targets, C, weights=None):
    linear = pytest.importorskip("sklearn.linear_model")
    return linear.LogisticRegression(C=C, tol=1e-10, max_iter=10_000, class_weight=weights).fit(dense, targets)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_gradient_matches_the_objective(sigmoid):
    train, _ = random_texts(1, 12, 6)
    members = torch.from_numpy(one_hot_targets(labels_for(2, 12, 3) if sigmoid else targets_for(2, 12, 3), 3, 12))
    counts = torch.rand(12, 3 if sigmoid else 1).double() + members.sum(1, keepdim=True)
    expected = members * 0.7 if sigmoid else members / members.sum(1, keepdim=True) * counts
    objective = Objective(train, transposed(train), expected, counts, sigmoid, 2.0)
    weight, bias = torch.randn(6, 3).double(), torch.randn(3).double()
    _, by_weight, by_bias = objective.value_and_grad(weight, bias)
    for index, actual in ((weight, by_weight), (bias, by_bias)):
        for position in range(index.numel()):
            flat, step = index.view(-1), 1e-5
            middle = float(flat[position])
            flat[position] = middle + step
            above = objective.value_and_grad(weight, bias)[0]
            flat[position] = middle - step
            below = objective.value_and_grad(weight, bias)[0]
            flat[position] = middle
            assert float(actual.reshape(-1)[position]) == pytest.approx(float(above - below) / (2 * step), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("C", [0.1, 1.0, 100.0])
def test_probabilities_match_scikit_learn(classes, C):
    (train, dense_train), (test, dense_test) = random_texts(1, 120), random_texts(2, 30)
    targets = targets_for(3, 120, classes)
    model = regression.fit(train, targets, classes, table(C=C))
    assert model.notes == ()
    np.testing.assert_allclose(
        np.exp(model.log_probs(test)), theirs(dense_train, targets, C).predict_proba(dense_test), atol=5e-4
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_match_scikit_learn(classes):
    (train, dense_train), (test, dense_test) = random_texts(1, 120), random_texts(2, 30)
    targets, weights = targets_for(3, 120, classes), np.array([1.0, 3.0, 0.5])[:classes]
    model = regression.fit(train, targets, classes, table(), weights=weights)
    other = theirs(dense_train, targets, 1.0, dict(enumerate(weights)))
    np.testing.assert_allclose(np.exp(model.log_probs(test)), other.predict_proba(dense_test), atol=5e-4)


def test_multilabel_has_one_logistic_regression_per_label():
    (train, dense_train), (test, dense_test) = random_texts(1, 120), random_texts(2, 30)
    labels, weights = labels_for(3, 120, 3), np.array([1.0, 2.0, 0.5])
    model = regression.fit(train, labels, 3, table(C=5.0), weights=weights)
    assert model.multilabel
    for label in range(3):
        other = theirs(dense_train, labels[:, label], 5.0, {False: 1.0, True: weights[label]})
        expected = other.predict_proba(dense_test)[:, 1]
        np.testing.assert_allclose(np.exp(model.log_probs(test)[:, label]), expected, atol=5e-4)


def test_two_classes_equal_a_sigmoid():
    train, _ = random_texts(1, 60)
    targets = targets_for(3, 60, 2)
    softmax = regression.fit(train, targets, 2, table())
    sigmoid = regression.fit(train, targets[:, None] == 1, 1, table())
    np.testing.assert_allclose(softmax.log_probs(train)[:, 1], sigmoid.log_probs(train)[:, 0], atol=1e-12)
    np.testing.assert_allclose(softmax.weight.sum(1), np.zeros(30), atol=1e-7)


def test_probabilities_sum_to_one_and_multilabel_ones_are_independent():
    train, _ = random_texts(1, 60)
    softmax = np.exp(regression.fit(train, targets_for(3, 60, 4), 4, table()).log_probs(train))
    np.testing.assert_allclose(softmax.sum(1), 1)
    labels = labels_for(3, 60, 4)
    all_four = regression.fit(train, labels, 4, table()).log_probs(train)
    alone = regression.fit(train, labels[:, 2:3], 1, table()).log_probs(train)
    np.testing.assert_allclose(np.exp(all_four[:, 2:3]), np.exp(alone), atol=5e-4)


@pytest.mark.parametrize("several", [False, True])
def test_a_class_without_examples_is_improbable(several):
    train, _ = random_texts(1, 60)
    targets = targets_for(3, 60, 3)
    if several:
        targets = np.eye(4, dtype=bool)[targets]
    actual = np.exp(regression.fit(train, targets, 4, table()).log_probs(train))
    assert np.isfinite(actual).all() and actual[:, 3].max() < 1e-3 < actual[:, :3].max()


def test_fitting_is_deterministic_and_weights_round_trip():
    train, _ = random_texts(1, 60)
    one, two = (regression.fit(train, targets_for(3, 60, 3), 3, table()) for _ in range(2))
    assert np.array_equal(one.weight, two.weight) and np.array_equal(one.bias, two.bias)
    back = LinearModel.from_arrays(one.arrays())
    np.testing.assert_array_equal(back.log_probs(train), one.log_probs(train))


def test_progress_callback_sees_every_evaluation_and_may_stop():
    train, _ = random_texts(1, 60)
    evaluations = list[int]()
    regression.fit(train, targets_for(3, 60, 3), 3, table(), progress=evaluations.append)
    assert evaluations == list(range(1, len(evaluations) + 1)) and len(evaluations) > 5

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regression.fit(train, targets_for(3, 60, 3), 3, table(), progress=stop)


def test_an_unconverged_fit_is_reported(monkeypatch):
    monkeypatch.setattr(regression, "MAX_STEPS", 2)
    train, _ = random_texts(1, 60)
    model = regression.fit(train, targets_for(3, 60, 3), 3, table(C=10.0))
    (note,) = model.notes
    assert note.startswith("logistic regression did not converge in 2 steps (gradient ") and note.endswith(", tolerance 1e-03)")


def test_a_penalty_must_be_finite_and_positive():
    with pytest.raises(ConfigError, match=r"model.C: must be greater than 0, got 0.0"):
        parse_config(LogisticRegressionConfig, {"C": 0.0}, prefix="model")
