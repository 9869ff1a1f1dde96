"""Recomputed attention weights times V equal the output of the fused kernel: every layer, head, position encoding and mask,
and with a key-value cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from toy_models import enlarge_weights
from toy_seq2seq import ATTENTION, PLACEMENTS, large_weight_model, sources, targets

from weft.decode.beam import BeamOptions, beam_search
from weft.explain.attention import Site, select_head, sites
from weft.explain.hooks import Activation, attention_weights, record_activations
from weft.models.classifier import classifier
from weft.models.config import ATTENTION_ENCODINGS, INPUT_ENCODINGS, LanguageModelConfig
from weft.models.encoder import EncoderInput
from weft.models.encoder_config import ClassifierConfig
from weft.models.lm import LanguageModel, language_model
from weft.nn.choices import ATTENTION_SCORES

MAX_POSITIONS = (*INPUT_ENCODINGS, *ATTENTION_ENCODINGS)
LENGTH, WORDS = 11, 13
every_position = pytest.mark.parametrize("positions", MAX_POSITIONS)


def check(seen: list[Activation], calls: int) -> None:
    """Each call, and each head of it alone."""
    assert len(seen) == calls
    for call in seen:
        whole, (_, _, v, *_) = attention_weights(call), call.inputs
        assert (whole @ v - call.output).abs().max() < 1e-5
        torch.testing.assert_close(whole.sum(-1), torch.ones_like(whole.sum(-1)))
        for head in range(whole.size(1)):
            alone = attention_weights(select_head(call, head + 1))
            assert (alone @ v[:, head : head + 1] - call.output[:, head : head + 1]).abs().max() < 1e-5


@cache
def language(positions: str, window: int = 64) -> LanguageModel:
    torch.manual_seed(0)
    num_heads = 2 if positions == "relative-bias" else [2, 4, 1]  # layers share the bias of each head
    table = LanguageModelConfig(
        layer_type="attention", hidden_size=16, num_layers=3, num_heads=num_heads, position_encoding=positions,
        skip_connection="residual", norm="rmsnorm", qk_norm=True, head_dim=4,
    )  # fmt: skip
    return enlarge_weights(language_model(table.with_defaults(), vocab_size=WORDS, context_length=window, vocabulary="")).eval()


def text(rows: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(WORDS, (rows, length), generator=torch.Generator().manual_seed(1))


def attends(model: torch.nn.Module, part: str | None = None) -> list[str]:
    return [site.name for site in sites(model) if part in (None, site.component)]


@every_position
@torch.no_grad()
def test_causal_attention(positions):
    model = language(positions)
    with record_activations(model, attends(model)) as seen:
        model(text())
    check(seen, 3)
    assert [call.inputs[4] for call in seen] == [
        positions not in ("relative", "relative-bias", "alibi")
    ] * 3  # both ways to be causal


@every_position
@torch.no_grad()
def test_padding(positions):
    model = language(positions)
    keep = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4]])
    with record_activations(model, attends(model)) as seen:
        model(text(), None, keep)
    check(seen, 3)
    assert (attention_weights(seen[0])[1, :, :, 4:] == 0).all()


@every_position
@torch.no_grad()
def test_a_limited_context_and_decoding_with_a_sliding_cache(positions):
    if positions == "learned":
        pytest.skip("learned positions end where the window does")
    model, tokens = language(positions, window=3), text()
    with record_activations(model, attends(model)) as seen:
        _, state = model.start(tokens[:, :5])
        for index in range(5, LENGTH):
            _, state = model.step(tokens[:, index], state)
        model(tokens)
    check(seen, 3 * (2 + LENGTH - 5))
    assert all(((attention_weights(call) > 0).sum(-1) <= 3).all() for call in seen)


@every_position
@torch.no_grad()
def test_bidirectional_attention(positions):
    torch.manual_seed(0)
    table = ClassifierConfig(
        layer_type="attention", hidden_size=16, num_layers=2, num_heads=4, position_encoding=positions, pooling="attention"
    )
    model = classifier(
        table.with_defaults(), vocab_size=WORDS, num_labels=3, max_positions=32, segments=False, multilabel=False
    ).eval()
    keep = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4]])
    with record_activations(model, attends(model, "encoder")) as seen, record_activations(model, "pooling") as pooled:
        model(EncoderInput(text(), keep))
        model(EncoderInput(text(), torch.ones_like(keep)))
    check(seen, 4)
    y, real = pooled[0].inputs
    torch.testing.assert_close(
        (attention_weights(pooled[0])[:, None] @ y.masked_fill(~real[..., None], 0.0))[:, 0], pooled[0].output
    )


LOOKING: dict[str, dict[str, Any]] = {
    **{f"{score}-{name}": {"attention": score, **place} for score in ATTENTION_SCORES for name, place in PLACEMENTS.items()},
    **{
        f"transformer-{kind}": {**ATTENTION, "num_layers": 2, "num_heads": 4, "position_encoding": kind}
        for kind in MAX_POSITIONS
    },
}


@pytest.mark.parametrize("name", LOOKING)
@torch.no_grad()
def test_cross_attention_in_one_pass_and_in_beam_search(name):
    model = large_weight_model(**LOOKING[name])
    names = attends(model)
    with record_activations(model, names) as seen:
        state = model.encode(*sources(5, 3))
        model(targets(2, 6), state)
    whole = len(seen)
    check(seen, whole)
    with record_activations(model, names) as seen:
        begin = torch.ones(2, 1, dtype=torch.long)
        beam_search(model, begin, options=BeamOptions(beam_size=3, max_new_tokens=4, eos_id=2), state=state)
    assert len(seen) >= len(attends(model, "cross"))
    check(seen, len(seen))


def test_the_parts_of_a_model_and_their_layers_from_the_bottom_up():
    model = large_weight_model(**{**ATTENTION, "num_layers": 2})
    assert sites(model) == [
        Site("cross", 1, "decoder.stack.layers.1.mixer.attend"),
        Site("cross", 2, "decoder.stack.layers.4.mixer.attend"),
        Site("encoder", 1, "encoder.stack.layers.0.mixer.attend"),
        Site("encoder", 2, "encoder.stack.layers.2.mixer.attend"),
        Site("decoder", 1, "decoder.stack.layers.0.mixer.attend"),
        Site("decoder", 2, "decoder.stack.layers.3.mixer.attend"),
    ]
    narrow = large_weight_model(**{**ATTENTION, "num_layers": 1, "attention": "none"})
    assert [site.component for site in sites(narrow)] == ["encoder", "decoder"]
