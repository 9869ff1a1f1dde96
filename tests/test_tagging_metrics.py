"""Span and tag metrics: worked examples, comparison with seqeval, and aggregation over batches."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from weft import __version__
from weft.errors import DataError
from weft.metrics.items import ItemStatistics, join, total
from weft.metrics.tagging import (
    PREFIXES,
    TAGS,
    Span,
    TaggingSetup,
    allowed,
    per_tag,
    per_type,
    repair,
    scheme_of,
    spans,
    strict_spans,
    tag_confusion,
    tag_items,
    tag_scores,
    tags_of,
    types_of,
    validate,
)

HOW = TaggingSetup(labels="0123456789abcdef", scheme="BIO")
TYPES = ("LOC", "PER")


def tags(text):
    return text.split()


def labels_of(scheme, types=TYPES):
    return ["O", *(f"{letter}-{kind}" for letter in PREFIXES[scheme] for kind in types)]


def sentences(labels, *, size=300, max_length=9, seed=0):
    """Random tag sequences, most of them invalid."""
    rng = random.Random(seed)
    return [rng.choices(labels, k=rng.randint(1, max_length)) for _ in range(size)]


def wrong_in_places(gold, labels, seed=0):
    rng = random.Random(seed)
    return [[rng.choice(labels) if rng.random() < 0.2 else tag for tag in row] for row in gold]


def scored(said, meant, *, types=TYPES, known=None, tagged=HOW):
    items = tag_items(said, meant, np.arange(len(said)), types=types, known=known)
    return {score.name: score for score in tag_scores(items, tagged)}


# ---- spans of tags


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        ("O O", set()),
        ("B-PER I-PER O B-LOC", {("PER", 0, 2), ("LOC", 3, 4)}),
        ("B-PER B-PER", {("PER", 0, 1), ("PER", 1, 2)}),
        ("O I-PER I-PER", {("PER", 1, 3)}),  # IOB1, or invalid BIO
        ("I-PER I-LOC", {("PER", 0, 1), ("LOC", 1, 2)}),
        ("B-PER I-LOC I-LOC", {("PER", 0, 1), ("LOC", 1, 3)}),
        ("S-PER B-LOC I-LOC E-LOC E-LOC", {("PER", 0, 1), ("LOC", 1, 4), ("LOC", 4, 5)}),
        ("U-PER B-LOC L-LOC I-LOC", {("PER", 0, 1), ("LOC", 1, 3), ("LOC", 3, 4)}),
        ("B I O B", {("_", 0, 2), ("_", 3, 4)}),
        ("B-creative-work I-creative-work", {("creative-work", 0, 2)}),
        ("NOUN X BPER B_PER", set()),  # no tags of any scheme
    ],
)
def test_spans_by_hand(text, expected):
    assert spans(tags(text)) == expected


@pytest.mark.parametrize("labels", [labels_of("BIO"), labels_of("BIOES"), ["O", "B", "I", "E", "S", "B-X", "I-X"]])
def test_spans_of_any_tags_match_seqeval(labels):
    seqeval = pytest.importorskip("seqeval.metrics.sequence_labeling")
    for row in [*map(list, product(labels, repeat=3)), *sentences(labels)]:
        assert spans(row) == {(kind, start, end + 1) for kind, start, end in seqeval.get_entities(row)}, row


@pytest.mark.parametrize(("scheme", "theirs"), [("BIO", "IOB2"), ("BIOES", "IOBES"), ("BILOU", "BILOU")])
def test_strict_spans_of_any_tags_match_seqeval(scheme, theirs):
    seqeval = pytest.importorskip("seqeval.scheme")
    labels = labels_of(scheme)
    for row in [*map(list, product(labels, repeat=3)), *sentences(labels)]:
        actual = seqeval.Tokens(row, getattr(seqeval, theirs)).entities
        assert strict_spans(row, scheme) == {(entity.tag, entity.start, entity.end) for entity in actual}, row


# ---- repair, validate, allowed, scheme_of


@pytest.mark.parametrize(
    ("scheme", "text", "expected"),
    [
        ("BIO", "O I-PER I-PER", "O B-PER I-PER"),
        ("BIO", "B-PER I-LOC", "B-PER B-LOC"),
        ("BIO", "S-PER O B-LOC I-LOC E-LOC", "B-PER O B-LOC I-LOC I-LOC"),
        ("BIOES", "B-PER O B-LOC I-LOC I-LOC B-LOC", "S-PER O B-LOC I-LOC E-LOC S-LOC"),
        ("BILOU", "B-PER O B-LOC I-LOC I-LOC B-LOC", "U-PER O B-LOC I-LOC L-LOC U-LOC"),
        ("IOB1", "B-PER B-PER I-PER B-LOC O B-PER", "I-PER B-PER I-PER I-LOC O I-PER"),
        ("BIO", "I I O B", "B I O B"),
        ("BIO", "O X O", "O O O"),
    ],
)
def test_repair_by_hand(scheme, text, expected):
    assert repair(tags(text), scheme) == tags(expected)


@pytest.mark.parametrize("scheme", PREFIXES)
def test_repaired_tags_are_valid_mark_the_same_spans_and_need_no_repair(scheme):
    for row in sentences(labels_of("BIO") + labels_of("BIOES")):
        repaired = repair(row, scheme)
        assert spans(repaired) == spans(row) == strict_spans(repaired, scheme)
        assert not validate(repaired, scheme)
        assert repair(repaired, scheme) == repaired


@pytest.mark.parametrize("scheme", PREFIXES)
def test_tags_are_valid_if_and_only_if_repair_changes_nothing(scheme):
    labels = labels_of(scheme)
    for row in [*map(list, product(labels, repeat=3)), *sentences(labels)]:
        assert (not validate(row, scheme)) == (repair(row, scheme) == row), row


@pytest.mark.parametrize("scheme", PREFIXES)
def test_allowed_transitions_are_those_of_valid_tags(scheme):
    labels = labels_of(scheme)
    table = allowed(labels, scheme)
    assert table.shape == (len(labels) + 1,) * 2 and table.dtype == bool
    for row in product(range(len(labels)), repeat=3):
        moves = [(len(labels), row[0]), (row[0], row[1]), (row[1], row[2]), (row[2], len(labels))]
        valid = not validate([labels[index] for index in row], scheme)
        assert all(table[move] for move in moves) == valid


def test_allowed_transitions_by_hand():
    assert allowed(["O", "B-X", "I-X", "I-Y"], "BIO").tolist() == [
        [True, True, False, False, True],
        [True, True, True, False, True],
        [True, True, True, False, True],
        [True, True, False, True, True],
        [True, True, False, False, True],
    ]
    assert allowed(["O", "B-X", "E-X", "S-X"], "BIOES").tolist() == [
        [True, True, False, True, True],
        [False, False, True, False, False],
        [True, True, False, True, True],
        [True, True, False, True, True],
        [True, True, False, True, True],
    ]


@pytest.mark.parametrize(
    ("scheme", "text", "places"),
    [
        ("BIO", "O I-PER I-PER I-LOC", [1, 3]),
        ("BIO", "B-PER I-PER", []),
        ("IOB1", "O B-PER B-PER I-LOC", [1]),
        ("BIOES", "B-PER O I-PER E-PER S-LOC", [1, 2]),
        ("BIOES", "O B-PER", [2]),  # invalid end
        ("BIOES", "", []),
    ],
)
def test_tag_errors_by_hand(scheme, text, places):
    assert validate(tags(text), scheme) == places


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        ("O B-PER I-PER B-LOC", "BIO"),
        ("O B-PER", "BIO"),
        ("B I", "BIO"),
        ("O I-PER I-LOC", "IOB1"),
        ("O B-PER I-PER E-PER S-PER", "BIOES"),
        ("O S-PER", "BIOES"),
        ("O B-PER L-PER U-LOC", "BILOU"),
        ("O B-PER E-PER U-PER", None),  # mixed schemes
        ("NOUN VERB O", None),
        ("O B-PER X", None),
        ("S E I", None),  # prefixes, but no beginning
        ("O", None),
        ("", None),
    ],
)
def test_the_scheme_of_a_set_of_tags(labels, scheme):
    assert scheme_of(tags(labels)) == scheme


def test_the_types_of_a_set_of_tags():
    assert types_of(tags("O I-PER B-PER B-creative-work")) == ("PER", "creative-work")
    assert types_of(tags("NOUN O")) == ()


def test_tags_of_spans_in_any_order():
    actual = [Span("PER", 3, 5), Span("PER", 2, 3)]
    assert tags_of(actual, 6, "IOB1") == tags("O O I-PER B-PER I-PER O")


# ---- scores


def test_two_sentences_by_hand():
    gold = [tags("B-PER I-PER O B-LOC"), tags("O B-LOC O")]
    predicted = [tags("B-PER I-PER O B-PER"), tags("O B-LOC B-LOC")]
    is_known = [np.array([True, True, True, False]), np.array([False, True, True])]
    actual = {name: score.value for name, score in scored(predicted, gold, known=is_known).items()}
    assert actual == {
        "token_accuracy": pytest.approx(100 * 5 / 7),
        "sentence_accuracy": 0.0,
        "oov_accuracy": 50.0,
        "span_f1": pytest.approx(100 * 2 * 2 / (4 + 3)),
        "span_precision": 50.0,
        "span_recall": pytest.approx(100 * 2 / 3),
    }
    assert list(actual) == [metric.name for metric in TAGS]
    types = per_type(tag_items(predicted, gold, np.arange(2), types=TYPES), TYPES)
    assert types == {"LOC": (50.0, 50.0, 50.0, 2), "PER": (50.0, 100.0, pytest.approx(200 / 3), 1)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
def test_scores_match_seqeval(seed, scheme):
    seqeval = pytest.importorskip("seqeval.metrics")
    labels = labels_of(scheme)
    gold = [repair(row, scheme) for row in sentences(labels, seed=seed)]
    predicted = wrong_in_places(gold, labels, seed)
    actual = scored(predicted, gold)
    assert actual["span_f1"].value == pytest.approx(100 * seqeval.f1_score(gold, predicted))
    assert actual["span_precision"].value == pytest.approx(100 * seqeval.precision_score(gold, predicted))
    assert actual["span_recall"].value == pytest.approx(100 * seqeval.recall_score(gold, predicted))
    assert actual["token_accuracy"].value == pytest.approx(100 * seqeval.accuracy_score(gold, predicted))
    report = seqeval.classification_report(gold, predicted, output_dict=True)
    for kind, score in per_type(tag_items(predicted, gold, np.arange(len(predicted)), types=TYPES), TYPES).items():
        theirs = report[kind]
        wanted = [100 * theirs["precision"], 100 * theirs["recall"], 100 * theirs["f1-score"], theirs["support"]]
        assert list(score) == pytest.approx(wanted)


@pytest.mark.parametrize("seed", range(3))
def test_tag_scores_and_confusions_match_scikit_learn(seed):
    metrics = pytest.importorskip("sklearn.metrics")
    names = ["DET", "NOUN", "VERB", "ADJ", "never"]
    gold = sentences([*names[:4], "unseen"], seed=seed)  # an unseen tag can only be missed
    predicted = wrong_in_places([[tag if tag in names else "DET" for tag in row] for row in gold], names[:4], seed)
    flat = [[tag for row in rows for tag in row] for rows in (gold, predicted)]
    theirs = metrics.precision_recall_fscore_support(*flat, labels=names, zero_division=0)
    actual = per_tag(predicted, gold, names)
    assert list(actual) == names
    for index, score in enumerate(actual.values()):
        assert list(score) == pytest.approx(
            [100 * theirs[0][index], 100 * theirs[1][index], 100 * theirs[2][index], theirs[3][index]]
        )
    counts = metrics.confusion_matrix(*flat, labels=[*names, "unseen"])
    assert np.array_equal(tag_confusion(predicted, gold, names), counts[:, :-1])


def test_a_type_never_seen_counts_as_missed():
    actual = scored([tags("B-PER O")], [tags("B-PER B-GPE")])
    assert actual["span_recall"].value == 50.0 and actual["span_precision"].value == 100.0
    assert list(per_type(tag_items([["O"]], [["B-GPE"]], np.arange(1), types=TYPES), TYPES)) == list(TYPES)


def test_no_gold_and_no_predicted_spans_gives_0_as_in_seqeval():
    actual = scored([tags("O O")], [tags("O O")])
    assert actual["span_f1"].value == actual["span_precision"].value == actual["span_recall"].value == 0.0
    assert actual["token_accuracy"].value == 100.0


def test_only_counted_metrics_are_scored():
    predicted, gold = [tags("NOUN VERB"), tags("NOUN")], [tags("NOUN NOUN"), tags("NOUN")]
    every = [np.array([True, True]), np.array([True])]
    assert list(scored(predicted, gold, types=())) == ["token_accuracy", "sentence_accuracy"]
    assert list(scored(predicted, gold, types=(), known=every)) == ["token_accuracy", "sentence_accuracy"]  # no OOV words
    one_new = [np.array([True, False]), np.array([True])]
    score = scored(predicted, gold, types=(), known=one_new)["oov_accuracy"]
    assert (score.value, score.low, score.high) == (0.0, 0.0, 0.0)


def test_batches_in_any_order_give_the_same_scores_and_intervals():
    labels = labels_of("BIO")
    gold = [repair(row, "BIO") for row in sentences(labels)]
    predicted = wrong_in_places(gold, labels)
    order = np.random.default_rng(0).permutation(len(gold))
    parts = [
        tag_items([predicted[index] for index in rows], [gold[index] for index in rows], rows, types=TYPES)
        for rows in np.split(order, [10, 11, 200])
    ]
    full = list(scored(predicted, gold).values())
    assert tag_scores(join(parts), HOW) == full
    assert all(score.low < score.value < score.high for score in full)
    sums = total(join(parts).statistics)
    functions = {metric.name: metric.compute for metric in TAGS}
    for score in full:
        assert functions[score.name](sums).item() == score.value


def test_a_signature_names_every_choice():
    score = scored([tags("O B-PER")], [tags("O O")], tagged=HOW._replace(samples=10, seed=3))["span_f1"]
    expected = "|labels:01234567|spans:BIO|read:conlleval|unit:sentence|sentences:1|tokens:2|resamples:10|seed:3|interval:95%"
    assert score.signature == f"weft:{__version__}{expected}"
    assert score.low is None and score.high is None
    plain = scored([tags("NOUN")], [tags("NOUN")], types=(), tagged=HOW._replace(scheme=None))["token_accuracy"]
    assert "|spans:none|" in plain.signature


def test_nothing_to_score():
    for items in (ItemStatistics(np.zeros(0, np.int64), {}), tag_items([], [], np.zeros(0, np.int64), types=TYPES)):
        with pytest.raises(DataError) as caught:
            tag_scores(items, HOW)
        assert str(caught.value) == "evaluate: no sentences to evaluate"


def test_sentences_of_different_lengths_are_an_error():
    with pytest.raises(ValueError) as caught:
        tag_items([["O"]], [["O", "O"]], np.arange(1))
    assert str(caught.value) == "tag_items: a sentence has different numbers of predicted and gold tags"
