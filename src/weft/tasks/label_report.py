"""Tables for people of what was said of labels: scores of each, and which was taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.text.columns import columns

if TYPE_CHECKING:
    import numpy as np

    from weft.metrics.items import Items
    from weft.metrics.labels import LabelScore

SHOWN = 12  # labels of a confusion matrix: more make no table that can be read


def label_table(names: Sequence[str], found: Sequence[LabelScore]) -> str:
    """Precision, recall and F1 of each label."""
    rows = [["", "precision", "recall", "F1", "examples"]]
    rows += [
        [name, f"{one.precision:.1f}", f"{one.recall:.1f}", f"{one.f1:.1f}", f"{one.support:,}"]
        for name, one in zip(names, found, strict=True)
    ]
    return columns(rows)


def confusion_table(names: Sequence[str], counts: np.ndarray) -> str:
    """How often each label, a row, was taken for each, a column; nothing where there are too many for a table."""
    if len(names) > SHOWN:
        return ""
    heads = [*names, "(never seen)"]
    rows = [["right \\ said", *names]]
    rows += [[head, *(str(count) for count in row)] for head, row in zip(heads, counts.tolist(), strict=True) if sum(row)]
    return columns(rows)


def label_report(names: Sequence[str], items: Items, *, several: bool) -> str:
    """Scores of each label, and what was taken for what."""
    from weft.metrics.labels import confusion, per_label

    if several:
        return "\n" + label_table(names, per_label(items))
    found, said = per_label(items), items.statistics["said"].sum(0)
    # the others are no part of macro F1; of a thousand labels a small file has a few
    occur = [at for at, one in enumerate(found) if one.support or said[at]]
    confused = confusion_table(names, confusion(items)) if len(names) <= SHOWN else ""  # labels by labels
    parts = [label_table([names[at] for at in occur], [found[at] for at in occur]), confused]
    return "".join(f"\n{part}" for part in parts if part)


def tag_report(names: Sequence[str], items: Items) -> str:
    """Scores of each type of span, where tags mark spans."""
    from weft.metrics.spans import per_type, scheme_of, types_of

    if scheme_of(names) is None:
        return ""
    found = per_type(items, types_of(names))
    return "\n" + label_table(list(found), list(found.values()))
