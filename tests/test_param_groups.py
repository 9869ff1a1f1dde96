"""Parameter groups: frozen parts, layer-wise learning rates and gradual unfreezing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from weft.config import parse_config
from weft.errors import ConfigError
from weft.nn.stack import layer_indices
from weft.tasks.registry import find_task
from weft.training.config import TrainConfig
from weft.training.optimizers import build_optimizers
from weft.training.param_groups import LrFactor, lr_factors

NAMES = [
    "encoder.embedder.embedding.weight",
    "encoder.stack.layers.0.mixer.weight",
    "encoder.stack.layers.1.mixer.weight",
    "encoder.stack.final_norm.weight",
    "head.scores.weight",
]
LAYERS = {"encoder.stack.layers.0": 0, "encoder.stack.layers.1": 1}


def table(**options: Any) -> TrainConfig:
    return parse_config(TrainConfig, options, prefix="train").with_defaults()


def test_by_default_every_parameter_has_the_same_lr():
    assert set(lr_factors(NAMES, LAYERS, table()).values()) == {LrFactor(1.0, 0.0)}


def test_layerwise_lr_decay_lowers_the_lr_by_layer():
    actual = [rate.factor for rate in lr_factors(NAMES, LAYERS, table(layerwise_lr_decay=0.5)).values()]
    assert actual == [0.125, 0.25, 0.5, 1.0, 1.0]


def two_layers(task: str, kind: str, **options: Any) -> nn.Module:
    """A small network of a preset, with two layers in encoder and decoder."""
    preset = find_task(task).presets[kind]
    small = {"hidden_size": 8, "num_layers": 2, **options}
    settings = SimpleNamespace(model=parse_config(preset.config_class, preset.merged(small), prefix="model").with_defaults())
    settings.data = SimpleNamespace(max_length=16, context_length=16, columns=lambda: ["text"], multilabel=False)
    tokens = SimpleNamespace(vocab_size=9, hash="ab")
    tokens.tokenizer, tokens.char_tokenizer, tokens.labels = tokens, tokens, SimpleNamespace(size=3, names=["A", "B", "C"])
    tokens.source = tokens.target = tokens
    return preset.estimator.network_task.build(settings, tokens)()  # type: ignore[attr-defined, no-any-return]


def factors(model: nn.Module) -> dict[str, float]:
    names = dict(model.named_parameters())
    return {name: rate.factor for name, rate in lr_factors(names, layer_indices(model), table(layerwise_lr_decay=0.5)).items()}


def shares(factors: dict[str, float], *starts: str) -> set[float]:
    return {factor for name, factor in factors.items() if name.startswith(starts)}


@pytest.mark.parametrize(
    ("task", "kind", "sizes"), [("masked-lm", "bert", (2, 2)), ("qa", "bert", (2, 2)), ("classification", "lstm", (1, 1))]
)
def test_attention_and_feed_forward_of_a_layer_have_the_same_lr(task, kind, sizes):
    model = two_layers(task, kind)
    actual = factors(model)
    assert shares(actual, "encoder.embedder", "encoder.stack.positions", "encoder.stack.input_proj") == {1 / 8}
    first, second = (
        [f"encoder.stack.layers.{index}." for index in parts]
        for parts in (range(sizes[0]), range(sizes[0], sizes[0] + sizes[1]))
    )
    assert shares(actual, *first) == {1 / 4}
    assert shares(actual, *second) == {1 / 2}
    assert shares(actual, "head.bias", "head.ends", "head.scores", "transform", "encoder.stack.final_norm") == {1.0}
    known = ("encoder.embedder", "encoder.stack", "head", "transform")
    assert all(name.startswith(known) for name in actual)


def test_cross_attention_has_the_lr_of_its_decoder_layer():
    actual = factors(two_layers("seq2seq", "transformer"))
    assert shares(actual, *(f"decoder.stack.layers.{index}." for index in range(3))) == {1 / 4}
    assert shares(actual, *(f"decoder.stack.layers.{index}." for index in range(3, 6))) == {1 / 2}
    assert shares(actual, *(f"encoder.stack.layers.{index}." for index in range(2))) == {1 / 4}
    assert shares(actual, "encoder.embedder", "decoder.embedder") == {1 / 8}
    assert shares(actual, "head.head") == {1.0}


def test_recurrent_decoder_layers_count_and_the_attention_output_is_above_them():
    actual = factors(two_layers("seq2seq", "lstm"))
    assert shares(actual, "decoder.stack.layers.0.mixer.layers.0.") == {1 / 4}
    assert shares(actual, "decoder.stack.layers.0.mixer.layers.1.") == {1 / 2}
    assert shares(actual, "decoder.stack.layers.1.", "head") == {1.0}
    fed = factors(two_layers("seq2seq", "luong"))
    assert shares(fed, "decoder.stack.layers.0.mixer.inner.layers.0.") == {1 / 4}
    assert shares(fed, "decoder.stack.layers.0.mixer.attention.") == {1.0}


def test_character_encoder_has_the_lr_of_embeddings():
    actual = factors(two_layers("tagging", "lstm"))
    assert any(".char_encoder." in name for name in actual)
    assert shares(actual, "encoder.embedder") == {1 / 8}


def test_gradual_unfreezing_goes_from_top_to_bottom_at_equal_intervals():
    actual = lr_factors(NAMES, LAYERS, table(gradual_unfreezing=0.6))
    assert [rate.start for rate in actual.values()] == pytest.approx([0.6, 0.4, 0.2, 0.0, 0.0])
    second = actual[NAMES[2]]
    assert (second.at(0.1), second.at(0.2), second.at(1.0)) == (0.0, 1.0, 1.0)


def test_the_most_specific_name_wins_and_zero_freezes():
    factors = {"encoder": 0.1, "encoder.stack.layers.1": 2.0, "head": 0.0}
    actual = [rate.factor for rate in lr_factors(NAMES, LAYERS, table(lr_multipliers=factors)).values()]
    assert actual == [0.1, 0.1, 2.0, 0.1, 0.0]


def test_unknown_parts_are_rejected_with_a_suggestion():
    with pytest.raises(ConfigError) as caught:
        lr_factors(NAMES, LAYERS, table(lr_multipliers={"encoder.stak": 0.1}))
    assert str(caught.value).startswith(
        "train.lr_multipliers: no weight name starts with 'encoder.stak'; did you mean 'encoder.stack'?"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr_multipliers": {"head": -1.0}}, "train.lr_multipliers.head: must be at least 0, got -1"),
        ({"init_strict": False}, "train.init_strict: not used without init_from; set init_from or remove init_strict"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ConfigError) as caught:
        table(**options)
    assert str(caught.value) == message


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedder, self.head = nn.Linear(3, 3), nn.Linear(3, 2)


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_a_frozen_part_has_no_gradient_and_does_not_change(optimizer):
    model = Small()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    steps = build_optimizers(
        model, {"embedder.weight", "head.weight"}, table(optimizer=optimizer, lr_multipliers={"embedder": 0.0})
    )
    model.head(model.embedder(torch.ones(4, 3))).square().sum().backward()
    assert model.embedder.weight.grad is None
    steps.step(1.0)
    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {"head.weight", "head.bias"}
    assert set(steps.names.values()) == {"head.weight", "head.bias"}


def test_a_part_changes_only_after_it_is_unfrozen():
    model = Small()
    steps = build_optimizers(model, set(), table(gradual_unfreezing=0.5))
    for progress, expected in ((0.1, {"head.weight", "head.bias"}), (0.9, set(dict(model.named_parameters())))):
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        model.head(model.embedder(torch.ones(4, 3))).square().sum().backward()
        steps.step(1.0, progress)
        steps.zero_grad()
        assert {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])} == expected


def test_a_fully_frozen_model_is_rejected():
    with pytest.raises(ConfigError) as caught:
        build_optimizers(Small(), set(), table(lr_multipliers={"embedder": 0.0, "head": 0.0}))
    assert str(caught.value) == "train.lr_multipliers: all weights are frozen; leave some above 0"
