"""Gradient flow: against cells written by hand, on a task that needs long memory, and as a plot."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
import torch
from seq2seq_runs import Seq2SeqRuns
from small_runs import make_text, run_file, train_here
from torch import Tensor, nn

import weft
from weft.errors import DataError, UsageError
from weft.explain.gradient_flow import (
    TimeGradients,
    gradient_flow,
    gradients_by_layer,
    gradients_over_time,
    layer_figure,
    reinitialized,
    relative_norms,
    time_figure,
    to_float64,
    why_no_gradients,
)
from weft.explain.options import ExplainConfig
from weft.explain.stacks import layers_of, named_parts
from weft.models.build import stack
from weft.models.config import LanguageModelConfig, StackConfig
from weft.models.lm import LanguageModel, language_model
from weft.nn.state import tree_leaves, tree_map
from weft.plots.lines import Axis, Series, lines

WORDS = 6


def model_of(mixer: str, *, words: int = WORDS, **options: object) -> LanguageModel:
    torch.manual_seed(0)
    table = LanguageModelConfig(**{"layer_type": mixer, "hidden_size": 16, "num_layers": 1, **options}).with_defaults()
    return language_model(table, vocab_size=words, context_length=256, vocabulary="")


def tokens_of(length: int, rows: int = 2) -> Tensor:
    return torch.randint(3, WORDS, (rows, length), generator=torch.Generator().manual_seed(1))


# ---- against calculations of their own


def rms(gradient: Tensor) -> float:
    return gradient.flatten(1).square().sum(1).mean().sqrt().item()


@pytest.mark.parametrize("kind", ["tanh", "relu", "sigmoid"])
def test_a_vanilla_rnn_equals_the_formula(kind):
    model, tokens = to_float64(model_of("rnn", nonlinearity=kind)), tokens_of(9)
    u, w, b, b2 = model.stack.layers[0].mixer.cell.all_weights[0]
    x, h, kept = model.embedding(tokens), torch.zeros(2, 16, dtype=torch.float64), []
    for at in range(8):
        h = getattr(torch, kind)(x[:, at] @ u.T + b + h @ w.T + b2)
        h.retain_grad()
        kept.append(h)
    scores = h @ model.head.weight.T + model.head.bias
    nn.functional.cross_entropy(scores, tokens[:, 8], reduction="sum").backward()
    flow = gradients_over_time(model, tokens)
    assert flow.layers == ["layer 1"]
    np.testing.assert_allclose(flow.norms[0], [rms(one.grad) for one in kept[1:]], rtol=1e-6)


@pytest.mark.parametrize("mixer", ["rnn", "lstm", "gru", "gru-reset-before"])
@pytest.mark.parametrize("layers", [1, 2])
def test_state_gradients_equal_those_of_reading_the_rest_at_once(mixer, layers):
    model, tokens = to_float64(model_of(mixer, num_layers=layers)), tokens_of(7)
    flow = gradients_over_time(model, tokens)
    for at in range(1, 5):
        np.testing.assert_allclose(flow.norms[:, at - 1], side_by_side(model, tokens, at), rtol=1e-6)


def side_by_side(model: LanguageModel, tokens: Tensor, at: int) -> list[float]:
    """d loss / d state of each layer after position `at`, where the fused kernels read the rest in one go. A lower layer's
    state also speaks to the layers above it at this very position: those are read again, each by its cell."""
    with torch.no_grad():
        _, (_, before) = model(tokens[:, :at])
        seen, reached = model(tokens[:, : at + 1])[1]
    norms = []
    for layer in range(len(reached)):
        own = tree_map(lambda part: part.clone().requires_grad_(), reached[layer])
        x, states = tree_leaves(own)[0][:, None], [*reached[:layer], own]
        for above in range(layer + 1, len(reached)):
            x, state = model.stack.layers[above](x, before[above])
            states.append(state)
        nats, _ = model.loss(tokens[:, at + 1 : -1], tokens[:, at + 2 :], (seen, tuple(states)))
        found = torch.autograd.grad(nats[:, -1].sum(), tree_leaves(own))
        norms.append(np.sqrt(sum(rms(gradient) ** 2 for gradient in found)))
    return norms


def test_attention_equals_one_pass_over_the_whole_text():
    model = to_float64(
        model_of(
            "attention", num_layers=2, num_heads=2, position_encoding="sinusoidal", skip_connection="residual", norm="layernorm"
        )
    )
    tokens = tokens_of(8)
    kept = []
    handles = [
        model.stack.layers[at].register_forward_pre_hook(lambda part, given: kept.append(given[0]) or given[0].retain_grad())
        for at in (0, 2)
    ]
    nats, _ = model.loss(tokens[:, :-1], tokens[:, 1:])
    nats[:, -1].sum().backward()
    for handle in handles:
        handle.remove()
    flow = gradients_over_time(model, tokens)
    assert flow.layers == ["layer 1", "layer 2"]
    expected = [[rms(one.grad[:, at]) for at in range(1, 7)] for one in kept]
    np.testing.assert_allclose(flow.norms, expected, rtol=1e-6)


def test_gradients_at_the_output_of_a_fused_layer_are_not_enough():
    """Why a text is read one position at a time."""
    model, tokens = model_of("lstm"), tokens_of(6)
    y, _ = model(tokens[:, :-1])
    y.retain_grad()
    model.head.loss(y, tokens[:, 1:])[:, -1].sum().backward()
    assert (y.grad[:, :-1] == 0).all()
    assert (gradients_over_time(to_float64(model), tokens).norms > 0).all()


def test_layer_gradients_equal_retained_gradients():
    model, tokens = to_float64(model_of("gru", num_layers=3)), tokens_of(6)
    x = model.embedding(tokens[:, :-1])
    kept = [x]
    for layer in model.stack.layers:
        x, _ = layer(x)
        kept.append(x)
    for one in kept:
        one.retain_grad()
    loss = model.head.loss(model.stack.final_norm(x), tokens[:, 1:]).mean()
    loss.backward()
    depth = gradients_by_layer(model, lambda: model.loss(tokens[:, :-1], tokens[:, 1:])[0].mean())
    assert depth.names == ["input", "layer 1", "layer 2", "layer 3"]
    np.testing.assert_allclose(depth.norms, [rms(one.grad) for one in kept], rtol=1e-6)


# ---- what remedies do


KEYS = [4, 5, 6, 7]


def remembering(mixer: str, *, steps: int) -> LanguageModel:
    """Trained to say after a mark what stood at the start of the text, 1 to 110 tokens before: one of four."""
    model, chance = model_of(mixer, words=8), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(steps):
        length = round(110 ** chance.random())
        batch = torch.tensor([[1, key] + [3] * length + [2, key] for key in chance.choices(KEYS, k=8)])
        nats, _ = model.loss(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        nats[:, -1].mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


FAR = torch.tensor([[1, key] + [3] * 101 + [2, key] for key in KEYS])


def test_over_100_steps_a_vanilla_rnn_loses_what_an_lstm_keeps():
    """The bar of this view: by more than 1e3, against less than 1e1; the LSTM's forget gate starts open."""
    trained = {"rnn": remembering("rnn", steps=100), "lstm": remembering("lstm", steps=300)}
    rnn, lstm = (relative_norms(gradients_over_time(to_float64(model), FAR))[:101] for model in trained.values())
    assert rnn[0] == lstm[0] == 1.0
    assert rnn[100] < 1e-3
    assert lstm.min() > 0.1 and lstm.max() < 10


