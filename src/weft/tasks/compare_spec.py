"""The part of a task that comparisons use in addition to its metrics: predictions of single items, breakdowns, minimal pairs.

Like `spec`, this module does not import torch or numpy at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np

    from weft.media.files import MediaFile
    from weft.metrics.items import ItemStatistics, Score
    from weft.runs.config import RunConfig
    from weft.runs.run import Run


class Predictions(NamedTuple):
    """Inputs, references and statistics of single items, for comparisons. Shapes: N items, F frequency classes."""

    items: ItemStatistics  # those of the evaluation, or others that do not depend on the tokenizer
    inputs: list[str]
    references: list[str]  # "" if there is none
    lengths: np.ndarray  # int64 (N,): the length of each input
    item: str  # the kind of item: "line", "block of about 100 bytes"
    frequencies: Mapping[str, np.ndarray] = {}  # statistics (N, F) by frequency of tokens or words in the training data
    min_frequencies: np.ndarray | None = None  # int64 (N,): training frequency of the rarest token of each input
    unk_ratio: float = 0.0  # fraction of <unk> tokens in the text of a language model
    files: Sequence[MediaFile] = ()  # of the items, if inputs are files


class Preview(NamedTuple):
    """A small copy of the file of an item, for reports."""

    kind: Literal["audio", "image"]
    urls: list[str]  # data: URLs; several images are frames of a clip
    note: str = ""  # what is left out: "first 20 s of 61.3 s"


class Previews(NamedTuple):
    """How reports show the files of items."""

    make: Callable[[MediaFile], Preview | None]  # None for a file that cannot be shown; raises DataError
    noun: str  # "Recordings"
    limits: str  # what is kept of a file: "the first 20 s of each"


class EvaluatedRun(Protocol):
    """The results of one run that the functions of a task use."""

    @property
    def scores(self) -> list[Score]: ...

    @property
    def items(self) -> ItemStatistics: ...

    @property
    def references(self) -> list[str]: ...

    @property
    def labels(self) -> tuple[str, ...]: ...


class FrequencyMetric(NamedTuple):
    """A metric by frequency class of tokens or words: a statistic of `Predictions.frequencies` divided by their number."""

    metric: str  # a metric of the task
    statistic: str
    scale: float = 1.0


class LabelCounts(NamedTuple):
    """Counts of each label as predicted, gold and correct: (N, K) each, as statistics of these names."""

    by: str  # "label" or "tag"
    unit: str  # what is counted: "items" or "words"
    names: Sequence[str]
    items: ItemStatistics


class LabelPairs(NamedTuple):
    """Pairs of gold and predicted label IDs. The last ID is for labels that are not in the training data."""

    gold: np.ndarray  # ints (M,)
    predicted: np.ndarray  # ints (M,)


class SentenceScores(NamedTuple):
    """Log-probabilities of M sentences."""

    log_probs: np.ndarray  # float64 (M,); 0 if a sentence is too long
    num_tokens: np.ndarray  # int64 (M,): number of predicted tokens
    is_too_long: np.ndarray  # bool (M,)


class SentenceScoring(NamedTuple):
    """How models of a task score single sentences, for minimal pairs."""

    # run, sentences, bool (M,) whether each is complete (otherwise its EOS is not predicted), progress
    score: Callable[[Run[Any, Any], Sequence[str], np.ndarray, Callable[[int, int], None] | None], SentenceScores]
    bidirectional: bool = False  # the model reads both directions, so a sentence cannot be cut after the critical word


class ContextPolicies(NamedTuple):
    """Context policies of a task: which context a token is predicted from. Each run implements a policy in its own way."""

    default: str
    check: Callable[[RunConfig, str, str], None]  # refuse a policy that the run of this name does not support
    # the policy as the run implements it: "full" becomes "full/stride:32/64"
    resolve: Callable[[Run[Any, Any], str | None], str]
    bos_ids: Callable[[Run[Any, Any]], Sequence[int]]  # tokens that precede a text


def refuse_labels(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Results of a task without labels must not have labels."""
    if document["labels"]:
        yield "labels"


@dataclass(frozen=True)
class Compare:
    """The part of a task that comparisons use in addition to its metrics. The defaults suit most tasks."""

    model_noun: str = ""  # in reports; "": that of the task
    same_items: str = "use the same data for both"  # what to do about runs whose items differ
    has_outputs: bool = True  # each item has an output; otherwise items are blocks of a text
    length_unit: str = "tokens"
    frequency_metric: FrequencyMetric | None = None  # metric by frequency in the training data
    by_label: Callable[[EvaluatedRun], LabelCounts] | None = None  # for tasks with labels
    confusion: Callable[[EvaluatedRun], LabelPairs | None] | None = None  # returns None for multilabel data
    invalid_fields: Callable[[Mapping[str, Any], Mapping[str, np.ndarray]], Iterator[str]] = refuse_labels  # of stored results
    reference_format: Callable[[EvaluatedRun], str] = field(default=lambda run: "")  # must be equal for all runs
    bleu_tokenizer: Callable[[Sequence[Run[Any, Any]]], str] | None = None  # one for all these runs
    curves: tuple[str, ...] = ()  # validation metrics whose curves a report draws besides that of the ranking metric
    contexts: ContextPolicies | None = None
    sentences: SentenceScoring | None = None
    previews: Previews | None = None  # if inputs are files
    input_files: Callable[[Any], Iterable[MediaFile]] | None = None  # those that the records of a data set name
