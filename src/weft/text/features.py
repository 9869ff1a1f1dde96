"""Texts as sparse rows: how often each term, an n-gram of words or characters, stands in a text, or its TF-IDF.

    word     runs of two or more letters, digits or underscores: single letters and punctuation marks are none
    space    what stands between white space: for text that is tokenised already
    char     n-grams of characters; white space of several characters counts as one blank
    char_wb  n-grams of characters inside words, each word with a blank at both ends

On the same settings the numbers are those of scikit-learn's CountVectorizer and TfidfVectorizer: its token pattern
`(?u)\\b\\w\\w+\\b` for `word` (`\\S+` for `space`), its min_df for `min_count`, its max_features for `most`, columns in
the order of their terms; idf = ln((1 + texts) / (1 + texts with the term)) + 1, rows of length 1. Where `most` cuts
between terms that are equally frequent, the first in the alphabet stays; scikit-learn leaves it open.

A string is made only for a term that is kept: until then an n-gram is a row of its level (see `grams`).
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
from weft.config import Choice, Config, parse_config, to_dict
from weft.errors import ConfigError, DataError, ModelError
from weft.text.term_counts import (
    ANALYZERS,
    UNIT_BITS,
    WORD_ANALYZERS,
    Ints,
    NgramPositions,
    Numbers,
    TermIds,
    Units,
    batches,
    codes,
    find_rows,
    unique_counts,
)


class Sparse(NamedTuple):
    """A matrix by rows (CSR): row i has values[indptr[i]:indptr[i + 1]] in the columns indices[...], which ascend."""

    indptr: Ints  # (rows + 1,)
    indices: Ints  # (M,)
    values: NDArray[np.float64]  # (M,)
    columns: int

    @property
    def rows(self) -> int:
        return len(self.indptr) - 1


def hstack(parts: list[Sparse]) -> Sparse:
    """The columns of all parts side by side, as for the two texts of a pair."""
    rows = [np.repeat(np.arange(part.rows), np.diff(part.indptr)) for part in parts]
    order = np.argsort(np.concatenate(rows), kind="stable")  # of one row, what stood further left comes first
    shifts = np.cumsum([0, *(part.columns for part in parts)])
    indices = np.concatenate([part.indices + shift for part, shift in zip(parts, shifts[:-1], strict=True)])[order]
    values = np.concatenate([part.values for part in parts])[order]
    return Sparse(np.sum([part.indptr for part in parts], axis=0), indices, values, int(shifts[-1]))


class FeatureConfig(Config):
    """Which terms a text is described by, and how they are weighed."""

    analyzer: Annotated[str, Choice(ANALYZERS, "analyzer")] = "word"
    ngram_range: list[Annotated[int, Field(ge=1, le=16)]] = Field(default=[1, 2], min_length=2, max_length=2)
    lowercase: bool = True
    min_df: int = Field(1, ge=1)  # terms that stand in fewer texts are dropped
    max_features: int | None = Field(None, ge=1)  # only so many terms are kept, by how often they occur
    tfidf: bool = True
    sublinear_tf: bool = False  # 1 + ln(count) for the count
    binary: bool = False  # 1 for any count

    @model_validator(mode="after")
    def check_options(self) -> Self:
        if self.ngram_range[0] > self.ngram_range[1]:
            raise ValueError(f"ngrams={self.ngram_range} must not decrease: the shortest and the longest n-gram")
        if self.sublinear_tf and self.binary:
            raise ValueError("sublinear=true weighs counts, but binary=true leaves none; set one of them to false")
        if self.sublinear_tf and not self.tfidf:
            raise ValueError("sublinear=true is a part of TF-IDF; set tfidf=true, or sublinear=false")
        return self


class _Level(NamedTuple):
    """All n-grams of one length."""

    keys: Ints  # (M,) ascending
    texts: Ints  # (M,) in how many texts it is a term
    occurs: Ints  # (M,) how often


def _count_level(places: list[NgramPositions], config: FeatureConfig) -> _Level:
    """The n-grams that are one unit longer than those before; those in too few texts are followed no further."""
    keys, inverses = list[Ints](), list[Ints]()
    for piece in places:
        different, inverse = np.unique(piece.grow(), return_inverse=True)
        keys.append(different)
        inverses.append(inverse)
    level = unique_counts(np.concatenate(keys))[0]
    texts, occurs = np.zeros(len(level), np.int64), np.zeros(len(level), np.int64)
    for piece, different, inverse in zip(places, keys, inverses, strict=True):
        piece.row = np.searchsorted(level, different).astype(np.int32)[inverse]
        said, owner = piece.row, piece.text[piece.at]
        if piece.length < config.ngram_range[0]:
            # of shorter n-grams only a word that is no longer than that is a term
            mine = piece.whole() if config.analyzer == "char_wb" else slice(0)
            said, owner = said[mine], owner[mine]
        pairs, many = unique_counts(owner.astype(np.int64) * len(level) + said)
        row = pairs % max(len(level), 1)
        texts += np.bincount(row, minlength=len(level))
        occurs += np.bincount(row, many, minlength=len(level)).astype(np.int64)
    if places and places[0].length >= config.ngram_range[0] and config.min_df > 1:
        for piece in places:
            piece.keep(texts[piece.row] >= config.min_df)
    return _Level(level, texts, occurs)


def _strings(levels: list[_Level], k: int, kept: Ints, words: list[str] | None) -> list[str]:
    """The n-grams in these rows of level k, read off the keys of all levels below."""
    columns, row = list[Ints](), kept
    for level in reversed(levels[: k + 1]):
        key = level.keys[row]
        columns.append(key & ((1 << UNIT_BITS) - 1))
        row = key >> UNIT_BITS
    columns.reverse()
    if words is not None:
        return list(map(" ".join, zip(*([words[unit] for unit in column.tolist()] for column in columns), strict=True)))
    text = np.stack(columns, axis=1).astype("<u4").tobytes().decode("utf-32-le")
    return [text[at : at + k + 1] for at in range(0, len(text), k + 1)]


def _select_terms(terms: list[str], occurs: Ints, max_features: int | None) -> Ints:
    """Which terms are kept, in the order of the alphabet."""
    order = np.array(sorted(range(len(terms)), key=terms.__getitem__), np.int64)
    if max_features is not None:
        order = order[np.sort(np.argsort(-occurs[order], kind="stable")[:max_features])]
    return order


def _table_of(terms: list[str], config: FeatureConfig) -> tuple[Numbers, list[tuple[Ints, Ints]]]:
    """Numbers of the words in the terms; and for each length the keys, ascending, and the column of each, or -1."""
    number: Numbers = TermIds()
    if config.analyzer in WORD_ANALYZERS:
        flat = " ".join(terms).split(" ")
        words = dict.fromkeys(flat)
        number = TermIds(zip(words, range(len(words)), strict=True))
        lengths = np.fromiter((term.count(" ") + 1 for term in terms), np.int64, len(terms))
        units = np.fromiter(map(number.__getitem__, flat), np.int32, len(flat))
    else:
        lengths, units = np.fromiter(map(len, terms), np.int64, len(terms)), codes(terms)
    places = NgramPositions(Units(units, lengths, np.arange(len(terms))))
    places.at = (np.cumsum(lengths) - lengths).astype(np.int32)
    places.row = np.zeros(len(terms), np.int32)
    levels = list[tuple[Ints, Ints]]()
    for k in range(1, int(lengths.max()) + 1):
        keys, inverse = np.unique(places.grow(), return_inverse=True)
        column, ends = np.full(len(keys), -1), places.left[places.at] == k
        column[inverse[ends]] = places.text[places.at[ends]]
        places.row = inverse.astype(np.int32)
        levels.append((keys, column))
    return number, levels


class Features:
    """Terms, each with the number of texts it stands in; a file of it, features.json, is to a baseline what a tokenizer is
    to a network, and `hash` tells it from others."""

    def __init__(self, config: FeatureConfig, terms: list[str], counts: Ints, documents: int) -> None:
        self.config, self.terms, self.counts, self.documents = config, terms, counts, documents
        self.num_features = len(terms)
        self.idf = np.log((1 + documents) / (1 + counts)) + 1  # (size,)
        self._number, self._levels = _table_of(terms, config)

    @classmethod
    def fit(cls, texts: Iterable[str], config: FeatureConfig) -> Self:
        """The terms of these texts."""
        number = defaultdict[str, int](count().__next__)
        places, documents = list[NgramPositions](), 0
        for batch in batches(texts, config.lowercase):
            places.append(NgramPositions(ANALYZERS[config.analyzer](batch, number)))
            documents += len(batch)
        levels = [_count_level(places, config) for _ in range(config.ngram_range[1])] if places else []
        terms, counts, occurs = list[str](), list[Ints](), list[Ints]()
        words = list(number) if config.analyzer in WORD_ANALYZERS else None
        for k, level in enumerate(levels):
            kept = np.flatnonzero(level.texts >= config.min_df)
            terms += _strings(levels, k, kept, words)
            counts.append(level.texts[kept])
            occurs.append(level.occurs[kept])
        if not terms:
            raise DataError(
                "features",
                f"no term of analyzer={config.analyzer!r}, ngrams={config.ngram_range} stands in {config.min_df:,} or more of {documents:,} texts",
                "lower min_count, or choose another analyzer",
            )
        order = _select_terms(terms, np.concatenate(occurs), config.max_features)
        return cls(config, [terms[at] for at in order], np.concatenate(counts)[order], documents)

    def transform(self, texts: Iterable[str]) -> Sparse:
        """One row a text, one column a term; terms that were not there in `fit` count for nothing."""
        parts = [self._count(batch) for batch in batches(texts, self.config.lowercase)]
        many, pairs, counts = ([part[at] for part in parts] for at in range(3))
        indptr = np.append(0, np.cumsum(np.concatenate([np.zeros(0, np.int64), *many])))
        indices = np.concatenate([np.zeros(0, np.int64), *pairs])
        values = np.concatenate([np.zeros(0), *counts])
        return Sparse(indptr, indices, self._weighed(indptr, indices, values), self.num_features)

    def _count(self, batch: list[str]) -> tuple[Ints, Ints, Ints]:
        """How many terms each text has; the column of each of them, and how often it occurs."""
        places = NgramPositions(ANALYZERS[self.config.analyzer](batch, self._number))
        found = list[Ints]()
        for keys, column in self._levels:
            row = find_rows(keys, places.grow())
            places.row = row.astype(np.int32)
            places.keep(row >= 0)
            here = column[places.row]
            said = here >= 0
            found.append(places.text[places.at[said]].astype(np.int64) * self.num_features + here[said])
        pairs, many = unique_counts(np.concatenate(found))
        return np.bincount(pairs // self.num_features, minlength=len(batch)), pairs % self.num_features, many

    def _weighed(self, indptr: Ints, indices: Ints, values: NDArray[np.float64]) -> NDArray[np.float64]:
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
        """The file, byte for byte."""
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
        """The features of a file; a damaged one is refused by name."""
        content = files.read_json(path)
        if not isinstance(content, dict) or content.get("version") != 1:
            raise ModelError(path, "is damaged, or not features of version 1, which this weft reads")
        try:
            config = parse_config(FeatureConfig, content.get("options", {}), at="options")
        except ConfigError as error:
            raise ModelError(path, f"is damaged: {error}") from None
        terms: Any = content.get("terms")
        counts: Any = content.get("counts")
        documents: Any = content.get("documents")
        if not _whole_list(terms, str) or not _whole_list(counts, int) or type(documents) is not int:
            raise ModelError(path, "is damaged: its terms and counts are no lists of strings and whole numbers")
        if len(terms) != len(counts) or terms != sorted(set(terms)) or not 1 <= min(counts) <= max(counts) <= documents:
            raise ModelError(path, "is damaged: its terms, counts and number of documents do not fit each other")
        return cls(config, terms, np.array(counts), documents)


def _whole_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(part) is kind for part in value)
