"""Classification metrics: by hand, against scikit-learn, and from sums of statistics."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from weft import __version__
from weft.errors import DataError
from weft.metrics.classification import (
    MULTI_LABEL,
    NUM_BINS,
    SINGLE_LABEL,
    ClassificationSetup,
    confusion,
    label_items,
    label_scores,
    multilabel_items,
    per_label,
    reliability,
)
from weft.metrics.items import ItemStatistics, join, total

HOW = ClassificationSetup(labels="0123456789abcdef")
SEVERAL = ClassificationSetup(labels="0123456789abcdef", multilabel=True)
# three examples of three labels and one of a label never seen; said: 0, 1, 0, 2
PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.58, 0.32, 0.1], [0.25, 0.25, 0.5]])
GOLD = np.array([0, 1, 1, -1])


def one(probs, gold):
    return label_items(np.log(probs), gold, np.arange(len(gold)))


def several(probs, gold, unseen=None):
    return multilabel_items(probs, gold, np.zeros(len(gold)) if unseen is None else unseen, np.arange(len(gold)))


def values(items, labelled=HOW):
    return {score.name: score.value for score in label_scores(items, labelled)}


def drawn(seed, *, examples=200, labels=5, unseen=0.0):
    """Random probabilities, some of them of use, and gold labels, of which some are unseen and one never occurs."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(labels - 1, size=examples)
    logits = rng.normal(size=(examples, labels)) * 2 + 2 * np.eye(labels)[gold]
    logits[:, -1] -= 50  # the last label is never said either
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return probs, np.where(rng.random(examples) < unseen, -1, gold)


# ---- by hand


def test_four_examples_by_hand():
    found = values(one(PROBS, GOLD))
    assert found["accuracy"] == pytest.approx(100 * 2 / 4)
    assert found["f1_micro"] == pytest.approx(100 * 2 / 4)
    # label 0: 1 right of 2 said and 1 meant; label 1: 1 of 1 and 2; label 2: 0 of 1 and 0; never seen: 0
    assert found["f1_macro"] == pytest.approx(100 * (2 / 3 + 2 / 3 + 0 + 0) / 4)
    nats = -np.log([0.7, 0.5, 0.32, np.finfo(np.float64).eps])
    assert found["log_loss"] == pytest.approx(nats.mean())
    # sums of squares; the last has 1 more, for the label that got nothing
    assert found["brier_score"] == pytest.approx((0.14 + 0.42 + 0.8088 + (0.375 + 1)) / 4)
    # confidences 0.7 (right) and 0.58 (wrong) in bins of their own, 0.5 twice in one, of which one is right
    assert found["ece"] == pytest.approx(100 * (0.3 + 0.58 + 0.0) / 4)


def test_per_label_scores_and_confusions_by_hand():
    items = one(PROBS, GOLD)
    assert per_label(items) == [
        (50.0, 100.0, pytest.approx(200 / 3), 1),
        (100.0, 50.0, pytest.approx(200 / 3), 2),
        (0.0, 0.0, 0.0, 0),
    ]
    assert confusion(items).tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert confusion(items).dtype == np.int64


def test_the_reliability_curve_by_hand():
    curve = reliability(one(PROBS, GOLD))
    assert len(curve) == NUM_BINS and curve[0].low == 0 and curve[-1].high == 1
    assert {at: bin.size for at, bin in enumerate(curve) if bin.size} == {7: 2, 8: 1, 10: 1}
    assert (curve[7].confidence, curve[7].accuracy) == (pytest.approx(0.5), 0.5)
    assert (curve[10].confidence, curve[10].accuracy) == (pytest.approx(0.7), 1.0)
    assert np.isnan(curve[0].accuracy) and np.isnan(curve[0].confidence)


def test_bins_include_their_upper_edge():
    edges = np.linspace(0, 1, NUM_BINS + 1)[None, 1:]
    curve = reliability(several(edges, edges > 0.5))
    assert [(bin.size, bin.confidence) for bin in curve] == [(1, bin.high) for bin in curve]


def test_multilabel_scores_by_hand():
    probs = np.array([[0.9, 0.2, 0.6], [0.5, 0.8, 0.1], [0.3, 0.1, 0.2]])
    gold = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 0]], bool)
    found = values(several(probs, gold, np.array([0, 0, 1])), SEVERAL)
    # 0.5 is not said; the last example has a label that training never saw
    assert found["exact_match"] == pytest.approx(100 / 3)
    assert found["f1_micro"] == pytest.approx(100 * 2 * 3 / (3 + 5))
    assert found["f1_macro"] == pytest.approx(100 * (2 / 3 + 1 + 1 + 0) / 4)
    held = np.array([0.9, 0.8, 0.6, 0.5, 0.8, 0.9, 0.7, 0.9, 0.8])
    assert found["log_loss"] == pytest.approx(-np.log(held).mean())
    assert found["brier_score"] == pytest.approx(np.square(1 - held).mean())


