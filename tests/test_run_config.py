"""From a run file to the resolved configuration and back: precedence, rejected options, and relative paths."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from weft.config import override
from weft.errors import ConfigError, ModelError, UsageError
from weft.models.config import LanguageModelConfig
from weft.models.ngram import NgramConfig
from weft.runs.config import RunConfig
from weft.runs.job import with_tokenizer_from
from weft.runs.resolve import resolve
from weft.tasks.lm.contexts import default_context
from weft.tasks.lm.presets import PRESETS as LM
from weft.tasks.registry import TASKS, find_task
from weft.text.tokenizers import TokenizerConfig, train_tokenizer
from weft.training.config import BUDGETS, TrainConfig
from weft.training.device import pick_device

BASE = Path("runs", "files").absolute()
every_kind = pytest.mark.parametrize("arch", LM)


def run_file(arch: str = "lstm", *, settings: tuple[str, ...] = (), **tables: dict[str, Any]) -> dict[str, Any]:
    """A run file with `--set` applied; tables are merged with the default ones."""
    values: dict[str, Any] = {"task": "lm", "data": {"train": "a.txt"}, "model": {"arch": arch}}
    for name, table in tables.items():
        values[name] = {**values.get(name, {}), **table}
    return override(values, settings)


def settings_of(*args: Any, **tables: Any) -> RunConfig:
    return resolve(run_file(*args, **tables), base=BASE)


# ---- what wins


def test_defaults_then_the_preset_then_the_run_file_then_set():
    default, preset = LanguageModelConfig(), LM["gpt"].values
    assert (default.hidden_size, default.num_layers, default.logit_softcap) == (256, 2, 0)
    assert (preset["num_layers"], preset["logit_softcap"]) == (4, 15.0)
    plain = settings_of("gpt").model
    assert (plain.hidden_size, plain.num_layers, plain.logit_softcap) == (256, 4, 15.0)
    written = settings_of("gpt", model={"num_layers": 6, "hidden_size": 64}).model
    assert (written.hidden_size, written.num_layers, written.logit_softcap) == (64, 6, 15.0)
    resolved = settings_of(
        "gpt", settings=("model.num_layers=8", "model.logit_softcap=0"), model={"num_layers": 6, "hidden_size": 64}
    ).model
    assert (resolved.hidden_size, resolved.num_layers, resolved.logit_softcap) == (64, 8, 0)


def test_precedence_in_the_train_table():
    assert (TrainConfig().lr, TrainConfig().optimizer) == (1e-3, "adamw")
    assert (settings_of("lstm").train.lr, settings_of("lstm").train.optimizer) == (3e-3, "adamw")
    assert (settings_of("gpt").train.lr, settings_of("gpt").train.optimizer) == (4e-3, "muon")
    assert settings_of("lstm", train={"lr": 0.5}).train.lr == 0.5
    assert settings_of("lstm", train={"lr": 0.5}, settings=("train.lr=0.25",)).train.lr == 0.25
    assert settings_of("transformer").train == TrainConfig().with_defaults()


@pytest.mark.parametrize(
    ("settings", "budget"),
    [
        (("train.max_epochs=2",), {"max_epochs": 2}),
        (("train.max_minutes=0.5",), {"max_minutes": 0.5}),
        (("train.max_epochs=2", "train.max_tokens=9"), {"max_tokens": 9}),
        (("train.max_epochs=2", "model.hidden_size=8", "train.max_steps=7"), {"max_steps": 7}),
        (("train.lr=1",), {"max_steps": 5}),
    ],
)
def test_set_replaces_the_budget(settings, budget):
    values = run_file(train={"max_steps": 5})
    actual = override(values, settings)
    train = resolve(actual, base=BASE).train
    assert {name: value for name in BUDGETS if (value := getattr(train, name)) is not None} == budget
    assert values["train"] == {"max_steps": 5}


def test_run_file_budget_replaces_the_preset_and_two_budgets_are_rejected():
    values = {"task": "tagging", "data": {"train": "a.txt"}, "model": {"arch": "lstm"}}
    assert resolve(values, base=BASE).train.max_epochs == 20
    actual = resolve({**values, "train": {"max_steps": 3}}, base=BASE).train
    assert (actual.max_steps, actual.max_epochs) == (3, None)
    with pytest.raises(ConfigError) as caught:
        resolve({**values, "train": {"max_steps": 3, "max_tokens": 4}}, base=BASE)
    assert str(caught.value) == "train: max_steps and max_tokens are both set; set only one"


def test_options_of_the_preset_optimizer_are_removed_with_it():
    """The preset's beta2 does not make sgd fail; an explicit beta2 does."""
    assert [settings_of("gpt", train={"optimizer": name}).train.adam_beta2 for name in ("muon", "adamw", "sgd")] == [
        0.95,
        0.95,
        None,
    ]
    assert [settings_of("lstm", train={"optimizer": name}).train.adam_beta2 for name in ("muon", "adamw", "sgd")] == [
        0.99,
        0.99,
        None,
    ]
    assert "adam_beta2" not in settings_of("gpt", train={"optimizer": "sgd"}).to_dict()["train"]
    with pytest.raises(ConfigError) as caught:
        settings_of("gpt", train={"optimizer": "sgd", "adam_beta2": 0.9})
    assert str(caught.value) == "train.adam_beta2: not used with optimizer 'sgd'; remove it"


