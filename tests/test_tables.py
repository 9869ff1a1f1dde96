"""The [model] and [train] tables: what is refused and in which words, and what is filled in."""

from __future__ import annotations

import pytest

from weft.config import plain, read_table
from weft.errors import ConfigError
from weft.models.tables import GPT, TEXTBOOK, LanguageTable, StackTable, default_heads
from weft.train.tables import TrainTable

STACK_OPTIONS = (
    "mixer, layers, width, context, nonlinearity, two_way, heads, head_size, qk_norm, positions, slopes, feed_forward, "
    "activation, connection, norm, norm_eps, dropout, attention_dropout"
)
ATTENTION = {"mixer": "attention"}

STACK_MESSAGES = [
    ({"widht": 8}, f"model.widht: no such option; did you mean 'width'? known: {STACK_OPTIONS}"),
    (
        {"mixer": "gur"},
        "model.mixer: no such choice 'gur'; did you mean 'gru'? known: window, rnn, lstm, gru, gru-before, attention",
    ),
    (
        {"positions": "rotery"},
        "model.positions: no such choice 'rotery'; did you mean 'rotary'? "
        "known: none, sinusoidal, learned, relative, alibi, rotary",
    ),
    (
        {"connection": "residul"},
        "model.connection: no such choice 'residul'; did you mean 'residual'? "
        "known: plain, residual, post-norm, highway, dense",
    ),
    ({"norm": "rmss"}, "model.norm: no such choice 'rmss'; did you mean 'rms'? known: none, layer, rms"),
    (
        {"feed_forward": 8, "activation": "gleu"},
        "model.activation: no such choice 'gleu'; did you mean 'gelu'? known: gelu, gelu-tanh, relu, squared-relu, gated",
    ),
    ({"layers": 0}, "model.layers: must be greater than or equal to 1, not 0"),
    ({"layers": 513}, "model.layers: must be less than or equal to 512, not 513"),
    ({"width": 0}, "model.width: must be greater than or equal to 1, not 0"),
    ({"width": 65537}, "model.width: must be less than or equal to 65536, not 65537"),
    ({"mixer": "window", "context": 0}, "model.context: must be greater than or equal to 1, not 0"),
    ({"mixer": "window", "context": 4097}, "model.context: must be less than or equal to 4096, not 4097"),
    ({**ATTENTION, "head_size": 0}, "model.head_size: must be greater than or equal to 1, not 0"),
    ({"feed_forward": 0}, "model.feed_forward: must be greater than or equal to 1, not 0"),
    ({"feed_forward": "no"}, "model.feed_forward: must be a valid integer, not 'no'"),
    ({"dropout": 1.0}, "model.dropout: must be less than 1, not 1.0"),
    ({"dropout": -0.1}, "model.dropout: must be greater than or equal to 0, not -0.1"),
    ({"heads": 4}, "model: heads=4, but mixer='lstm' has none"),
    ({"mixer": "rnn", "head_size": 4}, "model: head_size=4, but mixer='rnn' has none"),
    ({"mixer": "gru", "qk_norm": False}, "model: qk_norm=False, but mixer='gru' has none"),
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
        {"two_way": True, "width": 7},
        "model: two_way gives each side half the width: mixer='lstm', width=7 can't be halved so",
    ),
    ({"feed_forward": "none", "activation": "relu"}, "model: activation='relu', but feed_forward='none' has none"),
    ({"activation": "relu"}, "model: activation='relu', but feed_forward='none' has none"),
    ({**ATTENTION, "heads": [2]}, "model: heads has 1 numbers for layers=2; give one number, or one a layer"),
    ({**ATTENTION, "heads": []}, "model: heads has 0 numbers for layers=2; give one number, or one a layer"),
    ({**ATTENTION, "heads": 0}, "model: heads=0 must be at least 1"),
    ({**ATTENTION, "heads": [2, -1]}, "model: heads=-1 must be at least 1"),
    ({**ATTENTION, "heads": 3}, "model: width=256 is not a multiple of heads=3; change one, or give head_size"),
    ({**ATTENTION, "heads": [4, 3]}, "model: width=256 is not a multiple of heads=3; change one, or give head_size"),
    (
        {**ATTENTION, "width": 6, "heads": 2, "positions": "rotary"},
        "model: positions='rotary' turns pairs: the size of a head, 3, must be even",
    ),
    (
        {**ATTENTION, "head_size": 5, "positions": "rotary"},
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
        {"two_way": True},
        "model: two_way=true lets a position see the tokens it must predict; a language model reads one way",
    ),
    (
        {"tied": True, "zero_init": True},
        "model: tied=true makes the embedding the output, which zero_init=true sets to zero; add zero_init=false",
    ),
    ({"cap": 0.0}, "model: cap=0.0 must be positive, or 'none'"),
    ({"cap": -2}, "model: cap=-2.0 must be positive, or 'none'"),
    ({"cap": "non"}, "model.cap: must be a valid number, not 'non'"),
]
TRAIN_MESSAGES = [
    ({"steps": 0}, "train.steps: must be greater than or equal to 1, not 0"),
    ({"tokens": 0}, "train.tokens: must be greater than or equal to 1, not 0"),
    ({"epochs": 0}, "train.epochs: must be greater than 0, not 0"),
    ({"minutes": -1.5}, "train.minutes: must be greater than 0, not -1.5"),
    ({"steps": 5, "epochs": 1.0}, "train: steps and epochs are given; a run has one budget"),
    ({"tokens": 5, "minutes": 1.0}, "train: tokens and minutes are given; a run has one budget"),
    ({"lr": 0.0}, "train.lr: must be greater than 0, not 0.0"),
    ({"lr": float("inf")}, "train.lr: must be a finite number, not inf"),
    ({"warmup": 1.0}, "train.warmup: must be less than 1, not 1.0"),
    ({"beta2": 1.0}, "train.beta2: must be less than 1, not 1.0"),
    ({"accumulate": 0}, "train.accumulate: must be greater than or equal to 1, not 0"),
    ({"optimizer": "adam"}, "train.optimizer: no such choice 'adam'; did you mean 'adamw'? known: adamw, muon, sgd"),
    (
        {"schedule": "cosin"},
        "train.schedule: no such choice 'cosin'; did you mean 'cosine'? "
        "known: constant, linear, cosine, inverse-square-root, warmup-stable-decay",
    ),
    ({"device": "gpu"}, "train.device: no such choice 'gpu'; did you mean 'cuda'? known: auto, cpu, cuda"),
    (
        {"precision": "bf16"},
        "train.precision: no such choice 'bf16'; did you mean 'bfloat16'? known: auto, float32, bfloat16",
    ),
    ({"compile": "yes"}, "train.compile: must be a valid boolean, not 'yes'"),
    ({"matrix_lr": 0.1}, "train: matrix_lr=0.1, but optimizer='adamw' has none"),
    ({"beta2": 0.9, "optimizer": "sgd"}, "train: beta2=0.9, but optimizer='sgd' has none"),
    ({"matrix_lr": 0.1, "optimizer": "sgd"}, "train: matrix_lr=0.1, but optimizer='sgd' has none"),
    ({"momentum": 0.5}, "train: momentum=0.5, but optimizer='adamw' has none"),
    ({"optimizer": "sgd", "momentum": 1.0}, "train.momentum: must be less than 1, not 1.0"),
    ({"clip": 0}, "train: clip=0.0 must be positive, or 'none'"),
    ({"clip": -1.5}, "train: clip=-1.5 must be positive, or 'none'"),
    ({"patience": 0}, "train: patience=0 must be at least 1, or 'none'"),
    ({"label_smoothing": 1.0}, "train.label_smoothing: must be less than 1, not 1.0"),
    ({"label_smoothing": -0.1}, "train.label_smoothing: must be greater than or equal to 0, not -0.1"),
]
EVERY_MESSAGE = [
    *((StackTable, *pair) for pair in STACK_MESSAGES),
    *((LanguageTable, *pair) for pair in LANGUAGE_MESSAGES),
    *((TrainTable, *pair) for pair in TRAIN_MESSAGES),
]


