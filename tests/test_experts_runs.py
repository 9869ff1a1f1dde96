"""Runs with a mixture of experts: every task, resuming, explanations, parameter counts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from label_runs import classification_run_file, single_label_rows, tagged_sentences, tagging_run_file, write_conll
from seq2seq_runs import make_pairs, seq2seq_run_file
from small_runs import SilentCallback, make_text, run_file, run_hashes, train_here
from speech_runs import make_recordings, speech_run_file

import weft
from weft.cli.main import main
from weft.comparison.costs import active_parameters
from weft.comparison.results_check import _cost
from weft.errors import ConfigError, TrainingInterrupted, UsageError
from weft.explain.experts import routed_layers
from weft.explain.inputs import read
from weft.explain.options import ExplainConfig
from weft.interop.hf_export import export_model
from weft.log import read_log
from weft.nn.experts import expert_layers
from weft.training.loop import Loop

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
EXPERTS: dict[str, Any] = {"num_experts": 4, "ffn_dim": 16}
WITH_EXPERTS = {f"model__{name}": value for name, value in EXPERTS.items()}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def lm(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of lines, with dropout and Muon."""
    out = tmp_path_factory.mktemp("runs") / "lm"
    train_here(lines_file(text), out)
    return out


def lines_file(text: Path) -> dict[str, Any]:
    options = {"data__read_as": "lines", "train__micro_batches": 2, "model__num_shared_experts": 1, "train__optimizer": "muon"}
    return run_file(text, "gpt", train__max_steps=8, train__num_validations=2, **WITH_EXPERTS, **options)


class LoadCallback(SilentCallback):
    """Compares the number of tokens that the experts of each layer take with the number of tokens of each step."""

    def __init__(self) -> None:
        super().__init__(inspect=self.compare)
        self.tokens = 0
        self.equal: list[list[bool]] = []

    def compare(self, loop: Loop) -> None:
        tokens, self.tokens = loop.train_state.tokens - self.tokens, loop.train_state.tokens
        self.equal.append([int(counts.sum()) == 2 * tokens for counts in loop.expert_log.counts])


def task_file(tmp_path: Path, name: str) -> dict[str, Any]:
    overrides = [f"model.{option}={value}" for option, value in EXPERTS.items()]
    match name:
        case "lm":
            return lines_file(make_text(tmp_path / "text.txt"))
        case "masked-lm":
            values = run_file(
                make_text(tmp_path / "text.txt"), "transformer", data__read_as="lines", train__max_steps=2, **WITH_EXPERTS
            )
            return values | {"task": "masked-lm"}
        case "transformer" | "luong":
            return seq2seq_run_file(make_pairs(tmp_path / "pairs.tsv"), name, *overrides, "train.max_steps=2")
        case "asr":
            values = speech_run_file(make_recordings(tmp_path), train__max_steps=2, train__num_validations=1)
            return values | {"model": {**values["model"], "arch": "conformer", "num_heads": 2, "ctc_weight": 0.5, **EXPERTS}}
        case "classification":
            path = tmp_path / "labels.tsv"
            path.write_text("label\ttext\n" + "".join(f"{label}\t{words}\n" for label, words in single_label_rows(60)))
            return classification_run_file(path, "transformer", *overrides, "train.max_steps=2")
    path = write_conll(tmp_path / "tags.txt", tagged_sentences(60))
    return tagging_run_file(path, "transformer", *overrides, "train.max_steps=2")


@pytest.mark.parametrize(
    ("name", "num_layers", "num_full"),
    [
        ("lm", 1, 1),
        ("masked-lm", 1, 1),
        ("classification", 2, 2),
        ("tagging", 2, 2),
        ("transformer", 4, 2),  # the decoder reads as many tokens as it predicts
        ("luong", 2, 1),  # position by position
        ("asr", 3, 1),  # two sublayers in a Conformer, one in the decoder
    ],
)
def test_experts_take_every_token_of_a_batch_once(tmp_path, name, num_layers, num_full):
    callback = LoadCallback()
    train_here(task_file(tmp_path, name), tmp_path / "run", callback)
    assert callback.equal and all(len(step) == num_layers and sum(step[-num_full:]) == num_full for step in callback.equal)
    run = weft.load(tmp_path / "run", device="cpu")
    assert len(expert_layers(run.model)) == num_layers


def test_a_run_resumes_bit_for_bit_and_logs_the_load(text, lm, tmp_path):
    with pytest.raises(TrainingInterrupted):
        train_here(lines_file(text), tmp_path / "run", SilentCallback(stop_at=5))
    train_here(lines_file(text), tmp_path / "run")
    assert run_hashes(tmp_path / "run") == run_hashes(lm)
    lines = [record for record in read_log(lm / "metrics.jsonl") if "train_loss" in record]
    assert len(lines) == 8
    for line in lines:
        assert line["expert_load_min_1"] <= 0.25 <= line["expert_load_max_1"] <= 0.5 and 1.5 < line["balance_loss"] < 4.0


def test_generation_equals_reading_the_whole_text(lm):
    run = weft.load(lm, device="cpu")
    tokens = torch.tensor([run.generate("the cat", max_new_tokens=12, temperature=0.0).token_ids])
    _, state = run.model.start(tokens[:, :1])
    steps = []
    for position in range(1, tokens.size(1)):
        scores, state = run.model.step(tokens[:, position], state)
        steps.append(scores)
    whole = run.model.head(run.model(tokens)[0])[0, 1:]
    torch.testing.assert_close(torch.cat(steps), whole, atol=1e-5, rtol=1e-5)


# ---- parameter counts


