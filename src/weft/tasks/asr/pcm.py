"""Samples from a stream of bytes: raw 16-bit PCM, or a WAV file whose header is recognized."""

from __future__ import annotations

import struct

import numpy as np

from weft.errors import DataError
from weft.media.audio import UNKNOWN_BYTES, from_int16, to_int16

WHERE = "standard input"
NOT_PCM = {b"fLaC": "FLAC", b"OggS": "Ogg", b"ID3\x03": "MP3", b"ID3\x04": "MP3", b"FORM": "AIFF", b"\x1aE\xdf\xa3": "Matroska"}
HEAD = 12  # bytes of RIFF, size and WAVE
MAX_HEADER = 1 << 20  # bytes before the samples
PCM, EXTENSIBLE = 1, 0xFFFE  # tags of formats


class PCMReader:
    """Samples at `rate` from pieces of bytes. Channels are averaged; another rate is refused."""

    def __init__(self, rate: int) -> None:
        self.rate, self.num_channels = rate, 1
        self.data, self.has_header = b"", True  # bytes that are not samples yet; until the header is read
        self.left: int | None = None  # bytes of samples; None: until the end

    def push(self, piece: bytes) -> np.ndarray:
        """The samples that are complete after these bytes, int16 (T,)."""
        self.data += piece
        if self.has_header and not self._read_header():
            return np.zeros(0, np.int16)
        return self._samples()

    def finish(self) -> np.ndarray:
        """The samples that are left: of a stream that is shorter than a header."""
        if self.has_header and self.data[:4] == b"RIFF" and len(self.data) >= HEAD:
            raise DataError(WHERE, "the WAV header is incomplete")
        self.has_header = False
        return self._samples()

    def _samples(self) -> np.ndarray:
        size = 2 * self.num_channels
        length = len(self.data) if self.left is None else min(self.left, len(self.data))
        data, rest = self.data[: length // size * size], self.data[length // size * size :]
        if self.left is not None:
            self.left -= len(data)
            rest = rest if self.left >= size else b""  # chunks after the samples
        self.data = rest
        samples = np.frombuffer(data, "<i2").astype(np.int16)
        if self.num_channels == 1:
            return samples
        return to_int16(from_int16(samples).reshape(-1, self.num_channels).mean(axis=1, dtype=np.float32))

    def _read_header(self) -> bool:
        """Read the header, if there is one; whether the samples have started."""
        if len(self.data) < HEAD:
            return False
        if (name := NOT_PCM.get(self.data[:4])) is not None:
            fix = f"decode it: ffmpeg -i FILE -f s16le -ac 1 -ar {self.rate} - | weft predict RUN --stream"
            raise DataError(WHERE, f"{name} is not supported in a stream", fix)
        self.has_header = self.data[:4] == b"RIFF" and self.data[8:HEAD] == b"WAVE" and not self._read_chunks()
        return not self.has_header

    def _read_chunks(self) -> bool:
        """Read the chunks before the samples; whether all of them have arrived."""
        position, format_data = HEAD, b""
        while len(self.data) >= position + 8:
            name, size = self.data[position : position + 4], int.from_bytes(self.data[position + 4 : position + 8], "little")
            position += 8
            if name == b"data":
                self._check_format(format_data)
                self.left = size if 0 < size < UNKNOWN_BYTES else None
                self.data = self.data[position:]
                return True
            if size > MAX_HEADER:
                raise DataError(WHERE, f"a WAV header of more than {MAX_HEADER:,} bytes")
            format_data = self.data[position : position + size] if name == b"fmt " else format_data
            position += size + size % 2
        return False

    def _check_format(self, data: bytes) -> None:
        if len(data) < 16:
            raise DataError(WHERE, "the WAV header has no format")
        tag, channels, rate, _, _, bits = struct.unpack("<HHIIHH", data[:16])
        if tag == EXTENSIBLE and len(data) >= 26:
            tag = int.from_bytes(data[24:26], "little")
        if (tag, bits) != (PCM, 16) or not channels:
            raise DataError(WHERE, f"expected 16-bit PCM, got format {tag} with {bits} bits", "convert it first")
        if rate != self.rate:
            fix = f"resample it first: ffmpeg -i FILE -f s16le -ac 1 -ar {self.rate} -"
            raise DataError(WHERE, f"{rate:,} Hz, but the run reads {self.rate:,} Hz (data.sample_rate)", fix)
        self.num_channels = channels
