"""The fast path of input feeding equals the plain loop over positions: outputs, states, gradients and dropout."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from toy_seq2seq import seq2seq_model, sources, targets

from weft.nn import linear
from weft.nn.cross_attention import StepwiseDecoder
from weft.nn.input_feeding import lstm_step, shared_additive_attention, shared_attention, shared_linear
from weft.nn.state import tree_leaves
from weft.tasks.encoder_decoder.pair_batch import PairBatch
from weft.tasks.encoder_decoder.pair_objective import PairObjective

FEEDING: dict[str, Any] = {"layer_type": "lstm", "input_feeding": True, "attention": "multiplicative"}
MODELS: dict[str, dict[str, Any]] = {
    "one layer": {**FEEDING, "bridge": "project"},
    "two layers": {**FEEDING, "num_layers": 2, "encoder": {"bidirectional": False}},
    "dot": {**FEEDING, "attention": "dot"},
    "scaled-dot": {**FEEDING, "attention": "scaled-dot"},
    "sizes": {**FEEDING, "encoder": {"hidden_size": 6}, "decoder": {"embedding_dim": 5, "num_layers": 3}},
    "dropout": {**FEEDING, "dropout": 0.4, "num_layers": 2},
    "additive": {**FEEDING, "attention": "additive", "attention_dim": 5, "encoder": {"hidden_size": 6}, "dropout": 0.2},
    "copying": {**FEEDING, "copy_mechanism": True},
}
VIEWS = {"view", "t", "transpose", "slice", "select", "unsqueeze", "squeeze", "expand", "permute", "detach", "alias", "split"}
VIEWS |= {"unbind", "_unsafe_view", "as_strided", "chunk", "empty", "empty_like", "new_empty", "unsafe_split", "unsafe_chunk"}


def pair_batch() -> PairBatch:
    source, source_mask = sources(4, 7, 1)
    tokens, token_mask = targets(3, 6), torch.ones(3, 6, dtype=torch.bool)
    token_mask[1, 3:] = False
    return PairBatch(source, source_mask, tokens, token_mask)


def loss_and_gradients(model: nn.Module, batch: PairBatch, *, autocast: bool = False) -> tuple[Tensor, list[Tensor]]:
    objective = PairObjective()
    objective.smoothing = 0.1
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        total = objective.loss(model, batch, None).total
    return total, list(torch.autograd.grad(total, list(model.parameters())))


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Switches the fast path on; before, the plain loop runs."""
    runs_fast = StepwiseDecoder.runs_fast
    monkeypatch.setattr(StepwiseDecoder, "runs_fast", lambda decoder, x, mask: False)
    return lambda: monkeypatch.setattr(StepwiseDecoder, "runs_fast", runs_fast)


