"""Trained masked language models: filling masks, sentence embeddings, long texts, and their commands."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error, set_stdin, stream_output
from small_runs import make_text, train_here

import weft
from weft.cli.main import main
from weft.errors import DataError, UsageError
from weft.models.encoder import EncoderInput

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
KINDS = {"word": 40, "wordpiece": 60, "bpe": 290, "char": 60}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A small run for each tokenizer type."""
    directory = tmp_path_factory.mktemp("runs")
    text = make_text(directory / "text.txt")
    for tokenizer_type, size in KINDS.items():
        values: dict[str, Any] = {
            "task": "masked-lm",
            "data": {"train": str(text), "valid": 0.1, "test": 0.1, "read_as": "lines", "context_length": 48},
            "tokenizer": {"type": tokenizer_type, "vocab_size": size},
            "model": {"arch": "bert", "hidden_size": 16, "num_layers": 1, "num_heads": 2},
            "train": {"max_steps": 3, "num_validations": 1, "batch_tokens": 512, "device": "cpu"},
        }
        train_here(values, directory / tokenizer_type)
    return directory


@pytest.fixture(scope="module")
def run(runs):
    return weft.load(runs / "word", device="cpu")


# ---- masks


def test_a_mask_is_filled_by_the_most_probable_tokens(run):
    masks = run.predict("the [MASK] sees a <mask> .", n_best=3)
    assert len(masks) == 2 and all(len(candidates) == 3 for candidates in masks)
    ids = run.vocabulary.encode("the cat sees a dog .").tolist()
    row = torch.tensor([[1, *ids, 2]])
    row[0, [2, 5]] = run.vocabulary.vocab_size
    with torch.no_grad():
        log_probs = run.model.log_probs(run.model(EncoderInput(row, torch.ones_like(row, dtype=torch.bool))))
    for candidates, index in zip(masks, (2, 5), strict=True):
        best = log_probs[0, index, 3:-1].exp().topk(3)
        assert [item.probability for item in candidates] == pytest.approx(best.values.tolist(), abs=1e-6)
        assert [item.token for item in candidates] == [
            run.vocabulary.id_to_token(3 + number) for number in best.indices.tolist()
        ]


@pytest.mark.parametrize("tokenizer_type", KINDS)
def test_a_mask_replaces_one_token(runs, tokenizer_type):
    """The tokens of the masked text are those of the text, with one replaced by the mask."""
    run: Any = weft.load(runs / tokenizer_type, device="cpu")
    text, masked_text = (
        ("the cat sees", "the [MASK] sees") if tokenizer_type != "char" else ("the cat sees", "the c[MASK]t sees")
    )
    full, masked = [1, *run.vocabulary.encode(text).tolist(), 2], run.predictor.tokens(masked_text)
    index = masked.index(run.vocabulary.vocab_size)
    assert masked[:index] == full[:index]
    assert masked[index + 1 :] == full[len(full) - (len(masked) - index - 1) :]
    predictions = run.predict(masked_text, n_best=2)[0]
    assert all(item.token and 0 <= item.probability <= 1 for item in predictions)


def test_top_k_is_limited_by_the_vocabulary(run):
    (candidates,) = run.predict("[MASK]", n_best=10_000)
    assert len(candidates) == run.vocabulary.vocab_size - 3
    assert sum(item.probability for item in candidates) <= 1.0


def test_invalid_masks_are_rejected(run):
    def said(text: str, **options: int) -> str:
        with pytest.raises((UsageError, DataError)) as caught:
            run.predict(text, **options)
        return str(caught.value)

    assert said("no gap") == "line 1: no [MASK] in the text; write it where a token is missing"
    assert said("the [MASK]", n_best=0) == "n_best: must be at least 1, got 0"
    assert said("[MASK] " * 50) == "line 1: 52 tokens exceed the model's limit of 48; shorten it"
    with pytest.raises(DataError):
        run.predict("the \0 [MASK]")


# ---- vectors


