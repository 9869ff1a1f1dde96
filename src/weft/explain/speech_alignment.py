"""When the words of an output were said, and its picture: the spectrogram, and what the model predicted at each moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from weft.plots.spectrogram import Curves, Sound, Span, Weights, spectrogram

MIN_PROBABILITY = 0.05  # a label that is never more probable is not drawn


class WordTime(NamedTuple):
    """A word and when it was said, in seconds."""

    word: str
    start: float
    end: float


class Recording(NamedTuple):
    """What the model reads."""

    features: np.ndarray  # (T, F): normalized log-mel
    seconds: float  # per frame
    frequencies: np.ndarray  # (F,): centers of the bands in Hz

    def sound(self, highlight: np.ndarray | None = None) -> Sound:
        return Sound(self.features, self.seconds, self.frequencies.tolist(), highlight)

    def picture(self, highlight: np.ndarray, words: Sequence[WordTime], title: str) -> str:
        """The spectrogram with a highlight (T, F) from 0 to 1 and the words as an SVG."""
        return spectrogram(self.sound(highlight), words=[Span(*word) for word in words], title=title)


@dataclass(frozen=True)
class SpeechAlignment:
    """The words of an output with their times, and what the model saw and predicted at each moment."""

    recording: Recording
    words: list[WordTime]  # [] without CTC
    tokens: list[WordTime]
    seconds: float  # per position
    probs: np.ndarray | None  # (S, V): of CTC
    labels: list[str]  # V
    blank: int
    output: list[str]  # the tokens of the output
    attention: np.ndarray | None  # (N, S): of the decoder, for each token of the output

    def to_json(self) -> dict[str, Any]:
        times = {
            "words": [word._asdict() for word in self.words],
            "tokens": [{"token": token.word, "start": token.start, "end": token.end} for token in self.tokens],
        }
        if self.attention is None:
            return times
        weights = [[round(weight, 4) for weight in row] for row in self.attention.tolist()]
        attention = {"tokens": self.output, "seconds_per_position": self.seconds, "weights": weights}
        return {**(times if self.probs is not None else {}), "attention": attention}

    def to_svg(self, title: str) -> str:
        """The spectrogram with the words, and below it the probabilities of CTC or the attention of the decoder."""
        weights = None if self.attention is None else Weights(self.attention, self.output, self.seconds)
        curves = None if weights is not None else self._curves()
        return spectrogram(
            self.recording.sound(), words=[Span(*word) for word in self.words], curves=curves, weights=weights, title=title
        )

    def _curves(self) -> Curves | None:
        """The probabilities of the labels that mattered, in the order of the output."""
        if self.probs is None:
            return None
        peaks = self.probs.max(0)
        chosen = dict.fromkeys(token.word for token in self.tokens)
        others = [self.labels[index] for index in np.argsort(-peaks).tolist() if peaks[index] >= MIN_PROBABILITY]
        names = [name for name in dict.fromkeys([*chosen, *others]) if name != self.labels[self.blank]]
        columns = [self.labels.index(name) for name in names]
        return Curves(self.probs[:, columns], names, [Span(*token) for token in self.tokens], self.seconds)

    def _repr_html_(self) -> str:
        """The picture, for notebooks."""
        return self.to_svg("")
