"""Spoken numbers from a formant synthesizer, for demos and examples without recordings.

A word is a sequence of phones, a phone a target of three formants and of the strength of voice and noise. The targets are
smoothed over time, so that neighbors color each other. Voice is a sum of harmonics whose amplitudes are the product of four
resonances; the noise of fricatives and bursts is white noise, shaped in the frequency domain. Speakers differ in pitch, in the
size of their vocal tract, in rate and in breath; rooms differ in noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

RATE = 8_000  # Hz
HOP = 40  # samples per frame of the parameters: 5 ms
F4 = 3_500.0  # Hz: the fourth formant of all phones
BANDWIDTHS = (70.0, 100.0, 160.0, 220.0)  # Hz, of the formants
FORMANT_SMOOTHING, STRENGTH_SMOOTHING = 13, 5  # frames


class Phone(NamedTuple):
    """The targets of a phone."""

    formants: tuple[float, float, float]  # Hz
    seconds: float
    voice: float = 0.0  # strength from 0 to 1
    noise: float = 0.0
    noise_band: tuple[float, float] = (2000.0, 2000.0)  # center and width in Hz


def _vowel(first: float, second: float, third: float, seconds: float = 0.11) -> Phone:
    return Phone((first, second, third), seconds, voice=1.0)


CLOSURE = Phone((250, 1500, 2500), 0.045)
# formants of vowels: men in Peterson and Barney (1952)
PHONES: dict[str, Phone] = {
    "IY": _vowel(270, 2290, 3010), "IH": _vowel(390, 1990, 2550, 0.08), "EH": _vowel(530, 1840, 2480, 0.09),
    "AH": _vowel(640, 1190, 2390, 0.08), "AO": _vowel(570, 840, 2410), "UW": _vowel(300, 870, 2240),
    "ER": _vowel(490, 1350, 1690), "AA": _vowel(730, 1090, 2440, 0.09), "OH": _vowel(450, 900, 2400, 0.09),
    "W": Phone((290, 610, 2150), 0.06, voice=0.6), "R": Phone((310, 1060, 1380), 0.06, voice=0.6),
    "L": Phone((380, 880, 2575), 0.06, voice=0.6), "N": Phone((250, 1500, 2500), 0.07, voice=0.35),
    "S": Phone((300, 1600, 2600), 0.1, noise=0.5, noise_band=(3800, 900)),
    "Z": Phone((300, 1600, 2600), 0.08, voice=0.2, noise=0.35, noise_band=(3800, 900)),
    "F": Phone((300, 1100, 2200), 0.09, noise=0.16, noise_band=(2600, 3000)),
    "V": Phone((300, 1100, 2200), 0.06, voice=0.3, noise=0.08, noise_band=(2600, 3000)),
    "TH": Phone((300, 1500, 2600), 0.09, noise=0.12, noise_band=(3000, 2600)),
    "HH": Phone((500, 1500, 2500), 0.05, noise=0.15, noise_band=(1500, 1500)),
    "T*": Phone((300, 1700, 2600), 0.03, noise=0.5, noise_band=(3500, 1500)),
    "K*": Phone((300, 1900, 2400), 0.03, noise=0.5, noise_band=(1900, 700)),
    "D*": Phone((300, 1700, 2600), 0.02, voice=0.3, noise=0.25, noise_band=(3300, 1500)),
    "T": CLOSURE, "K": CLOSURE, "D": CLOSURE._replace(voice=0.12),
}  # fmt: skip
PARTS = {"AY": "AA IH", "EY": "EH IY", "OW": "OH UW", "T": "T T*", "K": "K K*", "D": "D D*"}  # phones with two targets
WORDS: dict[str, str] = {
    "zero": "Z IH R OW", "one": "W AH N", "two": "T UW", "three": "TH R IY", "four": "F AO R", "five": "F AY V",
    "six": "S IH K S", "seven": "S EH V AH N", "eight": "EY T", "nine": "N AY N", "ten": "T EH N",
    "eleven": "IH L EH V AH N", "twelve": "T W EH L V", "thirteen": "TH ER T IY N", "fourteen": "F AO R T IY N",
    "fifteen": "F IH F T IY N", "sixteen": "S IH K S T IY N", "seventeen": "S EH V AH N T IY N", "eighteen": "EY T IY N",
    "nineteen": "N AY N T IY N", "twenty": "T W EH N T IY", "thirty": "TH ER T IY", "forty": "F AO R T IY",
    "fifty": "F IH F T IY", "sixty": "S IH K S T IY", "seventy": "S EH V AH N T IY", "eighty": "EY T IY",
    "ninety": "N AY N T IY", "hundred": "HH AH N D R AH D",
}  # fmt: skip


@dataclass(frozen=True)
class Speaker:
    """How somebody speaks."""

    name: str
    pitch: float  # Hz
    tract: float  # factor of the formants: small vocal tracts have high ones
    rate: float  # factor of the durations
    breath: float  # noise in the voice


def speaker(name: str, rng: np.random.Generator) -> Speaker:
    """A random speaker; high voices tend to have small vocal tracts."""
    size = rng.uniform()
    return Speaker(
        name,
        pitch=90 + 130 * size + rng.uniform(-10, 10),
        tract=0.92 + 0.22 * size + rng.uniform(-0.04, 0.04),
        rate=rng.uniform(0.75, 1.2),
        breath=rng.uniform(0.0, 0.05),
    )


class _Tracks(NamedTuple):
    """The parameters of N frames."""

    formants: np.ndarray  # (N, 4)
    voice: np.ndarray  # (N,)
    noise: np.ndarray  # (N,)
    noise_band: np.ndarray  # (N, 2)


def _smooth(values: np.ndarray, width: int) -> np.ndarray:
    """The weighted mean of `width` frames around each, (N, ...)."""
    window = np.hanning(width + 2)[1:-1]
    padded = np.concatenate([np.repeat(values[:1], width // 2, 0), values, np.repeat(values[-1:], width // 2, 0)])
    columns = padded.reshape(len(padded), -1).T
    smooth = np.stack([np.convolve(column, window / window.sum(), "valid") for column in columns], 1)
    return smooth.reshape(values.shape)


def _phones(words: Sequence[str], rng: np.random.Generator) -> list[Phone]:
    """The phones of an utterance, with pauses around it and sometimes between words."""
    names = [part for word in words for name in [*WORDS[word].split(), "|"] for part in PARTS.get(name, name).split()]
    phones = [CLOSURE._replace(seconds=rng.uniform(0.0, 0.06))]
    for name in names[:-1]:
        if name == "|":
            phones.append(CLOSURE._replace(seconds=max(0.0, rng.uniform(-0.1, 0.12))))
        else:
            phones.append(PHONES[name]._replace(seconds=PHONES[name].seconds * rng.uniform(0.75, 1.3)))
    return [*phones, CLOSURE._replace(seconds=rng.uniform(0.15, 0.3))]


def _tracks(phones: Sequence[Phone], who: Speaker, rng: np.random.Generator) -> _Tracks:
    counts = [round(phone.seconds * who.rate * RATE / HOP) for phone in phones]
    voiced = np.array([[*phone.formants, F4] for phone in phones]) * rng.normal(1.0, 0.03, (len(phones), 1))
    rows = np.repeat(np.arange(len(phones)), counts)
    strengths = np.array([[phone.voice, phone.noise] for phone in phones])[rows]
    smooth_strengths = _smooth(strengths, STRENGTH_SMOOTHING)
    return _Tracks(
        _smooth(voiced[rows], FORMANT_SMOOTHING) * who.tract,
        smooth_strengths[:, 0],
        smooth_strengths[:, 1],
        np.array([phone.noise_band for phone in phones])[rows] * who.tract,
    )


def _gain(frequencies: np.ndarray, formants: np.ndarray) -> np.ndarray:
    """The amplitude of the vocal tract at frequencies (N, K), for formants (N, 4)."""
    gain = np.ones_like(frequencies)
    for index, width in enumerate(BANDWIDTHS):
        center = formants[:, index : index + 1]
        gain *= center**2 / np.sqrt((center**2 - frequencies**2) ** 2 + (width * frequencies) ** 2)
    return gain


def _voice(tracks: _Tracks, who: Speaker, rng: np.random.Generator) -> np.ndarray:
    """The sum of the harmonics, (N * HOP,)."""
    frames = len(tracks.voice)
    drift = _smooth(rng.normal(0, 1, frames), 61) * 0.3
    pitch = who.pitch * np.linspace(1.1, 0.85, frames) * (1 + 0.1 * drift)
    numbers = np.arange(1, int(0.48 * RATE / pitch.min()) + 1)
    harmonics = pitch[:, None] * numbers  # (N, K)
    amplitudes = _gain(harmonics, tracks.formants) * (harmonics < 0.48 * RATE) / numbers * tracks.voice[:, None]
    cycles = np.cumsum(np.repeat(pitch, HOP)) / RATE
    fundamental = np.exp(2j * np.pi * cycles).reshape(frames, HOP)
    ramp, changes = np.arange(HOP) / HOP, np.diff(amplitudes, axis=0, append=amplitudes[-1:])
    sound, harmonic = np.zeros((frames, HOP)), np.ones_like(fundamental)
    for index in range(len(numbers)):
        harmonic *= fundamental  # e to the power of i times the phase of harmonic number index + 1
        sound += (amplitudes[:, index : index + 1] + changes[:, index : index + 1] * ramp) * harmonic.imag
    return sound.reshape(-1)


def _noise(tracks: _Tracks, who: Speaker, rng: np.random.Generator) -> np.ndarray:
    """The noise of fricatives, bursts and breath, (N * HOP,)."""
    frames, size = len(tracks.noise), 2 * HOP
    window = np.hanning(size + 1)[:-1]  # halves of neighbors sum to 1
    spectra = np.fft.rfft(rng.normal(0, 1, (frames + 1, size)))
    bins = np.fft.rfftfreq(size, 1 / RATE)
    rows = np.minimum(np.arange(frames + 1), frames - 1)
    center, width = tracks.noise_band[rows, :1], tracks.noise_band[rows, 1:]
    shape = tracks.noise[rows, None] / (1 + ((bins - center) / (width / 2)) ** 2)
    breath = (
        who.breath * tracks.voice[rows, None] * np.minimum(3.0, _gain(np.tile(bins, (frames + 1, 1)), tracks.formants[rows]))
    )
    pieces = np.fft.irfft(spectra * (shape + breath)) * window
    sound = np.zeros((frames + 2) * HOP)
    for half in range(2):  # pieces that do not overlap
        flat = pieces[half::2].reshape(-1)
        sound[half * HOP : half * HOP + len(flat)] += flat
    return sound[HOP : (frames + 1) * HOP]


def speak(
    words: Sequence[str], who: Speaker, rng: np.random.Generator, *, noise: tuple[float, float] = (8.0, 25.0)
) -> np.ndarray:
    """An utterance as samples in [-1, 1], float32 (T,). The ratio of signal to noise is uniform in `noise`, in dB."""
    tracks = _tracks(_phones(words, rng), who, rng)
    sound = _voice(tracks, who, rng) + _noise(tracks, who, rng)
    power = float(np.square(sound).mean())
    spectrum = np.fft.rfft(rng.normal(0, 1, len(sound)))
    color = np.linspace(1.0, rng.uniform(0.1, 1.0), len(spectrum))  # from white to low
    background = np.fft.irfft(spectrum * color, len(sound))
    background *= np.sqrt(power / np.square(background).mean() / 10 ** (rng.uniform(*noise) / 10))
    mixed = sound + background
    scaled: np.ndarray = mixed / np.abs(mixed).max() * rng.uniform(0.2, 0.8)
    return scaled.astype(np.float32)
