"""Findings and options of a data check, and helpers for their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from weft.text.tokenizers import Tokenizer

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
WARNING_FRACTION = 0.01  # of the rows, from which on a finding that may be harmless is a warning
MAX_ROWS = 3  # example rows per finding
# from the tags of N rows to bool (N,): whether the tagging scheme does not allow them
InvalidTags = Callable[[Sequence[tuple[str, ...]]], np.ndarray]


@dataclass(frozen=True)
class Finding:
    """A problem of the data. `name` identifies it for programs, `message` and `fix` are for people."""

    severity: Severity
    name: str
    split: str
    message: str
    fix: str
    count: int
    rows: tuple[int, ...] = ()  # indices of example rows in the split
    side: int | None = None  # of the problem; None: the whole row
    locations: tuple[str, ...] = ()  # file:line of `rows`
    examples: tuple[tuple[str, ...], ...] = ()  # texts of `rows`, of the side or of both


@dataclass(frozen=True)
class CheckOptions:
    """Names of sides and rows for messages, and limits."""

    sides: tuple[str, ...]  # ("source", "target") for pairs, ("line",) for plain text; one or two for labeled texts
    max_length: int | None = None  # tokens per side with </s>; for labeled texts, tokens per example with <s> and </s>
    truncate: bool = False
    has_start_tokens: bool = False  # the start tokens of the tokenizer count, as in the models of the task
    min_chars: int = 0  # shorter or equally long lines are not reported as duplicates: running text repeats short lines
    labels: str | None = None  # noun for the labels of a row, e.g. "tag"; two sides are then two independent texts
    labels_of: Callable[[Any], tuple[str, ...]] | None = None  # the labels of a record
    words: Callable[[Any], Sequence[str]] | None = None  # the words of a record, if they are tokenized separately
    has_char_encoder: bool = False  # the model also reads the characters of unknown words
    invalid_tags: InvalidTags | None = None
    independent_sides: bool = False  # the sides are independent texts, not translations

    @property
    def rows(self) -> str:
        return "pairs" if len(self.sides) > 1 else f"{self.sides[0]}s"

    @property
    def aligned(self) -> bool:
        """Whether the sides are translations of each other, so that their lengths should match."""
        return len(self.sides) > 1 and self.labels is None and not self.independent_sides


MoreFindings = Callable[[Mapping[str, Any]], Iterable[Finding]]  # findings of the splits that are particular to the task


def no_more_findings(splits: Mapping[str, Any]) -> Iterable[Finding]:
    return ()


class CheckPlan(NamedTuple):
    """Options of a check, a function that trains the tokenizer of each side as for training, and further checks."""

    options: CheckOptions
    tokenizers: Callable[[], Sequence[Tokenizer]]
    more: MoreFindings = no_more_findings


def percent(count: float, total: float) -> str:
    """1 of 3 -> '33.3%', 1 of 30 -> '3.3%'."""
    value = 100 * count / max(1, total)
    return f"{value:.3g}%" if value >= 10 else f"{value:.2g}%"


def count_of(count: int, total: int, name: str) -> str:
    """'1 of 3 texts (33.3%)'."""
    return f"{count:,} of {total:,} {name} ({percent(count, total)})"


def severity_of(count: int, total: int) -> Severity:
    """The severity of a finding that may be harmless."""
    return "warning" if count >= WARNING_FRACTION * total else "note"


def first_rows(mask: np.ndarray) -> tuple[int, ...]:
    """Indices of the first MAX_ROWS rows in a mask (N,)."""
    return tuple(np.flatnonzero(mask)[:MAX_ROWS].tolist())