@pytest.mark.parametrize(
    ("table", "values", "message"),
    EVERY_MESSAGE,
    ids=[f"{table.__name__}-{values}" for table, values, _ in EVERY_MESSAGE],
)
def test_what_is_refused_and_in_which_words(table, values, message):
    with pytest.raises(ConfigError) as caught:
        read_table(table, values, at=message.split(":")[0].split(".")[0])
    assert str(caught.value) == message


GOOD = [
    {},
    {"mixer": "window"},
    {"mixer": "window", "two_way": True, "context": 5, "width": 7},
    {"two_way": True, "width": 6, "connection": "dense"},
    {"mixer": "gru-before", "positions": "learned", "feed_forward": 16, "activation": "gated"},
    {"feed_forward": 16},
    ATTENTION,
    {**ATTENTION, "feed_forward": "none", "positions": "sinusoidal"},
    {**ATTENTION, "activation": "relu", "connection": "post-norm", "norm": "rms"},
    {**ATTENTION, "heads": [1, 4], "head_size": 6, "positions": "rotary", "qk_norm": True},
    {**ATTENTION, "heads": 5, "head_size": 3, "positions": "alibi"},
    {**ATTENTION, "two_way": True, "width": 7, "attention_dropout": 0.0, "dropout": 0.5},
]


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_a_filled_table_reads_back_equal_and_has_nothing_left_to_fill(values):
    filled = read_table(StackTable, values, at="model").filled()
    assert filled.filled() == filled
    assert read_table(StackTable, plain(filled), at="model") == filled
    assert {name: getattr(filled, name) for name in values} == values  # what was given stays


