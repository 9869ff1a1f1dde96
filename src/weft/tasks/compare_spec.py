"""The part of a task that comparisons use in addition to its metrics: predictions of single items, breakdowns, minimal pairs.

Like `spec`, this module does not import torch or numpy at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np

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
    rarest: np.ndarray | None = None  # int64 (N,): training frequency of the rarest token of each input
    unknown: float = 0.0  # fraction of <unk> tokens in the text of a language model


class Evidence(Protocol):
    """The results of one run that the functions of a task use."""

    @property
    def scores(self) -> list[Score]: ...

    @property
    def items(self) -> ItemStatistics: ...

    @property
    def references(self) -> list[str]: ...

    @property
    def labels(self) -> tuple[str, ...]: ...


class Rate(NamedTuple):
    """A metric of the tokens or words of one frequency class: a statistic of `frequencies` divided by their number."""

    metric: str  # a metric of the task
    statistic: str
    scale: float = 1.0


class LabelCounts(NamedTuple):
    """Counts of each label as predicted, gold and correct: (N, K) each, as statistics of these names."""

    by: str  # "label" or "tag"
    unit: str  # what is counted: "items" or "words"
    names: Sequence[str]
    items: ItemStatistics


class Confused(NamedTuple):
    """Pairs of gold and predicted labels, as label IDs. The last ID stands for labels that are not in the training data."""

    meant: np.ndarray  # ints (M,)
    said: np.ndarray  # ints (M,)


class SentenceScores(NamedTuple):
    """Log-probabilities of sentences."""

    log_probs: np.ndarray  # float64 (M,); 0 if a sentence is too long
    tokens: np.ndarray  # int64 (M,): number of predicted tokens
    long: np.ndarray  # bool (M,)


class Sentences(NamedTuple):
    """How models of a task score single sentences, for minimal pairs."""

    # run, sentences, bool (M,) whether each is complete (otherwise its EOS is not predicted), progress
    score: Callable[[Run[Any, Any], Sequence[str], np.ndarray, Callable[[int, int], None] | None], SentenceScores]
    whole: bool = False  # whether the model reads sentences in both directions, so that they cannot end at the critical word


class Contexts(NamedTuple):
    """Context policies of a task: which context a token is predicted from. Each run implements a policy in its own way."""

    default: str  # the default policy
    check: Callable[[RunConfig, str, str], None]  # refuse a policy that the run of this name does not support
    follow: Callable[[Run[Any, Any], str | None], str]  # the policy as implemented by a run
    bos_ids: Callable[[Run[Any, Any]], Sequence[int]]  # tokens that precede a text


def refuse_labels(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Results of a task without labels must not have labels."""
    if about["labels"]:
        yield "labels"


@dataclass(frozen=True)
class Compare:
    """The part of a task that comparisons use in addition to its metrics. The defaults suit most tasks."""

    models: str = ""  # the name of its models in reports; "": the noun of the task
    outputs: bool = True  # each item has an output; otherwise items are blocks of a text
    length_unit: str = "tokens"
    rate: Rate | None = None  # metric by frequency in the training data
    by_label: Callable[[Evidence], LabelCounts] | None = None  # for tasks with labels
    confusion: Callable[[Evidence], Confused | None] | None = None  # returns None for multilabel data
    check: Callable[[Mapping[str, Any], Mapping[str, np.ndarray]], Iterator[str]] = refuse_labels  # problems of stored results
    references: Callable[[Evidence], str] = field(
        default=lambda evidence: ""
    )  # how outputs were scored: must be equal for all runs
    tokenize: Callable[[Sequence[Run[Any, Any]]], str] | None = None  # the BLEU tokenizer for all these runs
    contexts: Contexts | None = None
    sentences: Sentences | None = None
