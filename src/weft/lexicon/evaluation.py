"""The lexicon of an alignment, and its evaluation against a dictionary."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft import __version__
from weft.errors import DataError
from weft.lexicon.dictionary import Dictionary, gold_translations
from weft.lexicon.retrieval import Retrieval
from weft.metrics.items import Score
from weft.metrics.lexicon import LEXICON, lexicon_items
from weft.metrics.metric import scores
from weft.vectors.word_vectors import WordVectors


class Entry(NamedTuple):
    """A source word with its translations, best first, and their similarities."""

    word: str
    translations: list[tuple[str, float]]


class LexiconScores(NamedTuple):
    scores: list[Score]
    covered: int  # source words with a vector of which a correct translation has one
    total: int


def lexicon(source: WordVectors, target: WordVectors, retrieval: Retrieval, *, count: int) -> list[Entry]:
    """The best translations of all source words."""
    rows = np.arange(len(source.words))
    found, values = retrieval.best(rows, min(count, len(target.words)))
    return [
        Entry(word, [(target.words[row], value) for row, value in zip(ids, similarities, strict=True)])
        for word, ids, similarities in zip(source.words, found.tolist(), values.tolist(), strict=True)
    ]


def evaluate_lexicon(
    dictionary: Dictionary, source: WordVectors, target: WordVectors, retrieval: Retrieval, *, signature: str
) -> LexiconScores:
    """Scores on the source words of a dictionary. Covered are those with a vector, of which a translation has one."""
    gold = gold_translations(dictionary, target)
    ranks: list[np.ndarray | None] = []
    for word, (_, correct) in gold.items():
        row = source.find(word)
        if row is None or not correct:
            ranks.append(None)
            continue
        similarity = retrieval.scores(np.array([row]))[0]
        # ties count against the model: a wrong word that is as similar comes first
        ranks.append(np.array([1 + np.count_nonzero(np.delete(similarity, correct) >= similarity[c]) for c in correct]))
        ranks[-1] += _better_gold(similarity, correct)
    covered = sum(found is not None for found in ranks)
    if not covered:
        first = dictionary.pairs[0]
        problem = f"no word has a vector in {source.name} and a translation in {target.name}"
        raise DataError(f"{dictionary.path}:{first.line}", problem, "is the order source, target? are the words lowercase?")
    return LexiconScores(scores(lexicon_items(ranks), LEXICON, f"{signature}|weft:{__version__}"), covered, len(gold))


def _better_gold(similarity: np.ndarray, correct: list[int]) -> np.ndarray:
    """(n,): for each correct translation, how many other correct ones come before it."""
    order = np.argsort(-similarity[correct], kind="stable")
    before = np.empty(len(correct), np.int64)
    before[order] = np.arange(len(correct))
    return before
