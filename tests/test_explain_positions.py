"""The position view: position encodings equal the formulas of the papers."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from seq2seq_runs import make_pairs, seq2seq_run_file
from small_runs import make_text, run_file, train_here

import weft
from weft.cli.main import main
from weft.errors import UsageError
from weft.explain.options import ExplainConfig
from weft.explain.positions import ENCODINGS, find_sites, positions
from weft.models.config import ATTENTION_ENCODINGS, LanguageModelConfig
from weft.models.lm import LanguageModel, language_model
from weft.nn import positions as parts

WIDTH, HEADS, LAYERS, WINDOW, COUNT = 16, 2, 2, 24, 12
SIZE = WIDTH // HEADS


def model_of(kind: str) -> LanguageModel:
    torch.manual_seed(0)
    table = LanguageModelConfig(
        layer_type="attention", num_heads=HEADS, hidden_size=WIDTH, num_layers=LAYERS, position_encoding=kind
    ).with_defaults()
    return language_model(table, vocab_size=9, context_length=WINDOW, vocabulary="")


def shown(kind: str) -> Any:
    """What is seen of a model with such positions, where all its layers know the same."""
    (site,) = find_sites(model_of(kind), COUNT, ExplainConfig())
    return site


def test_sinusoidal_positions_equal_the_formula_and_their_products_depend_only_on_distance():
    """PE(pos, 2s) = sin(w pos), PE(pos, 2s + 1) = cos(w pos), w = 10000^(-2s / d); p(i) . p(j) = sum of cos w (i - j)."""
    site = shown("sinusoidal")
    rates = [10000 ** (-2 * s / WIDTH) for s in range(WIDTH // 2)]
    vectors = [[f(w * index) for w in rates for f in (math.sin, math.cos)] for index in range(COUNT)]
    np.testing.assert_allclose(site.encoding.values, vectors, atol=1e-6)
    products = [[sum(math.cos(w * (i - j)) for w in rates) for j in range(COUNT)] for i in range(COUNT)]
    np.testing.assert_allclose(site.encoding.products, products, atol=1e-5)
    np.testing.assert_allclose(site.encoding.by_distance["mean p(i) · p(j)"], products[0], atol=1e-5)
    assert site.names == [""]


def test_learned_positions_are_the_vectors_of_the_run():
    model = model_of("learned")
    (site,) = find_sites(model, COUNT, ExplainConfig())
    vectors = model.stack.positions.table.weight.detach().double().numpy()[:COUNT]
    np.testing.assert_array_equal(site.encoding.values, vectors)
    expected = [np.mean([vectors[i] @ vectors[i + k] for i in range(COUNT - k)]) for k in range(COUNT)]
    np.testing.assert_allclose(site.encoding.by_distance["mean p(i) · p(j)"], expected, atol=1e-9)
    (all_of_them,) = find_sites(model, 1000, ExplainConfig())
    assert len(all_of_them.encoding.rows) == WINDOW


def test_rotary_positions_rotate_pairs_and_their_products_decay():
    """Pair s is turned by m theta, theta = 10000^(-2s / d); the bound is the mean of |S(i)|, S(i) = sum over s < i of
    e^(i m theta) (Su et al. 2021, section 3.4.3), as a share of that of m = 0."""
    site = shown("rotary")
    rates = [10000 ** (-2 * s / SIZE) for s in range(SIZE // 2)]
    np.testing.assert_allclose(
        site.encoding.values[:, : SIZE // 2], [[math.cos(m * w) for w in rates] for m in range(COUNT)], atol=1e-6
    )
    np.testing.assert_allclose(
        site.encoding.values[:, SIZE // 2 :], [[math.sin(m * w) for w in rates] for m in range(COUNT)], atol=1e-6
    )
    equal = [np.mean([math.cos(m * w) for w in rates]) for m in range(COUNT)]
    np.testing.assert_allclose(site.encoding.by_distance["q · k of equal q, k"], equal, atol=1e-6)
    sums = [
        np.mean([abs(sum(complex(math.cos(m * w), math.sin(m * w)) for w in rates[: i + 1])) for i in range(len(rates))])
        for m in range(COUNT)
    ]
    np.testing.assert_allclose(site.encoding.by_distance["bound (Su et al.)"], np.array(sums) / sums[0], atol=1e-6)
    assert site.names == ["layer 1", "layer 2"]  # one picture, for they are the same


def test_alibi_subtracts_slope_times_distance():
    """Slopes 2^(-8 h / H) of heads h = 1 ... H (Press et al. 2022)."""
    site = shown("alibi")
    expected = [[-(2 ** (-8 * head / HEADS)) * k for k in range(COUNT)] for head in (1, 2)]
    np.testing.assert_allclose(site.encoding.values, expected, atol=1e-9)
    np.testing.assert_allclose(site.encoding.by_distance["head 2"], expected[1], atol=1e-9)
    assert site.encoding.products is None


def test_relative_positions_have_a_key_for_each_distance_in_each_layer():
    model = model_of("relative")
    result = find_sites(model, COUNT, ExplainConfig())
    assert [site.names for site in result] == [["layer 1"], ["layer 2"]]
    keys = model.stack.layers[2].mixer.positions.keys.weight.detach().double().numpy()  # attention, feed-forward, attention
    reach = COUNT - 1
    assert result[1].encoding.distances == list(range(-reach, reach + 1))
    np.testing.assert_array_equal(result[1].encoding.values, keys[32 - reach : 32 + reach + 1])
    norms = np.sqrt((keys[32 - reach : 32 + reach + 1] ** 2).sum(1))
    np.testing.assert_allclose(result[1].encoding.by_distance["norm of the key vector"], norms)
    (second,) = find_sites(model, COUNT, ExplainConfig(layer=2))
    np.testing.assert_array_equal(second.encoding.values, result[1].encoding.values)


def test_a_relative_bias_has_a_value_for_each_head_and_distance():
    site = shown("relative-bias")
    assert site.names == ["layer 1", "layer 2"]  # which share it
    table = model_of("relative-bias").stack.layers[0].mixer.positions.table.weight.detach().numpy()
    assert COUNT <= 16  # up to half of the buckets, each distance has its own
    np.testing.assert_array_equal(site.encoding.values, table[:COUNT].T)
    encoder = parts.RelativeBias(2, bidirectional=True)
    with torch.no_grad():
        both = ENCODINGS[parts.RelativeBias](encoder, 3)
        weight = encoder.table.weight.numpy()
    assert both.distances == [-2, -1, 0, 1, 2]
    np.testing.assert_array_equal(both.values, weight[[2, 1, 0, 17, 18]].T)


def test_every_position_encoding_is_shown():
    kinds = {item for item in vars(parts).values() if isinstance(item, type) and issubclass(item, parts.PositionEncoding)}
    assert set(ENCODINGS) == kinds - {parts.PositionEncoding}
    shown_kinds = {shown(kind).encoding.kind for kind in ("sinusoidal", "learned", "rotary", "alibi", "relative-bias")}
    assert shown_kinds | {"relative"} >= set(ATTENTION_ENCODINGS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("positions")
    values = run_file(make_text(place / "text.txt"), "gpt", train__max_steps=1, train__num_validations=1)
    return train_here(values, place / "run").path


def test_text_is_optional_and_sets_the_number_of_positions(run, tmp_path, capsys):
    out = tmp_path / "x.json"
    assert main(["explain", str(run), "--view", "positions", "--output", str(out), "--quiet"]) == 0
    reported = capsys.readouterr().out.splitlines()
    assert reported[0] == "rotary positions, layer 1"
    assert reported[1].split() == ["distance", "q", "·", "k", "of", "equal", "q,", "k", "bound", "(Su", "et", "al.)"]
    assert reported[2].split() == ["0", "1.000", "1.000"] and len(reported) == 2 + 7
    (view,) = json.loads(out.read_text())["views"]
    assert view["positions"] == 40 and len(view["sites"][0]["values"]) == 40
    view = weft.load(run, device="cpu").explain("the cat", "positions")
    assert view.data["positions"] == 9  # a full stop and a newline, and seven letters
    assert [picture.caption.split(":")[0] for picture in view.figures] == ["Values", "Dot products", "By distance"]
    for picture in view.figures:
        assert ET.fromstring(picture.svg).tag.endswith("svg")


def test_encoder_or_decoder_can_be_selected(tmp_path):
    values = seq2seq_run_file(make_pairs(tmp_path / "pairs.tsv"), "learned", "train.max_steps=1", "train.num_validations=1")
    run = weft.load(train_here(values, tmp_path / "run").path, device="cpu")
    view = positions(run, "", ExplainConfig())
    assert [site["places"] for site in view.data["sites"]] == [["encoder"], ["decoder"]]
    view = positions(run, "", ExplainConfig(component="decoder"))
    assert [site["places"] for site in view.data["sites"]] == [["decoder"]]
    with pytest.raises(UsageError) as caught:
        positions(run, "", ExplainConfig(component="cross"))
    assert str(caught.value) == "component: position encodings are in the encoder or decoder, got 'cross'"


def test_a_run_without_position_encoding_lacks_the_view(tmp_path, capsys):
    values = run_file(make_text(tmp_path / "text.txt"), "lstm", train__max_steps=1, train__num_validations=1)
    train_here(values, tmp_path / "run")
    assert main(["explain", str(tmp_path / "run"), "--view", "positions"]) == 2
    message = "weft: error: --view: positions is not available: architecture 'lstm' has no position encodings; choose from "
    assert capsys.readouterr().err.startswith(message)


def test_a_layer_that_does_not_exist_is_refused(run):
    with pytest.raises(UsageError) as caught:
        weft.load(run, device="cpu").explain("", "positions", layer=7)
    assert str(caught.value) == "layer: no position encoding in the selected layers; remove `layer` and `component`"
