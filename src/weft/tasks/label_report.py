"""Tables for people of what was said of labels: scores of each, and which was taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.text.table_layout import columns

if TYPE_CHECKING:
    import numpy as np

    from weft.metrics.classification import LabelScore
    from weft.metrics.items import ItemStatistics

SHOWN = 12  # labels of a confusion matrix: more make no table that can be read


def label_table(names: Sequence[str], found: Sequence[LabelScore], *, unit: str = "examples") -> str:
    """Precision, recall and F1 of each label."""
    rows = [["", "precision", "recall", "F1", unit]]
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


def label_report(names: Sequence[str], items: ItemStatistics, *, multilabel: bool) -> str:
    """Scores of each label, and what was taken for what."""
    from weft.metrics.classification import confusion, per_label

    if multilabel:
        return "\n" + label_table(names, per_label(items))
    confused = confusion(items) if len(names) <= SHOWN else None  # labels by labels
    return _tables(names, per_label(items), (items.statistics["said"].sum(0) > 0).tolist(), confused)


def _tables(
    names: Sequence[str],
    found: Sequence[LabelScore],
    said: Sequence[bool],
    confused: np.ndarray | None,
    *,
    unit: str = "examples",
) -> str:
    """Scores of the labels that occur or were `said`, and the confusion matrix, where it is small enough."""
    # the others are no part of macro F1; of a thousand labels a small file has a few
    occur = [at for at, one in enumerate(found) if one.support or said[at]]
    scores = label_table([names[at] for at in occur], [found[at] for at in occur], unit=unit)
    parts = [scores, "" if confused is None else confusion_table(names, confused)]
    return "".join(f"\n{part}" for part in parts if part)


def tag_report(labels: Sequence[str], items: ItemStatistics, meant: Sequence[Sequence[str]]) -> str:
    """Scores of each type of span where tags mark spans, else of each tag, and what was taken for what; `meant` are the right
    tags of each sentence, spelled as the outputs spell them."""
    from weft.metrics.tagging import per_tag, per_type, scheme_of, tag_confusion, types_of

    if scheme_of(labels) is not None:
        found = per_type(items, types_of(labels))
        return "\n" + label_table(list(found), list(found.values()))
    names, said = ["_".join(name.split()) for name in labels], [line.split() for line in items.outputs or ()]
    spoken = {tag for row in said for tag in row}
    confused = tag_confusion(said, meant, names) if len(names) <= SHOWN else None
    return _tables(
        names, list(per_tag(said, meant, names).values()), [name in spoken for name in names], confused, unit="words"
    )
