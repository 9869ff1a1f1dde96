"""The activations of a recurrent network over a short text as tables for a terminal: a column a token, a row a unit, and under
them the scores of the next token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.explain.explanation import TokenSpan, align_columns
from weft.explain.inputs import ModelInput
from weft.plots.heatmap import visible

TOKENS, UNITS, CHOICES = 16, 16, 16  # larger tables are not readable
STATES = ("hidden", "cell")


class Scores(NamedTuple):
    """What a language model's output says of each token of its vocabulary, before the softmax."""

    choices: list[str]  # V
    values: np.ndarray  # (T, V)

    def to_json(self) -> dict[str, Any]:
        return {"tokens": self.choices, "scores": self.values.T.round(6).tolist()}


@torch.no_grad()
def output_scores(reading: ModelInput) -> Scores | None:
    """The scores at each position of a short text; None where there are too many, or nothing is predicted token by token."""
    if reading.logits is None or len(reading.sides[0].tokens) > TOKENS:
        return None
    values = reading.logits().double().cpu().numpy()
    count = values.shape[1]
    return None if count > CHOICES else Scores([reading.target_text(at) for at in range(count)], values)


def _rows(names: Sequence[str], values: np.ndarray) -> list[list[str]]:
    """A row a name, of values (T, rows)."""
    return [[name, *(f"{value:+.2f}" for value in column)] for name, column in zip(names, values.T, strict=True)]


def layer_table(title: str, pieces: Sequence[TokenSpan], values: Mapping[str, np.ndarray], units: Sequence[int]) -> list[str]:
    """A layer's units, numbered from 1, over a text: hidden and cell states, or, of one unit alone, its gates as well."""
    at = [unit - 1 for unit in units]
    shown = list(values) if len(units) == 1 else [name for name in STATES if name in values]
    head = [title, *(visible(piece.text) for piece in pieces)]
    rows = [row for name in shown for row in _rows([f"{name} {unit}" for unit in units], values[name][:, at])]
    return align_columns([head, *rows])


def score_table(pieces: Sequence[TokenSpan], scores: Scores) -> list[str]:
    """The scores under each token, and the token that they are highest for, with its probability."""
    fractions = np.exp(scores.values - scores.values.max(1, keepdims=True))
    fractions /= fractions.sum(1, keepdims=True)
    chosen = scores.values.argmax(1).tolist()
    best = [f"{visible(scores.choices[at])} {fractions[place, at]:.0%}" for place, at in enumerate(chosen)]
    head = ["output scores", *(visible(piece.text) for piece in pieces)]
    return align_columns([head, *_rows([visible(name) for name in scores.choices], scores.values), ["next", *best]])
