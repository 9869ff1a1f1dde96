"""Checks of labels and tags for problems that neither training nor scores reveal.

Shapes: N rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from weft.data.findings import CheckOptions, Finding, count_of, first_rows, severity_of
from weft.data.statistics import SplitStatistics
from weft.text.reading import FileSummary, quote, subject

MAX_LISTED = 8  # labels in a message
Labels = list[tuple[str, ...]]  # of each row


def list_counts(counts: Counter[str]) -> str:
    """\"'B-PER' (3), 'I-PER' (1)\", the most frequent first."""
    frequent = sorted(counts, key=lambda name: (-counts[name], name))
    more = f" and {len(frequent) - MAX_LISTED:,} more" if len(frequent) > MAX_LISTED else ""
    return ", ".join(f"{quote(name, 20)} ({counts[name]:,})" for name in frequent[:MAX_LISTED]) + more


def find_unseen(split: str, labels: Labels, train_labels: set[str], options: CheckOptions) -> Iterator[Finding]:
    """Labels that are not in train."""
    counts = Counter(name for row in labels for name in row if name not in train_labels)
    if not counts:
        return
    rows = np.array([any(name in counts for name in row) for row in labels])
    message = f"{subject(len(counts), str(options.labels), 'is', 'are')} not in train: {list_counts(counts)}"
    fix = "add examples of each to train; a model cannot predict them, so they count as errors"
    yield Finding("warning", "unseen_label", split, message, fix, counts.total(), first_rows(rows))


def find_rare(split: str, labels: Labels, options: CheckOptions) -> Iterator[Finding]:
    """Labels with too few examples to learn from: a single label for all rows, and labels that occur once."""
    counts, name = Counter(label for row in labels for label in row), str(options.labels)
    if len(counts) == 1:
        message = f"there is only one {name}: {list_counts(counts)}"
        fix = f"add examples with other {name}s, or check data.{name}_column"
        yield Finding("warning", "single_label", split, message, fix, len(labels))
    singletons = Counter({label: 1 for label, count in counts.items() if count == 1})
    if singletons and len(counts) > 1:
        rows = np.array([any(label in singletons for label in row) for row in labels])
        message = f"{count_of(len(singletons), len(counts), f'{name}s')} occur once: {list_counts(singletons)}"
        fix = f"add examples or merge them; if there are many, check data.{name}_column"
        yield Finding("note", "rare_label", split, message, fix, len(singletons), first_rows(rows))


def find_conflicts(split: str, labels: Labels, statistics: SplitStatistics, options: CheckOptions) -> Iterator[Finding]:
    """Equal texts with different labels."""
    _, text_ids = np.unique(statistics.keys(), return_inverse=True)
    ids: dict[tuple[str, ...], int] = {}
    # tags have the order of the words; the labels of a text are a set
    label_sets = labels if options.words else [tuple(sorted(row)) for row in labels]
    label_set_ids = np.array([ids.setdefault(row, len(ids)) for row in label_sets])
    pairs = np.unique(np.stack([text_ids, label_set_ids], axis=1), axis=0)
    conflicting = (np.bincount(pairs[:, 0]) > 1)[text_ids] & (statistics.lengths.max(axis=1) > 0)
    if count := int(conflicting.sum()):
        message = f"{count_of(count, len(labels), options.rows)} also occur with other {options.labels}s"
        fix = "correct them: a model predicts one result per text, so the others count as errors"
        yield Finding(
            severity_of(count, len(labels)), "conflicting_labels", split, message, fix, count, first_rows(conflicting)
        )


def find_invalid(split: str, labels: Labels, options: CheckOptions) -> Iterator[Finding]:
    """Span tags that their scheme does not allow."""
    if options.invalid_tags is None:
        return
    invalid = options.invalid_tags(labels)
    if count := int(invalid.sum()):
        message = f"{count_of(count, len(labels), options.rows)} have tags that are invalid in their scheme"
        fix = "none needed if an I tag may start a span: tags are read as conlleval reads them, and repaired for training"
        yield Finding(severity_of(count, len(labels)), "invalid_tags", split, message, fix, count, first_rows(invalid))


def find_skipped(split: str, summary: FileSummary, rows: int, options: CheckOptions) -> Iterator[Finding]:
    """Empty records, which are skipped."""
    if count := summary.skipped:
        message = f"{count_of(count, count + rows, options.rows)} are empty and skipped, the first at {summary.first_skipped}"
        fix = "remove them, or set data.skip_empty = false to make them an error"
        yield Finding(severity_of(count, count + rows), "skipped", split, message, fix, count)


def find_label_problems(
    splits: Mapping[str, Any], statistics: Mapping[str, SplitStatistics], options: CheckOptions
) -> Iterator[Finding]:
    """All findings about the labels of the splits that can be read."""
    if options.labels_of is None:
        return
    labels_by_split: dict[str, Labels] = {name: list(map(options.labels_of, split.records())) for name, split in splits.items()}
    train_labels = {label for row in labels_by_split.get("train", []) for label in row}
    files = set[tuple[str, ...]]()  # splits of the same files skip the same records: report them once
    for name, labels in labels_by_split.items():
        summary = splits[name].summary
        if (paths := tuple(map(str, splits[name].inputs))) not in files:
            yield from find_skipped(name, summary.files, summary.count, options)
        files.add(paths)
        if name == "train" and (problem := summary.problem()):
            yield Finding("error", "unique_labels", name, problem, summary.label_hint(), len(labels))
        elif name == "train":
            yield from find_rare(name, labels, options)
        elif "train" in labels_by_split:
            yield from find_unseen(name, labels, train_labels, options)
        yield from find_conflicts(name, labels, statistics[name], options)
        yield from find_invalid(name, labels, options)
