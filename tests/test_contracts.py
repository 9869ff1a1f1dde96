"""Contracts of all mixers and stacks: causality, padding, state, gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy_models import DIM, MIXER_BUILDERS, STACKS, build_mixer, build_stack

from weft.nn.bidirectional import Bidirectional, CenteredConv
from weft.nn.min_rnn import MinGRU, MinLSTM
from weft.nn.mixers import MIXERS
from weft.nn.recurrent import GRU, LSTM, RNN, ResetBeforeGRU
from weft.nn.state import join, select, tree_leaves, tree_map

EVERYTHING: dict[str, Callable[[], nn.Module]] = {
    **{name: lambda name=name: build_mixer(name) for name in MIXER_BUILDERS},
    **{f"stack-{name}": lambda name=name: build_stack(name) for name in STACKS},
}
every = pytest.mark.parametrize("build", EVERYTHING.values(), ids=EVERYTHING.keys())
TIGHT = {"atol": 2e-6, "rtol": 1e-4}


def text(rows: int, length: int) -> Tensor:
    return torch.randn(rows, length, DIM, generator=torch.Generator().manual_seed(length))


@every
@pytest.mark.parametrize("cut", [1, 4, 8])
def test_reading_in_two_chunks_changes_nothing(build, cut):
    part, x = build(), text(2, 9)
    whole, _ = part(x)
    first, state = part(x[:, :cut])
    second, _ = part(x[:, cut:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, **TIGHT)


@every
def test_reading_token_by_token_changes_nothing(build):
    part, x, state, pieces = build(), text(2, 9), None, []
    whole, _ = part(x)
    for position in x.split(1, dim=1):
        y, state = part(position, state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, **TIGHT)


@every
def test_no_position_sees_the_future(build):
    part, x = build(), text(2, 9).requires_grad_()
    part(x)[0][:, 3].sum().backward()
    assert x.grad[:, 3].abs().sum() > 0
    assert x.grad[:, 4:].abs().sum() == 0


@every
def test_padding_changes_nothing(build):
    """Prompts of 3 and 7, padded to 7, then four more tokens: each row as if it were alone."""
    part, x, more = build(), text(2, 7), text(2, 4)
    keep = torch.arange(7) < torch.tensor([[3], [7]])
    y, state = part(torch.where(keep[..., None], x, 100.0), None, keep)
    after, _ = part(more, state)
    assert torch.isfinite(y).all()
    for row, length in ((0, 3), (1, 7)):
        alone, own = part(x[row : row + 1, :length])
        torch.testing.assert_close(y[row : row + 1, :length], alone, **TIGHT)
        torch.testing.assert_close(after[row : row + 1], part(more[row : row + 1], own)[0], **TIGHT)


@every
def test_rows_are_independent(build):
    part, x = build(), text(3, 6)
    whole, state = part(x)
    alone, own = part(x[1:2])
    torch.testing.assert_close(whole[1:2], alone, **TIGHT)
    for a, b in zip(tree_leaves(select(state, torch.tensor([1]))), tree_leaves(own), strict=True):
        torch.testing.assert_close(a, b, **TIGHT)


@every
def test_joined_states_of_different_lengths_equal_each_row_alone(build):
    part, old, young, more = build(), text(2, 8), text(1, 5), text(3, 4)
    _, first = part(old)
    _, second = part(young)
    state = join(tree_map(torch.clone, first), tree_map(torch.clone, second))
    pieces = []
    for position in more.split(1, dim=1):
        y, state = part(position, state)
        pieces.append(y)
    together = torch.cat(pieces, dim=1)
    torch.testing.assert_close(together[:2], part(more[:2], first)[0], **TIGHT)
    torch.testing.assert_close(together[2:], part(more[2:], second)[0], **TIGHT)


@every
def test_every_state_tensor_has_the_batch_dimension_first(build):
    _, state = build()(text(3, 5))
    assert all(leaf.size(0) == 3 for leaf in tree_leaves(state))


@every
def test_gradients_equal_numerical_ones(build):
    part = build().double().train()
    x = text(1, 4).double().requires_grad_()
    weights = tuple(weight.requires_grad_() for weight in part.parameters())
    probe = torch.randn(1, 4, DIM, dtype=torch.double, generator=torch.Generator().manual_seed(1))

    def loss(x: Tensor, *_: Tensor) -> Tensor:
        return (part(x)[0] * probe).sum()

    assert torch.autograd.gradcheck(loss, (x, *weights), atol=1e-5, fast_mode=True)


@every
def test_autocast_to_bf16_works_forward_and_backward(build):
    part, x = build().train(), text(2, 9)
    with torch.autocast("cpu", torch.bfloat16):
        first, state = part(x[:, :5])
        second, _ = part(x[:, 5:], state)
        loss = first.float().sum() + second.float().sum()
    loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in part.parameters())


@pytest.mark.parametrize("build", [RNN, LSTM, GRU, ResetBeforeGRU, MinGRU, MinLSTM])
def test_a_bidirectional_layer_reads_each_row_from_both_ends(build):
    torch.manual_seed(0)
    ahead, back = build(DIM // 2, input_size=DIM), build(DIM // 2, input_size=DIM)
    x, keep = text(2, 6), torch.arange(6) < torch.tensor([[4], [6]])
    y, state = Bidirectional(ahead, back)(x, None, keep)
    alone = x[:1, :4]
    expected = torch.cat([ahead(alone)[0], back(alone.flip(1))[0].flip(1)], dim=-1)
    torch.testing.assert_close(y[:1, :4], expected, **TIGHT)
    for joined, item, other in zip(
        tree_leaves(state), tree_leaves(ahead(x, None, keep)[1]), tree_leaves(back(alone.flip(1))[1]), strict=True
    ):
        torch.testing.assert_close(joined[:1], torch.cat([item[:1], other], dim=-1), **TIGHT)


def test_a_bidirectional_layer_takes_no_state():
    for layer in (
        Bidirectional(RNN(4, input_size=DIM), RNN(4, input_size=DIM)),
        CenteredConv(4, kernel_size=3, input_size=DIM),
    ):
        with pytest.raises(ValueError) as caught:
            layer(text(1, 3), torch.zeros(1, 8))
        assert str(caught.value) == "bidirectional layers need the whole sequence at once"


reaches = pytest.mark.parametrize("reach", [1, 2, 3, 4, 5, 9])


@reaches
def test_a_centered_convolution_equals_conv1d_with_padding(reach):
    torch.manual_seed(0)
    part, theirs = CenteredConv(6, kernel_size=reach, input_size=DIM), nn.Conv1d(DIM, 6, reach)
    with torch.no_grad():
        theirs.weight.copy_(part.conv.weight.view(6, reach, DIM).transpose(1, 2))
        theirs.bias.copy_(part.conv.bias)
    for length in (1, 2, 3, 11):
        x = text(2, length)
        padded = F.pad(x.transpose(1, 2), ((reach - 1) // 2, reach // 2))  # what padding="same" is
        expected = theirs(padded).transpose(1, 2).tanh()
        y, state = part(x)
        assert state is None
        torch.testing.assert_close(y, expected, **TIGHT)


@reaches
def test_a_centered_convolution_sees_both_sides_within_its_kernel(reach):
    part, x = CenteredConv(6, kernel_size=reach, input_size=DIM), text(1, 15).requires_grad_()
    part(x)[0][0, 7].sum().backward()
    seen = x.grad[0].abs().sum(-1).nonzero()[:, 0].tolist()
    assert seen == list(range(7 - (reach - 1) // 2, 7 + reach // 2 + 1))


@reaches
def test_a_centered_convolution_sees_neither_padding_nor_other_rows(reach):
    part, x, keep = (
        CenteredConv(6, kernel_size=reach, input_size=DIM),
        text(3, 8),
        torch.arange(8) < torch.tensor([[3], [8], [1]]),
    )
    # infinity times zero is no number: what stands on padding must not be multiplied
    y, _ = part(torch.where(keep[..., None], x, float("inf")), None, keep)
    assert torch.isfinite(y).all()
    for row, length in enumerate(keep.sum(1).tolist()):
        torch.testing.assert_close(y[row : row + 1, :length], part(x[row : row + 1, :length])[0], **TIGHT)


def test_gradients_of_a_centered_convolution_equal_numerical_ones():
    part, x = CenteredConv(3, kernel_size=3, input_size=2).double(), torch.randn(2, 4, 2, dtype=torch.double).requires_grad_()
    keep = torch.arange(4) < torch.tensor([[2], [4]])
    assert torch.autograd.gradcheck(lambda x, *_: part(x, None, keep)[0], (x, *part.parameters()))


def test_compiled_graphs_have_no_fused_recurrent_kernel_and_no_loop_over_positions():
    """torch's compiler refuses the one, and unrolls the other: a position a graph, minutes for each new length."""
    calls: list[nn.Module] = []
    compiled = [name for name, row in MIXERS.items() if row.compiles]
    assert compiled == ["conv", "mingru", "minlstm", "attention"]
    for name in compiled:
        part = build_mixer(name)
        assert not any(isinstance(inner, nn.RNNBase) for inner in part.modules())
        linear = [inner for inner in part.modules() if isinstance(inner, nn.Linear)]
        for inner in linear:
            inner.register_forward_hook(lambda inner, *_: calls.append(inner))
        part(text(1, 9))
        assert calls == linear
        calls.clear()
