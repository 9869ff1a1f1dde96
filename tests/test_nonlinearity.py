"""Recurrent and fixed-window networks with tanh, ReLU or sigmoid; the depth of additive attention; a custom mixer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy_seq2seq import random_memory, seq2seq_config, seq2seq_model, sources, targets

from weft.config import parse_config
from weft.errors import ConfigError
from weft.models.build import mixer
from weft.models.config import StackConfig
from weft.nn.bidirectional import CenteredConv
from weft.nn.cross_attention import SourceAttention
from weft.nn.mixers import MIXERS, Mixer, recurrent_mixers
from weft.nn.recurrent import NONLINEARITIES, RNN, CausalConv, last_token_state
from weft.tasks.registry import TASKS, find_task

FUNCTIONS: dict[str, Any] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def array(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy()


@pytest.mark.parametrize("nonlinearity_name", NONLINEARITIES)
def test_rnn_matches_its_equation(nonlinearity_name):
    """h(t) = f(W h(t-1) + U x(t) + b)."""
    torch.manual_seed(0)
    part, x, h = RNN(5, input_size=3, nonlinearity=nonlinearity_name).double(), random(2, 4, 3), random(2, 5, seed=1)
    u, w, b, c = (array(weight) for weight in part.cell.all_weights[0])
    state, expected = array(h), []
    for t in range(4):
        state = FUNCTIONS[nonlinearity_name](state @ w.T + c + array(x[:, t]) @ u.T + b)
        expected.append(state)
    y, after = part(x, h)
    np.testing.assert_allclose(array(y), np.stack(expected, axis=1), atol=1e-12)
    np.testing.assert_allclose(array(after), expected[-1], atol=1e-12)
    stepped, steps = h, []
    for t in range(4):
        one, stepped = part(x[:, t : t + 1], stepped)
        steps.append(one)
    torch.testing.assert_close(torch.cat(steps, dim=1), y)


@pytest.mark.parametrize("nonlinearity_name", ["tanh", "relu"])
def test_fused_rnn_matches_torch(nonlinearity_name):
    torch.manual_seed(0)
    part, reference = (
        RNN(5, input_size=3, nonlinearity=nonlinearity_name),
        nn.RNN(3, 5, nonlinearity=nonlinearity_name, batch_first=True),
    )
    reference.load_state_dict(part.cell.state_dict())
    x = random(2, 6, 3).float()
    y, h = part(x)
    expected, ended = reference(x)
    torch.testing.assert_close(y, expected, atol=0, rtol=0)
    torch.testing.assert_close(h, ended[0], atol=0, rtol=0)


def test_all_nonlinearities_start_with_the_same_weights():
    results = []
    for nonlinearity_name in NONLINEARITIES:
        torch.manual_seed(0)
        results.append(RNN(4, nonlinearity=nonlinearity_name).state_dict())
    assert all(torch.equal(item[name], results[0][name]) for item in results for name in results[0])


@pytest.mark.parametrize("nonlinearity_name", NONLINEARITIES)
def test_fixed_window_network_matches_its_equation(nonlinearity_name):
    torch.manual_seed(0)
    part, x = CausalConv(4, kernel_size=2, input_size=3, nonlinearity=nonlinearity_name).double(), random(1, 3, 3)
    padded = np.concatenate([np.zeros((1, 3)), array(x[0])])
    weight, bias = array(part.hidden.weight), array(part.hidden.bias)
    expected = [FUNCTIONS[nonlinearity_name](weight @ np.concatenate([padded[t], padded[t + 1]]) + bias) for t in range(3)]
    np.testing.assert_allclose(array(part(x)[0][0]), expected, atol=1e-12)
    around = CenteredConv(4, kernel_size=2, input_size=3, nonlinearity=nonlinearity_name).double()
    around.conv.load_state_dict(part.hidden.state_dict())
    torch.testing.assert_close(around(x)[0][:, :2], part(x)[0][:, 1:])


@pytest.mark.parametrize("nonlinearity_name", NONLINEARITIES)
def test_option_reaches_every_mixer_that_has_it(nonlinearity_name):
    for name in ("rnn", "conv"):
        for two_way in (False, True):
            options = {"layer_type": name, "bidirectional": two_way, "hidden_size": 4, "nonlinearity": nonlinearity_name}
            built: Any = mixer(parse_config(StackConfig, options, prefix="model").with_defaults(), 0, None, input_size=4)
            parts = (built.forward_mixer, built.backward_mixer) if name == "rnn" and two_way else (built,)
            assert all(part.nonlinearity in (nonlinearity_name, NONLINEARITIES[nonlinearity_name]) for part in parts)


def test_tanh_is_the_default_and_others_have_none():
    assert parse_config(StackConfig, {"layer_type": "rnn"}, prefix="model").with_defaults().nonlinearity == "tanh"
    assert parse_config(StackConfig, {"layer_type": "lstm"}, prefix="model").with_defaults().nonlinearity is None
    with pytest.raises(ConfigError) as caught:
        parse_config(StackConfig, {"layer_type": "lstm", "nonlinearity": "relu"}, prefix="model")
    assert str(caught.value) == "model.nonlinearity: not used with layer_type 'lstm'; remove it"
    with pytest.raises(ConfigError) as caught:
        parse_config(StackConfig, {"layer_type": "rnn", "nonlinearity": "rely"}, prefix="model")
    assert str(caught.value) == "model.nonlinearity: unknown value 'rely'; did you mean 'relu'?"


@pytest.mark.parametrize("task", [task for task in TASKS if task != "word-vectors"])  # without networks of layers
def test_every_task_accepts_the_option(task):
    presets = find_task(task).presets
    preset = next(presets[name] for name in ("rnn", "lstm", "lstm-input-feeding") if name in presets)
    options = {"layer_type": "rnn", "nonlinearity": "relu"}
    table: Any = parse_config(preset.config_class, preset.merged(options), prefix="model").with_defaults()
    sides = (table.encoder, table.decoder) if task in ("seq2seq", "denoising", "asr", "captioning") else (table,)
    assert {side.nonlinearity for side in sides} == {"relu"}


# ---- the depth of additive attention


@pytest.mark.parametrize("size", [None, 3, 9])
def test_additive_attention_of_any_depth_matches_its_equation(size):
    """e(s) = w . tanh(U q + b + W k(s)), where w has `size` entries."""
    torch.manual_seed(0)
    look: Any = SourceAttention(4, score="additive", memory_size=5, attention_dim=size).double()
    deep = size or 4
    assert look.attend.weight.shape == (deep,) and look.to_q.weight.shape == (deep, 4) and look.to_k.weight.shape == (deep, 5)
    memory, x = random_memory(3, 2, hidden_size=5), random(2, 2, 4)
    actual = look(x, look.init_state(memory))
    w, u, b, k = (array(weight) for weight in (look.attend.weight, look.to_q.weight, look.to_q.bias, look.to_k.weight))
    for row, length in enumerate((3, 2)):
        for t in range(2):
            values = array(memory.values[row, :length])
            scores = np.array([w @ np.tanh(u @ array(x[row, t]) + b + k @ value) for value in values])
            shares = np.exp(scores - scores.max())
            np.testing.assert_allclose(array(actual[row, t]), shares / shares.sum() @ values, atol=1e-10)


def test_attention_dim_defaults_to_the_decoder_hidden_size():
    assert seq2seq_config(attention="additive").attention_dim == 8
    assert seq2seq_config(attention="additive", attention_dim=3).attention_dim == 3
    assert seq2seq_config(attention="dot").attention_dim is None
    with pytest.raises(ConfigError) as caught:
        seq2seq_config(attention="multiplicative", attention_dim=3)
    assert str(caught.value) == "model.attention_dim: not used with attention 'multiplicative'; remove it"


# ---- a mixer that is added


class Leaky(nn.Module):
    """h(t) = (h(t-1) + W x(t)) / 2: a custom mixer with a state of one vector."""

    def __init__(self, dim: int, *, input_size: int | None = None) -> None:
        super().__init__()
        self.dim, self.read = dim, nn.Linear(input_size or dim, dim)

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h, outputs = x.new_zeros(x.size(0), self.dim) if state is None else state, []
        for entered in self.read(x).unbind(1):
            h = (h + entered) / 2
            outputs.append(h)
        y = torch.stack(outputs, dim=1)
        return y, last_token_state(y, token_mask, state)


class Pair(Leaky):
    """The same with a state of two vectors, as in an LSTM."""

    def forward(self, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> Any:
        y, h = super().forward(x, None if state is None else state[0], token_mask)
        return y, (h, h)


class Blurred(nn.Module):
    """The mean of the inputs so far; no decoder can start from its state."""

    def __init__(self, dim: int, *, input_size: int | None = None) -> None:
        super().__init__()
        self.read = nn.Linear(input_size or dim, dim)

    def forward(self, x: Tensor, state: Any = None, token_mask: Tensor | None = None) -> tuple[Tensor, tuple[()]]:
        return self.read(x.cumsum(1)), ()


@pytest.mark.parametrize("row", [Mixer(Leaky, "recurrent", num_state_vectors=1), Mixer(Pair, "recurrent", num_state_vectors=2)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bridge": "project"},
        {"attention": "additive"},
        {"attention": "dot", "attention_placement": "before"},
        {"feed_context": True},
        {"encoder": {"bidirectional": False}},
    ],
)
def test_a_custom_mixer_trains_an_encoder_decoder(monkeypatch, row, options):
    monkeypatch.setitem(MIXERS, "toy", row)
    assert recurrent_mixers() == ["rnn", "lstm", "gru", "gru-reset-before", "mingru", "minlstm", "toy"]
    model = seq2seq_model(layer_type="toy", **options).train()
    (source, keep), tokens = sources(5, 3), targets(2, 4)
    steps = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(5):
        nats, _ = model.loss(tokens[:, :-1], tokens[:, 1:], model.encode(source, keep))
        steps.zero_grad()
        nats.mean().backward()
        steps.step()
        losses.append(nats.mean().item())
    assert losses[-1] < losses[0]
    memory = model.encoder(source, keep)
    state = memory.states[-1]
    torch.testing.assert_close(memory.summary, state[0] if row.num_state_vectors == 2 else state)


def test_a_mixer_without_state_vectors_summarizes_by_mean_and_cannot_decode(monkeypatch):
    monkeypatch.setitem(MIXERS, "toy", Mixer(Blurred, "mean"))
    model = seq2seq_model(encoder={"layer_type": "toy", "bidirectional": False}, decoder={"layer_type": "gru"})
    memory = model.encoder(*sources(5, 2))
    torch.testing.assert_close(memory.summary[1], memory.values[1, :2].mean(0))
    with pytest.raises(ConfigError) as caught:
        seq2seq_config(decoder={"layer_type": "toy"})
    assert str(caught.value) == (
        "model.decoder.layer_type: 'toy' is not possible for a decoder; use rnn, lstm, gru, gru-reset-before, "
        "mingru, minlstm or attention"
    )
