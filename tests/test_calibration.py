"""Temperature scaling: known temperatures are recovered, and the loss never gets worse."""

from __future__ import annotations

import numpy as np
import pytest

from weft.metrics.calibration import MAX_TEMPERATURE, MIN_TEMPERATURE, sigmoid_temperature, softmax_temperature


def softmax(scores):
    shares = np.exp(scores - scores.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def log_loss(scores, gold, temperature):
    known = gold >= 0
    return -np.log(softmax(scores[known] / temperature)[np.arange(known.sum()), gold[known]]).mean()


def sigmoid_loss(scores, gold, temperature):
    z = scores / temperature
    return (np.logaddexp(0, z) - gold * z).mean()


def drawn(temperature, *, examples=20_000, labels=4, seed=0):
    """Scores that are too large by the temperature, and labels drawn from the probabilities that they should have."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(examples, labels)) * 1.5
    gold = (softmax(logits).cumsum(1) < rng.random((examples, 1))).sum(1)
    return logits * temperature, gold


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 6.0])
def test_a_known_temperature_is_recovered(temperature):
    assert softmax_temperature(*drawn(temperature)) == pytest.approx(temperature, rel=0.05)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 6.0])
def test_a_known_multilabel_temperature_is_recovered(temperature):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8000, 3)) * 2
    gold = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    assert sigmoid_temperature(logits * temperature, gold) == pytest.approx(temperature, rel=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_the_loss_is_minimal_and_never_worse(seed):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(rng.integers(1, 30), 3)) * rng.uniform(0.1, 20)
    gold = rng.integers(-1, 3, size=len(scores))
    gold[0] = scores[0].argmin()  # one at least is wrong: of what is all right the loss has no least value
    every = np.geomspace(MIN_TEMPERATURE, MAX_TEMPERATURE, 300)
    best = log_loss(scores, gold, softmax_temperature(scores, gold))
    assert best <= min(log_loss(scores, gold, t) for t in [1.0, *every]) + 1e-12
    several = rng.random(scores.shape) < 0.5
    several[0] = scores[0] < 0
    best = sigmoid_loss(scores, several, sigmoid_temperature(scores, several))
    assert best <= min(sigmoid_loss(scores, several, t) for t in [1.0, *every]) + 1e-12


def test_the_gradient_at_the_temperature_is_zero():
    scores, gold = drawn(2.5, examples=500)
    temperature, step = softmax_temperature(scores, gold), 1e-4
    above, below = (log_loss(scores, gold, temperature * (1 + side)) for side in (step, -step))
    assert abs(above - below) < 1e-10


def test_log_probabilities_give_the_same_temperature_as_logits():
    scores, gold = drawn(2.5, examples=500)
    shifted = np.log(softmax(scores))
    assert softmax_temperature(shifted, gold) == pytest.approx(softmax_temperature(scores, gold))
    assert softmax_temperature(scores.astype(np.float32), gold) == pytest.approx(softmax_temperature(scores, gold), rel=1e-5)


def test_unseen_labels_are_ignored():
    scores, gold = drawn(2.5, examples=500)
    hidden = np.where(np.arange(500) % 5 == 0, -1, gold)
    kept = hidden >= 0
    assert softmax_temperature(scores, hidden) == softmax_temperature(scores[kept], gold[kept])


def test_all_wrong_or_overconfident_data_ends_at_the_bounds():
    scores = np.array([[2.0, 0.0], [0.0, 1.0]])
    assert softmax_temperature(scores, np.array([1, 0])) == pytest.approx(MAX_TEMPERATURE)
    assert sigmoid_temperature(scores - 0.5, scores < 0.5) == pytest.approx(MAX_TEMPERATURE)
    faint = np.array([[0.02, 0.0], [0.0, 0.02], [0.0, 0.02], [0.0, 0.001]])
    assert softmax_temperature(faint, np.array([0, 1, 1, 0])) == pytest.approx(MIN_TEMPERATURE)
    assert sigmoid_temperature(faint - 0.01, np.array([[1, 0], [0, 1], [0, 1], [0, 1]]) > 0) == pytest.approx(MIN_TEMPERATURE)


@pytest.mark.parametrize("count", [1, 30, 100])
def test_all_correct_data_is_as_confident_as_its_size_allows(count):
    """Laplace's rule of succession; of equal margins the answer is known: each gets exactly that probability."""
    gold = np.arange(count) % 3
    faint = 1.2 * np.eye(3)[gold]
    sure = softmax(faint / softmax_temperature(faint, gold))[np.arange(count), gold]
    np.testing.assert_allclose(sure, (count + 1) / (count + 2))
    several = faint > 0
    temperature = sigmoid_temperature(faint - 0.6, several)
    np.testing.assert_allclose(1 / (1 + np.exp(-0.6 / temperature)), (3 * count + 1) / (3 * count + 2))


def test_confident_correct_predictions_are_unchanged():
    scores = np.array([[20.0, 0.0], [0.0, 30.0]])
    assert softmax_temperature(scores, np.array([0, 1])) == 1.0
    assert softmax_temperature(scores, np.array([0, -1])) == 1.0
    assert sigmoid_temperature(scores - 10, scores > 0) == 1.0


def test_no_data_gives_temperature_one():
    assert softmax_temperature(np.zeros((0, 3)), np.zeros(0, np.int64)) == 1.0
    assert softmax_temperature(np.ones((2, 3)), np.array([-1, -1])) == 1.0
    assert sigmoid_temperature(np.zeros((0, 3)), np.zeros((0, 3), bool)) == 1.0


@pytest.mark.filterwarnings("error")
def test_infinite_logits_give_no_nan():
    scores = np.array([[0.0, -np.inf, -1.0], [-np.inf, 0.0, -2.0], [3e30, 0.0, 0.0]])
    for gold in (np.array([0, 2, 0]), np.array([1, 1, 0])):
        assert MIN_TEMPERATURE <= softmax_temperature(scores, gold) <= MAX_TEMPERATURE
    wide = np.array([[np.inf, -np.inf], [1e30, -3.0]])
    assert MIN_TEMPERATURE <= sigmoid_temperature(wide, np.array([[True, False], [False, True]])) <= MAX_TEMPERATURE
