"""Log-mel features against librosa and against their equations; streams, normalization and augmentation against whole rows."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from weft.media.audio import resample
from weft.nn.spectrogram import LogMel, RunningNorm, SpecAugment, SpeedPerturbation, StreamingLogMel, normalize_utterance

OPTIONS = {  # of LogMel
    "speech": {"rate": 16_000, "num_mels": 80, "window": 400, "hop": 160, "n_fft": 512},
    "telephone": {"rate": 8_000, "num_mels": 40, "window": 256, "hop": 100, "n_fft": 256},
}


def signal(size: int = 4800) -> np.ndarray:
    """A rising tone, noise and silence, float32 (T,). Bits of PCG64 are the same in every version of NumPy."""
    time = np.arange(size) / size
    noise = (np.random.PCG64(0).random_raw(size) >> np.uint64(11)) * 2.0**-53 - 0.5
    x = 0.5 * np.sin(np.pi * size * time**2 / 2) + 0.1 * noise
    x[size // 2 : size * 7 // 10] = 0
    return x.astype(np.float32)


def librosa_log_mel(*, rate: int, num_mels: int, window: int, hop: int, n_fft: int) -> np.ndarray:
    """The features of `signal()` by librosa, (S, F)."""
    librosa = pytest.importorskip("librosa", reason="librosa is not installed; its recorded values are tested")
    energy = librosa.feature.melspectrogram(
        y=signal(), sr=rate, n_fft=n_fft, hop_length=hop, win_length=window, n_mels=num_mels, center=True, pad_mode="constant"
    )
    features: np.ndarray = np.log(np.maximum(energy, 1e-10)).T[: 4800 // hop]
    return features


@pytest.mark.parametrize("name", OPTIONS)
def test_log_mel_equals_recorded_values_of_librosa(name):
    """Recorded with librosa 0.11.0: json.dump({name: librosa_log_mel(**options).round(4).tolist(), ...}, file)."""
    expected = torch.tensor(json.loads(Path(__file__).with_name("log_mel.json").read_text())[name])
    features = LogMel(**OPTIONS[name])(torch.from_numpy(signal())[None])[0]
    assert features.shape == expected.shape == (4800 // OPTIONS[name]["hop"], OPTIONS[name]["num_mels"])
    assert (features - expected).abs().max() < 1e-3
    assert expected.min() < -23 and expected.max() > 0  # the floor and loud frames are among them


@pytest.mark.parametrize("name", OPTIONS)
def test_log_mel_equals_librosa(name):
    features = LogMel(**OPTIONS[name])(torch.from_numpy(signal())[None])[0]
    np.testing.assert_allclose(features.numpy(), librosa_log_mel(**OPTIONS[name]), atol=1e-3)


def frame_of_equations(x: np.ndarray, t: int) -> np.ndarray:
    """Frame t of the default features in float64: a window around sample 160 t, the DFT as a sum, filters one by one."""
    k, padded = np.arange(-200, 200), np.pad(x.astype(np.float64), 300)
    windowed = padded[160 * t + k + 300] * (0.5 - 0.5 * np.cos(2 * np.pi * (k + 200) / 400))
    bins = np.arange(257)
    energy = np.abs(np.exp(-2j * np.pi * np.outer(bins, k) / 512) @ windowed) ** 2
    highest = 15 + 27 * math.log(8) / math.log(6.4)
    mels = np.linspace(0, highest, 82)
    hertz = np.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))
    features = []
    for low, center, high in zip(hertz, hertz[1:], hertz[2:], strict=False):
        frequency = bins * 16_000 / 512
        triangle = np.interp(frequency, [low, center, high], [0, 1, 0], left=0, right=0)
        features.append(math.log(max(1e-10, triangle @ energy * 2 / (high - low))))
    return np.array(features)


def test_log_mel_equals_its_equations():
    features = LogMel()(torch.from_numpy(signal())[None])[0]
    for t in (0, 1, 7, 14, 29):
        np.testing.assert_allclose(features[t].numpy(), frame_of_equations(signal(), t), atol=1e-3)


def test_gradients_flow_to_the_waveform():
    x = torch.from_numpy(signal())[None].requires_grad_()
    frame = LogMel()(x)[0, 7]
    weights = torch.linspace(-1, 1, 80)
    (gradient,) = torch.autograd.grad((frame * weights).sum(), x)
    step = np.random.default_rng(0).standard_normal(4800) * 1e-6
    values = [frame_of_equations(signal().astype(np.float64) + sign * step, 7) @ weights.numpy() for sign in (1, -1)]
    assert (gradient[0].numpy() @ step) * 2 == pytest.approx(values[0] - values[1], rel=1e-3)


@pytest.mark.parametrize("size", [0, 1, 159, 160, 161, 319, 320, 4799])
def test_a_frame_per_hop(size):
    x = torch.from_numpy(signal())[None, :size]
    assert LogMel()(x).shape == (1, size // 160, 80)
    assert LogMel()(x[:0]).shape == (0, size // 160, 80)


def test_rows_with_zeros_after_them_equal_rows_alone():
    x, log_mel = torch.from_numpy(signal()), LogMel()
    batch = torch.stack([x, torch.nn.functional.pad(x[:3000], (0, 1800))])
    assert torch.equal(log_mel(batch)[1, : 3000 // 160], log_mel(x[None, :3000])[0])


def test_buffers_are_not_saved():
    assert not LogMel().state_dict() and not SpeedPerturbation().state_dict() and not RunningNorm().state_dict()


def test_features_are_float32_under_autocast():
    x = torch.from_numpy(signal())[None]
    mask, log_mel = torch.ones(1, 30, dtype=torch.bool), LogMel()
    speed = SpeedPerturbation([1.1])
    lengths = torch.tensor([4800])

    def outputs() -> list[Tensor]:
        features = log_mel(x)
        return [features, normalize_utterance(features, mask), RunningNorm()(features)[0], speed(x, lengths)[0]]

    expected = outputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for y, correct in zip(outputs(), expected, strict=True):
            assert y.dtype == torch.float32 and torch.equal(y, correct)


@pytest.mark.parametrize("sizes", [(513, 512), (400, 399), (0, 512), (100, 257)])
def test_a_window_longer_than_the_transform(sizes):
    with pytest.raises(ValueError) as caught:
        LogMel(window=sizes[0], n_fft=sizes[1])
    message = f"a window of {sizes[0]} samples needs an even n_fft that is not shorter, got {sizes[1]}"
    assert str(caught.value) == message


# streams


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("max_size", [100, 500, 3000])
def test_a_stream_equals_the_whole(name, max_size):
    log_mel, rng = LogMel(**OPTIONS[name]), np.random.default_rng(max_size)
    x = torch.from_numpy(np.concatenate([signal(), signal(3333)]))
    stream = StreamingLogMel(log_mel)
    for size in (len(x), 1600, 50, 0):  # one stream after the other
        expected, frames, start = log_mel(x[None, :size])[0], [], 0
        while start < size:
            end = min(size, start + int(rng.integers(0, max_size)))
            frames.append(stream.push(x[start:end]))
            start = end
            # every frame that no later sample can change is there
            final = [max(t * log_mel.hop + log_mel.lookahead, (t + 1) * log_mel.hop) <= end for t in range(len(expected))]
            assert sum(map(len, frames)) == sum(final)
        frames.append(stream.finish())
        assert torch.cat(frames).shape == expected.shape
        torch.testing.assert_close(torch.cat(frames), expected, atol=1e-6, rtol=0)


def test_the_lookahead_is_the_last_sample_that_counts():
    log_mel, x = LogMel(), torch.from_numpy(signal())
    changed = x.clone()
    changed[5 * 160 + log_mel.lookahead :] += 1
    assert torch.equal(log_mel(changed[None])[0, :6], log_mel(x[None])[0, :6])
    changed[5 * 160 + log_mel.lookahead - 1] += 1
    assert not torch.equal(log_mel(changed[None])[0, 5], log_mel(x[None])[0, 5])


# normalization


def features(rows: int = 3, frames: int = 50, bands: int = 8) -> tuple[Tensor, Tensor]:
    """Features (B, S, F) with NaN on padding, and their mask."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, frames, bands, generator=generator) * torch.linspace(0.5, 4, bands) - 10
    mask = torch.arange(frames) < torch.linspace(frames, frames // 3, rows).long()[:, None]
    return x.masked_fill(~mask[..., None], math.nan), mask


def test_utterances_have_mean_zero_and_variance_one():
    x, mask = features()
    y = normalize_utterance(x, mask)
    for row, kept, original in zip(y, mask, x, strict=True):
        alone = original[kept].double()
        expected = (alone - alone.mean(0)) / (alone.var(0, unbiased=False) + 1e-5).sqrt()
        torch.testing.assert_close(row[kept].double(), expected, atol=1e-5, rtol=0)
        assert (row[~kept] == 0).all()


def test_an_utterance_without_frames_or_without_variance_is_zero():
    x, mask = torch.full((2, 4, 3), 5.0), torch.tensor([[True] * 4, [False] * 4])
    assert (normalize_utterance(x, mask) == 0).all()


def test_running_norm_equals_its_equations():
    x, mask = features()
    norm = RunningNorm(count=5.0, mean=-9.0, variance=4.0)
    y, _ = norm(x, mask)
    for row in range(3):
        for t in range(int(mask[row].sum())):
            seen = x[row, : t + 1].double()
            mean = (5 * -9.0 + seen.sum(0)) / (5 + t + 1)
            square = (5 * (4.0 + 81.0) + seen.square().sum(0)) / (5 + t + 1)
            expected = (x[row, t] - mean) / (square - mean.square() + 1e-5).sqrt()
            torch.testing.assert_close(y[row, t].double(), expected, atol=1e-5, rtol=0)
    assert (y[~mask] == 0).all()


def test_running_norm_in_chunks_equals_the_whole():
    x, mask = features(frames=200)
    norm = RunningNorm()
    whole, last = norm(x, mask)
    chunks, state, rng, start = [], None, np.random.default_rng(0), 0
    while start < 200:
        end = min(200, start + int(rng.integers(0, 40)))
        y, state = norm(x[:, start:end], mask[:, start:end], state)
        chunks.append(y)
        start = end
    torch.testing.assert_close(torch.cat(chunks, 1), whole, atol=1e-6, rtol=0)
    for part, expected in zip(state, last, strict=True):
        assert part.size(0) == 3  # rows on axis 0
        torch.testing.assert_close(part, expected)
    assert torch.equal(norm(x[:1])[0], norm(x[:1], mask[:1])[0])  # this row has no padding


def test_running_norm_of_long_streams_stays_exact():
    x = torch.randn(1, 200_000, 1, generator=torch.Generator().manual_seed(0)) * 0.1 + 3
    y, _ = RunningNorm()(x)
    expected = (x[0, -1].double() - x.double().mean()) / x.double().std()
    assert y[0, -1].item() == pytest.approx(expected.item(), abs=0.3)
    exact = RunningNorm(count=1e-9)(x)[0][0, -1]
    assert exact.item() == pytest.approx(expected.item(), abs=1e-2)


# augmentation


def test_spec_augment_only_in_training():
    x, mask = features()
    augment = SpecAugment()
    assert augment.eval()(x, mask) is x
    off = [SpecAugment(num_freq_masks=0, num_time_masks=0), SpecAugment(freq_width=0, time_width=0.0)]
    for augment in off:
        assert augment.train()(x, mask) is x


def shares(size: int, max_width: int) -> list[float]:
    """The probability of each position to be in an interval: its width is uniform, then its start."""
    result = [0.0] * size
    for width in range(max_width + 1):
        for start in range(size - width + 1):
            for position in range(start, start + width):
                result[position] += 1 / (max_width + 1) / (size - width + 1)
    return result


def test_spec_augment_masks_the_right_shares():
    torch.manual_seed(0)
    rows = 20_000
    x, mask = torch.ones(rows, 12, 7), torch.ones(rows, 12, dtype=torch.bool)
    frequency = SpecAugment(num_freq_masks=1, freq_width=3, num_time_masks=0)(x, mask)
    assert (frequency == frequency[:, :1]).all()  # the same bands in all frames
    torch.testing.assert_close((frequency[:, 0] == 0).float().mean(0), torch.tensor(shares(7, 3)), atol=0.015, rtol=0)
    widths = (frequency[:, 0] == 0).sum(1)
    torch.testing.assert_close(widths.bincount(minlength=4) / rows, torch.full((4,), 0.25), atol=0.015, rtol=0)
    time = SpecAugment(num_freq_masks=0, num_time_masks=1, time_width=0.25)(x, mask)
    assert (time == time[..., :1]).all()
    torch.testing.assert_close((time[..., 0] == 0).float().mean(0), torch.tensor(shares(12, 3)), atol=0.015, rtol=0)
    twice = SpecAugment(num_freq_masks=0, num_time_masks=2, time_width=0.25)(x, mask)
    expected = 1 - (1 - torch.tensor(shares(12, 3))).square()
    torch.testing.assert_close((twice[..., 0] == 0).float().mean(0), expected, atol=0.015, rtol=0)


def test_spec_augment_draws_each_row_and_leaves_padding():
    x, mask = torch.ones(64, 100, 80), torch.arange(100) < torch.linspace(100, 20, 64).long()[:, None]
    augment = SpecAugment(time_width=0.2)
    torch.manual_seed(1)
    y = augment(x, mask)
    assert (y[~mask] == 1).all()
    assert len({row.numpy().tobytes() for row in y}) == 64
    bands, frames = (y == 0).all(1), (y[..., 0:1] == 0) & (y == 0).all(2, keepdim=True)
    assert bands.sum(1).max() <= 54
    assert (frames[..., 0].sum(1) <= 2 * (0.2 * mask.sum(1)).floor()).all()
    torch.manual_seed(1)
    assert torch.equal(augment(x, mask), y)
    assert not torch.equal(augment(x, mask), y)


def test_spec_augment_of_narrow_and_empty_rows():
    x, mask = torch.ones(50, 3, 5), torch.tensor([[True] * 3, [False] * 3]).repeat(25, 1)
    y = SpecAugment(freq_width=27, time_width=1.0)(x, mask)  # wider than there are bands
    assert (y[1::2] == 1).all() and (y[::2] == 0).any()


def test_speeds_equal_resampling():
    x = torch.from_numpy(signal())
    for factor in (0.9, 1.1, 0.75, 1.5):
        speed = Fraction(factor).limit_denominator(100)
        y, lengths = SpeedPerturbation([factor])(x[None], torch.tensor([4800]))
        expected = resample(x.numpy(), speed.numerator, speed.denominator)
        assert y.shape == (1, len(expected)) == (1, math.ceil(4800 / speed)) and lengths.tolist() == [len(expected)]
        np.testing.assert_allclose(y[0].numpy(), expected, atol=1e-5)


def test_faster_is_shorter_and_higher():
    x = torch.sin(2 * math.pi * 0.05 * torch.arange(8000).double()).float()[None]
    y, lengths = SpeedPerturbation([1.1])(x, torch.tensor([8000]))
    assert lengths.item() == 7273
    expected = torch.sin(2 * math.pi * 0.055 * torch.arange(7273).double()).float()
    torch.testing.assert_close(y[0, 100:-100], expected[100:-100], atol=1e-4, rtol=0)


def test_speeds_of_padded_rows_equal_those_of_rows_alone():
    x, lengths = torch.from_numpy(signal()).repeat(3, 1), torch.tensor([4800, 3001, 0])
    for factor in (0.9, 1.1):
        speed = SpeedPerturbation([factor])
        y, new_lengths = speed(x, lengths)  # the padding has samples, which must not be heard
        for row, length, new_length in zip(y, lengths.tolist(), new_lengths.tolist(), strict=True):
            alone = speed(x[:1, :length], torch.tensor([length]))[0][0]
            assert len(alone) == new_length and (row[new_length:] == 0).all()
            torch.testing.assert_close(row[:new_length], alone, atol=1e-6, rtol=0)


def test_speeds_are_drawn_in_training_only():
    x, lengths = torch.from_numpy(signal())[None], torch.tensor([4800])
    speed = SpeedPerturbation()
    torch.manual_seed(0)
    drawn = [speed(x, lengths)[0].size(1) for _ in range(300)]
    assert {size: drawn.count(size) > 70 for size in drawn} == {5334: True, 4800: True, 4364: True}
    torch.manual_seed(0)
    assert [speed(x, lengths)[0].size(1) for _ in range(300)] == drawn
    one, same = SpeedPerturbation([1.0])(x, lengths)
    assert one is x and same is lengths
    assert all(speed.eval()(x, lengths)[0] is x for _ in range(10))


@pytest.mark.parametrize("factors", [[], [0.0, 1.0], [-1.0]])
def test_speeds_are_positive(factors):
    with pytest.raises(ValueError) as caught:
        SpeedPerturbation(factors)
    assert str(caught.value) == f"speeds must be positive numbers, got {factors}"
