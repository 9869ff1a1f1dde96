"""What is wrong with labels and tags: what training takes without a word, and scores hide.

Shapes: N rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from weft.data.findings import CheckOptions, Finding, count_of, first_rows, severity_of
from weft.data.statistics import SplitStatistics
from weft.text.reading import FileSummary, quote

MIN_EXAMPLES = 8  # labels that are named
Labels = list[tuple[str, ...]]


def named(counts: Counter[str]) -> str:
    """\"'B-PER' 3, 'I-PER' 1\", the most frequent first."""
    often = sorted(counts, key=lambda name: (-counts[name], name))
    more = f" and {len(often) - MIN_EXAMPLES:,} more" if len(often) > MIN_EXAMPLES else ""
    return ", ".join(f"{quote(name, 20)} {counts[name]:,}" for name in often[:MIN_EXAMPLES]) + more


def _some(number: int, name: str) -> str:
    return f"1 {name} is" if number == 1 else f"{number:,} {name}s are"


def find_unseen(split: str, labels: Labels, known: set[str], options: CheckOptions) -> Iterator[Finding]:
    """Labels that train has not."""
    counts = Counter(name for row in labels for name in row if name not in known)
    if not counts:
        return
    rows = np.array([any(name in counts for name in row) for row in labels])
    what = f"{_some(len(counts), str(options.labels))} not in train: {named(counts)}"
    fix = "have some of each in train: nothing else can be said there, so these count as wrong"
    yield Finding("warning", "unseen_label", split, what, fix, counts.total(), first_rows(rows))


def find_rare(split: str, labels: Labels, options: CheckOptions) -> Iterator[Finding]:
    """Labels that nothing can be learned from."""
    counts, name = Counter(label for row in labels for label in row), str(options.labels)
    if len(counts) == 1:
        what = f"there is one {name} only: {named(counts)}"
        yield Finding(
            "warning", "one_label", split, what, f"is data.{name} the right column? There is nothing to learn", len(labels)
        )
    once = Counter({label: 1 for label, count in counts.items() if count == 1})
    if once and len(counts) > 1:
        rows = np.array([any(label in once for label in row) for row in labels])
        what = f"{count_of(len(once), len(counts), f'{name}s')} occur once: {named(once)}"
        fix = f"have more of them, or take them together; if there are many, is data.{name} the right column?"
        yield Finding("note", "rare_label", split, what, fix, len(once), first_rows(rows))


def find_contradictions(split: str, labels: Labels, statistics: SplitStatistics, options: CheckOptions) -> Iterator[Finding]:
    """Texts that stand there with other labels, too."""
    _, texts = np.unique(statistics.keys(), return_inverse=True)
    numbers: dict[tuple[str, ...], int] = {}
    # tags stand in the order of their words, labels of a text in any
    given = labels if options.words else [tuple(sorted(row)) for row in labels]
    sets = np.array([numbers.setdefault(row, len(numbers)) for row in given])
    pairs = np.unique(np.stack([texts, sets], axis=1), axis=0)
    several = (np.bincount(pairs[:, 0]) > 1)[texts] & (statistics.lengths.max(axis=1) > 0)
    if count := int(several.sum()):
        what = f"{count_of(count, len(labels), options.rows)} stand there with other {options.labels}s, too"
        fix = "decide which are right: of one text a model says one thing, and the others count as wrong"
        yield Finding(severity_of(count, len(labels)), "contradiction", split, what, fix, count, first_rows(several))


def find_invalid(split: str, labels: Labels, options: CheckOptions) -> Iterator[Finding]:
    """Tags that mark spans, and are not as their scheme writes them."""
    if options.invalid is None:
        return
    wrong = options.invalid(labels)
    if count := int(wrong.sum()):
        what = f"{count_of(count, len(labels), options.rows)} have tags that the scheme of its spans would not write so"
        fix = "nothing, if an I that begins a span is meant to: they are read as conlleval does, and train learns them mended"
        yield Finding(severity_of(count, len(labels)), "invalid_tags", split, what, fix, count, first_rows(wrong))


def skipped(split: str, summary: FileSummary, rows: int, options: CheckOptions) -> Iterator[Finding]:
    """Records of the files without a text, which are left out."""
    if count := summary.skipped:
        what = f"{count_of(count, count + rows, options.rows)} of its files are empty, and are left out; the first is {summary.first_skipped}"
        fix = "take them out, or set data.skip_empty = false to have them refused"
        yield Finding(severity_of(count, count + rows), "skipped", split, what, fix, count)


def find_label_problems(
    splits: Mapping[str, Any], statistics: Mapping[str, SplitStatistics], options: CheckOptions
) -> Iterator[Finding]:
    """All that is to be said about the labels of the splits that could be read."""
    if options.labels_of is None:
        return
    found: dict[str, Labels] = {name: list(map(options.labels_of, split.records())) for name, split in splits.items()}
    known = {label for row in found.get("train", []) for label in row}
    files = set[tuple[str, ...]]()  # of shares of one file it is said once
    for name, labels in found.items():
        summary = splits[name].summary
        if (paths := tuple(map(str, splits[name].given))) not in files:
            yield from skipped(name, summary.files, summary.count, options)
        files.add(paths)
        if name == "train" and (problem := summary.fault()):
            yield Finding("error", "own_labels", name, problem, "put that right first", len(labels))
        elif name == "train":
            yield from find_rare(name, labels, options)
        elif "train" in found:
            yield from find_unseen(name, labels, known, options)
        yield from find_contradictions(name, labels, statistics[name], options)
        yield from find_invalid(name, labels, options)
