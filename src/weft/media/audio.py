"""Sounds as arrays: reading files, resampling, and writing WAV files.

PCM in WAV files is read by the standard library, all other formats by the package soundfile, which is imported on use.
Files are decoded in blocks, so that the memory depends on what a file holds and not on what its header claims.
"""

from __future__ import annotations

import io
import math
import struct
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from weft.errors import DataError, UsageError
from weft.files import write_bytes
from weft.media.files import MediaFile, import_extra

SAMPLE_RATE_LIMITS = (1_000, 192_000)  # Hz
MAX_CHANNELS = 256
MAX_SECONDS = 3600.0
MAX_OVERSHOOT = 0.5  # seconds that a segment may end after its recording, as in Kaldi
MAX_PEAK = 8.0  # decoders of compressed sounds go a little beyond 1; more is another scale
BLOCK_VALUES = 1 << 20  # decoded at once, over all channels
MAX_CHUNKS = 1000  # of a WAV or AIFF file, until its samples are found
UNKNOWN_BYTES = 0x7FFF0000  # programs that write WAV into a pipe claim at least this many bytes

NUM_ZEROS = 64  # zero crossings of the sinc on each side
ATTENUATION = 90.0  # dB
PHASES_AT_ONCE = 64


class Audio(NamedTuple):
    """A sound with one channel."""

    samples: np.ndarray  # float32 (T,) in [-1, 1]
    rate: int  # Hz


class Decoder(Protocol):
    """An open sound."""

    rate: int
    num_channels: int
    num_frames: int | None  # by the header; None: unknown

    def seek(self, frame: int) -> None: ...

    def read(self, num_frames: int) -> np.ndarray:
        """The next frames, float32 (frames, channels); fewer at the end."""
        ...


