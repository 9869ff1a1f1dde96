"""The [data] section of speech recognition, and how recordings are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from weft.data.columns import Name
from weft.data.manifest import ManifestColumns
from weft.errors import DataError
from weft.media.audio import MAX_PEAK, SAMPLE_RATE_LIMITS, Audio, read_audio, resample, to_int16, wav_bytes
from weft.media.files import MediaFile
from weft.tasks.media_data import MediaDataConfig

FRAMES_PER_SECOND = 100
FULL_SCALE = 32_768  # of 16-bit samples
MIN_FRAMES = 4  # the least that becomes a position of an encoder


@dataclass(frozen=True)
class AudioReader:
    """Reads recordings as 16-bit samples, a hundredth of a second per frame."""

    rate: int
    max_seconds: float
    skips_errors: bool = False
    dtype: str = "<i2"

    @property
    def width(self) -> int:
        return self.rate // FRAMES_PER_SECOND

    def read(self, file: MediaFile) -> np.ndarray:
        return self._frames(read_audio(file, max_seconds=self.max_seconds), str(file))

    def from_memory(self, value: object) -> np.ndarray:
        return self._frames(self.waveform(value, "input"), "input")

    def waveform(self, value: object, where: str) -> Audio:
        """Samples in [-1, 1] or of 16 bits at the rate of the run, or a tuple of samples and their rate."""
        samples, rate = value if isinstance(value, tuple) and len(value) == 2 else (value, self.rate)
        array = np.asarray(samples)
        if array.ndim != 1 or array.dtype.kind not in "fi" or not isinstance(rate, int | np.integer):
            raise DataError(where, "expected a path, an array of samples, or a tuple of samples and their rate")
        if not len(array) or not np.isfinite(array).all():
            raise DataError(where, "the samples are empty or not finite")
        low, high = SAMPLE_RATE_LIMITS
        if not low <= rate <= high:
            raise DataError(where, f"a sample rate of {rate:,} Hz is outside {low:,} to {high:,}")
        if len(array) > self.max_seconds * rate:
            raise self._too_long(where, len(array) / rate)
        scale, limit = (FULL_SCALE, 1.0) if array.dtype.kind == "i" else (1, MAX_PEAK)
        peak = float(np.abs(array.astype(np.float32)).max()) / scale
        if peak > limit:
            problem = f"samples up to {peak * scale:,.0f} are outside -{scale:,} to {scale:,}"
            raise DataError(where, problem, "scale the sound")
        return Audio((array.astype(np.float32) / scale).clip(-1, 1), int(rate))

    def _frames(self, audio: Audio, where: str) -> np.ndarray:
        samples = to_int16(resample(audio.samples, audio.rate, self.rate))
        num_frames = -(-len(samples) // self.width)
        if num_frames < MIN_FRAMES:
            raise DataError(where, f"{len(audio.samples) / audio.rate:.3f} s are too short to recognize")
        return np.pad(samples, (0, num_frames * self.width - len(samples))).reshape(num_frames, self.width)

    def _too_long(self, where: str, seconds: float) -> DataError:
        fix = "cut it into parts (offset and duration in a manifest), or increase data.max_seconds"
        return DataError(where, f"{seconds:,.0f} s are more than data.max_seconds ({self.max_seconds:g})", fix)

    def provenance(self) -> dict[str, Any]:
        return {"sample_rate": self.rate, "max_seconds": self.max_seconds, "on_error": self.skips_errors}


class SpeechDataConfig(MediaDataConfig):
    """Recordings and their transcripts, listed in a manifest."""

    speaker_column: Name | None = None
    """Column or JSON key of the speaker, or a 1-based index, for checks of the splits."""
    sample_rate: int = Field(16_000, ge=2_000, le=192_000, multiple_of=100)
    """Samples per second; other rates are resampled."""
    max_seconds: float = Field(60.0, gt=0, le=3600)
    """Maximum length of a recording."""

    def reader(self) -> AudioReader:
        return AudioReader(self.sample_rate, self.max_seconds, self.on_error == "skip")

    def file_of(self, value: object, where: str) -> str | bytes:
        """The path of a recording, or a WAV file of samples."""
        if isinstance(value, str | Path):
            return super().file_of(value, where)
        if self.root is not None:
            raise DataError(where, "expected a path, because data.root is set", "remove data.root")
        return wav_bytes(*self.reader().waveform(value, where))

    def manifest_columns(self) -> ManifestColumns:
        return super().manifest_columns()._replace(group=self.speaker_column)

    def rows(self) -> str:
        return "recordings"
