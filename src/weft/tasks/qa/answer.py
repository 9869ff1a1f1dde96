"""What is said to a question."""

from __future__ import annotations

from typing import NamedTuple


class AnswerPrediction(NamedTuple):
    """A part of a passage, and the characters where it starts and stops; no answer is an empty text without a place."""

    text: str
    start: int | None
    end: int | None
    probability: float
    truncated: bool = False  # the question was longer than the model reads
