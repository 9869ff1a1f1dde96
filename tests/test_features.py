"""TF-IDF and count features: comparison with scikit-learn's vectorizers, a worked example, saving and loading."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config import parse_config, to_dict
from weft.errors import ConfigError, DataError, ModelError
from weft.text import term_counts as grams
from weft.text.features import ANALYZERS, FeatureConfig, Features, Sparse, hstack

TEXTS = [
    "The cat sat, on the the mat!",
    "a",
    "",
    "  Ünï   code\n\nText  x ",
    "cat cat dog 12 ab_c",
    "İstanbul ß",
    "of the cat sat on",
    "I a\u00a0b\tthe cat",
]
NEW = ["the dog  sat on zebra", "", "cat cat x y İ", "mat! the the the mat", "𝒳 of"]
WEIGHTS = [
    {"tfidf": False},
    {"tfidf": True},
    {"tfidf": True, "sublinear_tf": True},
    {"tfidf": False, "binary": True},
    {"tfidf": True, "binary": True},
]
every_analyzer = pytest.mark.parametrize("analyzer", ANALYZERS)


def dense(sparse: Sparse) -> np.ndarray:
    actual = np.zeros((sparse.rows, sparse.columns))
    for row in range(sparse.rows):
        mine = slice(sparse.indptr[row], sparse.indptr[row + 1])
        actual[row, sparse.indices[mine]] = sparse.values[mine]
    return actual


def fit(texts: list[str], **options) -> Features:
    return Features.fit(texts, FeatureConfig(**options))


def theirs(table: FeatureConfig):
    text = pytest.importorskip("sklearn.feature_extraction.text")
    options = {"ngram_range": tuple(table.ngram_range), "lowercase": table.lowercase, "min_df": table.min_df}
    options |= {"analyzer": table.analyzer, "binary": table.binary}
    patterns = {"word_punct": r"(?u)\w+|[^\w\s]", "whitespace": r"\S+"}
    if table.analyzer in patterns:
        options |= {"analyzer": "word", "token_pattern": patterns[table.analyzer]}
    return text.TfidfVectorizer(sublinear_tf=table.sublinear_tf, **options) if table.tfidf else text.CountVectorizer(**options)


def assert_equal(table: FeatureConfig, texts: list[str], new: list[str]) -> None:
    """Assert that terms and values equal scikit-learn's, or that both reject the texts."""
    other = theirs(table)
    try:
        other.fit(texts)
    except ValueError:
        with pytest.raises(DataError):
            Features.fit(texts, table)
        return
    features = Features.fit(iter(texts), table)
    assert features.terms == list(other.get_feature_names_out())
    for some in (texts, new):
        mine, matrix = features.transform(some), other.transform(some)
        matrix.sort_indices()
        assert mine.columns == matrix.shape[1] == features.num_features
        np.testing.assert_array_equal(mine.indptr, matrix.indptr)
        np.testing.assert_array_equal(mine.indices, matrix.indices)
        np.testing.assert_allclose(mine.values, matrix.data, rtol=1e-12)


@every_analyzer
@pytest.mark.parametrize("ngrams", [[1, 1], [1, 3], [2, 2], [3, 5], [5, 6]], ids=str)
@pytest.mark.parametrize("min_count", [1, 2])
@pytest.mark.parametrize("lowercase", [True, False])
def test_features_match_scikit_learn(analyzer, ngrams, min_count, lowercase):
    for weights in WEIGHTS:
        table = FeatureConfig(analyzer=analyzer, ngram_range=ngrams, min_df=min_count, lowercase=lowercase, **weights)
        assert_equal(table, TEXTS, NEW)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("ab é_\n\u2003İß𝒳", max_size=12), min_size=1, max_size=6),
    st.sampled_from(list(ANALYZERS)),
    st.sampled_from([[1, 2], [2, 4], [4, 5]]),
    st.integers(1, 2),
)
def test_features_of_random_texts_match_scikit_learn(texts, analyzer, ngrams, min_count):
    assert_equal(FeatureConfig(analyzer=analyzer, ngram_range=ngrams, min_df=min_count), texts, ["ab a é", *texts[:1]])


def test_a_worked_example():
    features = fit(["red red fish", "blue fish", "fish"], ngram_range=[1, 1], sublinear_tf=False)
    assert features.terms == ["blue", "fish", "red"]
    assert features.counts.tolist() == [1, 3, 1]
    rare, common = math.log(4 / 2) + 1, 1.0  # ln((1 + 3) / (1 + texts)) + 1
    length = math.hypot(2 * rare, common)
    np.testing.assert_allclose(dense(features.transform(["red fish red"])), [[0, common / length, 2 * rare / length]])


def test_word_analyzers_differ_in_single_characters_and_punctuation():
    words = {name: fit(["I am, a"], ngram_range=[1, 1], analyzer=name).terms for name in ("word", "word_punct", "whitespace")}
    assert words == {"word": ["am"], "word_punct": [",", "a", "am", "i"], "whitespace": ["a", "am,", "i"]}


def test_a_word_shorter_than_the_ngrams_is_a_term_only_in_char_wb():
    assert fit(["a bcd"], analyzer="char_wb", ngram_range=[4, 4]).terms == [" a ", " bcd", "bcd "]
    assert fit(["a bcd"], analyzer="char", ngram_range=[4, 4]).terms == ["a bc", " bcd"][::-1]


