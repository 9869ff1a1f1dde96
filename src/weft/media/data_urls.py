"""Small copies of sounds and images as data: URLs, which an HTML page contains instead of loading them.

Sounds are WAV files with 8 bits per sample by the mu-law of G.711, which browsers play without a further decoder.
"""

from __future__ import annotations

import base64
import io
import struct

import numpy as np

from weft.media.audio import Audio, resample, to_int16
from weft.media.files import import_extra

RATES = (8_000, 16_000)  # Hz; Chromium plays nothing below 3 kHz
JPEG_QUALITY = 80
MU_LAW = 7  # the tag of the format in a WAV file
BIAS, MAX_MAGNITUDE = 132, 32_635  # of G.711, for 16-bit samples


def _url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def mu_law(samples: np.ndarray) -> np.ndarray:
    """16-bit samples (T,) as the 8-bit codes of G.711: sign, three bits of exponent, four of mantissa, all inverted."""
    values = samples.astype(np.int32)
    magnitudes = np.minimum(np.abs(values), MAX_MAGNITUDE) + BIAS
    exponents = np.frexp(magnitudes.astype(np.float64))[1] - 8  # the highest bit of a magnitude is from 7 to 14
    mantissas = magnitudes >> (exponents + 3) & 0x0F
    codes: np.ndarray = (~((values < 0) << 7 | exponents << 4 | mantissas) & 0xFF).astype(np.uint8)
    return codes


def sound_url(audio: Audio) -> str:
    """A sound as a WAV file with 8 bits per sample, and with 8,000 to 16,000 of them per second."""
    rate = min(max(audio.rate, RATES[0]), RATES[1])
    data = mu_law(to_int16(resample(audio.samples, audio.rate, rate))).tobytes()
    chunks = (
        b"fmt " + struct.pack("<IHHIIHHH", 18, MU_LAW, 1, rate, rate, 1, 8, 0)
        + b"fact" + struct.pack("<II", 4, len(data))
        + b"data" + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
    )  # fmt: skip
    return _url("audio/wav", b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)


def picture_url(pixels: np.ndarray) -> str:
    """Pixels (H, W, 3), uint8, as a PNG or JPEG file, whichever is smaller."""
    image = import_extra("PIL.Image", "Pillow", "images").fromarray(pixels)
    contents = dict[str, bytes]()
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": JPEG_QUALITY})):
        with io.BytesIO() as stream:
            image.save(stream, format=kind, **options)
            contents[kind] = stream.getvalue()
    kind = min(contents, key=lambda name: len(contents[name]))
    return _url(f"image/{kind}", contents[kind])