def test_a_positive_forget_bias_lengthens_the_gradient_flow():
    lstm = model_of("lstm")
    shut = model_of("lstm")
    with torch.no_grad():
        shut.stack.layers[0].mixer.cell.all_weights[0][2][16:32] = 0.0
    tokens = tokens_of(53)
    open_, closed = (relative_norms(gradients_over_time(to_float64(one), tokens))[49] for one in (lstm, shut))
    assert open_ > 100 * closed


def test_skip_connections_carry_gradients_through_a_deep_stack():
    tokens, found = tokens_of(12), {}
    for kind in ("none", "residual", "highway", "dense"):
        model = to_float64(model_of("rnn", num_layers=12, skip_connection=kind))
        depth = gradients_by_layer(model, lambda model=model: model.loss(tokens[:, :-1], tokens[:, 1:])[0].mean())
        assert len(depth.names) == 13
        found[kind] = depth.norms[0] / depth.norms[-1]
    assert found["none"] < 0.05
    assert all(found[kind] > 5 * found["none"] for kind in ("residual", "highway", "dense"))


# ---- runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Seq2SeqRuns:
    return Seq2SeqRuns(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def lstm(tmp_path_factory):
    place = tmp_path_factory.mktemp("lm")
    return weft.load(train_here(run_file(make_text(place / "text.txt"), "lstm"), place / "run").path)


def test_a_run_is_shown_at_initialization_and_trained(lstm):
    state = torch.get_rng_state()
    started = reinitialized(lstm)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(lstm.config.seed)
    first = language_model(lstm.config.model, vocab_size=lstm.vocabulary.vocab_size, context_length=16, vocabulary="")
    assert all(torch.equal(a, b) for a, b in zip(started.parameters(), first.parameters(), strict=True))
    view = gradient_flow(lstm, "the old cat", ExplainConfig())
    tokens = torch.tensor([[*lstm.predictor.bos_ids, *lstm.vocabulary.encode("the old cat")]])
    for when, model in (("untrained", started), ("trained", lstm.model)):
        flow = gradients_over_time(to_float64(model), tokens)
        np.testing.assert_allclose(view.data["time"][when]["norms"], flow.norms)
        assert view.data["time"][when]["layers"] == ["layer 1", "layer 2"]
        assert view.data["layers"][when]["places"] == ["input", "layer 1", "layer 2"]
    assert [token["text"] for token in view.data["tokens"]] == [".", "\n", *"the old cat"]
    assert view.data["position"] == 11
    assert view.lines[0].split() == ["steps", "back", "untrained", "trained"]
    assert [line.split()[0] for line in view.lines[1:-1]] == ["1", "2", "5", "10"]
    assert view.lines[4].split()[2] == f"{relative_norms(flow)[9]:.2g}"
    for picture in view.figures:
        ET.fromstring(picture.svg)


def test_the_loss_of_another_token_can_be_selected(lstm):
    view = gradient_flow(lstm, "the old cat", ExplainConfig(position=5))
    again = gradient_flow(lstm, "the o", ExplainConfig())
    assert view.data == again.data


@pytest.mark.parametrize("name", ["lstm", "luong", "bahdanau", "transformer", "joint"])
def test_seq2seq_decoders_have_gradient_flow(runs, name):
    run = weft.load(runs.run_dir(name))
    view = gradient_flow(run, "fade", ExplainConfig(target="F A D D E"))
    norms = np.array(view.data["time"]["trained"]["norms"])
    expected = len(run.vocabulary.target.encode("F A D D E"))
    assert norms.shape[1] == expected and (norms[:, :-1] > 0).any()
    assert all(label.startswith("decoder") for label in view.data["time"]["trained"]["layers"])
    places = view.data["layers"]["trained"]["places"]
    assert "encoder input" in places and "decoder input" in places


def test_models_without_gradients_are_refused(lstm, runs):
    assert why_no_gradients(lstm) is None
    assert why_no_gradients(weft.load(runs.run_dir("lm-ngram"))) == "ngram has no gradients"
    for text, options, message in [
        ("a", {}, "text: gradient flow requires at least 3 tokens, got 1; use a longer text"),
        ("ab", {}, "text: gradient flow requires at least 3 tokens, got 2; use a longer text"),
        ("abc", {"position": 4}, "position: must be from 3 to 3, got 4"),
        ("abc", {"position": 2}, "position: must be from 3 to 3, got 2"),
    ]:
        with pytest.raises((DataError, UsageError)) as caught:
            gradient_flow(lstm, text, ExplainConfig(**options))
        assert str(caught.value) == message
    with pytest.raises(DataError) as caught:
        gradient_flow(weft.load(runs.run_dir("lstm")), "fade", ExplainConfig(target="F"))
    told = "output: gradient flow requires at least 3 tokens, got 2; set a longer `target`"
    assert str(caught.value) == told


# ---- line charts


def marks(svg: str) -> list[str]:
    return [title.text for title in ET.fromstring(svg).findall(".//{*}title")]


def test_a_chart_has_a_line_a_marker_and_a_name_for_each_series():
    svg = lines(
        [Series("a < b", [0, 1, 2], [1.0, 10.0, 100.0], labels=["x", "y", "z"]), Series("c", [0, 1, 2], [5.0, 0.0, 1e-3])],
        x_axis=Axis("step"),
        y_axis=Axis("norm", log=True),
        title="what & why",
    )
    root = ET.fromstring(svg)
    assert root.get("aria-label") == "what & why"
    told = [element.text for element in root.findall(".//{*}text") if element.text]
    assert {"a < b", "c", "step", "norm", "10⁻³", "1", "10²"} <= set(told)
    assert marks(svg)[:2] == ["a < b\nx\nstep: 0\nnorm: 1", "a < b\ny\nstep: 1\nnorm: 10"]
    # what can't stand on a logarithmic axis leaves a gap: two lines of one point each
    (gap,) = [path for path in root.findall(".//{*}path") if path.get("class") == "line" and path.get("d").count("M") == 2]
    assert gap.get("d").count("L") == 0


def labels_below(names: list[str]) -> list[tuple[str, bool]]:
    """What stands below a chart whose axis names every point, and whether it is turned."""
    size = len(names)
    axis = Axis("token", names=["", *names], show_all=True)
    svg = lines([Series("", list(range(1, size + 1)), [1.0] * size)], x_axis=axis, y_axis=Axis("bits"))
    root = ET.fromstring(svg)
    low = float(root.get("height"))
    spots = [float(y) for y in re.findall(r'<text x="[^"]+" y="([0-9.]+)">token<', svg)]
    assert len(spots) == 1 and spots[0] < low  # the axis' name is inside the drawing
    group = root.find(".//{*}g[@text-anchor='middle']")
    return [(one.text, one.get("transform") is not None) for one in group.findall("{*}text")]


def test_a_token_axis_labels_as_many_tokens_as_fit():
    assert labels_below(["der", "Mann", " ", "."]) == [("der", False), ("Mann", False), ("␣", False), (".", False)]
    words = ["Donaudampfschifffahrt", *["long-token"] * 19]
    found = labels_below(words)
    assert found[0] == ("Donaudampfschif…", True) and found[1:] == [("long-token", True)] * 19
    many = labels_below([str(at) for at in range(400)])
    assert 30 <= len(many) <= 42 and many[0][0] == "0"
    plain = lines([Series("", [0, 1], [1, 2])], x_axis=Axis("x", names=["layer 1", "b"]), y_axis=Axis("y"))
    assert ">layer 1<" in plain  # only tokens have their spaces spelled


def heights(values: list[float], *, log: bool) -> list[float]:
    svg = lines([Series("s", [0, 1, 2], values)], x_axis=Axis("x"), y_axis=Axis("y", log=log))
    path = next(path for path in ET.fromstring(svg).findall(".//{*}path") if path.get("class") == "line")
    return [float(point.split()[1]) for point in path.get("d")[1:].split("L")]


def test_equal_ratios_are_equal_steps_on_a_logarithmic_axis():
    low, middle, high = heights([1e-6, 1e-3, 1.0], log=True)
    assert low - middle == pytest.approx(middle - high, abs=0.2)
    low, middle, high = heights([0.0, 5.0, 10.0], log=False)
    assert low - middle == pytest.approx(middle - high, abs=0.2)


def test_series_of_one_group_share_a_color_and_ticks_may_be_names():
    series = [Series(f"{name}, {when}", [0, 1], [1, 2], name, when == "first") for name in "ab" for when in ("first", "then")]
    svg = lines(series, x_axis=Axis("layer", names=["input", "layer 1"]), y_axis=Axis("y"))
    groups = [
        group.get("class") for group in ET.fromstring(svg).findall("./{*}g") if (group.get("class") or "").startswith("s")
    ]
    assert groups[:4] == ["s0", "s0", "s1", "s1"]
    assert "input" in svg and "layer 1" in svg and svg.count("stroke-dasharray") == 4


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([], "lines: nothing to draw: no series"),
        ([Series("a", [1], [])], "lines: 'a' has 1 x, 0 y and 0 labels; pass one of each per point"),
        ([Series("a", [1], [1], labels=["x", "y"])], "lines: 'a' has 1 x, 1 y and 2 labels; pass one of each per point"),
    ],
)
def test_an_empty_chart_is_refused(series, message):
    with pytest.raises(UsageError) as caught:
        lines(series, x_axis=Axis("x"), y_axis=Axis("y"))
    assert str(caught.value) == message


