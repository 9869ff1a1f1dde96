"""Logit lens and surprisal: against heads and losses called by hand."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from seq2seq_runs import Seq2SeqRuns
from small_runs import make_text, run_file, train_here

import weft
from weft.errors import DataError, UsageError
from weft.explain.beam_search import why_no_search
from weft.explain.distribution import why_no_distribution
from weft.explain.inputs import read
from weft.explain.logit_lens import layer_log_probs, logit_lens, why_no_lens
from weft.explain.options import ExplainConfig
from weft.explain.surprisal import surprisal, why_no_surprisal
from weft.models.encoder import EncoderInput
from weft.plots.token_table import TokenGuess, token_table
from weft.tasks.tagging.task import TAGGING

TEXT = "the old cat"
MODELS = {
    "lstm": {},
    "transformer": {"num_layers": 2, "hidden_size": 16},
    "gpt": {"num_layers": 3, "hidden_size": 16, "zero_init": False},
    "dense": {"arch": "rnn", "skip_connection": "dense", "num_layers": 3},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(place) -> Seq2SeqRuns:
    return Seq2SeqRuns(place)


@pytest.fixture(scope="module")
def language(place):
    text, loaded = make_text(place / "text.txt"), {}

    def load(name: str):
        if name not in loaded:
            values = run_file(text, "lstm" if name == "dense" else name, train__max_steps=10)
            values["model"] |= MODELS[name]
            loaded[name] = weft.load(train_here(values, place / f"lm-{name}").path)
        return loaded[name]

    return load


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("lstm", ["embedding", "layer 1", "output"]),
        ("transformer", ["embedding", "layer 1", "output"]),
        ("gpt", ["embedding", "layer 1", "layer 2", "output"]),
    ],
)
def test_each_layer_is_decoded_by_the_final_norm_and_the_head(language, name, labels):
    run = language(name)
    found = layer_log_probs(run, read(run, TEXT, ExplainConfig()))
    assert found.layers == labels
    model, tokens = run.model.requires_grad_(False), torch.tensor([[*run.predictor.bos_ids, *run.vocabulary.encode(TEXT)]])
    at = torch.arange(tokens.size(1))[None]
    x = model.stack.positions.add_to(model.embedding(tokens), at)
    each = [x]
    for number, layer in enumerate(model.stack.layers, 1):
        x, _ = layer(x)
        if name == "lstm" or number % 2 == 0:  # attention and feed-forward make a block
            each.append(x)
    expected = torch.stack([model.head(model.stack.final_norm(one))[0] for one in each])
    np.testing.assert_allclose(found.log_probs, expected, atol=1e-4)
    np.testing.assert_allclose(found.log_probs[-1], model.head(model(tokens)[0])[0], atol=1e-5)


def test_layers_of_another_hidden_size_are_omitted(language):
    found = layer_log_probs(language("dense"), read(language("dense"), TEXT, ExplainConfig()))
    assert found.layers == ["output"]


@pytest.mark.parametrize("name", ["lstm", "luong", "bahdanau", "transformer", "joint"])
def test_the_last_row_of_a_decoder_equals_its_output(runs, name):
    run = weft.load(runs.run_dir(name))
    view = logit_lens(run, "fade", ExplainConfig(target="F A D D E", top=1000))
    score = run.score([("fade", "F A D D E")])[0]
    last = view.data["layers"][-1]
    assert last["layer"] == "output"
    shown = [math.log(max(place["probability"], 1e-12)) for place in last["positions"]]
    np.testing.assert_allclose(shown, score.token_log_probs, atol=2e-2)
    json.dumps(view.data, allow_nan=False)
    for place in last["positions"]:
        assert sum(guess["probability"] for guess in place["predictions"]) == pytest.approx(1, abs=1e-3)


def test_the_view_has_predictions_ranks_and_targets(language):
    run = language("transformer")
    view = logit_lens(run, TEXT, ExplainConfig(top=3))
    tokens = torch.tensor([[*run.predictor.bos_ids, *run.vocabulary.encode(TEXT)]])
    with torch.no_grad():
        said = run.model.head(run.model(tokens)[0])[0]
    last = view.data["layers"][-1]["positions"]
    before = len(run.predictor.bos_ids)
    assert len(last) == before + len(TEXT) == len(view.data["tokens"])
    for at in range(before + len(TEXT) - 1):
        wanted = tokens[0, at + 1]
        assert last[at]["rank"] == 1 + int((said[at] > said[at, wanted]).sum())
        assert last[at]["probability"] == pytest.approx(said[at, wanted].exp().item(), abs=1e-5)
        assert last[at]["predictions"][0]["token"] == run.vocabulary.token_text(int(said[at].argmax()))
    assert set(last[-1]) == {"predictions"}  # what comes after the text is not known
    assert view.lines[-1].split()[0] == "output"
    for picture in view.figures:
        ET.fromstring(picture.svg)


@pytest.fixture(scope="module")
def filler(place):
    values = run_file(make_text(place / "text.txt"), "transformer", task="masked-lm", model__arch="bert", train__max_steps=10)
    return weft.load(train_here(values, place / "masked").path)


def test_masks_are_shown_at_their_positions(filler):
    view = logit_lens(filler, "the [MASK]ld cat", ExplainConfig())
    (best, *_) = filler.predict("the [MASK]ld cat", n_best=1)[0]
    assert [token["text"] for token in view.data["tokens"]] == ["[MASK]"]
    (place,) = view.data["layers"][-1]["positions"]
    assert best.token in [one["token"] for one in place["predictions"]]


def test_models_without_layers_are_refused(language, runs, filler):
    assert why_no_lens(language("lstm")) is None and why_no_lens(filler) is None
    assert why_no_lens(weft.load(runs.run_dir("lm-ngram"))) == "ngram has no layers"


# ---- surprisal


def test_surprisal_is_the_loss_of_each_token(language, runs):
    for run in (language("lstm"), weft.load(runs.run_dir("lm-ngram"))):
        text = TEXT if run is language("lstm") else "F A D"
        view = surprisal(run, text, ExplainConfig())
        ids = [*run.predictor.bos_ids, *run.vocabulary.encode(text), *([2] if run.predictor.reads_lines else [])]
        nats, _ = run.model.loss(torch.tensor([ids[:-1]]), torch.tensor([ids[1:]]))
        nats = nats[:, len(run.predictor.bos_ids) - 1 :]
        np.testing.assert_allclose(view.data["nats"], nats[0].detach(), atol=1e-5)
        np.testing.assert_allclose(view.data["bits"], nats[0].detach() / math.log(2), atol=1e-5)
        assert len(view.data["tokens"]) == len(ids) - len(run.predictor.bos_ids)
        for picture in view.figures:
            ET.fromstring(picture.svg)
    assert view.data["tokens"][-1] == {"text": "</s>", "start": 0, "end": 0}


def test_offsets_are_the_positions_of_tokens(language):
    tokens = surprisal(language("lstm"), TEXT, ExplainConfig()).data["tokens"]
    assert "".join(TEXT[token["start"] : token["end"]] for token in tokens) == TEXT


def test_masked_lm_surprisal_masks_each_token_in_turn(filler):
    view = surprisal(filler, TEXT, ExplainConfig())
    ids = [1, *filler.vocabulary.encode(TEXT), 2]
    for at in range(1, len(ids) - 1):
        row = torch.tensor([ids])
        row[0, at] = filler.model.mask_id
        y = filler.model(EncoderInput(row, torch.ones_like(row, dtype=torch.bool)))
        assert view.data["nats"][at - 1] == pytest.approx(-filler.model.log_probs(y)[0, at, ids[at]].item(), abs=1e-4)


def test_seq2seq_surprisal_is_that_of_the_target(runs):
    run = weft.load(runs.run_dir("lstm"))
    for target in ("F A D D E", None):
        view = surprisal(run, "fade", ExplainConfig(target=target))
        text = run.predict("fade").text if target is None else target
        np.testing.assert_allclose(view.data["nats"], -np.array(run.score([("fade", text)])[0].token_log_probs), atol=1e-6)
        assert view.data["tokens"][-1]["text"] == "</s>"


def test_infinite_surprisal_is_null_and_still_drawn(runs, monkeypatch):
    run = weft.load(runs.run_dir("lm-ngram"))
    score = run.score

    def never(text):
        found = score(text)
        return found._replace(token_log_probs=[-math.inf, *found.token_log_probs[1:]])

    monkeypatch.setattr(run, "score", never)
    view = surprisal(run, "F A", ExplainConfig())
    assert view.data["nats"][0] is None and view.data["bits"][1] is not None
    for picture in view.figures:
        ET.fromstring(picture.svg)


def test_an_empty_text_has_no_surprisal(language, filler):
    for run in (language("lstm"), filler):
        with pytest.raises(DataError) as caught:
            surprisal(run, "", ExplainConfig())
        assert str(caught.value) == "input: empty text"
    with pytest.raises(DataError) as caught:
        surprisal(filler, "the " * 8, ExplainConfig())
    found = str(caught.value)
    assert found == "input: 34 tokens exceed the model's limit of 16; shorten it"


def test_tasks_without_token_predictions_are_refused(language):
    assert why_no_surprisal(language("lstm")) is None
    tagger = SimpleNamespace(config=SimpleNamespace(task="tagging", arch="lstm"), spec=TAGGING, members=[language("lstm")])
    for no in (why_no_surprisal, why_no_lens):
        assert no(tagger) == "task 'tagging' does not predict tokens"
    assert why_no_search(tagger) == "task 'tagging' has no decoding"
    assert why_no_distribution(tagger) == "task 'tagging' does not generate tokens"


# ---- tables of guesses


def test_a_wide_table_is_split_and_correct_predictions_are_framed():
    row = [TokenGuess(f"word{at}", 0.5, "told <", at == 3) for at in range(30)]
    root = ET.fromstring(token_table([row, row], rows=["b", "a"], columns=[str(at) for at in range(30)], corner="read"))
    assert float(root.get("width")) < 720
    assert len([box for box in root.findall(".//{*}rect") if box.get("class") == "correct"]) == 2
    assert len([text for text in root.findall(".//{*}text") if text.text == "read"]) >= 3


def test_a_table_needs_a_name_for_each_row_and_column():
    with pytest.raises(UsageError) as caught:
        token_table([[TokenGuess("a", 0.5, "")]], rows=["x"], columns=["y", "z"])
    assert str(caught.value) == "token_table: 1 rows of [1] cells do not match 1 row and 2 column names"
