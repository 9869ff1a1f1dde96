"""Comparison of classifiers: predictions per text, counts per label, and confusions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.metrics.classification import SINGLE_LABEL
from weft.metrics.items import ItemStatistics
from weft.metrics.metric import metrics_of
from weft.tasks.compare_spec import Compare, EvaluatedRun, LabelCounts, LabelPairs, Predictions

if TYPE_CHECKING:
    from weft.runs.run import Run


def item_predictions(run: Run[Any, Any], examples: Sequence[Any], items: ItemStatistics) -> Predictions:
    """Inputs, references and statistics of each example; the texts of a pair are joined."""
    columns = zip(*(example.texts for example in examples), strict=True)
    lengths = np.sum([run.vocabulary.tokenizer.encode_concatenated(column)[1] for column in columns], axis=0)
    inputs = [" | ".join(example.texts) for example in examples]
    references = [", ".join(example.labels) for example in examples]
    return Predictions(items, inputs, references, lengths, "text")


def label_counts(evidence: EvaluatedRun) -> LabelCounts:
    return LabelCounts("label", "items", evidence.labels, evidence.items)


def confusion(evidence: EvaluatedRun) -> LabelPairs | None:
    """Gold and predicted label of each text; None for multi-label classification."""
    if not metrics_of((SINGLE_LABEL,), [score.name for score in evidence.scores]):
        return None
    statistics = evidence.items.statistics
    gold = np.where(statistics["unseen"] > 0, len(evidence.labels), statistics["gold"].argmax(1))
    return LabelPairs(gold, statistics["predicted"].argmax(1))


def check(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Names of results that are invalid: counts must have one column per label."""
    if not about["labels"]:
        yield "labels"
    shape = (len(about["inputs"]), len(about["labels"]))
    for name in ("statistics.predicted", "statistics.gold", "statistics.correct"):
        if name not in arrays or arrays[name].shape != shape:
            yield name


COMPARE = Compare(by_label=label_counts, confusion=confusion, invalid_fields=check)
