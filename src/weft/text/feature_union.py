"""Features of a text: n-grams of words next to n-grams of characters.

N-grams of characters share weight between words with a common stem or ending and see punctuation marks; n-grams of words are
more exact. Logistic regression over both is better than over either alone if there is little text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from weft import files
from weft.text.features import FeatureConfig, Features, Sparse, hstack
from weft.text.term_counts import WORD_ANALYZERS

CHAR_NGRAM = 5  # longest n-gram of characters by default
# n-grams of characters are about five times as many as the characters, and help less as the text grows
MAX_CHARS = 2_000_000


def with_char_ngrams(config: FeatureConfig, texts: Sequence[str]) -> FeatureConfig:
    """The options with `max_char_ngram` set: by default, a function of the amount of text."""
    if config.max_char_ngram is not None:
        return config
    is_small = config.analyzer in WORD_ANALYZERS and sum(map(len, texts)) <= MAX_CHARS
    return config.model_copy(update={"max_char_ngram": CHAR_NGRAM if is_small else 0})


def _part_configs(config: FeatureConfig) -> list[FeatureConfig]:
    """The options of each part."""
    words = config.model_copy(update={"max_char_ngram": 0})
    if not config.max_char_ngram:
        return [words]
    return [words, words.model_copy(update={"analyzer": "char", "ngram_range": [1, config.max_char_ngram]})]


class FeatureUnion:
    """Feature extractors of one text; their features are concatenated. `hash` identifies them."""

    def __init__(self, parts: Sequence[Features]) -> None:
        self.parts = parts

    @classmethod
    def fit(cls, texts: Sequence[str], config: FeatureConfig) -> Self:
        """Build the vocabularies of the texts."""
        return cls([Features.fit(texts, part) for part in _part_configs(with_char_ngrams(config, texts))])

    @property
    def config(self) -> FeatureConfig:
        """The options, with `max_char_ngram` set."""
        max_char_ngram = self.parts[1].config.ngram_range[1] if len(self.parts) > 1 else 0
        return self.parts[0].config.model_copy(update={"max_char_ngram": max_char_ngram})

    def transform(self, texts: Sequence[str]) -> Sparse:
        """A matrix with a row per text; terms outside the vocabularies are ignored."""
        return hstack([part.transform(texts) for part in self.parts])

    @property
    def num_features(self) -> int:
        return sum(part.num_features for part in self.parts)

    @property
    def terms(self) -> list[str]:
        """The term of each column."""
        return [term for part in self.parts for term in part.terms]

    @property
    def hash(self) -> str:
        return hashlib.sha256(" ".join(part.hash for part in self.parts).encode()).hexdigest()

    def save(self, directory: Path, column: int) -> None:
        """Write the vocabularies of a text column, one file per part."""
        files.remove(_path(directory, column, 1))
        for index, part in enumerate(self.parts):
            part.save(_path(directory, column, index))

    @classmethod
    def load(cls, directory: Path, column: int) -> Self:
        """Load the files that `save` wrote."""
        paths = [_path(directory, column, 0), _path(directory, column, 1)]
        return cls([Features.load(path) for index, path in enumerate(paths) if index == 0 or path.exists()])


def _path(directory: Path, column: int, part: int) -> Path:
    return directory / f"features.{column}{'.char' if part else ''}.json"
