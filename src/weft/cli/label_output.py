"""What commands print of texts and words with labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.tasks.classification.predict import Labelling
    from weft.tasks.tagging.predict import Tagging


def label_line(found: Labelling, *, several: bool) -> str:
    """`label<TAB>probability`; where there may be several `a:0.93<TAB>b:0.71`, and an empty line where none is said."""
    if not several:
        return f"{found.labels[0]}\t{found.probabilities[found.labels[0]]:.4f}"
    return "\t".join(f"{name}:{found.probabilities[name]:.4f}" for name in found.labels)


def label_values(found: Labelling | None, *, several: bool) -> dict[str, Any]:
    """What is added to a record of a file: label and probability, lists of them where there may be several."""
    if found is None:
        return {"prediction": None, "probability": None}
    shares = [found.probabilities[name] for name in found.labels]
    if several:
        return {"prediction": list(found.labels), "probability": shares}
    return {"prediction": found.labels[0], "probability": shares[0]}


def label_json(text: Any, found: Labelling) -> dict[str, Any]:
    return {"text": text, "labels": list(found.labels), "probabilities": found.probabilities}


def tag_line(found: Tagging) -> str:
    """`word/TAG word/TAG`."""
    return " ".join(f"{word}/{tag}" for word, tag in zip(found.words, found.tags, strict=True))


def tag_json(text: Any, found: Tagging) -> dict[str, Any]:
    spans = [{"type": span.type, "start": span.start, "end": span.end} for span in found.spans]
    return {"text": text, "words": found.words, "tags": found.tags, "spans": spans}
