"""Lines of classifiers: a text in, or two with a tab between them; labels and their probabilities out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.config import Config
from weft.tasks.classification.predict import ClassPrediction, Texts
from weft.tasks.lines import Lines

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord, Values
    from weft.runs.config import RunConfig


class LabelLines(Lines[Texts, ClassPrediction]):
    columns = ("prediction", "probability")

    def __init__(self, config: RunConfig, options: Config) -> None:
        super().__init__(config, options)
        self.texts, self.multi = len(config.data.columns()), bool(config.data.multilabel)

    def split(self, line: str) -> tuple[tuple[str, ...], str | None]:
        texts = (line,) if self.texts == 1 else tuple(line.split("\t"))
        if line.strip() and len(texts) != self.texts:
            return (), f"needs {self.texts} texts, separated by tabs, and has {len(texts)}"
        return texts, None

    def parse(self, texts: tuple[str, ...]) -> Texts | None:
        return texts if "".join(texts).strip() else None

    def text(self, prediction: ClassPrediction | None, number: int | None) -> str:
        """`label<TAB>probability`; where there may be several `a:0.93<TAB>b:0.71`, and an empty line where none is said."""
        if prediction is None:
            return "\n"
        fractions = prediction.probabilities
        if self.multi:
            return "\t".join(f"{name}:{fractions[name]:.4f}" for name in prediction.labels) + "\n"
        return f"{prediction.labels[0]}\t{fractions[prediction.labels[0]]:.4f}\n"

    def json(self, entry: InputRecord, prediction: ClassPrediction | None) -> dict[str, Any]:
        if prediction is None:
            return {"text": entry.text, "labels": [], "probabilities": {}}
        return {"text": entry.text, "labels": list(prediction.labels), "probabilities": prediction.probabilities}

    def values(self, prediction: ClassPrediction | None) -> Values:
        """Label and probability, lists of them where there may be several."""
        if prediction is None:
            return {"prediction": None, "probability": None}
        fractions = [prediction.probabilities[name] for name in prediction.labels]
        if self.multi:
            return {"prediction": list(prediction.labels), "probability": fractions}
        return {"prediction": prediction.labels[0], "probability": fractions[0]}

    def truncated(self, prediction: ClassPrediction) -> bool:
        return prediction.truncated