def test_parameters_are_counted_in_total_and_active(lm, capsys):
    run = weft.load(lm, device="cpu")
    experts = sum(weight.numel() for layer in expert_layers(run.model).values() for weight in layer.experts.parameters())
    active = run.num_parameters - experts // 2
    assert active_parameters(run.model) == active and active_parameters(None) is None
    assert main(["info", str(lm)]) == 0
    assert f"gpt, {run.num_parameters:,} parameters, {active:,} active" in capsys.readouterr().out
    assert main(["info", str(lm), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    parts = {part["part"]: part["parameters"] for part in info["parts"]}
    assert info["active_parameters"] == active and parts["experts"] == experts
    assert parts["router"] == 4 * 8 and parts["feed-forward"] == 2 * 16 * 8  # the shared expert


def test_a_comparison_has_active_parameters(text, lm, tmp_path, capsys):
    values = lines_file(text)
    values["model"] = {name: value for name, value in values["model"].items() if "experts" not in name}
    train_here(values, tmp_path / "dense")
    command = ["compare", str(lm), str(tmp_path / "dense"), "--output-dir", str(tmp_path / "out"), "--data", str(text)]
    assert main(command) == 0
    head, *rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()][:3]
    assert "active" in head and len(rows) == 2
    document = json.loads((tmp_path / "out" / "comparison.json").read_text())
    counts = {row["name"]: (row["num_parameters"], row.get("num_active_parameters")) for row in document["rows"]}
    total, active = next(pair for pair in counts.values() if pair[1] is not None)
    assert active < total and any(pair[1] is None for pair in counts.values())
    assert "active params" in (tmp_path / "out" / "report.html").read_text()


def test_results_of_earlier_versions_have_no_active_parameters():
    cost = {"num_parameters": 1, "seconds": 1.0, "tokens_per_second": 1.0, "peak_memory": 1, "model_bytes": 1}
    cost |= {"inference_rate": 1.0, "inference_unit": "lines/s"}
    assert not list(_cost(cost)) and not list(_cost({**cost, "num_active_parameters": 3}))
    assert list(_cost({**cost, "num_active_parameters": "3"})) == ["cost.num_active_parameters"]
    assert list(_cost({**cost, "other": 3})) == ["cost"]


# ---- explanations


def test_the_view_has_the_experts_of_each_token(lm):
    run = weft.load(lm, device="cpu")
    explanation = run.explain("the old cat", "experts")
    (layer,) = explanation.data["layers"]
    inputs = read(run, "the old cat", ExplainConfig())
    tokens = torch.tensor([inputs.sides[0].tokens])
    chosen = list[Any]()
    run.model.stack.layers[1].mixer.router.register_forward_hook(lambda module, given, routing: chosen.append(routing))
    run.model(tokens)
    assert layer["experts"] == (chosen[0].experts + 1).tolist() and layer["layer"] == "layer 1"
    np.testing.assert_allclose(layer["weights"], chosen[0].gates.detach().numpy(), atol=1e-5)
    assert [token["text"] for token in layer["tokens"]] == [span.text for span in inputs.sides[0].spans]
    assert sum(layer["load"]) == pytest.approx(1.0, abs=1e-4) and explanation.data["data"] == "valid data"
    first, load = explanation.figures
    assert first.caption == "Experts of each token" and load.caption == "Load of each expert"
    numbers = "+".join(map(str, layer["experts"][0]))
    assert f">{numbers}</text>" in first.svg and "hsl(" in first.svg and "hsl(" not in load.svg
    assert explanation.lines[0].startswith("load on ") and len(explanation.lines) == 2 + 4
    with pytest.raises(UsageError) as caught:
        run.explain("the old cat", "experts", layer=3)
    assert str(caught.value) == "layer: no layer 3 has experts; choose from 1"


def test_encoder_and_decoder_have_experts_of_their_own(tmp_path):
    train_here(task_file(tmp_path, "transformer"), tmp_path / "run")
    run = weft.load(tmp_path / "run", device="cpu")
    explanation = run.explain("abc", "experts")
    layers = routed_layers(run, read(run, "abc", ExplainConfig()))
    assert [layer.label for layer in layers] == ["encoder 1", "encoder 2", "decoder 1", "decoder 2"]
    assert len(explanation.figures) == 3 and explanation.data["data"] == "the text"
    assert len(layers[0].spans) == len(layers[0].experts) and len(layers[3].spans) == len(layers[3].experts)
    with pytest.raises(UsageError, match=r"Pegasus, .* has no equivalent of model\.num_experts = 4"):
        export_model(run, tmp_path / "exported")


def test_a_model_without_experts_does_not_have_the_view(text, tmp_path):
    train_here(run_file(text, "gpt", train__max_steps=1), tmp_path / "run")
    with pytest.raises(UsageError, match=r"view: experts is not available: gpt has no experts \(model.num_experts\)"):
        weft.load(tmp_path / "run", device="cpu").explain("the cat", "experts")


# ---- other features


def test_export_is_refused(text, tmp_path):
    train_here(run_file(text, "transformer", train__max_steps=1, **WITH_EXPERTS), tmp_path / "run")
    with pytest.raises(UsageError) as caught:
        export_model(weft.load(tmp_path / "run", device="cpu"), tmp_path / "exported")
    assert str(caught.value) == (
        "export: GPT-2, the nearest architecture, has no equivalent of model.num_experts = 4; train with no model.num_experts"
    )


def test_weights_initialize_a_run_with_the_same_experts_only(text, lm, tmp_path):
    values = lines_file(text)
    values["train"] |= {"init_from": str(lm), "max_steps": 1}
    values["model"] |= {"balance_loss_weight": 0.5}
    train_here(values, tmp_path / "same")
    values["model"] |= {"experts_per_token": 1}
    with pytest.raises(ConfigError, match="experts_per_token"):
        train_here(values, tmp_path / "other")