def test_all_correct_and_all_wrong():
    sure = np.eye(3)
    with np.errstate(divide="ignore"):
        right, wrong = values(one(sure, np.arange(3))), values(one(sure, np.array([1, 2, 0])))
    assert right == dict.fromkeys(("accuracy", "f1_macro", "f1_micro"), 100.0) | dict.fromkeys(
        ("log_loss", "brier_score", "ece"), 0.0
    )
    assert wrong["accuracy"] == wrong["f1_macro"] == wrong["f1_micro"] == 0
    assert wrong["log_loss"] == pytest.approx(36.0437, abs=1e-4)  # not infinite: scikit-learn's smallest probability
    assert (wrong["brier_score"], wrong["ece"]) == (2.0, 100.0)


# ---- against scikit-learn


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("labels", [2, 5])
def test_single_label_scores_equal_scikit_learn(seed, labels):
    sk = pytest.importorskip("sklearn.metrics")
    probs, gold = drawn(seed, labels=labels + 1)
    probs = probs[:, :labels] / probs[:, :labels].sum(1, keepdims=True)
    said, every = probs.argmax(1), list(range(labels))
    items = one(probs, gold)
    found = values(items)
    assert found["accuracy"] == pytest.approx(100 * sk.accuracy_score(gold, said))
    assert found["f1_macro"] == pytest.approx(100 * sk.f1_score(gold, said, average="macro"))
    assert found["f1_micro"] == pytest.approx(100 * sk.f1_score(gold, said, average="micro"))
    assert found["log_loss"] == pytest.approx(sk.log_loss(gold, probs, labels=every))
    theirs = sk.brier_score_loss(gold, probs if labels > 2 else probs[:, 1], labels=every)
    assert found["brier_score"] == pytest.approx(theirs)
    assert (confusion(items)[:-1] == sk.confusion_matrix(gold, said, labels=every)).all()
    table = np.array(per_label(items))
    rows = sk.precision_recall_fscore_support(gold, said, labels=every, zero_division=0)
    np.testing.assert_allclose(table.T, [100 * rows[0], 100 * rows[1], 100 * rows[2], rows[3]])


@pytest.mark.parametrize("seed", range(3))
def test_absent_and_unseen_labels_are_scored_as_in_scikit_learn(seed):
    """The last label is never said nor meant; -1 is a class like another."""
    sk = pytest.importorskip("sklearn.metrics")
    probs, gold = drawn(seed, unseen=0.1)
    said = probs.argmax(1)
    found = values(one(probs, gold))
    assert (gold == -1).any() and 4 not in said and 4 not in gold
    assert found["accuracy"] == pytest.approx(100 * sk.accuracy_score(gold, said))
    assert found["f1_macro"] == pytest.approx(100 * sk.f1_score(gold, said, average="macro", zero_division=0))
    assert found["f1_micro"] == found["accuracy"]


@pytest.mark.parametrize("seed", range(4))
def test_multilabel_scores_equal_scikit_learn(seed):
    sk = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    gold = rng.random((100, 6)) < 0.3
    probs = np.clip(0.5 * gold + rng.random((100, 6)) * 0.7, 0.001, 0.999)
    gold[:, 5], probs[:, 5] = False, 0.01  # a label that does not occur
    said, items = probs > 0.5, several(probs, gold)
    found = values(items, SEVERAL)
    assert found["exact_match"] == pytest.approx(100 * sk.accuracy_score(gold, said))
    for average in ("micro", "macro"):
        wanted = sk.f1_score(gold, said, average=average, zero_division=0)
        assert found[f"f1_{average}"] == pytest.approx(100 * wanted)
    assert found["log_loss"] == pytest.approx(sk.log_loss(gold.ravel(), probs.ravel()))
    assert found["brier_score"] == pytest.approx(sk.brier_score_loss(gold.ravel(), probs.ravel()))
    rows = sk.precision_recall_fscore_support(gold, said, zero_division=0)
    np.testing.assert_allclose(np.array(per_label(items)).T, [100 * rows[0], 100 * rows[1], 100 * rows[2], rows[3]])


