"""Reading, resampling and writing sounds; damaged and hostile files are data errors."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import tracemalloc
import wave
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import soundfile

from weft.errors import DataError, UsageError
from weft.media import audio
from weft.media.audio import from_int16, read_audio, resample, to_int16, write_wav
from weft.media.files import MediaFile

RATE = 16_000
FORMATS = {  # file name: format and encoding of libsndfile, largest error of a sample (None: lossy)
    "pcm8.wav": ("WAV", "PCM_U8", 2**-7),
    "pcm16.wav": ("WAV", "PCM_16", 2**-15),
    "pcm24.wav": ("WAV", "PCM_24", 2**-23),
    "pcm32.wav": ("WAV", "PCM_32", 2**-23),
    "extensible.wav": ("WAVEX", "PCM_16", 2**-15),
    "float.wav": ("WAV", "FLOAT", 2**-23),
    "law.wav": ("WAV", "ULAW", 0.02),
    "x.flac": ("FLAC", "PCM_16", 2**-15),
    "vorbis.ogg": ("OGG", "VORBIS", None),
    "x.opus": ("OGG", "OPUS", None),
    "x.mp3": ("MP3", "MPEG_LAYER_III", None),
    "x.aiff": ("AIFF", "PCM_16", 2**-15),
}
PCM = ("pcm8.wav", "pcm16.wav", "pcm24.wav", "pcm32.wav")


def tone(seconds: float = 1.0) -> np.ndarray:
    """A rising tone in two channels (T, 2); the second is half of the first, with the other sign."""
    time = np.arange(round(seconds * RATE)) / RATE
    left = 0.6 * np.sin(2 * np.pi * (200 * time + 300 * time**2 / seconds))
    return np.stack([left, -left / 2], axis=1)


def encoded(name: str, samples: np.ndarray | None = None) -> bytes:
    file = io.BytesIO()
    kind, encoding, _ = FORMATS[name]
    soundfile.write(file, tone(0.25) if samples is None else samples, RATE, format=kind, subtype=encoding)
    return file.getvalue()


def written(path: Path, data: bytes) -> MediaFile:
    path.write_bytes(data)
    return MediaFile(path)


def error(file: MediaFile, **options: float) -> str:
    with pytest.raises(DataError) as caught:
        read_audio(file, **options)
    message = str(caught.value)
    assert message.startswith(f"{file}: ") and "\n" not in message
    return message.removeprefix(f"{file}: ")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_with_its_channels_averaged(tmp_path, name):
    samples = tone()
    file = written(tmp_path / name, encoded(name, samples))
    read, rate = read_audio(file)
    assert (read.dtype, rate, read.shape) == (np.float32, RATE, (RATE,))
    tolerance = FORMATS[name][2]
    difference = np.abs(read - samples.mean(axis=1))[RATE // 10 : -RATE // 10]
    assert difference.max() <= tolerance if tolerance else np.sqrt((difference**2).mean()) < 0.02
    # what libsndfile reads at once
    whole = soundfile.read(tmp_path / name, dtype="float32")[0].mean(axis=1)
    assert np.abs(read - whole).max() < 1e-6
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.write(tmp_path / name, name)
    assert np.array_equal(read_audio(MediaFile(tmp_path / "x.zip", name)).samples, read)


@pytest.mark.parametrize("name", FORMATS)
def test_blocks_and_segments_equal_the_whole(tmp_path, name, monkeypatch):
    file = written(tmp_path / name, encoded(name, tone(2)))
    whole = read_audio(file).samples
    monkeypatch.setattr(audio, "BLOCK_VALUES", 4000)
    assert np.abs(read_audio(file).samples - whole).max() < 1e-6
    for start, duration in ((0.0, 0.3), (0.7, 0.5), (1.9999, None), (1.5, 0.9)):  # the last ends up to 0.5 s after the sound
        part = read_audio(file._replace(start=start, duration=duration)).samples
        end = None if duration is None else round((start + duration) * RATE)
        expected = whole[round(start * RATE) : end]
        assert part.shape == expected.shape
        assert np.abs(part - expected).max() < 1e-6


def test_consecutive_segments_share_no_sample_and_miss_none(tmp_path):
    file = written(tmp_path / "x.wav", encoded("pcm16.wav"))
    parts = [read_audio(file._replace(start=i * 0.01003, duration=0.01003)).samples for i in range(20)]
    assert np.array_equal(np.concatenate(parts), read_audio(file).samples[: sum(map(len, parts))])


def test_a_segment_is_read_without_the_rest(tmp_path):
    file = written(tmp_path / "x.wav", encoded("pcm16.wav", tone(60)))
    tracemalloc.start()
    read_audio(file._replace(start=30, duration=0.1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000  # the file has 3.8 MB


@pytest.mark.parametrize("name", PCM)
def test_pcm_needs_no_package(tmp_path, monkeypatch, name):
    file = written(tmp_path / "x.wav", encoded(name))
    expected = soundfile.read(file.path, dtype="float32")[0].mean(axis=1)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert np.abs(read_audio(file).samples - expected).max() < 1e-6
    file = written(tmp_path / "x.flac", encoded("x.flac"))
    assert error(file) == "requires the package soundfile; run pip install soundfile"


def test_neither_torch_nor_soundfile_is_imported():
    command = "import sys, weft.media.audio; assert not {'torch', 'soundfile'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", command], check=True)


def test_the_content_decides_and_not_the_name(tmp_path):
    assert len(read_audio(written(tmp_path / "x.raw", encoded("x.flac"))).samples) == RATE // 4
    assert len(read_audio(written(tmp_path / "x.mp3", encoded("pcm16.wav"))).samples) == RATE // 4


# damaged and hostile files


def patched(name: str, offset: int, value: bytes) -> bytes:
    data = bytearray(encoded(name))
    data[offset : offset + len(value)] = value
    return bytes(data)


def test_files_that_are_no_sounds(tmp_path):
    assert error(written(tmp_path / "x.wav", b"Some words.\n" * 100)) == "cannot be read as a sound: Format not recognised"
    assert error(written(tmp_path / "x.flac", b"RIFF")).startswith("cannot be read as a sound: ")
    assert (
        error(written(tmp_path / "x.wav", b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0"))
        == "cannot be read as a sound: not a WAVE file"
    )
    assert error(written(tmp_path / "x.wav", b"")) == "empty file"
    assert error(MediaFile(tmp_path / "none.wav")) == "file not found"


def test_headers_that_lie(tmp_path):
    path = tmp_path / "x.wav"
    claims = "truncated: the header claims 2,000,000,000 bytes of samples, the file has 16,000"
    assert error(written(path, patched("pcm16.wav", 40, struct.pack("<I", 2_000_000_000)))) == claims
    assert error(written(path, patched("pcm16.wav", 22, b"\0\0"))).startswith("cannot be read as a sound: ")
    assert error(written(path, patched("pcm16.wav", 22, b"\xff\xff"))) == "65,535 channels are outside 1 to 256"
    for rate in (0, 999, 192_001, 1_000_000_000):
        message = f"a sample rate of {rate:,} Hz is outside 1,000 to 192,000"
        assert error(written(path, patched("pcm16.wav", 24, struct.pack("<I", rate)))) == message
    assert error(written(path, patched("pcm16.wav", 34, b"\x48"))) == "72 bits per sample are not supported"
    # the 36 bits of FLAC's number of samples
    claimed = bytearray(encoded("x.flac"))
    claimed[21] |= 0x0F
    claimed[22:26] = b"\xff" * 4
    expected = "4,294,967.3 s are more than the limit of 3,600 s; cut it into parts: offset and duration in a manifest"
    assert error(written(tmp_path / "x.flac", bytes(claimed))) == expected


def test_no_memory_is_taken_for_what_a_header_claims(tmp_path):
    claimed = bytearray(encoded("x.flac"))
    claimed[22:26] = struct.pack(">I", 50_000_000)  # 52 minutes
    file = written(tmp_path / "x.flac", bytes(claimed))
    tracemalloc.start()
    message = error(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message.startswith(("truncated: 50,000,000 samples expected, ", "cannot be read as a sound: "))
    assert peak < 20_000_000  # a block of each channel; 50,000,000 samples would take 200 MB or more


@pytest.mark.parametrize("name", FORMATS)
def test_truncated_files_are_refused(tmp_path, name):
    data = encoded(name, tone(1))
    for size in (len(data) // 3, len(data) // 2, len(data) * 9 // 10, len(data) - 3):
        message = error(written(tmp_path / name, data[:size]))
        assert message.startswith(("truncated: ", "cannot be read as a sound: "))


def test_a_truncated_ogg_page_is_found(tmp_path):
    data = encoded("vorbis.ogg", tone(3))
    message = "truncated: the last page of the Ogg file is incomplete"
    assert error(written(tmp_path / "x.ogg", data[: len(data) * 3 // 4])) == message


def test_flac_with_fewer_samples_than_it_claims(tmp_path):
    claimed = bytearray(encoded("x.flac"))
    claimed[22:26] = struct.pack(">I", 4001)
    assert error(written(tmp_path / "x.flac", bytes(claimed))) == "truncated: 4,001 samples expected, 4,000 found"


@pytest.mark.parametrize("size", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFF000])
def test_wav_written_into_a_pipe_has_no_length(tmp_path, size):
    file = written(tmp_path / "x.wav", patched("pcm16.wav", 40, struct.pack("<I", size)))
    assert np.array_equal(read_audio(file).samples, read_audio(written(tmp_path / "y.wav", encoded("pcm16.wav"))).samples)


@pytest.mark.parametrize("name", ["pcm16.wav", "float.wav", "x.aiff"])
def test_a_sound_without_samples(tmp_path, name):
    assert error(written(tmp_path / name, encoded(name, np.zeros((0, 1))))) == "the sound has no samples"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite(tmp_path, value):
    samples = tone(0.1)
    samples[800, 1] = value
    file = written(tmp_path / "x.wav", encoded("float.wav", samples))
    assert error(file) == "the sound has samples that are NaN or infinite"


def test_samples_beyond_one_are_clipped_and_another_scale_is_refused(tmp_path):
    clipped = read_audio(written(tmp_path / "x.wav", encoded("float.wav", np.array([0.5, 1.5, -3.0])))).samples
    assert clipped.tolist() == [0.5, 1.0, -1.0]
    file = written(tmp_path / "y.wav", encoded("float.wav", 32767 * tone(0.1)))
    assert error(file).endswith(" are outside -1 to 1; scale the sound")
    assert error(file).startswith("samples up to 19,")


def test_long_sounds_and_segments_outside_of_a_sound(tmp_path):
    fix = "cut it into parts: offset and duration in a manifest"
    for name in ("pcm16.wav", "x.flac"):
        file = written(tmp_path / name, encoded(name, tone(2)))
        assert error(file, max_seconds=1.5) == f"2.0 s are more than the limit of 1.5 s; {fix}"
        assert len(read_audio(file._replace(start=0.2, duration=1.5), max_seconds=1.5).samples) == 24_000
        message = "the segment starts at 2 s, but the recording ends at 2 s"
        assert error(file._replace(start=2.0)) == message
        message = "the segment ends at 2.6 s, but the recording ends at 2 s"
        assert error(file._replace(start=1.0, duration=1.6)) == message
    for start in (-1.0, float("nan"), float("inf")):
        assert error(file._replace(start=start)) == f"the start must be 0 or more seconds, got {start}"
    for duration in (0.0, -1.0, float("nan")):
        assert error(file._replace(duration=duration)) == f"the duration must be more than 0 seconds, got {duration}"


def test_a_sound_of_unknown_length_has_a_limit(tmp_path, monkeypatch):
    unknown = bytearray(encoded("x.flac", tone(2)))
    unknown[21] &= 0xF0
    unknown[22:26] = bytes(4)  # FLAC from a stream
    file = written(tmp_path / "x.flac", bytes(unknown))
    assert len(read_audio(file).samples) == 2 * RATE
    monkeypatch.setattr(audio, "BLOCK_VALUES", 1000)
    assert "s are more than the limit of 1 s" in error(file, max_seconds=1.0)


FUZZED = ("pcm16.wav", "float.wav", "x.flac", "vorbis.ogg", "x.opus", "x.aiff")


@pytest.mark.parametrize("name", FUZZED)
def test_no_damage_gives_another_error(tmp_path, name, capfd):
    data, rng, num_errors = encoded(name, tone(0.1)), np.random.default_rng(0), 0
    values = [struct.pack("<I", value) for value in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)]
    for number in range(150):
        damaged = bytearray(data)
        if number % 4 == 0:
            damaged = damaged[: rng.integers(1, len(data))]
        elif number % 4 == 1:
            position = int(rng.integers(min(len(data), 120) - 4))
            damaged[position : position + 4] = values[rng.integers(len(values))]
        else:  # bytes of the header, or of all
            for position in rng.integers(min(len(data), 120) if number % 4 == 2 else len(data), size=rng.integers(1, 8)):
                damaged[position] = rng.integers(256)
        if number % 2:
            file = written(tmp_path / name, bytes(damaged))
        else:
            with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
                archive.writestr(name, bytes(damaged))
            file = MediaFile(tmp_path / "x.zip", name)
        try:
            samples = read_audio(file._replace(duration=0.05) if number % 3 == 0 else file).samples
            assert samples.dtype == np.float32 and samples.size and np.abs(samples).max() <= 1
        except DataError as problem:
            num_errors += 1
            assert "0x" not in str(problem) and "\n" not in str(problem)
    assert num_errors > 40
    assert capfd.readouterr().err == ""  # of callbacks that failed


# resampling

RATES = [(44_100, 16_000), (48_000, 16_000), (22_050, 16_000), (8_000, 16_000), (16_000, 44_100), (5_000, 1_999)]


@pytest.mark.parametrize(("rate", "target"), RATES)
def test_resampled_sines_are_sines(rate, target):
    nyquist = min(rate, target) / 2
    time, later = np.arange(rate // 4) / rate, np.arange(-(-(rate // 4) * target // rate)) / target
    edge = round(audio.NUM_ZEROS * max(1, target / rate))  # before and after the sound are zeros
    for frequency in (0.0, 0.1 * nyquist, 0.5 * nyquist, 0.9 * nyquist):
        y = resample(np.cos(2 * np.pi * frequency * time), rate, target)
        assert y.dtype == np.float32 and y.shape == later.shape
        assert np.abs(y - np.cos(2 * np.pi * frequency * later))[edge:-edge].max() < 1e-4


@pytest.mark.parametrize(("rate", "target"), RATES[:5])
def test_resampling_equals_scipy_in_the_passband(rate, target):
    divisor = np.gcd(rate, target)
    time = np.arange(rate // 2 + 7) / rate
    x = np.sin(2 * np.pi * 440 * time) * np.hanning(len(time))
    expected = scipy.signal.resample_poly(x, target // divisor, rate // divisor, window=("kaiser", 10.0))
    y = resample(x, rate, target)
    assert y.shape == expected.shape
    assert np.abs(y - expected).max() < 1e-3


@pytest.mark.parametrize(("rate", "target"), [pair for pair in RATES if pair[0] > pair[1]])
def test_frequencies_above_the_new_limit_vanish(rate, target):
    time, edge = np.arange(rate // 4) / rate, audio.NUM_ZEROS
    for frequency in np.linspace(target / 2, 0.999 * rate / 2, 12):
        y = resample(np.sin(2 * np.pi * frequency * time), rate, target)
        assert 20 * np.log10(np.abs(y[edge:-edge]).max()) < -75


@pytest.mark.parametrize(("rate", "target"), [(8_000, 16_000), (16_000, 44_100)])
def test_no_images_above_the_old_limit(rate, target):
    x = np.sin(2 * np.pi * 0.45 * np.arange(rate)) * np.hanning(rate)  # 0.9 of the limit
    spectrum = np.abs(np.fft.rfft(resample(x, rate, target)))
    frequencies = np.fft.rfftfreq(target, 1 / target)
    assert 20 * np.log10(spectrum[frequencies > rate / 2].max() / spectrum.max()) < -75


def test_phases_equal_the_sum_of_the_docstring():
    """Windows and groups of phases against one sum per output."""
    x = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    up, down = 130, 271  # three groups of phases, of which the last is smaller
    y = resample(x, down, up)
    beta, zeros = 0.1102 * (audio.ATTENUATION - 8.7), audio.NUM_ZEROS
    cutoff = 1 - (audio.ATTENUATION - 7.95) / (2.285 * 2 * zeros * np.pi) / 2
    for n in range(0, len(y), 7):
        distance = (n * down / up - np.arange(-400, 900)) * min(1, up / down)
        inside = np.abs(distance) < zeros
        weights = np.where(
            inside, np.sinc(cutoff * distance) * np.i0(beta * np.sqrt(1 - np.where(inside, distance / zeros, 1) ** 2)), 0
        )
        expected = (weights / weights.sum())[400:] @ np.pad(x, (0, 400))
        assert y[n] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("length", [0, 1, 2, 100, 441, 442])
def test_lengths_of_resampled_sounds(length):
    x = np.ones(length, dtype=np.float32)
    for rate, target in ((44_100, 16_000), (16_000, 44_100), (3, 1), (1, 3)):
        assert len(resample(x, rate, target)) == -(-length * target // rate)
    assert np.array_equal(resample(x, 16_000, 16_000), x)


def test_a_rate_of_zero_is_refused():
    for rates in ((0, 16_000), (16_000, -5)):
        with pytest.raises(UsageError) as caught:
            resample(np.ones(5), *rates)
        assert str(caught.value) == f"sample rate: expected a positive number, got {min(rates)}"


# integers and WAV files


def test_integers_are_rounded_and_clipped():
    values = [0.0, 0.4 / 32768, 0.6 / 32768, -0.6 / 32768, 1.0, -1.0, 2.0, -2.0]
    assert to_int16(np.array(values)).tolist() == [0, 0, 1, -1, 32767, -32768, 32767, -32768]
    every = np.arange(-32768, 32768, dtype=np.int16)
    assert np.array_equal(to_int16(from_int16(every)), every)
    assert from_int16(every).dtype == np.float32 and from_int16(every)[0] == -1


def test_a_wav_file_is_written_and_read(tmp_path):
    path, samples = tmp_path / "x.wav", from_int16(to_int16(tone(0.1)[:, 0]))
    write_wav(path, samples, 22_050)
    with wave.open(str(path)) as file:
        assert file.getparams()[:4] == (1, 2, 22_050, len(samples))
    read, rate = read_audio(MediaFile(path))
    assert rate == 22_050 and np.array_equal(read, samples)
    with pytest.raises(UsageError) as caught:
        write_wav(path, np.array([0.0, np.nan]), 22_050)
    assert str(caught.value) == "samples: some are NaN or infinite"
    assert np.array_equal(read_audio(MediaFile(path)).samples, samples)  # the old file
