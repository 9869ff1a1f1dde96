"""Word and character error rates of recognized speech, with the kinds of errors.

The errors are those of a minimal alignment of the output with the reference; of several minimal ones, the one that jiwer
reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft import __version__
from weft.errors import DataError
from weft.metrics.items import Array, ItemStatistics, Score, Sums
from weft.metrics.lm import LANGUAGE_VALIDATION
from weft.metrics.metric import Metric, scores
from weft.metrics.metric import values as metric_values

KINDS = ("substitutions", "deletions", "insertions")


class Errors(NamedTuple):
    substitutions: int
    deletions: int
    insertions: int

    @property
    def total(self) -> int:
        return sum(self)


def count_errors(reference: Sequence[str], output: Sequence[str]) -> Errors:
    """The errors of an output, by kind."""
    start = 0  # of the part between the common beginning and the common end, which have no errors
    while start < min(len(reference), len(output)) and reference[start] == output[start]:
        start += 1
    end = 0
    while end < min(len(reference), len(output)) - start and reference[-1 - end] == output[-1 - end]:
        end += 1
    return _count(reference[start : len(reference) - end], output[start : len(output) - end])


def _count(reference: Sequence[str], output: Sequence[str]) -> Errors:
    """Go back through the table of edit distances: a deletion first, an insertion only if it is better than a substitution."""
    distances = edit_distances(reference, output)
    substitutions = deletions = insertions = 0
    row, column = len(reference), len(output)
    while row and column:
        if distances[row][column] == distances[row - 1][column] + 1:
            deletions, row = deletions + 1, row - 1
        elif column > 1 and distances[row][column - 1] == distances[row - 1][column - 1] - 1:
            insertions, column = insertions + 1, column - 1
        else:
            substitutions += int(reference[row - 1] != output[column - 1])
            row, column = row - 1, column - 1
    return Errors(substitutions, deletions + row, insertions + column)


def edit_distances(reference: Sequence[str], output: Sequence[str]) -> list[list[int]]:
    """The edit distance of each beginning of the reference to each beginning of the output."""
    table = [list(range(len(output) + 1))]
    for expected in reference:
        above, row = table[-1], [table[-1][0] + 1]
        for column, actual in enumerate(output, 1):
            row.append(min(above[column - 1] + (expected != actual), above[column] + 1, row[-1] + 1))
        table.append(row)
    return table


def _closest(output: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[Errors, int]:
    """The errors against the closest reference, and its length."""
    return min(((count_errors(reference, output), len(reference)) for reference in references), key=lambda item: item[0].total)


def speech_items(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> ItemStatistics:
    """Statistics of each utterance. Words are separated by whitespace, which counts as one space among the characters."""
    rows: dict[str, list[float]] = {name: [] for name in ("exact", "words", "characters", "character_errors", *KINDS)}
    for output, texts in zip(outputs, references, strict=True):
        output_words, reference_words = output.split(), [text.split() for text in texts]
        errors, words = _closest(output_words, reference_words)
        character_errors, characters = _closest(" ".join(output_words), [" ".join(text) for text in reference_words])
        row = {"exact": float(not errors.total), "words": words, "characters": characters, **errors._asdict()}
        for name, value in {**row, "character_errors": character_errors.total}.items():
            rows[name].append(float(value))
    statistics = {name: np.array(values) for name, values in rows.items()}
    return ItemStatistics(np.arange(len(outputs)), {"utterances": np.ones(len(outputs)), **statistics}, list(outputs))


def _rate(errors: Array, total: Array) -> Array:
    """Percent; NaN without words."""
    rate: Array = 100 * np.divide(errors, total, out=np.full_like(errors, np.nan), where=total > 0)
    return rate


def _kind(name: str) -> Metric:
    return Metric(name, lambda totals: _rate(totals[name], totals["words"]), "lower", percent=True)


def _word_error_rate(totals: Sums) -> Array:
    return _rate(totals["substitutions"] + totals["deletions"] + totals["insertions"], totals["words"])


WER = Metric("wer", _word_error_rate, "lower", percent=True)
CER = Metric("cer", lambda totals: _rate(totals["character_errors"], totals["characters"]), "lower", percent=True)
EXACT = Metric("exact_match", lambda totals: _rate(totals["exact"], totals["utterances"]), "higher", percent=True)
SPEECH = (WER, CER, *map(_kind, KINDS), EXACT)
SPEECH_VALIDATION = (*LANGUAGE_VALIDATION, WER, CER)


def validation_values(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """The error rates of outputs."""
    return metric_values(speech_items(outputs, references), (WER, CER))


def speech_scores(items: ItemStatistics, *, search: str, samples: int = 1000, seed: int = 0) -> list[Score]:
    """All scores with their confidence intervals over utterances."""
    lines = len(items.keys)
    if not lines:
        raise DataError("evaluate", "no utterances to evaluate")
    suffix = f"weft:{__version__}|search:{search}|unit:utterance|lines:{lines}|resamples:{samples}|seed:{seed}|interval:95%"
    signatures = {metric.name: f"tok:{'char' if metric.name == 'cer' else 'space'}|{suffix}" for metric in SPEECH}
    return scores(items, SPEECH, signatures, samples=samples, seed=seed)
