"""Findings of a data check, its options, and helpers to word messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from weft.text.tokenizers import Tokenizer

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
WARNING_FRACTION = 0.01  # a finding that may be harmless is a warning if it concerns at least this fraction of the rows
MAX_ROWS = 3  # example rows per finding
# from the tags of all rows: which rows have tags that their scheme does not allow
InvalidTags = Callable[[Sequence[tuple[str, ...]]], np.ndarray]


@dataclass(frozen=True)
class Finding:
    severity: Severity
    name: str  # for programs; `message` is for people
    split: str
    message: str
    fix: str
    count: int
    rows: tuple[int, ...] = ()  # of the split, from 0
    side: int | None = None  # the side that it is about; None: the whole row
    locations: tuple[str, ...] = ()  # file:line of these rows
    examples: tuple[tuple[str, ...], ...] = ()  # their texts, of that side or of both


@dataclass(frozen=True)
class CheckOptions:
    """Names of sides and rows for messages, and limits."""

    sides: tuple[str, ...]  # ("source", "target") for pairs, ("line",) for plain text; one or two for labeled texts
    max_length: int | None = None  # tokens per side with </s>; for labeled texts, tokens per example with <s> and </s>
    truncate: bool = False
    min_chars: int = 0  # lines up to this length are no duplicates: short lines always repeat in running text
    labels: str | None = None  # name of a row's labels, e.g. "tag"; two sides are then two independent texts
    labels_of: Callable[[Any], tuple[str, ...]] | None = None  # the labels of a record
    words: Callable[[Any], Sequence[str]] | None = None  # the words of a record, if each is tokenized by itself
    has_char_encoder: bool = False  # unknown words are still read as characters
    invalid_tags: InvalidTags | None = None
    independent_sides: bool = False  # two unlabeled sides that are independent texts, not translations

    @property
    def rows(self) -> str:
        return "pairs" if len(self.sides) > 1 else f"{self.sides[0]}s"

    @property
    def aligned(self) -> bool:
        """Whether the sides are translations of each other, so that their lengths should match."""
        return len(self.sides) > 1 and self.labels is None and not self.independent_sides


class CheckPlan(NamedTuple):
    """Options of a check, and a function that trains the tokenizer of each side as training would."""

    options: CheckOptions
    tokenizers: Callable[[], Sequence[Tokenizer]]


def percent(count: float, total: float) -> str:
    """1 of 3 -> '33.3%', 1 of 30 -> '3.3%'."""
    value = 100 * count / max(1, total)
    return f"{value:.3g}%" if value >= 10 else f"{value:.2g}%"


def count_of(count: int, total: int, name: str) -> str:
    """'1 of 3 texts (33.3%)'."""
    return f"{count:,} of {total:,} {name} ({percent(count, total)})"


def severity_of(count: int, total: int) -> Severity:
    return "warning" if count >= WARNING_FRACTION * total else "note"


def first_rows(mask: np.ndarray) -> tuple[int, ...]:
    """The numbers of the first rows in a mask (N,)."""
    return tuple(np.flatnonzero(mask)[:MAX_ROWS].tolist())