@pytest.mark.parametrize("values", [[1.0], [3.0, 3.0], [float("nan"), float("inf")], [0.0, 1e-300], [-1e9, 1e9]])
@pytest.mark.parametrize("log", [False, True])
def test_zero_and_nonfinite_values_can_be_drawn(values, log):
    svg = lines([Series("", list(range(len(values))), values)], x_axis=Axis("x"), y_axis=Axis("y", log=log))
    assert ET.fromstring(svg).tag.endswith("svg")
    assert not re.search(r"\b(nan|inf)\b", svg)  # as a coordinate no browser would draw it


def test_several_models_on_one_plot():
    flow = TimeGradients(["layer 1"], np.array([[1e-4, 1e-2, 1.0, 3.0]]))
    np.testing.assert_allclose(relative_norms(flow), [1.0, 1e-2, 1e-4])
    svg = time_figure({"rnn": {"at the start": flow, "trained": flow}, "lstm": {"trained": flow}}, title="t")
    assert {"rnn, at the start", "rnn, trained", "lstm, trained"} <= {
        one.text for one in ET.fromstring(svg).findall(".//{*}text")
    }
    model, tokens = to_float64(model_of("rnn", num_layers=2)), tokens_of(5)
    depth = gradients_by_layer(model, lambda: model.loss(tokens[:, :-1], tokens[:, 1:])[0].mean())
    ET.fromstring(layer_figure({"rnn": {"trained": depth}}, title="t"))


