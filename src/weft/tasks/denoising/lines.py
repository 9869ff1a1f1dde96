"""Line-by-line prediction with denoising models: a text with masks in, the restored text out; with `add_noise`, also the
corrupted text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.decode.prediction import Prediction
from weft.tasks.denoising.predict import DenoisingOptions
from weft.tasks.encoder_decoder.lines import OutputLines
from weft.text.table_layout import on_one_line

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord, Values
    from weft.runs.config import RunConfig


class RestoredLines(OutputLines):
    def __init__(self, config: RunConfig, options: DenoisingOptions) -> None:
        super().__init__(config, options)
        self.adds_noise = options.add_noise
        self.columns = ("corrupted", "target", "prediction") if options.add_noise else ("prediction",)

    def text(self, prediction: Prediction | None, number: int | None) -> str:
        """The restored text as a line; with added noise, three lines: the corrupted text, the target and the restored text."""
        restored = super().text(prediction, number)
        if not self.adds_noise or prediction is None:
            return restored
        lines = (("corrupted", prediction.source), ("target", prediction.target))
        return "".join(f"{name}\t{on_one_line(text or '')}\n" for name, text in lines) + f"restored\t{restored}"

    def json(self, entry: InputRecord, prediction: Prediction | None) -> dict[str, Any]:
        """The text, its corrupted form and the target if noise was added, and the restored texts."""
        values = super().json(entry, prediction)
        noise = {}
        if self.adds_noise:
            noise = {
                "corrupted": None if prediction is None else prediction.source,
                "target": None if prediction is None else prediction.target,
            }
        return {"text": values["source"], **noise, "predictions": values["predictions"]}

    def values(self, prediction: Prediction | None) -> Values:
        restored = super().values(prediction)
        if not self.adds_noise:
            return restored
        shown = (None, None) if prediction is None else (prediction.source, prediction.target)
        return {"corrupted": shown[0], "target": shown[1], **restored}
