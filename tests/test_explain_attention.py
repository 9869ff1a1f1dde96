"""The attention view and attention rollout: against alignments, worked values, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from label_runs import LabelRuns
from seq2seq_runs import Seq2SeqRuns
from small_runs import make_text, run_file, train_here

import weft
from weft.errors import UsageError
from weft.explain.attention import attention, attention_rollout, rollout
from weft.explain.options import ExplainConfig
from weft.explain.views import available_views, explain_text


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Seq2SeqRuns:
    runs = Seq2SeqRuns(tmp_path_factory.mktemp("pairs"))
    for kind in ("lstm", "transformer", "bahdanau", "sutskever"):
        runs.run_dir(kind, "train.max_steps=3", "train.num_validations=1")  # nothing here needs to be learned
    return runs


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> LabelRuns:
    return LabelRuns(tmp_path_factory.mktemp("labels"))


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("language")
    text = make_text(place / "text.txt")
    train_here(run_file(text, "gpt", train__max_steps=3), place / "run")
    return place / "run"


@pytest.mark.parametrize("kind", ["transformer", "lstm", "bahdanau"])
def test_cross_attention_equals_the_alignment(pairs, kind):
    run = weft.load(pairs.run_dir(kind))
    best = run.predict("badac", beam_size=3).ranked()
    data = attention(run, "badac", ExplainConfig(beam_size=3, component="cross")).data
    mean = np.mean([np.mean(layer["weights"], axis=0) for layer in data["layers"]], axis=0)
    aligned = run.predictor.align(["badac"], best[:1])[0]
    np.testing.assert_allclose(mean, aligned.weights, atol=1e-4)
    assert [token["text"] for token in data["tokens"]] == aligned.source_tokens
    assert [token["text"] for token in data["output"]] == aligned.target_tokens
    assert [(token["start"], token["end"]) for token in data["tokens"]] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 0)]


def test_all_heads_of_all_layers_are_shown_and_one_can_be_selected(pairs):
    run = weft.load(pairs.run_dir("transformer"))
    view = attention(run, "bada", ExplainConfig(target="B A"))
    assert [(one["component"], one["layer"], np.shape(one["weights"])) for one in view.data["layers"]] == [
        ("cross", 1, (2, 3, 5)), ("cross", 2, (2, 3, 5)),
        ("encoder", 1, (2, 5, 5)), ("encoder", 2, (2, 5, 5)),
        ("decoder", 1, (2, 3, 3)), ("decoder", 2, (2, 3, 3)),
    ]  # fmt: skip
    for one in view.data["layers"]:
        np.testing.assert_allclose(np.sum(one["weights"], axis=-1), 1.0, atol=1e-3)
    assert len(view.lines) == 1 + 12 + 2 + 3 and len(view.figures) == 6
    json.dumps(view.data, allow_nan=False)
    alone = attention(run, "bada", ExplainConfig(target="B A", component="encoder", layer=2, head=2))
    assert len(alone.data["layers"]) == 1 and alone.data["layers"][0]["heads"] == [2]
    np.testing.assert_allclose(alone.data["layers"][0]["weights"][0], view.data["layers"][3]["weights"][1], atol=1e-6)
    assert [picture.caption for picture in alone.figures] == ["Encoder self-attention, layer 2, head 2"]


def test_a_language_model_attends_only_to_the_left(language):
    run = weft.load(language)
    data = attention(run, "the cat", ExplainConfig()).data
    weights = np.array(data["layers"][0]["weights"])
    assert weights.shape == (2, 9, 9) and (np.triu(weights[0], 1) == 0).all()
    assert [token["text"] for token in data["tokens"]] == [".", "\n", *"the cat"]


def test_attention_pooling_is_shown_over_the_text(labels, tmp_path):
    values = labels.values("labels-lstm", "model.pooling=attention", "train.max_steps=3")
    train_here(values, tmp_path / "run")
    run = weft.load(tmp_path / "run")
    view = attention(run, "the old cat", ExplainConfig())
    assert [(one["component"], np.shape(one["weights"])) for one in view.data["layers"]] == [("pooling", (1, 1, 5))]
    with torch.no_grad():
        reading = run.model
        tokens = torch.tensor([[1, *run.vocabulary.tokenizer.encode("the old cat").tolist(), 2]])
        y, keep = reading.encoder(weft.models.encoder.EncoderInput(tokens, tokens >= 0))
        expected = reading.pooling.weights(y, keep)
    np.testing.assert_allclose(view.data["layers"][0]["weights"][0], expected.numpy(), atol=1e-4)


# ---- rollout


def test_rollout_by_hand():
    first, second = np.array([[[1.0, 0.0], [0.5, 0.5]]]), np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    # A1 = [[1, 0], [.25, .75]], A2 = [[1, 0], [.25, .75]] (heads' mean [[1, 0], [.5, .5]]), A2 A1:
    np.testing.assert_allclose(attention_rollout([first, second]), [[1.0, 0.0], [0.4375, 0.5625]])


def test_rollout_of_runs(pairs, language, labels):
    for run, text, size in ((weft.load(pairs.run_dir("transformer")), "bada", 5), (weft.load(language), "the cat", 9)):
        view = rollout(run, text, ExplainConfig(top=2))
        weights = np.array(view.data["weights"])
        assert weights.shape == (size, size)
        np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-3)
        part = "encoder" if run.config.task == "seq2seq" else "decoder"
        layers = attention(run, text, ExplainConfig(component=part)).data["layers"]
        np.testing.assert_allclose(weights, attention_rollout([np.array(one["weights"]) for one in layers]), atol=1e-3)


def test_undefined_rollout_is_refused(pairs, labels, tmp_path):
    run = weft.load(pairs.run_dir("lstm"))
    with pytest.raises(UsageError) as caught:
        explain_text(run, "bada", "rollout", ExplainConfig())
    assert str(caught.value) == (
        "view: rollout is not available: lstm has no self-attention in its first stack; "
        f"choose from {', '.join(available_views(run))}"
    )
    train_here(labels.values("labels-transformer", "model.skip_connection=highway", "train.max_steps=2"), tmp_path / "run")
    with pytest.raises(UsageError) as caught:
        rollout(weft.load(tmp_path / "run"), "the cat", ExplainConfig())
    assert str(caught.value) == "rollout: skip_connection = 'highway' is not residual"
    with pytest.raises(UsageError) as caught:
        rollout(weft.load(pairs.run_dir("transformer")), "the cat", ExplainConfig(layer=1))
    assert str(caught.value) == "rollout: uses all layers and heads; remove `layer` and `head`"


# ---- refusals


def test_invalid_options_are_refused(pairs):
    run = weft.load(pairs.run_dir("transformer"))
    wrong = {
        "component: the model has no pooling attention; choose from cross, encoder, decoder": {"component": "pooling"},
        "layer: must be from 1 to 2, got 3": {"layer": 3},
        "head: must be from 1 to 2, got 3": {"head": 3},
    }
    for message, options in wrong.items():
        with pytest.raises(UsageError) as caught:
            attention(run, "bada", ExplainConfig(**options))
        assert str(caught.value) == message
    plain = weft.load(pairs.run_dir("sutskever"))
    with pytest.raises(UsageError) as caught:
        attention(plain, "bada", ExplainConfig())
    assert str(caught.value) == f"attention: sutskever has no attention ({plain.directory.path})"
    with pytest.raises(UsageError) as caught:
        plain.explain("bada", "attention")
    assert str(caught.value) == (
        f"view: attention is not available: sutskever has no attention; choose from {', '.join(available_views(plain))}"
    )
    with pytest.raises(UsageError) as caught:
        plain.explain("bada", "attenton")
    assert str(caught.value) == "view: unknown view 'attenton'; did you mean 'attention'?"
    assert (
        available_views(plain)[0] == "attribution"
        and plain.explain("bada", max_new_tokens=2, method="input-x-gradient").view == "attribution"
    )


def test_a_compiled_model_is_refused_by_name(pairs):
    run = weft.load(pairs.run_dir("transformer"))
    run.members[0].model.decoder.compile(backend="eager")
    with pytest.raises(UsageError) as caught:
        attention(run, "bada", ExplainConfig(target="B", component="decoder"))
    assert str(caught.value) == ("record_activations: 'decoder' is compiled; load the run again without compiling")


def test_no_hook_stays_in_the_model(pairs):
    run = weft.load(pairs.run_dir("transformer"))
    for what in ("attention", "attribution"):
        run.explain("bada", what, target="B A")
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in run.members[0].model.modules())
    assert not any(weight.grad is not None for weight in run.members[0].model.parameters())


OPTIONS = {
    "method: unknown method 'integrate'; did you mean 'integrated-gradients'?": {"method": "integrate"},
    "component: unknown component 'middle'; choose from encoder, decoder, cross, pooling": {"component": "middle"},
    "baseline: unknown baseline 'zeros'; did you mean 'zero'?": {"baseline": "zeros"},
    "layer: must be between 1 and 10,000, got 0": {"layer": 0},
    "n_steps: must be between 1 and 100,000, got 0": {"n_steps": 0},
    "top_p: must be in (0, 1], got 0": {"top_p": 0.0},
    "min_p: must be in [0, 1], got 2": {"min_p": 2.0},
    "unit: must be at least 1, got 0": {"unit": [3, 0]},
    "head: expected an integer, got 'x'": {"head": "x"},
}


@pytest.mark.parametrize("message", OPTIONS)
def test_options_are_refused_as_the_command_line_spells_them(message):
    with pytest.raises(UsageError) as caught:
        ExplainConfig(**OPTIONS[message])
    assert str(caught.value) == message
