"""Terminal tables of the activations of a recurrent network on a short text: one column per token, one row per unit, and below
them the logits of the next token.

Shapes: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.explain.explanation import TokenSpan, align_columns
from weft.explain.inputs import ModelInput
from weft.plots.heatmap import visible

TOKENS, UNITS, VOCAB = 16, 16, 16  # maximum sizes: larger tables are not readable
STATES = ("hidden", "cell")


class Scores(NamedTuple):
    """The logits of a language model at each position."""

    tokens: list[str]  # V
    values: np.ndarray  # (T, V)

    def to_json(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "scores": self.values.T.round(6).tolist()}


@torch.no_grad()
def output_scores(reading: ModelInput) -> Scores | None:
    """The logits at each position; None if the table would be too large, or if the task does not predict tokens."""
    if reading.logits is None or len(reading.sides[0].tokens) > TOKENS:
        return None
    values = reading.logits().double().cpu().numpy()
    vocab_size = values.shape[1]
    return None if vocab_size > VOCAB else Scores([reading.target_text(token_id) for token_id in range(vocab_size)], values)


def _rows(names: Sequence[str], values: np.ndarray) -> list[list[str]]:
    """One row per name, for values (T, names)."""
    return [[name, *(f"{value:+.2f}" for value in column)] for name, column in zip(names, values.T, strict=True)]


def layer_table(title: str, spans: Sequence[TokenSpan], values: Mapping[str, np.ndarray], units: Sequence[int]) -> list[str]:
    """The hidden and cell states of some units of a layer, numbered from 1; for a single unit also its gates."""
    names = list(values) if len(units) == 1 else [name for name in STATES if name in values]
    indices = [unit - 1 for unit in units]
    header = [title, *(visible(span.text) for span in spans)]
    rows = [row for name in names for row in _rows([f"{name} {unit}" for unit in units], values[name][:, indices])]
    return align_columns([header, *rows])


def score_table(spans: Sequence[TokenSpan], scores: Scores) -> list[str]:
    """The logits after each token, and the most probable next token with its probability."""
    probs = np.exp(scores.values - scores.values.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    best_ids = scores.values.argmax(1).tolist()
    best = [f"{visible(scores.tokens[token_id])} {probs[row, token_id]:.0%}" for row, token_id in enumerate(best_ids)]
    header = ["logits", *(visible(span.text) for span in spans)]
    return align_columns([header, *_rows([visible(token) for token in scores.tokens], scores.values), ["next", *best]])
