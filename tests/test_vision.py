"""Frame encoders: contracts of every kind, reference computations, and augmentation."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.nn.choices import VISION_FRONTS
from weft.nn.vision import (
    BasicBlock,
    ConvNet,
    GridPositions,
    ImageAugment,
    PatchEmbedding,
    SpatioTemporalConv,
    TimeMask,
    VisionFront,
    stem_stride,
)

SHAPE = (12, 20, 3)
CASES = [(kind, per_frame) for kind in VISION_FRONTS for per_frame in (False, True) if not (kind == "patches" and per_frame)]
every_encoder = pytest.mark.parametrize(("kind", "per_frame"), CASES)


def build(kind: str, per_frame: bool, shape: tuple[int, int, int] = SHAPE) -> VisionFront:
    torch.manual_seed(0)
    encoder = VisionFront(shape, 6, kind=kind, per_frame=per_frame, hidden_channels=4, patch_size=8)
    for name, parameter in encoder.named_parameters():
        if name.endswith("norm2.weight"):  # zero at first: a block that does nothing would pass every test
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return encoder.double()


def random_frames(*size: int, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (*size, math.prod(shape)), dtype=torch.uint8, generator=generator)


def mask_of(lengths: list[int], length: int) -> Tensor:
    return torch.arange(length) < torch.tensor(lengths)[:, None]


@every_encoder
def test_shapes_and_mask(kind, per_frame):
    y, mask = build(kind, per_frame)(random_frames(2, 5), mask_of([5, 3], 5))
    cells = 1 if per_frame else {"resnet": 2 * 3, "resnet3d": 2 * 3, "patches": 2 * 3, "conv3d": 1 * 2}[kind]
    assert y.shape == (2, 5 * cells, 6) and mask.shape == (2, 5 * cells)
    assert mask.tolist() == mask_of([5 * cells, 3 * cells], 5 * cells).tolist()
    assert y[~mask].eq(0).all() and y[mask].abs().sum(-1).gt(0).all()


@every_encoder
def test_frames_on_padding_have_no_effect(kind, per_frame):
    encoder, frames = build(kind, per_frame), random_frames(2, 5)
    y, mask = encoder(frames, mask_of([5, 3], 5))
    other = frames.clone()
    other[1, 3:] = 255 - other[1, 3:]
    torch.testing.assert_close(encoder(other, mask_of([5, 3], 5))[0], y, rtol=0, atol=0)
    alone, alone_mask = encoder(frames[1:, :3], mask_of([3], 3))
    torch.testing.assert_close(alone[alone_mask], y[1][mask[1]])


@every_encoder
def test_rows_are_independent(kind, per_frame):
    encoder, frames, mask = build(kind, per_frame), random_frames(3, 4), mask_of([4, 2, 3], 4)
    together, _ = encoder(frames, mask)
    for row in range(3):
        torch.testing.assert_close(encoder(frames[row : row + 1], mask[row : row + 1])[0][0], together[row])


@every_encoder
def test_every_frame_has_an_effect_on_its_own_position(kind, per_frame):
    encoder = build(kind, per_frame)
    frames = random_frames(1, 4).double().requires_grad_()
    y, _ = encoder(frames, mask_of([4], 4))
    y.unflatten(1, (4, -1))[:, 2].square().sum().backward()
    reached = frames.grad.abs().sum(-1)[0].gt(0).tolist()
    # three convolutions with kernels of 3 frames see 3 frames in each direction
    assert reached == ([True] * 4 if kind in ("conv3d", "resnet3d") else [False, False, True, False])


@every_encoder
def test_gradients_equal_numerical_gradients(kind, per_frame):
    shape = (6, 9, 1)
    encoder = build(kind, per_frame, shape)
    frames, mask = random_frames(2, 3, shape=shape), mask_of([3, 2], 3)
    weights = torch.randn(encoder(frames, mask)[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    loss = (encoder(frames, mask)[0] * weights).sum()
    parameters = list(encoder.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            # the derivative along a random direction, for all elements of a parameter at once; ReLU has kinks, so tiny steps
            direction = torch.randn(parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
            values = []
            for step in (1e-7, -2e-7):
                parameter.add_(direction, alpha=step)
                values.append((encoder(frames, mask)[0] * weights).sum())
            parameter.add_(direction, alpha=1e-7)
            torch.testing.assert_close((values[0] - values[1]) / 2e-7, (gradient * direction).sum(), rtol=1e-4, atol=1e-5)


@every_encoder
def test_evaluation_is_deterministic_and_runs_in_bfloat16(kind, per_frame):
    encoder, frames, mask = build(kind, per_frame).float().eval(), random_frames(2, 3), mask_of([3, 2], 3)
    y, _ = encoder(frames, mask)
    assert torch.equal(encoder(frames, mask)[0], y)
    with torch.autocast("cpu", torch.bfloat16):
        low, low_mask = encoder(frames, mask)
    assert low[~low_mask].eq(0).all()
    torch.testing.assert_close(low.float(), y, rtol=0.1, atol=0.1)


def test_pixels_are_normalized_to_minus_one_to_one():
    encoder = VisionFront((8, 8, 3), 6, kind="patches", patch_size=8)
    frames = torch.tensor([0, 255], dtype=torch.uint8)[None, :, None].expand(1, 2, 192)
    torch.nn.init.constant_(encoder.frames.patches.projection.weight, 1 / 192)
    torch.nn.init.zeros_(encoder.frames.patches.projection.bias)
    positions = GridPositions(6)(torch.zeros(1, 6, 1, 1)).flatten()
    y, _ = encoder(frames, torch.ones(1, 2, dtype=torch.bool))
    torch.testing.assert_close(y[0] - positions, torch.tensor([-1.0, 1.0])[:, None].expand(2, 6))


def test_height_width_and_channels_are_not_mixed_up():
    height, width, channels = SHAPE
    encoder = build("patches", False)
    frames = random_frames(1, 1)
    pixels = frames.double().view(height, width, channels) / 127.5 - 1
    padded = torch.zeros(16, 24, 3, dtype=torch.float64)
    padded[:12, :20] = pixels
    projection = encoder.frames.patches.projection
    y, _ = encoder(frames, torch.ones(1, 1, dtype=torch.bool))
    positions = GridPositions(6)(torch.zeros(1, 6, 2, 3, dtype=torch.float64))
    for row in range(2):
        for column in range(3):
            patch = padded[8 * row : 8 * row + 8, 8 * column : 8 * column + 8].permute(2, 0, 1)
            expected = (projection.weight * patch).sum((1, 2, 3)) + projection.bias + positions[0, :, row, column]
            torch.testing.assert_close(y[0, 3 * row + column], expected)


def test_grid_positions_follow_the_formula():
    encoding = GridPositions(8)(torch.zeros(1, 8, 3, 5, dtype=torch.float64))[0]
    for row in range(3):
        for column in range(5):
            for i in range(2):
                frequency = 10000 ** (-4 * i / 8)
                expected = [f(p * frequency) for p in (row, column) for f in (math.sin, math.cos)]
                actual = encoding[[2 * i, 2 * i + 1, 4 + 2 * i, 5 + 2 * i], row, column]
                torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    assert len({tuple(cell) for cell in encoding.flatten(1).T.tolist()}) == 15


@pytest.mark.parametrize("dim", [5, 6, 7])
def test_grid_positions_of_any_hidden_size(dim):
    encoding = GridPositions(dim)(torch.zeros(1, dim, 4, 4))[0].flatten(1).T
    assert encoding.shape == (16, dim) and len({tuple(cell) for cell in encoding.tolist()}) == 16


def test_basic_block_follows_the_paper():
    torch.manual_seed(0)
    block, x = BasicBlock(4, 8, stride=2).double(), torch.randn(2, 4, 7, 7, dtype=torch.float64)
    torch.nn.init.uniform_(block.norm2.weight)
    residual = F.conv2d(x, block.conv1.weight, stride=2, padding=1)
    residual = F.group_norm(residual, 8, block.norm1.weight, block.norm1.bias).relu()
    residual = F.group_norm(F.conv2d(residual, block.conv2.weight, padding=1), 8, block.norm2.weight, block.norm2.bias)
    shortcut = F.group_norm(F.conv2d(x[:, :, ::2, ::2], block.shortcut[0].weight), 8)
    torch.testing.assert_close(block(x), (residual + shortcut).relu())


@pytest.mark.parametrize(
    ("side", "stride", "cells"), [(28, 1, 4), (40, 1, 5), (64, 1, 8), (96, 2, 6), (128, 2, 8), (224, 4, 7)]
)
def test_grid_of_a_resnet(side, stride, cells):
    assert stem_stride(side, side // 2) == stem_stride(side // 2, side) == stride
    net = ConvNet(1, 5, hidden_channels=2, stem_stride=stride)
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert net(torch.zeros(1, 2, 1, side, side), mask).shape == (2, 5, cells, cells)


def test_more_blocks_make_a_deeper_resnet():
    blocks = [len(ConvNet(1, 5, hidden_channels=2, blocks_per_stage=count).blocks) for count in (1, 2, 3)]
    assert blocks == [4, 8, 12]


def test_lipnet_front_end_has_the_published_sizes():
    net = SpatioTemporalConv(3)
    assert [tuple(conv.weight.shape) for conv in net.convs] == [(32, 3, 3, 5, 5), (64, 32, 3, 5, 5), (96, 64, 3, 3, 3)]
    y = net(torch.zeros(1, 2, 3, 48, 96), torch.ones(1, 2, dtype=torch.bool))
    assert y.shape == (1, 2, 96, 3, 6)  # of 50 x 100 pixels, as published, the same


def test_unknown_kinds_are_refused():
    for kind, per_frame in (("vgg", False), ("patches", True)):
        with pytest.raises(ValueError, match=f"vision front: kind='{kind}' with per_frame={per_frame}"):
            VisionFront(SHAPE, 6, kind=kind, per_frame=per_frame)


def test_patches_of_one_image_without_positions_are_shared():
    patches = PatchEmbedding(1, 4, patch_size=2)
    x = torch.ones(1, 1, 4, 4)
    y = patches(x) - GridPositions(4)(torch.zeros(1, 4, 2, 2)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(y, y[:, :1].expand_as(y))


def augmented(frames: Tensor, seed: int = 0, **options) -> Tensor:
    return ImageAugment(SHAPE, **options)(frames, torch.Generator().manual_seed(seed))


def test_augmentation_is_off_in_evaluation_and_reproducible_in_training():
    frames = random_frames(4, 2)
    assert ImageAugment(SHAPE).eval()(frames) is frames
    assert torch.equal(augmented(frames, 1), augmented(frames, 1))
    assert not torch.equal(augmented(frames, 1), augmented(frames, 2))
    assert augmented(frames).dtype == torch.uint8 and augmented(frames).shape == frames.shape
    assert torch.equal(augmented(frames, max_shift=0, brightness=0.0, contrast=0.0), frames)


def test_shift_moves_all_frames_of_a_row_equally_and_repeats_the_border():
    frames = random_frames(40, 2)
    moved = augmented(frames, max_shift=2, brightness=0.0, contrast=0.0).unflatten(2, SHAPE)
    images, shifts = frames.unflatten(2, SHAPE), set()
    for row in range(40):
        padded = F.pad(images[row].permute(0, 3, 1, 2).float(), (2, 2, 2, 2), mode="replicate").permute(0, 2, 3, 1)
        crops = {(y, x): padded[:, 2 - y : 14 - y, 2 - x : 22 - x] for y in range(-2, 3) for x in range(-2, 3)}
        matching = [shift for shift, crop in crops.items() if torch.equal(crop, moved[row].float())]
        assert len(matching) == 1
        shifts.update(matching)
    assert {y for y, _ in shifts} == {x for _, x in shifts} == {-2, -1, 0, 1, 2}


def test_brightness_and_contrast_are_one_linear_function_per_row():
    frames = torch.arange(60, 180, dtype=torch.uint8).repeat(6, 2, 6)
    changed = augmented(frames, max_shift=0, brightness=0.2, contrast=0.3).double()
    slopes = (changed[:, :, 119] - changed[:, :, 0]) / 119
    assert slopes.min() >= 0.69 and slopes.max() <= 1.31 and slopes[:, 0].unique().numel() > 3
    assert torch.equal(slopes[:, 0], slopes[:, 1])
    line = changed[:, :, :1] + slopes[:, :, None] * (frames - 60.0)
    assert (changed - line).abs().max() <= 1.5


def test_flip_mirrors_about_half_of_the_rows():
    frames = random_frames(40, 1)
    options = {"max_shift": 0, "brightness": 0.0, "contrast": 0.0}
    flipped, images = augmented(frames, flip=True, **options).unflatten(2, SHAPE), frames.unflatten(2, SHAPE)
    is_flipped = [torch.equal(new, old.flip(2)) for new, old in zip(flipped, images, strict=True)]
    assert all(torch.equal(new, old) or flip for new, old, flip in zip(flipped, images, is_flipped, strict=True))
    assert 10 < sum(is_flipped) < 30
    assert torch.equal(augmented(frames, flip=False, **options), frames)


def test_the_first_convolution_of_resnet3d_sees_five_frames():
    net = ConvNet(1, 5, hidden_channels=2, stem_stride=2, stem_frames=5).double()
    frames, mask = torch.randn(1, 6, 1, 16, 16, dtype=torch.float64), torch.ones(1, 6, dtype=torch.bool)
    padded = F.pad(frames, (0, 0, 0, 0, 0, 0, 2, 2))
    windows = torch.stack([padded[0, start : start + 5, 0] for start in range(6)])  # (6, 5, H, W)
    weight = net.stem.weight[:, 0]  # (C, 5, 7, 7)
    stem = F.group_norm(F.conv2d(windows, weight, stride=2, padding=3), 2, net.norm.weight, net.norm.bias)
    torch.testing.assert_close(net(frames, mask), net.output(net.blocks(stem.relu())))


def test_time_masks_replace_stretches_by_the_mean_frame():
    torch.manual_seed(1)
    frames, mask = random_frames(50, 20), mask_of([20] * 25 + [10] * 25, 20)
    augment = TimeMask(1, 0.5)
    changed = augment(frames, mask).ne(frames).any(-1)
    assert not changed[~mask].any()  # padding stays
    for row, length in ((slice(0, 25), 20), (slice(25, 50), 10)):
        widths = changed[row].sum(1)
        assert widths.max() == length // 2 and widths.min() == 0
        starts = changed[row].int().diff(dim=1, prepend=torch.zeros(25, 1, dtype=torch.int)).eq(1).sum(1)
        assert starts.max() == 1  # one stretch
    masked = augment(frames, mask)
    for row, length in ((0, 20), (30, 10)):
        mean_frame = frames[row, :length].float().mean(0).to(torch.uint8)
        assert masked[row][masked[row].ne(frames[row]).any(-1)].eq(mean_frame).all()
    assert torch.equal(augment.eval()(frames, mask), frames)
    assert torch.equal(TimeMask(0, 0.5)(frames, mask), frames)


def test_few_channels_do_not_corrupt_memory():
    """The gradient of a convolution of oneDNN does: it ends the process, so that another one computes it."""
    code = (
        "import torch; from weft.nn.vision import ConvNet; torch.manual_seed(0)\n"
        "for _ in range(3):\n"
        "    images = torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last)[:, None]\n"
        "    ConvNet(3, 8, hidden_channels=8)(images, torch.ones(2, 1, dtype=torch.bool)).sum().backward()"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
