"""Character encoders run once per distinct word, long words in their own batch; word dropout keeps special tokens."""

from __future__ import annotations

import pytest
import torch

from weft.models import build
from weft.models.encoder import EncoderInput, WordDropout, text_encoder
from weft.models.encoder_config import CharEncoderConfig
from weft.models.tagger import CharEncoder, unique_rows
from weft.nn.recurrent import GRU, LSTM, RNN


def letters_of(words: list[list[list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of words, each its letters, as a padded batch; a row that is shorter has words of nothing."""
    width, longest = max(map(len, words)), max(len(word) for row in words for word in row)
    letters = torch.zeros(len(words), width, longest, dtype=torch.long)
    keep = torch.zeros(letters.shape, dtype=torch.bool)
    for at, row in enumerate(words):
        for place, word in enumerate(row):
            letters[at, place, : len(word)], keep[at, place, : len(word)] = torch.tensor(word), True
    keep[..., 0] = True
    return letters, keep


def spelling(pool: str, mixer: str = "lstm") -> CharEncoder:
    torch.manual_seed(0)
    side = CharEncoderConfig(
        layer_type=mixer, hidden_size=8, embedding_dim=4, pooling=pool, kernel_size=3 if mixer == "conv" else None
    ).with_defaults()
    return CharEncoder(text_encoder(side, vocab_size=12, max_positions=50), build.build_pooling(side.pooling, side))


WORDS = [
    [[3, 4, 2], [5, 2], [3, 4, 2], [7, 8, 9, 10, 11, 3, 4, 5, 6, 2]],
    [[5, 2], [3, 2]],
    [[0, 2], [3, 4, 2], [4, 3, 2]],
]


@pytest.mark.parametrize("pool", ["max", "last", "mean"])
@pytest.mark.parametrize("mixer", ["lstm", "conv"])
def test_each_distinct_word_is_encoded_once_and_independently(pool, mixer):
    model, (letters, keep) = spelling(pool, mixer), letters_of(WORDS)
    found = model(letters, keep)
    seen = []
    handle = model.encoder.register_forward_hook(lambda part, given, output: seen.append(given[0].tokens.shape))
    model(letters, keep)
    handle.remove()
    assert sum(rows for rows, _ in seen) == 7  # six words, and that of nothing
    assert min(width for _, width in seen) < letters.size(2) == max(width for _, width in seen)
    for at, row in enumerate(WORDS):
        for place, word in enumerate(row):
            alone = model.pooling(
                *model.encoder(EncoderInput(torch.tensor([word]), torch.ones(1, len(word), dtype=torch.bool)))
            )
            torch.testing.assert_close(found[at, place], alone[0])


def test_gradients_equal_those_of_encoding_every_word():
    model, (letters, keep) = spelling("max"), letters_of(WORDS)
    whole = model.pooling(*model.encoder(EncoderInput(letters.flatten(0, 1), keep.flatten(0, 1))))
    weight = torch.randn_like(whole)
    slow = torch.autograd.grad((whole * weight).sum(), list(model.parameters()))
    fast = torch.autograd.grad((model(letters, keep).flatten(0, 1) * weight).sum(), list(model.parameters()))
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other)


def test_different_rows_are_distinguished():
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 100, (5000, 30), generator=generator)
    rows = torch.cat([rows, rows.flip(0), rows.flip(1)])
    places, where = unique_rows(rows)
    assert len(places) == len(torch.unique(rows, dim=0))
    assert torch.equal(rows[places][where], rows)


def test_word_dropout_keeps_special_tokens():
    forget = WordDropout(0.25)
    tokens = torch.randint(0, 50, (200, 100), generator=torch.Generator().manual_seed(2))
    torch.manual_seed(3)
    found = forget(tokens)
    changed = found != tokens
    assert torch.equal(found[tokens < 3], tokens[tokens < 3]) and (found[changed] == 0).all()
    assert 0.24 < changed.sum().item() / (tokens >= 3).sum().item() < 0.26
    assert torch.equal(forget.eval()(tokens), tokens) and torch.equal(WordDropout(0.0)(tokens), tokens)


@pytest.mark.parametrize("mixer", [RNN, LSTM, GRU])
def test_recurrent_layers_run_in_float32_under_autocast(mixer):
    torch.manual_seed(0)
    layer, x, keep = mixer(6), torch.randn(2, 5, 6), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    plain, _ = layer(x, None, keep)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = layer(x.bfloat16(), None, keep)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, plain, atol=0.02, rtol=0.02)  # x was rounded, and nothing else
    with torch.autocast("cpu", torch.bfloat16):
        again, _ = layer(x, None, keep)
    assert torch.equal(again, plain)
