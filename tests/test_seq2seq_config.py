"""The [model] table of encoder-decoders and the run file of task seq2seq: precedence, rejected options and defaults."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from weft.config import override, parse_config, to_dict
from weft.errors import ConfigError
from weft.models.seq2seq import encoder_decoder
from weft.models.seq2seq_config import BRIDGES, DecoderConfig, EncoderConfig, Seq2SeqConfig, broadcast_to_sides
from weft.nn.choices import ATTENTION_SCORES
from weft.nn.mixers import recurrent_mixers
from weft.runs.config import RunConfig
from weft.runs.resolve import resolve
from weft.tasks.registry import find_task
from weft.tasks.seq2seq.presets import PRESETS as TRANSLATE
from weft.tasks.seq2seq.presets import TRAIN as PAIRS

BASE = Path("runs", "files").absolute()
every_kind = pytest.mark.parametrize("arch", TRANSLATE)


def run_file(arch: str = "lstm", *, settings: tuple[str, ...] = (), **tables: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"task": "seq2seq", "data": {"train": "a.tsv"}, "model": {"arch": arch}}
    for name, table in tables.items():
        values[name] = {**values.get(name, {}), **table}
    return override(values, settings)


def settings_of(*args: Any, **tables: Any) -> RunConfig:
    return resolve(run_file(*args, **tables), base=BASE)


def table_of(**values: Any) -> Seq2SeqConfig:
    return parse_config(Seq2SeqConfig, broadcast_to_sides(values), prefix="model")


# ---- what wins over what


def test_stack_options_apply_to_encoder_and_decoder_unless_overridden():
    assert broadcast_to_sides({"hidden_size": 8, "tie_embeddings": True}) == {
        "tie_embeddings": True,
        "encoder": {"hidden_size": 8},
        "decoder": {"hidden_size": 8},
    }
    options = {
        "hidden_size": 8,
        "layer_type": "gru",
        "encoder": {"hidden_size": 6},
        "attention": "additive",
        "decoder": {"num_layers": 3},
    }
    assert broadcast_to_sides(options) == {
        "attention": "additive",
        "encoder": {"hidden_size": 6, "layer_type": "gru"},
        "decoder": {"hidden_size": 8, "layer_type": "gru", "num_layers": 3},
    }
    assert options["encoder"] == {"hidden_size": 6}  # a copy was changed
    assert broadcast_to_sides({"encoder": 3, "hidden_size": 8}) == {"encoder": 3, "decoder": {"hidden_size": 8}}


def test_run_file_overrides_the_preset_table_by_table():
    plain_model = settings_of("sutskever").model
    assert (plain_model.encoder.num_layers, plain_model.encoder.reverse_source, plain_model.encoder.bidirectional) == (
        4,
        True,
        False,
    )
    changed = settings_of(
        "sutskever", model={"num_layers": 2, "encoder": {"reverse_source": False, "bidirectional": True}}
    ).model
    assert (changed.encoder.num_layers, changed.decoder.num_layers) == (2, 2)
    assert (changed.encoder.reverse_source, changed.encoder.bidirectional) == (False, True)
    # an option in [model] overrides the preset of encoder or decoder
    assert settings_of("cho", model={"hidden_size": 64, "decoder": {"hidden_size": 32}}).model.encoder.hidden_size == 64
    resolved = settings_of(
        "luong", settings=("model.encoder.num_layers=3", "model.decoder.num_layers=1", "model.bridge=project")
    )
    assert (resolved.model.encoder.num_layers, resolved.model.decoder.num_layers, resolved.model.bridge) == (3, 1, "project")
    assert resolved.model.decoder.dropout == 0.2


@every_kind
def test_preset_values(arch):
    settings, preset = settings_of(arch), TRANSLATE[arch]
    for name, value in broadcast_to_sides(preset.values).items():
        actual = getattr(settings.model, name)
        assert ({key: getattr(actual, key) for key in value} if isinstance(value, dict) else actual) == value
    assert {name: getattr(settings.train, name) for name in preset.train_defaults} == dict(preset.train_defaults) == dict(PAIRS)
    assert type(settings.model) is Seq2SeqConfig


def test_seq2seq_architectures_match_their_papers():
    assert list(TRANSLATE) == [
        "sutskever",
        "cho",
        "bahdanau",
        "luong",
        "rnn",
        "lstm",
        "gru",
        "mingru",
        "minlstm",
        "transformer",
        "lstm-input-feeding",
    ]
    assert find_task("seq2seq").presets is TRANSLATE
    actual = {arch: settings_of(arch).model for arch in TRANSLATE}
    assert {arch: (m.encoder.layer_type, m.decoder.layer_type) for arch, m in actual.items()} == {
        **dict.fromkeys(("sutskever", "luong", "lstm", "lstm-input-feeding"), ("lstm", "lstm")),
        **dict.fromkeys(("cho", "bahdanau"), ("gru-reset-before", "gru-reset-before")),
        "rnn": ("rnn", "rnn"),
        "gru": ("gru", "gru"),
        "mingru": ("mingru", "mingru"),
        "minlstm": ("minlstm", "minlstm"),
        "transformer": ("attention", "attention"),
    }
    assert {
        arch: (m.attention, m.attention_placement, m.input_feeding, m.bridge, m.feed_context) for arch, m in actual.items()
    } == {
        "sutskever": ("none", None, None, "copy", False),
        "cho": ("none", None, None, "project", True),
        "bahdanau": ("additive", "before", False, "project", None),
        "luong": ("multiplicative", "after", True, "copy", None),
        **dict.fromkeys(("rnn", "lstm", "gru", "mingru", "minlstm"), ("multiplicative", "after", False, "copy", None)),
        "transformer": ("scaled-dot", None, None, None, None),
        "lstm-input-feeding": ("multiplicative", "after", True, "project", None),
    }
    two_way = {arch for arch, m in actual.items() if m.encoder.bidirectional}
    assert two_way == set(TRANSLATE) - {"sutskever", "cho", "luong"}
    assert not any(m.decoder.bidirectional for m in actual.values())


@pytest.mark.parametrize("budget", [{"max_minutes": 2.0}, {"max_epochs": 3.0}, {"max_tokens": 500}, {"max_steps": 7}])
def test_run_file_budget_replaces_the_preset_budget(budget):
    train = settings_of("lstm", train=budget).train
    budgets = {name: getattr(train, name) for name in ("max_steps", "max_tokens", "max_epochs", "max_minutes")}
    assert {name: value for name, value in budgets.items() if value is not None} == budget
    assert settings_of("lstm").train.max_steps == 3500
    assert settings_of("lstm", settings=("train.max_minutes=2.0",)).train.max_steps is None


def test_two_budgets_in_the_run_file_are_rejected():
    with pytest.raises(ConfigError) as caught:
        settings_of("lstm", train={"max_minutes": 2.0, "max_epochs": 1.0})
    assert str(caught.value) == "train: max_epochs and max_minutes are both set; set only one"


# ---- what is filled in


def test_bridge_of_a_recurrent_decoder_is_copy_if_possible_else_projection():
    for mixer in recurrent_mixers():
        assert table_of(layer_type=mixer).with_defaults().bridge == "copy"
        assert table_of(layer_type=mixer, decoder={"num_layers": 1}).with_defaults().bridge == "project"
        assert table_of(layer_type=mixer, encoder={"hidden_size": 128}).with_defaults().bridge == "project"
        assert table_of(layer_type=mixer, encoder={"layer_type": "attention"}).with_defaults().bridge == "project"
    assert (
        table_of(encoder={"layer_type": "gru"}, decoder={"layer_type": "gru-reset-before"}).with_defaults().bridge == "project"
    )
    assert {table_of(bridge=bridge).with_defaults().bridge for bridge in BRIDGES} == set(BRIDGES)


def test_inapplicable_options_have_no_default():
    bare, attends, grows = (
        table_of().with_defaults(),
        table_of(attention="dot").with_defaults(),
        table_of(layer_type="attention").with_defaults(),
    )
    assert (bare.attention_placement, bare.input_feeding, bare.bridge, bare.feed_context) == (None, None, "copy", False)
    assert (attends.attention_placement, attends.input_feeding, attends.bridge, attends.feed_context) == (
        "after",
        False,
        "copy",
        None,
    )
    assert (grows.attention_placement, grows.input_feeding, grows.bridge, grows.feed_context) == (None, None, None, None)
    assert (grows.encoder.num_heads, grows.decoder.num_heads, bare.decoder.ffn_dim) == (8, 8, 0)
    assert (bare.encoder.bidirectional, bare.decoder.bidirectional) == (True, False)


GOOD: list[dict[str, Any]] = [
    {},
    {"layer_type": "gru-reset-before", "feed_context": True, "encoder": {"bidirectional": False}},
    *({"attention": score, "attention_placement": place} for score in ATTENTION_SCORES for place in ("before", "after")),
    {"attention": "additive", "input_feeding": True, "copy_mechanism": True, "share_embeddings": True, "tie_embeddings": True},
    {"attention": "multiplicative", "encoder": {"hidden_size": 64, "layer_type": "conv", "kernel_size": 5}},
    {"layer_type": "attention", "attention": "scaled-dot", "num_heads": 4, "embedding_dropout": 0.1},
    {"layer_type": "attention", "encoder": {"position_encoding": "rotary"}, "decoder": {"position_encoding": "alibi"}},
    {"layer_type": "attention", "input_feeding": False, "feed_context": False},
    {"encoder": {"layer_type": "attention"}, "attention": "dot", "bridge": "project"},
    {"encoder": {"reverse_source": True, "bidirectional": False}},
]


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_a_resolved_config_round_trips_and_is_complete(values):
    filled = table_of(**{"hidden_size": 16, **values}).with_defaults()
    assert filled.with_defaults() == filled
    assert parse_config(Seq2SeqConfig, to_dict(filled), prefix="model") == filled
    model = encoder_decoder(filled, source_vocab_size=5, target_vocab_size=5, max_positions=16, vocabulary="v")
    assert sum(weight.numel() for weight in model.parameters()) > 0


def test_source_and_target_have_their_own_vocab_and_hidden_size():
    table = table_of(encoder={"hidden_size": 6, "layer_type": "gru"}, decoder={"hidden_size": 8}, num_layers=1).with_defaults()
    model = encoder_decoder(table, source_vocab_size=5, target_vocab_size=9, max_positions=16, vocabulary="v")
    assert model.encoder.embedder.embedding.weight.shape == (5, 6)
    assert model.decoder.embedder.embedding.weight.shape == model.head.head.weight.shape == (9, 8)  # type: ignore[union-attr]


@pytest.mark.parametrize("dropout", [None, 0.0, 0.5])
def test_embedding_dropout_defaults_to_the_dropout_of_encoder_and_decoder(dropout):
    options = {} if dropout is None else {"embedding_dropout": dropout}
    table = table_of(
        hidden_size=8, encoder={"dropout": 0.1}, decoder={"dropout": 0.2}, attention="dot", **options
    ).with_defaults()
    model = encoder_decoder(table, source_vocab_size=5, target_vocab_size=5, max_positions=16, vocabulary="v")
    fronts = (model.encoder.embedder.dropout.p, model.decoder.embedder.dropout.p)
    assert fronts == ((0.1, 0.2) if dropout is None else (dropout, dropout))


# ---- there and back

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "sides": {"model": {"hidden_size": 64, "encoder": {"num_layers": 2}, "decoder": {"num_layers": 2, "dropout": 0.25}}},
    "tokenizers": {"tokenizer": {"source": {"type": "char"}, "target": {"type": "whitespace"}}, "data": {"max_length": 50}},
    "files": {"tokenizer": {"source": {"file": "a.json"}, "target": {"file": "b.json"}}},
    "joint": {
        "tokenizer": {"type": "bpe", "vocab_size": 300},
        "model": {"share_embeddings": True, "tie_embeddings": True, "copy_mechanism": True},
    },
    "data": {"data": {"train": ["a.en", "a.de"], "valid": 0.1, "test": ["b.en", "b.de"], "truncate": True}},
    "train": {"data": {"valid": "v.tsv"}, "train": {"max_minutes": 2.5, "monitor": "exact_match", "patience": 3}},
}


@every_kind
@pytest.mark.parametrize("tables", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_resolved_file_round_trips(arch, tables):
    settings = settings_of(arch, **tables)
    values = tomllib.loads(settings.to_toml())
    assert values == settings.to_dict()
    again = resolve(values, base=Path("somewhere", "else").absolute())
    assert again.to_dict() == settings.to_dict()
    assert (again.model, again.train, again.data) == (settings.model, settings.train, settings.data)


@every_kind
def test_a_resolved_file_has_every_applicable_option_under_encoder_and_decoder(arch):
    model = settings_of(arch).to_dict()["model"]
    assert model["arch"] == arch
    assert set(model) - {"arch"} <= set(Seq2SeqConfig.model_fields)
    for name, table in (("encoder", EncoderConfig), ("decoder", DecoderConfig)):
        left_out = set(table.model_fields) - set(model[name])
        assert all(table.model_fields[option].default is None for option in left_out)


def test_paths_of_both_tokenizers_are_relative_to_the_run_file():
    settings = settings_of(tokenizer={"source": {"file": "a.json"}, "target": {"file": "/b.json"}})
    assert settings.to_dict()["tokenizer"] == {"source": {"file": str(BASE / "a.json")}, "target": {"file": "/b.json"}}
    assert settings.data.train == str(BASE / "a.tsv")


# ---- what is refused

TWO = {"tokenizer": {"source": {"type": "char"}, "target": {"type": "whitespace"}}}
GROWS = {"layer_type": "attention", "attention": "scaled-dot"}

MODEL_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"atention": "dot"}, "model.atention: unknown option; did you mean 'attention'?"),
    ({"hiden_size": 8}, "model.hiden_size: unknown option; did you mean 'hidden_size'?"),
    (
        {"encoder": {"hiden_size": 8}},
        "model.encoder.hiden_size: unknown option; did you mean 'hidden_size'?",
    ),
    (
        {"encoder": {"revers": True}},
        "model.encoder.revers: unknown option; did you mean 'reverse_source'?",
    ),
    ({"decoder": {"layrs": 8}}, "model.decoder.layrs: unknown option; did you mean 'num_layers'?"),
    ({"decoder": {"reverse_source": True}}, "model.decoder.reverse_source: unknown option"),
    (
        {"encoder": {"layer_type": "gur"}},
        "model.encoder.layer_type: unknown value 'gur'; did you mean 'gru'?",
    ),
    ({"encoder": 3}, "model.encoder: expected a table, got 3"),
    ({"hidden_size": 0}, "model.encoder.hidden_size: must be at least 1, got 0"),
    ({"decoder": {"num_layers": 0}}, "model.decoder.num_layers: must be at least 1, got 0"),
    ({"embedding_dropout": 1.0}, "model.embedding_dropout: must be less than 1, got 1.0"),
    (
        {"attention": "dott"},
        "model.attention: unknown value 'dott'; did you mean 'dot'?",
    ),
    (
        {"attention": "dot", "attention_placement": "befor"},
        "model.attention_placement: expected 'before' or 'after', got 'befor'",
    ),
    ({"bridge": "coppy"}, "model.bridge: unknown value 'coppy'; did you mean 'copy'?"),
    (
        {"encoder": {"reverse_source": True}},
        "model.encoder.reverse_source: has no effect if bidirectional is true; set bidirectional = false",
    ),
    (
        {"hidden_size": 7, "decoder": {"hidden_size": 8}},
        "model.encoder.hidden_size: must be even for bidirectional layers, got 7",
    ),
    ({"encoder": {"num_heads": 4}}, "model.encoder.num_heads: not used with layer_type 'lstm'; remove it"),
    (
        {"decoder": {"bidirectional": True}},
        "model.decoder.bidirectional: not possible for a decoder, which would see the tokens it predicts",
    ),
    (
        {"bidirectional": True},
        "model.decoder.bidirectional: not possible for a decoder, which would see the tokens it predicts",
    ),
    (
        {"decoder": {"layer_type": "conv"}},
        "model.decoder.layer_type: 'conv' is not possible for a decoder; use rnn, lstm, gru, gru-reset-before, "
        "mingru, minlstm or attention",
    ),
    (
        {"layer_type": "attention", "attention": "additive"},
        "model.attention: 'additive' is not possible with layer_type 'attention'; use 'scaled-dot' or 'none'",
    ),
    (
        {"attention": "dot", "encoder": {"hidden_size": 128}},
        "model.attention: 'dot' requires equal hidden sizes, got 128 and 256; make them equal or use 'multiplicative'",
    ),
    (
        {"attention": "scaled-dot", "decoder": {"hidden_size": 128}},
        "model.attention: 'scaled-dot' requires equal hidden sizes, got 256 and 128; make them equal or use 'multiplicative'",
    ),
    (
        {"attention": "dot", "input_feeding": True, "attention_placement": "before"},
        "model.input_feeding: not possible with attention_placement 'before'; "
        'set input_feeding = false or attention_placement = "after"',
    ),
    (
        {"bridge": "copy", "decoder": {"num_layers": 1}},
        "model.bridge: 'copy' requires encoder and decoder to match (lstm 2x256, lstm 1x256); use 'project'",
    ),
    (
        {"bridge": "copy", "encoder": {"layer_type": "attention"}},
        "model.bridge: 'copy' requires encoder and decoder to match (attention 2x256, lstm 2x256); use 'project'",
    ),
    (
        {"share_embeddings": True, "encoder": {"hidden_size": 128}},
        "model.share_embeddings: requires embeddings of one size, got 128 and 256; "
        "set embedding_dim or make the hidden sizes equal",
    ),
    (
        {"tie_embeddings": True, "embedding_dim": 128},
        "model.tie_embeddings: requires embedding_dim (128) of the decoder to equal its hidden_size (256); make them equal",
    ),
    (
        {"layer_type": "attention", "embedding_dim": 128},
        "model.encoder.embedding_dim: must equal hidden_size with layer_type 'attention'; remove it",
    ),
    ({**GROWS, "attention_placement": "before"}, "model.attention_placement: not used with layer_type 'attention'; remove it"),
    ({**GROWS, "input_feeding": True}, "model.input_feeding: not used with layer_type 'attention'; remove it"),
    ({**GROWS, "bridge": "project"}, "model.bridge: not used with layer_type 'attention'; remove it"),
    ({"layer_type": "attention", "feed_context": True}, "model.feed_context: not used with layer_type 'attention'; remove it"),
    ({"attention_placement": "after"}, "model.attention_placement: not used with attention 'none'; remove it"),
    ({"input_feeding": True}, "model.input_feeding: not used with attention 'none'; remove it"),
    (
        {"feed_context": True, "attention": "dot"},
        "model.feed_context: not used with attention 'dot'; remove it",
    ),
]


@pytest.mark.parametrize(("values", "message"), MODEL_MESSAGES, ids=[str(values) for values, _ in MODEL_MESSAGES])
def test_error_messages_of_the_model_table(values, message):
    with pytest.raises(ConfigError) as caught:
        table_of(**values)
    assert str(caught.value) == message


RUN_MESSAGES: list[tuple[dict[str, Any], str]] = [
    (run_file("lstn"), "model.arch: unknown architecture 'lstn'; did you mean 'lstm'?"),
    (
        run_file("gpt"),
        "model.arch: unknown architecture 'gpt'; "
        "choose from sutskever, cho, bahdanau, luong, rnn, lstm, gru, mingru, minlstm, transformer, lstm-input-feeding",
    ),
    ({**run_file(), "model": {}}, 'model.arch: required option is missing; add arch = "lstm-input-feeding" under [model]'),
    (
        run_file(model={"share_embeddings": True}, **TWO),
        "model.share_embeddings: requires one tokenizer for both sides; "
        "replace [tokenizer.source] and [tokenizer.target] with [tokenizer]",
    ),
    (
        run_file(model={"copy_mechanism": True}, **TWO),
        "model.copy_mechanism: requires one tokenizer for both sides; "
        "replace [tokenizer.source] and [tokenizer.target] with [tokenizer]",
    ),
    (
        run_file(data={"valid": 0.1}, train={"monitor": "exact"}),
        "train.monitor: unknown metric 'exact'; did you mean 'exact_match'?",
    ),
    (
        run_file(train={"monitor": "bleu"}),
        "train.monitor: requires validation data; set data.valid",
    ),
    (
        run_file(train={"patience": 2}),
        "train.patience: requires validation data; set data.valid",
    ),
    (run_file(train={"stpes": 3}), "train.stpes: unknown option; did you mean 'max_steps'?"),
    (
        run_file("luong", model={"attention": "none"}),
        "model.input_feeding: not used with attention 'none'; remove it",
    ),
    (
        run_file("transformer", model={"decoder": {"layer_type": "lstm", "num_heads": 4}}),
        "model.decoder.num_heads: not used with layer_type 'lstm'; remove it",
    ),
    (
        run_file(tokenizer={"source": {"type": "char"}}),
        "tokenizer.target: missing; add [tokenizer.target], or use one [tokenizer] for both sides",
    ),
    (
        run_file(data={"read_as": "lines"}),
        "data.read_as: unknown option; did you mean 'prepared'?",
    ),
]


@pytest.mark.parametrize(("values", "message"), RUN_MESSAGES, ids=[message[:60] for _, message in RUN_MESSAGES])
def test_error_messages_of_the_run_file(values, message):
    with pytest.raises(ConfigError) as caught:
        resolve(values, base=BASE)
    assert str(caught.value) == message


def test_a_joint_tokenizer_allows_shared_embeddings_and_copying():
    model = settings_of("lstm", model={"share_embeddings": True, "copy_mechanism": True}).model
    assert (model.share_embeddings, model.copy_mechanism) == (True, True)
    apart = settings_of("lstm", **TWO).model
    assert (apart.share_embeddings, apart.copy_mechanism) == (False, False)


@pytest.mark.parametrize(
    ("arch", "sides"),
    [
        ("transformer", {"encoder": {"layer_type": "lstm"}}),
        ("transformer", {"decoder": {"layer_type": "gru"}, "attention": "additive"}),
        ("transformer", {"layer_type": "rnn"}),
        ("lstm", {"decoder": {"layer_type": "attention"}, "attention": "scaled-dot"}),
        ("lstm-input-feeding", {"encoder": {"layer_type": "conv"}}),
    ],
    ids=str,
)
def test_changing_the_layer_type_removes_preset_options_of_the_old_one(arch, sides):
    settings = settings_of(arch, model=sides)
    for side in ("encoder", "decoder"):
        table, options = getattr(settings.model, side), {**sides, **sides.get(side, {})}
        assert table.layer_type == options.get("layer_type", broadcast_to_sides(TRANSLATE[arch].values)[side].get("layer_type"))
        assert (table.num_heads is not None) == (table.layer_type == "attention")
        assert table.dropout == broadcast_to_sides(TRANSLATE[arch].values)[side]["dropout"]  # options of all mixers stay
    assert resolve(tomllib.loads(settings.to_toml()), base=BASE).model == settings.model


def test_an_lstm_encoder_with_a_transformer_decoder():
    decoder = {"layer_type": "attention", "position_encoding": "sinusoidal", "skip_connection": "residual", "norm": "layernorm"}
    model = settings_of("lstm", model={"attention": "scaled-dot", "decoder": decoder}).model
    assert (model.encoder.layer_type, model.encoder.bidirectional, model.decoder.layer_type, model.decoder.num_heads) == (
        "lstm",
        True,
        "attention",
        8,
    )
