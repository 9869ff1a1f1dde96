"""Line-by-line prediction with masked language models: a text with masks in, the most probable tokens for each mask out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.tasks.lines import Lines
from weft.tasks.masked_lm.predict import MaskPredictions

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord


def _visible(token: str) -> str:
    """A token on one line: invisible whitespace is escaped."""
    return token.encode("unicode_escape").decode() if token != token.strip("\n\r\t\0") or not token.strip() else token


class MaskLines(Lines[str, MaskPredictions]):
    batch_size = 256
    outputs_tables = False

    def parse(self, texts: tuple[str, ...]) -> str:
        return texts[0]

    def text(self, prediction: MaskPredictions | None, number: int | None) -> str:
        """One line per token, best first: line number, mask number, probability and token; for a single text, only probability
        and token, with a blank line between masks."""
        masks = prediction or []
        if number is None:
            return "\n".join("".join(f"{best.probability:.4f}\t{_visible(best.token)}\n" for best in mask) for mask in masks)
        rows = [(index, best) for index, mask in enumerate(masks, 1) for best in mask]
        return "".join(f"{number}\t{index}\t{best.probability:.4f}\t{_visible(best.token)}\n" for index, best in rows) or "\n"

    def json(self, entry: InputRecord, prediction: MaskPredictions | None) -> dict[str, Any]:
        """A text and the predictions for its masks, best first."""
        masks = [[{"token": best.token, "probability": best.probability} for best in mask] for mask in prediction or []]
        return {"text": entry.text, "masks": masks}
