"""The convolutions before a recognizer's stack."""

from __future__ import annotations

import torch

from weft.nn.speech_front import ConvBlock, Subsampling

FRAMES, MELS, DIM, CHANNELS = 24, 16, 8, 4


def front(num_blocks: int) -> Subsampling:
    torch.manual_seed(0)
    return Subsampling(MELS, DIM, factor=2, channels=CHANNELS, num_blocks=num_blocks).double()


def learned(num_blocks: int) -> Subsampling:
    """Blocks that are no longer the identity."""
    subsampling = front(num_blocks)
    for name, weight in subsampling.blocks.named_parameters():
        if "second" in name:
            torch.nn.init.normal_(weight)
    return subsampling


def test_blocks_start_as_the_identity():
    plain, x = front(0), torch.randn(2, FRAMES, MELS, dtype=torch.float64)
    with_blocks = front(2)
    with_blocks.load_state_dict({**with_blocks.state_dict(), **plain.state_dict()})
    assert torch.equal(plain(x)[0], with_blocks(x)[0])
    assert not torch.equal(learned(2)(x)[0], front(2)(x)[0])


def test_a_block_is_two_convolutions_of_the_frames_so_far():
    """Against torch's convolution of the whole with two frames of zeros before it."""
    torch.manual_seed(0)
    block = ConvBlock(CHANNELS).double()
    torch.nn.init.normal_(block.second.weight)
    x = torch.randn(2, CHANNELS, FRAMES, MELS, dtype=torch.float64)
    pad = lambda y: torch.nn.functional.pad(y, (0, 0, 2, 0))  # noqa: E731
    expected = x + block.second(pad(torch.relu(block.first(pad(x)))))
    torch.testing.assert_close(block(x, (None, None))[0], expected)


def test_parts_equal_the_whole():
    subsampling, x = learned(2), torch.randn(2, FRAMES, MELS, dtype=torch.float64)
    whole, end = subsampling(x)
    state, parts = None, []
    for part in x.split([6, 2, 16], 1):
        y, state = subsampling(part, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    assert state is not None
    torch.testing.assert_close(state, end)


def test_no_frame_sees_the_future():
    subsampling, x = learned(1), torch.randn(1, FRAMES, MELS, dtype=torch.float64)
    y, _ = subsampling(x)
    x[:, 12:] += 1.0
    changed = subsampling(x)[0]
    assert torch.equal(changed[:, :6], y[:, :6]) and not torch.equal(changed[:, 6:], y[:, 6:])