@pytest.mark.parametrize("seed", range(3))
def test_the_reliability_curve_equals_scikit_learn(seed):
    calibration = pytest.importorskip("sklearn.calibration")
    probs, gold = drawn(seed)
    right, sure = probs.argmax(1) == gold, probs.max(1)
    curve = [bin for bin in reliability(one(probs, gold)) if bin.size]
    accuracy, confidence = calibration.calibration_curve(right, sure, n_bins=NUM_BINS)
    np.testing.assert_allclose([bin.accuracy for bin in curve], accuracy)
    np.testing.assert_allclose([bin.confidence for bin in curve], confidence)
    gaps = [bin.size * abs(bin.accuracy - bin.confidence) for bin in curve]
    assert values(one(probs, gold))["ece"] == pytest.approx(100 * sum(gaps) / len(gold))


# ---- sums, intervals, signatures


@pytest.mark.parametrize("labelled", [HOW, SEVERAL], ids=["one", "several"])
def test_batches_in_any_order_give_the_same_scores(labelled):
    probs, gold = drawn(0, unseen=0.05)
    known = np.eye(5, dtype=bool)[gold] & (gold >= 0)[:, None]
    parts = []
    for rows in np.split(np.random.default_rng(0).permutation(200), [7, 90, 91]):
        unseen = (gold[rows] < 0).astype(float)
        part = multilabel_items(probs[rows], known[rows], unseen, rows)
        parts.append(part if labelled.multilabel else label_items(np.log(probs[rows]), gold[rows], rows))
    whole = several(probs, known, (gold < 0).astype(float)) if labelled.multilabel else one(probs, gold)
    for ours, theirs in zip(label_scores(join(parts), labelled), label_scores(whole, labelled), strict=True):
        assert ours.name == theirs.name and ours.signature == theirs.signature
        np.testing.assert_allclose(np.array(ours[1:4], float), np.array(theirs[1:4], float))


def test_confidence_intervals_equal_a_bootstrap_over_examples():
    """Macro F1 of a resample is that of its examples, not a mean of theirs."""
    sk = pytest.importorskip("sklearn.metrics")
    probs, gold = drawn(1, examples=60)
    said, rng, again = probs.argmax(1), np.random.default_rng(0), []
    for _ in range(300):
        rows = rng.integers(60, size=60)
        again.append(100 * sk.f1_score(gold[rows], said[rows], average="macro"))
    score = next(score for score in label_scores(one(probs, gold), HOW._replace(samples=300)) if score.name == "f1_macro")
    low, high = np.sort(again)[[7, 292]]
    assert (score.low, score.high) == (pytest.approx(low), pytest.approx(high))


def test_which_scores_have_confidence_intervals():
    probs, gold = drawn(0)
    scores = label_scores(one(probs, gold), HOW)
    assert [score.name for score in scores] == [metric.name for metric in SINGLE_LABEL]
    for score in scores:
        if score.name == "ece":
            assert score.low is None and score.high is None
        else:
            assert score.low < score.value < score.high
    assert all(score.low is None for score in label_scores(one(probs[:1], gold[:1]), HOW))


def test_the_signature_names_every_choice():
    (first, *_) = label_scores(one(PROBS, GOLD), HOW._replace(temperature=1.23456, samples=10, seed=3))
    wanted = "|labels:01234567|one|temperature:1.235|unit:example|examples:4|unseen:1|resamples:10|seed:3|interval:95%"
    assert first.signature == f"weft:{__version__}{wanted}"
    (first, *_) = label_scores(several(PROBS, PROBS > 0.5), SEVERAL)
    assert first.name == "exact_match" and "|several|temperature:1|" in first.signature
    assert [metric.name for metric in MULTI_LABEL] == ["exact_match", *(metric.name for metric in SINGLE_LABEL[1:])]


def test_scores_can_be_computed_from_sums():
    sums = total(one(PROBS, GOLD).statistics)
    assert {metric.name: metric.compute(sums).item() for metric in SINGLE_LABEL} == values(one(PROBS, GOLD))


def test_no_examples_to_score():
    for items in (ItemStatistics(np.zeros(0, np.int64), {}), one(np.zeros((0, 3)), np.zeros(0, np.int64))):
        with pytest.raises(DataError) as caught:
            label_scores(items, HOW)
        assert str(caught.value) == "evaluate: no examples to evaluate"


def test_memory_grows_with_labels_times_examples():
    """Of 4,000 labels and 50 examples a table has 1.6 MB, a matrix of the labels 128."""
    rng = np.random.default_rng(0)
    log_probs = np.log(rng.dirichlet(np.full(4000, 0.1), 50) + 1e-12)
    gold = rng.integers(-1, 4000, 50)
    tracemalloc.start()
    found = label_items(log_probs, gold, np.arange(50))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    assert found.statistics["gold"].sum(1).tolist() == (gold >= 0).astype(float).tolist()
    assert found.statistics["predicted"].argmax(1).tolist() == log_probs.argmax(1).tolist()
    assert found.statistics["predicted"].sum() == 50
