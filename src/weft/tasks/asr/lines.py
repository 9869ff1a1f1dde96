"""Recognition file by file: a path in, the text of the recording out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.decode.prediction import Prediction
from weft.files import as_json, dump_json
from weft.media.files import MediaFile
from weft.tasks.asr.predict import SpeechOptions
from weft.tasks.lines import Lines
from weft.tasks.media_data import parse_input
from weft.tasks.spec import InvalidInput
from weft.text.table_layout import on_one_line

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord, Values
    from weft.runs.config import RunConfig

EMPTY = Prediction("", [], 0.0, 0.0)


class RecordingLines(Lines[MediaFile, Prediction]):
    columns = ("prediction",)
    unit = "file"
    reads_files = True
    batch_size = 64

    def __init__(self, config: RunConfig, options: SpeechOptions) -> None:
        super().__init__(config, options)
        self.has_alternatives = options.n_best * options.num_samples > 1
        self.outputs_tables = not self.has_alternatives

    def parse(self, texts: tuple[str, ...]) -> MediaFile | InvalidInput | None:
        return parse_input(texts, self.config.data.root)

    def options(self, numbers: Sequence[int]) -> SpeechOptions:
        options: SpeechOptions = self.command_options
        return options.model_copy(update={"numbers": list(numbers)})

    def text(self, prediction: Prediction | None, number: int | None) -> str:
        best = EMPTY if prediction is None else prediction
        if self.has_alternatives:
            return "".join(f"{number or 1}\t{output.score:.4f}\t{on_one_line(output.text)}\n" for output in best.ranked())
        return on_one_line(best.text) + "\n"

    def json(self, entry: InputRecord, prediction: Prediction | None) -> dict[str, Any]:
        outputs = [
            {"text": output.text, "score": output.score, "log_prob": output.log_prob, "tokens": len(output.token_ids)}
            for output in ([] if prediction is None else prediction.ranked())
        ]
        times = {} if prediction is None or prediction.alignment is None else prediction.alignment.to_json()
        return {"source": entry.text, "predictions": as_json(outputs), **times}

    def values(self, prediction: Prediction | None) -> Values:
        return {"prediction": None if prediction is None else prediction.text}

    def files(self, entry: InputRecord, prediction: Prediction, name: str) -> Mapping[str, bytes]:
        """The word times as JSON, and the picture of the recording with them."""
        if prediction.alignment is None:
            return {}
        values = {"source": entry.text, "text": prediction.text, **prediction.alignment.to_json()}
        svg = prediction.alignment.to_svg(f"{Path((entry.text or '').strip()).name}: {prediction.text}")
        return {f"{name}.json": dump_json(values, indent=2), f"{name}.svg": svg.encode()}
