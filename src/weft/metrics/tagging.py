"""Span tagging schemes (BIO, IOB1, BIOES, BILOU), and metrics of tagged sentences, in percent.

A tag is O, a prefix with a type ("B-PER"), or a prefix alone ("B"). Invalid sequences are read as by conlleval and seqeval's
default mode: a span continues while an I or E follows a B or I of the same type. Any other tag ends the span, and starts a new
one unless it is O. `strict_spans` returns only spans with valid tags, as seqeval's strict mode.

Shapes: N sentences, K labels, C span types, R resamples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import Literal, NamedTuple

import numpy as np

from weft import __version__
from weft.errors import DataError
from weft.metrics.classification import LabelScore, f1, per_label, ratio
from weft.metrics.items import Array, Function, ItemStatistics, Score, Sums
from weft.metrics.metric import Metric, scores

Scheme = Literal["BIO", "IOB1", "BIOES", "BILOU"]
OUTSIDE = "O"
TAG_PREFIXES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}  # in BIOES terms: L is E, U is S
PREFIXES: dict[Scheme, str] = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES", "BILOU": "BILU"}


class Span(NamedTuple):
    """A span of words[start:end]."""

    type: str
    start: int
    end: int


def _parse(tag: str) -> tuple[str, str]:
    """Prefix and type of a tag. The prefix is one of B, I, E, S, O; invalid tags are read as O."""
    if tag[:1] in TAG_PREFIXES and tag[1:2] in ("", "-"):
        return TAG_PREFIXES[tag[0]], tag[2:] or "_"
    return OUTSIDE, ""


def _continues(previous: tuple[str, str], tag: tuple[str, str]) -> bool:
    return previous[0] in "BI" and tag[0] in "IE" and previous[1] == tag[1]


def spans(tags: Sequence[str]) -> set[Span]:
    """All spans of a sentence. The tags need not be valid."""
    result, start, previous = set(), 0, (OUTSIDE, "")
    for i, tag in enumerate(map(_parse, [*tags, OUTSIDE])):
        if not _continues(previous, tag):
            if previous[0] != OUTSIDE:
                result.add(Span(previous[1], start, i))
            start = i
        previous = tag
    return result


def _span_tags(span: Span, scheme: Scheme, *, is_adjacent: bool) -> list[str]:
    """The tags of a span; `is_adjacent` if another span of its type ends where it starts."""
    first, inside, *rest = list(PREFIXES[scheme])
    last, single = rest or (inside, first)
    if scheme == "IOB1" and not is_adjacent:
        first = single = inside
    size = span.end - span.start
    prefixes = [single] if size == 1 else [first, *[inside] * (size - 2), last]
    return prefixes if span.type == "_" else [f"{prefix}-{span.type}" for prefix in prefixes]


def tags_of(spans: Iterable[Span], length: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence of `length` words with these spans, which must not overlap."""
    spans = set(spans)
    ends = {(span.type, span.end) for span in spans}
    tags = [OUTSIDE] * length
    for span in spans:
        tags[span.start : span.end] = _span_tags(span, scheme, is_adjacent=(span.type, span.start) in ends)
    return tags


