"""The label vocabulary of a run: order, IDs, file format, and damaged files."""

from __future__ import annotations

import hashlib
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import DataError, ModelError
from weft.text.labels import LabelVocabulary


def test_labels_are_sorted_by_frequency_and_then_by_name():
    assert LabelVocabulary.count(["b", "c", "a", "b", "ä", "a"]).names == ("a", "b", "c", "ä")


@given(st.lists(st.sampled_from(["x", "y", "z", "é", "a b"]), min_size=1), st.integers())
def test_order_of_the_data_does_not_matter(names, seed):
    mixed = list(names)
    random.Random(seed).shuffle(mixed)
    assert LabelVocabulary.count(iter(mixed)) == LabelVocabulary.count(names)
    labels = LabelVocabulary.count(names)
    assert [labels.index(name) for name in labels.names] == list(range(labels.size))
    assert labels.index("unheard of") is None


def test_no_label_at_all():
    with pytest.raises(DataError) as caught:
        LabelVocabulary.count([])
    assert str(caught.value) == "labels: the training data has no labels"


def test_labels_round_trip_and_their_hash_is_the_sha256_of_the_file(tmp_path):
    labels = LabelVocabulary(("NOUN", "é\u2028", "B-person"))
    labels.save(tmp_path / "labels.json")
    raw = (tmp_path / "labels.json").read_bytes()
    assert json.loads(raw) == {"version": 1, "labels": ["NOUN", "é\u2028", "B-person"]}
    assert LabelVocabulary.load(tmp_path / "labels.json") == labels
    assert labels.hash == hashlib.sha256(raw).hexdigest() == LabelVocabulary.load(tmp_path / "labels.json").hash
    assert labels.hash != LabelVocabulary(("é\u2028", "NOUN", "B-person")).hash
    assert [path.name for path in tmp_path.iterdir()] == ["labels.json"]


DAMAGED = [
    ("[]", "corrupted: the list of labels is missing"),
    ('{"version": 1}', "corrupted: the list of labels is missing"),
    ('{"version": 2, "labels": ["a"]}', "unsupported version 2; expected 1"),
    ('{"labels": ["a"]}', "unsupported version None; expected 1"),
    ('{"version": 1, "labels": []}', "corrupted: label 0 is missing or not a string"),
    ('{"version": 1, "labels": ["a", 1]}', "corrupted: label 1 is missing or not a string"),
    ('{"version": 1, "labels": ["a", "b", ""]}', "corrupted: label 2 is missing or not a string"),
    ('{"version": 1, "labels": ["a", "\\ud83d"]}', "corrupted: label 1 is missing or not a string"),
    ('{"version": 1, "labels": ["a", "b", "b"]}', "corrupted: duplicate label 'b'"),
    ("{", "corrupted: invalid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
]


@pytest.mark.parametrize(("text", "message"), DAMAGED)
def test_a_damaged_file_is_rejected_by_name(text, message, tmp_path):
    path = tmp_path / "labels.json"
    path.write_text(text)
    with pytest.raises(ModelError) as caught:
        LabelVocabulary.load(path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_missing_file(tmp_path):
    with pytest.raises(ModelError) as caught:
        LabelVocabulary.load(tmp_path / "labels.json")
    assert str(caught.value) == f"{tmp_path / 'labels.json'}: file not found"
