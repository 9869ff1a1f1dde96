"""Bag-of-n-grams features: counts or TF-IDF of the terms of a text as a sparse row. A term is an n-gram.

    word        runs of two or more letters, digits or underscores; no single letters, no punctuation marks
    word_punct  runs of letters, digits or underscores, and single punctuation marks
    whitespace  split at whitespace, for text that is already tokenized
    char        n-grams of characters; several whitespace characters count as one space
    char_wb     n-grams of characters inside words, each word with a space at both ends

The values equal those of scikit-learn's CountVectorizer and TfidfVectorizer with the same options: token pattern
`(?u)\\b\\w\\w+\\b` for `word`, `\\w+|[^\\w\\s]` for `word_punct`, `\\S+` for `whitespace`; columns in the order of their terms;
idf = ln((1 + texts) / (1 + texts with the term)) + 1; rows of length 1. If `max_features` cuts between equally frequent terms,
the first in alphabetical order are kept; scikit-learn does not define that.

Strings are created only for terms of the vocabulary. Other n-grams are rows of a level (see `term_counts`).
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from weft import files
from weft.config import Choice, Config, invalid, parse_config, to_dict
from weft.errors import ConfigError, DataError, ModelError
from weft.text.term_counts import (
    ANALYZERS,
    UNIT_BITS,
    WORD_ANALYZERS,
    Ints,
    KnownWordIds,
    NgramPositions,
    Units,
    WordIds,
    code_points,
    find_rows,
    text_batches,
    unique_counts,
)


class Sparse(NamedTuple):
    """A CSR matrix: row i has values[indptr[i]:indptr[i + 1]] in the ascending columns indices[indptr[i]:indptr[i + 1]]."""

    indptr: Ints  # (rows + 1,)
    indices: Ints  # (M,)
    values: NDArray[np.float64]  # (M,)
    columns: int  # number of columns

    @property
    def rows(self) -> int:
        return len(self.indptr) - 1


def hstack(parts: list[Sparse]) -> Sparse:
    """Concatenate matrices horizontally, for example the features of the two texts of a pair."""
    rows = [np.repeat(np.arange(part.rows), np.diff(part.indptr)) for part in parts]
    order = np.argsort(np.concatenate(rows), kind="stable")  # within a row, left parts come first
    shifts = np.cumsum([0, *(part.columns for part in parts)])
    indices = np.concatenate([part.indices + shift for part, shift in zip(parts, shifts[:-1], strict=True)])[order]
    values = np.concatenate([part.values for part in parts])[order]
    return Sparse(np.sum([part.indptr for part in parts], axis=0), indices, values, int(shifts[-1]))


class FeatureConfig(Config):
    """Bag-of-n-grams features of a text."""

    analyzer: Annotated[str, Choice(ANALYZERS, "analyzer")] = "word_punct"
    """Build n-grams of words or characters. word leaves out punctuation and single letters; char_wb stays inside words."""
    ngram_range: list[Annotated[int, Field(ge=1, le=16)]] = Field(default=[1, 2], min_length=2, max_length=2)
    """Shortest and longest n-gram."""
    max_char_ngram: int | None = Field(None, ge=0, le=16)
    """Add n-grams of up to this many characters to those of words. Default: 5 for up to 2 million characters, otherwise 0."""
    lowercase: bool = True
    """Lowercase all text."""
    min_df: int = Field(1, ge=1)
    """Drop terms that occur in fewer texts."""
    max_features: int | None = Field(None, ge=1)
    """Keep only the most frequent terms."""
    tfidf: bool = True
    """Weight terms by TF-IDF."""
    sublinear_tf: bool = True
    """Use 1 + ln(count) instead of counts. Default: false without TF-IDF or with binary = true."""
    binary: bool = False
    """Use 0 and 1 instead of counts."""

    @model_validator(mode="before")
    @classmethod
    def default_sublinear_tf(cls, values: dict[str, Any]) -> dict[str, Any]:
        applies = values.get("tfidf", True) and not values.get("binary", False)
        return {"sublinear_tf": bool(applies), **values}

    @model_validator(mode="after")
    def check_features(self) -> Self:
        if self.ngram_range[0] > self.ngram_range[1]:
            raise invalid("ngram_range", f"the shortest n-gram is longer than the longest, got {self.ngram_range}")
        if self.max_char_ngram and self.analyzer not in WORD_ANALYZERS:
            raise invalid("max_char_ngram", f"requires n-grams of words, got analyzer {self.analyzer!r}", "remove it")
        if self.sublinear_tf and self.binary:
            raise invalid("sublinear_tf", "cannot be combined with binary", "set one of them to false")
        if self.sublinear_tf and not self.tfidf:
            raise invalid("sublinear_tf", "requires tfidf = true", "change one of them")
        return self


class _Level(NamedTuple):
    """All n-grams of one length."""

    keys: Ints  # (M,) ascending
    texts: Ints  # (M,) document frequencies
    occurrences: Ints  # (M,) total counts


def _count_level(batches: list[NgramPositions], config: FeatureConfig) -> _Level:
    """Extend all n-grams by one unit and count them. N-grams in fewer than min_df texts are not extended further."""
    keys, inverses = list[Ints](), list[Ints]()
    for batch in batches:
        unique, inverse = np.unique(batch.grow(), return_inverse=True)
        keys.append(unique)
        inverses.append(inverse)
    level = unique_counts(np.concatenate(keys))[0]
    texts, occurrences = np.zeros(len(level), np.int64), np.zeros(len(level), np.int64)
    for batch, unique, inverse in zip(batches, keys, inverses, strict=True):
        batch.row = np.searchsorted(level, unique).astype(np.int32)[inverse]
        rows, owner = batch.row, batch.text[batch.start]
        if batch.length < config.ngram_range[0]:
            # too short, except that char_wb counts words that are shorter than the shortest n-gram
            is_term = batch.is_whole_segment() if config.analyzer == "char_wb" else slice(0)
            rows, owner = rows[is_term], owner[is_term]
        pairs, counts = unique_counts(owner.astype(np.int64) * len(level) + rows)
        row = pairs % max(len(level), 1)
        texts += np.bincount(row, minlength=len(level))
        occurrences += np.bincount(row, counts, minlength=len(level)).astype(np.int64)
    if batches and batches[0].length >= config.ngram_range[0] and config.min_df > 1:
        for batch in batches:
            batch.select(texts[batch.row] >= config.min_df)
    return _Level(level, texts, occurrences)


def _decode_ngrams(levels: list[_Level], k: int, rows: Ints, words: list[str] | None) -> list[str]:
    """Strings of the n-grams in these rows of level k, from the keys of all levels up to k."""
    columns, row = list[Ints](), rows
    for level in reversed(levels[: k + 1]):
        key = level.keys[row]
        columns.append(key & ((1 << UNIT_BITS) - 1))
        row = key >> UNIT_BITS
    columns.reverse()
    if words is not None:
        return list(map(" ".join, zip(*([words[unit] for unit in column.tolist()] for column in columns), strict=True)))
    text = np.stack(columns, axis=1).astype("<u4").tobytes().decode("utf-32-le")
    return [text[start : start + k + 1] for start in range(0, len(text), k + 1)]


def _select_terms(terms: list[str], occurrences: Ints, max_features: int | None) -> Ints:
    """Indices of the `max_features` most frequent terms, in alphabetical order."""
    order = np.array(sorted(range(len(terms)), key=terms.__getitem__), np.int64)
    if max_features is not None:
        order = order[np.sort(np.argsort(-occurrences[order], kind="stable")[:max_features])]
    return order


def _index_terms(terms: list[str], config: FeatureConfig) -> tuple[WordIds, list[tuple[Ints, Ints]]]:
    """IDs of the words in the terms, and for each n-gram length the ascending keys with their columns (-1: not a term)."""
    word_ids: WordIds = KnownWordIds()
    if config.analyzer in WORD_ANALYZERS:
        flat = " ".join(terms).split(" ")
        words = dict.fromkeys(flat)
        word_ids = KnownWordIds(zip(words, range(len(words)), strict=True))
        lengths = np.fromiter((term.count(" ") + 1 for term in terms), np.int64, len(terms))
        units = np.fromiter(map(word_ids.__getitem__, flat), np.int32, len(flat))
    else:
        lengths, units = np.fromiter(map(len, terms), np.int64, len(terms)), code_points(terms)
    positions = NgramPositions(Units(units, lengths, np.arange(len(terms))))
    positions.start = (np.cumsum(lengths) - lengths).astype(np.int32)
    positions.row = np.zeros(len(terms), np.int32)
    levels = list[tuple[Ints, Ints]]()
    for k in range(1, int(lengths.max()) + 1):
        keys, inverse = np.unique(positions.grow(), return_inverse=True)
        column, is_end = np.full(len(keys), -1), positions.remaining[positions.start] == k
        column[inverse[is_end]] = positions.text[positions.start[is_end]]
        positions.row = inverse.astype(np.int32)
        levels.append((keys, column))
    return word_ids, levels


class Features:
    """A vocabulary of terms with their document frequencies, stored as features.json; the counterpart of a tokenizer for
    baselines. `hash` identifies it."""

    def __init__(self, config: FeatureConfig, terms: list[str], counts: Ints, documents: int) -> None:
        self.config, self.terms, self.counts, self.documents = config, terms, counts, documents
        self.num_features = len(terms)
        self.idf = np.log((1 + documents) / (1 + counts)) + 1  # (num_features,)
        self._word_ids, self._levels = _index_terms(terms, config)

    @classmethod
    def fit(cls, texts: Iterable[str], config: FeatureConfig) -> Self:
        """Build the vocabulary of the texts."""
        word_ids = defaultdict[str, int](count().__next__)
        positions, documents = list[NgramPositions](), 0
        for batch in text_batches(texts, config.lowercase):
            positions.append(NgramPositions(ANALYZERS[config.analyzer](batch, word_ids)))
            documents += len(batch)
        levels = [_count_level(positions, config) for _ in range(config.ngram_range[1])] if positions else []
        terms, counts, occurrences = list[str](), list[Ints](), list[Ints]()
        words = list(word_ids) if config.analyzer in WORD_ANALYZERS else None
        for k, level in enumerate(levels):
            rows = np.flatnonzero(level.texts >= config.min_df)
            terms += _decode_ngrams(levels, k, rows, words)
            counts.append(level.texts[rows])
            occurrences.append(level.occurrences[rows])
        if not terms:
            raise DataError(
                "features",
                f"no term occurs in at least {config.min_df:,} of {documents:,} texts "
                f"(analyzer {config.analyzer!r}, ngram_range {config.ngram_range})",
                "reduce min_df or choose another analyzer",
            )
        order = _select_terms(terms, np.concatenate(occurrences), config.max_features)
        return cls(config, [terms[index] for index in order], np.concatenate(counts)[order], documents)

    def transform(self, texts: Iterable[str]) -> Sparse:
        """A matrix with a row per text and a column per term; terms outside the vocabulary are ignored."""
        parts = [self._count(batch) for batch in text_batches(texts, self.config.lowercase)]
        num_terms, columns, counts = ([part[i] for part in parts] for i in range(3))
        indptr = np.append(0, np.cumsum(np.concatenate([np.zeros(0, np.int64), *num_terms])))
        indices = np.concatenate([np.zeros(0, np.int64), *columns])
        values = np.concatenate([np.zeros(0), *counts])
        return Sparse(indptr, indices, self._weight(indptr, indices, values), self.num_features)

    def _count(self, batch: list[str]) -> tuple[Ints, Ints, Ints]:
        """Number of distinct terms in each text, and column and count of each of them."""
        positions = NgramPositions(ANALYZERS[self.config.analyzer](batch, self._word_ids))
        occurrences = list[Ints]()  # text * num_features + column
        for keys, columns in self._levels:
            row = find_rows(keys, positions.grow())
            positions.row = row.astype(np.int32)
            positions.select(row >= 0)
            column = columns[positions.row]
            is_term = column >= 0
            text = positions.text[positions.start[is_term]].astype(np.int64)
            occurrences.append(text * self.num_features + column[is_term])
        pairs, counts = unique_counts(np.concatenate(occurrences))
        return np.bincount(pairs // self.num_features, minlength=len(batch)), pairs % self.num_features, counts

    def _weight(self, indptr: Ints, indices: Ints, values: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.config.binary:
            values = np.ones_like(values)
        if not self.config.tfidf:
            return values
        if self.config.sublinear_tf:
            values = 1 + np.log(values)
        values = values * self.idf[indices]
        row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        return values / np.sqrt(np.bincount(row, values**2, minlength=len(indptr) - 1))[row]

    @property
    def data(self) -> bytes:
        """The content of the file."""
        content: dict[str, Any] = {"version": 1, "options": to_dict(self.config), "documents": self.documents}
        content |= {"terms": self.terms, "counts": self.counts.tolist()}
        return (json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n").encode()

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def save(self, path: Path) -> None:
        files.write_bytes(path, self.data)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a saved vocabulary; an error if it is corrupted."""
        content = files.read_json(path)
        if not isinstance(content, dict) or content.get("version") != 1:
            raise ModelError(path, "corrupted, or not a features file of version 1")
        try:
            config = parse_config(FeatureConfig, content.get("options", {}), prefix="options")
        except ConfigError as error:
            raise ModelError(path, f"corrupted: {error}") from None
        terms: Any = content.get("terms")
        counts: Any = content.get("counts")
        documents: Any = content.get("documents")
        if not _is_list_of(terms, str) or not _is_list_of(counts, int) or type(documents) is not int:
            raise ModelError(path, "corrupted: terms and counts must be lists of strings and integers")
        if len(terms) != len(counts) or terms != sorted(set(terms)) or not 1 <= min(counts) <= max(counts) <= documents:
            raise ModelError(path, "corrupted: terms, counts and number of documents do not match")
        return cls(config, terms, np.array(counts), documents)


def _is_list_of(value: Any, item_type: type) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(item) is item_type for item in value)