def repair(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Valid tags of the scheme for the same spans. Also converts tags of other schemes."""
    return tags_of(spans(tags), len(tags), scheme)


def strict_spans(tags: Sequence[str], scheme: Scheme) -> set[Span]:
    """Spans whose tags are valid in the scheme."""
    expected = repair(tags, scheme)
    return {span for span in spans(tags) if list(tags[span.start : span.end]) == expected[span.start : span.end]}


def scheme_of(labels: Iterable[str]) -> Scheme | None:
    """The scheme of a set of tags; None if they are not span tags.

    BIO and IOB1 can have the same tags. The result is then BIO, and `validate` and `repair` treat IOB1 as invalid BIO.
    """
    span_tags = {label for label in labels if label != OUTSIDE}
    prefixes = {tag[:1] for tag in span_tags}
    if not span_tags or any(tag[:1] not in TAG_PREFIXES or tag[1:2] not in ("", "-") for tag in span_tags):
        return None
    if span_tags & set(TAG_PREFIXES) and "B" not in span_tags:
        return None  # single letters such as "S" are ordinary tags, unless "B" is one of them
    if prefixes == {"I"}:
        return "IOB1"
    schemes: tuple[Scheme, ...] = ("BIO", "BIOES", "BILOU")
    return next((scheme for scheme in schemes if prefixes <= set(PREFIXES[scheme])), None)


def _may_follow(previous: tuple[str, str], tag: tuple[str, str], scheme: Scheme) -> bool:
    """Whether the scheme allows this transition. The start and the end of a sentence count as O."""
    may_continue = previous[0] in "BI" and previous[1] == tag[1]
    if scheme == "BIO":
        return tag[0] != "I" or may_continue
    if scheme == "IOB1":
        return tag[0] != "B" or may_continue
    return may_continue if tag[0] in "IE" else previous[0] not in "BI"


def allowed(labels: Sequence[str], scheme: Scheme) -> Array:
    """Allowed transitions from row to column, (K + 1, K + 1) bool: the last row is the start of a sentence, the last column its
    end."""
    tags = [_parse(label) for label in [*labels, OUTSIDE]]
    return np.array([[_may_follow(previous, tag, scheme) for tag in tags] for previous in tags])


def validate(tags: Sequence[str], scheme: Scheme) -> list[int]:
    """Positions whose tag may not follow the previous tag; the sentence length if the last tag may not end a sentence."""
    parsed = [_parse(tag) for tag in [OUTSIDE, *tags, OUTSIDE]]
    return [i for i, (previous, tag) in enumerate(pairwise(parsed)) if not _may_follow(previous, tag, scheme)]


def types_of(labels: Iterable[str]) -> tuple[str, ...]:
    """Span types of a set of tags, sorted."""
    return tuple(sorted({span_type for prefix, span_type in map(_parse, labels) if prefix != OUTSIDE}))


class TaggingSetup(NamedTuple):
    """Details of the evaluation, for the signature."""

    labels: str  # hash
    scheme: Scheme | None  # None if tags are not span tags
    samples: int = 1000
    seed: int = 0


Tags = Sequence[Sequence[str]]  # the tags of each sentence
SPAN_COUNTS = ("spans_correct", "spans_predicted", "spans_gold")


def _span_counts(predicted: Tags, gold: Tags, types: Sequence[str]) -> dict[str, Array]:
    """Number of spans of each type, (N, C + 1) each, by name of the statistic."""
    column = {span_type: index for index, span_type in enumerate(types)}
    counts = {name: np.zeros((len(predicted), len(types) + 1)) for name in SPAN_COUNTS}
    for row, (predicted_spans, gold_spans) in enumerate(zip(map(spans, predicted), map(spans, gold), strict=True)):
        span_sets = (predicted_spans & gold_spans, predicted_spans, gold_spans)
        for name, span_set in zip(SPAN_COUNTS, span_sets, strict=True):
            columns = np.array([column.get(span.type, len(types)) for span in span_set], np.int64)
            counts[name][row] = np.bincount(columns, minlength=len(types) + 1)
    return counts


def tag_items(
    predicted: Tags, gold: Tags, keys: Array, *, known: Sequence[Array] | None = None, types: Sequence[str] = ()
) -> ItemStatistics:
    """Statistics of sentences: sentences, exact, tokens, correct (N,).

    With `known`, which tells for each word whether it is in the training data, also oov and oov_correct (N,). With the span
    `types` of the labels, also spans_correct, spans_predicted and spans_gold (N, C + 1); the last column counts other types.
    """
    if [len(tags) for tags in predicted] != [len(tags) for tags in gold]:
        raise ValueError("tag_items: a sentence has different numbers of predicted and gold tags")
    correct = [
        np.array([tag == gold_tag for tag, gold_tag in zip(*sentence, strict=True)], bool)
        for sentence in zip(predicted, gold, strict=True)
    ]
    statistics = {
        "sentences": np.ones(len(correct)),
        "exact": np.array([row.all() for row in correct], np.float64),
        "tokens": np.array([len(row) for row in correct], np.float64),
        "correct": np.array([row.sum() for row in correct], np.float64),
    }
    if known is not None:
        is_oov = [~np.asarray(row, bool) for row in known]
        oov_correct = [(row & hits).sum() for row, hits in zip(is_oov, correct, strict=True)]
        statistics["oov"] = np.array([row.sum() for row in is_oov], np.float64)
        statistics["oov_correct"] = np.array(oov_correct, np.float64)
    return ItemStatistics(keys, statistics | (_span_counts(predicted, gold, types) if types else {}))


def _percentage(part: str, whole: str) -> Function:
    def score(totals: Sums) -> Array:
        return 100 * ratio(totals[part], totals[whole], empty=np.nan)

    return score


def _span_percentage(whole: str) -> Function:
    def score(totals: Sums) -> Array:
        return 100 * ratio(totals["spans_correct"].sum(1), totals[whole].sum(1))  # 0 without spans, as in seqeval

    return score


def _span_f1(totals: Sums) -> Array:
    return f1(*(totals[name].sum(1) for name in SPAN_COUNTS))


def _span_or_oov_metric(name: str, compute: Function, requires: str) -> Metric:
    """A metric of spans or OOV words. Single sentences are ranked by token accuracy, because they have few of them or none."""
    return Metric(name, compute, "higher", item_metric="token_accuracy", requires=requires, percent=True)


TAGS = (
    Metric("token_accuracy", _percentage("correct", "tokens"), "higher", percent=True),
    Metric("sentence_accuracy", _percentage("exact", "sentences"), "higher", percent=True),
    _span_or_oov_metric("oov_accuracy", _percentage("oov_correct", "oov"), "oov"),
    _span_or_oov_metric("span_f1", _span_f1, "spans_correct"),
    _span_or_oov_metric("span_precision", _span_percentage("spans_predicted"), "spans_correct"),
    _span_or_oov_metric("span_recall", _span_percentage("spans_gold"), "spans_correct"),
)


def signature(setup: TaggingSetup, *, sentences: int, tokens: int) -> str:
    """Signature of the scores: everything that they depend on."""
    return (
        f"weft:{__version__}|labels:{setup.labels[:8]}|spans:{setup.scheme or 'none'}|read:conlleval|unit:sentence"
        f"|sentences:{sentences}|tokens:{tokens}|resamples:{setup.samples}|seed:{setup.seed}|interval:95%"
    )


def tag_scores(items: ItemStatistics, setup: TaggingSetup) -> list[Score]:
    """Scores whose statistics are available, with confidence intervals; OOV accuracy only if there are OOV words."""
    sentences = len(items.keys)
    if not sentences:
        raise DataError("evaluate", "no sentences to evaluate")
    text = signature(setup, sentences=sentences, tokens=int(items.statistics["tokens"].sum()))
    return scores(items, TAGS, text, samples=setup.samples, seed=setup.seed)


def per_type(items: ItemStatistics, types: Sequence[str]) -> dict[str, LabelScore]:
    """Scores of each span type."""
    # without the last column, which counts spans of other types
    counts = {name.removeprefix("spans_"): items.statistics[name][:, : len(types)] for name in SPAN_COUNTS}
    return dict(zip(types, per_label(ItemStatistics(items.keys, counts)), strict=True))


# ---- scores per tag


def tag_counts(predicted: Tags, gold: Tags, names: Sequence[str]) -> dict[str, Array]:
    """Number of words of each sentence for which each tag is predicted, gold, and both ("correct"), (N, K) each."""
    column = {name: index for index, name in enumerate(names)}
    counts = {name: np.zeros((len(gold), len(names))) for name in ("predicted", "gold", "correct")}
    for row, (predicted_tags, gold_tags) in enumerate(zip(predicted, gold, strict=True)):
        correct_tags = [tag for tag, gold_tag in zip(predicted_tags, gold_tags, strict=True) if tag == gold_tag]
        for name, tags in (("predicted", predicted_tags), ("gold", gold_tags), ("correct", correct_tags)):
            np.add.at(counts[name][row], [column[tag] for tag in tags if tag in column], 1.0)
    return counts


def per_tag(predicted: Tags, gold: Tags, names: Sequence[str]) -> dict[str, LabelScore]:
    """Scores of each tag over all words."""
    all_predicted, all_gold = list(chain.from_iterable(predicted)), list(chain.from_iterable(gold))
    items = ItemStatistics(np.arange(1), tag_counts([all_predicted], [all_gold], names))
    return dict(zip(names, per_label(items), strict=True))


def tag_confusion(predicted: Tags, gold: Tags, names: Sequence[str]) -> Array:
    """Confusion matrix (K + 1, K) of words, ints: gold tags in rows, the last for unseen tags, predicted tags in columns."""
    column = {name: index for index, name in enumerate(names)}
    rows = np.array([column.get(tag, len(names)) for tag in chain.from_iterable(gold)], np.int64)
    columns = np.array([column[tag] for tag in chain.from_iterable(predicted)], np.int64)
    counts = np.zeros((len(names) + 1, len(names)), np.int64)
    np.add.at(counts, (rows, columns), 1)
    return counts
