"""Nothing in the training step of an encoder-decoder waits for the GPU, so that a CUDA graph can record it: no operation has a
result that Python reads or a shape that depends on values, and no tensor is made of Python numbers, which are copied to the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from toy_seq2seq import ALL_MODELS, build, seq2seq_model, sources, targets

from weft.models.seq2seq_config import Seq2SeqConfig
from weft.nn.bidirectional import Bidirectional, reverse_sequences
from weft.nn.experts import expert_layers
from weft.nn.recurrent import GRU, LSTM, RNN
from weft.tasks.encoder_decoder.pair_batch import PairBatch
from weft.tasks.encoder_decoder.pair_objective import PairObjective
from weft.tasks.registry import find_task
from weft.training.r_drop import RDropObjective

WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
COPYING = {torch.ops.aten.lift_fresh.default}  # of torch.tensor


class Recordable(TorchDispatchMode):
    """Refuses operations that a CUDA graph cannot record."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        waits = bool(WAITING & set(function.tags))
        if function is torch.ops.aten.index.Tensor:  # its shape depends on values only if an index is a mask
            waits = any(index is not None and index.dtype == torch.bool for index in args[1])
        if waits or function in COPYING:
            raise RuntimeError(f"{function} cannot be recorded")
        return function(*args, **(kwargs or {}))


class Objective(PairObjective):
    """The loss without a validation."""

    monitors: tuple[()] = ()


def compute_gradients(model: nn.Module, *, r_drop: bool = False, smoothing: float = 0.1) -> None:
    objective = Objective()
    objective.smoothing = smoothing
    source, source_mask = sources(4, 7, 1)
    tokens, token_mask = targets(3, 6), torch.ones(3, 6, dtype=torch.bool)
    token_mask[1, 3:] = False
    batch = PairBatch(source, source_mask, tokens, token_mask)
    model.train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    loss_function: Any = RDropObjective(objective, 3.0) if r_drop else objective  # type: ignore[arg-type]
    with Recordable():
        loss = loss_function.loss(model, batch, None)
        torch.autograd.grad(loss.to_minimize(), weights, allow_unused=True)


@pytest.mark.parametrize("r_drop", [False, True])
@pytest.mark.parametrize("arch", find_task("seq2seq").presets)
def test_every_architecture(arch: str, r_drop: bool) -> None:
    preset = find_task("seq2seq").presets[arch]
    assert preset.config_class is Seq2SeqConfig
    sizes = {"hidden_size": 8, "num_layers": 2}
    sizes |= {"num_heads": 2, "ffn_dim": 16} if preset.values.get("layer_type") == "attention" else {}
    compute_gradients(seq2seq_model(**{**preset.values, **sizes}), r_drop=r_drop)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ALL_MODELS])
def test_every_combination(name: str) -> None:
    model = build(name)
    if not expert_layers(model):
        compute_gradients(model)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_copy_mechanism_and_positions(copies: bool, smoothing: float) -> None:
    options = {"layer_type": "attention", "num_heads": 2, "attention": "scaled-dot", "skip_connection": "residual"}
    for encoding in ("sinusoidal", "learned", "relative", "relative-bias", "alibi", "rotary"):
        model = seq2seq_model(**options, position_encoding=encoding, copy_mechanism=copies, dropout=0.1)
        compute_gradients(model, smoothing=smoothing)


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.tensor(3) + x,
        lambda x: bool((x > 0).any()),
        lambda x: x.unique(),
    ],
)
def test_the_test_finds_what_waits(waits: Callable[[Tensor], Any]) -> None:
    with Recordable(), pytest.raises(RuntimeError, match="cannot be recorded"):
        waits(torch.arange(3.0))


# ---- no encoder needs packed sequences, whose lengths are on the host


@pytest.mark.parametrize(("mixer", "module"), [(LSTM, nn.LSTM), (GRU, nn.GRU), (RNN, nn.RNN)])
def test_a_bidirectional_encoder_equals_a_packed_one(mixer: Any, module: Any) -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([3, 7, 1, 5])
    x = torch.randn(4, 7, 6)
    token_mask = torch.arange(7) < lengths[:, None]
    ours = Bidirectional(mixer(4, input_size=6), mixer(4, input_size=6))
    theirs = module(6, 4, batch_first=True, bidirectional=True)
    for suffix, cell in (("", ours.forward_mixer.cell), ("_reverse", ours.backward_mixer.cell)):
        for name, weight in cell.named_parameters():
            theirs.get_parameter(f"{name}{suffix}").data.copy_(weight)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected_rows, expected_state = theirs(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(expected_rows, batch_first=True)
    with Recordable():
        actual, state = ours(x, None, token_mask)
    torch.testing.assert_close(actual * token_mask[..., None], expected)
    for part, expected_part in zip(
        state if isinstance(state, tuple) else [state],
        expected_state if isinstance(expected_state, tuple) else [expected_state],
        strict=True,
    ):
        torch.testing.assert_close(part, torch.cat([expected_part[0], expected_part[1]], dim=-1))


def test_reversing_rows_leaves_padding_where_it_is() -> None:
    x = torch.arange(8.0).view(2, 4, 1)
    token_mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    assert reverse_sequences(x, token_mask)[..., 0].tolist() == [[2, 1, 0, 3], [4, 5, 6, 7]]
