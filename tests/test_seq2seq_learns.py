"""Toy tasks that every encoder-decoder must learn: copy and reverse strings of 3 to 6 symbols of an alphabet of 8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from toy_seq2seq import ATTENTION_OPTIONS, BOS, EOS, seq2seq_model

from weft.decode.predict import PredictionRequest, predict
from weft.decode.predict_options import PredictionConfig
from weft.models.seq2seq import EncoderDecoder
from weft.nn.mixers import MIXERS, recurrent_mixers

FIRST, LAST = 3, 11  # symbols
RATE, ROWS, STEPS, CHECK = 8e-3, 64, 800, 25


class Pairs(NamedTuple):
    source: Tensor  # (B, S) symbols, </s>, padding
    keep: Tensor
    tokens: Tensor  # (B, S + 1) <s>, symbols, </s>, padding
    target_keep: Tensor


def draw(
    task: str, rows: int, generator: torch.Generator, *, max_length: int = 6, symbols: tuple[int, int] = (FIRST, LAST)
) -> Pairs:
    """Random strings of `max_length` / 2 to `max_length` symbols, and their targets."""
    lengths = torch.randint(max_length // 2, max_length + 1, (rows, 1), generator=generator)
    index = torch.arange(max_length + 1)
    drawn = torch.randint(*symbols, (rows, max_length + 1), generator=generator)
    source = torch.where(index < lengths, drawn, torch.where(index == lengths, EOS, 0))
    target = source.gather(1, torch.where(index < lengths, lengths - 1 - index, index)) if task == "reverse" else source
    first = torch.full((rows, 1), BOS)
    keep = index <= lengths
    return Pairs(source, keep, torch.cat([first, target], 1), torch.cat([first > 0, keep], 1))


class Symbols:
    """Decodes tokens to text."""

    unk_id, bos_id, eos_id = 0, BOS, EOS

    def decode(self, ids: list[int]) -> str:
        return " ".join(str(token) for token in ids if token != EOS)


def exact(model: EncoderDecoder, pairs: Pairs, **options: Any) -> float:
    """Fraction of sources whose target is generated exactly."""

    def encode(rows: Any) -> Any:
        return model.encode(pairs.source[rows], pairs.keep[rows])

    lengths = pairs.keep.sum(1).tolist()
    request = PredictionRequest(model, Symbols(), encode, lengths, [[]] * len(lengths), torch.device("cpu"))  # type: ignore[arg-type]
    model.eval()
    actual = predict(request, PredictionConfig(**{"beam_size": 1, "max_new_tokens": pairs.source.size(1), **options}))
    model.train()
    expected = [tokens[keep][1:].tolist() for tokens, keep in zip(pairs.tokens, pairs.target_keep, strict=True)]
    return sum(best[0].token_ids == tokens for best, tokens in zip(actual, expected, strict=True)) / len(expected)


def learn(model: EncoderDecoder, draw: Callable[[int, torch.Generator], Pairs], *, smoothing: float = 0.0) -> float:
    """Train until new strings are correct or for STEPS steps; returns the exact match on 300 others."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.optim.Adam(model.train().parameters(), lr=RATE, betas=(0.9, 0.98))
    for step in range(1, STEPS + 1):
        pairs = draw(ROWS, generator)
        state = model.encode(pairs.source, pairs.keep)
        nats, _ = model.loss(pairs.tokens[:, :-1], pairs.tokens[:, 1:], state, smoothing)
        nats[pairs.target_keep[:, 1:]].mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        weights.param_groups[0]["lr"] = RATE * min(1.0, step / 50) * (1.0 - 0.9 * step / STEPS)
        weights.step()
        weights.zero_grad()
        if step % CHECK == 0 and step >= 3 * CHECK and exact(model, draw(300, generator)) >= 0.99:
            break
    return exact(model, draw(300, generator))


def learned(task: str, *, max_length: int = 6, **options: Any) -> float:
    return learn(
        seq2seq_model(**{"hidden_size": 32, **options}),
        lambda rows, generator: draw(task, rows, generator, max_length=max_length),
    )


# ---- with attention


def side(mixer: str) -> dict[str, Any]:
    """A stack of this mixer with position information, which convolution and attention need."""
    if mixer == "attention":
        return {
            "layer_type": mixer,
            "num_heads": 2,
            "position_encoding": "sinusoidal",
            "skip_connection": "residual",
            "norm": "layernorm",
        }
    return {"layer_type": mixer, "position_encoding": "sinusoidal" if mixer == "conv" else "none"}


