"""Every layer against a reference: the equations in plain loops, torch.nn with the same weights, GPT-2, and "hello"."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from toy_models import enlarge_weights

from weft.models.build import stack
from weft.models.config import CONNECTIONS, NORMS, LanguageModelConfig, StackConfig
from weft.models.lm import LanguageModel, language_model
from weft.nn import lm_head as heads
from weft.nn.attention import ACTIVATIONS, FeedForward, SelfAttention
from weft.nn.bidirectional import Bidirectional
from weft.nn.lm_head import LMHead
from weft.nn.positions import (
    AlibiBias,
    LearnedPositions,
    RelativeBias,
    RelativePositions,
    RotaryEmbedding,
    SinusoidalPositions,
)
from weft.nn.recurrent import GRU, LSTM, RNN, CausalConv, ResetBeforeGRU

Array = NDArray[np.float64]
EXACT = {"atol": 1e-12, "rtol": 1e-10}
FLOAT32 = {"atol": 2e-6, "rtol": 1e-4}


def text(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def array(tensor: Tensor) -> Array:
    return tensor.detach().double().numpy()


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return enlarge_weights(build()).double().eval()


def agree(actual: Tensor, expected: Array, **within: float) -> None:
    np.testing.assert_allclose(array(actual), expected, **(within or EXACT))


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


# ---- the recurrent equations: one row (T, I), its state before, the outputs (T, D) and the state after


def window_equations(part: CausalConv, x: Array, past: Array) -> tuple[Array, Array]:
    w, b = array(part.hidden.weight), array(part.hidden.bias)
    inputs = [*past, *x]
    outputs = [np.tanh(w @ np.concatenate(inputs[t : t + part.kernel_size]) + b) for t in range(len(x))]
    return np.array(outputs), np.array(inputs[len(x) :])


def rnn_equations(part: RNN, x: Array, h: Array) -> tuple[Array, Array]:
    u, w, b, b_h = (array(weight) for weight in part.cell.all_weights[0])
    outputs = []
    for read in x:
        h = np.tanh(w @ h + u @ read + b + b_h)
        outputs.append(h)
    return np.array(outputs), h


def lstm_equations(part: LSTM, x: Array, state: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
    (h, c), outputs = state, []
    (u_i, u_f, u_c, u_o), (w_i, w_f, w_c, w_o), (b_i, b_f, b_c, b_o), (d_i, d_f, d_c, d_o) = (
        np.split(array(weight), 4) for weight in part.cell.all_weights[0]
    )
    for read in x:
        i = sigmoid(w_i @ h + u_i @ read + b_i + d_i)
        f = sigmoid(w_f @ h + u_f @ read + b_f + d_f)
        o = sigmoid(w_o @ h + u_o @ read + b_o + d_o)
        c = f * c + i * np.tanh(w_c @ h + u_c @ read + b_c + d_c)
        h = o * np.tanh(c)
        outputs.append(h)
    return np.array(outputs), (h, c)


def gru_after_equations(part: GRU, x: Array, h: Array) -> tuple[Array, Array]:
    (u_r, u_z, u_n), (w_r, w_z, w_n), (b_r, b_z, b_n), (d_r, d_z, d_n) = (
        np.split(array(weight), 3) for weight in part.cell.all_weights[0]
    )
    outputs = []
    for read in x:
        r = sigmoid(w_r @ h + u_r @ read + b_r + d_r)
        u = 1.0 - sigmoid(w_z @ h + u_z @ read + b_z + d_z)  # fused kernels store the gate that keeps
        new = np.tanh(u_n @ read + b_n + r * (w_n @ h + d_n))
        h = (1.0 - u) * h + u * new
        outputs.append(h)
    return np.array(outputs), h


def gru_before_equations(part: ResetBeforeGRU, x: Array, h: Array) -> tuple[Array, Array]:
    (u_u, u_r, u_h), (b_u, b_r, b_h) = np.split(array(part.input_proj.weight), 3), np.split(array(part.input_proj.bias), 3)
    (w_u, w_r), w_h = np.split(array(part.gates.weight), 2), array(part.candidate.weight)
    outputs = []
    for read in x:
        u = sigmoid(w_u @ h + u_u @ read + b_u)
        r = sigmoid(w_r @ h + u_r @ read + b_r)
        new = np.tanh(w_h @ (r * h) + u_h @ read + b_h)
        h = (1.0 - u) * h + u * new
        outputs.append(h)
    return np.array(outputs), h


RECURRENT = {
    "conv": (lambda: CausalConv(5, kernel_size=3, input_size=4), window_equations, (2, 4)),
    "rnn": (lambda: RNN(5, input_size=4), rnn_equations, (5,)),
    "lstm": (lambda: LSTM(5, input_size=4), lstm_equations, (5,)),
    "gru": (lambda: GRU(5, input_size=4), gru_after_equations, (5,)),
    "gru-before": (lambda: ResetBeforeGRU(5, input_size=4), gru_before_equations, (5,)),
}


@pytest.mark.parametrize("started", [False, True], ids=["from-zeros", "from-a-state"])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layer_matches_its_equations(name, started):
    build, equations, shape = RECURRENT[name]
    part, x = seeded(build), text(2, 6, 4)
    past = text(2, *shape, seed=1) if started else torch.zeros(2, *shape, dtype=torch.double)
    before = (past, past.flip(0)) if name == "lstm" else past
    y, after = part(x, before if started else None)
    for row in range(2):
        row_state = tuple(array(side[row]) for side in before) if name == "lstm" else array(before[row])
        expected, state = equations(part, array(x[row]), row_state)
        agree(y[row], expected)
        for actual, reference in zip(after, state, strict=True) if name == "lstm" else [(after, state)]:
            agree(actual[row], reference)


# ---- connections and norms, in a stack of two recurrent layers


def normalised(x: Array, norm: nn.Module, norm_type: str) -> Array:
    if norm_type == "rmsnorm":
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + np.finfo(np.float64).eps) * array(norm.weight)
    if norm_type == "layernorm":
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + 1e-5) * array(norm.weight) + array(norm.bias)
    return x


def connected(connection: str, part: nn.Module, x: Array, y: Array, norm: str) -> Array:
    match connection:
        case "none":
            return y
        case "residual":
            return x + y
        case "post-norm":
            return normalised(x + y, part.norm, norm)
        case "highway":
            gate = sigmoid(x @ array(part.gate.weight).T + array(part.gate.bias))
            return gate * y + (1.0 - gate) * x
        case "dense":
            return np.concatenate([x, y], axis=-1)
    raise AssertionError(connection)


JOINED = [(kind, norm) for kind in (*CONNECTIONS, "post-norm") for norm in NORMS if (kind, norm) != ("post-norm", "none")]


def skip(connection: str) -> dict[str, str]:
    """Options of a skip connection; post-norm is a residual connection with the norm after the sum."""
    if connection == "post-norm":
        return {"skip_connection": "residual", "norm_position": "post"}
    return {"skip_connection": connection}


@pytest.mark.parametrize(("connection", "norm"), JOINED)
def test_stack_matches_the_equations_of_its_skip_connections(connection, norm):
    full = seeded(
        lambda: stack(
            StackConfig(layer_type="rnn", hidden_size=6, norm=norm, **skip(connection)).with_defaults(), context_length=16
        )
    )
    given = text(1, 5, 6)
    x, before = array(given[0]), "none" if connection == "post-norm" else norm
    for layer in full.layers:
        entered = x
        if connection == "dense":
            entered = x @ array(layer.connection.projection.weight).T + array(layer.connection.projection.bias)
        y, _ = rnn_equations(layer.mixer, normalised(entered, layer.norm, before), np.zeros(6))
        x = connected(connection, layer.connection, x, y, norm)
    outlet = full.final_norm
    if connection == "dense":
        assert x.shape == (5, 18)
        x, outlet = x @ array(outlet[0].weight).T + array(outlet[0].bias), outlet[1]
    agree(full(given)[0][0], normalised(x, outlet, before))


# ---- feed-forward and head

ACTIVATION_EQUATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))),
    "gelu-tanh": lambda x: x * 0.5 * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0.0),
    "squared-relu": lambda x: np.maximum(x, 0.0) ** 2,
    "silu": lambda x: x * sigmoid(x),
    "swiglu": lambda x: x[:7] * sigmoid(x[:7]) * x[7:],
    "geglu-tanh": lambda x: ACTIVATION_EQUATIONS["gelu-tanh"](x[:7]) * x[7:],
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_layer_matches_its_equation(activation):
    part, x = seeded(lambda: FeedForward(4, ffn_dim=7, activation=activation)), text(1, 3, 4)
    w, b, out, c = (array(weight) for weight in (part.up_proj.weight, part.up_proj.bias, part.to_out.weight, part.to_out.bias))
    expected = [out @ ACTIVATION_EQUATIONS[activation](w @ position + b) + c for position in array(x[0])]
    y, state = part(x)
    agree(y[0], np.array(expected))
    assert state == ()


@pytest.mark.parametrize(("cap", "bias"), [(None, True), (1.5, True), (None, False)])
def test_lm_head_is_a_capped_softmax(cap, bias):
    part, x, targets = (
        seeded(lambda: LMHead(4, 6, logit_softcap=cap, bias=bias)),
        text(2, 3, 4),
        torch.tensor([[0, 5, 2], [1, 1, 4]]),
    )
    log_probs, nats = part(x), part.loss(x, targets)
    for row in range(2):
        for t in range(3):
            scores = [w @ array(x[row, t]) + b for w, b in zip(array(part.weight), array(part.bias), strict=True)]
            if cap is not None:
                scores = [cap * math.tanh(score / cap) for score in scores]
                assert max(abs(score) for score in scores) < cap
            total = math.log(sum(math.exp(score) for score in scores))
            agree(log_probs[row, t], np.array(scores) - total, **FLOAT32)
            assert nats[row, t].item() == pytest.approx(total - scores[targets[row, t]], abs=2e-6)


def test_without_gradients_the_loss_is_computed_in_chunks(monkeypatch):
    part, x, targets = seeded(lambda: LMHead(4, 6)), text(2, 7, 4), torch.arange(14).view(2, 7) % 6
    monkeypatch.setattr(heads, "MAX_LOGITS", 18)  # three positions
    sizes: list[int] = []
    scores = part.logits
    monkeypatch.setattr(part, "logits", lambda x: sizes.append(len(x)) or scores(x))
    full = part.loss(x, targets)
    with torch.no_grad():
        torch.testing.assert_close(part.loss(x, targets), full)
    assert sizes == [14, 3, 3, 3, 3, 2]


def test_tied_weights_are_one_parameter_with_summed_gradients():
    torch.manual_seed(0)
    options = {"layer_type": "rnn", "num_layers": 1, "hidden_size": 6}
    tied = language_model(
        LanguageModelConfig(**options, tie_embeddings=True).with_defaults(), vocab_size=5, context_length=8, vocabulary=""
    )
    loose = language_model(LanguageModelConfig(**options).with_defaults(), vocab_size=5, context_length=8, vocabulary="")
    loose.load_state_dict(tied.state_dict())  # the state has the matrix under both its names
    assert tied.head.weight is tied.embedding.weight
    assert "head.weight" not in dict(tied.named_parameters())
    tokens = torch.tensor([[0, 3, 2, 1]])
    for model in (tied, loose):
        model.loss(tokens[:, :-1], tokens[:, 1:])[0].sum().backward()
    torch.testing.assert_close(tied(tokens)[0], loose(tokens)[0])
    torch.testing.assert_close(tied.head.weight.grad, loose.head.weight.grad + loose.embedding.weight.grad)


# ---- attention: every score in a loop, for each kind of position


def turned(x: Array, position: int) -> Array:
    """Su et al. 2021, equation 34, with coordinate i paired with i + E/2 instead of its neighbour."""
    half, new = len(x) // 2, np.empty_like(x)
    for i in range(half):
        angle = position * 10000.0 ** (-2.0 * i / len(x))
        new[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        new[i + half] = x[i] * math.sin(angle) + x[i + half] * math.cos(angle)
    return new


def score(part: SelfAttention, encoding: str, q: Array, k: Array, where: tuple[int, int, int]) -> float:
    """The score of query i for key j in a head, before the softmax."""
    head, i, j = where
    root = math.sqrt(len(q))
    match encoding:
        case "rotary":
            return turned(q, i) @ turned(k, j) / root
        case "alibi":
            return q @ k / root - 2.0 ** (-8.0 * (head + 1) / part.num_heads) * (i - j)
        case "relative":
            reach = part.positions.max_distance
            return q @ (k + array(part.positions.keys.weight)[max(j - i, -reach) + reach]) / root
        case "relative-bias":  # four single distances, then 4 + floor(4 log(d / 4) / log(16 / 4))
            bucket = [0, 1, 2, 3, 4, 4, 5, 5][i - j]
            return q @ k / root + array(part.positions.table.weight)[bucket, head]
        case "qk-norm":
            epsilon = np.finfo(np.float64).eps
            unit_q, unit_k = q / math.sqrt(np.mean(q**2) + epsilon), k / math.sqrt(np.mean(k**2) + epsilon)
            return unit_q @ unit_k / root
    return q @ k / root


def attention_equations(part: SelfAttention, encoding: str, x: Array, window: int) -> Array:
    queries, keys, values = np.split(x @ array(part.to_qkv.weight).T + array(part.to_qkv.bias), 3, axis=-1)
    size = queries.shape[1] // part.num_heads
    y = np.zeros_like(queries)
    for head in range(part.num_heads):
        columns = slice(head * size, (head + 1) * size)
        for i in range(len(x)):
            seen = range(max(0, i - window + 1), i + 1)
            weights = np.exp([score(part, encoding, queries[i, columns], keys[j, columns], (head, i, j)) for j in seen])
            y[i, columns] = (weights / weights.sum()) @ values[list(seen), columns]
    return y @ array(part.to_out.weight).T + array(part.to_out.bias)


INNER = {
    "none": {},
    "rotary": {"positions": RotaryEmbedding(4)},
    "alibi": {"positions": AlibiBias(3)},
    "relative": {"positions": RelativePositions(4, max_distance=3)},
    "relative-bias": {"positions": RelativeBias(3, bidirectional=False, num_buckets=8, max_distance=16)},
    "qk-norm": {"qk_norm": nn.RMSNorm(4, elementwise_affine=False)},
}


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("encoding", INNER)
def test_attention_matches_its_equations(encoding, window):
    part = seeded(lambda: SelfAttention(6, num_heads=3, head_dim=4, context_length=window, **INNER[encoding]))
    x = text(1, 8, 6)
    # rotary frequencies and ALiBi slopes are computed in float32
    agree(part(x)[0][0], attention_equations(part, encoding, array(x[0]), window or 8), atol=1e-6, rtol=1e-6)


def test_rotary_equals_the_paper_up_to_the_order_of_coordinates():
    part, x = RotaryEmbedding(6).double(), text(1, 1, 5, 6)
    actual = part.rotate(x, torch.arange(5)[None] + 3)[0, 0]
    order = [0, 2, 4, 1, 3, 5]  # where the paper's coordinate pairs (0, 1), (2, 3), (4, 5) stand here
    for t in range(5):
        matrix = np.zeros((6, 6))
        for i in range(3):
            angle = (t + 3) * 10000.0 ** (-2.0 * i / 6)
            matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [
                [math.cos(angle), -math.sin(angle)],
                [math.sin(angle), math.cos(angle)],
            ]
        paper = np.empty(6)
        paper[order] = array(x[0, 0, t])
        agree(actual[t], (matrix @ paper)[order], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shift", [1, 17, 1000])
def test_rotary_scores_depend_on_distances_only(shift):
    part, q, k, index = RotaryEmbedding(8).double(), text(1, 2, 6, 8), text(1, 2, 6, 8, seed=1), torch.arange(6)[None]
    scores = part.rotate(q, index) @ part.rotate(k, index).mT
    shifted = part.rotate(q, index + shift) @ part.rotate(k, index + shift).mT
    torch.testing.assert_close(shifted, scores, atol=1e-9, rtol=0.0)
    assert (part.rotate(q, index + shift) @ part.rotate(k, index).mT - scores).abs().max() > 0.1


def test_stored_rotations_equal_computed_ones():
    """They are used for positions below their number alone, and never in float64, which they would make less exact."""
    stored, computed, x = RotaryEmbedding(8, num_stored=6), RotaryEmbedding(8), text(2, 3, 6, 8)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5]])  # the first row has two texts
    expected = computed.rotate(x.float(), positions)
    assert torch.equal(stored.rotate(x.float(), positions, 6), expected)
    torch.testing.assert_close(stored.rotate(x, positions, 6), computed.rotate(x, positions), atol=0.0, rtol=0.0)
    stored.table.zero_()
    assert not torch.equal(stored.rotate(x.float(), positions, 6), expected)
    for bound in (None, 7):
        assert torch.equal(stored.rotate(x.float(), positions, bound), expected)


def test_position_encodings_stay_exact_at_position_10_million():
    """In float32 the angle of position 10 million would be off by half a radian."""
    part, q, k, index = RotaryEmbedding(8), text(1, 2, 6, 8).float(), text(1, 2, 6, 8, seed=1).float(), torch.arange(6)[None]
    scores = part.rotate(q, index) @ part.rotate(k, index).mT
    far = index + 10**7
    torch.testing.assert_close(part.rotate(q, far) @ part.rotate(k, far).mT, scores, atol=1e-5, rtol=0.0)
    waves = SinusoidalPositions(8).add_to(torch.zeros(1, 6, 8), far)
    exact = SinusoidalPositions(8).double().add_to(torch.zeros(1, 6, 8, dtype=torch.double), far)
    torch.testing.assert_close(waves, exact.float(), atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("dim", [6, 7])
def test_sinusoidal_positions_match_the_paper(dim):
    actual = SinusoidalPositions(dim).double().add_to(torch.zeros(1, 9, dim, dtype=torch.double), torch.arange(9)[None])
    for index in range(9):
        for i in range(dim):
            angle = index / 10000.0 ** (2 * (i // 2) / dim)
            assert actual[0, index, i].item() == pytest.approx(math.cos(angle) if i % 2 else math.sin(angle), abs=1e-5)


def test_learned_positions_are_embedding_rows():
    part, x = seeded(lambda: LearnedPositions(3, max_positions=5)), text(2, 2, 3)
    actual = part.add_to(x, torch.tensor([[0, 1], [3, 4]]))
    for row, position, index in ((0, 0, 0), (0, 1, 1), (1, 0, 3), (1, 1, 4)):
        agree(actual[row, position], array(x[row, position]) + array(part.table.weight)[index])
    with pytest.raises(ValueError) as caught:
        part.add_to(text(1, 6, 3), torch.arange(6)[None])
    assert str(caught.value) == "positions: 6 tokens exceed the table of 5 positions"


# ---- torch.nn with the same weights


@pytest.mark.parametrize(("ours", "theirs"), [(RNN, nn.RNN), (LSTM, nn.LSTM), (GRU, nn.GRU)])
def test_two_recurrent_layers_match_torch(ours, theirs):
    torch.manual_seed(0)
    reference = theirs(6, 6, num_layers=2, batch_first=True)
    full = stack(StackConfig(layer_type=ours.__name__.lower(), hidden_size=6).with_defaults(), context_length=16)
    for number, layer in enumerate(full.layers):
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(layer.mixer.cell, f"{kind}_l0").data.copy_(getattr(reference, f"{kind}_l{number}"))
    x = text(3, 7, 6).float()
    (expected, last), (y, (seen, states)) = reference(x), full(x)
    torch.testing.assert_close(y, expected, **FLOAT32)
    assert seen.tolist() == [[7]] * 3
    hidden = [state[0] if ours is LSTM else state for state in states]
    torch.testing.assert_close(torch.stack(hidden), last[0] if ours is LSTM else last, **FLOAT32)
    if ours is LSTM:
        torch.testing.assert_close(torch.stack([state[1] for state in states]), last[1], **FLOAT32)


@pytest.mark.parametrize(("ours", "theirs"), [(RNN, nn.RNN), (LSTM, nn.LSTM), (GRU, nn.GRU)])
def test_bidirectional_layer_matches_torch_on_packed_sequences(ours, theirs):
    torch.manual_seed(0)
    reference, part = (
        theirs(6, 4, bidirectional=True, batch_first=True),
        Bidirectional(ours(4, input_size=6), ours(4, input_size=6)),
    )
    for side, suffix in ((part.forward_mixer, "l0"), (part.backward_mixer, "l0_reverse")):
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(side.cell, f"{kind}_l0").data.copy_(getattr(reference, f"{kind}_{suffix}"))
    x, lengths = text(3, 7, 6).float().requires_grad_(), torch.tensor([4, 7, 1])
    keep = torch.arange(7) < lengths[:, None]
    y, state = part(x, None, keep)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, last = reference(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    torch.testing.assert_close(y[keep], expected[keep], **FLOAT32)
    for actual, wanted in zip(state, last, strict=True) if ours is LSTM else [(state, last)]:
        torch.testing.assert_close(actual, wanted.transpose(0, 1).flatten(1), **FLOAT32)
    probe = text(3, 7, 8, seed=1).float() * keep[..., None]
    (actual,), (wanted,) = (torch.autograd.grad((z * probe).sum(), x) for z in (y, expected))
    torch.testing.assert_close(actual, wanted, **FLOAT32)


def copy_attention(part: SelfAttention, reference: nn.MultiheadAttention) -> None:
    part.to_qkv.load_state_dict({"weight": reference.in_proj_weight, "bias": reference.in_proj_bias})
    part.to_out.load_state_dict(reference.out_proj.state_dict())


def test_attention_matches_torch():
    torch.manual_seed(0)
    reference, part, x = nn.MultiheadAttention(8, 2, batch_first=True), SelfAttention(8, num_heads=2), text(2, 6, 8).float()
    copy_attention(part, enlarge_weights(reference))
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    torch.testing.assert_close(part(x)[0], reference(x, x, x, attn_mask=future, need_weights=False)[0], **FLOAT32)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("connection", ["residual", "post-norm"])
def test_transformer_matches_torch(connection, activation):
    torch.manual_seed(0)
    before = connection == "residual"
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation=activation, batch_first=True, norm_first=before)
    top = nn.LayerNorm(8) if before else None
    reference = enlarge_weights(nn.TransformerEncoder(layer, 2, norm=top, enable_nested_tensor=False))
    options = {"layer_type": "attention", "hidden_size": 8, "num_heads": 2, "ffn_dim": 16, "norm": "layernorm"}
    full = stack(StackConfig(**options, activation=activation, **skip(connection)).with_defaults(), context_length=16)
    for number, theirs in enumerate(reference.layers):
        attend, forward = full.layers[2 * number : 2 * number + 2]
        copy_attention(attend.mixer, theirs.self_attn)
        forward.mixer.up_proj.load_state_dict(theirs.linear1.state_dict())
        forward.mixer.to_out.load_state_dict(theirs.linear2.state_dict())
        for ours, norm in ((attend, theirs.norm1), (forward, theirs.norm2)):
            (ours if before else ours.connection).norm.load_state_dict(norm.state_dict())
    if top is not None:
        full.final_norm.load_state_dict(reference.norm.state_dict())
    x = text(2, 6, 8).float().requires_grad_()
    y, expected = full(x)[0], reference(x, nn.Transformer.generate_square_subsequent_mask(6), is_causal=True)
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-4)
    probe = text(2, 6, 8, seed=1).float()
    (actual,), (wanted,) = (torch.autograd.grad((z * probe).sum(), x) for z in (y, expected))
    torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-3)


# ---- GPT-2 with the same weights


def copy_gpt2(model: LanguageModel, theirs: dict[str, Tensor]) -> None:
    """GPT-2's linear maps are stored transposed; its head has no bias, and ours starts at 0."""

    def copy(part: nn.Module, name: str, *, turn: bool = False) -> None:
        weight = theirs[f"transformer.{name}.weight"]
        part.load_state_dict({"weight": weight.T if turn else weight, "bias": theirs[f"transformer.{name}.bias"]})

    model.embedding.load_state_dict({"weight": theirs["transformer.wte.weight"]})
    model.stack.positions.table.load_state_dict({"weight": theirs["transformer.wpe.weight"]})
    for number in range(len(model.stack.layers) // 2):
        attend, forward = model.stack.layers[2 * number : 2 * number + 2]
        for part, name in ((attend.norm, "ln_1"), (forward.norm, "ln_2")):
            copy(part, f"h.{number}.{name}")
        for part, name in ((attend.mixer.to_qkv, "attn.c_attn"), (attend.mixer.to_out, "attn.c_proj")):
            copy(part, f"h.{number}.{name}", turn=True)
        for part, name in ((forward.mixer.up_proj, "mlp.c_fc"), (forward.mixer.to_out, "mlp.c_proj")):
            copy(part, f"h.{number}.{name}", turn=True)
    copy(model.stack.final_norm, "ln_f")


def test_transformer_matches_gpt2():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    torch.manual_seed(0)
    # published GPT-2 approximates GELU with tanh; ours is exact, so theirs is configured to be
    sizes = {"vocab_size": 11, "n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 24}
    reference = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, activation_function="gelu"))
    enlarge_weights(reference).eval()
    options = {
        "layer_type": "attention",
        "position_encoding": "learned",
        "skip_connection": "residual",
        "norm": "layernorm",
        "tie_embeddings": True,
    }
    table = LanguageModelConfig(**options, num_layers=2, hidden_size=16, num_heads=4, ffn_dim=24).with_defaults()
    model = language_model(table, vocab_size=11, context_length=12, vocabulary="").eval()
    copy_gpt2(model, reference.state_dict())
    tokens = torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = reference(tokens).logits
        torch.testing.assert_close(model.head.logits(model(tokens)[0]), expected, atol=1e-5, rtol=1e-5)
        # and with the cache, one token at a time
        log_probs, state = model.start(tokens[:, :5])
        for position in range(5, 12):
            torch.testing.assert_close(log_probs, expected[:, position - 1].log_softmax(-1), atol=1e-5, rtol=1e-5)
            log_probs, state = model.step(tokens[:, position], state)
        nats = torch.nn.functional.cross_entropy(expected[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        assert -model.score(tokens).mean().item() == pytest.approx(nats.item(), abs=1e-5)


# ---- the lecture's example: the vocabulary h, e, l, o and the training sequence "hello"


def test_one_rnn_step_by_hand():
    """h(t) = tanh(W_hh h(t-1) + W_xh x(t)) with x = (1, 0) and then (0, 1)."""
    part = RNN(2)
    part.cell.load_state_dict(
        {
            "weight_ih_l0": torch.tensor([[0.5, -1.0], [0.25, 2.0]]),  # W_xh
            "weight_hh_l0": torch.tensor([[1.0, 0.0], [-2.0, 0.5]]),  # W_hh
            "bias_ih_l0": torch.zeros(2),
            "bias_hh_l0": torch.zeros(2),
        }
    )
    y, h = part(torch.eye(2)[None])
    # tanh(0.5) = 0.46212, tanh(0.25) = 0.24492
    torch.testing.assert_close(y[0, 0], torch.tensor([0.46212, 0.24492]), atol=1e-5, rtol=0.0)
    # tanh(0.46212 - 1) = tanh(-0.53788) = -0.49138, tanh(-2 * 0.46212 + 0.5 * 0.24492 + 2) = tanh(1.19822) = 0.83311
    torch.testing.assert_close(y[0, 1], torch.tensor([-0.49138, 0.83311]), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(h[0], y[0, 1])


def test_an_rnn_learns_to_spell_hello():
    torch.manual_seed(0)
    table = LanguageModelConfig(layer_type="rnn", num_layers=1, hidden_size=8).with_defaults()
    model = language_model(table, vocab_size=4, context_length=8, vocabulary="")
    letters = "helo"
    tokens = torch.tensor([[letters.index(letter) for letter in "hello"]])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(200):
        optimizer.zero_grad()
        nats, _ = model.loss(tokens[:, :-1], tokens[:, 1:])
        nats.mean().backward()
        optimizer.step()
    # the same letter l is followed by l once and by o once: only the state can tell which
    assert nats.max().item() < 0.05
    log_probs, state = model.start(tokens[:, :1])
    spelt = "h"
    for _ in range(4):
        token = log_probs.argmax(-1)
        spelt += letters[token]
        log_probs, state = model.step(token, state)
    assert spelt == "hello"
