"""The front end of speech recognizers without the Fourier transform of torch, which ONNX does not have in the same form.

Shapes: B rows, T frames of `hop` samples, F mel bands, D size of the vectors.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.spectrogram import FLOOR, LogMel, normalize_utterance
from weft.nn.speech_front import FULL_SCALE, SpeechFront


def fourier_basis(log_mel: LogMel) -> Tensor:
    """Windowed cosines and sines of the discrete Fourier transform, as kernels of a convolution: (n_fft + 2, 1, n_fft)."""
    n_fft, width = log_mel.n_fft, len(log_mel.window)
    left = (n_fft - width) // 2  # torch.stft centers the window
    window = F.pad(log_mel.window.double(), (left, n_fft - width - left))
    angles = torch.arange(n_fft // 2 + 1)[:, None] * torch.arange(n_fft) * (2 * math.pi / n_fft)
    return (torch.cat([angles.double().cos(), angles.double().sin()]) * window)[:, None].float()


class TracedSpeechFront(nn.Module):
    """Samples to vectors, with the Fourier transform as a convolution."""

    basis: Tensor

    def __init__(self, front: SpeechFront) -> None:
        super().__init__()
        self.log_mel, self.subsampling, self.running_norm = front.log_mel, front.subsampling, front.running_norm
        self.register_buffer("basis", fourier_basis(front.log_mel))

    def forward(self, frames: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors (B, S, D) and their mask (B, S), from 16-bit samples (B, T, hop) and their mask (B, T)."""
        half = self.log_mel.n_fft // 2
        waveform = F.pad(frames.flatten(1).float() / FULL_SCALE, (half, half))
        spectrum = F.conv1d(waveform[:, None], self.basis, stride=self.log_mel.hop)[..., : frames.size(1)]
        real, imaginary = spectrum.chunk(2, dim=1)
        energy = (real.square() + imaginary.square()).transpose(1, 2)
        features = (energy @ self.log_mel.filters).clamp(min=FLOOR).log()
        if self.running_norm is None:
            features = normalize_utterance(features, mask)
        else:
            features = self.running_norm(features)[0].masked_fill(~mask[..., None], 0.0)
        return self.subsampling(features)[0], self.subsampling.mask(mask)
