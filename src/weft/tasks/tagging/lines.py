"""Line input and output of taggers: a sentence to words with tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.tasks.lines import Lines
from weft.tasks.tagging.predict import Sentence, TagPrediction

if TYPE_CHECKING:
    from weft.data.input_records import Entry, Values

EMPTY = TagPrediction([], [], [])


class TagLines(Lines[Sentence, TagPrediction]):
    def split(self, line: str) -> tuple[tuple[str, ...], str | None]:
        return tuple(line.split()), None

    def parse(self, texts: tuple[str, ...]) -> Sentence | None:
        return texts or None

    def text(self, prediction: TagPrediction | None, number: int | None) -> str:
        """`word/TAG word/TAG`."""
        tagged = prediction or EMPTY
        return " ".join(f"{word}/{tag}" for word, tag in zip(tagged.words, tagged.tags, strict=True)) + "\n"

    def json(self, entry: Entry, prediction: TagPrediction | None) -> dict[str, Any]:
        tagged = prediction or EMPTY
        spans = [{"type": span.type, "start": span.start, "end": span.end} for span in tagged.spans]
        return {"text": entry.text, "words": tagged.words, "tags": tagged.tags, "spans": spans}

    def values(self, prediction: TagPrediction | None) -> Values:
        return {"prediction": (prediction or EMPTY).tags}
