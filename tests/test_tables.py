"""The [model] and [train] tables: error messages and defaults."""

from __future__ import annotations

import pytest

from weft.config import described_fields, parse_config, to_dict
from weft.errors import ConfigError
from weft.models.config import GPT, TRANSFORMER, LanguageModelConfig, StackConfig, default_num_heads
from weft.training.config import TrainConfig

ATTENTION = {"layer_type": "attention"}

STACK_MESSAGES = [
    ({"hiden_size": 8}, "model.hiden_size: unknown option; did you mean 'hidden_size'?"),
    (
        {"layer_type": "gur"},
        "model.layer_type: unknown value 'gur'; did you mean 'gru'?",
    ),
    (
        {"position_encoding": "rotery"},
        "model.position_encoding: unknown value 'rotery'; did you mean 'rotary'?",
    ),
    (
        {"skip_connection": "residul"},
        "model.skip_connection: unknown value 'residul'; did you mean 'residual'?",
    ),
    ({"norm": "rmss"}, "model.norm: unknown value 'rmss'; did you mean 'rmsnorm'?"),
    (
        {"ffn_dim": 8, "activation": "gleu"},
        "model.activation: unknown value 'gleu'; did you mean 'gelu'?",
    ),
    ({"num_layers": 0}, "model.num_layers: must be at least 1, got 0"),
    ({"num_layers": 513}, "model.num_layers: must be at most 512, got 513"),
    ({"hidden_size": 0}, "model.hidden_size: must be at least 1, got 0"),
    ({"hidden_size": 65537}, "model.hidden_size: must be at most 65536, got 65537"),
    ({"layer_type": "conv", "kernel_size": 0}, "model.kernel_size: must be at least 1, got 0"),
    ({"layer_type": "conv", "kernel_size": 4097}, "model.kernel_size: must be at most 4096, got 4097"),
    ({**ATTENTION, "head_dim": 0}, "model.head_dim: must be at least 1, got 0"),
    ({"ffn_dim": -1}, "model.ffn_dim: must be at least 0, got -1"),
    ({"ffn_dim": "no"}, "model.ffn_dim: expected an integer, got 'no'"),
    ({"dropout": 1.0}, "model.dropout: must be less than 1, got 1.0"),
    ({"dropout": -0.1}, "model.dropout: must be at least 0, got -0.1"),
    ({"num_heads": 4}, "model.num_heads: not used with layer_type 'lstm'; remove it"),
    ({"layer_type": "rnn", "head_dim": 4}, "model.head_dim: not used with layer_type 'rnn'; remove it"),
    ({"layer_type": "gru", "qk_norm": False}, "model.qk_norm: not used with layer_type 'gru'; remove it"),
    ({"attention_dropout": 0.0}, "model.attention_dropout: not used with layer_type 'lstm'; remove it"),
    ({**ATTENTION, "attention_dropout": 1.0}, "model.attention_dropout: must be less than 1, got 1.0"),
    ({"kernel_size": 3}, "model.kernel_size: not used with layer_type 'lstm'; remove it"),
    ({**ATTENTION, "kernel_size": 3}, "model.kernel_size: not used with layer_type 'attention'; remove it"),
    (
        {"position_encoding": "alibi"},
        "model.position_encoding: 'alibi' requires layer_type 'attention'; use none, sinusoidal or learned",
    ),
    ({"norm_position": "post"}, "model.norm_position: 'post' requires norm 'layernorm' or 'rmsnorm'"),
    (
        {"norm_position": "post", "norm": "layernorm"},
        "model.norm_position: 'post' requires skip_connection 'residual'; set norm_position = \"pre\"",
    ),
    (
        {"skip_connection": "post-norm"},
        "model.skip_connection: unknown value 'post-norm'; choose from none, residual, highway, dense",
    ),
    (
        {"bidirectional": True, "hidden_size": 7},
        "model.hidden_size: must be even for bidirectional layers, got 7",
    ),
    (
        {"ffn_dim": 0, "activation": "relu"},
        "model.activation: not used without a feed-forward sublayer; set ffn_dim or remove activation",
    ),
    ({"activation": "relu"}, "model.activation: not used without a feed-forward sublayer; set ffn_dim or remove activation"),
    ({**ATTENTION, "num_heads": [2]}, "model.num_heads: 1 values for 2 layers; set one number, or one per layer"),
    ({**ATTENTION, "num_heads": []}, "model.num_heads: 0 values for 2 layers; set one number, or one per layer"),
    ({**ATTENTION, "num_heads": 0}, "model.num_heads: must be at least 1, got 0"),
    ({**ATTENTION, "num_heads": [2, -1]}, "model.num_heads: must be at least 1, got -1"),
    (
        {**ATTENTION, "num_heads": 3},
        "model.num_heads: hidden_size 256 is not divisible by 3; change one of them or set head_dim",
    ),
    (
        {**ATTENTION, "num_heads": [4, 3]},
        "model.num_heads: hidden_size 256 is not divisible by 3; change one of them or set head_dim",
    ),
    (
        {**ATTENTION, "hidden_size": 6, "num_heads": 2, "position_encoding": "rotary"},
        "model.position_encoding: 'rotary' requires an even head size, got 3; change num_heads or set head_dim",
    ),
    (
        {**ATTENTION, "head_dim": 5, "position_encoding": "rotary"},
        "model.position_encoding: 'rotary' requires an even head size, got 5; change num_heads or set head_dim",
    ),
    (
        {**ATTENTION, "num_heads": [2, 4], "position_encoding": "relative-bias"},
        "model.position_encoding: 'relative-bias' requires the same number of heads in all layers, which share it; "
        "set one number of heads",
    ),
    ({"bias": False}, "model.bias: not used with layer_type 'lstm'; remove it"),
]
LANGUAGE_MESSAGES = [
    (
        {"zero_int": True},
        "model.zero_int: unknown option; did you mean 'zero_init'?",
    ),
    (
        {"bidirectional": True},
        "model.bidirectional: not possible for a language model, which would see the tokens it predicts",
    ),
    (
        {"tie_embeddings": True, "zero_init": True},
        "model.tie_embeddings: cannot be combined with zero_init, which would set the embedding to zero; set zero_init = false",
    ),
    ({"logit_softcap": -0.5}, "model.logit_softcap: must be at least 0, got -0.5"),
    ({"logit_softcap": -2}, "model.logit_softcap: must be at least 0, got -2"),
    ({"logit_softcap": "non"}, "model.logit_softcap: expected a number, got 'non'"),
]
TRAIN_MESSAGES = [
    ({"max_steps": 0}, "train.max_steps: must be at least 1, got 0"),
    ({"max_tokens": 0}, "train.max_tokens: must be at least 1, got 0"),
    ({"max_epochs": 0}, "train.max_epochs: must be greater than 0, got 0"),
    ({"max_minutes": -1.5}, "train.max_minutes: must be greater than 0, got -1.5"),
    ({"max_steps": 5, "max_epochs": 1.0}, "train: max_steps and max_epochs are both set; set only one"),
    ({"max_tokens": 5, "max_minutes": 1.0}, "train: max_tokens and max_minutes are both set; set only one"),
    ({"lr": 0.0}, "train.lr: must be greater than 0, got 0.0"),
    ({"lr": float("inf")}, "train.lr: expected a finite number, got inf"),
    ({"warmup_ratio": 1.0}, "train.warmup_ratio: must be less than 1, got 1.0"),
    ({"adam_beta2": 1.0}, "train.adam_beta2: must be less than 1, got 1.0"),
    ({"micro_batches": 0}, "train.micro_batches: must be at least 1, got 0"),
    ({"optimizer": "adam"}, "train.optimizer: unknown optimizer 'adam'; did you mean 'adamw'?"),
    (
        {"lr_schedule": "cosin"},
        "train.lr_schedule: unknown schedule 'cosin'; did you mean 'cosine'?",
    ),
    ({"device": "gpu"}, "train.device: unknown device 'gpu'; did you mean 'cuda'?"),
    (
        {"precision": "bf16"},
        "train.precision: unknown precision 'bf16'; did you mean 'bfloat16'?",
    ),
    ({"compile": "yes"}, "train.compile: expected true or false or 'auto', got 'yes'"),
    ({"muon_lr": 0.1}, "train.muon_lr: not used with optimizer 'adamw'; remove it"),
    ({"adam_beta2": 0.9, "optimizer": "sgd"}, "train.adam_beta2: not used with optimizer 'sgd'; remove it"),
    ({"muon_lr": 0.1, "optimizer": "sgd"}, "train.muon_lr: not used with optimizer 'sgd'; remove it"),
    ({"momentum": 0.5}, "train.momentum: not used with optimizer 'adamw'; remove it"),
    ({"optimizer": "sgd", "momentum": 1.0}, "train.momentum: must be less than 1, got 1.0"),
    ({"max_grad_norm": "none"}, "train.max_grad_norm: expected a number, got 'none'"),
    ({"ema_decay": 1.0}, "train.ema_decay: must be less than 1, got 1.0"),
    ({"max_grad_norm": -1.5}, "train.max_grad_norm: must be at least 0, got -1.5"),
    ({"patience": -1}, "train.patience: must be at least 0, got -1"),
    ({"patience": "none"}, "train.patience: expected an integer, got 'none'"),
    ({"label_smoothing": 1.0}, "train.label_smoothing: must be less than 1, got 1.0"),
    ({"label_smoothing": -0.1}, "train.label_smoothing: must be at least 0, got -0.1"),
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
def test_error_messages(table, values, message):
    with pytest.raises(ConfigError) as caught:
        parse_config(table, values, prefix=message.split(":")[0].split(".")[0])
    assert str(caught.value) == message


GOOD = [
    {},
    {"layer_type": "conv"},
    {"layer_type": "conv", "bidirectional": True, "kernel_size": 5, "hidden_size": 7},
    {"bidirectional": True, "hidden_size": 6, "skip_connection": "dense"},
    {"layer_type": "gru-reset-before", "position_encoding": "learned", "ffn_dim": 16, "activation": "swiglu"},
    {"ffn_dim": 16},
    ATTENTION,
    {**ATTENTION, "ffn_dim": 0, "position_encoding": "sinusoidal"},
    {**ATTENTION, "activation": "relu", "skip_connection": "residual", "norm": "rmsnorm", "norm_position": "post"},
    {**ATTENTION, "num_heads": [1, 4], "head_dim": 6, "position_encoding": "rotary", "qk_norm": True},
    {**ATTENTION, "num_heads": 5, "head_dim": 3, "position_encoding": "alibi"},
    {**ATTENTION, "bidirectional": True, "hidden_size": 7, "attention_dropout": 0.0, "dropout": 0.5},
]


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_a_resolved_config_round_trips_and_is_complete(values):
    filled = parse_config(StackConfig, values, prefix="model").with_defaults()
    assert filled.with_defaults() == filled
    assert parse_config(StackConfig, to_dict(filled), prefix="model") == filled
    assert {name: getattr(filled, name) for name in values} == values  # explicit values stay


def test_defaults_depend_on_the_layer_type():
    lstm, conv, attention = (StackConfig(layer_type=mixer).with_defaults() for mixer in ("lstm", "conv", "attention"))
    assert (lstm.ffn_dim, lstm.activation, lstm.num_heads, lstm.qk_norm, lstm.kernel_size) == (
        0,
        None,
        None,
        None,
        None,
    )
    assert (conv.ffn_dim, conv.kernel_size) == (0, 3)
    assert (attention.ffn_dim, attention.activation, attention.num_heads, attention.qk_norm) == (
        1024,
        "gelu",
        8,
        False,
    )
    assert (lstm.attention_dropout, attention.attention_dropout) == (None, 0.0)
    assert StackConfig(layer_type="attention", dropout=0.25).with_defaults().attention_dropout == 0.25
    assert StackConfig(layer_type="attention", dropout=0.25, attention_dropout=0.0).with_defaults().attention_dropout == 0.0
    assert StackConfig(layer_type="attention", ffn_dim=0).with_defaults().activation is None
    assert StackConfig(ffn_dim=32).with_defaults().activation == "gelu"


def test_default_heads_have_about_32_dimensions_and_divide_the_hidden_size():
    assert {width: default_num_heads(width) for width in (1, 8, 48, 64, 96, 100, 131, 256, 320, 768)} == {
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
def test_presets_are_valid_configs(preset):
    table = parse_config(LanguageModelConfig, preset, prefix="model").with_defaults()
    assert {name: getattr(table, name) for name in preset} == dict(preset)
    assert (table.num_layers, table.num_heads, table.ffn_dim) == (4, 8, 1024)


def test_a_run_has_one_budget_and_only_the_options_of_its_optimizer():
    assert TrainConfig().with_defaults().max_steps == 2000
    assert TrainConfig(max_epochs=2.5).with_defaults().max_steps is None
    for optimizer, expected in (("adamw", (None, None)), ("sgd", (None, 0.9)), ("muon", (0.02, 0.95))):
        table = TrainConfig(optimizer=optimizer).with_defaults()
        assert (table.muon_lr, table.momentum) == expected
        assert table.with_defaults() == table == parse_config(TrainConfig, to_dict(table), prefix="train")
    for optimizer in ("sgd", "muon"):
        assert TrainConfig(optimizer=optimizer, momentum=0.0).with_defaults().momentum == 0.0
    assert TrainConfig(optimizer="muon", muon_lr=0.5).with_defaults().muon_lr == 0.5


def test_zero_switches_a_number_off():
    stack = StackConfig(layer_type="attention", ffn_dim=0).with_defaults()
    assert (stack.ffn_dim, stack.activation) == (0, None)
    assert parse_config(LanguageModelConfig, {"logit_softcap": 0}, prefix="model").logit_softcap == 0
    train = parse_config(TrainConfig, {"max_grad_norm": 0, "ema_decay": 0, "patience": 0}, prefix="train")
    assert (train.max_grad_norm, train.ema_decay, train.patience) == (0, 0, 0)


def test_every_option_has_a_description():
    for table in (StackConfig, LanguageModelConfig, TrainConfig):
        assert [name for name, field in described_fields(table).items() if not (field.description or "").endswith(".")] == []