class WaveDecoder:
    """PCM in a WAV file."""

    def __init__(self, file: MediaFile, stream: io.FileIO | io.BytesIO) -> None:
        self.wave = wave.Wave_read(stream)
        self.rate, self.num_channels = self.wave.getframerate(), self.wave.getnchannels()
        self.width = self.wave.getsampwidth()
        if self.width > 4:
            raise DataError(str(file), f"{8 * self.width} bits per sample are not supported")
        available = (_num_bytes(stream) - stream.tell()) // (self.width * self.num_channels)
        self.num_frames: int | None = min(self.wave.getnframes(), available)

    def seek(self, frame: int) -> None:
        self.wave.setpos(frame)

    def read(self, num_frames: int) -> np.ndarray:
        data = self.wave.readframes(num_frames)
        frame_bytes = self.width * self.num_channels
        data = data[: len(data) // frame_bytes * frame_bytes]
        if self.width == 1:  # the only width without a sign
            values: np.ndarray = np.frombuffer(data, np.uint8).astype(np.float32) / 128 - 1
        else:  # the bytes of a sample are the high bytes of an int32
            padded = np.zeros((len(data) // self.width, 4), np.uint8)
            padded[:, 4 - self.width :] = np.frombuffer(data, np.uint8).reshape(-1, self.width)
            values = padded.view("<i4")[:, 0].astype(np.float32) / np.float32(1 << 31)
        return values.reshape(-1, self.num_channels)


class SoundFileDecoder:
    """Any format of libsndfile: WAV, FLAC, Ogg Vorbis and Opus, MP3, AIFF, AU ..."""

    def __init__(self, file: MediaFile, stream: io.FileIO | io.BytesIO) -> None:
        soundfile = import_extra("soundfile", "soundfile", str(file))
        # a descriptor has no name, so that the type is known by the content alone
        is_open_file = isinstance(stream, io.FileIO)
        try:
            self.sound: Any = soundfile.SoundFile(stream.fileno() if is_open_file else stream, closefd=False)
        except soundfile.LibsndfileError as error:  # its text would contain the address of an object
            raise DataError(str(file), f"cannot be read as a sound: {error.error_string.rstrip('.')}") from None
        self.rate, self.num_channels = self.sound.samplerate, self.sound.channels
        is_known = self.sound.seekable() and 0 <= self.sound.frames < 1 << 48
        self.num_frames: int | None = self.sound.frames if is_known else None
        # after each read, soundfile seeks to where it is: that fails if the length is unknown, and MP3 loses its bit reservoir
        self.sound.seekable = lambda: False
        if self.sound.format == "OGG" and _has_truncated_page(stream):
            raise DataError(str(file), "truncated: the last page of the Ogg file is incomplete")

    def seek(self, frame: int) -> None:
        # MP3 stores bits of a sample in earlier blocks: decode them as well
        skipped = min(frame, self.rate if self.sound.format == "MP3" else 0)
        self.sound.seek(frame - skipped)
        self.sound.read(skipped)

    def read(self, num_frames: int) -> np.ndarray:
        block: np.ndarray = self.sound.read(num_frames, dtype="float32", always_2d=True)
        return block


class _SafeBytes(io.BytesIO):
    """Bytes for libsndfile, which may seek before the start of a damaged file and cannot receive an exception."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.size = len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return super().seek(max(0, offset + (0, self.tell(), self.size)[whence]))


def _num_bytes(stream: io.FileIO | io.BytesIO) -> int:
    """The size of a stream, which stays at its position."""
    position = stream.tell()
    size = stream.seek(0, io.SEEK_END)
    stream.seek(position)
    return size


def _refuse_truncated_chunk(file: MediaFile, stream: io.FileIO | io.BytesIO) -> None:
    """Refuse a WAV or AIFF file with fewer samples than it claims: the decoders would return the part that is there."""
    stream.seek(0)
    form, size = stream.read(12), _num_bytes(stream)
    if form[:4] not in {b"RIFF", b"FORM"}:
        return
    for _ in range(MAX_CHUNKS):
        chunk = stream.read(8)
        length = int.from_bytes(chunk[4:], "little" if form[:4] == b"RIFF" else "big")
        available = size - stream.tell()
        if len(chunk) < 8:
            return
        if chunk[:4] in {b"data", b"SSND"} and available < length < UNKNOWN_BYTES:
            raise DataError(str(file), f"truncated: the header claims {length:,} bytes of samples, the file has {available:,}")
        stream.seek(length + length % 2, io.SEEK_CUR)


def _has_truncated_page(stream: io.FileIO | io.BytesIO) -> bool:
    """Whether the last page of an Ogg file is longer than the rest of the file."""
    position, size = stream.tell(), _num_bytes(stream)
    stream.seek(max(0, size - (1 << 17)))  # a page has less than 65,308 bytes
    tail = stream.read(1 << 17)
    stream.seek(position)
    page = tail[max(0, tail.rfind(b"OggS")) :]
    num_segments = page[26] if len(page) > 26 else 255
    return len(page) < 27 + num_segments or len(page) < 27 + num_segments + sum(page[27 : 27 + num_segments])


def _is_pcm_wave(head: bytes) -> bool:
    """Whether the standard library reads a file, by its first bytes."""
    tag = head.find(b"fmt ", 12) + 8
    return head[:4] == b"RIFF" and head[8:12] == b"WAVE" and tag >= 20 and head[tag : tag + 2] == b"\x01\x00"


@contextmanager
def _decoding(file: MediaFile) -> Iterator[None]:
    """Errors of the decoders as DataError."""
    try:
        yield
    except (wave.Error, EOFError, struct.error, OSError, RuntimeError, ValueError, TypeError, ArithmeticError) as error:
        reason = f": {error}" if str(error) else ""
        raise DataError(str(file), f"cannot be read as a sound{reason}".rstrip(".")) from None


@contextmanager
def _open_decoder(file: MediaFile) -> Iterator[Decoder]:
    with file.stream() as stream, _decoding(file):
        _refuse_truncated_chunk(file, stream)
        stream.seek(0)
        head = stream.read(4096)
        if _is_pcm_wave(head):
            stream.seek(0)
            yield WaveDecoder(file, stream)
            return
        if isinstance(stream, io.BytesIO):
            stream = _SafeBytes(stream.getvalue())
        stream.seek(0)
        decoder = SoundFileDecoder(file, stream)
        with decoder.sound:
            yield decoder


def read_audio(file: MediaFile, *, max_seconds: float = MAX_SECONDS) -> Audio:
    """The samples of a sound, or of its part from `file.start`, with the mean of all channels."""
    _check_segment(file)
    with _open_decoder(file) as decoder:
        low, high = SAMPLE_RATE_LIMITS
        if not low <= decoder.rate <= high:
            raise DataError(str(file), f"a sample rate of {decoder.rate:,} Hz is outside {low:,} to {high:,}")
        if not 1 <= decoder.num_channels <= MAX_CHANNELS:
            raise DataError(str(file), f"{decoder.num_channels:,} channels are outside 1 to {MAX_CHANNELS}")
        first, last = _frame_range(file, decoder)
        max_frames = int(max_seconds * decoder.rate)
        if last is not None and last - first > max_frames:
            raise _too_long(file, (last - first) / decoder.rate, max_seconds)
        if first:
            decoder.seek(first)
        blocks, num_frames = [], 0
        for block in _blocks(file, decoder, None if last is None else last - first):
            blocks.append(block)
            num_frames += len(block)
            if num_frames > max_frames:  # only if the header does not know the length
                raise _too_long(file, num_frames / decoder.rate, max_seconds)
    if last is not None and num_frames < last - first:
        raise DataError(str(file), f"truncated: {last - first:,} samples expected, {num_frames:,} found")
    if not num_frames:
        raise DataError(str(file), "the sound has no samples")
    return Audio(np.concatenate(blocks), decoder.rate)


def _too_long(file: MediaFile, seconds: float, limit: float) -> DataError:
    problem = f"{seconds:,.1f} s are more than the limit of {limit:,g} s"
    return DataError(str(file), problem, "cut it into parts: offset and duration in a manifest")


def _check_segment(file: MediaFile) -> None:
    if not (math.isfinite(file.start) and file.start >= 0):
        raise DataError(str(file), f"the start must be 0 or more seconds, got {file.start}")
    if file.duration is not None and not (math.isfinite(file.duration) and file.duration > 0):
        raise DataError(str(file), f"the duration must be more than 0 seconds, got {file.duration}")


def _frame_range(file: MediaFile, decoder: Decoder) -> tuple[int, int | None]:
    """The first frame of the part that is read, and the one after its last; None: read to the end."""
    rate, length = decoder.rate, decoder.num_frames
    first = round(file.start * rate)
    last = None if file.duration is None else round((file.start + file.duration) * rate)
    if length is None:
        return first, last
    if length == 0:
        raise DataError(str(file), "the sound has no samples")
    if first >= length:
        raise DataError(str(file), f"the segment starts at {file.start:g} s, but the recording ends at {length / rate:g} s")
    if last is not None and last > length + MAX_OVERSHOOT * rate:
        raise DataError(str(file), f"the segment ends at {last / rate:g} s, but the recording ends at {length / rate:g} s")
    return first, length if last is None else min(last, length)


def _blocks(file: MediaFile, decoder: Decoder, num_frames: int | None) -> Iterator[np.ndarray]:
    """The next frames with their channels averaged, float32 (T,) each; up to the end if `num_frames` is None."""
    size = max(1, BLOCK_VALUES // decoder.num_channels)
    while num_frames is None or num_frames > 0:
        block = decoder.read(size if num_frames is None else min(size, num_frames))
        if not len(block):
            return
        if not np.isfinite(block).all():
            raise DataError(str(file), "the sound has samples that are NaN or infinite")
        peak = float(np.abs(block).max())
        if peak > MAX_PEAK:
            raise DataError(str(file), f"samples up to {peak:,.1f} are outside -1 to 1", "scale the sound")
        num_frames = None if num_frames is None else num_frames - len(block)
        yield np.clip(block.mean(axis=1, dtype=np.float32), -1, 1)


def resample(samples: np.ndarray, rate: int, target: int) -> np.ndarray:
    """Samples (T,) of `rate` Hz at `target` Hz, float32 (ceil(T * target / rate),), without the frequencies that alias.

        y_n = sum_k x_k h(n * rate / target - k),  h(t) = c sinc(c t) kaiser(t)

    Outputs that are `up` apart have the same weights (a phase), and their inputs are `down` apart. So phases are computed by
    matrix products of windows of x.
    """
    if rate <= 0 or target <= 0:
        raise UsageError("sample rate", f"expected a positive number, got {min(rate, target)}")
    samples = np.ascontiguousarray(samples, dtype=np.float32)
    if rate == target or not len(samples):
        return samples
    up, down = target // math.gcd(rate, target), rate // math.gcd(rate, target)
    few = max(1, PHASES_AT_ONCE // up)  # a product with several columns is much quicker than one with a vector
    up, down = up * few, down * few
    num_outputs = -(-len(samples) * up // down)
    num_rows = -(-num_outputs // up)
    half = _half_width(up, down)
    padded = np.pad(samples, (half, half + (num_rows + 1) * down - len(samples) + 1))
    outputs = np.empty((num_rows, up), dtype=np.float32)
    for first in range(0, up, PHASES_AT_ONCE):
        weights = _weights(up, down, first)
        windows = sliding_window_view(padded[first * down // up :], len(weights))[::down]
        for row in range(0, num_rows, 4096):  # BLAS copies the windows
            rows = slice(row, min(row + 4096, num_rows))
            outputs[rows, first : first + PHASES_AT_ONCE] = windows[rows] @ weights
    return outputs.reshape(-1)[:num_outputs]


def _half_width(up: int, down: int) -> int:
    """Inputs on each side of an output."""
    return math.ceil(NUM_ZEROS * max(1.0, down / up)) + 1


@lru_cache(maxsize=64)
def _weights(up: int, down: int, first: int) -> np.ndarray:
    """The weights of a window of inputs in the phases from `first`, float32 (window, phases)."""
    phases = np.arange(first, min(first + PHASES_AT_ONCE, up))
    half, origin = _half_width(up, down), first * down // up
    width = 2 * half + 1 + int(phases[-1]) * down // up - origin
    # distance of each input from the output, in samples of the lower of the two rates; exact integers before the division
    distance = (phases * down - (np.arange(width)[:, None] - half + origin) * up) / max(up, down)
    # Kaiser's formulas: the shape for the attenuation, and the width of the transition, which ends at the Nyquist frequency
    beta = 0.1102 * (ATTENUATION - 8.7)
    cutoff = 1 - (ATTENUATION - 7.95) / (2.285 * 2 * NUM_ZEROS * np.pi) / 2
    window = np.i0(beta * np.sqrt(np.clip(1 - (distance / NUM_ZEROS) ** 2, 0, None))) * (np.abs(distance) < NUM_ZEROS)
    weights = window * np.sinc(cutoff * distance)
    return np.ascontiguousarray(weights / weights.sum(0), dtype=np.float32)


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Samples in [-1, 1] as 16-bit integers, rounded; what is beyond is clipped."""
    return np.clip(np.rint(np.asarray(samples, dtype=np.float32) * 32768), -32768, 32767).astype(np.int16)


def from_int16(samples: np.ndarray) -> np.ndarray:
    """16-bit integers as float32 samples in [-1, 1)."""
    return np.asarray(samples, dtype=np.int16).astype(np.float32) / 32768


def wav_bytes(samples: np.ndarray, rate: int) -> bytes:
    """Samples (T,) in [-1, 1] as a WAV file with one channel of 16-bit PCM."""
    if not np.isfinite(samples).all():
        raise UsageError("samples", "some are NaN or infinite")
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(to_int16(samples).astype("<i2").tobytes())
    return data.getvalue()


def write_wav(path: Path, samples: np.ndarray, rate: int) -> None:
    """Write samples (T,) in [-1, 1] as a WAV file with one channel of 16-bit PCM."""
    write_bytes(path, wav_bytes(samples, rate), user_path=True)