def test_set_can_change_the_architecture():
    settings = settings_of("lstm", settings=("model.arch=ngram", "seed=7"))
    assert (settings.arch, settings.seed, settings.model) == ("ngram", 7, NgramConfig())
    assert settings.preset is LM["ngram"]


@every_kind
def test_preset_values(arch):
    settings = settings_of(arch)
    preset = LM[arch]
    assert {name: getattr(settings.model, name) for name in preset.values} == dict(preset.values)
    assert {name: getattr(settings.train, name) for name in preset.train_defaults} == dict(preset.train_defaults)
    assert type(settings.model) is preset.config_class


def test_architectures_of_language_models():
    assert list(TASKS) == [
        *("lm", "seq2seq", "classification", "tagging", "masked-lm", "denoising", "qa", "asr", "captioning"),
        *("word-vectors", "reward-model", "instruction-tuning", "dpo", "policy-gradient"),
    ]
    assert find_task("lm").presets is LM
    assert list(LM) == ["ngram", "conv", "rnn", "lstm", "gru", "mingru", "minlstm", "transformer", "gpt"]
    mixers = {arch: settings_of(arch).model.layer_type for arch in LM if arch != "ngram"}
    attention = dict.fromkeys(("transformer", "gpt"), "attention")
    named = ("conv", "rnn", "lstm", "gru", "mingru", "minlstm")
    assert mixers == {**dict(zip(named, named, strict=True)), **attention}
    for arch in ("mingru", "minlstm"):
        model = settings_of(arch).model
        assert (model.num_layers, model.ffn_dim, model.skip_connection) == (2, 2 * model.hidden_size, "residual")


# ---- there and back


VARIANTS: list[dict[str, dict[str, Any]]] = [
    {},
    {"data": {"train": ["a.txt", "b.txt"], "valid": 0.1, "test": "c.txt", "encoding": "latin-1", "read_as": "lines"}},
    {"data": {"context_length": 32, "stride": 8}, "tokenizer": {"type": "bpe", "vocab_size": 300}},
    {"tokenizer": {"file": "tokenizer.json"}},
    {"data": {"valid": 0.1}, "train": {"max_minutes": 2.5, "optimizer": "sgd", "max_grad_norm": 0, "patience": 3}},
]


