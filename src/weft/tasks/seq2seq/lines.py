"""Lines of encoder-decoders: a source in, an output out, or the best few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.decode.prediction import Prediction
from weft.files import as_json, dump_json
from weft.tasks.lines import Lines
from weft.tasks.seq2seq.predict import Seq2SeqOptions
from weft.text.table_layout import on_one_line

if TYPE_CHECKING:
    from weft.data.input_records import Entry, Values
    from weft.runs.config import RunConfig

NOTHING = Prediction("", [], 0.0, 0.0)


class OutputLines(Lines[str, Prediction]):
    columns = ("prediction",)

    def __init__(self, config: RunConfig, options: Seq2SeqOptions) -> None:
        super().__init__(config, options)
        self.several = options.n_best * options.num_samples > 1
        self.tables = not self.several

    def parse(self, texts: tuple[str, ...]) -> str:
        return texts[0]

    def options(self, numbers: Sequence[int]) -> Seq2SeqOptions:
        given: Seq2SeqOptions = self.command_options
        return given.model_copy(update={"numbers": list(numbers)})

    def text(self, prediction: Prediction | None, number: int | None) -> str:
        """A line; where several are asked for, each behind the number of the line and its score."""
        found = NOTHING if prediction is None else prediction
        if self.several:
            return "".join(f"{number or 1}\t{one.score:.4f}\t{on_one_line(one.text)}\n" for one in found.ranked())
        return on_one_line(found.text) + "\n"

    def json(self, entry: Entry, prediction: Prediction | None) -> dict[str, Any]:
        found = [
            {
                "text": one.text,
                "score": one.score,
                "log_prob": one.log_prob,
                "tokens": len(one.token_ids),
                "cut": one.truncated,
            }
            for one in ([] if prediction is None else prediction.ranked())
        ]
        return {"source": entry.text, "predictions": as_json(found)}

    def values(self, prediction: Prediction | None) -> Values:
        return {"prediction": None if prediction is None else prediction.text.replace("\0", "\\0")}

    def files(self, entry: Entry, prediction: Prediction, name: str) -> Mapping[str, bytes]:
        """Where the best output looked: weights, and a picture of them; nothing where none was written."""
        if prediction.alignment is None:
            return {}
        return {
            f"{name}.json": dump_json({**prediction.alignment.to_json(), "text": prediction.text}, indent=2),
            f"{name}.svg": prediction.alignment.to_svg(entry.text or "").encode(),
        }
