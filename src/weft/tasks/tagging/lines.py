"""Lines of taggers: a sentence in, its words with their tags out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.tasks.lines import Lines
from weft.tasks.tagging.predict import Sentence, Tagging

if TYPE_CHECKING:
    from weft.data.input_records import Entry, Values

NOTHING = Tagging([], [], [])


class TagLines(Lines[Sentence, Tagging]):
    def split(self, line: str) -> tuple[tuple[str, ...], str | None]:
        return tuple(line.split()), None

    def parse(self, texts: tuple[str, ...]) -> Sentence | None:
        return texts or None

    def text(self, prediction: Tagging | None, number: int | None) -> str:
        """`word/TAG word/TAG`."""
        found = prediction or NOTHING
        return " ".join(f"{word}/{tag}" for word, tag in zip(found.words, found.tags, strict=True)) + "\n"

    def json(self, entry: Entry, prediction: Tagging | None) -> dict[str, Any]:
        found = prediction or NOTHING
        spans = [{"type": span.type, "start": span.start, "end": span.end} for span in found.spans]
        return {"text": entry.text, "words": found.words, "tags": found.tags, "spans": spans}

    def values(self, prediction: Tagging | None) -> Values:
        return {"prediction": (prediction or NOTHING).tags}
