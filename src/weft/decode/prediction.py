"""What is written for a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Prediction(NamedTuple):
    text: str  # with the prefix
    token_ids: list[int]  # that were written, the end token too, without the prefix
    score: float  # what predictions are ordered by: log_prob, under the length penalty of a beam; samples are in no order
    log_prob: float  # of `tokens`, under what was searched: beside a language model, its weighted share is in the sum
    prefix: Sequence[int] = ()  # the tokens that it had to start with
    truncated: bool = False  # the limit ended it, not the end token
    alignment: Any = None  # where it looked in its source, if that was asked for
    alternatives: tuple[Prediction, ...] = ()  # the others where several were asked for: a beam's next best, other samples

    def ranked(self) -> list[Prediction]:
        """This one and its alternatives, in order."""
        return [self._replace(alternatives=()), *self.alternatives]
