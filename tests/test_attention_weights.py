"""Cross-attention weights of decoders: they sum to 1 and equal those of step-by-step decoding, for every attention type."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from toy_seq2seq import ATTENTION, PLACEMENTS, large_weight_model, sources, targets

from weft.errors import UsageError
from weft.explain.alignment import Alignment, cross_attention_modules, source_attention_weights
from weft.explain.hooks import attention_weights, record_activations
from weft.models.seq2seq import EncoderDecoder
from weft.nn.choices import ATTENTION_SCORES

LOOKING: dict[str, dict[str, Any]] = {
    **{f"{score}-{name}": {"attention": score, **place} for score in ATTENTION_SCORES for name, place in PLACEMENTS.items()},
    "transformer": {**ATTENTION, "num_layers": 3, "position_encoding": "rotary"},
    "heads": {**ATTENTION, "num_layers": 2, "num_heads": [1, 4], "head_dim": 4},
    "copying": {"layer_type": "gru", "attention": "dot", "copy_mechanism": True},
}
every = pytest.mark.parametrize("name", LOOKING)
LENGTHS, TARGETS = (5, 3), (4, 6)


@cache
def model_of(name: str) -> EncoderDecoder:
    return large_weight_model(**LOOKING[name])


def rows() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    return sources(*LENGTHS), (targets(2, 6), torch.arange(6) < torch.tensor(TARGETS)[:, None])


@every
def test_weights_are_distributions_over_the_source(name):
    source, target = rows()
    found = source_attention_weights(model_of(name), source, target)
    assert [weights.shape for weights in found] == [(3, 5), (5, 3)]
    for weights in found:
        np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-5)
        assert (weights >= 0).all() and weights.std() > 1e-3


@every
@torch.no_grad()
def test_one_pass_equals_step_by_step_decoding(name):
    """What a beam's winner looked at while it was searched is what it looks at when it is read again."""
    model, (source, target) = model_of(name), rows()
    found = source_attention_weights(model, source, target)
    names = cross_attention_modules(model)
    for row, (width, length) in enumerate(zip(LENGTHS, TARGETS, strict=True)):
        state = model.encode(source[0][row : row + 1, :width], source[1][row : row + 1, :width])
        for at in range(length - 1):
            with record_activations(model, names) as seen:
                _, state = model.step(target[0][row : row + 1, at], state)
            assert [call.name for call in seen] == names
            mean = torch.stack([attention_weights(call)[0].mean(0) for call in seen]).mean(0)[0]
            np.testing.assert_allclose(found[row][at], mean.numpy(), atol=1e-5)


def test_one_layer_and_one_head_can_be_selected():
    model, (source, target) = model_of("transformer"), rows()
    every_layer = [
        [source_attention_weights(model, source, target, layer=layer, head=head)[0] for head in (1, 2)] for layer in (1, 2, 3)
    ]
    np.testing.assert_allclose(source_attention_weights(model, source, target)[0], np.mean(every_layer, axis=(0, 1)), atol=1e-6)
    np.testing.assert_allclose(
        source_attention_weights(model, source, target, layer=2)[0], np.mean(every_layer[1], axis=0), atol=1e-6
    )
    second = np.mean([heads[1] for heads in every_layer], axis=0)
    np.testing.assert_allclose(source_attention_weights(model, source, target, head=2)[0], second, atol=1e-6)
    assert np.abs(every_layer[0][0] - every_layer[2][1]).max() > 0.01


def test_layers_may_have_different_numbers_of_heads():
    model, (source, target) = model_of("heads"), rows()
    heads = [source_attention_weights(model, source, target, layer=2, head=head)[0] for head in (1, 2, 3, 4)]
    above, below = (source_attention_weights(model, source, target, layer=layer)[0] for layer in (2, 1))
    np.testing.assert_allclose(above, np.mean(heads, axis=0), atol=1e-6)
    np.testing.assert_allclose(source_attention_weights(model, source, target)[0], (below + above) / 2, atol=1e-6)
    assert np.abs(heads[2] - heads[0]).max() > 0.01


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("transformer", {"layer": 4}, "layer: must be from 1 to 3, got 4"),
        ("transformer", {"layer": 0}, "layer: must be from 1 to 3, got 0"),
        ("transformer", {"head": 3}, "head: must be from 1 to 2, got 3"),
        ("dot-after", {"head": 2}, "head: must be from 1 to 1, got 2"),
        # a head of all layers must be there in each of them
        ("heads", {"head": 2}, "head: must be from 1 to 1, got 2"),
        ("heads", {"layer": 2, "head": 5}, "head: must be from 1 to 4, got 5"),
    ],
)
def test_a_layer_or_head_that_does_not_exist_is_refused(name, chosen, message):
    with pytest.raises(UsageError) as caught:
        source_attention_weights(model_of(name), *rows(), **chosen)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "options", [{}, {"layer_type": "gru", "feed_context": True}, {**ATTENTION, "attention": "none"}], ids=str
)
def test_a_model_without_cross_attention_has_no_alignment(options):
    model = large_weight_model(**options)
    assert cross_attention_modules(model) == []
    with pytest.raises(UsageError) as caught:
        source_attention_weights(model, *rows())
    assert str(caught.value) == ("alignments: the model has no cross-attention; train one with model.attention = 'additive'")


def test_cross_attention_layers_are_listed_from_the_bottom_up():
    assert cross_attention_modules(model_of("transformer")) == [f"decoder.stack.layers.{at}.mixer.attend" for at in (1, 4, 7)]
    assert cross_attention_modules(model_of("dot-after")) == ["decoder.stack.layers.1.mixer.attention.attend"]
    assert cross_attention_modules(model_of("dot-before")) == ["decoder.stack.layers.0.mixer.attention.attention.attend"]
    assert cross_attention_modules(model_of("dot-feeding")) == [
        "decoder.stack.layers.0.mixer.attention.output.attention.attend"
    ]


def test_an_alignment_as_json_has_four_decimals():
    one = Alignment(["a", "</s>"], ["A"], np.array([[0.123456, 0.876544]]))
    assert one.to_json() == {"source": ["a", "</s>"], "target": ["A"], "weights": [[0.1235, 0.8765]]}
