"""What is wrong with labels and tags: what training takes without a word, and scores hide.

Shapes: N rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from weft.data.findings import Checked, Finding, by_share, first_rows, of
from weft.data.survey import Survey
from weft.text.gate import Seen, quoted

FEW = 8  # labels that are named
Labels = list[tuple[str, ...]]


def named(counts: Counter[str]) -> str:
    """\"'B-PER' 3, 'I-PER' 1\", the most frequent first."""
    often = sorted(counts, key=lambda name: (-counts[name], name))
    more = f" and {len(often) - FEW:,} more" if len(often) > FEW else ""
    return ", ".join(f"{quoted(name, 20)} {counts[name]:,}" for name in often[:FEW]) + more


def _some(number: int, name: str) -> str:
    return f"1 {name} is" if number == 1 else f"{number:,} {name}s are"


def unseen(split: str, labels: Labels, known: set[str], told: Checked) -> Iterator[Finding]:
    """Labels that train has not."""
    counts = Counter(name for row in labels for name in row if name not in known)
    if not counts:
        return
    rows = np.array([any(name in counts for name in row) for row in labels])
    what = f"{_some(len(counts), str(told.labels))} not in train: {named(counts)}"
    cure = "have some of each in train: nothing else can be said there, so these count as wrong"
    yield Finding("warning", "unseen_label", split, what, cure, counts.total(), first_rows(rows))


def learned(split: str, labels: Labels, told: Checked) -> Iterator[Finding]:
    """Labels that nothing can be learned from."""
    counts, name = Counter(label for row in labels for label in row), str(told.labels)
    if len(counts) == 1:
        what = f"there is one {name} only: {named(counts)}"
        yield Finding(
            "warning", "one_label", split, what, f"is data.{name} the right column? There is nothing to learn", len(labels)
        )
    once = Counter({label: 1 for label, count in counts.items() if count == 1})
    if once and len(counts) > 1:
        rows = np.array([any(label in once for label in row) for row in labels])
        what = f"{of(len(once), len(counts), f'{name}s')} occur once: {named(once)}"
        cure = f"have more of them, or take them together; if there are many, is data.{name} the right column?"
        yield Finding("note", "rare_label", split, what, cure, len(once), first_rows(rows))


def contradictions(split: str, labels: Labels, survey: Survey, told: Checked) -> Iterator[Finding]:
    """Texts that stand there with other labels, too."""
    _, texts = np.unique(survey.keys(), return_inverse=True)
    numbers: dict[tuple[str, ...], int] = {}
    # tags stand in the order of their words, labels of a text in any
    given = labels if told.words else [tuple(sorted(row)) for row in labels]
    sets = np.array([numbers.setdefault(row, len(numbers)) for row in given])
    pairs = np.unique(np.stack([texts, sets], axis=1), axis=0)
    several = (np.bincount(pairs[:, 0]) > 1)[texts] & (survey.lengths.max(axis=1) > 0)
    if count := int(several.sum()):
        what = f"{of(count, len(labels), told.rows)} stand there with other {told.labels}s, too"
        cure = "decide which are right: of one text a model says one thing, and the others count as wrong"
        yield Finding(by_share(count, len(labels)), "contradiction", split, what, cure, count, first_rows(several))


def invalid(split: str, labels: Labels, told: Checked) -> Iterator[Finding]:
    """Tags that mark spans, and are not as their scheme writes them."""
    if told.invalid is None:
        return
    wrong = told.invalid(labels)
    if count := int(wrong.sum()):
        what = f"{of(count, len(labels), told.rows)} have tags that the scheme of its spans would not write so"
        cure = "nothing, if an I that begins a span is meant to: they are read as conlleval does, and train learns them mended"
        yield Finding(by_share(count, len(labels)), "invalid_tags", split, what, cure, count, first_rows(wrong))


def skipped(split: str, seen: Seen, rows: int, told: Checked) -> Iterator[Finding]:
    """Records of the files without a text, which are left out."""
    if count := seen.skipped:
        what = (
            f"{of(count, count + rows, told.rows)} of its files are empty, and are left out; the first is {seen.first_skipped}"
        )
        cure = "take them out, or set data.skip_empty = false to have them refused"
        yield Finding(by_share(count, count + rows), "skipped", split, what, cure, count)


def label_findings(splits: Mapping[str, Any], surveys: Mapping[str, Survey], told: Checked) -> Iterator[Finding]:
    """All that is to be said about the labels of the splits that could be read."""
    if told.labels_of is None:
        return
    found: dict[str, Labels] = {name: list(map(told.labels_of, split.records())) for name, split in splits.items()}
    known = {label for row in found.get("train", []) for label in row}
    files = set[tuple[str, ...]]()  # of shares of one file it is said once
    for name, labels in found.items():
        seen = splits[name].seen
        if (paths := tuple(map(str, splits[name].given))) not in files:
            yield from skipped(name, seen.files, seen.count, told)
        files.add(paths)
        if name == "train" and (fault := seen.fault()):
            yield Finding("error", "own_labels", name, fault, "put that right first", len(labels))
        elif name == "train":
            yield from learned(name, labels, told)
        elif "train" in found:
            yield from unseen(name, labels, known, told)
        yield from contradictions(name, labels, surveys[name], told)
        yield from invalid(name, labels, told)
