"""What a column of a table contains, by a sample of its values: numbers, dates, IDs, labels or texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from weft.data.columns import Name

Value = str | int | float | list[str] | None  # of a cell; only JSON has other types than str

MAX_LABEL_CHARS, MAX_LABEL_WORDS = 40, 4  # on average
MAX_NUMBER_LABELS = 20  # more distinct numbers are measurements, not labels
MIN_CODES = 0.9  # of the integers up to the largest one occur, if they are codes of labels
SMALL_SAMPLE = 40  # rows; in more, a label has to occur more often
MIN_LABELS = 20  # distinct labels that a large sample may have in any case
SEPARATORS = ("|", ";", ",")  # between labels in a cell
MIN_SEPARATED = 0.05  # of the cells of a multi-label column have more than one label
_INTEGER = re.compile(r"-?\d{1,4}(?:\.0)?")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d*)(?:[.,]\d+)?(?:[eE][-+]?\d+)?%?")
_DATE = re.compile(
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})(?:[T ]\d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(?::\d{2})?"
)
_OPAQUE = re.compile(r"\S*\d\S*|(?:https?:/|[^\s/]+)?(?:/[^\s/]+)+/?|\S+@\S+\.\w+")  # IDs, paths, addresses


@dataclass(frozen=True)
class ColumnValues:
    """The values of a column in the first rows of a table."""

    name: Name  # in the header, a JSON key, or a 1-based index
    values: tuple[Value, ...]

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The values that are not empty; lists are joined."""
        cells = ("" if value is None else "\n".join(value) if isinstance(value, list) else str(value) for value in self.values)
        return tuple(text for cell in cells if (text := cell.strip()))

    @cached_property
    def num_distinct(self) -> int:
        return len(set(self.texts))

    @cached_property
    def mean_chars(self) -> float:
        return sum(map(len, self.texts)) / max(1, len(self.texts))

    @cached_property
    def mean_words(self) -> float:
        return sum(len(text.split()) for text in self.texts) / max(1, len(self.texts))

    @cached_property
    def has_lists(self) -> bool:
        return any(isinstance(value, list) for value in self.values)

    @cached_property
    def is_number(self) -> bool:
        return bool(self.texts) and all(_NUMBER.fullmatch(text) and any(map(str.isdigit, text)) for text in self.texts)

    @cached_property
    def is_date(self) -> bool:
        return bool(self.texts) and all(map(_DATE.fullmatch, self.texts))

    @cached_property
    def is_id(self) -> bool:
        """Whether nearly every value is different, and is an integer, a code, a path or an address."""
        if self.is_number and not all(map(str.isdigit, self.texts)):
            return False
        is_unique = self.num_distinct > 0.9 * len(self.texts)
        return (
            bool(self.texts) and is_unique and sum(bool(_OPAQUE.fullmatch(text)) for text in self.texts) > 0.9 * len(self.texts)
        )

    @cached_property
    def is_short(self) -> bool:
        """Whether the values are short enough for labels."""
        is_one_line = self.has_lists or not any("\n" in text or "\t" in text for text in self.texts)
        return is_one_line and self.mean_chars <= MAX_LABEL_CHARS and self.mean_words <= MAX_LABEL_WORDS

    @cached_property
    def is_label(self) -> bool:
        """Whether the values are few, short and repeated."""
        if any(isinstance(value, float) for value in self.values) or self.is_date:
            return False  # labels in JSON are strings or integers
        max_labels = MAX_NUMBER_LABELS if self.is_number and not self.is_code else len(self.texts)
        return self.is_short and 2 <= self.num_distinct <= max_labels and are_repeated(self.num_distinct, len(self.texts))

    @cached_property
    def is_code(self) -> bool:
        """Whether the values are small integers, such as ratings from 1 to 5, or nearly all integers from 0 or 1 upwards."""
        if not self.is_number or not all(map(_INTEGER.fullmatch, self.texts)):
            return False
        numbers = {int(text.removesuffix(".0")) for text in self.texts}
        low, high = min(numbers), max(numbers)
        return low >= -10 and (high <= 10 or (low in (0, 1) and len(numbers) >= MIN_CODES * (high - low + 1)))

    @cached_property
    def label_separator(self) -> str | None:
        """The separator between several labels in a cell; None if the cells have one label each."""
        if self.has_lists or self.is_number or self.is_date:
            return None
        return next((separator for separator in SEPARATORS if _separates(self.texts, separator)), None)

    @cached_property
    def is_multilabel(self) -> bool:
        """Whether the cells have several labels each: lists, or parts between separators."""
        if self.has_lists:
            parts = [part for text in self.texts for part in text.split("\n")]
            return self.is_short_list and are_repeated(len(set(parts)), len(parts))
        return self.label_separator is not None

    @cached_property
    def is_short_list(self) -> bool:
        parts = [part for text in self.texts for part in text.split("\n")]
        return bool(parts) and sum(map(len, parts)) <= MAX_LABEL_CHARS * len(parts)

    @cached_property
    def is_text(self) -> bool:
        """Whether the values can be texts: strings that are not numbers, dates or IDs."""
        is_string = all(value is None or isinstance(value, str) for value in self.values)
        return bool(self.texts) and is_string and not (self.is_number or self.is_date or self.is_id)


def are_repeated(num_distinct: int, count: int) -> bool:
    """Whether `count` values with `num_distinct` distinct ones repeat as labels do."""
    return num_distinct <= (count // 2 if count < SMALL_SAMPLE else max(MIN_LABELS, count // 5))


def _separates(texts: Sequence[str], separator: str) -> bool:
    """Whether cells are sets of labels: the parts are short and repeated, and fewer than their combinations."""
    parts = [part.strip() for text in texts for part in text.split(separator)]
    if len(parts) - len(texts) < max(1, MIN_SEPARATED * len(texts)) or not all(parts):
        return False
    is_short = sum(map(len, parts)) <= 20 * len(parts) and all(len(part.split()) <= MAX_LABEL_WORDS for part in parts)
    num_labels = len(set(parts))
    return is_short and num_labels < len(set(texts)) and are_repeated(num_labels, len(parts))