@every_kind
@pytest.mark.parametrize("tables", VARIANTS, ids=["plain", "lines", "windows", "file", "train"])
def test_a_resolved_file_round_trips(arch, tables):
    settings = settings_of(arch, **tables)
    values = tomllib.loads(settings.to_toml())
    assert values == settings.to_dict()
    elsewhere = Path("somewhere", "else").absolute()  # paths are absolute, so the file works anywhere
    again = resolve(values, base=elsewhere)
    assert again.to_dict() == settings.to_dict()
    assert (again.model, again.train, again.data) == (settings.model, settings.train, settings.data)


@every_kind
def test_a_resolved_file_names_every_option_that_applies(arch):
    values = settings_of(arch).to_dict()
    assert list(values) == ["task", "seed", "recommend", "data", "tokenizer", "model", "train"]
    table = LM[arch].config_class
    left_out = set(table.model_fields) - set(values["model"])
    assert all(table.model_fields[name].default is None for name in left_out)
    assert values["model"]["arch"] == arch and values["train"]["max_steps"] == 2000


# ---- paths


def test_paths_are_relative_to_the_run_file():
    settings = settings_of(data={"train": ["a.txt", "../b.txt"], "valid": "/data/v.txt", "test": 0.25})
    assert settings.data.train == [str(BASE / "a.txt"), str(BASE / "../b.txt")]
    assert (settings.data.valid, settings.data.test) == ("/data/v.txt", 0.25)
    sources = settings.datasets
    assert sources["train"].paths == (BASE / "a.txt", BASE / "../b.txt")
    assert (sources["valid"].paths, sources["test"].low) == ((Path("/data/v.txt"),), 0.75)
    relative = resolve(run_file(), base=Path("here"))
    assert relative.data.train == str(Path("here/a.txt").absolute())


def test_tokenizer_file_is_relative_to_the_run_file_and_defines_its_type():
    settings = settings_of(tokenizer={"file": "tokenizer.json"})
    assert settings.tokenizer.file == str(BASE / "tokenizer.json")
    assert settings.to_dict()["tokenizer"] == {"file": str(BASE / "tokenizer.json")}
    assert settings_of().to_dict()["tokenizer"] == {"type": "char", "vocab_size": 8000, "lowercase": False}


def test_tokenizer_of_another_run_is_used(tmp_path):
    run = tmp_path / "other"
    run.mkdir()
    (run / "resolved.toml").write_text("")
    values = run_file(tokenizer={"type": "bpe", "vocab_size": 400})

    def refusal(error: type[Exception], folder: Path) -> str:
        with pytest.raises(error) as caught:
            with_tokenizer_from(values, folder)
        return str(caught.value)

    assert refusal(UsageError, run) == f"tokenizer_from: {run} has no tokenizer.json"
    assert (
        refusal(ModelError, tmp_path / "nowhere")
        == f"{tmp_path / 'nowhere'}: run directory not found; did you mean {tmp_path / 'other'}?"
    )
    train_tokenizer(TokenizerConfig(), iter(["abc"])).save(run / "tokenizer.json")
    borrowed = with_tokenizer_from(values, run)
    assert borrowed == {**values, "tokenizer": {"file": str((run / "tokenizer.json").resolve())}}
    assert values["tokenizer"] == {"type": "bpe", "vocab_size": 400}  # a copy was changed
    assert resolve(borrowed, base=BASE).tokenizer.file == str((run / "tokenizer.json").resolve())


