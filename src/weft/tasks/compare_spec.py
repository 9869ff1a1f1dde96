"""What comparisons ask of a task, beside its metrics: what was read and meant item by item, breakdowns, minimal pairs.

Like the record itself, nothing here imports torch or numpy when it runs.
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
    """What comparisons keep of an evaluation, item by item. Shapes: N items, F classes of frequency."""

    items: ItemStatistics  # those of the evaluation, or others that are the same whatever the tokenizer
    inputs: list[str]  # what was read
    references: list[str]  # what was meant; "" where nothing is
    lengths: np.ndarray  # int64 (N,): of each input
    item: str  # what one is: "line", "block of about 100 bytes"
    frequencies: Mapping[str, np.ndarray] = {}  # statistics (N, F) by how frequent a token or a word was in training
    rarest: np.ndarray | None = None  # int64 (N,): occurrences in training of the rarest token of an input
    unknown: float = 0.0  # the share of tokens, of a language model's text, that are <unk>


class Evidence(Protocol):
    """What a comparison keeps of one run, as far as the functions of a task ask for it."""

    @property
    def scores(self) -> list[Score]: ...

    @property
    def items(self) -> ItemStatistics: ...

    @property
    def references(self) -> list[str]: ...

    @property
    def labels(self) -> tuple[str, ...]: ...


class Rate(NamedTuple):
    """A metric of tokens, or words, of one frequency: a statistic of `frequencies` over their number."""

    metric: str  # one of the task's
    statistic: str
    scale: float = 1.0


class LabelCounts(NamedTuple):
    """How often each label was said, meant, and both: (N, K) each, as statistics of these names."""

    by: str  # what a label is: "label", "tag"
    unit: str  # what is counted: "items", "words"
    names: Sequence[str]
    items: ItemStatistics


class Confused(NamedTuple):
    """What was said for what: the number of a label each, that of labels which training never saw the last."""

    meant: np.ndarray  # ints (M,)
    said: np.ndarray  # ints (M,)


class SentenceScores(NamedTuple):
    """Sentences under a model, one after another."""

    log_probs: np.ndarray  # float64 (M,); 0 where a sentence is too long
    tokens: np.ndarray  # int64 (M,), those that were predicted
    long: np.ndarray  # bool (M,)


class Sentences(NamedTuple):
    """How models of a task give a sentence by itself a probability: for minimal pairs."""

    # the run, sentences, bool (M,) whether each is whole (one that is not has no end that could be predicted), progress
    score: Callable[[Run[Any, Any], Sequence[str], np.ndarray, Callable[[int, int], None] | None], SentenceScores]
    whole: bool = False  # whether it reads sentences as a whole, from both sides: none ends with the word that decides


class Contexts(NamedTuple):
    """What models of a task predict a token from: a policy that is named, and that each run follows in its own way."""

    default: str  # where none is named
    check: Callable[[RunConfig, str, str], None]  # refuse a policy that the run, or the row, of this name can't follow
    follow: Callable[[Run[Any, Any], str | None], str]  # the policy as a run follows it
    opening: Callable[[Run[Any, Any]], Sequence[int]]  # the tokens that a text by itself comes after


def refuse_labels(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Evidence of a task without labels has none."""
    if about["labels"]:
        yield "labels"


@dataclass(frozen=True)
class Compare:
    """What comparisons ask of a task, beside its metrics; the defaults fit most."""

    models: str = ""  # what a page calls one of its models; "": its noun
    outputs: bool = True  # something is written for each item; else items are pieces of a text, read back from tokens
    length_unit: str = "tokens"
    rate: Rate | None = None  # by how frequent tokens, or words, were in training
    by_label: Callable[[Evidence], LabelCounts] | None = None  # tasks with labels
    confusion: Callable[[Evidence], Confused | None] | None = None  # None: an example may have several labels
    check: Callable[[Mapping[str, Any], Mapping[str, np.ndarray]], Iterator[str]] = refuse_labels  # what is wrong in evidence
    references: Callable[[Evidence], str] = field(default=lambda evidence: "")  # by what outputs were scored: alike in all rows
    tokenize: Callable[[Sequence[Run[Any, Any]]], str] | None = None  # how the outputs of all these runs are split alike
    contexts: Contexts | None = None
    sentences: Sentences | None = None
