"""The front end of speech encoders: samples to log-mel features to fewer, wider vectors.

Everything is causal (if the normalization is), so that a stream gives the same vectors as the whole recording. Shapes: B rows,
T frames of `hop` samples, S positions after subsampling, F mel bands, C channels, D size of the vectors.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.dropout import IntegerDropout
from weft.nn.spectrogram import LogMel, RunningNorm, SpecAugment, SpeedPerturbation, normalize_utterance

FULL_SCALE = 32768.0  # of 16-bit samples
KERNEL = 3  # frames and bands


def causal_conv(conv: nn.Module, x: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor]:
    """A convolution whose windows end with the current frame, over x (B, C, T, F) after a history (B, C, 2, F), zeros at
    the start of a recording; and the history after it."""
    if history is None:
        history = x.new_zeros(*x.shape[:2], KERNEL - 1, x.size(3))
    padded = torch.cat([history, x], 2)
    return conv(padded), padded[:, :, -(KERNEL - 1) :]


class ConvBlock(nn.Module):
    """x + V relu(W x) with convolutions V and W; V is 0 at first, so that the block starts as the identity.

    CTC begins to learn when it writes more than blanks, which deep convolutions of random weights delay for long.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, KERNEL, padding=(0, 1)) for _ in range(2))
        for parameter in self.second.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor, state: tuple[Tensor | None, Tensor | None]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x (B, C, T, F) and the histories of both convolutions."""
        y, first = causal_conv(self.first, x, state[0])
        y, second = causal_conv(self.second, F.relu(y), state[1])
        return x + y, (first, second)


class Subsampling(nn.Module):
    """Convolutions that halve the number of frames and bands, blocks of further ones, then a projection: (B, T, F) to
    (B, ceil(T / factor), D).

    The convolutions see the current and two earlier frames. The state has the last two inputs of each, (B, C, 2, F).
    """

    def __init__(self, num_mels: int, dim: int, *, factor: int, channels: int, num_blocks: int = 0) -> None:
        super().__init__()
        self.factor, num_convs = factor, int(math.log2(factor))
        inputs = [1, *[channels] * (num_convs - 1)]
        self.convs = nn.ModuleList(nn.Conv2d(size, channels, KERNEL, stride=2, padding=(0, 1)) for size in inputs)
        self.blocks = nn.ModuleList(ConvBlock(channels) for _ in range(num_blocks))
        for _ in range(num_convs):
            num_mels = (num_mels + 1) // 2
        self.projection = nn.Linear(channels * num_mels, dim)

    def forward(self, x: Tensor, state: tuple[Tensor, ...] | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The vectors (B, S, D) and the state. If more frames follow, T must be a multiple of the factor."""
        x, new_state = x[:, None], list[Tensor]()
        for conv in self.convs:
            x, history = causal_conv(conv, x, None if state is None else state[len(new_state)])
            x = F.relu(x)
            new_state.append(history)
        for block in self.blocks:
            start = len(new_state)
            x, histories = block(x, (None, None) if state is None else state[start : start + 2])
            new_state += histories
        return self.projection(x.transpose(1, 2).flatten(2)), tuple(new_state)

    def mask(self, mask: Tensor) -> Tensor:
        """The mask of the vectors, (B, S), from that of the frames, (B, T)."""
        return mask[:, :: self.factor]


class SpeechFront(nn.Module):
    """Samples to vectors: log-mel features, normalized, then subsampling; in training, speed perturbation and SpecAugment."""

    def __init__(
        self,
        log_mel: LogMel,
        subsampling: Subsampling,
        *,
        running_norm: RunningNorm | None,
        spec_augment: SpecAugment,
        speed: SpeedPerturbation,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.log_mel, self.subsampling, self.running_norm = log_mel, subsampling, running_norm
        self.spec_augment, self.speed, self.dropout = spec_augment, speed, IntegerDropout(dropout)

    def features(self, frames: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Normalized log-mel features (B, T, F) and their mask, from 16-bit samples (B, T, hop) and their mask (B, T)."""
        waveform, lengths = self.speed(frames.flatten(1).float() / FULL_SCALE, mask.sum(1) * frames.size(2))
        x = self.log_mel(waveform)
        mask = torch.arange(x.size(1), device=x.device) < (lengths // frames.size(2))[:, None]
        if self.running_norm is None:
            return normalize_utterance(x, mask), mask
        x, _ = self.running_norm(x)
        return x.masked_fill(~mask[..., None], 0.0), mask

    def forward(self, frames: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors (B, S, D) and their mask (B, S)."""
        x, mask = self.features(frames, mask)
        return self.vectors(self.spec_augment(x, mask)), self.subsampling.mask(mask)

    def vectors(self, features: Tensor) -> Tensor:
        """Vectors (B, S, D) of features (B, T, F)."""
        x, _ = self.subsampling(features)
        dropped: Tensor = self.dropout(x)
        return dropped