def test_what_is_filled_in_follows_from_the_mixer():
    lstm, window, attention = (StackTable(mixer=mixer).filled() for mixer in ("lstm", "window", "attention"))
    assert (lstm.feed_forward, lstm.activation, lstm.heads, lstm.qk_norm, lstm.context) == (
        "none",
        None,
        None,
        None,
        None,
    )
    assert (window.feed_forward, window.context) == ("none", 3)
    assert (attention.feed_forward, attention.activation, attention.heads, attention.qk_norm) == (
        1024,
        "gelu",
        8,
        False,
    )
    assert (lstm.attention_dropout, attention.attention_dropout) == (None, 0.0)
    assert StackTable(mixer="attention", dropout=0.25).filled().attention_dropout == 0.25
    assert StackTable(mixer="attention", dropout=0.25, attention_dropout=0.0).filled().attention_dropout == 0.0
    assert StackTable(mixer="attention", feed_forward="none").filled().activation is None
    assert StackTable(feed_forward=32).filled().activation == "gelu"


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


@pytest.mark.parametrize("preset", [TEXTBOOK, GPT], ids=["textbook", "gpt"])
def test_presets_are_tables(preset):
    table = read_table(LanguageTable, preset, at="model").filled()
    assert {name: getattr(table, name) for name in preset} == dict(preset)
    assert (table.layers, table.heads, table.feed_forward) == (4, 8, 1024)


def test_a_run_has_one_budget_and_only_what_its_optimiser_reads():
    assert TrainTable().filled().steps == 2000
    assert TrainTable(epochs=2.5).filled().steps is None
    for optimizer, expected in (("adamw", (None, None)), ("sgd", (None, 0.9)), ("muon", (0.02, 0.95))):
        table = TrainTable(optimizer=optimizer).filled()
        assert (table.matrix_lr, table.momentum) == expected
        assert table.filled() == table == read_table(TrainTable, plain(table), at="train")
    for optimizer in ("sgd", "muon"):
        assert TrainTable(optimizer=optimizer, momentum=0.0).filled().momentum == 0.0
    assert TrainTable(optimizer="muon", matrix_lr=0.5).filled().matrix_lr == 0.5
