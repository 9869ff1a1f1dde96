"""Prediction file by file: a path in, a text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction
from weft.files import as_json, dump_json
from weft.media.files import MediaFile
from weft.tasks.lines import Lines
from weft.tasks.media_data import parse_input
from weft.tasks.spec import InvalidInput
from weft.text.table_layout import on_one_line

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord, Values
    from weft.runs.config import RunConfig

EMPTY = Prediction("", [], 0.0, 0.0)


class MediaLines(Lines[MediaFile, Prediction]):
    """Lines of tasks that read files. A task adds the title of the picture of an alignment."""

    columns = ("prediction",)
    unit = "file"
    reads_files = True
    batch_size = 64

    def __init__(self, config: RunConfig, options: PredictionConfig) -> None:
        super().__init__(config, options)
        self.has_alternatives = options.n_best * options.num_samples > 1
        self.outputs_tables = not self.has_alternatives

    def parse(self, texts: tuple[str, ...]) -> MediaFile | InvalidInput | None:
        return parse_input(texts, self.config.data.root)

    def options(self, numbers: Sequence[int]) -> PredictionConfig:
        options: PredictionConfig = self.command_options
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
        return {"source": entry.text, "predictions": as_json(outputs)}

    def values(self, prediction: Prediction | None) -> Values:
        return {"prediction": None if prediction is None else prediction.text}

    def files(self, entry: InputRecord, prediction: Prediction, name: str) -> Mapping[str, bytes]:
        """The alignment of the output as JSON and as a picture; nothing if there is none."""
        if prediction.alignment is None:
            return {}
        values = {"source": entry.text, "text": prediction.text, **prediction.alignment.to_json()}
        svg = prediction.alignment.to_svg(self.title(entry.text or "", prediction))
        return {f"{name}.json": dump_json(values, indent=2), f"{name}.svg": svg.encode()}

    def title(self, source: str, prediction: Prediction) -> str:
        """The title of the picture."""
        return source
