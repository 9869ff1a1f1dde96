"""Representation geometry: comparison with explicit loops over all pairs of vectors, figures, and the command."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
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

import weft
from weft.cli.main import main
from weft.errors import DataError, UsageError
from weft.explain import explained_variance as explained
from weft.explain.geometry import PairwiseCosine, StageStatistics, geometry, measure_geometry, principal_components
from weft.explain.vectors import sample, sequence_stages, word_vectors
from weft.plots.scatter import Points, scatter
from weft.tasks.seq2seq.data import pairs as pairs_of

TRAIN = {"max_steps": 4, "batch_tokens": 300, "device": "cpu", "num_validations": 1}


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("geometry")


@pytest.fixture(scope="module")
def text(work_dir: Path) -> Path:
    return make_text(work_dir / "text.txt", words=400)


@pytest.fixture(scope="module")
def language(work_dir: Path, text: Path) -> Any:
    """A small Transformer with subword tokens."""
    model = {"arch": "gpt", "hidden_size": 12, "num_layers": 2, "num_heads": 2}
    values = {
        **run_file(text, train=TRAIN, tokenizer={"type": "bpe", "vocab_size": 270}, data__context_length=64),
        "model": model,
    }
    return weft.load(train_here(values, work_dir / "lm", SilentCallback()).path, device="cpu")


@pytest.fixture(scope="module")
def pairs(work_dir: Path) -> Seq2SeqRuns:
    (work_dir / "pairs").mkdir()
    return Seq2SeqRuns(work_dir / "pairs")


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))


def by_hand(run: Any, line: str) -> list[dict[str, Any]]:
    """Words of a line and their vectors at each stage, computed module by module."""
    model, ids = run.model, run.vocabulary.encode(line).tolist()
    stack: Any = model.stack
    x = model.embedding(torch.tensor([[*run.predictor.bos_ids, *ids]]))
    states = [x]
    for index, layer in enumerate(stack.layers):
        x, _ = layer(x, None, None)
        if index % 2:  # attention and feed-forward are one layer
            states.append(x)
    states.append(stack.final_norm(x))
    results, edges, texts = [], list[tuple[int, int]](), ""
    for token in ids:
        text_of_token = run.vocabulary.decode([token])
        edges.append((len(texts), len(texts) + len(text_of_token)))
        texts += text_of_token
    assert texts == line
    words = [(item.start(), item.end(), item[0]) for item in re.finditer(r"\w+|\.", line)]
    for y in states:
        rows = y[0, len(run.predictor.bos_ids) :].double().detach().numpy()
        means = [
            rows[[index for index, (a, b) in enumerate(edges) if a < high and b > low]].mean(axis=0) for low, high, _ in words
        ]
        results.append({"words": [word for _, _, word in words], "rows": np.array(means)})
    return results


def between(rows: list[tuple[int, np.ndarray]]) -> float:
    """Mean cosine similarity over all pairs of vectors from two different sentences."""
    return float(np.mean([cosine(a, b) for (one, a), (two, b) in combinations(rows, 2) if one != two]))


def first_share(rows: np.ndarray) -> float:
    """Fraction of variance of the first principal component, from the singular values of the centered rows."""
    sizes = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    return float(sizes[0] ** 2 / (sizes**2).sum())


def part_of(text: Path, lines: list[str]) -> Path:
    """A text with two duplicate lines and a blank one."""
    part = text.with_name("part.txt")
    part.write_text("\n".join([*lines, *lines[:2]]) + "\n\n")
    return part


def test_statistics_match_loops_over_all_pairs(language: Any, text: Path) -> None:
    """Only pairs from different sentences count. A repeated sentence is read once, and contexts are counted as sentences."""
    lines = list(dict.fromkeys(line for line in text.read_text().splitlines() if line))[:30]
    lines.append("owl . owl . owl . owl . owl .")
    view = geometry(language, part_of(text, lines))
    (side,) = view.data["sides"]
    assert view.data["unit"] == "words" and view.data["texts"] == len(lines) and [item["layer"] for item in side["layers"]] == [
        "input", "layer 1", "layer 2", "top",
    ]  # fmt: skip
    assert view.data["repeated"] == 2 and view.data["left_out"] >= 1
    parts = [re.findall(r"\w+|\.", line) for line in lines]
    counts, sentences = Counter(word for part in parts for word in part), Counter(word for part in parts for word in set(part))
    assert side["words"] == counts.total() and side["types"] == len(counts)
    assert side["compared"] == sum(number >= 5 for number in sentences.values())
    assert any(counts[word] >= 5 > number for word, number in sentences.items())  # frequent, but in few sentences
    stages = [by_hand(language, line) for line in lines]
    for index, layer in enumerate(side["layers"]):
        rows = [(number, row) for number, stage in enumerate(stages) for row in stage[index]["rows"]]
        words = [word for stage in stages for word in stage[index]["words"]]
        contexts = defaultdict(list)
        for word, row in zip(words, rows, strict=True):
            contexts[word].append(row)
        frequent = [contexts[word] for word, number in sentences.items() if number >= 5]
        any_two, same = between(rows), np.mean([between(item) for item in frequent])
        within = np.mean(
            [
                np.mean([cosine(row, item["rows"].mean(axis=0)) for row in item["rows"]])
                for item in (stage[index] for stage in stages)
            ]
        )
        assert layer["anisotropy"] == pytest.approx(any_two, abs=1e-6)
        assert layer["self_similarity"] == pytest.approx(same, abs=1e-6)
        assert layer["intra_sentence"] == pytest.approx(within, abs=1e-6)
        assert layer["self_similarity_adjusted"] == pytest.approx(same - any_two, abs=1e-6)
        assert layer["intra_sentence_adjusted"] == pytest.approx(within - any_two, abs=1e-6)
        tables = [np.array([row for _, row in item]) for item in frequent]
        mev = np.mean([first_share(table) for table in tables if np.ptp(table, axis=0).max() > 1e-9])  # one vector: no variance
        baseline = first_share(np.array([row for _, row in rows]))
        assert layer["mev"] == pytest.approx(mev, abs=1e-5) and layer["mev_baseline"] == pytest.approx(baseline, abs=1e-5)
        assert layer["mev_adjusted"] == pytest.approx(mev - baseline, abs=1e-5)
    # a word has the same tokens everywhere except at the start of a line, where no space precedes it
    assert 0.9 < side["layers"][0]["self_similarity"] < 1


def test_vectors_that_exceed_memory_are_recomputed(language: Any, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    selection = sample([language], text, max_words=200, distinct=True)
    full, calls = measure_geometry(language, selection), list[tuple[int, int]]()
    monkeypatch.setattr(explained, "MAX_BYTES", 2 * 4 * 12 * full[0].num_words)  # two of four stages at once
    assert explained.split_passes([[12] * 4], [full[0].num_words]) == [[(0, 0), (0, 1)], [(0, 2), (0, 3)]]
    again = measure_geometry(language, selection, progress=lambda done, total: calls.append((done, total)))
    assert again[0].scores == full[0].scores and again[0].occurrences.words == full[0].occurrences.words
    assert calls[-1] == (2 * len(selection.examples), 2 * len(selection.examples))
    monkeypatch.setattr(explained, "MAX_BYTES", 1)
    assert explained.split_passes([[12], [12]], [9, 9]) == [[(0, 0)], [(1, 0)]]


def test_explained_variance() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 5)) + 100
    for matrix in (rows, rows.T):
        assert explained.explained_variance(torch.from_numpy(matrix)) == pytest.approx(first_share(matrix), abs=1e-9)
    line = np.outer(np.arange(5.0), np.ones(3)) + 7  # all on one
    assert explained.explained_variance(torch.from_numpy(line)) == pytest.approx(1.0)
    # a word with a single vector has no variance to explain, up to rounding
    assert np.isnan(explained.explained_variance(torch.full((7, 3), 0.1))) and np.isnan(
        explained.explained_variance(torch.zeros(3, 2))
    )
    store = explained.VectorStore()
    store.add(torch.from_numpy(rows), torch.tensor([1, -1, 0, 0, 1, 0, 1, 1, -1]))
    expected = (first_share(rows[[2, 3, 5]]) + first_share(rows[[0, 4, 6, 7]])) / 2
    assert store.mev(2) == pytest.approx((expected, first_share(rows)), abs=1e-5)
    assert np.isnan(store.mev(0)[0])


def test_mean_similarity_from_sums_equals_the_mean_over_pairs() -> None:
    rows = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows /= rows.norm(dim=1, keepdim=True)
    pairs, sentences = PairwiseCosine(2, 3), [0, 0, 0, 1, 1, 2, 2]
    groups = torch.tensor([0, 1, 0, 0, 0, 1, 0])
    for number in range(3):
        is_sentence = torch.tensor(sentences) == number
        pairs.add(rows[is_sentence], groups[is_sentence])
    for group in range(2):
        members = [(sentences[index], rows[index].numpy()) for index in range(7) if groups[index] == group]
        assert float(pairs.mean()[group]) == pytest.approx(between(members), abs=1e-12)
    alone = StageStatistics(0, 3)
    alone.add(rows[:1], torch.tensor([-1]))
    assert all(np.isnan(value) for value in alone.scores())
    alone.add(rows[1:2], torch.tensor([-1]))  # a second sentence
    assert alone.scores().anisotropy == pytest.approx(float(rows[0] @ rows[1]), abs=1e-12)


@pytest.mark.parametrize("name", ["transformer", "luong", "bahdanau", "sutskever", "cho", "joint"])
def test_geometry_of_source_and_target(pairs: Seq2SeqRuns, name: str) -> None:
    """Source and target words have one vector per position of the model, for every type of decoder."""
    from seq2seq_runs import MODELS

    MODELS.setdefault("cho", {"arch": "cho", "hidden_size": 16})
    run: Any = weft.load(pairs.run_dir(name), device="cpu")
    stages = sequence_stages(run)
    selection = sample([run], None, max_words=40)
    (line,) = selection.examples[0]
    sides = word_vectors(line, stages, run.device)
    source, target = next(iter(pairs_of(run.config.datasets["valid"])))
    assert [len(rows[-1]) for rows in sides] == [len(line.units[0]), len(line.units[1])]
    assert [unit.text for unit in line.units[0]] == list(source)
    # the top stage of each stack is the output of the model
    model = run.members[0].model
    encoded = torch.tensor([[*run.vocabulary.source.encode(source).tolist(), run.vocabulary.source.eos_id]])
    with torch.no_grad():
        state = model.encode(encoded, torch.ones_like(encoded, dtype=torch.bool))
        memory = model.encoder(encoded, torch.ones_like(encoded, dtype=torch.bool))
        tokens = torch.tensor([[run.vocabulary.target.bos_id, *run.vocabulary.target.encode(target).tolist()]])
        y, _ = model(tokens, state)
    torch.testing.assert_close(sides[0][-1], memory.values[0, :-1].double())
    torch.testing.assert_close(sides[1][-1], y[0, [unit.tokens[0] for unit in line.units[1]]].double())


@pytest.mark.slow
def test_every_task_has_a_geometry(work_dir: Path, text: Path) -> None:
    runs = LabelRuns(work_dir)
    model = {"arch": "bert", "hidden_size": 12, "num_layers": 2, "num_heads": 2}
    masked = train_here(
        {**run_file(text, train=TRAIN, task="masked-lm", tokenizer={"type": "word"}), "model": model}, work_dir / "bert"
    )
    for folder, layers in (
        (runs.run_dir("labels-transformer"), ["input", "layer 1", "layer 2", "top"]),
        (runs.run_dir("pairs-lstm"), ["input", "layer 1"]),
        (runs.run_dir("spans-lstm"), ["input", "layer 1"]),
        (masked.path, ["input", "layer 1", "layer 2"]),
    ):
        (side,) = geometry(weft.load(folder, device="cpu"), max_words=300).data["sides"]
        assert [item["layer"] for item in side["layers"]] == layers
        assert all(-1 <= item["anisotropy"] <= 1 for item in side["layers"])
    run: Any = weft.load(masked.path, device="cpu")
    (line,) = sample([run], text, max_words=5).examples[0]
    from weft.models.encoder import EncoderInput

    tokens = torch.tensor([line.model_input.sides[0].tokens])
    with torch.no_grad():
        y = run.model(EncoderInput(tokens, torch.ones_like(tokens, dtype=torch.bool)))
    torch.testing.assert_close(word_vectors(line, sequence_stages(run), run.device)[0][-1], y[0, 1:-1].double())


def test_long_lines_are_read_in_windows(language: Any, work_dir: Path) -> None:
    long = work_dir / "long.txt"
    long.write_text(" ".join(["the old cat sees a bird"] * 30) + "\n\n" + "x" * 60 + "\n")
    selection = sample([language], long)
    window = language.config.data.context_length
    assert all(len(line.model_input.sides[0].tokens) <= window for (line,) in selection.examples)
    assert "".join(line.text for (line,) in selection.examples[:-1]).startswith("the old cat") and selection.left_out == 1
    words = [unit.text for (line,) in selection.examples for unit in line.units[0]]
    assert words[:180] == ["the", "old", "cat", "sees", "a", "bird"] * 30  # no word is split
    assert len(sample([language], long, max_words=3).examples) < len(selection.examples)


def test_principal_components() -> None:
    """Compared with the eigenvectors of the covariance."""
    rows = np.random.default_rng(0).normal(size=(40, 5)) @ np.diag([3.0, 2.0, 1.0, 0.5, 0.1]) + 7
    places, shares = principal_components(rows)
    values, directions = np.linalg.eigh(np.cov(rows.T))
    expected = (rows - rows.mean(axis=0)) @ directions[:, ::-1][:, :2]
    expected *= np.sign((expected * places).sum(axis=0))
    np.testing.assert_allclose(places, expected, atol=1e-10)
    np.testing.assert_allclose(shares, values[::-1][:2] / values.sum(), atol=1e-12)
    assert all(places[np.abs(places[:, index]).argmax(), index] > 0 for index in range(2))
    assert principal_components(np.ones((3, 1)))[0].shape == (3, 2)


def test_projection_contains_the_selected_words(language: Any, text: Path) -> None:
    view = geometry(language, text, words=["cat", "river"], layer=1, max_words=500)
    projection = view.data["sides"][0]["map"]
    assert projection["layer"] == "layer 1" and {item["text"] for item in projection["points"]} == {"cat", "river"}
    assert all(item["text"] in item["context"] for item in projection["points"])
    assert [picture.caption for picture in view.figures] == [
        "Similarity by layer: text",
        "Maximum explainable variance (MEV) by layer: text",
        "Projection of some words in their contexts: text, layer 1",
    ]
    selection = sample([language], text, max_words=500, distinct=True)
    (actual,) = measure_geometry(language, selection, words=["cat", "river"], layer=1)
    places, _ = principal_components(torch.stack(actual.occurrences.vectors).numpy())
    assert [item["x"] for item in projection["points"]] == pytest.approx(places[:, 0].tolist())
    assert len(geometry(language, text, max_words=500).data["sides"][0]["map"]["points"]) > 10  # default selection


def test_scatter_plots() -> None:
    actual = scatter(
        [Points("<b>", np.array([[0.0, 1.0], [2.0, 3.0]]), ["a", "b"]), Points("c d", np.array([[1.0, 1.0]]), ["&"])],
        axes=("across", "up"), title="A map",
    )  # fmt: skip
    assert "&lt;b&gt;" in actual and "c␣d" in actual and actual.count("<title>") == 3 and "<b>" not in actual
    one = scatter([Points("x", np.zeros((1, 2)), [""])], axes=("", ""))
    assert one.startswith("<svg") and "nan" not in one
    with pytest.raises(UsageError) as nothing:
        scatter([], axes=("", ""))
    assert str(nothing.value) == "scatter: nothing to draw: every group needs a point"
    with pytest.raises(UsageError) as wrong:
        scatter([Points("x", np.array([[np.nan, 0.0]]), [""])], axes=("", ""))
    assert str(wrong.value) == "scatter: positions must be finite"


def test_geometry_command(language: Any, text: Path, work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(language.directory.path)
    assert (
        main(["analyze", "geometry", folder, "--data", str(text), "--max-words", "300", "--output", str(work_dir / "x.html")])
        == 0
    )
    captured = capsys.readouterr()
    assert captured.out.startswith("text: 30") and "anisotropy" in captured.out and "MEV" in captured.out
    assert (work_dir / "x.html").read_text().count("<svg") == 3
    twice = work_dir / "twice.txt"
    twice.write_text("the cat sees a bird\n" * 3)
    assert (
        main(["analyze", "geometry", folder, "--data", str(twice), "--output", str(work_dir / "one.svg")]) == 0
    )  # one sentence: nothing to compare
    captured = capsys.readouterr()
    assert captured.out.split("\n")[2].split()[:4] == ["input", "-", "-", "-"]
    assert "weft: note: skipped 2 repeated texts\n" in captured.err
    assert (
        main(["analyze", "geometry", folder, "--max-words", "100", "--json", "--quiet"]) == 0
    )  # the run's own validation data
    assert json.loads(capsys.readouterr().out)["unit"] == "words"
    assert main(["analyze", "geometry", folder, "--max-words", "100", "--output", str(work_dir / "x.json"), "--quiet"]) == 0
    assert json.loads((work_dir / "x.json").read_text())["sides"][0]["side"] == "text"


def test_geometry_errors(
    language: Any, text: Path, work_dir: Path, pairs: Seq2SeqRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = str(language.directory.path), ("--data", str(text))

    def line(*words: str) -> str:
        return expect_error(capsys, "analyze", "geometry", *words, "--quiet")[1]

    assert line(folder, *data, "--words", "zebra") == "--words: 'zebra' is not one of the words of the data"
    assert line(folder, *data, "--layer", "3") == "--layer: must be from 0 (the input) to 2, got 3"
    assert line(folder, "--max-words", "1") == "--max-words: must be at least 2, got 1"
    assert line(folder, "--output", "x.pdf") == "--output: x.pdf must end in .html, .svg, .png or .json"
    blank = work_dir / "blank.txt"
    blank.write_text("  \n \n")
    assert line(folder, "--data", str(blank)) == f"--data: has no text that {folder} can read: it is blank"
    ngram = train_here({"task": "lm", "data": {"train": str(text)}, "model": {"arch": "ngram"}}, work_dir / "ngram")
    assert line(str(ngram.path)) == f"vectors: ngram has no contextual word vectors ({ngram.path})"
    bare = train_here({**run_file(text, train=TRAIN), "data": {"train": str(text), "context_length": 16}}, work_dir / "bare")
    assert line(str(bare.path)) == f"{bare.path}: the run has no validation or test data; set --data"
    long = work_dir / "long.tsv"
    long.write_text("a" * 40 + "\tA\n")
    run = weft.load(pairs.run_dir("transformer"), device="cpu")
    with pytest.raises(DataError) as caught:
        geometry(run, long)
    problem = "input: 41 tokens exceed the model's limit of 16; shorten it"
    assert str(caught.value) == f"data: has no text that {run.directory.path} can read: {problem}"
