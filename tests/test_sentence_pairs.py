"""Sentence pairs in masked language modeling: pairing of lines, segments, and fine-tuning a classifier of text pairs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SilentCallback, make_text, run_hashes, train_here

from weft.data.batching import Batch
from weft.data.corpus import Corpus, corpus_from_lines
from weft.data.line_pairs import LinePairBatchSampler, pair_lines
from weft.errors import TrainingInterrupted
from weft.models.encoder_config import MaskedLMConfig
from weft.tasks.masked_lm.objective import encoder_inputs, maskable, texts
from weft.text.tokenizers import from_vocab

TOKENIZER = from_vocab(list("abcdefghij"))


def shown(corpus: Corpus) -> list[str]:
    """Each text as it is read, with | for </s>."""
    starts = corpus.line_starts()
    texts = [corpus.tokens[low:high].tolist() for low, high in pairwise(starts)]
    return ["".join("|" if token == 2 else TOKENIZER.id_to_token(token) for token in text) for text in texts]


def pairs_of(lines: list[str], *, max_length: int = 100, phase: int = 0) -> list[str]:
    return shown(pair_lines(corpus_from_lines(TOKENIZER, lines), max_length=max_length, phase=phase))


def test_lines_are_paired_with_alternating_offset():
    lines = ["a", "b", "c", "d", "e"]
    assert pairs_of(lines) == ["a|b|", "c|d|", "e|"]
    assert pairs_of(lines, phase=1) == ["a|", "b|c|", "d|e|"]


def test_an_empty_line_ends_a_document():
    lines = ["a", "b", "c", "", "d", "e", "", "", "f"]
    assert pairs_of(lines) == ["a|b|", "c|", "|", "d|e|", "|", "|", "f|"]
    assert pairs_of(lines, phase=1) == ["a|", "b|c|", "|", "d|", "e|", "|", "|", "f|"]


def test_pairs_beyond_the_maximum_length_stay_single():
    lines = ["a b c", "d e", "f", "g"]
    assert pairs_of(lines, max_length=8) == ["abc|de|", "f|g|"]  # <s> a b c </s> d e </s>
    assert pairs_of(lines, max_length=7) == ["abc|", "de|", "f|g|"]


def test_a_single_line_is_not_a_pair():
    assert pairs_of(["a"]) == pairs_of(["a"], phase=1) == ["a|"]


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_every_line_is_read_once_per_epoch(epoch):
    lines = [" ".join(np.random.default_rng(number).choice(list("abcdefghij"), 1 + number % 5)) for number in range(37)]
    order = LinePairBatchSampler(corpus_from_lines(TOKENIZER, lines), max_length=20, batch_tokens=40, seed=1)
    read = [order.batch(epoch, index) for index in range(order.batches(epoch))]
    actual = sorted(
        "".join(TOKENIZER.id_to_token(token) for token in row[keep].tolist() if token > 2)
        for batch in read
        for row, keep in zip(batch.tokens, batch.token_mask, strict=True)
    )
    assert "".join(sorted("".join(actual))) == "".join(sorted("".join(lines).replace(" ", "")))
    assert max(batch.tokens.size(1) for batch in read) <= order.largest_batch().tokens.size(1) <= 20
    assert order.rows == int(40 / np.diff(order.phases[0].corpus.line_starts()).mean()) and order.resets_state(3)


def test_batches_are_described_by_line_numbers():
    order = LinePairBatchSampler(corpus_from_lines(TOKENIZER, ["a", "b", "c", "d"]), max_length=20, batch_tokens=100, seed=0)
    assert order.describe(0, 0) == "lines, pairs of lines from line 1, 3"
    assert order.describe(1, 0) == "lines, pairs of lines from line 1, 2, 4"


def test_tokens_after_the_first_eos_are_the_second_segment():
    tokens = torch.tensor([[1, 5, 6, 2, 7, 2], [1, 5, 2, 0, 0, 0]])
    keep = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
    text = encoder_inputs(Batch(tokens, keep))
    assert text.segments is not None
    assert text.segments.tolist() == [[0, 0, 0, 0, 1, 1], [0] * 6]
    assert maskable(tokens, keep).tolist() == [[False, True, True, False, True, False], [False, True] + [False] * 4]


def test_validation_reads_pairs_too():
    corpus = pair_lines(corpus_from_lines(TOKENIZER, ["a b", "c", "d"]), max_length=20)
    actual = {tuple(row[keep].tolist()) for read in texts(corpus, window=20) for row, keep in zip(*read.text[:2], strict=True)}
    assert actual == {(1, 3, 4, 2, 5, 2), (1, 6, 2)}


def test_sentence_pairs_imply_segments_by_default():
    for pairs, segments, expected in ((True, None, True), (False, None, False), (False, True, True), (True, False, False)):
        assert MaskedLMConfig(sentence_pairs=pairs, segment_embeddings=segments).with_defaults().segment_embeddings is expected


def run_file(text: Path, **model: Any) -> dict[str, Any]:
    return {
        "task": "masked-lm",
        "seed": 3,
        "data": {"train": str(text), "valid": 0.1, "read_as": "lines", "context_length": 64},
        "tokenizer": {"type": "word", "vocab_size": 40},
        "model": {"arch": "transformer", "hidden_size": 16, "num_layers": 1, "num_heads": 2, **model},
        "train": {"max_steps": 14, "batch_tokens": 128, "num_validations": 2, "device": "cpu"},
    }


def test_a_resumed_run_on_sentence_pairs_equals_an_uninterrupted_run(tmp_path):
    text = make_text(tmp_path / "text.txt", words=200)
    values = run_file(text, sentence_pairs=True, masking="span", dropout=0.1)
    train_here(values, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "cut", SilentCallback(stop_at=9))
    train_here(values, tmp_path / "cut")
    assert run_hashes(tmp_path / "cut") == run_hashes(tmp_path / "whole")


def test_a_text_pair_classifier_starts_with_trained_segments(tmp_path):
    import weft

    text = make_text(tmp_path / "text.txt", words=200)
    train_here(run_file(text, sentence_pairs=True), tmp_path / "first")
    train_here(run_file(text, segment_embeddings=True), tmp_path / "alone")
    (tmp_path / "pairs.csv").write_text("label,one,two\n" + "yes,a cat,a\nno,a cat,the\n" * 20)
    values = {
        "task": "classification",
        "data": {"train": str(tmp_path / "pairs.csv"), "valid": 0.2, "text_column": ["one", "two"]},
        "tokenizer": {"file": str(tmp_path / "first" / "tokenizer.json")},
        "model": {"arch": "transformer", "hidden_size": 16, "num_layers": 1, "num_heads": 2, "norm": "rmsnorm", "qk_norm": True},
        "train": {"max_steps": 1, "lr": 1e-9, "num_validations": 1, "device": "cpu", "ema_decay": 0,
                  "init_from": str(tmp_path / "first")},
    }  # fmt: skip
    callback = SilentCallback()
    train_here(values, tmp_path / "second", callback)
    (message,) = [note for note in callback.notes if note.startswith("Initialized ")]
    assert message.endswith(": head.temperature, head.scores.weight, head.scores.bias; unused: head.bias, head.weight")
    first, alone, second = (
        weft.load(tmp_path / name, device="cpu").model.encoder.embedder.segments.weight.detach()
        for name in ("first", "alone", "second")
    )
    assert torch.allclose(first, second, atol=1e-6)
    # the same initialization, but without pairs the second segment vector is not trained
    assert float((first[1] - alone[1]).norm()) > 0.02