@pytest.mark.parametrize("name", MODELS)
def test_it_equals_the_plain_loop(name: str, fast: Any) -> None:
    model = seq2seq_model(**MODELS[name]).double().train()
    total, gradients = loss_and_gradients(model, pair_batch())
    fast()
    fast_total, fast_gradients = loss_and_gradients(model, pair_batch())
    torch.testing.assert_close(fast_total, total, rtol=1e-12, atol=1e-12)
    assert len(gradients) == len(fast_gradients) and all(bool(gradient.any()) for gradient in gradients[:3])
    for ours, theirs in zip(fast_gradients, gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.skipif(not torch._C._has_mkldnn, reason="torch without oneDNN")
@pytest.mark.parametrize("name", ["two layers", "additive"])
def test_products_by_onednn(name: str, fast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = seq2seq_model(**MODELS[name]).train()
    total, gradients = loss_and_gradients(model, pair_batch())
    fast()
    monkeypatch.setattr(linear, "prefers_onednn", lambda: True)
    monkeypatch.setattr(linear, "is_twice_as_fast", lambda: True)
    for name in ("MIN_MULTIPLICATIONS", "MIN_REPEATED"):
        monkeypatch.setattr(linear, name, 1)
    with CountOps() as counter:
        fast_total, fast_gradients = loss_and_gradients(model, pair_batch())
    torch.testing.assert_close([fast_total, *fast_gradients], [total, *gradients])
    assert counter.counts["_linear_pointwise"] > 4 * 6  # several per position, in both passes


def test_the_state_is_the_same(fast: Any) -> None:
    model = seq2seq_model(**MODELS["two layers"]).double().train()
    source, token_mask = sources(4, 7, 1)
    tokens = targets(3, 6)
    outputs, state = model(tokens, model.encode(source, token_mask))
    fast()
    fast_outputs, fast_state = model(tokens, model.encode(source, token_mask))
    torch.testing.assert_close(fast_outputs, outputs)
    leaves, fast_leaves = tree_leaves(state), tree_leaves(fast_state)
    assert len(leaves) == len(fast_leaves)
    for ours, theirs in zip(fast_leaves, leaves, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs)


def test_with_autocast_it_is_as_exact(fast: Any) -> None:
    model, batch = seq2seq_model(**MODELS["one layer"]).train(), pair_batch()
    expected, expected_gradients = loss_and_gradients(model, batch)
    fast()
    total, gradients = loss_and_gradients(model, batch, autocast=True)
    torch.testing.assert_close(total, expected, rtol=5e-3, atol=0.0)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.05)


class CountOps(TorchDispatchMode):
    """Counts operations, but not views."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.partition("::")[2]
        self.counts[name] += name not in VIEWS
        return function(*args, **(kwargs or {}))


def ops_per_position(model: nn.Module) -> float:
    totals = []
    for length in (6, 16):
        batch = PairBatch(*sources(4, 7, 1), targets(3, length), torch.ones(3, length, dtype=torch.bool))
        with CountOps() as counter:
            loss_and_gradients(model, batch)
        totals.append(counter.counts.total())
    return (totals[1] - totals[0]) / 10


def test_a_position_has_fewer_operations(fast: Any) -> None:
    """On a GPU, the LSTM step and dropout are one operation each way, instead of 9 and 13 (and 3 and 1) here."""
    model = seq2seq_model(**{**MODELS["one layer"], "dropout": 0.4}).train()
    plain = ops_per_position(model)
    fast()
    assert plain >= 60 and ops_per_position(model) <= 45


# ---- what the fast path leaves to the plain one


@pytest.mark.parametrize(
    "options",
    [
        {"skip_connection": "residual", "num_layers": 2},
        {"norm": "layernorm"},
        {"layer_type": "gru"},
        {"ffn_dim": 16},
    ],
)
def test_other_decoders_have_no_fast_path(options: dict[str, Any], fast: Any) -> None:
    model = seq2seq_model(**{**FEEDING, **options}).train()
    decoder: Any = model.decoder.stack.layers[0].mixer
    assert decoder.attention.fast_parts(decoder.inner) is None
    expected, _ = loss_and_gradients(model, pair_batch())
    fast()
    assert torch.equal(loss_and_gradients(model, pair_batch())[0], expected)


def test_it_runs_in_training_without_hooks() -> None:
    model, x = seq2seq_model(**MODELS["one layer"]), torch.zeros(2, 5, 8)
    decoder: Any = model.decoder.stack.layers[0].mixer
    model.eval()
    assert not decoder.runs_fast(x, None)
    model.train()
    assert decoder.runs_fast(x, None)
    assert not decoder.runs_fast(x[:, :1], None)
    assert not decoder.runs_fast(x, torch.ones(2, 5, dtype=torch.bool))
    with torch.no_grad():
        assert not decoder.runs_fast(x, None)
    handle = decoder.attention.register_forward_hook(lambda *args: None)
    assert not decoder.runs_fast(x, None)
    handle.remove()
    assert decoder.runs_fast(x, None)


# ---- the parts


def test_shared_gradients_by_finite_differences() -> None:
    torch.manual_seed(0)
    weight, bias, x = (torch.randn(*size, dtype=torch.double, requires_grad=True) for size in ((3, 4), (3,), (2, 4)))

    def apply_linear(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
        linear = shared_linear(weight, bias)
        return linear(torch.cat([linear(x).tanh(), x[:, :1]], dim=1)) + linear(x)

    assert torch.autograd.gradcheck(apply_linear, (weight, bias, x))
    keys, values, query = (
        torch.randn(*size, dtype=torch.double, requires_grad=True) for size in ((2, 5, 3), (2, 5, 3), (2, 3))
    )
    token_mask = torch.tensor([[True] * 5, [True, True, False, False, False]])

    def apply_attention(keys: Tensor, values: Tensor, query: Tensor) -> Tensor:
        attend = shared_attention(keys, values, token_mask, 0.7)
        return attend(attend(query) + query)

    assert torch.autograd.gradcheck(apply_attention, (keys, values, query))
    score_weight = torch.randn(3, dtype=torch.double, requires_grad=True)

    def apply_additive(keys: Tensor, values: Tensor, score_weight: Tensor, query: Tensor) -> Tensor:
        attend = shared_additive_attention(keys, values, token_mask, score_weight, lambda x: x)
        return attend(attend(query) + query)

    assert torch.autograd.gradcheck(apply_additive, (keys, values, score_weight, query))


def test_frozen_weights_get_no_gradient() -> None:
    weight, bias, x = torch.randn(3, 4), torch.randn(3), torch.randn(2, 4, requires_grad=True)
    shared_linear(weight, bias)(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, weight.sum(0).expand(2, 4))


def test_the_lstm_step_is_that_of_torch() -> None:
    torch.manual_seed(0)
    cell, x, h, c = nn.LSTMCell(3, 4), torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4)
    expected = cell(x, (h, c))
    actual = lstm_step(x @ cell.weight_ih.T + cell.bias_ih, h @ cell.weight_hh.T + cell.bias_hh, c)
    torch.testing.assert_close(actual, expected)