# ---- what is refused


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in run_file().items() if key != name}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "task: required option is missing"),
    (without("task"), "task: required option is missing"),
    (without("data"), "data.train: required option is missing"),
    ({**run_file(), "learning_rate": 1e-3}, "learning_rate: unknown option; did you mean 'train.lr'?"),
    ({**run_file(), "train": {"hidden_size": 8}}, "train.hidden_size: unknown option; did you mean 'model.hidden_size'?"),
    ({**run_file(), "model": {"arch": "gpt", "lr": 1e-3}}, "model.lr: unknown option; did you mean 'train.lr'?"),
    (
        {**run_file(), "data": {"train": "a.txt", "valid": "0.1"}},
        "data.valid: expected a file name or a fraction, got '0.1'; write valid = 0.1",
    ),
    (without("model"), 'model.arch: required option is missing; add arch = "gpt" under [model]'),
    (
        {**run_file(), "task": "ml"},
        "task: unknown task 'ml'; did you mean 'lm'?",
    ),
    (
        {**run_file(), "task": "translation"},
        "task: unknown task 'translation'; did you mean 'seq2seq'?",
    ),
    ({**run_file(), "task": 3}, "task: expected a string, got 3"),
    ({**run_file(), "model": {}}, 'model.arch: required option is missing; add arch = "gpt" under [model]'),
    ({**run_file(), "model": {"hidden_size": 8}}, 'model.arch: required option is missing; add arch = "gpt" under [model]'),
    (run_file("gtp"), "model.arch: unknown architecture 'gtp'; did you mean 'gpt'?"),
    (run_file(model={"arch": 3}), "model.arch: expected a string, got 3"),
    (run_file(model={"arch": ["lstm"]}), "model.arch: expected a string, got ['lstm']"),
    ({**run_file(), "modle": {}}, "modle: unknown option; did you mean 'model'?"),
    # the misspelled table explains why the correct one is missing
    ({**without("model"), "modell": {"arch": "gpt"}}, "modell: unknown option; did you mean 'model'?"),
    ({**run_file(), "seed": -1}, "seed: must be at least 0, got -1"),
    ({**run_file(), "seed": "one"}, "seed: expected an integer, got 'one'"),
    ({**run_file(), "model": "lstm"}, "model: expected a table, got 'lstm'"),
    ({**run_file(), "train": 3}, "train: expected a table, got 3"),
    ({**run_file(), "data": {}}, "data.train: required option is missing"),
    ({**run_file(), "data": {"trian": "a"}}, "data.trian: unknown option; did you mean 'train'?"),
    (run_file(data={"raed_as": "lines"}), "data.raed_as: unknown option; did you mean 'read_as'?"),
    (run_file(data={"read_as": "line"}), "data.read_as: expected 'windows', 'stream' or 'lines', got 'line'"),
    (run_file(data={"context_length": 0}), "data.context_length: must be at least 1, got 0"),
    (run_file(data={"stride": 8, "read_as": "lines"}), "data.stride: not used with read_as 'lines'; remove it"),
    (
        run_file(tokenizer={"kidn": "bpe"}),
        "tokenizer.kidn: unknown option; choose from type, vocab_size, lowercase, file",
    ),
    (
        run_file(tokenizer={"type": "bep"}),
        "tokenizer.type: unknown type 'bep'; did you mean 'bpe'?",
    ),
    (
        run_file(tokenizer={"type": "bpe", "file": "t.json"}),
        "tokenizer.file: cannot be combined with type; remove one of them",
    ),
    (run_file(model={"hiden_size": 8}), "model.hiden_size: unknown option; did you mean 'hidden_size'?"),
    (
        run_file("ngram", model={"ordr": 3}),
        "model.ordr: unknown option; did you mean 'order'?",
    ),
    (
        run_file("ngram", model={"hidden_size": 8}),
        "model.hidden_size: unknown option; choose from order, smoothing, delta, prune, closed_vocab",
    ),
    (run_file(train={"stpes": 3}), "train.stpes: unknown option; did you mean 'max_steps'?"),
    (run_file(train={"max_steps": 3, "max_minutes": 1.0}), "train: max_steps and max_minutes are both set; set only one"),
    (run_file("gpt", model={"layer_type": "lstm"}), "model.qk_norm: not used with layer_type 'lstm'; remove it"),
    (
        run_file("gpt", train={"optimizer": "adamw", "momentum": 0.5}),
        "train.momentum: not used with optimizer 'adamw'; remove it",
    ),
    (
        run_file("gpt", model={"tie_embeddings": True}),
        "model.tie_embeddings: cannot be combined with zero_init, which would set the embedding to zero; set zero_init = false",
    ),
    (
        run_file("lstm", model={"bidirectional": True}),
        "model.bidirectional: not possible for a language model, which would see the tokens it predicts",
    ),
    (
        run_file(train={"patience": 3}),
        "train.patience: requires validation data; set data.valid",
    ),
    (
        run_file(train={"monitor": "loss"}),
        "train.monitor: requires validation data; set data.valid",
    ),
    (
        run_file(train={"monitor": "bleu"}, data={"valid": 0.1}),
        "train.monitor: unknown metric 'bleu'; choose from loss",
    ),
    # sizes whose product exceeds 64 bits
    (run_file(data={"context_length": 2**31}), "data.context_length: must be at most 2147483647, got 2147483648"),
    (run_file(model={"ffn_dim": 2**60}), "model.ffn_dim: must be at most 1048576, got 1152921504606846976"),
    (run_file("gpt", model={"num_heads": 2**60}), "model.num_heads: must be at most 1048576, got 1152921504606846976"),
    (run_file(train={"micro_batches": 2**64}), "train.micro_batches: must be at most 65536, got 18446744073709551616"),
    (
        run_file("transformer", data={"read_as": "stream"}),
        "model.position_encoding: 'learned' is not possible with data.read_as 'stream'; use 'rotary'",
    ),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
