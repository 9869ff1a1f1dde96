"""Features of speech: log-mel spectrograms, their normalization, and augmentation of waveforms and spectrograms.

Shapes: B batch size, T samples, S frames, F mel bands. A mask (B, S) is True on frames and False on the padding after them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FLOOR = 1e-10  # of the energy in a band, before the logarithm
EPSILON = 1e-5  # added to variances


def hz_to_mel(frequency: Tensor) -> Tensor:
    """Slaney's scale: linear up to 1,000 Hz (15 mel), logarithmic above (27 mel per factor of 6.4)."""
    return torch.where(frequency < 1000, 0.015 * frequency, 15 + 27 * (frequency.clamp(min=1000) / 1000).log() / math.log(6.4))


def mel_to_hz(mel: Tensor) -> Tensor:
    return torch.where(mel < 15, mel / 0.015, 1000 * (math.log(6.4) / 27 * (mel - 15).clamp(min=0)).exp())


def mel_filters(*, rate: int, num_mels: int, n_fft: int) -> Tensor:
    """Triangular filters of equal area (Slaney 1998), from bins of the spectrum to mel bands, (n_fft / 2 + 1, F) in float64."""
    bins = torch.linspace(0, rate / 2, n_fft // 2 + 1, dtype=torch.float64)[:, None]
    # interpolated, because models are also built without memory, where a tensor has no value to start a range with
    edges = mel_to_hz(torch.linspace(0, 1, num_mels + 2, dtype=torch.float64) * hz_to_mel(bins[-1]))
    left, center, right = edges[:-2], edges[1:-1], edges[2:]
    triangles = torch.minimum((bins - left) / (center - left), (right - bins) / (right - center)).clamp(min=0)
    return triangles * 2 / (right - left)


class LogMel(nn.Module):
    """The natural logarithm of the energy in each mel band: waveform (B, T) in [-1, 1] to (B, T // hop, F).

    Frame t is centered at sample t * hop; the waveform has zeros before its start and after its end. Equal to librosa's
    log(max(melspectrogram, 1e-10)) with Slaney's filters, without the last frame.
    """

    filters: Tensor  # (n_fft / 2 + 1, F)
    window: Tensor  # (window,)

    def __init__(self, *, rate: int = 16_000, num_mels: int = 80, window: int = 400, hop: int = 160, n_fft: int = 512) -> None:
        super().__init__()
        if not 0 < window <= n_fft or n_fft % 2:
            raise ValueError(f"a window of {window} samples needs an even n_fft that is not shorter, got {n_fft}")
        self.rate, self.num_mels, self.hop, self.n_fft = rate, num_mels, hop, n_fft
        filters = mel_filters(rate=rate, num_mels=num_mels, n_fft=n_fft)
        self.register_buffer("filters", filters.float(), persistent=False)
        self.register_buffer("window", torch.hann_window(window, dtype=torch.float64).float(), persistent=False)

    @property
    def lookahead(self) -> int:
        """Samples after its center that a frame depends on, itself included."""
        width = len(self.window)
        return (self.n_fft - width) // 2 + width - self.n_fft // 2

    def forward(self, waveform: Tensor) -> Tensor:
        num_frames = waveform.size(-1) // self.hop
        if not num_frames or not len(waveform):
            return waveform.new_zeros((*waveform.shape[:-1], num_frames, self.num_mels), dtype=torch.float32)
        half = self.n_fft // 2
        return self.frames(F.pad(waveform, (half, half)))[:, :num_frames]

    def frames(self, padded: Tensor) -> Tensor:
        """All frames whose n_fft samples are in a waveform, without padding: (B, T) to (B, 1 + (T - n_fft) // hop, F)."""
        with torch.autocast(padded.device.type, enabled=False):
            spectrum = torch.stft(
                padded.float(),
                self.n_fft,
                self.hop,
                win_length=len(self.window),
                window=self.window,
                center=False,
                return_complex=True,
            )
            energy = torch.view_as_real(spectrum).square().sum(-1)  # (B, n_fft / 2 + 1, S)
            return (energy.transpose(1, 2) @ self.filters).clamp(min=FLOOR).log()


class StreamingLogMel:
    """The frames of `LogMel` for one waveform that arrives in pieces. A frame is returned once no later sample changes it."""

    def __init__(self, log_mel: LogMel) -> None:
        self.log_mel = log_mel
        self._restart()

    def _restart(self) -> None:
        # the samples of the next frame and after; the first is centered at the start of the waveform
        self.buffer = self.log_mel.window.new_zeros(self.log_mel.n_fft // 2)
        self.num_samples = self.num_frames = 0  # so far

    def push(self, samples: Tensor) -> Tensor:
        """The frames (S, F) that these next samples (T,) complete."""
        self.buffer = torch.cat([self.buffer, samples.to(self.buffer)])
        self.num_samples += len(samples)
        hop = self.log_mel.hop
        # a frame is complete if all samples under its window are known, and exists if hop samples follow its center
        num_complete = max(0, (self.num_samples - self.log_mel.lookahead) // hop + 1)
        return self._take(min(num_complete, self.num_samples // hop))

    def finish(self) -> Tensor:
        """The frames (S, F) that are left at the end of the waveform. The next samples start another waveform."""
        frames = self._take(self.num_samples // self.log_mel.hop)
        self._restart()
        return frames

    def _take(self, until: int) -> Tensor:
        """Frames up to `until`, with zeros for the samples outside the window that are still missing."""
        hop, count = self.log_mel.hop, max(0, until - self.num_frames)
        if not count:
            return self.buffer.new_zeros((0, self.log_mel.num_mels))
        needed = (count - 1) * hop + self.log_mel.n_fft
        samples = F.pad(self.buffer, (0, max(0, needed - len(self.buffer))))[:needed]
        self.buffer = self.buffer[count * hop :]
        self.num_frames += count
        return self.log_mel.frames(samples[None])[0]


def normalize_utterance(x: Tensor, mask: Tensor) -> Tensor:
    """x (B, S, F) with zero mean and unit variance over the frames of each row, for each band; 0 on padding."""
    with torch.autocast(x.device.type, enabled=False):
        padding, count = ~mask[..., None], mask.sum(1).clamp(min=1)[:, None, None]
        x = x.float().masked_fill(padding, 0.0)
        centered = (x - x.sum(1, keepdim=True) / count).masked_fill(padding, 0.0)
        variance = centered.square().sum(1, keepdim=True) / count
        return centered / (variance + EPSILON).sqrt()


RunningState = tuple[Tensor, Tensor, Tensor]  # frames (B,), sums of x - mean and of its square (B, F); float64


class RunningNorm(nn.Module):
    """Normalization that sees no future: y_t = (x_t - mean of x up to t) / standard deviation of x up to t, for each band.

    The statistics begin with `count` frames of a prior mean and variance, so that the first frames of a stream have a scale.
    The defaults are those of natural log-mel energies of speech.
    """

    def __init__(self, *, count: float = 100.0, mean: float = -10.0, variance: float = 16.0) -> None:
        super().__init__()
        self.count, self.mean, self.variance = count, mean, variance

    def forward(self, x: Tensor, mask: Tensor | None = None, state: RunningState | None = None) -> tuple[Tensor, RunningState]:
        """x (B, S, F) normalized, 0 on padding, and the state after it."""
        with torch.autocast(x.device.type, enabled=False):
            mask = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
            difference = (x.double() - self.mean).masked_fill(~mask[..., None], 0.0)
            rows = (x.size(0), x.size(2))
            zeros = difference.new_zeros(rows)
            before, sums, squares = (zeros[:, 0], zeros, zeros) if state is None else state
            frames = before[:, None] + mask.double().cumsum(1)  # (B, S)
            all_sums = sums[:, None] + difference.cumsum(1)
            all_squares = squares[:, None] + difference.square().cumsum(1)
            total = (frames + self.count)[..., None]
            mean = all_sums / total
            variance = (all_squares + self.count * self.variance) / total - mean.square()
            y = (difference - mean) / (variance.clamp(min=0) + EPSILON).sqrt()
            if x.size(1):
                before, sums, squares = frames[:, -1], all_sums[:, -1], all_squares[:, -1]
            return y.float().masked_fill(~mask[..., None], 0.0), (before, sums, squares)


class SpecAugment(nn.Module):
    """Set random bands and random stretches of time to 0 in training (Park et al. 2019), different for each row.

    The width of a frequency mask is uniform in 0 ... `freq_width` bands, that of a time mask in 0 ... `time_width` times the
    frames of the row. Its position is uniform among those where it fits.
    """

    def __init__(
        self, *, num_freq_masks: int = 2, freq_width: int = 27, num_time_masks: int = 2, time_width: float = 0.05
    ) -> None:
        super().__init__()
        self.num_freq_masks, self.freq_width = num_freq_masks, freq_width
        self.num_time_masks, self.time_width = num_time_masks, time_width

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Normalized features x (B, S, F) with masks over the frames of `mask` (B, S)."""
        if not self.training:
            return x
        lengths = mask.sum(1)
        bands = torch.full_like(lengths, x.size(2))
        if self.num_freq_masks and self.freq_width:
            covered = random_intervals(self.num_freq_masks, bands.clamp(max=self.freq_width), bands, x.size(2))
            x = x.masked_fill(covered[:, None, :] & mask[..., None], 0.0)
        if self.num_time_masks and self.time_width:
            widths = (lengths * self.time_width).floor().long().clamp(max=lengths)
            covered = random_intervals(self.num_time_masks, widths, lengths, x.size(1))
            x = x.masked_fill(covered[..., None], 0.0)
        return x


def random_intervals(count: int, max_widths: Tensor, lengths: Tensor, size: int) -> Tensor:
    """Whether each of `size` positions is in one of `count` random intervals within a row's length (B,): (B, size)."""
    draws = torch.rand(2, len(lengths), count, device=lengths.device, dtype=torch.float64)  # float32 could round up to 1
    widths = (draws[0] * (max_widths[:, None] + 1)).long()
    starts = (draws[1] * (lengths[:, None] - widths + 1)).long()
    positions = torch.arange(size, device=lengths.device)[:, None]
    inside = (positions >= starts[:, None]) & (positions < (starts + widths)[:, None])  # (B, size, count)
    return inside.any(-1)


def _speed_kernel(speed: Fraction, *, num_zeros: int, attenuation: float) -> Tensor:
    """Windowed-sinc filters for playing at a speed, (phases, 1, window): output n is the waveform around n * speed."""
    down, up = speed.numerator, speed.denominator
    half = math.ceil(num_zeros * max(1.0, down / up))
    phases, inputs = torch.arange(up, dtype=torch.float64)[:, None], torch.arange(2 * half + down, dtype=torch.float64)
    distance = (phases * down - (inputs - half) * up) / max(up, down)
    beta = 0.1102 * (attenuation - 8.7)  # Kaiser's formulas
    cutoff = 1 - (attenuation - 7.95) / (2.285 * 2 * num_zeros * math.pi) / 2
    window = torch.special.i0(beta * (1 - (distance / num_zeros).square()).clamp(min=0).sqrt()) * (distance.abs() < num_zeros)
    kernel: Tensor = window * torch.sinc(cutoff * distance)
    return (kernel / kernel.sum(1, keepdim=True)).float()[:, None]


class SpeedPerturbation(nn.Module):
    """Play a batch of waveforms at one random speed in training (Ko et al. 2015): 1.1 is faster, higher and shorter."""

    def __init__(self, factors: Sequence[float] = (0.9, 1.0, 1.1)) -> None:
        super().__init__()
        self.speeds = [Fraction(factor).limit_denominator(100) for factor in factors]
        if not self.speeds or min(self.speeds) <= 0:
            raise ValueError(f"speeds must be positive numbers, got {list(factors)}")
        for index, speed in enumerate(self.speeds):
            if speed == 1:
                continue
            self.register_buffer(f"kernel_{index}", _speed_kernel(speed, num_zeros=64, attenuation=90.0), persistent=False)

    def forward(self, waveform: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Waveforms (B, T) with 0 on padding, and their lengths (B,)."""
        if not self.training:
            return waveform, lengths
        index = int(torch.randint(len(self.speeds), ()))
        return (waveform, lengths) if self.speeds[index] == 1 else self._play(waveform, lengths, index)

    def _play(self, waveform: Tensor, lengths: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Waveforms at the speed `factors[index]`, and their lengths."""
        kernel, speed = self.get_buffer(f"kernel_{index}"), self.speeds[index]
        down, up = speed.numerator, speed.denominator
        half = (kernel.size(-1) - down) // 2
        size = -(-waveform.size(1) * up // down)
        shorter = -(-lengths * up // down)
        with torch.autocast(waveform.device.type, enabled=False):
            inside = torch.arange(waveform.size(1), device=waveform.device) < lengths[:, None]
            padded = F.pad(waveform.float().masked_fill(~inside, 0.0), (half, half + down))
            phases = F.conv1d(padded[:, None], kernel, stride=down)  # (B, up, blocks)
            played = phases.transpose(1, 2).flatten(1)[:, :size]
        return played.masked_fill(torch.arange(size, device=played.device) >= shorter[:, None], 0.0), shorter
