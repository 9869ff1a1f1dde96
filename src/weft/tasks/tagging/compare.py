"""Comparison of taggers: predictions per sentence, counts per tag or span type, and confusions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.metrics.frequency import by_frequency
from weft.metrics.items import ItemStatistics
from weft.metrics.tagging import scheme_of, tag_counts, types_of
from weft.runs.eval_data import own_source_or_none
from weft.tasks.compare_spec import Compare, EvaluatedRun, FrequencyMetric, LabelCounts, LabelPairs, Predictions
from weft.tasks.tagging.data import words

if TYPE_CHECKING:
    from weft.runs.run import Run


def _without_spaces(tag: str) -> str:
    """A tag with underscores instead of whitespace."""
    return "_".join(tag.split())


def join_tags(tags: Sequence[str]) -> str:
    """The tags of a sentence, separated by spaces; spaces inside a tag become underscores."""
    return " ".join(map(_without_spaces, tags))


def item_predictions(run: Run[Any, Any], sentences: Sequence[Any], items: ItemStatistics) -> Predictions:
    """Inputs, references and statistics of each sentence; accuracy by word frequency if the training data is available."""
    inputs = [" ".join(sentence.words) for sentence in sentences]
    references = [join_tags(sentence.tags) for sentence in sentences]
    lengths = np.array([len(sentence.words) for sentence in sentences], np.int64)
    train, frequencies = own_source_or_none(run.directory, run.config, "train"), {}
    if train is not None:
        counts = Counter(words(train).texts())
        occurrences = np.array([counts[word] for sentence in sentences for word in sentence.words], np.int64)
        predicted, gold = " ".join(items.outputs or ()).split(), " ".join(references).split()
        correct = np.array([tag == gold_tag for tag, gold_tag in zip(predicted, gold, strict=True)], np.float64)
        sentence_indices = np.repeat(np.arange(len(sentences)), lengths)
        statistics = {"correct": correct, "tokens": np.ones(len(correct))}
        frequencies = by_frequency(statistics, sentence_indices, occurrences, len(sentences))
    return Predictions(items, inputs, references, lengths, "sentence", frequencies)


# ---- by tag or span type


def _tag_counts(evidence: EvaluatedRun, names: Sequence[str]) -> ItemStatistics:
    """Number of words of each sentence per predicted, gold and correct tag, (N, K) each."""
    predicted, gold = ([line.split() for line in lines] for lines in (evidence.items.outputs or (), evidence.references))
    return ItemStatistics(evidence.items.keys, tag_counts(predicted, gold, names))


def _span_counts(evidence: EvaluatedRun) -> ItemStatistics:
    """Number of predicted, gold and correct spans of each sentence, (N, C) each, without span types that are not in the
    training data."""
    statistics = evidence.items.statistics
    counts = {name: statistics[f"spans_{name}"][:, :-1] for name in ("predicted", "gold", "correct")}
    return ItemStatistics(evidence.items.keys, counts)


def label_counts(evidence: EvaluatedRun) -> LabelCounts:
    """Counts per span type if the tags are span tags, else per tag."""
    if scheme_of(evidence.labels):
        return LabelCounts("type of span", "spans", types_of(evidence.labels), _span_counts(evidence))
    names = tuple(map(_without_spaces, evidence.labels))
    return LabelCounts("tag", "words", names, _tag_counts(evidence, names))


def confusion(evidence: EvaluatedRun) -> LabelPairs:
    """Gold and predicted tag of each word."""
    tag_ids = {_without_spaces(name): index for index, name in enumerate(evidence.labels)}
    gold = [tag_ids.get(tag, len(tag_ids)) for line in evidence.references for tag in line.split()]
    predicted = [tag_ids[tag] for line in evidence.items.outputs or () for tag in line.split()]
    return LabelPairs(np.array(gold, np.int64), np.array(predicted))


def _has_valid_tags(about: Mapping[str, Any]) -> bool:
    """Whether every word has a predicted tag, and all predicted tags are labels of the run."""
    tags = set(map(_without_spaces, about["labels"]))
    pairs = ((predicted.split(), gold.split()) for predicted, gold in zip(about["outputs"], about["references"], strict=True))
    return all(len(predicted) == len(gold) and tags.issuperset(predicted) for predicted, gold in pairs)


def check(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Names of results that are invalid: span counts must have one column per type, and one for unseen types."""
    if not _has_valid_tags(about):
        yield "outputs"
    names = tuple(about["labels"])
    if not names:
        yield "labels"
    if scheme_of(names):
        shape = (len(about["inputs"]), len(types_of(names)) + 1)
        columns = [f"statistics.spans_{name}" for name in ("predicted", "gold", "correct")]
        yield from (name for name in columns if name not in arrays or arrays[name].shape != shape)


COMPARE = Compare(
    length_unit="words",
    frequency_metric=FrequencyMetric("token_accuracy", "correct", 100.0),
    by_label=label_counts,
    confusion=confusion,
    invalid_fields=check,
)
