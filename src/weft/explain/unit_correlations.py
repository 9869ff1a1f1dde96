"""Correlation of each recurrent unit with features of a text: quotes, brackets, position in the line and in the word, ...

Shapes: N tokens, D units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.explain.explanation import TokenSpan

OPENING_BRACKETS, CLOSING_BRACKETS = "([{", ")]}"
IS_OPENING_QUOTE = {"“": True, "”": False, "«": True, "»": False}


def _inside_quotes(text: str) -> list[float]:
    """1 inside quotation marks, including the opening mark; a straight mark toggles."""
    values, inside = list[float](), False
    for char in text:
        inside = not inside if char == '"' else IS_OPENING_QUOTE.get(char, inside)
        values.append(float(inside))
    return values


def _bracket_depth(text: str) -> list[float]:
    """The number of open brackets after each character."""
    values, depth = list[float](), 0
    for char in text:
        depth = max(0, depth + (char in OPENING_BRACKETS) - (char in CLOSING_BRACKETS))
        values.append(float(depth))
    return values


def _chars_since(text: str, is_boundary: Callable[[str], bool]) -> list[float]:
    """The number of characters since the last boundary character, which itself counts 0."""
    values, count = list[float](), 0
    for char in text:
        count = 0 if is_boundary(char) else count + 1
        values.append(float(count))
    return values


# one value per character of the text
FEATURES: Mapping[str, Callable[[str], list[float]]] = {
    "quotes": _inside_quotes,
    "brackets": _bracket_depth,
    "position in line": lambda text: _chars_since(text, lambda char: char == "\n"),
    "position in word": lambda text: _chars_since(text, lambda char: not char.isalnum()),
    "spaces": lambda text: [float(char.isspace()) for char in text],
    "capitals": lambda text: [float(char.isupper()) for char in text],
    "digits": lambda text: [float(char.isdigit()) for char in text],
}


class UnitCorrelation(NamedTuple):
    """The correlation of a unit with a feature."""

    feature: str
    layer: int  # from 1
    unit: int  # from 1
    quantity: str  # hidden or cell
    r: float  # Pearson's, from -1 to 1

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "r": round(self.r, 4)}


def token_features(text: str, tokens: Sequence[TokenSpan]) -> dict[str, np.ndarray]:
    """Each feature at the last character of each token, (N,); empty without tokens."""
    last_chars = np.array([token.end - 1 for token in tokens], dtype=np.int64)
    return {name: np.array(feature(text))[last_chars] for name, feature in FEATURES.items()} if len(last_chars) else {}


def correlations(values: np.ndarray, feature: np.ndarray) -> np.ndarray:
    """Pearson's r of each column of values (N, D) with a feature (N,): (D,), 0 if either is constant."""
    values, feature = values - values.mean(0), feature - feature.mean()
    norms = np.linalg.norm(values, axis=0) * np.linalg.norm(feature)
    r: np.ndarray = np.divide(feature @ values, norms, out=np.zeros(values.shape[1]), where=norms > 1e-12)
    return r


def rank_units(
    layers: Sequence[tuple[int, Mapping[str, np.ndarray]]], features: Mapping[str, np.ndarray], top: int
) -> list[UnitCorrelation]:
    """The `top` units by |r| for each feature that is not constant; `layers` are numbers and states (N, D) by quantity."""
    ranking = list[UnitCorrelation]()
    for name, feature in features.items():
        if not np.ptp(feature):
            continue
        units = [
            UnitCorrelation(name, layer, unit, quantity, float(r))
            for layer, states in layers
            for quantity, values in states.items()
            for unit, r in enumerate(correlations(values, feature), 1)
        ]
        ranking += sorted(units, key=lambda unit: -abs(unit.r))[:top]
    return ranking