def crossed(encoder: str, decoder: str, attended: str) -> dict[str, Any]:
    looks = {"attention": "scaled-dot"} if decoder == "attention" else ATTENTION_OPTIONS[attended]
    return {"encoder": side(encoder), "decoder": side(decoder), **looks}


LOOKING = [name for name in ATTENTION_OPTIONS if name not in ("none", "every-step")]
CROSSED = [(encoder, decoder, name) for encoder in MIXERS for decoder in recurrent_mixers() for name in LOOKING]
CROSSED += [(encoder, "attention", "scaled-dot") for encoder in MIXERS]
# alternating so that every attention score and position gets both tasks
TASKS = [(*parts, ("copy", "reverse")[(number + number // len(LOOKING)) % 2]) for number, parts in enumerate(CROSSED)]
FEW = [
    ("lstm", "lstm", "multiplicative-feeding", "reverse"),
    ("conv", "gru", "additive-after", "reverse"),
    ("attention", "attention", "scaled-dot", "copy"),
]


@pytest.mark.parametrize(("encoder", "decoder", "attended", "task"), FEW)
def test_a_toy_task_is_learned(encoder, decoder, attended, task):
    assert learned(task, **crossed(encoder, decoder, attended)) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "decoder", "attended", "task"), TASKS)
def test_a_toy_task_is_learned_by_every_architecture(encoder, decoder, attended, task):
    assert learned(task, **crossed(encoder, decoder, attended)) >= 0.95


@pytest.mark.slow
def test_beam_search_and_label_smoothing_learn_it_too():
    model = seq2seq_model(hidden_size=32, layer_type="gru", attention="dot")
    assert learn(model, lambda rows, generator: draw("reverse", rows, generator), smoothing=0.1) >= 0.95
    assert exact(model, draw("reverse", 100, torch.Generator().manual_seed(7)), beam_size=4) >= 0.95


# ---- without


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"layer_type": "lstm"}, {"layer_type": "gru", "feed_context": True}], ids=["lstm", "gru-feed-context"]
)
def test_short_strings_pass_the_bottleneck(options):
    assert learned("copy", max_length=3, **options) >= 0.95


BOTTLENECKS = [(decoder, name) for decoder in recurrent_mixers() for name in ("none", "every-step")]


@pytest.mark.slow
@pytest.mark.parametrize(("decoder", "attended"), [*BOTTLENECKS, ("attention", "none")])
@pytest.mark.parametrize("encoder", MIXERS)
def test_short_strings_pass_every_bottleneck(encoder, decoder, attended):
    options = {**crossed(encoder, decoder, attended), **ATTENTION_OPTIONS[attended]}
    assert learned("copy", max_length=3, **options) >= 0.95


# ---- copying


def with_strangers(rows: int, generator: torch.Generator, known_words: int, words: int) -> Pairs:
    """Strings with one symbol that does not occur in training."""
    pairs = draw("copy", rows, generator, symbols=(FIRST, known_words))
    index = (torch.rand(rows, generator=generator) * (pairs.keep.sum(1) - 1)).long()[:, None]
    stranger = torch.randint(known_words, words, (rows, 1), generator=generator)
    return pairs._replace(source=pairs.source.scatter(1, index, stranger), tokens=pairs.tokens.scatter(1, index + 1, stranger))


@pytest.mark.parametrize("options", [{"layer_type": "lstm", "attention": "multiplicative"}], ids=["lstm"])
def test_copy_mechanism_copies_unseen_tokens(options):
    known_words, words = 203, 303
    model = seq2seq_model(hidden_size=48, vocab_size=words, copy_mechanism=True, **options)
    assert learn(model, lambda rows, generator: draw("copy", rows, generator, symbols=(FIRST, known_words))) >= 0.95
    assert exact(model, with_strangers(300, torch.Generator().manual_seed(5), known_words, words)) >= 0.9


@pytest.mark.slow
def test_without_copy_mechanism_unseen_tokens_are_never_generated():
    known_words, words = 203, 303
    model = seq2seq_model(hidden_size=48, vocab_size=words, layer_type="lstm", attention="multiplicative")
    assert learn(model, lambda rows, generator: draw("copy", rows, generator, symbols=(FIRST, known_words))) >= 0.95
    assert exact(model, with_strangers(300, torch.Generator().manual_seed(5), known_words, words)) == 0
