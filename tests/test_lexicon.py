"""Lexicons: the rotation against a known one and the optimum, retrieval against brute force, metrics, bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.cli.main import main
from weft.errors import DataError, UsageError
from weft.lexicon.align import AlignOptions, align
from weft.lexicon.dictionary import covered_pairs, gold_translations, identical_pairs, read_dictionary
from weft.lexicon.evaluation import evaluate_lexicon, lexicon
from weft.lexicon.mapping import apply_mapping, least_squares, normalize, procrustes
from weft.lexicon.retrieval import Retrieval, density
from weft.metrics.items import total
from weft.metrics.lexicon import LEXICON, lexicon_items
from weft.metrics.metric import values
from weft.vectors.formats import write_vectors
from weft.vectors.word_vectors import WordVectors, dense_vectors, unit_rows

COUNT, SIZE = 120, 8


def rotation(seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(SIZE, SIZE)))[0]


def languages(noise: float = 0.0) -> tuple[WordVectors, WordVectors]:
    """Words s0, s1 ... and their translations t0, t1 ..., rotated; the words n0 to n9 are the same in both."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(COUNT, SIZE))
    y = x @ rotation() + noise * rng.normal(size=(COUNT, SIZE))
    names = [[f"n{k}" if k < 10 else f"{side}{k}" for k in range(COUNT)] for side in "st"]
    return tuple(
        dense_vectors(words, part.astype(np.float32), side) for words, part, side in zip(names, (x, y), "st", strict=True)
    )


def write_pairs(path: Path, rows) -> Path:
    path.write_text("".join(f"s{k}\tt{k}\n" for k in rows))
    return path


def test_rotation_is_recovered():
    x = np.random.default_rng(0).normal(size=(50, SIZE)).astype(np.float32)
    found = procrustes(x, (x @ rotation()).astype(np.float32))
    assert found == pytest.approx(rotation(), abs=1e-5)
    assert found @ found.T == pytest.approx(np.eye(SIZE), abs=1e-9)
    # the transpose, U V^T of Y^T X, maps the other way
    assert not np.allclose(found, found.T, atol=0.1)


def test_procrustes_is_optimal_among_rotations():
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(40, SIZE)).astype(np.float32) for _ in range(2))
    best = np.linalg.norm(x @ procrustes(x, y) - y)
    assert all(best <= np.linalg.norm(x @ rotation(seed) - y) for seed in range(50))
    assert np.linalg.norm(x @ least_squares(x, y) - y) < best  # without the constraint


def test_normalized_vectors_are_centered_units():
    vectors = normalize(np.random.default_rng(0).normal(1, 1, (30, SIZE)).astype(np.float32))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert np.abs(vectors.mean(0)).max() < 0.1


def test_csls_equals_its_equation(monkeypatch):
    monkeypatch.setattr("weft.lexicon.retrieval.BATCH_WORDS", 7)
    rng = np.random.default_rng(0)
    x, y = (unit_rows(rng.normal(size=(size, SIZE)).astype(np.float32)) for size in (20, 30))
    cosines = x @ y.T
    r_x, r_y = np.sort(cosines, 1)[:, -10:].mean(1), np.sort(cosines, 0)[-10:].mean(0)
    expected = 2 * cosines - r_x[:, None] - r_y
    csls = Retrieval(x, y)
    assert csls.scores(np.arange(20)) == pytest.approx(expected, abs=1e-5)
    assert density(x, y, neighbors=100) == pytest.approx(cosines.mean(1), abs=1e-5)
    found, similarity = csls.best(np.arange(20), 3)
    assert np.array_equal(found, np.argsort(-expected, 1)[:, :3])
    assert similarity == pytest.approx(-np.sort(-expected, 1)[:, :3], abs=1e-5)
    nearest = Retrieval(x, y, method="nearest")
    assert np.array_equal(nearest.best(np.arange(20), 1)[0][:, 0], cosines.argmax(1))
    source, target = csls.mutual(25)
    first = expected[:, :25]
    pairs = [(i, int(j)) for i, j in enumerate(first.argmax(1)) if first[:, j].argmax() == i]
    assert list(zip(source.tolist(), target.tolist(), strict=True)) == pairs


@pytest.mark.parametrize("retrieval", ["csls", "nearest"])
def test_lexicon_of_a_rotated_language_is_complete(tmp_path, retrieval):
    source, target = languages()
    pairs = covered_pairs(read_dictionary(write_pairs(tmp_path / "d.tsv", range(10, 40))), source, target)
    found = align(source, target, pairs, AlignOptions(retrieval=retrieval, refine=0))
    entries = lexicon(source, target, found.retrieval(retrieval), count=2)
    assert all(entry.translations[0][0] == entry.word.replace("s", "t") for entry in entries)
    assert all(len(entry.translations) == 2 for entry in entries)


def test_refinement_helps_a_small_dictionary_and_words_spelled_alike_are_enough(tmp_path):
    source, target = languages(noise=0.1)
    test = read_dictionary(write_pairs(tmp_path / "test.tsv", range(20, COUNT)))
    few = covered_pairs(read_dictionary(write_pairs(tmp_path / "few.tsv", range(10, 18))), source, target)

    def score(pairs, refine) -> float:
        found = align(source, target, pairs, AlignOptions(refine=refine))
        scored = evaluate_lexicon(test, source, target, found.retrieval("csls"), signature="x")
        assert (scored.covered, scored.total) == (100, 100)
        return scored.scores[0].value

    assert score(few, 3) > score(few, 0)
    assert score(None, None) >= max(80, score(None, 0))
    assert len(identical_pairs(source, target).source) == 10


