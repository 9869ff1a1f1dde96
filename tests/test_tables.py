"""The [model] and [train] tables: what is refused and in which words, and what is filled in."""

from __future__ import annotations

import pytest

from weft.config import parse_config, to_dict
from weft.errors import ConfigError
from weft.models.config import GPT, TRANSFORMER, LanguageModelConfig, StackConfig, default_heads
from weft.training.config import TrainConfig

STACK_OPTIONS = (
    "mixer, layers, width, context, nonlinearity, two_way, heads, head_size, qk_norm, positions, slopes, feed_forward, "
    "activation, connection, norm, norm_eps, dropout, attention_dropout"
)
ATTENTION = {"layer_type": "attention"}

STACK_MESSAGES = [
    ({"widht": 8}, f"model.widht: no such option; did you mean 'width'? known: {STACK_OPTIONS}"),
    (
        {"layer_type": "gur"},
        "model.layer_type: no such choice 'gur'; did you mean 'gru'? known: window, rnn, lstm, gru, gru-before, attention",
    ),
    (
        {"positions": "rotery"},
        "model.position_encoding: no such choice 'rotery'; did you mean 'rotary'? "
        "known: none, sinusoidal, learned, relative, alibi, rotary",
    ),
    (
        {"connection": "residul"},
        "model.skip_connection: no such choice 'residul'; did you mean 'residual'? "
        "known: plain, residual, post-norm, highway, dense",
    ),
    ({"norm": "rmss"}, "model.norm: no such choice 'rmss'; did you mean 'rms'? known: none, layer, rms"),
    (
        {"ffn_dim": 8, "activation": "gleu"},
        "model.activation: no such choice 'gleu'; did you mean 'gelu'? known: gelu, gelu-tanh, relu, squared-relu, gated",
    ),
    ({"layers": 0}, "model.num_layers: must be greater than or equal to 1, not 0"),
    ({"layers": 513}, "model.num_layers: must be less than or equal to 512, not 513"),
    ({"width": 0}, "model.hidden_size: must be greater than or equal to 1, not 0"),
    ({"width": 65537}, "model.hidden_size: must be less than or equal to 65536, not 65537"),
    ({"layer_type": "conv", "kernel_size": 0}, "model.kernel_size: must be greater than or equal to 1, not 0"),
    ({"layer_type": "conv", "kernel_size": 4097}, "model.kernel_size: must be less than or equal to 4096, not 4097"),
    ({**ATTENTION, "head_dim": 0}, "model.head_dim: must be greater than or equal to 1, not 0"),
    ({"ffn_dim": 0}, "model.ffn_dim: must be greater than or equal to 1, not 0"),
    ({"ffn_dim": "no"}, "model.ffn_dim: must be a valid integer, not 'no'"),
    ({"dropout": 1.0}, "model.dropout: must be less than 1, not 1.0"),
    ({"dropout": -0.1}, "model.dropout: must be greater than or equal to 0, not -0.1"),
    ({"heads": 4}, "model: heads=4, but mixer='lstm' has none"),
    ({"layer_type": "rnn", "head_dim": 4}, "model: head_size=4, but mixer='rnn' has none"),
    ({"layer_type": "gru", "qk_norm": False}, "model: qk_norm=False, but mixer='gru' has none"),
    ({"attention_dropout": 0.0}, "model: attention_dropout=0.0, but mixer='lstm' has none"),
    ({**ATTENTION, "attention_dropout": 1.0}, "model.attention_dropout: must be less than 1, not 1.0"),
    ({"context": 3}, "model: context=3, but mixer='lstm' has none"),
    ({**ATTENTION, "context": 3}, "model: context=3, but mixer='attention' has none"),
    (
        {"positions": "alibi"},
        "model: positions='alibi' stand inside attention; mixer='lstm' takes none, sinusoidal, learned",
    ),
    ({"connection": "post-norm"}, "model: connection='post-norm' needs norm='layer' or 'rms'"),
    (
        {"bidirectional": True, "hidden_size": 7},
        "model: two_way gives each side half the width: mixer='lstm', width=7 can't be halved so",
    ),
    ({"ffn_dim": "none", "activation": "relu"}, "model: activation='relu', but feed_forward='none' has none"),
    ({"activation": "relu"}, "model: activation='relu', but feed_forward='none' has none"),
    ({**ATTENTION, "heads": [2]}, "model: heads has 1 numbers for layers=2; give one number, or one a layer"),
    ({**ATTENTION, "heads": []}, "model: heads has 0 numbers for layers=2; give one number, or one a layer"),
    ({**ATTENTION, "heads": 0}, "model: heads=0 must be at least 1"),
    ({**ATTENTION, "heads": [2, -1]}, "model: heads=-1 must be at least 1"),
    ({**ATTENTION, "heads": 3}, "model: width=256 is not a multiple of heads=3; change one, or give head_size"),
    ({**ATTENTION, "heads": [4, 3]}, "model: width=256 is not a multiple of heads=3; change one, or give head_size"),
    (
        {**ATTENTION, "hidden_size": 6, "num_heads": 2, "position_encoding": "rotary"},
        "model: positions='rotary' turns pairs: the size of a head, 3, must be even",
    ),
    (
        {**ATTENTION, "head_dim": 5, "position_encoding": "rotary"},
        "model: positions='rotary' turns pairs: the size of a head, 5, must be even",
    ),
]
LANGUAGE_MESSAGES = [
    (
        {"zero_int": True},
        f"model.zero_int: no such option; did you mean 'zero_init'? known: {STACK_OPTIONS}, "
        "tied, embedding_dropout, cap, zero_init",
    ),
    (
        {"bidirectional": True},
        "model: two_way=true lets a position see the tokens it must predict; a language model reads one way",
    ),
    (
        {"tie_embeddings": True, "zero_init": True},
        "model: tied=true makes the embedding the output, which zero_init=true sets to zero; add zero_init=false",
    ),
    ({"cap": 0.0}, "model: cap=0.0 must be positive, or 'none'"),
    ({"cap": -2}, "model: cap=-2.0 must be positive, or 'none'"),
    ({"cap": "non"}, "model.logit_softcap: must be a valid number, not 'non'"),
]
TRAIN_MESSAGES = [
    ({"steps": 0}, "train.max_steps: must be greater than or equal to 1, not 0"),
    ({"tokens": 0}, "train.max_tokens: must be greater than or equal to 1, not 0"),
    ({"epochs": 0}, "train.max_epochs: must be greater than 0, not 0"),
    ({"minutes": -1.5}, "train.max_minutes: must be greater than 0, not -1.5"),
    ({"max_steps": 5, "max_epochs": 1.0}, "train: steps and epochs are given; a run has one budget"),
    ({"max_tokens": 5, "max_minutes": 1.0}, "train: tokens and minutes are given; a run has one budget"),
    ({"lr": 0.0}, "train.lr: must be greater than 0, not 0.0"),
    ({"lr": float("inf")}, "train.lr: must be a finite number, not inf"),
    ({"warmup": 1.0}, "train.warmup_ratio: must be less than 1, not 1.0"),
    ({"adam_beta2": 1.0}, "train.adam_beta2: must be less than 1, not 1.0"),
    ({"micro_batches": 0}, "train.micro_batches: must be greater than or equal to 1, not 0"),
    ({"optimizer": "adam"}, "train.optimizer: no such choice 'adam'; did you mean 'adamw'? known: adamw, muon, sgd"),
    (
        {"schedule": "cosin"},
        "train.lr_schedule: no such choice 'cosin'; did you mean 'cosine'? "
        "known: constant, linear, cosine, inverse-square-root, warmup-stable-decay",
    ),
    ({"device": "gpu"}, "train.device: no such choice 'gpu'; did you mean 'cuda'? known: auto, cpu, cuda"),
    (
        {"precision": "bf16"},
        "train.precision: no such choice 'bf16'; did you mean 'bfloat16'? known: auto, float32, bfloat16",
    ),
    ({"compile": "yes"}, "train.compile: must be a valid boolean, not 'yes'"),
    ({"muon_lr": 0.1}, "train: matrix_lr=0.1, but optimizer='adamw' has none"),
    ({"adam_beta2": 0.9, "optimizer": "sgd"}, "train: beta2=0.9, but optimizer='sgd' has none"),
    ({"muon_lr": 0.1, "optimizer": "sgd"}, "train: matrix_lr=0.1, but optimizer='sgd' has none"),
    ({"momentum": 0.5}, "train: momentum=0.5, but optimizer='adamw' has none"),
    ({"optimizer": "sgd", "momentum": 1.0}, "train.momentum: must be less than 1, not 1.0"),
    ({"clip": 0}, "train: clip=0.0 must be positive, or 'none'"),
    ({"clip": -1.5}, "train: clip=-1.5 must be positive, or 'none'"),
    ({"patience": 0}, "train: patience=0 must be at least 1, or 'none'"),
    ({"label_smoothing": 1.0}, "train.label_smoothing: must be less than 1, not 1.0"),
    ({"label_smoothing": -0.1}, "train.label_smoothing: must be greater than or equal to 0, not -0.1"),
]
EVERY_MESSAGE = [
    *((StackConfig, *pair) for pair in STACK_MESSAGES),
    *((LanguageModelConfig, *pair) for pair in LANGUAGE_MESSAGES),
    *((TrainConfig, *pair) for pair in TRAIN_MESSAGES),
]


