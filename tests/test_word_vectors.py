"""Counting models against brute force, lookup and files, the task from training to evaluation, bad input."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from weft.cli.main import main
from weft.config import parse_config
from weft.errors import ConfigError, DataError, ModelError, UsageError
from weft.interop.export_record import ExportOptions
from weft.models.cooccurrence import count_pairs, window_weight
from weft.models.glove import Glove
from weft.models.pmi import pmi_matrix, pmi_vectors, truncated_svd
from weft.models.word_vectors_config import GloveConfig, PMIConfig, Word2VecConfig
from weft.text.char_ngrams import CharNgrams
from weft.text.features import Sparse
from weft.vectors.formats import read_vectors, write_vectors
from weft.vectors.layout import layout, pca
from weft.vectors.rows import DenseRows, SparseRows
from weft.vectors.word_vectors import Subwords, Term, WordVectors, dense_vectors, parse_expression, top

NAMES = ("king", "queen", "man", "woman", "apple", "pear")


def vectors() -> WordVectors:
    array = np.array([[3, 1, 0], [3, -1, 0], [0, 2, 0], [0, -2, 0], [0, 0.1, 1], [0, 0, 2]], np.float32)
    return dense_vectors(NAMES, array, "toy")


def dense_matrix(sparse: Sparse) -> np.ndarray:
    return SparseRows(sparse).take(np.arange(sparse.rows)).astype(np.float64)


# ---- counting


def brute_force(words, lines, size, window, weights):
    counts = np.zeros((size, size))
    for center in range(len(words)):
        for context in range(len(words)):
            distance = abs(center - context)
            if 0 < distance <= window and lines[center] == lines[context]:
                counts[words[center], words[context]] += window_weight(weights, distance, window)
    return counts


@pytest.mark.parametrize("weights", ["dynamic", "harmonic", "flat"])
def test_counts_equal_brute_force_across_segments(monkeypatch, weights):
    monkeypatch.setattr("weft.models.cooccurrence.SEGMENT_WORDS", 17)
    rng = np.random.default_rng(0)
    words, lines = rng.integers(0, 6, 100), np.sort(rng.integers(0, 9, 100))
    pairs = count_pairs(words, lines, 6, window=4, weights=weights)
    dense = np.zeros((6, 6))
    dense[pairs.words, pairs.contexts] = pairs.counts
    assert dense == pytest.approx(brute_force(words, lines, 6, 4, weights))


def test_pmi_equals_its_equation():
    rng = np.random.default_rng(1)
    words, lines = rng.integers(0, 5, 200), np.zeros(200, int)
    pairs = count_pairs(words, lines, 5, window=2, weights="flat")
    counts = brute_force(words, lines, 5, 2, "flat")
    smoothed = counts.sum(0) ** 0.75 / (counts.sum(0) ** 0.75).sum()
    pmi = np.log(counts / counts.sum() / (counts.sum(1) / counts.sum())[:, None] / smoothed)
    config = {"context_power": 0.75, "shift": 2.0}
    plain = dense_matrix(pmi_matrix(pairs, PMIConfig.model_validate({**config, "positive": False})))
    positive = dense_matrix(pmi_matrix(pairs, PMIConfig.model_validate(config)))
    assert plain == pytest.approx(pmi - np.log(2), abs=1e-6)
    assert positive == pytest.approx(np.maximum(pmi - np.log(2), 0), abs=1e-6)


def test_svd_equals_the_exact_one():
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((60, 60)) < 0.2, rng.random((60, 60)), 0) + np.outer(rng.random(60), rng.random(60))
    rows, columns = np.nonzero(dense)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=60))])
    matrix = Sparse(indptr, columns, dense[rows, columns], 60)
    left, values = truncated_svd(matrix, 5, seed=0)
    u, s, _ = np.linalg.svd(dense)
    assert values.numpy() == pytest.approx(s[:5], rel=1e-3)
    assert np.abs((left.numpy() * u[:, :5]).sum(0)) == pytest.approx(1.0, abs=1e-2)
    half = pmi_vectors(matrix, PMIConfig.model_validate({"vector_size": 5, "eigenvalue_power": 0.5}), seed=0)
    assert np.linalg.norm(half, axis=0) == pytest.approx(np.sqrt(s[:5]), rel=1e-3)
    assert pmi_vectors(matrix, PMIConfig.model_validate({"vector_size": 70}), seed=0).shape == (60, 70)


def test_glove_gradients_equal_autograd_and_training_lowers_the_loss():
    rng = np.random.default_rng(0)
    pairs = count_pairs(rng.integers(0, 6, 300), np.zeros(300, int), 6, window=3, weights="harmonic")
    config = GloveConfig.model_validate({"vector_size": 4, "x_max": 10.0})
    model = Glove(pairs, config, seed=0)
    members = torch.arange(0, len(pairs.counts), 2)
    words, contexts = (table.clone().requires_grad_() for table in model.parameters)
    x = torch.from_numpy(pairs.counts).float()[members]
    w, c = words[torch.from_numpy(pairs.words)[members]], contexts[torch.from_numpy(pairs.contexts)[members]]
    error = (w[:, :-1] * c[:, :-1]).sum(1) + w[:, -1] + c[:, -1] - x.log()
    loss = ((x / 10).clamp(max=1) ** 0.75 * error**2).sum()
    loss.backward()
    value, gradients = model.gradients(members)
    assert value == pytest.approx(loss.item(), rel=1e-5)
    for table, (rows, gradient) in zip((words, contexts), gradients, strict=True):
        assert torch.allclose(table.grad[rows], 2 * gradient, atol=1e-5)
    losses = [model.train_epoch(epoch, lambda done, total: None) for epoch in range(30)]
    assert losses[-1] < losses[0] / 2


# ---- lookup


def test_neighbors_and_analogies():
    table = vectors()
    assert [n.word for n in table.neighbors_of("apple", 2)] == ["pear", "man"]
    assert table.neighbors_of("king - man + woman", 1)[0].word == "queen"
    assert table.neighbors_of("KING", 1)[0].word == "queen"  # the lowercase form has a vector
    assert len(table.neighbors_of("king", 100)) == 5


def test_expressions():
    assert parse_expression("king - man + woman") == [Term("king", 1), Term("man", -1), Term("woman", 1)]
    assert parse_expression("well-known") == [Term("well-known", 1)]
    assert parse_expression("- man + new york") == [Term("man", -1), Term("new york", 1)]
    for text in ("", "king -", "+ "):
        with pytest.raises(DataError) as error:
            parse_expression(text)
        assert 'expected words with + and - between them; write it like "king - man + woman"' in str(error.value)


def test_unknown_word_is_named():
    with pytest.raises(DataError, match=r"^'aple': has no vector in toy; did you mean 'apple'\?$"):
        vectors().neighbors_of("aple", 1)


def test_unseen_words_have_the_mean_of_their_ngrams():
    ngrams, buckets = CharNgrams(3, 4, 20), np.random.default_rng(0).random((20, 3)).astype(np.float32)
    table = WordVectors(NAMES, DenseRows(vectors().dense()), name="toy", subwords=Subwords(ngrams, buckets))
    assert table.vector("kings") == pytest.approx(buckets[ngrams.bucket_ids("kings")].mean(0))
    assert table.num_parameters == 18 + 60


def test_sparse_rows_equal_dense_rows():
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((8, 5)) < 0.4, rng.random((8, 5)), 0).astype(np.float32)
    rows, columns = np.nonzero(dense)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=8))])
    sparse, full = SparseRows(Sparse(indptr, columns, dense[rows, columns].astype(float), 5)), DenseRows(dense)
    queries = rng.random((3, 5)).astype(np.float32)
    assert sparse.dot(queries) == pytest.approx(full.dot(queries), abs=1e-6)
    assert sparse.norms() == pytest.approx(full.norms(), abs=1e-6)
    assert (sparse.shape, np.array_equal(sparse.take(np.array([2, 2])), dense[[2, 2]])) == (full.shape, True)
    assert sparse.num_values == len(rows)


def test_top_is_stable():
    scores = np.array([[1, 3, 3, 2, 3]], np.float32)
    assert [top(scores, count).tolist() for count in (0, 2, 4, 5)] == [[[]], [[1, 2]], [[1, 2, 4, 3]], [[1, 2, 4, 3, 0]]]


def test_pca_keeps_the_distances_of_a_plane():
    points = np.random.default_rng(0).random((9, 2)) @ np.array([[1, 0, 2.0], [0, 3.0, 1]])
    flat = pca(points.astype(np.float32))
    assert np.linalg.norm(flat[:, None] - flat, axis=-1) == pytest.approx(
        np.linalg.norm(points[:, None] - points, axis=-1), abs=1e-5
    )
    with pytest.raises(UsageError, match="method: unknown method 'mds'"):
        layout(points.astype(np.float32), "mds")
    with pytest.raises(
        UsageError, match=r"^method: 'umap' needs the package umap-learn; pip install umap-learn, or use 'pca'$"
    ):
        layout(points.astype(np.float32), "umap")


@pytest.mark.slow
def test_tsne_is_a_plane():
    assert layout(np.random.default_rng(0).random((9, 3)).astype(np.float32), "tsne").shape == (9, 2)


# ---- files


@pytest.mark.parametrize("name", ["v.txt", "v.vec", "v.bin", "v.safetensors", "v.npy"])
def test_files_keep_every_value(tmp_path, name):
    table = dense_vectors([*NAMES[:5], "é"], np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32), "toy")
    write_vectors(table, tmp_path / name)
    again = read_vectors(tmp_path / name)
    assert again.words == table.words and np.array_equal(again.dense(), table.dense())


def test_words_with_spaces_are_left_out_of_word2vec_files(tmp_path):
    table = dense_vectors(["new york", "paris"], np.ones((2, 2), np.float32), "toy")
    assert write_vectors(table, tmp_path / "v.txt") == ["1 words with spaces were left out, which this format cannot have"]
    assert read_vectors(tmp_path / "v.txt").words == ["paris"]


def test_formats_of_gensim_and_glove_are_read(tmp_path):
    (tmp_path / "glove.txt").write_text("the 0.5 -1\nof the 1 2e-1\n")
    assert read_vectors(tmp_path / "glove.txt").words == ["the", "of the"]
    # gensim writes no newline between binary vectors
    raw = b"2 2\n" + b"a " + np.array([1, 2], "<f4").tobytes() + b"b " + np.array([3, 4], "<f4").tobytes()
    (tmp_path / "v.bin").write_bytes(raw)
    assert read_vectors(tmp_path / "v.bin").dense().tolist() == [[1, 2], [3, 4]]


DAMAGED = {
    "short.txt": (
        b"2 3\na 1 2 3\nb 1 2\n",
        r"short.txt:3: expected a word and 3 numbers, got 2 after the word; all vectors of a",
    ),
    "text.txt": (b"a 1 2\nb 1 x\n", r"text.txt:2: expected a word and 2 numbers, got '1 x'; all vectors of a file must have"),
    "count.txt": (b"3 1\na 1\n", r"count.txt: has 1 vectors, but its first line says 3; is the file complete\?"),
    "none.txt": (b"0 4\n", r"none.txt: has no vectors; use a file with a word and its numbers on each line"),
    "nan.txt": (b"a nan\n", r"nan.txt: the vector of 'a' has NaN or infinite values; remove the word"),
    "not.bin": (b"hello", r"not.bin: not a binary file of word2vec; name a text file .txt or .vec"),
    "line.bin": (b"2 3", r"line.bin: not a binary file of word2vec; name a text file .txt or .vec"),
    "flat.bin": (b"2 0\na b ", r"flat.bin: not a binary file of word2vec; name a text file .txt or .vec"),
    "cut.bin": (b"2 2\na \0\0\0\0\0\0\0\0b \0", r"cut.bin: has room for 1 of 2 vectors; is the file complete\?"),
    "long.bin": (b"2 1\nlong \0\0\0\0lo \0\0", r"long.bin: ends after 1 of 2 vectors; is the file complete\?"),
    "huge.bin": (b"8000000000 1\na \0\0\0\0", r"huge.bin: has room for 1 of 8,000,000,000 vectors; is the file complete\?"),
    "large.txt": (b"a 1e39\n", r"large.txt: the vector of 'a' has NaN or infinite values; remove the word"),
    "digits.txt": ("\u00b2 \u00b3\n".encode(), r"digits.txt:1: expected a word and 1 numbers, got '\u00b3'; all vectors"),
    "not.npy": (
        b"hello",
        r"not.words.txt: file not found; it has the words of the vectors, one per line; write it beside not.npy",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_named(tmp_path, name):
    (tmp_path / name).write_bytes(DAMAGED[name][0])
    with pytest.raises(DataError, match=DAMAGED[name][1]):
        read_vectors(tmp_path / name)


def test_the_first_of_equal_words_counts(tmp_path):
    (tmp_path / "v.txt").write_text("b 1 2\na 3 4\nb 5 6\nc 7 8\na 9 9\n")
    vectors = read_vectors(tmp_path / "v.txt")
    assert vectors.words == ["b", "a", "c"]
    assert vectors.dense().tolist() == [[1, 2], [3, 4], [7, 8]]


def test_archives_and_empty_arrays_are_refused(tmp_path):
    (tmp_path / "v.words.txt").write_text("a\n")
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros((1, 2)))
    for content in (buffer.getvalue(), b""):
        (tmp_path / "v.npy").write_bytes(content)
        with pytest.raises(DataError, match=r"v.npy: not an .npy file of numbers"):
            read_vectors(tmp_path / "v.npy")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "v.words.txt").write_text("a\nb\n")
    flat = "expected numbers of shape (words, dimensions), got float64 (3,)"
    for array, problem in ((np.zeros(3), flat), (None, "not an .npy file of numbers")):
        with (tmp_path / "v.npy").open("wb") as file:
            file.write(b"junk") if array is None else np.lib.format.write_array(file, array)
        with pytest.raises(DataError) as error:
            read_vectors(tmp_path / "v.npy")
        assert error.value.problem == problem
    with (tmp_path / "v.npy").open("wb") as file:
        np.lib.format.write_array(file, np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"v.words.txt: has 2 words, but v.npy has 3 vectors"):
        read_vectors(tmp_path / "v.npy")
    weft.tensors.write_tensors(tmp_path / "v.safetensors", {"x": np.zeros((2, 2), np.float32)})
    with pytest.raises(DataError) as error:
        read_vectors(tmp_path / "v.safetensors")
    needed = 'needs a tensor "vectors" (words, dimensions), and "words", UTF-8 with a newline after each'
    assert error.value.problem == needed
    with pytest.raises(UsageError, match=r"v.doc: not a file of word vectors; use a name that ends in .txt, .vec, .bin"):
        read_vectors(tmp_path / "v.doc")
    with pytest.raises(UsageError, match=r"v.txt.gz: vectors are not compressed when they are written; name it v.txt"):
        write_vectors(vectors(), tmp_path / "v.txt.gz")
    with pytest.raises(DataError, match=r"gone.txt: file not found"):
        read_vectors(tmp_path / "gone.txt")


# ---- the task

SENTENCES = ["the cat eats fish", "the dog eats meat", "the sun shines today", "the moon shines tonight"]
RUN = 'task = "word-vectors"\n[data]\ntrain = "text.txt"\n{data}[tokenizer]\nmin_count = 2\n[model]\narch = "{arch}"\n{model}'


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    Path("text.txt").write_text("".join(SENTENCES[k] + "\n" for k in rng.integers(0, 4, 400)))
    Path("pairs.tsv").write_text("word1\tword2\tscore\ncat\tdog\t9\nsun\tmoon\t8\ncat\tmoon\t2\ndog\tplanet\t1\n")
    Path("questions.txt").write_text(": animals\ncat fish dog meat\nsun today moon tonight\ncat fish mars rock\n")
    return tmp_path


def run_file(arch: str, model: str = "", data: str = 'test = ["pairs.tsv", "questions.txt"]\n') -> str:
    Path("run.toml").write_text(RUN.format(arch=arch, data=data, model=model))
    return "run.toml"


ARCHS = {
    "skip-gram": "vector_size = 10\nnum_epochs = 2\n",
    "cbow": 'vector_size = 10\nnum_epochs = 2\nloss = "hierarchical-softmax"\n',
    "fasttext": "vector_size = 10\nnum_epochs = 2\nbuckets = 100\n",
    "ppmi": "vector_size = 4\nsubsample = 0.0\nshift = 1.0\n",
    "glove": "vector_size = 4\nnum_epochs = 3\n",
}


@pytest.mark.parametrize("arch", ARCHS)
def test_train_evaluate_and_neighbors(place, capsys, arch):
    assert main(["train", run_file(arch, ARCHS[arch]), "-o", "run", "-q"]) == 0
    assert main(["evaluate", "run"]) == 0
    output = capsys.readouterr().out
    covered = "4 of 4 (100%)" if arch == "fasttext" else "3 of 4 (75%)"  # planet has no vector, but n-grams
    assert "pairs.tsv" in output and covered in output and "2 of 3 (67%)" in output
    assert main(["neighbors", "run", "cat", "-", "dog", "+", "sun", "-n", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["query"] == "cat - dog + sun" and len(found["neighbors"]) == 2
    assert main(["info", "run"]) == 0
    assert weft.load("run").embed(["the cat", "unseen"])[1].tolist() == [0.0] * (10 if "10" in ARCHS[arch] else 4)


def test_counting_is_equal_twice_and_explicit_pmi_evaluates(place):
    for out in ("one", "two"):
        assert main(["train", run_file("ppmi", "vector_size = 0\nshift = 1.0\n"), "-o", out, "-q"]) == 0
    assert Path("one/model.safetensors").read_bytes() == Path("two/model.safetensors").read_bytes()
    run = weft.load("one")
    assert run.predict("cat", num_neighbors=1).neighbors[0].word
    assert run.evaluate()["coverage"].value == pytest.approx(100 * 5 / 7)


def test_comparison_and_report(place, capsys):
    for arch in ("ppmi", "glove"):
        assert main(["train", run_file(arch, ARCHS[arch]), "-o", f"runs/{arch}", "-q"]) == 0
    assert main(["compare", "runs/ppmi", "runs/glove", "-o", "cmp"]) == 0
    assert "Spearman correlation" in capsys.readouterr().out
    assert Path("cmp/report.html").exists()


def test_export_and_import_keep_the_vectors(place, capsys):
    assert main(["train", run_file("ppmi", ARCHS["ppmi"]), "-o", "run", "-q"]) == 0
    assert main(["export", "run", "--format", "vectors", "-o", "v.bin"]) == 0
    assert main(["import", "v.bin", "--format", "vectors", "-o", "again"]) == 0
    first, second = weft.load("run").model, weft.load("again").model
    assert first.words == second.words and np.array_equal(first.dense(), second.dense())
    assert (
        weft.load("again").evaluate("pairs.tsv")["spearman"].value == weft.load("run").evaluate("pairs.tsv")["spearman"].value
    )
    with pytest.raises(UsageError, match=r"export: .* is a directory; name a file, such as"):
        weft.interop.vector_files.export(weft.load("run"), place, ExportOptions())
    Path("one.txt").write_text("a 1 2\n")
    with pytest.raises(ModelError, match=r"one.txt: has fewer than two words"):
        weft.interop.vector_files.import_vectors(Path("one.txt"), Path("x"))
    with pytest.raises(ModelError, match="is a directory; word vectors are a file"):
        weft.interop.vector_files.import_vectors(place, Path("x"))


def test_validation_suites_are_scored_after_training(place):
    data = 'valid = "pairs.tsv"\n'
    assert main(["train", run_file("ppmi", ARCHS["ppmi"], data), "-o", "run", "-q"]) == 0
    assert "valid_spearman" in Path("run/metrics.jsonl").read_text()


def test_word_map_is_one_file(place):
    assert main(["train", run_file("ppmi", ARCHS["ppmi"]), "-o", "run", "-q"]) == 0
    assert main(["analyze", "word-map", "run", "-o", "map.html", "-q"]) == 0
    page = Path("map.html").read_text()
    assert '"cat"' in page and "http" not in page
    assert main(["analyze", "word-map", "run", "--words", "cat dog", "-o", "map.html", "-q"]) == 0
    assert '"words":["cat","dog"]' in Path("map.html").read_text()
    assert main(["analyze", "word-map", "run", "--words", "cat dog", "-o", "map.svg", "-q"]) == 0
    assert Path("map.svg").read_text().count("<text") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["neighbors", "run", "zebra"], "'zebra': has no vector in run"),
        (["neighbors", "run", "cat", "-n", "0"], "must be at least 1, got 0"),
        (["analyze", "word-map", "run", "-o", "m.png"], "m.png must end in .html or .svg"),
        (["analyze", "word-map", "run", "--words", "cat", "-o", "m.html"], "a map needs at least two words"),
        (["evaluate", "run", "--data", "bad.tsv"], "bad.tsv:2: expected two words and a number, as before, got 'a b'"),
        (["evaluate", "run", "--data", "odd.tsv"], "odd.tsv:1: expected two words and a number, or four words, got 'a'"),
        (["evaluate", "run", "--data", "other.tsv"], "other.tsv: no line has only words with a vector in run; use words of"),
        (["evaluate", "run", "--data", "empty.tsv"], "empty.tsv: has no pairs of words and no analogies; expected two words"),
        (["embed", "run", "cat", "--pooling", "first"], "'first' is not available for word vectors; use 'mean'"),
    ],
)
def test_bad_input_is_one_line(place, capsys, words, message):
    Path("bad.tsv").write_text("cat\tdog\t1\na b\n")
    Path("odd.tsv").write_text("a\n")
    Path("other.tsv").write_text("x\ty\t1\n")
    Path("empty.tsv").write_text(": section\n")
    assert main(["train", run_file("ppmi", ARCHS["ppmi"]), "-o", "run", "-q"]) == 0
    capsys.readouterr()
    assert main(words) != 0
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("buckets = 5\n", "model.buckets: not used without max_char_ngram; set max_char_ngram or remove it"),
        ("max_char_ngram = 2\n", "model.max_char_ngram: must be at least min_char_ngram (3)"),
        ('add_contexts = true\nloss = "hierarchical-softmax"\n', "words have no output vectors; remove it"),
        ("add_contexts = true\nmax_char_ngram = 4\n", "unseen words have no output vectors; remove it or max_char_ngram"),
        ('[train]\ninit_from = "x"\n', "train.init_from: not used with word vectors; remove it"),
    ],
)
def test_options_that_do_not_fit_are_refused(place, capsys, model, message):
    assert main(["train", run_file("skip-gram", model), "-o", "run", "-q"]) == 2
    assert message in capsys.readouterr().err


def test_text_without_frequent_words_is_refused(place, capsys):
    Path("text.txt").write_text("all words differ here\n")
    assert main(["train", run_file("ppmi"), "-o", "run", "-q"]) != 0
    assert (
        "has fewer than two words that occur at least 2 times; use more text or lower tokenizer.min_count"
        in capsys.readouterr().err
    )
    Path("text.txt").write_text("one\ntwo\none\ntwo\n")
    assert main(["train", run_file("ppmi", "subsample = 0.0\n"), "-o", "run", "-q"]) != 0
    assert "no two words are neighbors in a line; use longer lines" in capsys.readouterr().err
    Path("text.txt").write_text("one two\none two\n")
    assert main(["train", run_file("ppmi", "subsample = 0.0\n"), "-o", "run", "-q"]) != 0
    assert "no pair of words has a PMI above log 5; lower model.shift, or use more text" in capsys.readouterr().err
    assert main(["train", run_file("ppmi", data="fold = [1, 2]\n"), "-o", "run", "-q"]) == 2
    assert (
        "data.fold: not used: word vectors are tested with pairs of words, not with text; remove it" in capsys.readouterr().err
    )


def test_divergence_is_reported(place, capsys, monkeypatch):
    monkeypatch.setattr("weft.tasks.word_vectors.training.SAVE_SECONDS", 0.0)
    monkeypatch.setattr("weft.models.word2vec.MAX_STEP", 1e9)
    assert main(["train", run_file("skip-gram", "lr = 10.0\nsubsample = 0.0\nnum_epochs = 20\n"), "-o", "run", "-q"]) != 0
    assert "training diverged: " in capsys.readouterr().err


def test_weights_of_another_shape_are_refused(place):
    assert main(["train", run_file("ppmi", ARCHS["ppmi"]), "-o", "run", "-q"]) == 0
    directory = weft.load("run").directory
    directory.write_weights({"vectors": np.zeros((2, 4), np.float32)}, weft.load("run").vocabulary.hash, 1)
    with pytest.raises(ModelError, match=r"does not match resolved.toml and tokenizer.json"):
        _ = weft.load("run").model


def test_killed_training_resumes_exactly(place):
    """SIGKILL after a saved state; the resumed run has the bytes of one that was never stopped."""
    model = "vector_size = 16\nnum_epochs = 8\nsubsample = 0.0\n"
    run_file("skip-gram", model)
    code = (
        "import sys; from weft.tasks.word_vectors import training; training.SAVE_SECONDS = 0.0;"
        "from weft.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "train", "run.toml", "-q", "-o"]
    process = subprocess.Popen([*command, "killed"])
    state = place / "killed" / "train_state.safetensors"
    deadline = time.monotonic() + 60
    while not state.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert state.exists() and not (place / "killed" / "model.safetensors").exists()
    assert main(["train", "run.toml", "-q", "-o", "killed"]) == 0
    assert main(["train", "run.toml", "-q", "-o", "whole"]) == 0
    assert not state.exists()
    assert (place / "killed/model.safetensors").read_bytes() == (place / "whole/model.safetensors").read_bytes()


def test_ctrl_c_saves_and_the_same_command_resumes(place, monkeypatch, capsys):
    run_file("skip-gram", "vector_size = 16\nnum_epochs = 4\nsubsample = 0.0\n")
    calls = []

    def show(job, epoch, num_epochs, fraction, loss):
        calls.append(epoch)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("weft.tasks.word_vectors.training._show", show)
    assert main(["train", "run.toml", "-o", "stopped"]) == 130
    assert capsys.readouterr().err.endswith("Stopped. Saved to stopped. Run the same command to resume.\n")
    assert (place / "stopped" / "train_state.safetensors").exists()
    assert main(["train", "run.toml", "-o", "stopped"]) == 0
    assert "resuming at epoch 1 of 4" in capsys.readouterr().err
    assert main(["train", "run.toml", "-q", "-o", "whole"]) == 0
    assert (place / "stopped/model.safetensors").read_bytes() == (place / "whole/model.safetensors").read_bytes()


# ---- embeddings of other runs

LM = (
    'task = "lm"\n[data]\ntrain = "text.txt"\ncontext_length = 8\n[tokenizer]\ntype = "word"\n[model]\narch = "rnn"\n'
    "hidden_size = {size}\nnum_layers = 1\n[train]\nmax_steps = 1\nlr = 1e-12\nweight_decay = 0.0\ninit_embeddings = {vectors!r}\n"
)


def test_vectors_start_the_embeddings_of_another_run(place, capsys):
    assert main(["train", run_file("ppmi", ARCHS["ppmi"]), "-o", "run", "-q"]) == 0
    Path("lm.toml").write_text(LM.format(size=4, vectors="run"))
    assert main(["train", "lm.toml", "-o", "lm"]) == 0
    assert "Initialized embeddings from" in capsys.readouterr().err
    lm, words = weft.load("lm"), weft.load("run").model
    table = lm.model.embedding.weight.detach().numpy()
    tokens = [(token, words.find(lm.vocabulary.token_text(token))) for token in range(lm.vocabulary.vocab_size)]
    pairs = np.array([pair for pair in tokens if pair[1] is not None])
    expected = words.dense()[pairs[:, 1]]
    scale = np.linalg.norm(table[pairs[:, 0]]) / np.linalg.norm(expected)
    assert len(pairs) > 10 and table[pairs[:, 0]] == pytest.approx(scale * expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("size", "source", "message"),
    [
        (5, "run", "has 4 dimensions, but embedding.weight has 5; set model.embedding_dim or model.hidden_size to its size"),
        (4, "gone", "gone not found; name a run of task word-vectors, or a file"),
        (3, "other.txt", "no token of the tokenizer has a vector in"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(place, capsys, size, source, message):
    assert main(["train", run_file("ppmi", ARCHS["ppmi"]), "-o", "run", "-q"]) == 0
    Path("other.txt").write_text("x 1 2 3\ny 1 2 3\n")
    Path("lm.toml").write_text(LM.format(size=size, vectors=source))
    assert main(["train", "lm.toml", "-o", "lm", "-q"]) == 2
    assert message in capsys.readouterr().err


def test_a_model_without_embeddings_and_a_run_without_vectors_are_refused(place):
    from weft.runs.open_vectors import open_vectors
    from weft.training.init_embeddings import load_embeddings

    with pytest.raises(ConfigError, match="the model has no token embeddings; remove it"):
        load_embeddings(torch.nn.Linear(2, 2), {}, vectors())
    Path("lm.toml").write_text(LM.format(size=4, vectors="run").partition("init_embeddings")[0])
    assert main(["train", "lm.toml", "-o", "lm", "-q"]) == 0
    with pytest.raises(UsageError, match="a run of task 'lm' has no word vectors; use a run of task 'word-vectors'"):
        open_vectors(Path("lm"))


def test_defaults_of_the_tables():
    config = parse_config(Word2VecConfig, {"max_char_ngram": 5}, prefix="model").with_defaults()
    assert (config.min_char_ngram, config.buckets, config.add_contexts) == (3, 200_000, None)
    assert Word2VecConfig.model_validate({}).with_defaults().add_contexts is True
