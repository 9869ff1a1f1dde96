"""Word vectors: the vector of a word, the words nearest to a vector, analogies.

Shapes: V words, D dimensions, N queries.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import DataError, suggest
from weft.text.char_ngrams import CharNgrams
from weft.text.reading import quote
from weft.vectors.rows import DenseRows, Floats, Rows

_SIGN = re.compile(r"(?:^|\s)([+-])(?=\s|$)")  # a sign has spaces around it: "king - man", but "well-known"


class Subwords(NamedTuple):
    """The vectors of character n-grams, for words that training did not see."""

    ngrams: CharNgrams
    buckets: Floats  # (buckets, D)


class Neighbor(NamedTuple):
    word: str
    similarity: float


class Term(NamedTuple):
    """A word of an expression, with its sign."""

    word: str
    sign: int


def parse_expression(text: str) -> list[Term]:
    """'king - man + woman' as words with signs. A word is what is between two signs, and a sign has a space on both sides."""
    first, *rest = _SIGN.split(text.strip())
    terms = [Term(first.strip(), 1)] if first.strip() else []
    terms += [Term(word.strip(), 1 if sign == "+" else -1) for sign, word in zip(rest[::2], rest[1::2], strict=True)]
    if not terms or not all(term.word for term in terms):
        raise DataError(quote(text), "expected words with + and - between them", 'write it like "king - man + woman"')
    return terms


def unit_rows(vectors: Floats) -> Floats:
    """The rows with length 1; a row of zeros stays one."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0), np.float32)


class WordVectors:
    """The vectors of V words, and of unseen words if there are vectors of character n-grams. `name` is the file or run that
    they are from, for messages."""

    def __init__(self, words: Sequence[str], rows: Rows, *, name: str, subwords: Subwords | None = None) -> None:
        self.words, self.rows, self.name, self.subwords = list(words), rows, name, subwords

    @cached_property
    def index(self) -> dict[str, int]:
        """The row of each word; of equal words, the first."""
        return {word: row for row, word in reversed(list(enumerate(self.words)))}

    @cached_property
    def norms(self) -> Floats:
        return self.rows.norms()

    @property
    def size(self) -> int:
        """The number of dimensions."""
        return self.rows.shape[1]

    @property
    def num_parameters(self) -> int:
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """The number of values of words, and of character n-grams."""
        ngrams = {} if self.subwords is None else {"character n-grams": int(self.subwords.buckets.size)}
        return {"words": self.rows.num_values, **ngrams}

    def find(self, word: str) -> int | None:
        """The row of a word as it is written, or else of its lowercase form."""
        row = self.index.get(word)
        return self.index.get(word.lower()) if row is None else row

    def vector(self, word: str) -> Floats | None:
        """(D,): the vector of a word; None if it has none. That of an unseen word is the mean of its character n-grams."""
        row = self.find(word)
        if row is not None:
            return np.asarray(self.rows.take(np.array([row]))[0], np.float32)
        if self.subwords is None:
            return None
        return np.asarray(self.subwords.buckets[self.subwords.ngrams.bucket_ids(word)].mean(0), np.float32)

    def dense(self) -> Floats:
        """(V, D): all vectors."""
        return self.rows.take(np.arange(len(self.words)))

    def unknown(self, word: str) -> DataError:
        """The error for a word without a vector."""
        return DataError(quote(word), f"has no vector in {self.name}", suggest(word.lower(), self.index))

    def combine(self, terms: Sequence[Term]) -> Floats:
        """(D,): the signed sum of the unit vectors of some words (3CosAdd, Mikolov et al. 2013)."""
        total = np.zeros(self.size, np.float32)
        for word, sign in terms:
            vector = self.vector(word)
            if vector is None:
                raise self.unknown(word)
            total += sign * unit_rows(vector)
        return total

    def similarities(self, queries: Floats) -> Floats:
        """(N, V): the cosine of each query (N, D) with each word."""
        return np.asarray(self.rows.dot(unit_rows(queries)) / np.where(self.norms > 0, self.norms, 1.0), np.float32)

    def neighbors(self, query: Floats, count: int, exclude: Collection[int] = ()) -> list[Neighbor]:
        """The words with the highest cosine with a vector (D,), without the rows in `exclude`."""
        similarity = self.similarities(query[None])[0]
        similarity[list(exclude)] = -np.inf
        count = min(count, len(similarity) - len(set(exclude)))
        best = top(similarity[None], count)[0]
        return [Neighbor(self.words[row], float(similarity[row])) for row in best.tolist()]

    def neighbors_of(self, expression: str, count: int) -> list[Neighbor]:
        """The words nearest to an expression, such as 'king' or 'king - man + woman', without its own words."""
        terms = parse_expression(expression)
        exclude = {row for term in terms if (row := self.find(term.word)) is not None}
        return self.neighbors(self.combine(terms), count, exclude)


def top(scores: Floats, count: int) -> NDArray[np.int64]:
    """(N, count): the columns with the highest of scores (N, V), best first; of equal ones, the first columns."""
    if not 0 < count < scores.shape[1]:
        return np.argsort(-scores, axis=1, kind="stable")[:, :count]
    least = -np.partition(-scores, count - 1, axis=1)[:, count - 1]  # the lowest score that counts; others may equal it
    best = np.empty((len(scores), count), np.int64)
    for row, low, chosen in zip(scores, least, best, strict=True):
        candidates = np.flatnonzero(row >= low)
        chosen[:] = candidates[np.argsort(-row[candidates], kind="stable")[:count]]
    return best


def dense_vectors(words: Sequence[str], array: Floats, name: str) -> WordVectors:
    """Vectors of an array (V, D)."""
    return WordVectors(words, DenseRows(array), name=name)
