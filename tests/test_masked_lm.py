"""Masked language models: masking, loss, tied weights, windows, pseudo-perplexity and training."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SilentCallback, make_text, run_hashes, train_here

from weft.data.corpus import corpus_from_lines, write_corpus
from weft.data.source import Source
from weft.errors import ConfigError, DataError, TrainingInterrupted
from weft.metrics.items import ItemStatistics
from weft.metrics.lm import EvaluationSetup
from weft.metrics.masked_lm import masked_scores
from weft.models.encoder import EncoderInput
from weft.models.encoder_config import MaskedLMConfig
from weft.models.masked_lm import masked_language_model
from weft.runs.resolve import resolve
from weft.tasks.masked_lm.objective import MaskedLMObjective, Masking, encoder_inputs, mask_tokens, maskable, pseudo_nll, texts
from weft.text.tokenizers import Tokenizer, TokenizerConfig, from_vocab, train_tokenizer
from weft.text.whole_words import word_starts

WORDS = 50
MASK = WORDS  # ID of the mask token


def rows(lengths: list[int], *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded rows of <s>, the given number of tokens, and </s>."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(len(lengths), max(lengths) + 2, dtype=torch.long)
    for row, length in enumerate(lengths):
        inner = torch.randint(3, WORDS, (length,), generator=generator)
        tokens[row, : length + 2] = torch.cat([torch.tensor([1]), inner, torch.tensor([2])])
    return tokens, torch.arange(tokens.size(1)) < torch.tensor(lengths)[:, None] + 2


# ---- masks


def test_a_fraction_of_every_text_is_masked_but_at_least_one_token():
    tokens, keep = rows([1, 3, 10, 40, 0])
    for share in (0.15, 0.4):
        chosen = mask_tokens(tokens, keep, Masking(MASK, share)).targets_mask
        assert chosen.sum(1).tolist() == [max(1, round(share * length)) for length in (1, 3, 10, 40)] + [0]
        assert not (chosen & ~maskable(tokens, keep)).any()


def test_bos_eos_and_padding_are_never_masked():
    tokens, keep = rows([2, 30])
    actual = mask_tokens(tokens, keep, Masking(MASK, 1.0))
    assert torch.equal(actual.targets_mask, maskable(tokens, keep))
    aside = ~actual.targets_mask
    assert torch.equal(actual.tokens[aside], tokens[aside])
    assert maskable(tokens, keep)[0].tolist() == [False, True, True] + [False] * 29


def test_eighty_ten_ten():
    tokens, keep = rows([1000] * 20)
    torch.manual_seed(0)
    actual = mask_tokens(tokens, keep, Masking(MASK, 0.5))
    inputs, real = actual.tokens[actual.targets_mask], tokens[actual.targets_mask]
    hidden, same = (inputs == MASK).double().mean(), (inputs == real).double().mean()
    assert hidden == pytest.approx(0.8, abs=0.015)
    assert same == pytest.approx(0.1 + 0.1 / (WORDS - 3), abs=0.01)
    replaced = inputs[(inputs != MASK) & (inputs != real)]
    assert replaced.min() == 3 and replaced.max() == WORDS - 1  # no special token, and never the mask


def test_masks_differ_each_time_and_follow_the_generator():
    tokens, keep = rows([100])
    one, two = (mask_tokens(tokens, keep, Masking(MASK), torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(one.tokens, two.tokens) and torch.equal(one.targets_mask, two.targets_mask)
    torch.manual_seed(1)
    first, second = (mask_tokens(tokens, keep, Masking(MASK)).targets_mask for _ in range(2))
    assert not torch.equal(first, second)


def test_every_token_has_the_same_chance():
    tokens, keep = rows([20] * 4000)
    torch.manual_seed(3)
    often = mask_tokens(tokens, keep, Masking(MASK, 0.25)).targets_mask.double().mean(0)[1:-1]
    assert often.numpy() == pytest.approx(0.25, abs=0.03)


def test_whole_words_are_masked():
    begins = torch.rand(WORDS + 1, generator=torch.Generator().manual_seed(1)) < 0.4
    tokens, keep = rows([30] * 200, seed=2)
    torch.manual_seed(0)
    chosen = mask_tokens(tokens, keep, Masking(MASK, 0.15, begins)).targets_mask
    for row, hit in zip(tokens, chosen, strict=True):
        word = torch.cumsum(begins[row] | (row == 1) | (row == 2), 0)
        inside = (row != 1) & (row != 2)
        for number in word.unique():
            assert hit[(word == number) & inside].unique().numel() <= 1
    assert (chosen.sum(1) >= 4).all() and chosen.sum() < 200 * 30 * 0.35


def tokenizer_of(tokenizer_type: str) -> Tokenizer:
    text = ["the quick fox. quicker, the quickest naïve fox\n"] * 30
    return train_tokenizer(TokenizerConfig(type=tokenizer_type, vocab_size=320), iter(text))


@pytest.mark.parametrize("tokenizer_type", ["wordpiece", "bpe", "unigram", "word", "whitespace", "char", "byte"])
def test_which_tokens_start_a_word(tokenizer_type):
    tokenizer = tokenizer_of(tokenizer_type)
    begins = word_starts(tokenizer)
    if tokenizer_type in ("char", "byte"):
        assert begins is None
        return
    assert begins is not None and begins.shape == (tokenizer.vocab_size,)
    ids = tokenizer.encode("zebra quickest naïve, the")
    starts = begins[ids]
    if tokenizer_type in ("word", "whitespace"):
        assert starts.all()
    else:  # the first word follows <s>, which starts it; then quickest, naïve, the comma, the
        first = 1 if tokenizer_type == "wordpiece" else 0
        assert starts.sum() == 4 + first


def test_whole_word_masking_requires_word_boundaries():
    data = tokenizer_of("wordpiece").data.replace(b'"continuing_subword_prefix":"##"', b'"continuing_subword_prefix":"@@"')
    assert word_starts(Tokenizer(data, "here")) is None


# ---- the model


def model_of(**options: Any) -> Any:
    torch.manual_seed(0)
    table = MaskedLMConfig(**{"layer_type": "attention", "hidden_size": 16, "num_heads": 2, "position_encoding": "learned", "skip_connection": "residual", "norm_position": "post",
                           "norm": "layernorm", "embedding_norm": True, "head_transform": True, **options}).with_defaults()  # fmt: skip
    return masked_language_model(table, vocab_size=WORDS, max_positions=64).eval()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head_transform": False, "tie_embeddings": False},
        {"segment_embeddings": True},
        {
            "layer_type": "lstm",
            "num_heads": None,
            "position_encoding": "none",
            "skip_connection": "none",
            "norm_position": "pre",
        },
    ],
)
def test_the_loss_is_the_cross_entropy_of_the_selected_tokens(options):
    model = model_of(**options)
    tokens, keep = rows([5, 9])
    chosen = mask_tokens(tokens, keep, Masking(MASK, 0.5)).targets_mask
    text = EncoderInput(tokens.masked_fill(chosen, MASK), keep)
    nats = model.loss(text, tokens, chosen)
    expected = -model.log_probs(model(text)).gather(-1, tokens[..., None])[..., 0][chosen]
    assert torch.allclose(nats, expected, atol=1e-5)
    assert model.log_probs(model(text)).exp().sum(-1).allclose(torch.ones(2, 11), atol=1e-5)
    assert model.mask_id == MASK


def test_padding_does_not_change_the_loss():
    model = model_of()
    tokens, keep = rows([5, 20])
    alone = model(EncoderInput(tokens[:1, :7], keep[:1, :7]))
    assert torch.allclose(model(EncoderInput(tokens, keep))[:1, :7], alone, atol=1e-5)


def test_tied_weights_and_parameter_names():
    model = model_of()
    names = set(model.state_dict())
    assert model.head.weight is model.encoder.embedder.embedding.weight
    assert {"encoder.embedder.embedding.weight", "encoder.stack.input_proj.weight", "transform.0.weight", "head.bias"} <= names
    assert model.encoder.embedder.embedding.weight.shape == (WORDS + 1, 16)
    assert model_of(tie_embeddings=False).head.weight is not model_of(tie_embeddings=False).encoder.embedder.embedding.weight
    assert len(model_of(segment_embeddings=True).encoder.embedder.segments.weight) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bidirectional": False}, "bidirectional: must be true for a masked language model"),
        (
            {"layer_type": "lstm", "embedding_dim": 8},
            "tie_embeddings: requires embedding_dim (8) to equal hidden_size (256); set tie_embeddings = false",
        ),
        (
            {"layer_type": "attention", "head_transform": True, "activation": "swiglu"},
            "head_transform: not possible with activation 'swiglu'; change one of them",
        ),
        ({"norm_eps": 1e-6}, "norm_eps: not used with norm 'none'; remove it"),
    ],
)
def test_invalid_configs_are_rejected(options, message):
    with pytest.raises(ConfigError) as caught:
        resolve({"task": "masked-lm", "data": {"train": "x"}, "model": {"arch": "lstm", **options}}, base=Path("/nowhere"))
    assert str(caught.value) == f"model.{message}"


def test_norm_eps_is_applied():
    assert model_of(norm_eps=1e-12).encoder.stack.input_proj.eps == 1e-12
    assert model_of().encoder.stack.input_proj.eps == 1e-5


# ---- texts


def text_corpus(tmp_path: Path, text: str, *, lines: bool) -> tuple[Any, Tokenizer]:
    (tmp_path / "text.txt").write_text(text)
    tokenizer = from_vocab(sorted(set(text.split())))
    return write_corpus(Source((tmp_path / "text.txt",), "utf-8", lines), tokenizer, tmp_path, "text"), tokenizer


def test_evaluation_windows_cover_running_text_once_with_bos_and_eos(tmp_path):
    corpus, _ = text_corpus(tmp_path, " ".join(f"w{number}" for number in range(11)), lines=False)
    actual = list(texts(corpus, window=6, batch_tokens=12))
    assert [read.keys.tolist() for read in actual] == [[0, 1], [2]]
    inner = [row[keep][1:-1].tolist() for read in actual for row, keep in zip(*read.text[:2], strict=True)]
    assert [token for row in inner for token in row] == corpus.tokens.tolist()
    for read in actual:
        for row, keep in zip(read.text.tokens, read.text.token_mask, strict=True):
            assert (row[keep][0], row[keep][-1]) == (1, 2)


def test_training_windows_have_bos_and_eos():
    from weft.data.batching import Batch

    text = encoder_inputs(Batch(torch.arange(3, 11)[None], None))
    assert text.tokens.tolist() == [[1, 4, 5, 6, 7, 8, 9, 2]] and text.token_mask.all()


def test_pseudo_log_likelihood_masks_one_token_at_a_time(tmp_path):
    corpus, tokenizer = text_corpus(tmp_path, "a b c\nb\n\nc a\n", lines=True)
    torch.manual_seed(0)
    table = MaskedLMConfig(layer_type="attention", hidden_size=8, position_encoding="sinusoidal").with_defaults()
    model: Any = masked_language_model(table, vocab_size=tokenizer.vocab_size, max_positions=16).eval()
    calls: list[tuple[int, int]] = []
    with torch.no_grad():
        items = pseudo_nll(model, corpus, window=16, device=torch.device("cpu"), progress=lambda *done: calls.append(done))
    assert items.keys.tolist() == [0, 1, 2, 3] and items.statistics["tokens"].tolist() == [3, 1, 0, 2] and calls[-1] == (6, 6)
    for line, text in enumerate(["a b c", "b", "", "c a"]):
        ids = [1, *tokenizer.encode(text).tolist(), 2]
        nats = 0.0
        for index in range(1, len(ids) - 1):
            row = torch.tensor([ids])
            row[0, index] = tokenizer.vocab_size
            nats -= model.log_probs(model(EncoderInput(row, torch.ones_like(row, dtype=torch.bool))))[
                0, index, ids[index]
            ].item()
        assert items.statistics["nats"][line] == pytest.approx(nats, abs=1e-4)


def test_scores_and_their_intervals():
    items = ItemStatistics(np.arange(3), {"nats": np.array([2.0, 4.0, 0.0]), "tokens": np.array([2.0, 2.0, 0.0])})
    nats, perplexity = masked_scores(items, EvaluationSetup("masked:line", "line", "abcdefghij"))
    assert (nats.name, nats.value) == ("pseudo_loss", 1.5)
    assert (perplexity.name, perplexity.value) == ("pseudo_perplexity", pytest.approx(math.exp(1.5)))
    assert nats.low is not None and nats.high is not None and 1.0 <= nats.low <= 1.5 <= nats.high <= 2.0
    assert "context:masked:line|unit:line|tokens:4" in nats.signature
    with pytest.raises(DataError) as caught:
        masked_scores(
            ItemStatistics(np.arange(1), {"nats": np.zeros(1), "tokens": np.zeros(1)}), EvaluationSetup("x", "line", "y")
        )
    assert str(caught.value) == "evaluate: no tokens to mask"


def test_validation_uses_the_same_masks_every_time(tmp_path):
    corpus, tokenizer = text_corpus(tmp_path, "a b c d e\nb c d\n" * 30, lines=True)
    model = masked_language_model(
        MaskedLMConfig(hidden_size=8).with_defaults(), vocab_size=tokenizer.vocab_size, max_positions=16
    ).eval()
    task = MaskedLMObjective(Masking(tokenizer.vocab_size, 0.3), valid=corpus, context_length=16, device=torch.device("cpu"))
    with torch.no_grad():
        first, second = task.validate(model), task.validate(model)
    assert first == second and first is not None and list(first) == ["mlm_loss", "mlm_accuracy"]
    assert 0 <= first["mlm_accuracy"] <= 100
    empty = MaskedLMObjective(
        Masking(tokenizer.vocab_size),
        valid=corpus_from_lines(tokenizer, ["", ""]),
        context_length=16,
        device=torch.device("cpu"),
    )
    with pytest.raises(DataError) as caught, torch.no_grad():
        empty.validate(model)
    assert str(caught.value) == "data.valid: lines has no token to mask; use a text that is not empty"


# ---- training


def run_file(text: Path, kind: str = "bert", **model: Any) -> dict[str, Any]:
    return {
        "task": "masked-lm",
        "seed": 3,
        "data": {"train": str(text), "valid": 0.1, "read_as": "lines", "context_length": 64},
        "tokenizer": {"type": "word", "vocab_size": 40},
        "model": {"arch": kind, "hidden_size": 16, "num_layers": 1, **({} if kind == "lstm" else {"num_heads": 2}), **model},
        "train": {"max_steps": 8, "batch_tokens": 256, "num_validations": 2, "device": "cpu"},
    }


@pytest.mark.parametrize("kind", ["bert", "transformer", "lstm"])
@pytest.mark.parametrize("read", ["lines", "windows"])
def test_a_resumed_run_equals_an_uninterrupted_run(tmp_path, kind, read):
    values = run_file(make_text(tmp_path / "text.txt"), kind, segment_embeddings=kind == "bert", dropout=0.1)
    values["data"] |= {"read_as": read, "context_length": 24 if read == "windows" else 64}
    train_here(values, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "cut", SilentCallback(stop_at=5))
    train_here(values, tmp_path / "cut")
    assert run_hashes(tmp_path / "cut") == run_hashes(tmp_path / "whole")


@pytest.mark.slow
def test_it_learns_from_left_and_right_context_together(tmp_path):
    """In lines 'x k y', the middle follows from both ends together but from neither alone."""
    lines = [f"a{i} m{(i + j) % 6} b{j}" for i in range(6) for j in range(6)] * 8
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    values = run_file(tmp_path / "text.txt", "transformer", hidden_size=64, mask_prob=0.34, dropout=0.0)
    values["train"] |= {"max_steps": 250, "batch_tokens": 1024, "num_validations": 1}
    callback = SilentCallback()
    train_here(values, tmp_path / "run", callback)
    import weft

    run: Any = weft.load(tmp_path / "run", device="cpu")
    correct = [run.predict(f"a{i} [MASK] b{j}", n_best=1)[0][0].token == f"m{(i + j) % 6}" for i in range(6) for j in range(6)]
    assert np.mean(correct) > 0.9


def test_weights_initialize_another_run(tmp_path):
    text = make_text(tmp_path / "text.txt")
    train_here(run_file(text), tmp_path / "one")
    values = run_file(text)
    values["train"] |= {"init_from": str(tmp_path / "one")}
    values["tokenizer"] = {"file": str(tmp_path / "one" / "tokenizer.json")}
    callback = SilentCallback()
    train_here(values, tmp_path / "two", callback)
    assert any(re.fullmatch(r"Initialized \d+ tensors from [^;]*", note) for note in callback.notes)


def test_incompatible_options_are_rejected(tmp_path):
    text = make_text(tmp_path / "text.txt")

    def said(kind: type[Exception], **changes: dict[str, Any]) -> str:
        values = run_file(text)
        for table, options in changes.items():
            values[table] = {**values[table], **options}
        with pytest.raises(kind) as caught:
            train_here(values, tmp_path / "run", overwrite=True)
        return str(caught.value)

    assert said(ConfigError, data={"read_as": "stream"}) == (
        "data.read_as: 'stream' is not possible for a masked language model; use 'lines' or 'windows'"
    )
    assert said(ConfigError, data={"read_as": "windows", "context_length": 2}) == (
        "data.context_length: must be at least 3 for a masked language model, got 2"
    )
    assert said(ConfigError, model={"masking": "whole-word"}, tokenizer={"type": "char"}) == (
        "model.masking: 'whole-word' is not possible with tokenizer type 'char', which does not mark word starts; "
        "use tokenizer.type = 'wordpiece' or 'bpe', or masking = 'token' or 'span'"
    )
    assert said(ConfigError, model={"masking": "spans"}) == ("model.masking: unknown value 'spans'; did you mean 'span'?")
    assert said(ConfigError, model={"sentence_pairs": True}, data={"read_as": "windows"}) == (
        'model.sentence_pairs: requires data.read_as = "lines"'
    )
    actual = said(DataError, data={"context_length": 6})
    assert actual.startswith("train:") and actual.endswith(
        " tokens, with <s> and </s>, exceed the model's limit of 6; shorten it, or train with data.context_length = 10 "
        "or another position_encoding"
    )


@pytest.mark.parametrize(("masking", "kind"), [("whole-word", "wordpiece"), ("span", "wordpiece"), ("span", "char")])
def test_whole_word_and_span_masking_train(tmp_path, masking, kind):
    values = run_file(make_text(tmp_path / "text.txt"), masking=masking)
    values["tokenizer"] = {"type": kind, "vocab_size": 60}
    values["train"] |= {"max_steps": 2}
    callback = SilentCallback()
    train_here(values, tmp_path / "run", callback)
    assert len(callback.scores) == 2