# ---- names that agree with those of other views


def test_attention_and_feed_forward_are_two_sublayers(runs):
    model, tokens = to_float64(model_of("attention", num_heads=2, num_layers=2, skip_connection="residual")), tokens_of(6)
    depth = gradients_by_layer(model, lambda: model.loss(tokens[:, :-1], tokens[:, 1:])[0].mean())
    parts = ["layer 1 attention", "layer 1 feed-forward", "layer 2 attention", "layer 2 feed-forward"]
    assert depth.names == ["input", *parts]
    assert gradients_over_time(model, tokens).layers == ["layer 1", "layer 2"]  # what remembers: attention alone
    svg = layer_figure({"gpt": {"trained": depth}}, title="t")
    ticks = {one.text for one in ET.fromstring(svg).findall(".//{*}text")}
    assert {"input", "layer 1", "layer 2"} <= ticks and "layer 1 attention" not in ticks
    assert "layer␣2␣feed-forward" in svg  # for the pointer
    translator: Any = weft.load(runs.run_dir("transformer"), device="cpu")
    names = [name for name in layers_of(translator.members[0].model) if name.startswith("decoder")]
    assert named_parts(translator.members[0].model, names) == [
        f"decoder {number} {part}" for number in (1, 2) for part in ("attention", "cross-attention", "feed-forward")
    ]