def test_embeddings_do_not_depend_on_the_batch(run):
    lines = ["the cat sees", "a", "", "old dog and then the bird finds the tree in the river", "the cat sees"]
    for pool in ("mean", "first"):
        together = run.embed(lines, pooling=pool)
        assert together.shape == (5, 16) and together.dtype == np.float32
        alone = np.concatenate([run.embed([line], pooling=pool) for line in lines])
        assert together == pytest.approx(alone, abs=1e-5)
        assert np.array_equal(together[0], together[4])
    assert run.embed([]).shape == (0, 0)


def test_sentence_embedding_is_the_mean_of_encoder_outputs(run):
    row = torch.tensor([[1, *run.vocabulary.encode("the cat").tolist(), 2]])
    with torch.no_grad():
        y = run.model(EncoderInput(row, torch.ones_like(row, dtype=torch.bool)))[0].numpy()
    assert run.embed(["the cat"])[0] == pytest.approx(y.mean(0), abs=1e-5)
    assert run.embed(["the cat"], pooling="first")[0] == pytest.approx(y[0], abs=1e-5)


def test_a_long_text_is_truncated_and_keeps_eos(run):
    long = " ".join(["cat"] * 100)
    short = " ".join(["cat"] * 46)
    calls: list[tuple[int, int]] = []
    actual, truncated = run.embed_with_info([long, short, "dog"], progress=lambda what, *done: calls.append(done))
    assert truncated.tolist() == [True, False, False] and calls[-1] == (3, 3)
    assert actual[0] == pytest.approx(actual[1], abs=1e-5)
    assert run.embed_with_info(["dog"]).truncated.tolist() == [False]


def test_unknown_pooling_is_rejected(run):
    with pytest.raises(UsageError) as caught:
        run.embed(["x"], pooling="last")
    assert str(caught.value) == "pooling: unknown pooling 'last'; choose from mean, first"


# ---- commands


