"""A profile of the training data: what can be known before training, for recommended settings.

Sizes are those of the whole split; everything else is measured on its first SAMPLE_ROWS rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from weft.data.source import Row

SAMPLE_ROWS = 10_000
MAX_SAMPLE_CHARS = 2_000_000  # long documents are enough long before that many rows
SYMBOL_CHARS = 3  # mean length of phones and other symbols that are separated by spaces
MIN_REPETITIONS = 20  # of a symbol in the sample, on average


class Split(Protocol):
    """The training data: records, or running text."""

    @property
    def fraction(self) -> float: ...

    @property
    def summary(self) -> Any: ...

    def rows(self) -> Iterator[Row]: ...


@dataclass(frozen=True)
class TextProfile:
    """Statistics of one column of texts."""

    mean_words: float  # per text, separated by whitespace
    mean_chars: float  # per text
    max_chars: int  # of a text in the sample
    num_words: int  # in the sample
    num_distinct_words: int  # in the sample
    alphabet: frozenset[str]

    @property
    def is_single_words(self) -> bool:
        """Whether texts are words, such as those of a pronunciation dictionary. A text of more than a few dozen letters without
        a space is written in a script that has none."""
        return self.mean_words < 1.5 and self.mean_chars < 30

    @property
    def is_symbols(self) -> bool:
        """Whether texts are sequences of symbols that are separated by spaces, such as phones."""
        mean_length = (self.mean_chars + 1) / max(self.mean_words, 1) - 1
        repetitions = self.num_words / max(self.num_distinct_words, 1)
        return self.mean_words >= 2 and mean_length <= SYMBOL_CHARS and repetitions >= MIN_REPETITIONS


@dataclass(frozen=True)
class DataProfile:
    """Statistics of the training data."""

    num_examples: int  # records or lines
    texts: tuple[TextProfile, ...]  # by column
    summary: Any  # of the files, with what the task counts: labels, tags
    has_valid: bool
    is_gpu: bool

    @property
    def num_words(self) -> int:
        """Words of all columns, estimated from the sample."""
        return round(self.num_examples * sum(text.mean_words for text in self.texts))

    @property
    def num_chars(self) -> int:
        """Characters of all columns, estimated from the sample."""
        return round(self.num_examples * sum(text.mean_chars for text in self.texts))

    @property
    def shared_alphabet(self) -> float:
        """Which part of the smaller alphabet of two columns the other one has, from 0 to 1."""
        alphabets = [text.alphabet for text in self.texts]
        smallest = min(map(len, alphabets), default=0)
        return len(frozenset.intersection(*alphabets)) / smallest if smallest else 0.0


def profile_data(split: Split, *, has_valid: bool, is_gpu: bool) -> DataProfile:
    """Read the first rows of the training data and the summary of its files."""
    rows, num_chars = list[tuple[str, ...]](), 0
    for row in islice(split.rows(), SAMPLE_ROWS):
        rows.append(row.texts)
        num_chars += sum(map(len, row.texts))
        if num_chars > MAX_SAMPLE_CHARS:
            break
    texts = tuple(_profile_texts(column) for column in zip(*rows, strict=True))
    return DataProfile(_num_examples(split, len(rows)), texts, split.summary, has_valid, is_gpu)


def _num_examples(split: Split, num_sampled: int) -> int:
    """The number of records or lines of the split. A sample that ended early may be all there is."""
    total: int = split.summary.count
    return max(round(total * split.fraction), num_sampled)


def _profile_texts(texts: tuple[str, ...]) -> TextProfile:
    words = [text.split() for text in texts]
    num_words = sum(map(len, words))
    return TextProfile(
        mean_words=num_words / len(texts),
        mean_chars=sum(map(len, texts)) / len(texts),
        max_chars=max(map(len, texts)),
        num_words=num_words,
        num_distinct_words=len({word for text in words for word in text}),
        alphabet=frozenset().union(*texts) - {" ", "\n"},
    )
