"""Parameter counts by part of the model: worked examples, and parts that add up to the total."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from seq2seq_runs import MODELS as PAIR_MODELS
from seq2seq_runs import seq2seq_run_file
from small_runs import make_text, run_file, train_here
from torch import nn

from weft.cli.main import main
from weft.models.config import LanguageModelConfig
from weft.models.lm import language_model
from weft.models.parts import count_parameters
from weft.models.seq2seq import encoder_decoder
from weft.runs.resolve import resolve
from weft.tasks.registry import TASKS, find_task
from weft.text.labels import LabelVocabulary

WORDS, WIDTH, LAYERS, HIDDEN, WINDOW = 11, 8, 2, 32, 16


def counts(model: nn.Module) -> dict[str, int]:
    return {part.title: part.num_parameters for part in count_parameters(model)}


def language(**options: Any) -> nn.Module:
    table = LanguageModelConfig(hidden_size=WIDTH, num_layers=LAYERS, **options).with_defaults()
    return language_model(table, vocab_size=WORDS, context_length=WINDOW, vocabulary="")


def test_parameters_of_a_transformer_match_the_formula():
    """Four attention matrices, two feed-forward matrices, a norm before each and a final one, all with biases."""
    actual = counts(
        language(layer_type="attention", num_heads=2, position_encoding="learned", skip_connection="residual", norm="layernorm")
    )
    assert actual == {
        "embedding": WORDS * WIDTH,
        "positions": WINDOW * WIDTH,
        "norms": (2 * LAYERS + 1) * 2 * WIDTH,
        "attention": LAYERS * 4 * (WIDTH**2 + WIDTH),
        "feed-forward": LAYERS * (2 * WIDTH * HIDDEN + HIDDEN + WIDTH),
        "output": WORDS * WIDTH + WORDS,
    }


@pytest.mark.parametrize(("mixer", "gates"), [("rnn", 1), ("lstm", 4), ("gru", 3)])
def test_recurrent_layers_have_a_block_for_each_gate(mixer, gates):
    actual = counts(language(layer_type=mixer))
    assert actual["recurrent"] == LAYERS * gates * (2 * WIDTH**2 + 2 * WIDTH)  # torch has two biases
    assert set(actual) == {"embedding", "recurrent", "output"}


def test_tied_weights_are_counted_once_and_named():
    model = language(layer_type="lstm", tie_embeddings=True)
    first, *_, last = count_parameters(model)
    assert (first.name, first.num_parameters, first.tied) == ("embedding", WORDS * WIDTH, ("output",))
    assert (last.name, last.num_parameters) == ("output", WORDS)  # the bias


def test_relative_positions_are_no_embedding():
    actual = counts(language(layer_type="attention", num_heads=2, position_encoding="relative"))
    assert actual["embedding"] == WORDS * WIDTH
    assert actual["positions"] == LAYERS * 65 * (WIDTH // 2)


def pair_model(name: str, tmp: Path) -> nn.Module:
    settings = resolve(seq2seq_run_file(tmp / "pairs.tsv", name), base=tmp)
    return encoder_decoder(settings.model, source_vocab_size=9, target_vocab_size=9, max_positions=16, vocabulary="")


@pytest.mark.parametrize("name", PAIR_MODELS)
def test_encoder_and_decoder_are_listed_separately(tmp_path, name):
    model: Any = pair_model(name, tmp_path)
    actual = count_parameters(model)
    total = {side: sum(w.numel() for w in getattr(model, side).parameters()) for side in ("encoder", "decoder")}
    shared = sum(part.num_parameters for part in actual if part.side == "encoder" and "decoder embedding" in part.tied)
    assert sum(part.num_parameters for part in actual if part.side == "encoder") == total["encoder"]
    assert sum(part.num_parameters for part in actual if part.side == "decoder") == total["decoder"] - shared
    assert sum(part.num_parameters for part in actual) == sum(w.numel() for w in model.parameters())


def test_attention_and_bridge_of_a_decoder(tmp_path):
    actual = counts(pair_model("luong", tmp_path))
    width = 16
    assert actual["decoder cross-attention"] >= 2 * width * width + width  # the projection of context and state
    assert "decoder bridge" in counts(pair_model("bahdanau", tmp_path))
    assert {"copying", "encoder embedding"} <= set(counts(pair_model("joint", tmp_path)))


LINES = {"data": {"train": "x"}}


@pytest.mark.parametrize(
    ("task", "arch"),
    [
        (task, arch)
        for task, one in ((name, find_task(name)) for name in TASKS)
        for arch, preset in one.presets.items()
        if preset.estimator.network_task is not None
    ],
)
def test_every_architecture_has_only_named_parts(tmp_path, task, arch):
    values = {"task": task, "data": {"train": "data.tsv"}, "model": {"arch": arch}}
    settings = resolve(values, base=tmp_path)

    class Words:
        """The parts of a tokenizer, or a pair, that building a model needs."""

        vocab_size, hash, unk_id, bos_id, eos_id, mask_id, labels = 12, "", 0, 1, 2, 3, LabelVocabulary(("O", "B-x", "I-x"))

        def __getattr__(self, name: str) -> Any:
            return self

    with torch.device("meta"):
        model = settings.preset.estimator.network_task.build(settings, Words())()
    actual = count_parameters(model)
    assert sum(part.num_parameters for part in actual) == sum(weight.numel() for weight in model.parameters())
    assert [part.title for part in actual if part.name == "other"] == []


def test_info_shows_parts_and_their_fractions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    values = run_file(
        make_text(tmp_path / "text.txt"), "lstm", train__max_steps=1, train__num_validations=1, model__tie_embeddings=True
    )
    train_here(values, tmp_path / "run")
    assert main(["info", "run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert sum(part["parameters"] for part in data["parts"]) == data["parameters"]
    assert sum(part["share"] for part in data["parts"]) == pytest.approx(1)
    words = next(iter(data["tokenizers"].values()))["vocab_size"]
    assert data["parts"][0] == {
        "part": "embedding",
        "parameters": 8 * words,
        "share": 8 * words / data["parameters"],
        "tied": ["output"],
    }
    assert main(["info", "run"]) == 0
    out = capsys.readouterr().out
    assert f"\n             embedding    {8 * words}  {8 * words / data['parameters']:5.1%}  tied to the output\n" in out
    assert "\n             recurrent  1,152  " in out


def test_info_of_ngram_models_lists_each_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    values = run_file(make_text(tmp_path / "text.txt"))
    values["model"] = {"arch": "ngram", "order": 3}
    train_here(values, tmp_path / "run")
    assert main(["info", "run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [part["part"] for part in data["parts"]] == ["1-grams", "2-grams", "3-grams"]
    assert sum(part["parameters"] for part in data["parts"]) == data["parameters"]
