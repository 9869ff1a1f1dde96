"""Lines of masked language models: a text with masks in, the most probable tokens of each out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.tasks.lines import Lines
from weft.tasks.masked_lm.predict import Filled

if TYPE_CHECKING:
    from weft.data.input_records import Entry


def _shown(token: str) -> str:
    """A token on one line: white space that can't be told from none as an escape."""
    return token.encode("unicode_escape").decode() if token != token.strip("\n\r\t\0") or not token.strip() else token


class FillLines(Lines[str, Filled]):
    batch = 256
    tables = False

    def parse(self, texts: tuple[str, ...]) -> str:
        return texts[0]

    def text(self, prediction: Filled | None, number: int | None) -> str:
        """A line for each token, best first: number of the line, number of the mask, probability, token."""
        rows = [(index, candidate) for index, mask in enumerate(prediction or [], 1) for candidate in mask]
        return "".join(f"{number or 1}\t{at}\t{one.probability:.4f}\t{_shown(one.token)}\n" for at, one in rows) or "\n"

    def json(self, entry: Entry, prediction: Filled | None) -> dict[str, Any]:
        """A text and its masks, each with the best first."""
        masks = [[{"token": one.token, "probability": one.probability} for one in mask] for mask in prediction or []]
        return {"text": entry.text, "masks": masks}
