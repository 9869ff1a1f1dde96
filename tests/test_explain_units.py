"""Units of recurrent layers: gates and cells equal a cell written by hand; units are ranked by correlation with features."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from seq2seq_runs import Seq2SeqRuns
from small_runs import make_text, run_file, train_here
from torch import Tensor, nn
from toy_models import build_mixer

import weft
from weft.errors import UsageError
from weft.explain.explanation import TokenSpan
from weft.explain.hooks import record_activations
from weft.explain.inputs import read
from weft.explain.options import ExplainConfig
from weft.explain.recurrent_gates import CELLS, cell_values, recurrent_modules
from weft.explain.unit_correlations import FEATURES, correlations, rank_units, token_features
from weft.explain.units import layer_activations, units, why_no_units
from weft.nn.mixers import MIXERS
from weft.plots.token_heatmap import token_heatmap

KINDS = ("rnn", "lstm", "gru", "gru-reset-before", "mingru", "minlstm")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def by_hand(kind: str, mixer: nn.Module, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
    """One row, position by position, from the papers' formulas in float64."""
    results: dict[str, list[np.ndarray]] = {}
    if kind == "gru-reset-before":
        u, b = numbers(mixer.input_proj.weight), numbers(mixer.input_proj.bias)
        w, v = numbers(mixer.gates.weight), numbers(mixer.candidate.weight)
    elif kind in ("mingru", "minlstm"):
        u, b = numbers(mixer.input_proj.weight), numbers(mixer.input_proj.bias)
    else:
        u, w, b, b2 = map(numbers, mixer.cell.all_weights[0])
    d = len(h)
    for now in x:
        step: dict[str, np.ndarray]
        if kind == "rnn":
            h = np.tanh(u @ now + b + w @ h + b2)
            step = {"hidden": h}
        elif kind == "lstm":
            i, f, g, o = np.split(u @ now + b + w @ h + b2, 4)
            i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
            c = f * c + i * g
            h = o * np.tanh(c)
            step = {"hidden": h, "cell": c, "input gate": i, "forget gate": f, "output gate": o, "candidate": g}
        elif kind == "gru":
            a, r_ = u @ now + b, w @ h + b2
            reset, z = sigmoid(a[:d] + r_[:d]), sigmoid(a[d : 2 * d] + r_[d : 2 * d])
            new = np.tanh(a[2 * d :] + reset * r_[2 * d :])
            h = (1 - z) * new + z * h
            step = {"hidden": h, "update gate": 1 - z, "reset gate": reset, "candidate": new}
        elif kind == "mingru":
            z, new = sigmoid((u @ now + b)[:d]), (u @ now + b)[d:]
            h = (1 - z) * h + z * new
            step = {"hidden": h, "update gate": z, "candidate": new}
        elif kind == "minlstm":
            f, i, new = np.split(u @ now + b, 3)
            f, i = sigmoid(f), sigmoid(i)
            f, i = f / (f + i), i / (f + i)
            h = f * h + i * new
            step = {"hidden": h, "input gate": i, "forget gate": f, "candidate": new}
        else:
            a, r_ = u @ now + b, w @ h
            update, reset = sigmoid(a[:d] + r_[:d]), sigmoid(a[d : 2 * d] + r_[d:])
            new = np.tanh(a[2 * d :] + v @ (reset * h))
            h = (1 - update) * h + update * new
            step = {"hidden": h, "update gate": update, "reset gate": reset, "candidate": new}
        for name, value in step.items():
            results.setdefault(name, []).append(value)
    return {name: np.stack(values) for name, values in results.items()}