def test_fill_prints_probabilities_and_tokens(runs, capsys, monkeypatch):
    assert main(["predict", str(runs / "word"), "the [MASK] sees [MASK]", "--n-best", "2"]) == 0
    blocks = capsys.readouterr().out.split("\n\n")
    assert len(blocks) == 2 and all(len(block.strip().split("\n")) == 2 for block in blocks)
    probability, token = blocks[0].split("\n")[0].split("\t")
    assert 0 < float(probability) < 1 and token
    set_stdin(monkeypatch, b"the [MASK]\nno gap\n\xff\n[MASK] sees\n")
    assert main(["predict", str(runs / "word"), "--n-best", "1"]) == 3
    out, err = capsys.readouterr()
    assert [line.split("\t")[:2] for line in out.split("\n")[:-1]] == [["1", "1"], [""], [""], ["4", "1"]]
    assert err.split("\n")[:2] == [
        "weft: warning: line 2: no [MASK] in the text; write it where a token is missing; skipped",
        "weft: warning: standard input:3: invalid utf-8 (byte 0xff); convert it first; skipped",
    ]
    set_stdin(monkeypatch, b"the [MASK]\n")
    assert main(["predict", str(runs / "word"), "--n-best", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["text"] == "the [MASK]" and set(data["masks"][0][0]) == {"token", "probability"}


def test_piped_input_is_answered_line_by_line(runs, monkeypatch, capsys):
    """A program can write a line and wait for its answer."""
    chunks = [b"the [MASK]\na [MA", b"SK]\n", b"[MASK] sees\n"]
    for words in (["predict", "--n-best", "1"], ["embed"]):
        counts, out = stream_output(monkeypatch, chunks, words[0], str(runs / "word"), *words[1:])
        assert counts == [0, 1, 2, 3]
        set_stdin(monkeypatch, b"".join(chunks))
        assert main([words[0], str(runs / "word"), *words[1:]]) == 0
        assert len(out.split("\n")) == len(capsys.readouterr().out.split("\n"))
    counts, _ = stream_output(monkeypatch, [b"cat " * 60 + b"\n"] * 2, "embed", str(runs / "word"))
    assert counts == [0, 1, 2]
    assert (
        capsys.readouterr().err == "weft: warning: truncated 2 lines that were too long for the model\n"
    )  # once, not per chunk


def test_embed_writes_npy_or_jsonl(runs, tmp_path, capsys, monkeypatch):
    run: Any = weft.load(runs / "word", device="cpu")
    expected = run.embed(["the cat", "a dog"])
    set_stdin(monkeypatch, b"the cat\na dog\n")
    assert main(["embed", str(runs / "word"), "--output", str(tmp_path / "x.npy"), "--quiet"]) == 0
    assert np.load(tmp_path / "x.npy", allow_pickle=False) == pytest.approx(expected, abs=1e-6)
    set_stdin(monkeypatch, b"the cat\na dog\n")
    assert main(["embed", str(runs / "word"), "--output", str(tmp_path / "x.jsonl"), "--quiet", "--pooling", "first"]) == 0
    json_lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [item["text"] for item in json_lines] == ["the cat", "a dog"]
    assert np.array([item["vector"] for item in json_lines]) == pytest.approx(
        run.embed(["the cat", "a dog"], pooling="first"), abs=1e-6
    )
    assert main(["embed", str(runs / "word"), "the cat"]) == 0
    assert json.loads(capsys.readouterr().out)["vector"] == pytest.approx(expected[0].tolist(), abs=1e-6)
    set_stdin(monkeypatch, b"a\n\xff\n" + b"cat " * 60 + b"\n")
    assert main(["embed", str(runs / "word"), "--output", str(tmp_path / "y.npy")]) == 3
    assert np.isnan(np.load(tmp_path / "y.npy", allow_pickle=False)).all(1).tolist() == [False, True, False]
    assert "weft: warning: truncated 1 line that was too long for the model\n" in capsys.readouterr().err
    set_stdin(monkeypatch, b"\xff\n")
    assert main(["embed", str(runs / "word"), "--quiet"]) == 3
    assert json.loads(capsys.readouterr().out)["vector"] is None
    set_stdin(monkeypatch, b"")
    assert main(["embed", str(runs / "word"), "--output", str(tmp_path / "z.npy")]) == 0
    assert np.load(tmp_path / "z.npy", allow_pickle=False).shape == (0, 0)


def test_evaluate_reports_pseudo_perplexity(runs, capsys):
    assert main(["evaluate", str(runs / "word"), "--json", "--quiet"]) == 0
    data = json.loads(capsys.readouterr().out)
    nats, perplexity = data["scores"]
    assert (nats["name"], perplexity["name"]) == ("pseudo_loss", "pseudo_perplexity")
    assert np.exp(nats["value"]) == pytest.approx(perplexity["value"]) and nats["low"] < nats["value"] < nats["high"]
    assert "|context:masked:line|unit:line|" in nats["signature"]


def test_unsupported_commands_are_rejected(runs, capsys, tmp_path):
    run = str(runs / "word")
    assert expect_error(capsys, "generate", run, "x") == (2, f"{run}: is a masked language model; use weft predict")
    assert expect_error(capsys, "score", run) == (2, f"{run}: models of task 'masked-lm' do not give texts a probability")
    assert expect_error(capsys, "evaluate", run, "--context", "carry") == (
        2,
        "--context: not available for task 'masked-lm'",
    )
    assert expect_error(capsys, "predict", run, "x", "--input", "y") == (2, "--input: cannot be combined with a text argument")
    assert expect_error(capsys, "embed", run, "x", "--output", "x.txt") == (2, "--output: x.txt must end in .npy or .jsonl")
    text = make_text(tmp_path / "text.txt")
    train_here({"task": "lm", "data": {"train": str(text)}, "model": {"arch": "ngram"}}, tmp_path / "lm")
    lm = str(tmp_path / "lm")
    assert expect_error(capsys, "predict", lm, "x") == (2, f"{lm}: is a language model; use weft generate")
    assert expect_error(capsys, "embed", lm, "x") == (2, f"{lm}: models of task 'lm' have no text encoder")


def test_info_and_next_commands(runs, run, tmp_path, capsys):
    assert run.info()["task"] == "masked-lm" and run.info()["vocabulary"] == run.vocabulary.vocab_size
    assert main(["info", str(runs / "word")]) == 0
    assert "MLM loss" in capsys.readouterr().out
