"""The [model] table of encoder-decoders and the run file of task translate: what wins, what is refused, what is filled in."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from weft.config import override, parse_config, to_dict
from weft.errors import ConfigError
from weft.models.seq2seq import encoder_decoder
from weft.models.seq2seq_config import BRIDGES, DecoderConfig, EncoderConfig, Seq2SeqConfig, broadcast_to_sides
from weft.nn.choices import SCORES
from weft.nn.mixers import recurrent
from weft.runs.config import RunConfig
from weft.runs.resolve import resolve
from weft.tasks.registry import find_task
from weft.tasks.seq2seq.presets import PRESETS as TRANSLATE
from weft.tasks.seq2seq.presets import TRAIN as PAIRS
from weft.training.config import TrainConfig

BASE = Path("runs", "files").absolute()
every_kind = pytest.mark.parametrize("kind", TRANSLATE)


def run_file(kind: str = "lstm", *, settings: tuple[str, ...] = (), **tables: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"task": "seq2seq", "data": {"train": "a.tsv"}, "model": {"arch": kind}}
    for name, table in tables.items():
        values[name] = {**values.get(name, {}), **table}
    return override(values, settings)


def settings_of(*args: Any, **tables: Any) -> RunConfig:
    return resolve(run_file(*args, **tables), base=BASE)


def table_of(**values: Any) -> Seq2SeqConfig:
    return parse_config(Seq2SeqConfig, broadcast_to_sides(values), at="model")


# ---- what wins over what


def test_options_of_stacks_go_to_both_sides_and_a_side_s_own_win():
    assert broadcast_to_sides({"hidden_size": 8, "tie_embeddings": True}) == {
        "tie_embeddings": True,
        "encoder": {"hidden_size": 8},
        "decoder": {"hidden_size": 8},
    }
    own = {
        "hidden_size": 8,
        "layer_type": "gru",
        "encoder": {"hidden_size": 6},
        "attention": "additive",
        "decoder": {"num_layers": 3},
    }
    assert broadcast_to_sides(own) == {
        "attention": "additive",
        "encoder": {"hidden_size": 6, "layer_type": "gru"},
        "decoder": {"hidden_size": 8, "layer_type": "gru", "num_layers": 3},
    }
    assert own["encoder"] == {"width": 6}  # a copy was changed
    assert broadcast_to_sides({"encoder": 3, "hidden_size": 8}) == {"encoder": 3, "decoder": {"hidden_size": 8}}


def test_the_preset_stands_under_the_run_file_table_by_table():
    plain_model = settings_of("sutskever").model
    assert (plain_model.encoder.layers, plain_model.encoder.reverse, plain_model.encoder.two_way) == (4, True, False)
    changed = settings_of(
        "sutskever", model={"num_layers": 2, "encoder": {"reverse_source": False, "bidirectional": True}}
    ).model
    assert (changed.encoder.layers, changed.decoder.layers) == (2, 2)
    assert (changed.encoder.reverse, changed.encoder.two_way) == (False, True)
    # an option at [model] wins over what the preset says of one side
    assert settings_of("cho", model={"hidden_size": 64, "decoder": {"hidden_size": 32}}).model.encoder.width == 64
    asked = settings_of("luong", settings=("model.encoder.num_layers=3", "model.decoder.num_layers=1", "model.bridge=project"))
    assert (asked.model.encoder.layers, asked.model.decoder.layers, asked.model.bridge) == (3, 1, "project")
    assert asked.model.decoder.dropout == 0.2


@every_kind
def test_a_preset_sets_what_it_says(kind):
    settings, preset = settings_of(kind), TRANSLATE[kind]
    for name, value in broadcast_to_sides(preset.values).items():
        found = getattr(settings.model, name)
        assert ({key: getattr(found, key) for key in value} if isinstance(value, dict) else found) == value
    assert {name: getattr(settings.train, name) for name in preset.train_defaults} == dict(preset.train_defaults) == dict(PAIRS)
    assert type(settings.model) is Seq2SeqConfig


def test_the_kinds_of_translators_are_what_their_papers_say():
    assert list(TRANSLATE) == ["sutskever", "cho", "bahdanau", "luong", "rnn", "lstm", "gru", "transformer", "seq2seq"]
    assert find_task("translate").presets is TRANSLATE
    found = {kind: settings_of(kind).model for kind in TRANSLATE}
    assert {kind: (m.encoder.mixer, m.decoder.mixer) for kind, m in found.items()} == {
        **dict.fromkeys(("sutskever", "luong", "lstm", "seq2seq"), ("lstm", "lstm")),
        **dict.fromkeys(("cho", "bahdanau"), ("gru-before", "gru-before")),
        "rnn": ("rnn", "rnn"),
        "gru": ("gru", "gru"),
        "transformer": ("attention", "attention"),
    }
    assert {kind: (m.attention, m.place, m.input_feeding, m.bridge, m.feed_context) for kind, m in found.items()} == {
        "sutskever": ("none", None, None, "copy", False),
        "cho": ("none", None, None, "project", True),
        "bahdanau": ("additive", "before", False, "project", None),
        "luong": ("multiplicative", "after", True, "copy", None),
        **dict.fromkeys(("rnn", "lstm", "gru"), ("multiplicative", "after", False, "copy", None)),
        "transformer": ("scaled-dot", None, None, None, None),
        "seq2seq": ("multiplicative", "after", True, "project", None),
    }
    two_way = {kind for kind, m in found.items() if m.encoder.two_way}
    assert two_way == set(TRANSLATE) - {"sutskever", "cho", "luong"}
    assert not any(m.decoder.two_way for m in found.values())


@pytest.mark.parametrize("budget", [{"minutes": 2.0}, {"epochs": 3.0}, {"tokens": 500}, {"steps": 7}])
def test_a_budget_of_the_run_file_takes_the_place_of_the_preset_s(budget):
    train = settings_of("lstm", train=budget).train
    given = {name: getattr(train, name) for name in ("max_steps", "max_tokens", "max_epochs", "max_minutes")}
    assert {name: value for name, value in given.items() if value is not None} == budget
    assert settings_of("lstm").train.max_steps == 3500
    assert settings_of("lstm", settings=("train.max_minutes=2.0",)).train.max_steps is None


def test_two_budgets_of_the_run_file_are_two():
    with pytest.raises(ConfigError) as caught:
        settings_of("lstm", train={"max_minutes": 2.0, "max_epochs": 1.0})
    assert str(caught.value) == "train: epochs and minutes are given; a run has one budget"


# ---- what is filled in


def test_a_recurrent_decoder_copies_where_it_can_and_projects_elsewhere():
    for mixer in recurrent():
        assert table_of(layer_type=mixer).with_defaults().bridge == "copy"
        assert table_of(layer_type=mixer, decoder={"layers": 1}).with_defaults().bridge == "project"
        assert table_of(layer_type=mixer, encoder={"width": 128}).with_defaults().bridge == "project"
        assert table_of(layer_type=mixer, encoder={"layer_type": "attention"}).with_defaults().bridge == "project"
    assert (
        table_of(encoder={"layer_type": "gru"}, decoder={"layer_type": "gru-reset-before"}).with_defaults().bridge == "project"
    )
    assert {table_of(bridge=bridge).with_defaults().bridge for bridge in BRIDGES} == set(BRIDGES)


def test_what_does_not_apply_is_not_filled_in():
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
    assert (grows.encoder.num_heads, grows.decoder.num_heads, bare.decoder.ffn_dim) == (8, 8, "none")
    assert (bare.encoder.bidirectional, bare.decoder.bidirectional) == (True, False)


GOOD: list[dict[str, Any]] = [
    {},
    {"layer_type": "gru-reset-before", "feed_context": True, "encoder": {"bidirectional": False}},
    *({"attention": score, "attention_placement": place} for score in SCORES for place in ("before", "after")),
    {"attention": "additive", "input_feeding": True, "copy_mechanism": True, "share_embeddings": True, "tie_embeddings": True},
    {"attention": "multiplicative", "encoder": {"hidden_size": 64, "layer_type": "conv", "kernel_size": 5}},
    {"layer_type": "attention", "attention": "scaled-dot", "num_heads": 4, "embedding_dropout": 0.1},
    {"layer_type": "attention", "encoder": {"position_encoding": "rotary"}, "decoder": {"position_encoding": "alibi"}},
    {"layer_type": "attention", "input_feeding": False, "feed_context": False},
    {"encoder": {"layer_type": "attention"}, "attention": "dot", "bridge": "project"},
    {"encoder": {"reverse_source": True, "bidirectional": False}},
]


@pytest.mark.parametrize("values", GOOD, ids=str)
def test_a_filled_table_reads_back_equal_builds_and_has_nothing_left_to_fill(values):
    filled = table_of(**{"width": 16, **values}).with_defaults()
    assert filled.with_defaults() == filled
    assert parse_config(Seq2SeqConfig, to_dict(filled), at="model") == filled
    model = encoder_decoder(filled, source_vocab_size=5, target_vocab_size=5, max_positions=16, vocabulary="v")
    assert sum(weight.numel() for weight in model.parameters()) > 0


def test_each_side_has_its_own_number_of_words_and_width():
    table = table_of(encoder={"hidden_size": 6, "layer_type": "gru"}, decoder={"width": 8}, num_layers=1).with_defaults()
    model = encoder_decoder(table, source_vocab_size=5, target_vocab_size=9, max_positions=16, vocabulary="v")
    assert model.encoder.embedder.embedding.weight.shape == (5, 6)
    assert model.decoder.embedder.embedding.weight.shape == model.head.head.weight.shape == (9, 8)  # type: ignore[union-attr]


@pytest.mark.parametrize("dropout", [None, 0.0, 0.5])
def test_embeddings_are_dropped_as_each_side_unless_told(dropout):
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
def test_a_resolved_file_reads_back_equal(kind, tables):
    settings = settings_of(kind, **tables)
    values = tomllib.loads(settings.to_toml())
    assert values == settings.to_dict()
    again = resolve(values, base=Path("somewhere", "else").absolute())
    assert again.to_dict() == settings.to_dict()
    assert (again.model, again.train, again.data) == (settings.model, settings.train, settings.data)


@every_kind
def test_a_resolved_file_names_every_option_that_applies_and_sides_only(kind):
    model = settings_of(kind).to_dict()["model"]
    assert model["arch"] == kind
    assert set(model) - {"kind"} <= set(Seq2SeqConfig.model_fields)
    for name, table in (("encoder", EncoderConfig), ("decoder", DecoderConfig)):
        left_out = set(table.model_fields) - set(model[name])
        assert all(table.model_fields[option].default is None for option in left_out)


def test_paths_of_both_tokenizers_are_seen_from_the_run_file():
    settings = settings_of(tokenizer={"source": {"file": "a.json"}, "target": {"file": "/b.json"}})
    assert settings.to_dict()["tokenizer"] == {"source": {"file": str(BASE / "a.json")}, "target": {"file": "/b.json"}}
    assert settings.data.train == str(BASE / "a.tsv")


# ---- what is refused

STACK = (
    "mixer, layers, width, context, nonlinearity, two_way, heads, head_size, qk_norm, positions, slopes, feed_forward, "
    "activation, connection, norm, norm_eps, dropout, attention_dropout, embedding"
)
ENCODER = f"{STACK}, reverse, embedding_norm"
MODEL = (
    "encoder, decoder, attention, attention_size, place, feeding, bridge, every_step, copying, shared, tied, "
    "embedding_dropout, cap"
)
KINDS = "sutskever, cho, bahdanau, luong, rnn, lstm, gru, transformer, seq2seq"
SCORED = "loss, bleu, chrf, exact_match, token_error_rate"
TRAIN = ", ".join(TrainConfig.model_fields)
TWO = {"tokenizer": {"source": {"type": "char"}, "target": {"type": "whitespace"}}}
GROWS = {"layer_type": "attention", "attention": "scaled-dot"}
GROWN = "is for recurrent decoders, but decoder.mixer='attention', whose state grows; drop it"

MODEL_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"atention": "dot"}, f"model.atention: no such option; did you mean 'attention'? known: {MODEL}, {STACK}"),
    ({"widht": 8}, f"model.widht: no such option; did you mean 'width'? known: {MODEL}, {STACK}"),
    (
        {"encoder": {"widht": 8}},
        f"model.encoder.widht: no such option; did you mean 'width'? known: {ENCODER}",
    ),
    (
        {"encoder": {"revers": True}},
        f"model.encoder.revers: no such option; did you mean 'reverse'? known: {ENCODER}",
    ),
    ({"decoder": {"layrs": 8}}, f"model.decoder.layrs: no such option; did you mean 'layers'? known: {STACK}, cross_heads"),
    ({"decoder": {"reverse": True}}, f"model.decoder.reverse_source: no such option; known: {STACK}, cross_heads"),
    (
        {"encoder": {"layer_type": "gur"}},
        "model.encoder.layer_type: no such choice 'gur'; did you mean 'gru'? known: window, rnn, lstm, gru, gru-before, attention",
    ),
    ({"encoder": 3}, "model.encoder: must be a valid dictionary or instance of EncoderTable, not 3"),
    ({"width": 0}, "model.encoder.hidden_size: must be greater than or equal to 1, not 0"),
    ({"decoder": {"layers": 0}}, "model.decoder.num_layers: must be greater than or equal to 1, not 0"),
    ({"embedding_dropout": 1.0}, "model.embedding_dropout: must be less than 1, not 1.0"),
    (
        {"attention": "dott"},
        "model.attention: no such choice 'dott'; did you mean 'dot'? known: none, dot, scaled-dot, multiplicative, additive",
    ),
    (
        {"attention": "dot", "attention_placement": "befor"},
        "model.attention_placement: must be 'before' or 'after', not 'befor'",
    ),
    ({"bridge": "coppy"}, "model.bridge: no such choice 'coppy'; did you mean 'copy'? known: copy, project"),
    (
        {"encoder": {"reverse": True}},
        "model.encoder: reverse=true turns round a source that two_way=true reads from both ends; set two_way=false",
    ),
    (
        {"hidden_size": 7, "decoder": {"hidden_size": 8}},
        "model.encoder: two_way gives each side half the width: mixer='lstm', width=7 can't be halved so",
    ),
    ({"encoder": {"heads": 4}}, "model.encoder: heads=4, but mixer='lstm' has none"),
    (
        {"decoder": {"bidirectional": True}},
        "model.decoder: two_way=true lets a position see the tokens it must predict; a decoder reads one way",
    ),
    (
        {"bidirectional": True},
        "model.decoder: two_way=true lets a position see the tokens it must predict; a decoder reads one way",
    ),
    (
        {"decoder": {"layer_type": "conv"}},
        "model.decoder: mixer='window' has no state to start from a source; use rnn, lstm, gru, gru-before or attention",
    ),
    (
        {"layer_type": "attention", "attention": "additive"},
        "model: attention='additive', but decoder.mixer='attention' takes scaled-dot, or none",
    ),
    (
        {"attention": "dot", "encoder": {"hidden_size": 128}},
        "model: attention='dot' multiplies states of encoder.width=128 and decoder.width=256; make them equal, "
        "or use 'multiplicative'",
    ),
    (
        {"attention": "scaled-dot", "decoder": {"hidden_size": 128}},
        "model: attention='scaled-dot' multiplies states of encoder.width=256 and decoder.width=128; make them equal, "
        "or use 'multiplicative'",
    ),
    (
        {"attention": "dot", "input_feeding": True, "attention_placement": "before"},
        "model: feeding=true feeds what is read out after the step; set feeding=false, or place='after'",
    ),
    (
        {"bridge": "copy", "decoder": {"num_layers": 1}},
        "model: bridge='copy' needs two stacks of one mixer, width and number of layers, not lstm 2 x 256 and "
        "lstm 1 x 256; use 'project'",
    ),
    (
        {"bridge": "copy", "encoder": {"layer_type": "attention"}},
        "model: bridge='copy' needs two stacks of one mixer, width and number of layers, not attention 2 x 256 and "
        "lstm 2 x 256; use 'project'",
    ),
    (
        {"share_embeddings": True, "encoder": {"hidden_size": 128}},
        "model: shared=true is one embedding for vectors of 128 in the encoder and 256 in the decoder; set embedding, or make "
        "the widths equal",
    ),
    (
        {"tie_embeddings": True, "embedding_dim": 128},
        "model: tied=true makes decoder.embedding=128 the output of decoder.width=256; make them equal",
    ),
    (
        {"layer_type": "attention", "embedding_dim": 128},
        "model.encoder: embedding=128, but mixer='attention' adds to what it reads, of width=256; drop it",
    ),
    ({**GROWS, "place": "before"}, f"model: place='before' {GROWN}"),
    ({**GROWS, "feeding": True}, f"model: feeding=true {GROWN}"),
    ({**GROWS, "bridge": "project"}, f"model: bridge='project' {GROWN}"),
    ({"layer_type": "attention", "feed_context": True}, f"model: every_step=true {GROWN}"),
    ({"place": "after"}, "model: place='after', but attention='none' has none"),
    ({"feeding": True}, "model: feeding=true, but attention='none' has none"),
    (
        {"feed_context": True, "attention": "dot"},
        "model: every_step=true is for decoders without attention, but attention='dot'; drop it",
    ),
]


@pytest.mark.parametrize(("values", "message"), MODEL_MESSAGES, ids=[str(values) for values, _ in MODEL_MESSAGES])
def test_what_the_table_refuses_and_in_which_words(values, message):
    with pytest.raises(ConfigError) as caught:
        table_of(**values)
    assert str(caught.value) == message


def one_tokenizer(option: str) -> str:
    return (
        f"model.{option}: true needs one tokenizer for both sides, but [tokenizer.source] and [tokenizer.target] are two; "
        f"use [tokenizer] alone, or {option}=false"
    )


RUN_MESSAGES: list[tuple[dict[str, Any], str]] = [
    (run_file("lstn"), f"model.arch: no such kind 'lstn'; did you mean 'lstm'? known: {KINDS}"),
    (run_file("gpt"), f"model.arch: no such kind 'gpt'; known: {KINDS}"),
    ({**run_file(), "model": {}}, f"model.arch: is needed and not given; known: {KINDS}"),
    (run_file(model={"shared": True}, **TWO), one_tokenizer("shared")),
    (run_file(model={"copying": True}, **TWO), one_tokenizer("copying")),
    (
        run_file(data={"valid": 0.1}, train={"monitor": "exact"}),
        f"train.monitor: no such score 'exact'; did you mean 'exact_match'? known: {SCORED}",
    ),
    (
        run_file(train={"monitor": "bleu"}),
        "train.monitor: is about validations, but data.valid is not given; give it, or drop monitor",
    ),
    (
        run_file(train={"patience": 2}),
        "train.patience: is about validations, but data.valid is not given; give it, or drop patience",
    ),
    (run_file(train={"stpes": 3}), f"train.stpes: no such option; did you mean 'steps'? known: {TRAIN}"),
    (
        run_file("luong", model={"attention": "none"}),
        "model: feeding=true, but attention='none' has none",
    ),
    (
        run_file("transformer", model={"decoder": {"layer_type": "lstm", "num_heads": 4}}),
        "model.decoder: heads=4, but mixer='lstm' has none",
    ),
    (
        run_file(tokenizer={"source": {"kind": "char"}}),
        "tokenizer: source is given and target is not: give both, or one tokenizer for both sides",
    ),
    (
        run_file(data={"read": "lines"}),
        "data.read_as: no such option; known: train, valid, test, encoding, delimiter, sheet, source, target, longest, truncate",
    ),
]


@pytest.mark.parametrize(("values", "message"), RUN_MESSAGES, ids=[message[:60] for _, message in RUN_MESSAGES])
def test_what_a_run_file_refuses_and_in_which_words(values, message):
    with pytest.raises(ConfigError) as caught:
        resolve(values, base=BASE)
    assert str(caught.value) == message


def test_one_tokenizer_for_both_sides_may_be_shared_and_copied_from():
    model = settings_of("lstm", model={"share_embeddings": True, "copy_mechanism": True}).model
    assert (model.shared, model.copy_mechanism) == (True, True)
    apart = settings_of("lstm", **TWO).model
    assert (apart.shared, apart.copy_mechanism) == (False, False)


@pytest.mark.parametrize(
    ("kind", "sides"),
    [
        ("transformer", {"encoder": {"layer_type": "lstm"}}),
        ("transformer", {"decoder": {"layer_type": "gru"}, "attention": "additive"}),
        ("transformer", {"layer_type": "rnn"}),
        ("lstm", {"decoder": {"layer_type": "attention"}, "attention": "scaled-dot"}),
        ("seq2seq", {"encoder": {"layer_type": "conv"}}),
    ],
    ids=str,
)
def test_a_side_with_another_mixer_forgets_what_the_preset_says_of_its_own(kind, sides):
    settings = settings_of(kind, model=sides)
    for side in ("encoder", "decoder"):
        table, own = getattr(settings.model, side), {**sides, **sides.get(side, {})}
        assert table.mixer == own.get("layer_type", broadcast_to_sides(TRANSLATE[kind].values)[side].get("layer_type"))
        assert (table.heads is not None) == (table.mixer == "attention")
        assert table.dropout == broadcast_to_sides(TRANSLATE[kind].values)[side]["dropout"]  # what any mixer has, stays
    assert resolve(tomllib.loads(settings.to_toml()), base=BASE).model == settings.model


def test_an_lstm_may_stand_under_a_transformer_decoder():
    decoder = {"layer_type": "attention", "position_encoding": "sinusoidal", "skip_connection": "residual", "norm": "layernorm"}
    model = settings_of("lstm", model={"attention": "scaled-dot", "decoder": decoder}).model
    assert (model.encoder.mixer, model.encoder.two_way, model.decoder.mixer, model.decoder.heads) == (
        "lstm",
        True,
        "attention",
        8,
    )
