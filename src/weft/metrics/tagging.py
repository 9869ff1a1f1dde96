"""Spans that tags mark (BIO, IOB1, BIOES, BILOU), and scores of tagged sentences, in percent.

A tag is O, or a letter with a type ("B-PER") or alone ("B"). Any sequence of tags is read, as conlleval and seqeval's default
mode read it: a span goes on as long as an I, or an E, follows a B or an I of its type; everything else ends it, and begins
one unless it is O. `strict_spans` has those alone that the scheme would write so: seqeval's strict mode.

Shapes: N sentences, K labels, C types of span, R resamples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from weft import __version__
from weft.errors import DataError
from weft.metrics.classification import LabelScore, f1, per_label, ratio
from weft.metrics.items import Array, Function, ItemStatistics, Score, Sums, total
from weft.metrics.metric import Metric, scores

Scheme = Literal["BIO", "IOB1", "BIOES", "BILOU"]
OUTSIDE = "O"
TAG_PREFIXES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}  # BILOU is BIOES with other letters
PREFIXES: dict[Scheme, str] = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES", "BILOU": "BILU"}


class Span(NamedTuple):
    """words[start:end] are of this type."""

    type: str
    start: int
    end: int


def _read(tag: str) -> tuple[str, str]:
    """The prefix of a tag, one of BIES or O, and its type; an invalid tag is outside."""
    if tag[:1] in TAG_PREFIXES and tag[1:2] in ("", "-"):
        return TAG_PREFIXES[tag[0]], tag[2:] or "_"
    return OUTSIDE, ""


def _continues(before: tuple[str, str], tag: tuple[str, str]) -> bool:
    return before[0] in "BI" and tag[0] in "IE" and before[1] == tag[1]


def spans(tags: Sequence[str]) -> set[Span]:
    """Every span of a sentence's tags, which need not be valid."""
    found, start, before = set(), 0, (OUTSIDE, "")
    for index, tag in enumerate(map(_read, [*tags, OUTSIDE])):
        if _continues(before, tag):
            before = tag
            continue
        if before[0] != OUTSIDE:
            found.add(Span(before[1], start, index))
        start, before = index, tag
    return found


def _marks(span: Span, scheme: Scheme, *, touches: bool) -> list[str]:
    """The tags of one span; `touches` says that one of its type ends where it starts."""
    first, inside, *rest = list(PREFIXES[scheme])
    last, single = rest or (inside, first)
    if scheme == "IOB1" and not touches:
        first = single = inside
    size = span.end - span.start
    letters = [single] if size == 1 else [first, *[inside] * (size - 2), last]
    return letters if span.type == "_" else [f"{letter}-{span.type}" for letter in letters]


def tags_of(spans: Iterable[Span], length: int, scheme: Scheme) -> list[str]:
    """The tags that mark these spans, none of which overlap, in a sentence of `length` words."""
    marked = set(spans)
    ends = {(span.type, span.end) for span in marked}
    tags = [OUTSIDE] * length
    for span in marked:
        tags[span.start : span.end] = _marks(span, scheme, touches=(span.type, span.start) in ends)
    return tags


