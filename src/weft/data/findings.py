"""What a check of data says: findings, and the words they are written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from weft.text.tokenizers import Tokenizer

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
WARNING_FRACTION = 0.01  # from this share of the rows on, a finding that may be harmless is a warning
MAX_ROWS = 3  # rows of a finding that are shown
# of the labels of all rows: whether each row has them as its scheme would not write them
Invalid = Callable[[Sequence[tuple[str, ...]]], np.ndarray]


@dataclass(frozen=True)
class Finding:
    severity: Severity
    name: str  # for programs; `what` is for people
    split: str
    message: str
    fix: str
    count: int
    rows: tuple[int, ...] = ()  # of the split, from 0
    side: int | None = None  # which one is meant, if it is one
    locations: tuple[str, ...] = ()  # file:line of these rows
    examples: tuple[tuple[str, ...], ...] = ()  # their texts, of the side that is meant or of both


@dataclass(frozen=True)
class CheckOptions:
    """What a check is told: how sides and rows are called, and what is allowed."""

    sides: tuple[str, ...]  # ("source", "target") of pairs, ("line",) of a text; of labelled texts one or two
    max_length: int | None = None  # tokens a side, </s> counted; of labelled texts those of an example, <s> counted too
    truncate: bool = False
    min_chars: int = 0  # characters; shorter lines may come twice: in running text they always do
    labels: str | None = None  # what the labels of rows are called: two sides are then two texts, neither made from the other
    labels_of: Callable[[Any], tuple[str, ...]] | None = None  # a record
    words: Callable[[Any], Sequence[str]] | None = None  # of a record, where each word by itself becomes tokens
    has_char_encoder: bool = False  # what is unknown is known by its letters
    invalid: Invalid | None = None
    independent_sides: bool = False  # two sides are two texts, neither made from the other, and have no labels

    @property
    def rows(self) -> str:
        return "pairs" if len(self.sides) > 1 else f"{self.sides[0]}s"

    @property
    def aligned(self) -> bool:
        """Whether one side should fit the other."""
        return len(self.sides) > 1 and self.labels is None and not self.independent_sides


class CheckPlan(NamedTuple):
    """What a check is told, and how it makes the tokenizer of each side: as training would, without a run."""

    checked: CheckOptions
    tokenizers: Callable[[], Sequence[Tokenizer]]


def percent(count: float, total: float) -> str:
    """1 of 3 -> '33.3 %', 1 of 30 -> '3.3 %'."""
    fraction = 100 * count / max(1, total)
    return f"{fraction:.3g} %" if fraction >= 10 else f"{fraction:.2g} %"


def count_of(count: int, total: int, what: str) -> str:
    """'1 of 3 texts (33.3 %)'."""
    return f"{count:,} of {total:,} {what} ({percent(count, total)})"


def severity_of(count: int, total: int) -> Severity:
    return "warning" if count >= WARNING_FRACTION * total else "note"


def first_rows(found: np.ndarray) -> tuple[int, ...]:
    """The first rows of a mask (N,)."""
    return tuple(np.flatnonzero(found)[:MAX_ROWS].tolist())
