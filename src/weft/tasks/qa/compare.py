"""Question answering in comparisons: inputs and references of single questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.metrics.items import ItemStatistics
from weft.tasks.compare_spec import Compare, Predictions

if TYPE_CHECKING:
    from weft.runs.run import Run


def item_predictions(run: Run[Any, Any], records: Sequence[Any], items: ItemStatistics) -> Predictions:
    """Inputs and references of each question; the lengths are those of the passages."""
    lengths = run.vocabulary.encode_concatenated([record.passage for record in records])[1]
    references = [" / ".join(dict.fromkeys(answer.text for answer in record.answers)) for record in records]
    inputs = [f"{record.question} | {record.passage}" for record in records]
    return Predictions(items, inputs, references, lengths, "question")


COMPARE = Compare(model_noun="span predictor")
