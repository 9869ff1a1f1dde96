"""Line input and output of classifiers: a text, or two separated by a tab, to labels with probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.config import Config
from weft.tasks.classification.predict import ClassPrediction, Texts
from weft.tasks.lines import Lines

if TYPE_CHECKING:
    from weft.data.input_records import Entry, Values
    from weft.runs.config import RunConfig


class LabelLines(Lines[Texts, ClassPrediction]):
    columns = ("prediction", "probability")

    def __init__(self, config: RunConfig, options: Config) -> None:
        super().__init__(config, options)
        self.num_texts, self.multilabel = len(config.data.columns()), bool(config.data.multilabel)

    def split(self, line: str) -> tuple[tuple[str, ...], str | None]:
        texts = (line,) if self.num_texts == 1 else tuple(line.split("\t"))
        if line.strip() and len(texts) != self.num_texts:
            return (), f"expected {self.num_texts} tab-separated texts, got {len(texts)}"
        return texts, None

    def parse(self, texts: tuple[str, ...]) -> Texts | None:
        return texts if "".join(texts).strip() else None

    def text(self, prediction: ClassPrediction | None, number: int | None) -> str:
        """`label<TAB>probability`; for multi-label models `a:0.93<TAB>b:0.71`, or an empty line if no label is predicted."""
        if prediction is None:
            return "\n"
        probs = prediction.probabilities
        if self.multilabel:
            return "\t".join(f"{name}:{probs[name]:.4f}" for name in prediction.labels) + "\n"
        return f"{prediction.labels[0]}\t{probs[prediction.labels[0]]:.4f}\n"

    def json(self, entry: Entry, prediction: ClassPrediction | None) -> dict[str, Any]:
        if prediction is None:
            return {"text": entry.text, "labels": [], "probabilities": {}}
        return {"text": entry.text, "labels": list(prediction.labels), "probabilities": prediction.probabilities}

    def values(self, prediction: ClassPrediction | None) -> Values:
        """Label and probability; lists of them for multi-label models."""
        if prediction is None:
            return {"prediction": None, "probability": None}
        probs = [prediction.probabilities[name] for name in prediction.labels]
        if self.multilabel:
            return {"prediction": list(prediction.labels), "probability": probs}
        return {"prediction": prediction.labels[0], "probability": probs[0]}

    def truncated(self, prediction: ClassPrediction) -> bool:
        return prediction.truncated