@every_analyzer
def test_batch_size_does_not_change_features(monkeypatch, analyzer):
    texts = TEXTS * 5
    table = FeatureConfig(analyzer=analyzer, min_df=2, ngram_range=[1, 3])
    full = Features.fit(texts, table)
    monkeypatch.setattr(grams, "BATCH_CHARS", 20)
    parts = Features.fit(texts, table)
    assert parts.data == full.data
    for mine, other in zip(parts.transform(NEW * 3), full.transform(NEW * 3), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_max_features_keeps_the_most_frequent_and_breaks_ties_by_order():
    texts = ["dd dd dd aa", "bb bb cc cc aa", "ee"]
    assert fit(texts, ngram_range=[1, 1], max_features=3).terms == ["aa", "bb", "dd"]
    assert fit(texts, ngram_range=[1, 1], max_features=1).terms == ["dd"]
    assert fit(texts, ngram_range=[1, 1], max_features=99).num_features == 5


def test_no_texts_give_no_rows():
    rows = fit(TEXTS).transform([])
    assert rows.rows == 0 and rows.indices.size == rows.values.size == 0
    assert rows.columns == fit(TEXTS).num_features


def test_features_of_text_pairs_are_concatenated():
    one, two = fit(TEXTS, ngram_range=[1, 1]), fit(NEW, analyzer="char", ngram_range=[1, 2])
    first, second = one.transform(NEW), two.transform(NEW[::-1])
    joined = hstack([first, second])
    np.testing.assert_array_equal(dense(joined), np.hstack([dense(first), dense(second)]))
    assert all(
        (np.diff(joined.indices[low:high]) > 0).all() for low, high in zip(joined.indptr, joined.indptr[1:], strict=False)
    )


@every_analyzer
def test_saving_and_loading_preserves_features(tmp_path, analyzer):
    features = fit(TEXTS, analyzer=analyzer, ngram_range=[2, 4] if "char" in analyzer else [1, 2], sublinear_tf=True)
    features.save(tmp_path / "features.json")
    back = Features.load(tmp_path / "features.json")
    assert (back.config, back.terms, back.documents) == (features.config, features.terms, len(TEXTS))
    assert back.hash == features.hash != fit(TEXTS[1:]).hash
    for mine, other in zip(back.transform(NEW), features.transform(NEW), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "corrupted, or not a features file of version 1"),
        ({"options": {"analyser": "word"}}, "corrupted: options.analyser: unknown option; did you mean 'analyzer'?"),
        ({"terms": "abc"}, "corrupted: terms and counts must be lists of strings and integers"),
        ({"counts": [1.5]}, "corrupted: terms and counts must be lists of strings and integers"),
        ({"documents": None}, "corrupted: terms and counts must be lists of strings and integers"),
        ({"counts": [1]}, "corrupted: terms, counts and number of documents do not match"),
        ({"terms": ["b", "a"]}, "corrupted: terms, counts and number of documents do not match"),
        ({"counts": [1, 9]}, "corrupted: terms, counts and number of documents do not match"),
        ({"counts": [0, 1]}, "corrupted: terms, counts and number of documents do not match"),
    ],
)
def test_a_damaged_file_is_rejected(tmp_path, change, message):
    path = tmp_path / "features.json"
    good = {"version": 1, "options": to_dict(FeatureConfig()), "documents": 3, "terms": ["a", "b"], "counts": [2, 1]}
    path.write_text(json.dumps(good))
    assert Features.load(path).num_features == 2
    path.write_text(json.dumps(good | change))
    with pytest.raises(ModelError) as caught:
        Features.load(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    path.write_text("[]")
    with pytest.raises(ModelError, match="not a features file of version 1"):
        Features.load(path)


def test_texts_without_terms_are_rejected():
    with pytest.raises(DataError) as caught:
        fit(["a b", "? !"], min_df=2, ngram_range=[1, 1])
    assert str(caught.value) == (
        "features: no term occurs in at least 2 of 2 texts (analyzer 'word_punct', ngram_range [1, 1]);"
        " reduce min_df or choose another analyzer"
    )
    with pytest.raises(DataError, match="of 0 texts"):
        fit([])


def test_a_lone_surrogate_is_rejected_with_its_text():
    with pytest.raises(DataError, match=r"text 2: lone surrogate U\+D800 at character 1; use whole characters"):
        fit(["fine", "a\ud800"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"analyzer": "words"}, "features.analyzer: unknown analyzer 'words'; did you mean 'word'?"),
        ({"ngram_range": [3, 2]}, "features.ngram_range: the shortest n-gram is longer than the longest, got [3, 2]"),
        ({"ngram_range": [1]}, "features.ngram_range: expected 2 values, got [1]"),
        (
            {"sublinear_tf": True, "binary": True},
            "features.sublinear_tf: cannot be combined with binary; set one of them to false",
        ),
        (
            {"sublinear_tf": True, "tfidf": False},
            "features.sublinear_tf: requires tfidf = true; change one of them",
        ),
    ],
)
def test_incompatible_options_are_rejected(options, message):
    with pytest.raises(ConfigError) as caught:
        parse_config(FeatureConfig, options, prefix="features")
    assert str(caught.value).startswith(message)
