"""Lines of question answering: a question, a tab and a passage as input, the answer as output; empty if there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.tasks.lines import Lines
from weft.tasks.qa.answer import AnswerPrediction
from weft.tasks.qa.predict import Pair
from weft.tasks.spec import InvalidInput
from weft.text.table_layout import count_of

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord, Values


def _problem(texts: Sequence[str], separator: str = "") -> str:
    count = count_of(sum(bool(text.strip()) for text in texts), "text")
    return f"expected a question and a passage{separator}, got {count}"


class AnswerLines(Lines[Pair, AnswerPrediction]):
    unit = "question"
    columns = ("prediction", "probability")

    def split(self, line: str) -> tuple[tuple[str, ...], str | None]:
        cells = tuple(line.split("\t"))
        if line.strip() and (len(cells) != 2 or not all(cell.strip() for cell in cells)):
            return cells, _problem(cells, " separated by a tab")
        return cells, None

    def parse(self, texts: tuple[str, ...]) -> Pair | InvalidInput | None:
        if not "".join(texts).strip():
            return None
        question, passage = texts
        return (question, passage) if question.strip() and passage.strip() else InvalidInput(_problem(texts))

    def text(self, prediction: AnswerPrediction | None, number: int | None) -> str:
        return "\n" if prediction is None else f"{prediction.text}\n"

    def json(self, entry: InputRecord, prediction: AnswerPrediction | None) -> dict[str, Any]:
        """A question with its answer: an empty text if the passage has none, null if the line is invalid."""
        texts = entry.texts
        question, passage = (texts[0], texts[1]) if len(texts) == 2 else (entry.text or None, None)
        answer = (None, None, None, None) if prediction is None else prediction[:4]
        record = dict(zip(("answer", "start", "end", "probability"), answer, strict=True))
        return {"question": question, "passage": passage, **record}

    def values(self, prediction: AnswerPrediction | None) -> Values:
        if prediction is None:
            return {"prediction": None, "probability": None}
        return {"prediction": prediction.text, "probability": prediction.probability}

    def truncated(self, prediction: AnswerPrediction) -> bool:
        return prediction.truncated