@pytest.mark.parametrize(
    ("table", "values", "message"),
    EVERY_MESSAGE,
    ids=[f"{table.__name__}-{values}" for table, values, _ in EVERY_MESSAGE],
)
def test_what_is_refused_and_in_which_words(table, values, message):
    with pytest.raises(ConfigError) as caught:
        parse_config(table, values, at=message.split(":")[0].split(".")[0])
    assert str(caught.value) == message


GOOD = [
    {},
    {"layer_type": "conv"},
    {"layer_type": "conv", "bidirectional": True, "kernel_size": 5, "hidden_size": 7},
    {"bidirectional": True, "hidden_size": 6, "skip_connection": "dense"},
    {"layer_type": "gru-reset-before", "position_encoding": "learned", "ffn_dim": 16, "activation": "swiglu"},
    {"ffn_dim": 16},
    ATTENTION,
    {**ATTENTION, "ffn_dim": "none", "position_encoding": "sinusoidal"},
    {**ATTENTION, "activation": "relu", "skip_connection": "post-norm", "norm": "rmsnorm"},
    {**ATTENTION, "num_heads": [1, 4], "head_dim": 6, "position_encoding": "rotary", "qk_norm": True},
    {**ATTENTION, "num_heads": 5, "head_dim": 3, "position_encoding": "alibi"},
    {**ATTENTION, "bidirectional": True, "hidden_size": 7, "attention_dropout": 0.0, "dropout": 0.5},
]


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_a_filled_table_reads_back_equal_and_has_nothing_left_to_fill(values):
    filled = parse_config(StackConfig, values, at="model").with_defaults()
    assert filled.with_defaults() == filled
    assert parse_config(StackConfig, to_dict(filled), at="model") == filled
    assert {name: getattr(filled, name) for name in values} == values  # what was given stays


