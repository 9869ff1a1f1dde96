"""Answers to questions."""

from __future__ import annotations

from typing import NamedTuple


class AnswerPrediction(NamedTuple):
    """An answer: a span of the passage.

    Attributes:
        text: The answer; empty if there is none.
        start: The index of its first character in the passage; None if there is no answer.
        end: The index after its last character; None if there is no answer.
        probability: The probability of the answer, or of no answer.
        truncated: Whether the question was too long for the model.
    """

    text: str
    start: int | None
    end: int | None
    probability: float
    truncated: bool = False

    def __bool__(self) -> bool:
        """Whether there is an answer."""
        return bool(self.text)
