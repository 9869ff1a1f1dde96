"""Surprisal of every token: counted once, in the context that the policy defines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_models import enlarge_weights

from weft.config import parse_config
from weft.data.batching import Batch
from weft.data.corpus import Corpus, write_corpus
from weft.data.source import Source
from weft.errors import DataError, UsageError
from weft.models.lm import LanguageModel, language_model
from weft.models.ngram import NgramConfig, NgramModel, fit
from weft.tasks.lm import scoring as module
from weft.tasks.lm.contexts import Context, check_positions, parse_context
from weft.tasks.lm.objective import LanguageModelObjective
from weft.tasks.lm.presets import PRESETS as LM
from weft.tasks.lm.scoring import items, scoring_windows, surprisal
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

WORDS, CPU = 9, torch.device("cpu")
NO_MARKS = np.zeros((1, 4), dtype=np.int64)


def running(count: int) -> Corpus:
    tokens = np.random.default_rng(0).integers(3, WORDS, count).astype(np.uint16)
    return Corpus("valid", tokens, None, NO_MARKS, "")


def in_lines(lengths: list[int]) -> Corpus:
    """Lines of the given numbers of tokens, each with EOS."""
    generator = np.random.default_rng(0)
    tokens = np.concatenate([[*generator.integers(3, WORDS, length), 2] for length in lengths])
    starts = np.concatenate([[0], np.cumsum(np.asarray(lengths) + 1)])
    return Corpus("valid", tokens.astype(np.uint16), starts, NO_MARKS, "")


def network(arch: str, *, window: int = 8, **options: Any) -> LanguageModel:
    preset = LM[arch]
    table = parse_config(
        preset.config_class, {**preset.values, "hidden_size": 8, "num_layers": 2, **options}, prefix="model"
    ).with_defaults()
    torch.manual_seed(0)
    return enlarge_weights(language_model(table, vocab_size=WORDS, context_length=window, vocabulary="v")).eval()  # type: ignore[return-value]


def ngram(order: int = 3) -> NgramModel:
    return fit(running(300).tokens, None, NgramConfig(order=order), vocab_size=WORDS, vocabulary="v")


def nats_of(model: Any, corpus: Corpus, context: Context) -> np.ndarray:
    with torch.no_grad():
        return surprisal(model, corpus, context, device=CPU)


def nats_after(model: Any, tokens: list[int]) -> np.ndarray:
    """Surprisal of every token but the first, in one pass."""
    with torch.no_grad():
        return -model.score(torch.tensor([tokens]))[0].numpy()


class Naming:
    """A model that returns the ID of each target as its surprisal and records its calls."""

    max_positions = None

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def loss(self, tokens: Tensor, targets: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        assert torch.equal(tokens[:, 1:], targets[:, :-1])
        self.asked.append(tuple(tokens.shape))
        return targets.float(), torch.zeros(len(tokens), 1)


POLICIES = {
    "carry": (running(1234), Context("carry", 8)),
    "carry-all-at-once": (running(30), Context("carry", 8)),
    "stride": (running(1234), Context("stride", 8, 3)),
    "stride-by-windows": (running(1234), Context("stride", 8, 8)),
    "stride-one-by-one": (running(100), Context("stride", 8, 1)),
    "lines": (in_lines([3, 0, 12, 5, 0, 90, 1] * 20), Context("reset", 8)),
    "shorter-than-the-window": (running(5), Context("stride", 8, 2)),
    "shorter-than-the-warm-up": (running(5), Context("carry", 8)),
    "one-token-carried": (running(1), Context("carry", 8)),
    "one-token-strided": (running(1), Context("stride", 8, 8)),
    "one-empty-line": (in_lines([0]), Context("reset", 8)),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("size", [64, 16384])
def test_every_token_is_counted_once(monkeypatch, name, size):
    monkeypatch.setattr(module, "BATCH_TOKENS", size)
    corpus, context = POLICIES[name]
    calls: list[tuple[int, int]] = []
    model = Naming()
    actual = surprisal(model, corpus, context, device=CPU, progress=lambda done, total: calls.append((done, total)))
    # every token is written exactly once
    assert calls[-1] == (len(corpus.tokens), len(corpus.tokens))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls) and len(calls) == len(model.asked)
    assert actual.tolist() == corpus.tokens.tolist()
    assert max(rows * width for rows, width in model.asked) <= max(size, 91)  # the longest line comes alone


def test_progress_covers_windows_of_a_long_line(monkeypatch):
    """Lines of 3 and 90 tokens with EOS; the long one alone, in windows of 25."""
    monkeypatch.setattr(module, "BATCH_TOKENS", 50)
    monkeypatch.setattr(module, "CHUNK_TOKENS", 25)
    calls: list[tuple[int, int]] = []
    corpus = in_lines([3, 90])
    surprisal(Naming(), corpus, Context("reset", 8), device=CPU, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 95) for done in (4, 4 + 25, 4 + 50, 4 + 75, 95)]


# ---- carry


@pytest.mark.parametrize("order", [1, 2, 5])
def test_parallel_carry_of_an_ngram_model_equals_one_pass(monkeypatch, order):
    monkeypatch.setattr(module, "BATCH_TOKENS", 256)
    model, corpus = ngram(order), running(3000)
    actual = nats_of(model, corpus, Context("carry", 8))
    assert len(next(iter(scoring_windows(corpus, Context("carry", 8)))).tokens) == 5
    assert np.array_equal(actual, -model.score_corpus(corpus.tokens, None))
    assert np.array_equal(actual, nats_after(model, [1, *corpus.tokens.tolist()]))


def test_parallel_carry_of_a_fixed_window_network_equals_one_pass(monkeypatch):
    monkeypatch.setattr(module, "BATCH_TOKENS", 256)
    model, corpus = network("conv"), running(3000)  # two layers see 2 + 2 tokens before the last, fewer than the 8 read
    actual = nats_of(model, corpus, Context("carry", 8))
    np.testing.assert_allclose(actual, nats_after(model, [1, *corpus.tokens.tolist()]), atol=1e-5)


@pytest.mark.parametrize("arch", ["rnn", "lstm", "gru"])
def test_parallel_carry_of_a_recurrent_network_nearly_equals_one_pass(monkeypatch, arch):
    monkeypatch.setattr(module, "BATCH_TOKENS", 1024)
    model, corpus = network(arch), running(9000)
    actual = nats_of(model, corpus, Context("carry", 32))
    full = nats_after(model, [1, *corpus.tokens.tolist()])
    assert actual.mean() == pytest.approx(full.mean(), abs=1e-3)
    # the first part has no earlier context to miss
    np.testing.assert_allclose(actual[: 9000 // 32], full[: 9000 // 32], atol=1e-4)


def test_one_carried_row_equals_one_pass_for_attention_too(monkeypatch):
    monkeypatch.setattr(module, "BATCH_TOKENS", 16)
    monkeypatch.setattr(module, "MAX_PARTS", 1)
    corpus = running(100)
    for arch in ("lstm", "gpt"):
        model = network(arch)
        actual = nats_of(model, corpus, Context("carry", 8))
        np.testing.assert_allclose(actual, nats_after(model, [1, *corpus.tokens.tolist()]), atol=1e-4)


# ---- stride


@pytest.mark.parametrize("arch", ["transformer", "gpt", "lstm", "ngram"])
@pytest.mark.parametrize(("count", "stride"), [(50, 3), (50, 8), (51, 1), (8, 5), (5, 5)])
def test_stride_matches_its_definition(monkeypatch, arch, count, stride):
    """Window by window: a token counts in the first window that contains it."""
    monkeypatch.setattr(module, "BATCH_TOKENS", 32)
    model, corpus, window = ngram() if arch == "ngram" else network(arch), running(count), 8
    text, expected = [1, *corpus.tokens.tolist()], np.full(count, np.nan)
    start = 0
    while np.isnan(expected).any():
        start = min(start, max(0, count - window))  # the last window is moved back to be full
        nats = nats_after(model, text[start : start + window + 1])
        new = np.isnan(expected[start : start + window])
        expected[start : start + window][new] = nats[new]
        start += stride
    np.testing.assert_allclose(nats_of(model, corpus, Context("stride", window, stride)), expected, atol=1e-5)


def test_a_small_stride_gives_more_context():
    """An n-gram model of order 5 has its full context if 4 or more tokens precede each: window - stride >= 4."""
    model, corpus = ngram(5), running(200)
    exact = -model.score_corpus(corpus.tokens, None)
    assert np.array_equal(nats_of(model, corpus, Context("stride", 8, 4)), exact)
    assert not np.array_equal(nats_of(model, corpus, Context("stride", 8, 8)), exact)


# ---- lines


@pytest.mark.parametrize("arch", ["conv", "lstm", "transformer", "gpt", "ngram"])
def test_lines_in_batches_equal_each_alone(monkeypatch, arch):
    monkeypatch.setattr(module, "BATCH_TOKENS", 64)
    corpus = in_lines([3, 0, 12, 5, 0, 30, 1, 7])
    model = ngram() if arch == "ngram" else network(arch, window=31)
    alone = [nats_after(model, [1, *line.tolist()]) for line in np.split(corpus.tokens, corpus.starts[1:-1])]
    np.testing.assert_allclose(nats_of(model, corpus, Context("reset", 31)), np.concatenate(alone), atol=1e-5)


# ---- positions that end


def error_message(error: type[Exception], action: Any) -> str:
    with pytest.raises(error) as caught:
        action()
    assert type(caught.value) is error
    return str(caught.value)


@pytest.mark.parametrize("arch", ["ngram", "conv", "lstm", "transformer", "gpt"])
def test_a_long_line_is_read_in_windows(monkeypatch, arch):
    model: Any = ngram() if arch == "ngram" else network(arch, window=40)
    corpus, windows = in_lines([30, 7]), []
    full = nats_of(model, corpus, Context("reset", 40))
    real = model.loss

    def loss(tokens: Tensor, targets: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        windows.append(tokens.size(1))
        return real(tokens, targets, state)

    monkeypatch.setattr(model, "loss", loss)
    monkeypatch.setattr(module, "CHUNK_TOKENS", 9)
    np.testing.assert_allclose(nats_of(model, corpus, Context("reset", 40)), full, atol=1e-5)
    assert max(windows) == 9
    assert sum(windows) == 31


def test_a_line_beyond_the_last_position_is_rejected_with_its_number():
    model, corpus = network("transformer"), in_lines([3, 8, 2, 9])
    message = (
        "valid:4: 10 tokens exceed the model's limit of 8; "
        "shorten it, or train with data.context_length = 10 or another position_encoding"
    )
    assert error_message(DataError, lambda: nats_of(model, corpus, Context("reset", 8))) == message
    fits = in_lines([3, 7])  # with its end 8 tokens: <s> and 7 are read
    assert np.isfinite(nats_of(model, fits, Context("reset", 8))).all()
    for arch in ("gpt", "lstm"):
        assert np.isfinite(nats_of(network(arch), corpus, Context("reset", 8))).all()


def test_a_carried_pass_beyond_the_last_position_is_rejected():
    model = network("transformer")
    assert error_message(UsageError, lambda: nats_of(model, running(9), Context("carry", 8))) == (
        "context: 'carry' needs more than the model's 8 positions; use 'stride'"
    )
    assert np.isfinite(nats_of(model, running(8), Context("carry", 8))).all()
    check_positions(None, running(9), Context("carry", 8))
    check_positions(8, running(9), Context("stride", 8, 8))


# ---- what the command line says


def parsed(text: str, *, lines: bool = False) -> Context:
    return parse_context(text, lines=lines, context_length=64, default=Context("reset", 64))


def test_context_policies_on_the_command_line():
    assert parsed("stride") == Context("stride", 64, 64)
    assert parsed("stride:16") == Context("stride", 64, 16)
    assert parsed("carry") == Context("carry", 64)
    assert parsed("reset", lines=True) == parsed("full") == parsed("full", lines=True) == Context("reset", 64)
    policies = [Context("stride", 64, 16), Context("carry", 64), Context("reset", 64)]
    assert [str(context) for context in policies] == ["stride:16/64", "carry:warm-64", "reset:line"]
    full = ["full/stride:16/64", "full/carry:warm-64", "reset:line"]
    assert [str(context._replace(full=True)) for context in policies] == full


REFUSED = {
    ("stride:65", False): "context: stride must be from 1 to context_length (64), got '65'",
    ("stride:0", False): "context: stride must be from 1 to context_length (64), got '0'",
    ("stride:-1", False): "context: stride must be from 1 to context_length (64), got '-1'",
    ("stride:", False): "context: stride must be from 1 to context_length (64), got ''",
    ("stride:²", False): "context: stride must be from 1 to context_length (64), got '²'",
    ("stride:1.5", False): "context: stride must be from 1 to context_length (64), got '1.5'",
    ("carried", False): "context: expected full, reset, carry, stride or stride:N, got 'carried'",
    ("carry:4", False): "context: expected full, reset, carry, stride or stride:N, got 'carry:4'",
    ("", False): "context: expected full, reset, carry, stride or stride:N, got ''",
    ("reset:4", True): "context: expected full, reset, carry, stride or stride:N, got 'reset:4'",
    ("reset", False): "context: 'reset' is not possible for data that is read as running text",
    ("carry", True): "context: 'carry' is not possible for data that is read as lines",
    ("stride:4", True): "context: 'stride:4' is not possible for data that is read as lines",
}


@pytest.mark.parametrize(("text", "lines"), REFUSED)
def test_invalid_context_policies_are_rejected(text, lines):
    assert error_message(UsageError, lambda: parsed(text, lines=lines)) == REFUSED[text, lines]


# ---- from nats to items


TEXT = "ab cd\n\né\nlast one"


def on_disk(folder: Any, *, lines: bool, text: str = TEXT) -> Corpus:
    path = folder / "text.txt"
    path.write_text(text, encoding="utf-8")
    tokenizer = train_tokenizer(TokenizerConfig(), iter([text]))
    return write_corpus(Source((path,), lines=lines), tokenizer, folder, "test")


def test_a_line_is_an_item_with_its_units(tmp_path):
    corpus = on_disk(tmp_path, lines=True)
    nats = np.arange(len(corpus.tokens), dtype=np.float32)
    actual = items(nats, corpus)
    assert actual.keys.tolist() == [0, 1, 2, 3]
    assert {name: values.tolist() for name, values in actual.statistics.items()} == {
        "nats": [0 + 1 + 2 + 3 + 4 + 5, 6, 7 + 8, sum(range(9, 18))],
        "tokens": [6, 1, 2, 9],  # characters and EOS
        "characters": [6, 1, 2, 9],  # the end of a line is a newline
        "bytes": [6, 1, 3, 9],
        "words": [3, 1, 2, 3],
    }
    assert all(values.dtype == np.float64 for values in actual.statistics.values())


def test_a_hundred_tokens_of_a_short_running_text_are_an_item(tmp_path):
    text = "ab cd ef\n" * 300  # 2700 characters
    corpus = on_disk(tmp_path, lines=False, text=text)
    nats = np.random.default_rng(0).random(2700).astype(np.float32)
    actual = items(nats, corpus).statistics
    assert actual["tokens"].tolist() == [100] * 27
    assert actual["nats"].tolist() == pytest.approx(nats.reshape(27, 100).sum(1).tolist(), rel=1e-5)
    assert {name: values.sum() for name, values in actual.items()} == pytest.approx(
        {"nats": nats.sum(dtype=np.float64), "tokens": 2700, "characters": 2700, "bytes": 2700, "words": 1200}
    )
    assert actual["characters"].tolist() == pytest.approx([100] * 27)


def test_one_token_is_one_item(tmp_path):
    corpus = on_disk(tmp_path, lines=False, text="a")
    actual = items(np.array([0.5], np.float32), corpus)
    assert {name: values.tolist() for name, values in actual.statistics.items()} == {
        "nats": [0.5], "tokens": [1], "characters": [1], "bytes": [1], "words": [1],
    }  # fmt: skip


# ---- the task


def test_loss_of_a_batch_ignores_padding():
    model = network("lstm")
    task = LanguageModelObjective(carry_state=False, valid=None, context=Context("reset", 8), device=CPU)
    tokens = torch.tensor([[1, 3, 4, 2, 0, 0], [1, 5, 6, 7, 8, 2]])
    keep = torch.arange(6) < torch.tensor([[4], [6]])
    loss = task.loss(model, Batch(tokens, keep), None)
    expected = nats_after(model, [1, 3, 4, 2]).sum() + nats_after(model, [1, 5, 6, 7, 8, 2]).sum()
    assert loss.total.item() == pytest.approx(expected, rel=1e-5)
    assert (loss.count.item(), loss.carry) == (3 + 5, None)
    loss.total.backward()
    assert model.embedding.weight.grad is not None
    assert task.validate(model) is None


def test_a_carried_loss_continues_from_its_state():
    model = network("gru")
    task = LanguageModelObjective(carry_state=True, valid=running(40), context=Context("carry", 8), device=CPU)
    text = torch.tensor([[1, 3, 4, 5, 6, 7, 8, 3, 4]])
    first = task.loss(model, Batch(text[:, :5], None), None)
    second = task.loss(model, Batch(text[:, 4:], None), first.carry)
    full = nats_after(model, text[0].tolist())
    assert [first.total.item(), second.total.item()] == pytest.approx([full[:4].sum(), full[4:].sum()], rel=1e-5)
    assert (first.count.item(), second.count.item()) == (4, 4)
    with torch.no_grad():
        scores = task.validate(model)
    assert scores == {"loss": pytest.approx(nats_after(model, [1, *running(40).tokens.tolist()]).mean(), rel=1e-5)}
    assert math.isfinite(scores["loss"])