def repair(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Valid tags of a scheme that mark the same spans; also turns one scheme into another."""
    return tags_of(spans(tags), len(tags), scheme)


def strict_spans(tags: Sequence[str], scheme: Scheme) -> set[Span]:
    """The spans whose tags are what the scheme writes for them."""
    expected = repair(tags, scheme)
    return {span for span in spans(tags) if list(tags[span.start : span.end]) == expected[span.start : span.end]}


def scheme_of(labels: Iterable[str]) -> Scheme | None:
    """The scheme of a set of tags; None where they mark no spans. Those of BIO and of IOB1 can be the same: then it says BIO,
    and IOB1 is what `validate` finds at fault and `repair` turns into it."""
    marks = {label for label in labels if label != OUTSIDE}
    letters = {mark[:1] for mark in marks}
    if not marks or any(mark[:1] not in TAG_PREFIXES or mark[1:2] not in ("", "-") for mark in marks):
        return None
    if marks & set(TAG_PREFIXES) and "B" not in marks:
        return None  # letters without types are names of something else, unless spans begin
    if letters == {"I"}:
        return "IOB1"
    schemes: tuple[Scheme, ...] = ("BIO", "BIOES", "BILOU")
    return next((scheme for scheme in schemes if letters <= set(PREFIXES[scheme])), None)


def _may_follow(before: tuple[str, str], tag: tuple[str, str], scheme: Scheme) -> bool:
    """Whether valid tags have this move; the start and the end of a sentence are as O."""
    same = before[0] in "BI" and before[1] == tag[1]  # the span before it is open, or may be, and of its type
    if scheme == "BIO":
        return tag[0] != "I" or same
    if scheme == "IOB1":
        return tag[0] != "B" or same
    return same if tag[0] in "IE" else before[0] not in "BI"


def allowed(labels: Sequence[str], scheme: Scheme) -> Array:
    """Which tag may follow which, row to column, (K + 1, K + 1) bool; the last row is the start of a sentence, the last column
    its end."""
    read = [_read(label) for label in [*labels, OUTSIDE]]
    return np.array([[_may_follow(before, tag, scheme) for tag in read] for before in read])


def validate(tags: Sequence[str], scheme: Scheme) -> list[int]:
    """The positions whose tag may not follow the one before; the length of the sentence if its last tag may not be last."""
    read = [_read(tag) for tag in [OUTSIDE, *tags, OUTSIDE]]
    return [index for index, (before, tag) in enumerate(pairwise(read)) if not _may_follow(before, tag, scheme)]


def types_of(labels: Iterable[str]) -> tuple[str, ...]:
    """The types of span that a set of tags can mark, sorted."""
    return tuple(sorted({kind for letter, kind in map(_read, labels) if letter != OUTSIDE}))


class TaggingSetup(NamedTuple):
    """How sentences were tagged and are resampled, for the signature."""

    labels: str  # hash
    scheme: Scheme | None  # None: tags mark no spans
    samples: int = 1000
    seed: int = 0


Tags = Sequence[Sequence[str]]  # of each sentence


def _span_counts(predicted: Tags, gold: Tags, types: Sequence[str]) -> dict[str, Array]:
    column = {kind: index for index, kind in enumerate(types)}
    counts = {name: np.zeros((len(predicted), len(types) + 1)) for name in ("spans_said", "spans_meant", "spans_both")}
    for row, (ours, theirs) in enumerate(zip(map(spans, predicted), map(spans, gold), strict=True)):
        for name, found in (("spans_said", ours), ("spans_meant", theirs), ("spans_both", ours & theirs)):
            columns = np.array([column.get(span.type, len(types)) for span in found], np.int64)
            counts[name][row] = np.bincount(columns, minlength=len(types) + 1)
    return counts


def tag_items(
    predicted: Tags, gold: Tags, keys: Array, *, known: Sequence[Array] | None = None, types: Sequence[str] = ()
) -> ItemStatistics:
    """The statistics of each sentence: sentences, exact, tokens, right (N,); where `known` says of each word whether training
    had it, oov and oov_right (N,), of the others; and where tags mark spans, of these `types`, spans_said, spans_meant and
    spans_both (N, C + 1), the last column for types that training never saw."""
    if [len(tags) for tags in predicted] != [len(tags) for tags in gold]:
        raise ValueError("tag_items: a sentence has other numbers of tags said and meant")
    correct = [
        np.array([a == b for a, b in zip(ours, theirs, strict=True)], bool)
        for ours, theirs in zip(predicted, gold, strict=True)
    ]
    statistics = {
        "sentences": np.ones(len(correct)),
        "exact": np.array([row.all() for row in correct], np.float64),
        "tokens": np.array([len(row) for row in correct], np.float64),
        "right": np.array([row.sum() for row in correct], np.float64),
    }
    if known is not None:
        new = [~np.asarray(row, bool) for row in known]
        statistics["oov"] = np.array([row.sum() for row in new], np.float64)
        statistics["oov_right"] = np.array([(row & hit).sum() for row, hit in zip(new, correct, strict=True)], np.float64)
    return ItemStatistics(keys, statistics | (_span_counts(predicted, gold, types) if types else {}))


def _ratio(part: str, whole: str) -> Function:
    def score(totals: Sums) -> Array:
        return 100 * ratio(totals[part], totals[whole], empty=np.nan)

    return score


def _span_share(whole: str) -> Function:
    def score(totals: Sums) -> Array:
        return 100 * ratio(totals["spans_both"].sum(1), totals[whole].sum(1))  # of nothing 0, as in seqeval

    return score


def _span_f1(totals: Sums) -> Array:
    return f1(*(totals[name].sum(1) for name in ("spans_both", "spans_said", "spans_meant")))


# a sentence has few spans and fewer new words, if any: single ones are told apart by their tags
TAGS = (
    Metric("token_accuracy", _ratio("right", "tokens"), "higher", percent=True),
    Metric("sentence_accuracy", _ratio("exact", "sentences"), "higher", percent=True),
    Metric("oov_accuracy", _ratio("oov_right", "oov"), "higher", single="token_accuracy", needs="oov", percent=True),
    Metric("span_f1", _span_f1, "higher", single="token_accuracy", needs="spans_both", percent=True),
    Metric("span_precision", _span_share("spans_said"), "higher", single="token_accuracy", needs="spans_both", percent=True),
    Metric("span_recall", _span_share("spans_meant"), "higher", single="token_accuracy", needs="spans_both", percent=True),
)


def signature(setup: TaggingSetup, *, sentences: int, tokens: int) -> str:
    """Every choice behind a score, named."""
    return (
        f"weft:{__version__}|labels:{setup.labels[:8]}|spans:{setup.scheme or 'none'}|read:conlleval|unit:sentence"
        f"|sentences:{sentences}|tokens:{tokens}|resamples:{setup.samples}|seed:{setup.seed}|interval:95%"
    )


def tag_scores(items: ItemStatistics, setup: TaggingSetup) -> list[Score]:
    """Every score whose statistic was counted, with its interval; that of words outside the vocabulary where there are any."""
    sentences = len(items.keys)
    if not sentences:
        raise DataError("evaluate", "no sentences to evaluate")
    named = signature(setup, sentences=sentences, tokens=int(items.statistics["tokens"].sum()))
    return scores(items, TAGS, named, samples=setup.samples, seed=setup.seed)


def per_type(items: ItemStatistics, types: Sequence[str]) -> dict[str, LabelScore]:
    """The span scores of each type."""
    correct, predicted, gold = (total(items.statistics)[name][0] for name in ("spans_both", "spans_said", "spans_meant"))
    columns = (100 * ratio(correct, predicted), 100 * ratio(correct, gold), f1(correct, predicted, gold), gold.astype(np.int64))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {kind: LabelScore(*row) for kind, row in zip(types, rows, strict=False)}  # the column of unseen types is left


# ---- each tag by itself


def tag_counts(predicted: Tags, gold: Tags, names: Sequence[str]) -> dict[str, Array]:
    """How often each sentence has each of these tags: said, meant, and both on one word, (N, K) each."""
    column = {name: index for index, name in enumerate(names)}
    counts = {name: np.zeros((len(gold), len(names))) for name in ("said", "meant", "both")}
    for row, (ours, theirs) in enumerate(zip(predicted, gold, strict=True)):
        correct = [a for a, b in zip(ours, theirs, strict=True) if a == b]
        for name, tags in (("said", ours), ("meant", theirs), ("both", correct)):
            np.add.at(counts[name][row], [column[tag] for tag in tags if tag in column], 1.0)
    return counts


def per_tag(predicted: Tags, gold: Tags, names: Sequence[str]) -> dict[str, LabelScore]:
    """The scores of each tag, over words."""
    ours, theirs = ([tag for row in rows for tag in row] for rows in (predicted, gold))
    items = ItemStatistics(np.arange(1), tag_counts([ours], [theirs], names))  # all sentences as one
    return dict(zip(names, per_label(items), strict=True))


def tag_confusion(predicted: Tags, gold: Tags, names: Sequence[str]) -> Array:
    """How often a word of each tag got each, (K + 1, K), ints: rows are what was meant, the last what training never saw."""
    column = {name: index for index, name in enumerate(names)}
    counts = np.zeros((len(names) + 1, len(names)), np.int64)
    for ours, theirs in zip(predicted, gold, strict=True):
        np.add.at(counts, ([column.get(tag, len(names)) for tag in theirs], [column[tag] for tag in ours]), 1)
    return counts
