"""The utterances of a stream, from pause to pause.

A pause is time in which CTC writes nothing but blanks. It ends an utterance: all states of the model start again with the next
sound, so the text of each utterance equals that of its part of the recording. Silence between utterances is not recognized,
because the normalization of features would make it as loud as speech.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.decode.prediction import Prediction
from weft.errors import UsageError
from weft.tasks.asr.data import FRAMES_PER_SECOND
from weft.tasks.asr.pcm import PCMReader
from weft.tasks.asr.streaming import SpeechStream, as_int16
from weft.tasks.spec import StreamedText

if TYPE_CHECKING:
    from weft.runs.run import Run

NO_SAMPLES = np.zeros(0, np.int16)
BLOCKS_PER_SECOND = 2  # an utterance ends after a whole number of blocks, so that it does not depend on the pieces
PREROLL_FRAMES = 30  # before a sound that start an utterance
QUIET_PERCENTILE = 20  # of the levels in the last seconds
ONSET_RATIO = 2.0  # 6 dB
MIN_LEVEL = 33.0  # of 16-bit samples: -60 dB


class Onset:
    """Waits for a sound: a frame of 10 ms that is twice as loud as the quiet frames of the pause and of the time since."""

    def __init__(self, pause: np.ndarray, rate: int) -> None:
        self.hop = rate // FRAMES_PER_SECOND
        num_frames = max(1, len(pause) // self.hop)
        self.levels = deque(self._levels(pause), maxlen=num_frames)
        self.samples, self.num_seen = NO_SAMPLES, 0  # from the preroll; frames that were no sound
        self.num_dropped = 0  # samples before them

    def _levels(self, samples: np.ndarray) -> list[float]:
        """The root mean square of each whole frame."""
        frames = samples[: len(samples) // self.hop * self.hop].reshape(-1, self.hop).astype(np.float64)
        levels: list[float] = np.sqrt((frames**2).mean(1)).tolist()
        return levels

    def push(self, samples: np.ndarray) -> np.ndarray | None:
        """The samples from shortly before a sound; None until there is one."""
        self.samples = np.concatenate([self.samples, samples])
        for level in self._levels(self.samples[self.num_seen * self.hop :]):
            quiet = float(np.percentile(self.levels, QUIET_PERCENTILE)) if self.levels else 0.0
            if level > max(MIN_LEVEL, ONSET_RATIO * quiet):
                self._drop(max(0, self.num_seen - PREROLL_FRAMES))
                return self.samples
            self.levels.append(level)
            self.num_seen += 1
        self._drop(max(0, self.num_seen - PREROLL_FRAMES))
        return None

    def _drop(self, num_frames: int) -> None:
        self.samples = self.samples[num_frames * self.hop :]
        self.num_dropped, self.num_seen = self.num_dropped + num_frames * self.hop, self.num_seen - num_frames


class Utterances:
    """The texts of a stream: `pause` seconds without a new label end an utterance; 0: it ends with the stream."""

    def __init__(self, stream: SpeechStream, rate: int, pause: float) -> None:
        self.stream, self.rate, self.pause = stream, rate, pause
        self.number, self.text, self.start, self.position = 1, "", 0, 0  # positions in samples
        self.last = NO_SAMPLES  # as many as a pause has
        self.onset: Onset | None = None  # between utterances

    def push(self, samples: np.ndarray) -> Iterator[StreamedText]:
        """The texts that changed with these samples (T,)."""
        rest = as_int16(samples)
        if not self.pause:
            yield from self._read(rest)
            return
        block = self.rate // BLOCKS_PER_SECOND
        while len(rest):
            if self.onset is not None:
                rest = self._wait(self.onset, rest)
                continue
            size = block - (self.position - self.start) % block
            yield from self._read(rest[:size])
            self.last = np.concatenate([self.last, rest[:size]])[-max(1, int(self.pause * self.rate)) :]
            rest = rest[size:]
            if (self.position - self.start) % block == 0 and self.stream.silence >= self.pause:
                yield from self.finish()
                self.onset, self.last = Onset(self.last, self.rate), NO_SAMPLES

    def _wait(self, onset: Onset, samples: np.ndarray) -> np.ndarray:
        """The samples of the next utterance, if a sound starts it."""
        found = onset.push(samples)
        if found is None:
            return NO_SAMPLES
        self.start = self.position = self.position + onset.num_dropped
        self.onset = None
        return found

    def _read(self, samples: np.ndarray) -> Iterator[StreamedText]:
        new = self.stream.push(samples)
        self.position += len(samples)
        if new:
            yield self._changed(new)

    def finish(self) -> Iterator[StreamedText]:
        """The end of an utterance, unless it has no text. The next samples start another one."""
        new = self.stream.finish()
        if self.text or new:
            yield self._changed(new, is_final=True)
            self.number += 1
        self.text, self.start = "", self.position

    def _changed(self, new: str, *, is_final: bool = False) -> StreamedText:
        self.text += new
        return StreamedText(self.number, self.text, new, self.start / self.rate, self.position / self.rate, is_final)


def predict_stream(run: Run[Any, Prediction], pieces: Iterable[bytes | np.ndarray], pause: float) -> Iterator[StreamedText]:
    """The texts of a recording that arrives in pieces, after each change: raw 16-bit PCM or WAV as bytes, or arrays of samples.
    `pause`: the seconds without speech that end an utterance; 0: none does."""
    if not 0 <= pause < math.inf:
        raise UsageError("pause", f"expected 0 or more seconds, got {pause:g}")
    rate = int(run.config.data.sample_rate)
    utterances, reader = Utterances(SpeechStream(run), rate, pause), PCMReader(rate)

    def texts() -> Iterator[StreamedText]:
        for piece in pieces:
            yield from utterances.push(reader.push(piece) if isinstance(piece, bytes) else np.asarray(piece))
        yield from utterances.push(reader.finish())
        yield from utterances.finish()

    return texts()
