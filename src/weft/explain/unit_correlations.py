"""Which units follow what in a text: the correlation of every unit with quotes, brackets, places in lines and words.

Shapes: N tokens, D units, C characters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.explain.explanation import TokenSpan

OPENING, CLOSING = "([{", ")]}"
SIGN_FLIPPED = {"“": True, "”": False, "«": True, "»": False}


def _quotes(text: str) -> list[float]:
    """1 within quotation marks, the opening one included; a straight mark opens or closes in turn."""
    found, within = list[float](), False
    for letter in text:
        within = not within if letter == '"' else SIGN_FLIPPED.get(letter, within)
        found.append(float(within))
    return found


def _brackets(text: str) -> list[float]:
    """How many brackets are open."""
    found, depth = list[float](), 0
    for letter in text:
        depth = max(0, depth + (letter in OPENING) - (letter in CLOSING))
        found.append(float(depth))
    return found


def _since(text: str, ends: Callable[[str], bool]) -> list[float]:
    """How many letters have come since one that `ends`, which counts 0."""
    found, count = list[float](), 0
    for letter in text:
        count = 0 if ends(letter) else count + 1
        found.append(float(count))
    return found


FEATURES: Mapping[str, Callable[[str], list[float]]] = {
    "quotes": _quotes,
    "brackets": _brackets,
    "place in the line": lambda text: _since(text, lambda letter: letter == "\n"),
    "place in the word": lambda text: _since(text, lambda letter: not letter.isalnum()),
    "spaces": lambda text: [float(letter.isspace()) for letter in text],
    "capitals": lambda text: [float(letter.isupper()) for letter in text],
    "digits": lambda text: [float(letter.isdigit()) for letter in text],
}


class UnitCorrelation(NamedTuple):
    """A unit that follows a feature."""

    feature: str
    layer: int  # from 1, as units are
    unit: int
    quantity: str  # hidden or cell
    r: float  # Pearson's, from -1 to 1

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "r": round(self.r, 4)}


def features(text: str, pieces: Sequence[TokenSpan]) -> dict[str, np.ndarray]:
    """Of each feature its value after each token, (N,): at the last character of it."""
    ends = np.array([piece.end - 1 for piece in pieces], dtype=np.int64)
    return {name: np.array(find(text))[ends] for name, find in FEATURES.items()} if len(ends) else {}


def correlations(values: np.ndarray, feature: np.ndarray) -> np.ndarray:
    """Pearson's r of each column of values (N, D) with a feature (N,): (D,), 0 where either never changes."""
    centered, progress = values - values.mean(0), feature - feature.mean()
    norms = np.linalg.norm(centered, axis=0) * np.linalg.norm(progress)
    found: np.ndarray = np.divide(progress @ centered, norms, out=np.zeros(values.shape[1]), where=norms > 1e-12)
    return found


def ranked(
    layers: Sequence[tuple[int, Mapping[str, np.ndarray]]], progress: Mapping[str, np.ndarray], top: int
) -> list[UnitCorrelation]:
    """Of each feature that changes the units that follow it most, best first; `layers` are numbers and (N, D) values by
    quantity."""
    found = list[UnitCorrelation]()
    for feature, values in progress.items():
        if not np.ptp(values):
            continue
        own = [
            UnitCorrelation(feature, layer, unit, quantity, float(r))
            for layer, inner in layers
            for quantity, numbers in inner.items()
            for unit, r in enumerate(correlations(numbers, values), 1)
        ]
        found += sorted(own, key=lambda one: -abs(one.r))[:top]
    return found
