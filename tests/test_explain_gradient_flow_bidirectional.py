"""Gradient flow of the loss of a label, a tag or a mask through bidirectional layers: against cells written by hand."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from label_runs import LabelRuns
from small_runs import make_text, run_file, train_here
from torch import Tensor, nn

import weft
from weft.explain.gradient_flow import reinitialized, to_float64, why_no_gradients
from weft.explain.gradient_flow_loss import gradient_flow_to_loss, gradients_by_token, unrolled
from weft.explain.inputs import read
from weft.explain.options import ExplainConfig
from weft.models.encoder import EncoderInput
from weft.nn.bidirectional import Bidirectional
from weft.nn.recurrent import GRU, LSTM, RNN, ResetBeforeGRU
from weft.runs.run import Run

TEXT = "the old cat near here"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> LabelRuns:
    return LabelRuns(tmp_path_factory.mktemp("labels"))


def by_hand(cell: nn.RNN, x: Tensor) -> list[Tensor]:
    """The states of a vanilla RNN that reads x (T, I), with their gradients kept."""
    u, w, b, b2 = cell.all_weights[0]
    h, kept = torch.zeros(w.size(1), dtype=x.dtype), []
    for vector in x:
        h = torch.tanh(u @ vector + b + w @ h + b2)
        h.retain_grad()
        kept.append(h)
    return kept


def two_way(kind: type[nn.Module]) -> Bidirectional:
    torch.manual_seed(0)
    return Bidirectional(kind(6), kind(6)).double()


def test_a_bidirectional_vanilla_rnn_equals_the_formula():
    mixer, x = two_way(RNN), torch.randn(1, 5, 6, dtype=torch.float64)
    ahead, back = by_hand(mixer.forward_mixer.cell, x[0]), by_hand(mixer.backward_mixer.cell, x[0].flip(0))[::-1]
    y = torch.stack([torch.cat(both) for both in zip(ahead, back, strict=True)])
    (y[2] ** 3).sum().backward()  # what is said of the third token
    expected = [
        sum(one.grad.square().sum().item() for one in both if one.grad is not None) ** 0.5
        for both in zip(ahead, back, strict=True)
    ]
    with unrolled(mixer, ["forward_mixer", "backward_mixer"]) as kept:
        z, _ = mixer(x)
    torch.testing.assert_close(z[0], y)
    value = (z[0, 2] ** 3).sum()
    found = {
        name: torch.autograd.grad(value, [state[0] for state in states], retain_graph=True, allow_unused=True)
        for name, states in kept.items()
    }
    squares = [
        sum(0.0 if one is None else one.square().sum().item() for one in both)
        for both in zip(found["forward_mixer"], found["backward_mixer"][::-1], strict=True)
    ]
    np.testing.assert_allclose(np.sqrt(squares), expected)
    assert (np.array(expected) > 0).all()  # those before it by one direction, those after it by the other


@pytest.mark.parametrize("kind", [RNN, LSTM, GRU, ResetBeforeGRU])
def test_reading_token_by_token_changes_nothing(kind):
    mixer, x = two_way(kind), torch.randn(1, 7, 6, dtype=torch.float64)
    plain, last = mixer(x, None, torch.ones(1, 7, dtype=torch.bool))
    with unrolled(mixer, ["forward_mixer", "backward_mixer"]) as kept:
        stepped, end = mixer(x, None, torch.ones(1, 7, dtype=torch.bool))
    torch.testing.assert_close(stepped, plain)
    torch.testing.assert_close(end, last)
    assert all(len(states) == 7 for states in kept.values())
    assert not mixer.forward_mixer._forward_hooks and not mixer.backward_mixer._forward_hooks


@pytest.mark.parametrize("name", ["labels-gru", "labels-lstm"])
def test_state_gradients_of_a_label_equal_finite_differences(runs, name):
    """By numbers: a state is moved a little, both ways, and the loss read again. (At the start: where units have learned to
    saturate, a pool of maxima has ties.)"""
    run = weft.load(runs.run_dir(name))
    view = gradient_flow_to_loss(run, TEXT, ExplainConfig())
    model = to_float64(reinitialized(run))
    tokens = torch.tensor([[1, *run.vocabulary.tokenizer.encode(TEXT), 2]])
    row, label = EncoderInput(tokens, torch.ones_like(tokens, dtype=torch.bool)), run.labels.index(view.data["output"])

    def loss() -> Tensor:
        return -model(row).log_softmax(-1)[0, label]  # in float32: steps can not be tiny

    flow = gradients_by_token(model, loss)
    np.testing.assert_allclose(view.data["text"]["untrained"]["norms"], flow.norms, rtol=1e-5)
    mixer = model.encoder.stack.layers[0].mixer
    at, step, squares = 2, 1e-3, 0.0
    for part, place in ((mixer.forward_mixer, at), (mixer.backward_mixer, tokens.size(1) - 1 - at)):
        for leaf in range(2 if name.endswith("lstm") else 1):
            for unit in range(8):
                low, high = (moved_loss(part, place, (leaf, unit, size), loss) for size in (-step, step))
                squares += ((high - low) / (2 * step)) ** 2
    assert flow.norms[0, at] == pytest.approx(squares**0.5, rel=2e-3)


def moved_loss(part: nn.Module, place: int, move: tuple[int, int, float], loss) -> float:
    """The loss where, after one token, one number of a part's state is another."""
    leaf, unit, size = move

    def change(part: nn.Module, given: tuple, output: object) -> object:
        state, outputs = None, []
        for at in range(given[0].size(1)):
            _, state = part.forward(given[0][:, at : at + 1], state)
            parts = [one.clone() for one in (state if isinstance(state, tuple) else (state,))]
            if at == place:
                parts[leaf][0, unit] += size
            state = tuple(parts) if isinstance(state, tuple) else parts[0]
            outputs.append(parts[0])
        return torch.stack(outputs, dim=1), state

    handle = part.register_forward_hook(change)
    with torch.no_grad():
        value = loss().item()
    handle.remove()
    return value


