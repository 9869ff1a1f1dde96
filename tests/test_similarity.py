"""Similarity of layers (CKA) and heads: comparison with the formulas on whole matrices, and invariances."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error
from label_runs import LabelRuns
from seq2seq_runs import Seq2SeqRuns
from small_runs import SilentCallback, make_text, run_file, train_here
from torch import Tensor

import weft
from weft.cli.main import main
from weft.errors import UsageError
from weft.explain import similarity
from weft.explain.attention import read_attention, sites
from weft.explain.model_similarity import model_similarity, short_names
from weft.explain.similarity import CrossProduct, head_divergence, head_similarity, js_divergence, layer_similarity, linear_cka
from weft.explain.vectors import sample, sequence_stages, uses_words, word_vectors
from weft.plots.similarity_matrix import similarity_matrix

TRAIN = {"max_steps": 4, "batch_tokens": 300, "device": "cpu", "num_validations": 1}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_kernels(x: Tensor, y: Tensor) -> float:
    """The other form of Kornblith et al. (2019): normalized HSIC(K, L) of centered Gram matrices."""
    n = len(x)
    centre = torch.eye(n, dtype=x.dtype) - 1 / n
    k, m = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    return float((k * m).sum() / (k.norm() * m.norm()))


def cka(*layers: Tensor, chunk: int = 7) -> np.ndarray:
    """CKA of all layers, added in parts."""

    def parts() -> Iterator[list[Tensor]]:
        for low in range(0, len(layers[0]), chunk):
            yield [layer[low : low + chunk] for layer in layers]

    numbers = range(len(layers))
    return linear_cka(parts, [layer.size(1) for layer in layers], numbers, numbers)


def test_cka_equals_the_gram_matrix_formula() -> None:
    x, y = random(60, 5) + 30, random(60, 8, seed=1)
    y[:, :3] += x[:, :3]  # with a common part
    actual = cka(x, y)
    assert actual[0, 1] == actual[1, 0] == pytest.approx(by_kernels(x, y), abs=1e-12)
    assert 0.1 < actual[0, 1] < 0.9 and actual.diagonal() == pytest.approx(1.0, abs=1e-12)


def test_cka_is_invariant_to_rotation_scale_and_shift() -> None:
    x = random(80, 6) * torch.tensor([5.0, 3.0, 1.0, 1.0, 0.5, 0.1])
    turn, _ = torch.linalg.qr(random(6, 6, seed=1))
    actual = cka(x, 3.7 * x @ turn + 11, x @ random(6, 6, seed=2))
    assert actual[0, 1] == pytest.approx(1.0, abs=1e-12)
    assert actual[0, 2] < 0.98  # but another linear map lowers it
    constant = cka(x, torch.ones(80, 4, dtype=torch.float64))
    assert constant[0, 1] == 0.0


def test_memory_is_bounded_by_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, passes = [random(30, 4, seed=index) for index in range(4)], 0

    def parts() -> Iterator[list[Tensor]]:
        nonlocal passes
        passes += 1
        yield [layer[:11] for layer in layers]
        yield [layer[11:] for layer in layers]

    full = linear_cka(parts, [4] * 4, range(2), range(2, 4))
    assert passes == 1
    monkeypatch.setattr(similarity, "MAX_BYTES", 3 * 8 * 4 * 4)  # three of the eight sums at once
    monkeypatch.setattr(similarity, "CHUNK_WORDS", 5)
    np.testing.assert_allclose(linear_cka(parts, [4] * 4, range(2), range(2, 4)), full, atol=1e-12)
    assert passes == 1 + 3


def test_products_are_centered_for_any_mean() -> None:
    """A mean a million times as large as the differences leaves nine digits."""
    x, y = random(50, 3), random(50, 2, seed=1)
    sums = CrossProduct()
    assert sums.squared_norm() == 0.0
    for low in (0, 20):
        sums.add(1e6 + x[low : low + 20], -1e6 + y[low : low + 20])
    sums.add(1e6 + x[40:], -1e6 + y[40:])
    expected = ((x - x.mean(0)).T @ (y - y.mean(0))).square().sum()
    assert sums.squared_norm() == pytest.approx(float(expected), rel=1e-8)


def test_js_divergence_of_attention() -> None:
    weights = random(3, 5, 4).softmax(-1)
    weights[2, 0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    actual = js_divergence(weights)

    def kl(p: np.ndarray, q: np.ndarray) -> float:
        return float(sum(a * np.log2(a / b) for a, b in zip(p, q, strict=True) if a > 0))

    for item in range(3):
        for two in range(3):
            rows = zip(weights[item].numpy(), weights[two].numpy(), strict=True)
            expected = np.mean([(kl(p, (p + q) / 2) + kl(q, (p + q) / 2)) / 2 for p, q in rows])
            assert float(actual[item, two]) == pytest.approx(expected, abs=1e-12)
    apart_wholly = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    assert js_divergence(apart_wholly).tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_matrix_plots() -> None:
    actual = similarity_matrix(
        np.array([[1.0, 0.25], [0.0, 0.5]]), rows=["a", "<b>"], columns=["c", "d"], name="bits", axes=("x", "y")
    )
    assert actual.count("<title>") == 4 and "&lt;b&gt;, c: 0.000" in actual and ">0.25<" in actual and ">bits<" in actual
    large = similarity_matrix(np.zeros((30, 30)), rows=["r"] * 30, columns=["c"] * 30, name="bits")
    assert ">0.00<" not in large  # no space for numbers
    with pytest.raises(UsageError) as shape:
        similarity_matrix(np.zeros((2, 3)), rows=["a"], columns=["b"], name="bits")
    assert str(shape.value) == "similarity_matrix: shape (2, 3) does not match 1 rows and 1 columns"
    with pytest.raises(UsageError) as wrong:
        similarity_matrix(np.array([[1.5]]), rows=["a"], columns=["b"], name="bits")
    assert str(wrong.value) == "similarity_matrix: values must be between 0 and 1"


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("similarity")


@pytest.fixture(scope="module")
def text(work_dir: Path) -> Path:
    return make_text(work_dir / "text.txt", words=300)


@pytest.fixture(scope="module")
def pairs(work_dir: Path) -> Seq2SeqRuns:
    (work_dir / "pairs").mkdir()
    return Seq2SeqRuns(work_dir / "pairs")


def language(work_dir: Path, text: Path, name: str, tokenizer: dict[str, Any], model: dict[str, Any]) -> Any:
    values = {
        **run_file(text, train=TRAIN, tokenizer=tokenizer, data__context_length=64),
        "model": {"hidden_size": 12, "num_layers": 2, **model},
    }
    return weft.load(train_here(values, work_dir / name, SilentCallback()).path, device="cpu")


@pytest.fixture(scope="module")
def words(work_dir: Path, text: Path) -> Any:
    return language(work_dir, text, "words", {"type": "word"}, {"arch": "transformer", "num_heads": 2})


@pytest.fixture(scope="module")
def letters(work_dir: Path, text: Path) -> Any:
    return language(work_dir, text, "letters", {"type": "char"}, {"arch": "lstm", "num_layers": 1})


@pytest.fixture(scope="module")
def third(work_dir: Path, text: Path) -> Any:
    return language(work_dir, text, "third", {"type": "bpe", "vocab_size": 270}, {"arch": "gru"})


def test_runs_with_different_tokenizers_are_compared_by_words(words: Any, letters: Any, text: Path) -> None:
    """One run has word tokens, the other characters: the vector of a word is the mean over its characters."""
    view = layer_similarity(words, text, letters, max_words=200)
    (side,) = view.data["sides"]
    assert uses_words([words, letters]) and view.data["unit"] == "words" and not uses_words([letters])
    assert side["rows"] == ["input", "layer 1", "layer 2", "top"] and side["columns"] == ["input", "layer 1"]
    selection = sample([words, letters], text, max_words=200)
    rows = [list[Tensor](), list[Tensor]()]
    for lines in selection.examples:
        for index, (run, line) in enumerate(zip((words, letters), lines, strict=True)):
            rows[index].append(word_vectors(line, sequence_stages(run), run.device)[0][1])
        assert [unit.text for unit in lines[0].units[0]] == [unit.text for unit in lines[1].units[0]]
    x, y = map(torch.cat, rows)
    assert side["words"] == len(x)
    assert side["cka"][1][1] == pytest.approx(by_kernels(x, y), abs=1e-10)


def test_a_run_has_similarity_1_with_itself(words: Any, text: Path) -> None:
    self_similarity, twice = (
        layer_similarity(words, text, other, max_words=200).data["sides"][0]["cka"] for other in (None, words)
    )
    np.testing.assert_allclose(self_similarity, twice, atol=1e-12)
    np.testing.assert_allclose(np.diagonal(self_similarity), 1.0, atol=1e-12)
    assert (np.array(self_similarity) <= 1 + 1e-12).all() and (np.array(self_similarity) >= 0).all()


def test_several_runs_are_compared_pairwise(words: Any, letters: Any, third: Any, text: Path) -> None:
    """Comparing three runs at once equals comparing pairs, and the Gram-matrix formula."""
    runs = [words, letters, third]
    view = model_similarity(runs, text, max_words=200)
    (side,) = view.data["sides"]
    assert view.data["unit"] == "words" and view.data["runs"] == [str(run.directory.path) for run in runs]
    assert side["layers"] == ["top", "layer 1", "layer 2"] and side["all"]["layers"][1] == ["input", "layer 1"]
    for (one, a), (two, b) in combinations(enumerate(runs), 2):
        (pair,) = layer_similarity(a, text, b, max_words=200).data["sides"]
        table = np.array(pair["cka"])
        assert side["words"] == pair["words"]
        assert side["cka"][one][two] == side["cka"][two][one] == pytest.approx(table[-1, -1], abs=1e-12)
        assert side["best"]["cka"][one][two] == side["best"]["cka"][two][one] == pytest.approx(table.max(), abs=1e-12)
        row, column = side["best"]["layers"][one][two]
        assert table[pair["rows"].index(row), pair["columns"].index(column)] == table.max()
        assert side["best"]["layers"][two][one] == [column, row]
    np.testing.assert_allclose(np.diagonal(side["cka"]), 1.0, atol=1e-12)
    np.testing.assert_allclose(np.diagonal(side["best"]["cka"]), 1.0, atol=1e-12)
    selection = sample(runs, text, max_words=200)
    rows = [
        torch.cat([word_vectors(lines[index], sequence_stages(run), run.device)[0][1] for lines in selection.examples])
        for index, run in enumerate(runs)
    ]
    (first,) = model_similarity(runs, text, layer=1, max_words=200).data["sides"]
    assert first["layers"] == ["layer 1"] * 3 and "best" not in first
    for one, two in combinations(range(3), 2):
        assert first["cka"][one][two] == pytest.approx(by_kernels(rows[one], rows[two]), abs=1e-10)


def test_several_seq2seq_runs_have_encoder_and_decoder(pairs: Seq2SeqRuns) -> None:
    runs = [weft.load(pairs.run_dir(name), device="cpu") for name in ("transformer", "luong", "transformer")]
    view = model_similarity(runs, max_words=30)
    assert [item["side"] for item in view.data["sides"]] == ["source", "output"] and len(view.figures) == 4
    for side in view.data["sides"]:
        assert side["cka"][0][2] == pytest.approx(1.0, abs=1e-12) and side["cka"][0][1] == pytest.approx(side["cka"][1][2])


def test_run_names_are_shortened_to_where_they_differ() -> None:
    assert short_names(["runs/a", "b", "other/c/"]) == ["a", "b", "c"]
    assert short_names(["runs/a", "b/a", "c"]) == ["runs/a", "b/a", "c"]


def test_command_with_several_runs(
    words: Any, letters: Any, third: Any, text: Path, work_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(run.directory.path) for run in (words, letters, third)]
    data = ["--data", str(text), "--max-words", "200", "--quiet"]
    assert main(["analyze", "similarity", *folders, *data, "--top", "2", "--output", str(work_dir / "three.html")]) == 0
    title, about, head, first, *rest = capsys.readouterr().out.split("\n")
    assert title == f"Models {', '.join(folders)}" and about.startswith("text: 20")
    assert head.split() == ["last", "layers", "words", "letters", "third"] and first.split()[:3] == ["words,", "top", "1.00"]
    assert rest[3].split() == ["best", "layers", "words", "letters", "third"]
    assert rest[8].split() == ["most", "similar", "runs", "CKA"] and len(rest[9:]) == 3 and not rest[-1]  # two, and the end
    page = (work_dir / "three.html").read_text()
    assert page.count("<svg") == 2 and ">letters:1<" in page and ">words:top<" in page
    assert main(["analyze", "similarity", *folders, *data, "--layer", "0", "--json"]) == 0
    (view,) = json.loads(capsys.readouterr().out)["views"]
    assert view["view"] == "models" and view["runs"] == folders and view["sides"][0]["layers"] == ["input"] * 3


def test_head_distance_is_the_mean_over_positions(pairs: Seq2SeqRuns) -> None:
    run: Any = weft.load(pairs.run_dir("transformer"), device="cpu")
    actual = {item.component: item for item in head_divergence(run, max_words=30)}
    assert set(actual) == {"cross", "encoder", "decoder"} and actual["cross"].names == ["1.1", "1.2", "2.1", "2.2"]
    model = run.members[0].model
    total, count = 0.0, 0
    for (line,) in sample([run], None, max_words=30).examples:
        looked = {
            (item.site.component, item.site.layer): item.weights
            for item in read_attention(line.model_input, sites(model), None, run.device)
        }
        p, q = looked["encoder", 1][1].astype(np.float64), looked["encoder", 2][0].astype(np.float64)
        m = (p + q) / 2
        total += float((p * np.log2(p / m) + q * np.log2(q / m)).sum() / 2)
        count += len(p)
    assert actual["encoder"].bits[1, 2] == actual["encoder"].bits[2, 1] == pytest.approx(total / count, rel=1e-6)
    assert actual["encoder"].num_positions == count
    view = head_similarity(run, max_words=30, top=2)
    assert len(view.figures) == 3 and len(view.lines) == 3 * 4 + 2 and view.lines[1].startswith("most similar heads")


def test_attention_pooling_has_no_heads(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = LabelRuns(work_dir).values(
        "labels-lstm", "model.pooling=attention", "train.max_steps=2", "train.num_validations=1"
    )
    path = train_here(values, work_dir / "pooled", SilentCallback()).path
    with pytest.raises(UsageError) as caught:
        head_divergence(weft.load(path, device="cpu"))
    assert str(caught.value) == f"similarity: lstm has no attention ({path})"
    assert main(["analyze", "similarity", str(path), "--max-words", "100", "--quiet"]) == 0
    assert "Heads" not in capsys.readouterr().out


def test_similarity_command(words: Any, letters: Any, text: Path, work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir, two, data = str(words.directory.path), str(letters.directory.path), ["--data", str(text), "--max-words", "200"]
    assert main(["analyze", "similarity", run_dir, *data, "--output", str(work_dir / "x.html"), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert (
        "Layers of" in out
        and "Heads of" in out
        and "divergence (bits)" in out
        and (work_dir / "x.html").read_text().count("<svg") == 2
    )
    assert main(["analyze", "similarity", run_dir, two, *data, "--json", "--quiet"]) == 0
    (view,) = json.loads(capsys.readouterr().out)["views"]
    assert view["view"] == "layers" and view["runs"] == [run_dir, two]
    assert (
        main(["analyze", "similarity", two, "--max-words", "100", "--quiet"]) == 0
    )  # no attention there; the run's own data is used
    out = capsys.readouterr().out
    assert "Heads" not in out and "few tokens" not in out
    assert main(["analyze", "similarity", run_dir, "--data", str(text), "--max-words", "20", "--quiet"]) == 0
    assert "warning: few tokens for vectors of size 12: CKA is biased upward; use more text" in capsys.readouterr().out


def test_vectors_without_variance_have_no_similarity(words: Any, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "linear_cka", lambda read_parts, widths, rows, columns: np.full((len(rows), 1), np.nan))
    with pytest.raises(UsageError, match=r"similarity: a layer has the same vector for all .* of the"):
        similarity.layer_similarity(words, text)


def test_similarity_errors(words: Any, letters: Any, pairs: Seq2SeqRuns, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir, other = str(words.directory.path), pairs.run_dir("transformer")

    def line(*given: str) -> str:
        return expect_error(capsys, "analyze", "similarity", *given, "--quiet")[1]

    assert (
        line(run_dir, str(other))
        == f"similarity: {run_dir} and {other} read texts and pairs; compare runs with the same kind of input"
    )
    assert (
        line(run_dir, run_dir, str(other))
        == f"similarity: {run_dir} and {other} read texts and pairs; compare runs with the same kind of input"
    )
    assert (
        line(run_dir, run_dir, "--layer", "1") == "--layer: requires three or more runs; one or two are compared by all layers"
    )
    two = str(letters.directory.path)
    assert line(run_dir, run_dir, two, "--layer", "2") == f"--layer: must be from 0 (the input) to 1 for {two}, got 2"
    with pytest.raises(UsageError) as alone:
        model_similarity([words])
    assert str(alone.value) == "similarity: requires at least two runs, got 1"
    assert line(run_dir, "--max-words", "0") == "--max-words: must be at least 1, got 0"
    assert line(run_dir, "--top", "0") == "--top: must be at least 1, got 0"
    with pytest.raises(UsageError) as caught:
        head_divergence(letters)
    assert str(caught.value) == f"similarity: lstm has no attention ({letters.directory.path})"