def test_what_is_filled_in_follows_from_the_mixer():
    lstm, window, attention = (StackConfig(layer_type=mixer).with_defaults() for mixer in ("lstm", "window", "attention"))
    assert (lstm.ffn_dim, lstm.activation, lstm.num_heads, lstm.qk_norm, lstm.kernel_size) == (
        "none",
        None,
        None,
        None,
        None,
    )
    assert (window.ffn_dim, window.kernel_size) == ("none", 3)
    assert (attention.ffn_dim, attention.activation, attention.num_heads, attention.qk_norm) == (
        1024,
        "gelu",
        8,
        False,
    )
    assert (lstm.attention_dropout, attention.attention_dropout) == (None, 0.0)
    assert StackConfig(layer_type="attention", dropout=0.25).with_defaults().attention_dropout == 0.25
    assert StackConfig(layer_type="attention", dropout=0.25, attention_dropout=0.0).with_defaults().attention_dropout == 0.0
    assert StackConfig(layer_type="attention", ffn_dim="none").with_defaults().activation is None
    assert StackConfig(ffn_dim=32).with_defaults().activation == "gelu"


def test_heads_are_about_32_wide_and_divide_the_width():
    assert {width: default_heads(width) for width in (1, 8, 48, 64, 96, 100, 131, 256, 320, 768)} == {
        1: 1,
        8: 1,
        48: 1,
        64: 2,
        96: 3,
        100: 2,
        131: 1,
        256: 8,
        320: 10,
        768: 24,
    }


@pytest.mark.parametrize("preset", [TRANSFORMER, GPT], ids=["textbook", "gpt"])
def test_presets_are_tables(preset):
    table = parse_config(LanguageModelConfig, preset, at="model").with_defaults()
    assert {name: getattr(table, name) for name in preset} == dict(preset)
    assert (table.num_layers, table.num_heads, table.ffn_dim) == (4, 8, 1024)


def test_a_run_has_one_budget_and_only_what_its_optimiser_reads():
    assert TrainConfig().with_defaults().max_steps == 2000
    assert TrainConfig(max_epochs=2.5).with_defaults().max_steps is None
    for optimizer, expected in (("adamw", (None, None)), ("sgd", (None, 0.9)), ("muon", (0.02, 0.95))):
        table = TrainConfig(optimizer=optimizer).with_defaults()
        assert (table.muon_lr, table.momentum) == expected
        assert table.with_defaults() == table == parse_config(TrainConfig, to_dict(table), at="train")
    for optimizer in ("sgd", "muon"):
        assert TrainConfig(optimizer=optimizer, momentum=0.0).with_defaults().momentum == 0.0
    assert TrainConfig(optimizer="muon", muon_lr=0.5).with_defaults().muon_lr == 0.5
