"""Line-by-line prediction with encoder-decoders: a source in, one or several outputs out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.decode.prediction import Prediction
from weft.files import as_json, dump_json
from weft.tasks.encoder_decoder.predict import EncoderDecoderOptions
from weft.tasks.lines import Lines
from weft.text.table_layout import on_one_line

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord, Values
    from weft.runs.config import RunConfig

EMPTY = Prediction("", [], 0.0, 0.0)


class OutputLines(Lines[str, Prediction]):
    columns: Sequence[str] = ("prediction",)

    def __init__(self, config: RunConfig, options: EncoderDecoderOptions) -> None:
        super().__init__(config, options)
        self.has_alternatives = options.n_best * options.num_samples > 1
        self.outputs_tables = not self.has_alternatives

    def parse(self, texts: tuple[str, ...]) -> str:
        return texts[0]

    def options(self, numbers: Sequence[int]) -> EncoderDecoderOptions:
        options: EncoderDecoderOptions = self.command_options
        return options.model_copy(update={"numbers": list(numbers)})

    def text(self, prediction: Prediction | None, number: int | None) -> str:
        """The output as a line; several outputs each with the line number and the score."""
        best = EMPTY if prediction is None else prediction
        if self.has_alternatives:
            return "".join(f"{number or 1}\t{output.score:.4f}\t{on_one_line(output.text)}\n" for output in best.ranked())
        return on_one_line(best.text) + "\n"

    def json(self, entry: InputRecord, prediction: Prediction | None) -> dict[str, Any]:
        outputs = [
            {
                "text": output.text,
                "score": output.score,
                "log_prob": output.log_prob,
                "tokens": len(output.token_ids),
                "truncated": output.truncated,
            }
            for output in ([] if prediction is None else prediction.ranked())
        ]
        return {"source": entry.text, "predictions": as_json(outputs)}

    def values(self, prediction: Prediction | None) -> Values:
        return {"prediction": None if prediction is None else prediction.text.replace("\0", "\\0")}

    def files(self, entry: InputRecord, prediction: Prediction, name: str) -> Mapping[str, bytes]:
        """The alignment of the best output as JSON and as a figure; nothing for an empty output."""
        if prediction.alignment is None:
            return {}
        return {
            f"{name}.json": dump_json({**prediction.alignment.to_json(), "text": prediction.text}, indent=2),
            f"{name}.svg": prediction.alignment.to_svg(entry.text or "").encode(),
        }