def test_attention_layers_equal_gradients_of_their_inputs(runs):
    run = weft.load(runs.run_dir("speech-transformer"))
    view = gradient_flow_to_loss(run, "the bcdfo near dcbgi", ExplainConfig(position=2, target="NOUN"))
    assert (view.data["output"], view.data["position"]) == ("NOUN", 2)
    assert view.title == "Gradient flow from the loss of 'NOUN' at 'bcdfo'"
    model, kept = to_float64(run.model), []
    other = Run(run.directory, run.config, run.vocabulary, run.device_name)
    other.model = model
    reading = read(other, "the bcdfo near dcbgi", ExplainConfig(target="NOUN"))
    handles = [
        layer.register_forward_pre_hook(lambda part, given: kept.append(given[0]) or given[0].retain_grad())
        for layer in model.encoder.stack.layers
    ]
    (-reading.log_probs(torch.tensor([1]))[0, reading.targets[1]]).backward()
    for handle in handles:
        handle.remove()
    expected = [one.grad[0].norm(dim=1).tolist() for one in kept]
    np.testing.assert_allclose(view.data["text"]["trained"]["norms"], expected, rtol=1e-6)


def test_gradients_of_a_tagger_flow_in_both_directions(runs):
    run = weft.load(runs.run_dir("spans-lstm"))
    view = gradient_flow_to_loss(run, "the old mr bcdfo near here", ExplainConfig(position=4))
    assert [token["text"] for token in view.data["tokens"]] == ["<s>", "the", "old", "mr", "bcdfo", "near", "here", "</s>"]
    norms = np.array(view.data["text"]["untrained"]["norms"])
    assert norms.shape == (1, 8) and (norms > 0).all() and norms[0].argmax() == 4
    assert view.data["layers"]["untrained"]["places"] == ["encoder input", "encoder 1"]  # letters are no layer of it
    assert len(view.lines) == 1 + 8 + 1
    assert view.lines[0].split() == ["token", "untrained", "trained"]
    assert view.lines[-1] == "the gradient of the loss of 'B-PER' at 'bcdfo' at each token, relative to the largest"
    for picture in view.figures:
        ET.fromstring(picture.svg)


def test_every_task_with_a_network_has_the_view(runs, tmp_path):
    values = run_file(make_text(tmp_path / "text.txt"), "lstm", train__max_steps=2)
    values |= {"task": "masked-lm", "model": {"arch": "bert", "hidden_size": 8, "num_layers": 1, "num_heads": 2}}
    values["data"] |= {"read_as": "lines"}
    values["data"].pop("context_length", None)
    masked = weft.load(train_here(values, tmp_path / "run").path)
    view = masked.explain("the old [MASK]", "gradient-flow")
    assert [token["text"] for token in view.data["tokens"]].count("[MASK]") == 1 and view.data["position"] == 1
    pairs = weft.load(runs.run_dir("pairs-gru")).explain("the cat\tsome owl", "gradient-flow")
    assert [token["text"] for token in pairs.data["tokens"]] == ["<s>", "the", "cat", "</s>", "some", "owl", "</s>"]
    bayes = weft.load(runs.run_dir("labels-naive-bayes"))
    assert why_no_gradients(bayes) == "naive-bayes has no gradients"


def test_the_model_is_unchanged(runs):
    run = weft.load(runs.run_dir("labels-gru"))
    model = run.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run.explain(TEXT, "gradient-flow")
    assert run.model is model and model.training is False
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(
        not part._forward_hooks and parameter.grad is None for part in model.modules() for parameter in part.parameters()
    )
