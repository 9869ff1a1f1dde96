"""What comparisons ask of taggers: what was read and meant, sentence by sentence; tags, spans and their confusions."""

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


def _one_word(tag: str) -> str:
    """A tag without blanks: those inside it are underscores."""
    return "_".join(tag.split())


def in_line(tags: Sequence[str]) -> str:
    """The tags of a sentence with blanks between, as many as it has words: those inside a tag are underscores."""
    return " ".join(map(_one_word, tags))


def item_predictions(run: Run[Any, Any], given: Sequence[Any], found: ItemStatistics) -> Predictions:
    """Sentence by sentence."""
    inputs, references = [" ".join(sentence.words) for sentence in given], [in_line(sentence.tags) for sentence in given]
    lengths = np.array([len(sentence.words) for sentence in given], np.int64)
    train, classed = own_source_or_none(run.directory, run.config, "train"), {}
    if train is not None:
        frequencies = Counter(words(train).texts())
        occurrences = np.array([frequencies[word] for sentence in given for word in sentence.words], np.int64)
        predicted = [tag for line in found.outputs or () for tag in line.split()]
        correct = np.array([a == b for a, b in zip(predicted, " ".join(references).split(), strict=True)], np.float64)
        owners = np.repeat(np.arange(len(given)), lengths)
        classed = by_frequency({"right": correct, "tokens": np.ones(len(correct))}, owners, occurrences, len(given))
    return Predictions(found, inputs, references, lengths, "sentence", classed)


# ---- by tag, or by type of span


def _tag_counts(evidence: EvaluatedRun, names: Sequence[str]) -> ItemStatistics:
    """Of each sentence how often each tag was said, meant, and both: (N, K) each."""
    predicted, gold = ([line.split() for line in lines] for lines in (evidence.items.outputs or (), evidence.references))
    return ItemStatistics(evidence.items.keys, tag_counts(predicted, gold, names))


def _span_counts(evidence: EvaluatedRun) -> ItemStatistics:
    """Of each sentence how many spans of each type, without those of types that training never saw."""
    names = {"said": "spans_said", "meant": "spans_meant", "both": "spans_both"}
    return ItemStatistics(evidence.items.keys, {ours: evidence.items.statistics[name][:, :-1] for ours, name in names.items()})


def label_counts(evidence: EvaluatedRun) -> LabelCounts:
    """Of types of spans, where tags mark some; else of tags."""
    if scheme_of(evidence.labels):
        return LabelCounts("type of span", "spans", types_of(evidence.labels), _span_counts(evidence))
    names = tuple(map(_one_word, evidence.labels))
    return LabelCounts("tag", "words", names, _tag_counts(evidence, names))


def confusion(evidence: EvaluatedRun) -> LabelPairs:
    """Of the tags of all words."""
    column = {_one_word(name): index for index, name in enumerate(evidence.labels)}
    tags = [column.get(tag, len(column)) for line in evidence.references for tag in line.split()]
    predicted = [column[tag] for line in evidence.items.outputs or () for tag in line.split()]
    return LabelPairs(np.array(tags, np.int64), np.array(predicted))


def _tags_fit(about: Mapping[str, Any]) -> bool:
    """Whether every word has a tag, and what was said is one that training knew."""
    tags = set(map(_one_word, about["labels"]))
    pairs = ((predicted.split(), gold.split()) for predicted, gold in zip(about["outputs"], about["references"], strict=True))
    return all(len(predicted) == len(gold) and tags.issuperset(predicted) for predicted, gold in pairs)


def check(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Counts of spans have a column for each type, and one for those that training never saw."""
    if not _tags_fit(about):
        yield "outputs"
    names = tuple(about["labels"])
    if not names:
        yield "labels"
    if scheme_of(names):
        shape = (len(about["inputs"]), len(types_of(names)) + 1)
        columns = [f"statistics.spans_{name}" for name in ("said", "meant", "both")]
        yield from (name for name in columns if name not in arrays or arrays[name].shape != shape)


COMPARE = Compare(
    length_unit="words",
    frequency_metric=FrequencyMetric("token_accuracy", "right", 100.0),
    by_label=label_counts,
    confusion=confusion,
    invalid_fields=check,
)