def called(mixer: nn.Module, x: Tensor, state: object = None) -> dict[str, Tensor]:
    with torch.no_grad(), record_activations(mixer, "") as seen:
        mixer(x, state)
    return cell_values(seen[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", [False, True])
def test_gates_and_cells_equal_a_cell_written_by_hand(kind, begun):
    mixer, x = build_mixer(kind), torch.randn(2, 9, 8)
    state, h, c = None, np.zeros((2, 8)), np.zeros((2, 8))
    if begun:
        parts = [torch.randn(2, 8) for _ in range(2)]
        state = tuple(parts) if kind == "lstm" else parts[0]
        h, c = numbers(parts[0]), numbers(parts[1])
    result = called(mixer, x, state)
    for row in range(2):
        expected = by_hand(kind, mixer, numbers(x[row]), h[row], c[row])
        assert list(result) == list(expected)
        for name, values in expected.items():
            np.testing.assert_allclose(numbers(result[name][row]), values, atol=2e-6, err_msg=name)


@torch.no_grad()
def test_recomputed_gates_give_the_output_of_the_kernel():
    x = torch.randn(3, 12, 8)
    mixer = build_mixer("lstm")
    y, (_, c) = mixer(x)
    result = called(mixer, x)
    torch.testing.assert_close(result["output gate"] * result["cell"].tanh(), y, atol=1e-6, rtol=0)
    torch.testing.assert_close(result["cell"][:, -1], c, atol=1e-6, rtol=0)
    for kind in ("gru", "gru-reset-before"):
        mixer = build_mixer(kind)
        y, _ = mixer(x)
        result = called(mixer, x)
        before = torch.cat([torch.zeros(3, 1, 8), y[:, :-1]], dim=1)
        again = torch.lerp(before, result["candidate"], result["update gate"])
        torch.testing.assert_close(again, y, atol=1e-6, rtol=0)


def test_only_recurrent_mixers_have_units():
    assert (
        {row.factory for row in MIXERS.values() if row.num_state_vectors}
        == {MIXERS[kind].factory for kind in KINDS}
        == set(CELLS)
    )
    mixer = build_mixer("conv")
    with torch.no_grad(), record_activations(mixer, "") as seen:
        mixer(torch.randn(1, 3, 8))
    with pytest.raises(UsageError) as caught:
        cell_values(seen[0])
    assert str(caught.value) == "units: '' is not a recurrent layer and has no gates"


# ---- what units follow

TEXT = 'Ab "c [d(e)]" f\nGh 12'


def test_feature_values():
    results = {name: find(TEXT) for name, find in FEATURES.items()}
    assert results["quotes"] == [0] * 3 + [1] * 9 + [0] * 9
    assert results["brackets"] == [0] * 6 + [1, 1, 2, 2, 1, 0] + [0] * 9
    assert results["position in line"] == [*range(1, 16), 0, *range(1, 6)]
    assert results["position in word"][:4] == [1, 2, 0, 0]
    assert [index for index, value in enumerate(results["spaces"]) if value] == [2, 5, 13, 15, 18]
    assert [index for index, value in enumerate(results["capitals"]) if value] == [0, 16]
    assert [index for index, value in enumerate(results["digits"]) if value] == [19, 20]
    assert FEATURES["quotes"]("“a” «b»") == [1, 1, 0, 0, 1, 1, 0]
    assert FEATURES["brackets"](")(") == [0, 1]


def test_a_feature_of_a_token_is_that_of_its_last_character():
    pieces = [TokenSpan("Ab", 0, 2), TokenSpan(' "c', 2, 5)]
    assert token_features(TEXT, pieces)["quotes"].tolist() == [0, 1]
    assert token_features(TEXT, pieces)["position in word"].tolist() == [2, 1]
    assert token_features(TEXT, []) == {}


def test_the_unit_that_correlates_with_a_feature_is_found():
    chance = np.random.default_rng(0)
    reported = {"quotes": (chance.random(300) > 0.7).astype(float), "nothing": np.ones(300)}
    values = chance.normal(size=(300, 6))
    values[:, 3] = -2 * reported["quotes"] + 0.1 * values[:, 3]
    values[:, 5] = 0.0
    np.testing.assert_allclose(
        correlations(values, reported["quotes"])[:5],
        [np.corrcoef(values[:, unit], reported["quotes"])[0, 1] for unit in range(5)],
    )
    assert correlations(values, reported["quotes"])[5] == 0.0
    result = rank_units([(1, {"hidden": chance.normal(size=(300, 4))}), (2, {"hidden": values})], reported, 3)
    assert [item.feature for item in result] == ["quotes"] * 3
    assert result[0][:4] == ("quotes", 2, 4, "hidden")
    assert result[0].r < -0.98
    assert abs(result[0].r) > abs(result[1].r) >= abs(result[2].r)


# ---- the view


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Seq2SeqRuns:
    return Seq2SeqRuns(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def lstm(tmp_path_factory):
    place = tmp_path_factory.mktemp("lm")
    return weft.load(train_here(run_file(make_text(place / "text.txt"), "lstm", data__read_as="stream"), place / "run").path)


def test_the_view_shows_the_activations_of_the_model(lstm):
    view = units(lstm, "the old cat sees", ExplainConfig(layer=2, unit=[3, 8]))
    tokens = torch.tensor([[*lstm.predictor.bos_ids, *lstm.vocabulary.encode("the old cat sees")]])
    with torch.no_grad(), record_activations(lstm.model, "stack.layers.1.mixer") as seen:
        _, (_, states) = lstm.model(tokens)
    (layer,) = view.data["layers"]
    assert (layer["layer"], layer["part"], layer["units"]) == (2, "stack.layers.1.mixer", [3, 8])
    np.testing.assert_allclose(layer["hidden"], seen[0].output[0][0, :, [2, 7]].T, atol=1e-5)
    np.testing.assert_allclose(np.array(layer["cell"])[:, -1], states[1][1][0, [2, 7]], atol=1e-5)
    assert [token["text"] for token in layer["tokens"]] == [".", "\n", *"the old cat sees"]
    assert len(view.figures) == 4
    for picture in view.figures:
        ET.fromstring(picture.svg)


def test_units_of_a_language_model_are_ranked_on_its_validation_data(lstm):
    view = units(lstm, "a dog", ExplainConfig(top=2))
    assert view.data["judged"]["by"] == "valid"
    assert view.data["judged"]["tokens"] > 200
    by = {item["feature"] for item in view.data["follows"]}
    assert {"spaces", "position in word", "position in line"} <= by
    # by hand, over the same text
    (text,) = ["".join(lstm.config.datasets["valid"].texts())[:4000]]
    tokens = torch.tensor([[*lstm.predictor.bos_ids, *lstm.vocabulary.encode(text)]])
    with torch.no_grad(), record_activations(lstm.model, recurrent_modules(lstm.model)) as seen:
        lstm.model(tokens)
    best = next(item for item in view.data["follows"] if item["feature"] == "spaces")
    values = cell_values(seen[best["layer"] - 1])[best["quantity"]][0, len(lstm.predictor.bos_ids) :, best["unit"] - 1]
    reported = [float(letter.isspace()) for letter in text]
    assert best["r"] == pytest.approx(np.corrcoef(values, reported)[0, 1], abs=1e-4)


@pytest.mark.parametrize("name", ["lstm", "sutskever"])
def test_backward_layers_are_shown_in_text_order(runs, name):
    run = weft.load(runs.run_dir(name))
    reading = read(run, "fade", ExplainConfig(target="F A D D E"))
    results = {item.name: item for item in layer_activations(run, reading)}
    source = torch.tensor([reading.sides[0].tokens])
    with torch.no_grad():
        values = run.model.encoder(source, torch.ones_like(source, dtype=torch.bool)).values[0]
    top = [item for part, item in results.items() if part.startswith("encoder")]
    if name == "lstm":  # both directions side by side are what the encoder leaves
        shown = np.concatenate([item.values["hidden"] for item in top[-2:]], axis=1)
        assert [item.name.rsplit(".", 1)[1] for item in top] == ["forward_mixer", "backward_mixer"] * (len(top) // 2)
    else:
        shown = top[-1].values["hidden"]
    np.testing.assert_allclose(shown, values, atol=1e-5)
    assert [piece.text for piece in top[0].tokens] == ["f", "a", "d", "e", "</s>"]
    (decoder,) = {tuple(piece.text for piece in item.tokens) for part, item in results.items() if part.startswith("decoder")}
    assert decoder == ("<s>", "F", "A", "D", "D", "E")


def test_a_text_too_short_for_correlations_is_reported(runs):
    view = units(weft.load(runs.run_dir("lstm")), "fade", ExplainConfig())
    assert view.data["follows"] == []
    assert view.lines[-1] == "too few tokens to correlate units with features of the text: 4 tokens of the text"


def test_layers_and_units_that_do_not_exist_are_refused(lstm, runs):
    for options, message in [
        ({"layer": 3}, "layer: must be from 1 to 2, got 3"),
        ({"unit": [9]}, "unit: must be from 1 to 8 in layer 1, got 9"),
    ]:
        with pytest.raises(UsageError) as caught:
            units(lstm, "a dog", ExplainConfig(**options))
        assert str(caught.value) == message
    assert why_no_units(lstm) is None
    assert why_no_units(weft.load(runs.run_dir("transformer"))) == "architecture 'transformer' has no recurrent layers"
    assert why_no_units(weft.load(runs.run_dir("lm-ngram"))) == "architecture 'ngram' has no recurrent layers"


# ---- coloured text


def test_a_colored_text_is_well_formed_and_has_a_color_for_each_sign():
    svg = token_heatmap(["a<", " &", "b\n", "\u0301", "語"], np.array([1.0, -0.5, 0.0, 2.0, 0.1]), name="x", title="a < b")
    root = ET.fromstring(svg)
    boxes = [box for box in root.findall(".//{*}rect") if box.get("class") in ("up", "down")][:5]
    assert [box.get("class") for box in boxes] == ["up", "down", "up", "up", "up"]
    assert [float(box.get("opacity")) for box in boxes] == [0.38, 0.19, 0.0, 0.75, 0.04]
    assert boxes[3].get("y") > boxes[2].get("y")  # a newline ends a line


@pytest.mark.parametrize(
    ("tokens", "values", "message"),
    [
        (["a"], np.zeros(2), "token_heatmap: 1 tokens do not match values of shape (2,)"),
        ([], np.zeros(0), "token_heatmap: 0 tokens do not match values of shape (0,)"),
        (["a"], np.array([np.nan]), "token_heatmap: values must be finite"),
    ],
)
def test_a_colored_text_needs_a_value_for_each_token(tokens, values, message):
    with pytest.raises(UsageError) as caught:
        token_heatmap(tokens, values, name="x")
    assert str(caught.value) == message


# ---- activations in a terminal


@pytest.fixture(scope="module")
def hello(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest network of the lectures: a vanilla RNN that spells one word."""
    folder = tmp_path_factory.mktemp("hello")
    (folder / "hello.txt").write_text("hello\n")
    values = run_file(folder / "hello.txt", data__read_as="lines", train__max_steps=3)
    values["model"] = {"arch": "rnn", "num_layers": 1, "hidden_size": 4}
    del values["data"]["valid"], values["data"]["context_length"]
    train_here(values, folder / "run")
    return folder / "run"


def spelled_by_hand(run: Any) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states (T, 4) and scores (T, V) of <s> hello: h = tanh(U x + b + W h + b'), y = V h + c."""
    model = run.model
    u, w, b, again = map(numbers, model.stack.layers[0].mixer.cell.all_weights[0])
    h, states = np.zeros(4), []
    for token in [run.vocabulary.bos_id, *run.vocabulary.encode("hello").tolist()]:
        h = np.tanh(u @ numbers(model.embedding.weight)[token] + b + w @ h + again)
        states.append(h)
    hidden = np.stack(states)
    return hidden, hidden @ numbers(model.head.weight).T + numbers(model.head.bias)


def test_a_short_text_has_its_activations_and_scores_in_the_terminal(hello):
    run = weft.load(hello, device="cpu")
    hidden, scores = spelled_by_hand(run)
    names = [run.vocabulary.token_text(index) for index in range(run.vocabulary.vocab_size)]
    view = units(run, "hello", ExplainConfig())
    cells = [line.split() for line in view.lines]
    assert cells[0] == ["layer", "1", "<s>", "h", "e", "l", "l", "o"]
    assert cells[1:5] == [["hidden", str(unit + 1), *(f"{h:+.2f}" for h in hidden[:, unit])] for unit in range(4)]
    assert cells[5] == []
    assert cells[6] == ["logits", "<s>", "h", "e", "l", "l", "o"]
    assert cells[7 : 7 + len(names)] == [[name, *(f"{y:+.2f}" for y in scores[:, index])] for index, name in enumerate(names)]
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert cells[7 + len(names)] == ["next", *(w for p in shares for w in (names[p.argmax()], f"{p.max():.0%}"))]
    np.testing.assert_allclose(view.data["output"]["scores"], scores.T, atol=1e-5)
    assert view.data["output"]["tokens"] == names


def test_one_unit_has_a_row_and_a_long_text_no_table(hello):
    run = weft.load(hello, device="cpu")
    hidden, _ = spelled_by_hand(run)
    view = units(run, "hello", ExplainConfig(unit=[3]))
    assert view.lines[0].split() == ["layer", "1,", "1", "of", "4", "units", "<s>", "h", "e", "l", "l", "o"]
    assert view.lines[1].split() == ["hidden", "3", *(f"{h:+.2f}" for h in hidden[:, 2])]
    long = units(run, "hello" * 4, ExplainConfig())
    assert not any("hidden" in line or "logits" in line for line in long.lines) and "output" not in long.data


def test_one_unit_has_its_gates_as_well(lstm):
    view = units(lstm, "the cat", ExplainConfig(unit=[2], layer=1))
    names = [line.split(" 2 ")[0].strip() for line in view.lines[1:7]]
    assert names == ["hidden", "cell", "input gate", "forget gate", "output gate", "candidate"]