def test_error_messages(values, message):
    with pytest.raises(ConfigError) as caught:
        resolve(values, base=BASE)
    assert str(caught.value) == message


def test_unlimited_positions_can_be_streamed():
    for arch in ("gpt", "lstm", "ngram"):
        assert settings_of(arch, data={"read_as": "stream"}).data.read_as == "stream"


@pytest.mark.parametrize("name", ["cuda", "auto", "cpu"])
def test_missing_device_is_rejected(monkeypatch, name):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    if name != "cuda":
        assert pick_device(name).type == "cpu"
        return
    with pytest.raises(UsageError) as caught:
        pick_device(name)
    assert str(caught.value) == "train.device: no CUDA GPU found; use 'auto' or 'cpu'"


# ---- how a run is evaluated unless it is asked otherwise


@pytest.mark.parametrize(
    ("arch", "data", "model", "context"),
    [
        # attention trained on windows works best within them, for any position encoding
        ("gpt", {}, {}, "full/stride:32/64"),
        ("transformer", {}, {}, "full/stride:32/64"),
        ("gpt", {"context_length": 7}, {}, "full/stride:4/7"),
        ("gpt", {"context_length": 1}, {}, "full/stride:1/1"),
        ("gpt", {"read_as": "stream"}, {}, "full/carry:warm-64"),
        ("lstm", {}, {}, "full/carry:warm-64"),
        ("lstm", {"read_as": "stream"}, {}, "full/carry:warm-64"),
        ("conv", {}, {}, "full/carry:warm-64"),
        ("ngram", {}, {}, "full/carry:warm-64"),
        # learned positions are undefined beyond the window
        ("lstm", {}, {"position_encoding": "learned"}, "full/stride:32/64"),
        ("lstm", {}, {"position_encoding": "sinusoidal"}, "full/stride:32/64"),
        ("lstm", {"read_as": "stream"}, {"position_encoding": "sinusoidal"}, "full/carry:warm-64"),
        ("lstm", {"read_as": "lines"}, {}, "reset:line"),
        ("gpt", {"read_as": "lines"}, {}, "reset:line"),
        ("ngram", {"read_as": "lines"}, {}, "reset:line"),
    ],
)
def test_default_context_policy(arch, data, model, context):
    assert str(default_context(settings_of(arch, data={"context_length": 64, **data}, model=model))) == context
