"""Decoding states: mapping over, selecting, detaching and joining rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weft.nn.state import SharedState, detach, expand_to_beams, join, select, tree_leaves, tree_map

MASK, COUNT = torch.tensor([[True, False], [True, True]]), torch.tensor([[2], [3]])
NESTED = (COUNT, (None, (torch.ones(2, 3), MASK), ()))


def test_tree_map_changes_every_tensor_and_nothing_else():
    doubled = tree_map(lambda part: part * 2, (COUNT, (None, (torch.ones(2, 3),), ())))
    assert doubled[0].tolist() == [[4], [6]]
    assert doubled[1][0] is None and doubled[1][2] == ()
    assert doubled[1][1][0].tolist() == [[2.0] * 3] * 2
    assert tree_map(torch.clone, None) is None


def test_tree_leaves_are_in_the_order_of_tree_map():
    assert [tuple(leaf.shape) for leaf in tree_leaves(NESTED)] == [(2, 1), (2, 3), (2, 2)]
    assert tree_leaves(None) == [] and tree_leaves(()) == []


def test_select_repeats_reorders_and_removes_rows():
    chosen = select(NESTED, torch.tensor([1, 1, 0]))
    assert chosen[0].tolist() == [[3], [3], [2]]
    assert chosen[1][1][1].tolist() == [[True, True], [True, True], [True, False]]
    assert chosen[1][0] is None
    assert [len(leaf) for leaf in tree_leaves(select(NESTED, torch.tensor([], dtype=torch.long)))] == [0, 0, 0]
    assert select(None, torch.tensor([0])) is None


def test_select_copies_even_when_it_changes_nothing():
    state = torch.zeros(2, 1)
    branch = select(state, torch.arange(2))
    branch.add_(1.0)
    assert state.tolist() == [[0.0], [0.0]]


def test_expand_to_beams_keeps_one_row_per_source_of_shared_state():
    fixed = SharedState((torch.tensor([[5.0], [6.0]]), MASK))
    state = (COUNT, (None, fixed), ())
    opened = expand_to_beams(state, torch.tensor([0, 0, 1, 1]), None)
    assert opened[0].tolist() == [[2], [2], [3], [3]]
    assert opened[1][1] is fixed and opened[1][0] is None and opened[2] == ()
    fewer = expand_to_beams(opened, torch.tensor([3, 2]), torch.tensor([1]))
    assert fewer[0].tolist() == [[3], [3]]
    assert fewer[1][1].parts[0].tolist() == [[6.0]] and fewer[1][1].parts[1].tolist() == [[True, True]]


def test_shared_state_stays_shared_under_every_operation():
    state = (COUNT, SharedState((torch.ones(2, 1), MASK)))
    for changed in (tree_map(torch.clone, state), select(state, torch.tensor([1])), detach(state), join(state, state)):
        assert isinstance(changed[1], SharedState) and not isinstance(changed, SharedState)


def test_detach_cuts_the_graph_and_keeps_values():
    weight = torch.ones(2, 2, requires_grad=True)
    truncated = detach((weight * 2, (weight * 3, None)))
    assert [leaf.requires_grad for leaf in tree_leaves(truncated)] == [False, False]
    assert truncated[1][0].tolist() == [[3.0, 3.0], [3.0, 3.0]] and truncated[1][1] is None


def test_join_pads_shorter_parts_with_masked_values():
    short = (torch.tensor([[1]]), torch.tensor([[True]]), torch.tensor([[[0.5]]]))
    long = (torch.tensor([[2, 3, 4]]), torch.tensor([[True, True, False]]), torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    numbers, masks, values = join(short, long)
    assert numbers.tolist() == [[1, -1, -1], [2, 3, 4]]
    assert masks.tolist() == [[True, False, False], [True, True, False]]  # -1 stored as a bool would be True
    assert values.tolist() == [[[0.5, -1.0], [-1.0, -1.0]], [[1.0, 2.0], [3.0, 4.0]]]
    turned = join(long, short)
    assert turned[0].tolist() == [[2, 3, 4], [1, -1, -1]]
    assert turned[1].tolist() == [[True, True, False], [True, False, False]]


def test_join_of_none_is_none():
    assert join(None, None) is None
    assert join((None, ()), (None, ())) == (None, ())


@pytest.mark.parametrize(
    "other",
    [None, torch.zeros(1, 1), (torch.zeros(1, 1),), (None, torch.zeros(1, 1)), (torch.zeros(1, 1), ())],
    ids=["none", "tensor", "fewer", "another-order", "another-type"],
)
def test_states_of_different_models_cannot_be_joined(other):
    state = (torch.zeros(1, 1), torch.zeros(1, 1))
    for first, second in ((state, other), (other, state)):
        with pytest.raises(ValueError) as caught:
            join(first, second)
        assert str(caught.value) == "join: the states belong to different models"


def random_state(count: int, length: int, seed: int) -> tuple[Tensor, tuple[None, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2, length, 3, generator=generator), (
        None,
        torch.rand(count, length, generator=generator) > 0.5,
    )


sizes = st.integers(1, 4)


@settings(deadline=None, max_examples=50)
@given(sizes, sizes, sizes, sizes)
def test_joined_rows_keep_their_values(rows_of_short, short, rows_of_long, long):
    first, second = random_state(rows_of_short, short, 0), random_state(rows_of_long, long, 1)
    joined = join(first, second)
    assert {len(leaf) for leaf in tree_leaves(joined)} == {rows_of_short + rows_of_long}
    for part, length, chosen in (
        (first, short, range(rows_of_short)),
        (second, long, range(rows_of_short, rows_of_short + rows_of_long)),
    ):
        values, (_, mask) = select(joined, torch.tensor(list(chosen)))
        torch.testing.assert_close(values[:, :, :length], part[0])
        torch.testing.assert_close(mask[:, :length], part[1][1])
        assert (values[:, :, length:] == -1).all() and not mask[:, length:].any()
