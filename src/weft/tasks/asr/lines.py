"""Recognition file by file: a path in, the text of the recording out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.decode.prediction import Prediction
from weft.tasks.media_lines import MediaLines

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord


class RecordingLines(MediaLines):
    def json(self, entry: InputRecord, prediction: Prediction | None) -> dict[str, Any]:
        """With the times of the words, if they are requested."""
        times = {} if prediction is None or prediction.alignment is None else prediction.alignment.to_json()
        return {**super().json(entry, prediction), **times}

    def title(self, source: str, prediction: Prediction) -> str:
        return f"{Path(source.strip()).name}: {prediction.text}"
