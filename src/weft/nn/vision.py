"""Encoders of images and video: from frames of pixels to positions that a decoder can attend to.

A front maps frames (B, T, H * W * C), uint8, and a frame mask (B, T), True on frames and False on the padding after
them, to positions (B, S, D) and their mask (B, S). Frames on padding have no effect, and their positions are 0. Rows do not
depend on each other: GroupNorm (Wu and He 2018) replaces the BatchNorm of the published networks.

Shapes: B batch size, T frames (1 for images), H height, W width, C channels, D hidden size, S positions; N = B * T images,
h and w the height and width of the grid of features, P = h * w.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.positions import angles
from weft.nn.spectrogram import random_intervals

NUM_GROUPS = 8  # of channels, for GroupNorm
MAX_PIXELS = 1 << 24  # of the frames that are encoded at once, unless gradients are needed


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with 8 groups, or the greatest common divisor."""
    return nn.GroupNorm(math.gcd(NUM_GROUPS, channels), channels)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut (He et al. 2016, figure 5 left): relu(F(x) + shortcut(x))."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = group_norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = group_norm(out_channels)
        self.stride = stride
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv2d(in_channels, out_channels, 1, bias=False)
            self.shortcut = nn.Sequential(projection, group_norm(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        # instead of a projection with this stride: with fewer than 16 channels, its backward pass in oneDNN writes beyond its
        # memory
        skipped = x[..., :: self.stride, :: self.stride]
        z: Tensor = (y + self.shortcut(skipped)).relu()
        return z


class ConvNet(nn.Module):
    """A ResNet (He et al. 2016) of four stages: x (B, T, C, H, W) in [-1, 1] to features (N, D, h, w).

    Each stage after the first halves height and width and doubles the channels. The first convolution is that of the paper for
    large images (7 x 7, stride 2, then 3 x 3 max pooling if `stem_stride` is 4) or that for small ones (3 x 3, stride 1). It
    sees `stem_frames` frames (5 in Stafylakis and Tzimiropoulos 2017, for lip reading); those beyond the clip are 0.
    """

    num_stages = 4

    def __init__(
        self,
        channels: int,
        dim: int,
        *,
        hidden_channels: int = 32,
        blocks_per_stage: int = 1,
        stem_stride: int = 1,
        stem_frames: int = 1,
    ) -> None:
        super().__init__()
        size, stride = (3, 1) if stem_stride == 1 else (7, 2)
        if stem_frames == 1:
            self.stem: nn.Module = nn.Conv2d(channels, hidden_channels, size, stride, padding=size // 2, bias=False)
        else:
            kernel, padding = (stem_frames, size, size), (stem_frames // 2, size // 2, size // 2)
            self.stem = nn.Conv3d(channels, hidden_channels, kernel, (1, stride, stride), padding=padding, bias=False)
        self.stem_frames = stem_frames
        self.norm = group_norm(hidden_channels)
        self.pool = nn.MaxPool2d(3, 2, padding=1) if stem_stride == 4 else nn.Identity()
        widths = [hidden_channels * 2**stage for stage in range(self.num_stages)]
        blocks = [BasicBlock(hidden_channels, hidden_channels) for _ in range(blocks_per_stage)]
        for narrow, wide in pairwise(widths):
            blocks.append(BasicBlock(narrow, wide, stride=2))
            blocks += [BasicBlock(wide, wide) for _ in range(blocks_per_stage - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.output = nn.Conv2d(widths[-1], dim, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor
        if self.stem_frames == 1:
            y = self.stem(x.flatten(0, 1))
        else:
            x = x.masked_fill(~mask[:, :, None, None, None], 0.0)
            y = self.stem(x.transpose(1, 2)).transpose(1, 2).flatten(0, 1)
        y = self.output(self.blocks(self.pool(self.norm(y).relu())))
        return y


class GridPositions(nn.Module):
    """Add sines and cosines of the row to the first half of the features and of the column to the second, (N, D, h, w).

    PE(p, 2i) = sin(p / 10000^(4i/D)),  PE(p, 2i+1) = cos(p / 10000^(4i/D)), as in ViT without learned positions (Beyer et al.
    2022).
    """

    frequencies: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.half_dim = (dim + 1) // 2
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, self.half_dim, 2) / self.half_dim), persistent=False)

    def _encoding(self, length: int, x: Tensor) -> Tensor:
        """(length, D / 2)"""
        angle = angles(torch.arange(length, device=x.device), self.frequencies)
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[:, : self.half_dim].to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        _, dim, height, width = x.shape
        rows = self._encoding(height, x).T[:, :, None].expand(-1, -1, width)
        columns = self._encoding(width, x).T[:, None, :].expand(-1, height, -1)
        return x + torch.cat([rows, columns])[:dim]


class PatchEmbedding(nn.Module):
    """Linear embeddings of square patches with 2-D positions (Dosovitskiy et al. 2021): x (N, C, H, W) to (N, P, D).

    The image is padded at the right and the bottom to whole patches.
    """

    def __init__(self, channels: int, dim: int, *, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.projection = nn.Conv2d(channels, dim, patch_size, patch_size)
        self.positions = GridPositions(dim)

    def forward(self, x: Tensor) -> Tensor:
        padding = (-x.size(3) % self.patch_size, -x.size(2) % self.patch_size)
        grid: Tensor = self.positions(self.projection(F.pad(x, (0, padding[0], 0, padding[1]))))
        return grid.flatten(2).transpose(1, 2)


class SpatioTemporalConv(nn.Module):
    """The front end of LipNet (Assael et al. 2016): x (B, T, C, H, W) in [-1, 1] to features (B, T, 3 * hidden_channels, h, w).

    Three times a 3-D convolution, a norm, a ReLU and 2 x 2 max pooling of each frame. The norm uses statistics of single
    frames, and frames on padding are 0 before each convolution, like the frames before the first: the length of the other rows
    of a batch has no effect.
    """

    def __init__(self, channels: int, *, hidden_channels: int = 32) -> None:
        super().__init__()
        widths = [channels, hidden_channels, 2 * hidden_channels, 3 * hidden_channels]
        convs = [
            nn.Conv3d(widths[0], widths[1], (3, 5, 5), (1, 2, 2), padding=(1, 2, 2)),
            nn.Conv3d(widths[1], widths[2], (3, 5, 5), padding=(1, 2, 2)),
            nn.Conv3d(widths[2], widths[3], (3, 3, 3), padding=(1, 1, 1)),
        ]
        for conv in convs:
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            if conv.bias is not None:
                nn.init.zeros_(conv.bias)
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(group_norm(width) for width in widths[1:])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x.masked_fill(~mask[:, :, None, None, None], 0.0)
            y = conv(x.transpose(1, 2)).transpose(1, 2)  # (B, T, C, H, W)
            y = F.max_pool2d(norm(y.flatten(0, 1)).relu(), 2, ceil_mode=True)
            x = y.view(*x.shape[:2], *y.shape[1:])
        return x


class _ResNetFrames(nn.Module):
    """Grids of a ResNet for each frame; the average of a grid if there is one vector per frame."""

    def __init__(self, net: ConvNet, dim: int, *, per_frame: bool) -> None:
        super().__init__()
        self.net, self.per_frame = net, per_frame
        self.positions = nn.Identity() if per_frame else GridPositions(dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        grid: Tensor = self.positions(self.net(x, mask))
        features = grid.mean((2, 3))[:, None] if self.per_frame else grid.flatten(2).transpose(1, 2)
        return features.reshape(*x.shape[:2], *features.shape[1:])


class _PatchFrames(nn.Module):
    """Patches of each frame."""

    def __init__(self, patches: PatchEmbedding) -> None:
        super().__init__()
        self.patches = patches

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.patches(x.flatten(0, 1))
        return y.reshape(*x.shape[:2], *y.shape[1:])


class _SpatioTemporalFrames(nn.Module):
    """Grids of 3-D convolutions; a linear function of the whole grid if there is one vector per frame, as in LipNet."""

    def __init__(self, net: SpatioTemporalConv, dim: int, *, features: int, per_frame: bool) -> None:
        super().__init__()
        self.net, self.per_frame = net, per_frame
        self.output = nn.Linear(features, dim)
        self.positions = nn.Identity() if per_frame else GridPositions(dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        grid: Tensor = self.net(x, mask)
        if self.per_frame:
            vectors: Tensor = self.output(grid.flatten(2))
            return vectors[:, :, None]
        features = self.output(grid.flatten(0, 1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y: Tensor = self.positions(features).flatten(2).transpose(1, 2)
        return y.reshape(*x.shape[:2], *y.shape[1:])


class VisionFront(nn.Module):
    """Frames (B, T, H * W * C), uint8, and their mask (B, T) to positions (B, S, D) and their mask (B, S).

    shape: height, width and channels of a frame. kind: "resnet" (`ConvNet`), "patches" (`PatchEmbedding`; the layers that
    follow see the patches), "conv3d" (`SpatioTemporalConv`) or "resnet3d" (a `ConvNet` whose first convolution sees five
    frames). With `per_frame` there is one vector per frame, S = T: attention over time, CTC. Otherwise each cell of the grid
    is a position, S = T * P: attention over an image.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        dim: int,
        *,
        kind: str,
        per_frame: bool = False,
        hidden_channels: int = 32,
        blocks_per_stage: int = 1,
        patch_size: int = 8,
    ) -> None:
        super().__init__()
        self.shape = height, width, channels = shape
        if kind in ("resnet", "resnet3d"):
            options = {"hidden_channels": hidden_channels, "blocks_per_stage": blocks_per_stage}
            options |= {"stem_stride": stem_stride(height, width), "stem_frames": 5 if kind == "resnet3d" else 1}
            net = ConvNet(channels, dim, **options)
            self.frames: nn.Module = _ResNetFrames(net, dim, per_frame=per_frame)
        elif kind == "patches" and not per_frame:  # the average of linear patches is a function of the average patch
            self.frames = _PatchFrames(PatchEmbedding(channels, dim, patch_size=patch_size))
        elif kind == "conv3d":
            features = 3 * hidden_channels * (math.ceil(height / 16) * math.ceil(width / 16) if per_frame else 1)
            front = SpatioTemporalConv(channels, hidden_channels=hidden_channels)
            self.frames = _SpatioTemporalFrames(front, dim, features=features, per_frame=per_frame)
        else:
            raise ValueError(f"vision front: kind={kind!r} with per_frame={per_frame}")
        self.grid = (1, 1) if per_frame else grid_size(kind, height, width, patch_size=patch_size)  # h, w

    def forward(self, frames: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        rows = max(1, MAX_PIXELS // (frames.size(1) * math.prod(self.shape[:2])))
        if torch.is_grad_enabled() or rows >= len(frames):
            return self._encode(frames, mask)
        parts = zip(torch.split(frames, rows), torch.split(mask, rows), strict=True)  # rows do not depend on each other
        vectors, masks = zip(*(self._encode(*part) for part in parts), strict=True)
        return torch.cat(vectors), torch.cat(masks)

    def _encode(self, frames: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        height, width, channels = self.shape
        dtype = next(self.parameters()).dtype
        images = frames.view(*frames.shape[:2], height, width, channels).permute(0, 1, 4, 2, 3)  # (B, T, C, H, W)
        y: Tensor = self.frames(images.to(dtype) / 127.5 - 1.0, mask)  # (B, T, P, D)
        y = y.masked_fill(~mask[:, :, None, None], 0.0)
        return y.flatten(1, 2), mask.repeat_interleave(y.size(2), dim=1)


def grid_size(kind: str, height: int, width: int, *, patch_size: int) -> tuple[int, int]:
    """Cells of the grid of features of a frame: h, w."""
    resnet = 8 * stem_stride(height, width)
    cell = {"resnet": resnet, "resnet3d": resnet, "patches": patch_size, "conv3d": 16}[kind]  # in pixels
    return math.ceil(height / cell), math.ceil(width / cell)


def stem_stride(height: int, width: int) -> int:
    """Stride of the first layers of a ResNet: the grid has about 8 x 8 cells for images of up to 64, 128 and 256 pixels."""
    longest = max(height, width)
    return 1 if longest <= 64 else 2 if longest <= 128 else 4


class FeatureFront(nn.Module):
    """Features (B, T, F) of a pre-trained encoder, normalized and projected to positions (B, T, D); the mask is that of T."""

    def __init__(self, num_features: int, dim: int) -> None:
        super().__init__()
        self.grid = (1, 1)
        self.norm, self.output = nn.LayerNorm(num_features), nn.Linear(num_features, dim)

    def forward(self, frames: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        y: Tensor = self.output(self.norm(frames.to(self.output.weight.dtype)))
        return y.masked_fill(~mask[..., None], 0.0), mask


class ImageAugment(nn.Module):
    """Random changes of frames (B, T, H * W * C), uint8, in training mode; the frames of a row change in the same way.

    max_shift: pixels by which a row moves up, down, left or right; the border is repeated. brightness, contrast: the pixels,
    as values from -1 to 1, become (1 + c) x + b with c and b between plus and minus these numbers. flip: half of the rows are
    mirrored; off by default, because texts contain "left" and letters.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        max_shift: int = 4,
        brightness: float = 0.1,
        contrast: float = 0.1,
        flip: bool = False,
    ) -> None:
        super().__init__()
        self.shape, self.max_shift, self.flip = shape, max_shift, flip
        self.brightness, self.contrast = brightness, contrast

    def forward(self, frames: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if not self.training:
            return frames
        height, width, _ = self.shape
        draws = torch.rand(5, frames.size(0), generator=generator, device=frames.device)
        down, right = ((2 * self.max_shift + 1) * draws[:2]).long() - self.max_shift  # (B,) each
        rows = self._moved(height, down)
        columns = self._moved(width, right)
        if self.flip:
            columns = torch.where(draws[4, :, None] < 0.5, columns.flip(1), columns)
        images = frames.view(*frames.shape[:2], *self.shape)  # (B, T, H, W, C)
        row, frame = (torch.arange(size, device=frames.device) for size in frames.shape[:2])
        images = images[row[:, None, None, None], frame[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]
        contrast = 1.0 + self.contrast * (2 * draws[2, :, None, None] - 1)  # (B, 1, 1)
        brightness = self.brightness * (2 * draws[3, :, None, None] - 1)
        pixels = images.flatten(2).float() / 127.5 - 1.0
        changed = (contrast * pixels + brightness + 1.0) * 127.5
        return changed.round().clamp(0, 255).to(frames.dtype)

    def _moved(self, length: int, shift: Tensor) -> Tensor:
        """Index of the old pixel at each new place, (B, length)."""
        return (torch.arange(length, device=shift.device) - shift[:, None]).clamp(0, length - 1)


class TimeMask(nn.Module):
    """Replace random stretches of frames (B, T, F) by the mean frame of the clip in training mode (Ma et al. 2022).

    The length of a stretch is uniform in 0 ... `max_ratio` times the frames of the clip.
    """

    def __init__(self, num_masks: int, max_ratio: float) -> None:
        super().__init__()
        self.num_masks, self.max_ratio = num_masks, max_ratio

    def forward(self, frames: Tensor, mask: Tensor) -> Tensor:
        if not self.training or not self.num_masks:
            return frames
        lengths = mask.sum(1)
        widths = (lengths * self.max_ratio).long().clamp(max=lengths)
        covered = random_intervals(self.num_masks, widths, lengths, frames.size(1))
        total = frames.float().masked_fill(~mask[..., None], 0.0).sum(1)
        mean_frame = (total / lengths[:, None]).to(frames.dtype)
        return torch.where(covered[..., None], mean_frame[:, None], frames)
