"""Text tables of label predictions: scores per label, and confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.text.table_layout import columns

if TYPE_CHECKING:
    import numpy as np

    from weft.metrics.classification import LabelScore
    from weft.metrics.items import ItemStatistics

MAX_LABELS = 12  # in a confusion matrix: a larger table is not readable


def label_table(names: Sequence[str], scores: Sequence[LabelScore], *, unit: str = "examples") -> str:
    """Precision, recall and F1 of each label."""
    rows = [["", "precision", "recall", "F1", unit]]
    rows += [
        [name, f"{score.precision:.1f}", f"{score.recall:.1f}", f"{score.f1:.1f}", f"{score.support:,}"]
        for name, score in zip(names, scores, strict=True)
    ]
    return columns(rows)


def confusion_table(names: Sequence[str], counts: np.ndarray) -> str:
    """The confusion matrix, gold labels in rows and predicted labels in columns; empty if there are too many labels."""
    if len(names) > MAX_LABELS:
        return ""
    gold_names = [*names, "(unseen)"]
    rows = [["gold \\ predicted", *names]]
    rows += [[name, *(str(count) for count in row)] for name, row in zip(gold_names, counts.tolist(), strict=True) if sum(row)]
    return columns(rows)


def _tables(
    names: Sequence[str],
    scores: Sequence[LabelScore],
    predicted: Sequence[bool],
    confusion_counts: np.ndarray | None,
    *,
    unit: str = "examples",
) -> str:
    """Scores of the labels that occur or were predicted, and the confusion matrix if it is small enough."""
    # other labels are not part of macro F1; a small file may have few of a thousand labels
    indices = [index for index, score in enumerate(scores) if score.support or predicted[index]]
    table = label_table([names[index] for index in indices], [scores[index] for index in indices], unit=unit)
    parts = [table, "" if confusion_counts is None else confusion_table(names, confusion_counts)]
    return "".join(f"\n{part}" for part in parts if part)


def label_report(names: Sequence[str], items: ItemStatistics, *, multilabel: bool) -> str:
    """Scores per label, and the confusion matrix."""
    from weft.metrics.classification import confusion, per_label

    if multilabel:
        return "\n" + label_table(names, per_label(items))
    confusion_counts = confusion(items) if len(names) <= MAX_LABELS else None
    return _tables(names, per_label(items), (items.statistics["predicted"].sum(0) > 0).tolist(), confusion_counts)


def tag_report(labels: Sequence[str], items: ItemStatistics, gold: Sequence[Sequence[str]]) -> str:
    """Scores per span type if tags mark spans, otherwise per tag, with the confusion matrix; `gold` has the tags of each
    sentence in the form of the outputs."""
    from weft.metrics.tagging import per_tag, per_type, scheme_of, tag_confusion, types_of

    if scheme_of(labels) is not None:
        by_type = per_type(items, types_of(labels))
        return "\n" + label_table(list(by_type), list(by_type.values()))
    names, predicted = ["_".join(name.split()) for name in labels], [line.split() for line in items.outputs or ()]
    occurring = {tag for row in predicted for tag in row}
    confusion_counts = tag_confusion(predicted, gold, names) if len(names) <= MAX_LABELS else None
    return _tables(
        names,
        list(per_tag(predicted, gold, names).values()),
        [name in occurring for name in names],
        confusion_counts,
        unit="words",
    )
