"""Prediction, evaluation and embeddings of question answering models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.metrics.qa import QASetup, answer_items, answer_scores
from weft.runs.eval_data import eval_source
from weft.tasks import embedding
from weft.tasks.embedding import EmbeddingOutput
from weft.tasks.invalid_inputs import process_valid, read_texts
from weft.tasks.qa.answer import AnswerPrediction
from weft.tasks.qa.compare import item_predictions
from weft.tasks.spec import Evaluation, Files, InvalidInput, Options, Progress, is_tuple_of_texts, phase, scores_by_name

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.qa.objective import QAPredictor

Pair = tuple[str, str]  # a question, and the passage that it is about


def predictor(run: Run[Pair, AnswerPrediction]) -> QAPredictor:
    from weft.tasks.qa.objective import QAPredictor

    return QAPredictor(run.model, run.vocabulary, data=run.config.data, device=run.device, group=run.group)


def is_single(run: Run[Pair, AnswerPrediction], value: object) -> bool:
    """Whether a value is one question with its passage, a tuple of two strings."""
    return is_tuple_of_texts(value)


def _read_pair(value: Any) -> Pair | InvalidInput:
    texts = read_texts(value, 2, "expected a tuple of a question and a passage")
    if isinstance(texts, InvalidInput):
        return texts
    question, passage = texts
    empty = next((name for name, text in (("question", question), ("passage", passage)) if not text.strip()), None)
    return (question, passage) if empty is None else InvalidInput(f"empty {empty}")


def predict(
    run: Run[Pair, AnswerPrediction], pairs: Sequence[Pair], options: Options, progress: Progress | None
) -> list[AnswerPrediction | InvalidInput]:
    """The answer to each question about its passage; an empty text if there is none."""
    return process_valid(
        [_read_pair(pair) for pair in pairs],
        lambda valid: run.predictor.answers(valid, phase(progress, "predicting")) if valid else [],
    )


def evaluate(run: Run[Pair, AnswerPrediction], data: Files | None, options: Options, progress: Progress | None) -> Evaluation:
    """Scores over all questions; the outputs of the items are the answers."""
    records = list(eval_source(run.directory, run.config, data).records())
    answers = run.predictor.answers([(record.question, record.passage) for record in records], phase(progress, "evaluating"))
    references = [[answer.text for answer in record.answers] for record in records]
    items = answer_items([answer.text for answer in answers], references, np.arange(len(answers)))
    scores = answer_scores(items, QASetup(run.vocabulary.hash, run.predictor.threshold))
    return Evaluation(
        scores_by_name(scores), items, partial(item_predictions, run, records, items), "questions/s", len(records)
    )


def embed(run: Run[Pair, AnswerPrediction], texts: Sequence[str], pooling: str, progress: Progress | None) -> EmbeddingOutput:
    return embedding.embed_texts(run, run.vocabulary, texts, pooling, max_length=run.config.data.max_length, progress=progress)