@pytest.mark.parametrize(("mixer", "part"), [("lstm", "recurrent"), ("conv", "conv"), ("attention", "attention")])
def test_bidirectional_layers_are_named_by_direction(mixer, part):
    table = StackConfig(layer_type=mixer, hidden_size=8, num_layers=2, bidirectional=True, ffn_dim=16).with_defaults()
    model = stack(table, context_length=8)
    names = named_parts(model, layers_of(model))
    assert names == [f"layer {number} {one}" for number in (1, 2) for one in (part, "feed-forward")]


def test_the_legend_explains_a_missing_series():
    series = [
        Series("zero", [0, 1], [0.0, 0.0]),
        Series("gone", [0, 1], [float("nan")] * 2),
        Series("there", [0, 1], [1.0, 2.0]),
    ]
    texts = {
        one.text for one in ET.fromstring(lines(series, x_axis=Axis("x"), y_axis=Axis("y", log=True))).findall(".//{*}text")
    }
    assert {"zero (0 everywhere)", "gone (no values)", "there"} <= texts
    plain = {one.text for one in ET.fromstring(lines(series, x_axis=Axis("x"), y_axis=Axis("y"))).findall(".//{*}text")}
    assert {"zero", "gone (no values)", "there"} <= plain


def test_zero_gradients_are_reported_in_the_terminal(tmp_path):
    """gpt starts with an output of zeros: nothing comes back through it."""
    values = run_file(make_text(tmp_path / "text.txt"), "gpt", train__max_steps=2, train__num_validations=1)
    run = weft.load(train_here(values, tmp_path / "run").path, device="cpu")
    view = gradient_flow(run, "the cat", ExplainConfig())
    assert view.lines[-1] == "untrained: all gradients are zero"