def test_metrics_equal_their_definitions():
    ranks = [np.array([1]), np.array([6, 2]), np.array([11]), None]
    found = values(lexicon_items(ranks), LEXICON)
    assert found["precision_at_1"] == pytest.approx(100 / 3)
    assert found["precision_at_5"] == found["precision_at_10"] == pytest.approx(200 / 3)
    assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 11) / 3)
    assert found["map"] == pytest.approx((1 + (1 / 2 + 2 / 6) / 2 + 1 / 11) / 3)
    assert found["coverage"] == 75
    assert total(lexicon_items(ranks).statistics)["words"] == [4]


def test_several_translations_are_gold(tmp_path):
    source, target = languages()
    (tmp_path / "d.tsv").write_text("s20\tt20\ns20 t21\ns20\tgone\nunseen\tt22\ns30\tgone\n")
    dictionary = read_dictionary(tmp_path / "d.tsv")
    assert gold_translations(dictionary, target)["s20"] == (["t20", "t21", "gone"], [20, 21])
    found = align(source, target, covered_pairs(dictionary, source, target), AlignOptions(refine=0))
    x = apply_mapping(normalize(source.dense()), rotation())
    retrieval = Retrieval(x, normalize(target.dense()), method="nearest")
    scored = evaluate_lexicon(dictionary, source, target, retrieval, signature="x")
    assert (scored.covered, scored.total, found.pairs) == (1, 3, 2)
    second = (
        1 + int((np.delete(retrieval.scores(np.array([20]))[0], [20, 21]) >= retrieval.scores(np.array([20]))[0][21]).sum()) + 1
    )
    by_name = {score.name: score.value for score in scored.scores}
    assert by_name["mrr"] == 1.0 and by_name["map"] == pytest.approx((1 + 2 / second) / 2)


def test_ties_count_against_the_model(tmp_path):
    table = dense_vectors(["s1", "x"], np.ones((2, 2), np.float32), "s")
    other = dense_vectors(["t1", "u", "v"], np.ones((3, 2), np.float32), "t")
    dictionary = read_dictionary(write_pairs(tmp_path / "d.tsv", [1]))
    retrieval = Retrieval(unit_rows(table.dense()), unit_rows(other.dense()), method="nearest")
    scored = evaluate_lexicon(dictionary, table, other, retrieval, signature="x")
    assert {score.name: score.value for score in scored.scores}["mrr"] == pytest.approx(1 / 3)


# ---- command and bad input


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    source, target = languages()
    write_vectors(source, Path("s.bin"))
    write_vectors(target, Path("t.txt"))
    write_pairs(Path("train.tsv"), range(10, 60))
    write_pairs(Path("test.tsv"), range(60, 130))
    return tmp_path


def test_command_writes_lexicon_and_vectors(place, capsys):
    words = ["align", "s.bin", "t.txt", "--dictionary", "train.tsv", "--test", "test.tsv"]
    assert main([*words, "-o", "lexicon.tsv", "--vectors", "mapped.txt", "--num-translations", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out.split("\n")[1].split()[:2] == ["P@1", "100.0"]
    assert "50 of 50 pairs covered" in captured.err and "60 of 70 source words covered" in captured.err
    lines = Path("lexicon.tsv").read_text().split("\n")
    assert lines[20].split("\t")[:2] == ["s20", "t20"] and len(lines) == COUNT + 1
    assert Path("mapped.txt").read_text().startswith("120 8\n")
    assert main([*words, "--json"]) == 0
    assert '"precision_at_1"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["s.bin", "small.txt", "--test", "test.tsv"], "small.txt: has 2 dimensions, but s.bin has 8; train both with the same"),
        (["s.bin", "t.txt", "--dictionary", "none.tsv", "--test", "test.tsv"], "none.tsv:2: no pair has vectors for both words: 'a' is not in s.bin; is the order source, target?"),
        (["s.bin", "t.txt", "--test", "none.tsv"], "none.tsv:2: no word has a vector in s.bin and a translation in t.txt"),
        (["s.bin", "t.txt", "--dictionary", "bad.tsv", "--test", "test.tsv"], "bad.tsv:1: expected two words, got 'one'; separate"),
        (["s.bin", "far.txt", "--test", "test.tsv"], "far.txt: no word is spelled as in s.bin; use --dictionary FILE"),
        (["s.bin", "t.txt"], "nothing to do with the mapping; use --test FILE, --output FILE or --vectors FILE"),
        (["s.bin", "t.txt", "--test", "test.tsv", "--method", "svd"], "--method: unknown method 'svd'"),
        (["s.bin", "t.txt", "--test", "test.tsv", "--retrieval", "nn"], "--retrieval: unknown retrieval 'nn'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(place, capsys, words, message):
    Path("small.txt").write_text("t1 1 2\nn1 1 2\n")
    Path("far.txt").write_text("".join(f"z{k} 1 2 3 4 5 6 7 8\n" for k in range(3)))
    Path("none.tsv").write_text("\na\tb\n")
    Path("bad.tsv").write_text("one\n")
    assert main(["align", *words]) != 0
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_options_are_checked_in_python():
    source, target = languages()
    with pytest.raises(UsageError, match="method: unknown method 'x'"):
        align(source, target, None, AlignOptions(method="x"))
    with pytest.raises(DataError, match="has 2 dimensions, but s has 8"):
        align(source, dense_vectors(["n1"], np.ones((1, 2), np.float32), "t"), None, AlignOptions())
