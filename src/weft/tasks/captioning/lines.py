"""Captions file by file: a path in, a text out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.decode.prediction import Prediction
from weft.tasks.media_lines import MediaLines

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord


class CaptionLines(MediaLines):
    def files(self, entry: InputRecord, prediction: Prediction, name: str) -> Mapping[str, bytes]:
        """The attention of each word, as JSON and as a picture; nothing for an empty output."""
        has_words = prediction.alignment is not None and prediction.alignment.words
        return super().files(entry, prediction, name) if has_words else {}
