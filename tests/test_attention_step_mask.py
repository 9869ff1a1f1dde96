"""The mask of a step, which has a single query, equals the general one."""

from __future__ import annotations

import pytest
import torch

from weft.nn.attention import SelfAttention


@pytest.mark.parametrize("context_length", [None, 3, 5, 8])
def test_mask_of_a_single_query_equals_the_general_mask(context_length):
    """At every step of three rows of different lengths, with empty columns before the shorter ones."""
    torch.manual_seed(0)
    layer = SelfAttention(8, num_heads=2, context_length=context_length)
    masks = []

    def compare(positions, key_positions):
        mask = layer._mask(positions, key_positions)
        if positions.size(1) == 1:
            faster = SelfAttention.visible(layer, positions, key_positions)
            assert torch.equal(faster.expand_as(mask), mask)
            masks.append(int(mask.sum()))
        return mask

    layer.visible = compare
    with torch.no_grad():
        prompt = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
        _, state = layer(torch.randn(3, 3, 8), None, prompt)
        for _ in range(16):
            _, state = layer(torch.randn(3, 1, 8), state)
    expected = [min(length + step, context_length or 99) for step in range(1, 17) for length in (3, 1, 2)]
    assert masks == [sum(expected[i : i + 3]) for i in range(0, len(expected), 3)]
