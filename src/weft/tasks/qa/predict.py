"""What a question-answering model says: answers, scores, vectors."""

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
from weft.tasks.qa.compare import observe
from weft.tasks.spec import Evaluation, Files, InvalidInput, Options, Progress, is_tuple_of_texts, phase, scores_by_name

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.qa.objective import QAModel

Pair = tuple[str, str]  # a question, and the passage that it is about


def reader(run: Run[Pair, AnswerPrediction]) -> QAModel:
    from weft.tasks.qa.objective import QAModel

    return QAModel(run.model, run.vocabulary, data=run.config.data, device=run.device)


def is_single(run: Run[Pair, AnswerPrediction], given: object) -> bool:
    """A tuple of two strings is one question with its passage."""
    return is_tuple_of_texts(given)


def _read(given: Any) -> Pair | InvalidInput:
    texts = read_texts(given, 2, "must be a question and a passage, a tuple of two texts")
    if isinstance(texts, InvalidInput):
        return texts
    question, passage = texts
    empty = next((name for name, text in (("question", question), ("passage", passage)) if not text.strip()), None)
    return (question, passage) if empty is None else InvalidInput(f"has an empty {empty}")


def predict(
    run: Run[Pair, AnswerPrediction], asked: Sequence[Pair], options: Options, progress: Progress | None
) -> list[AnswerPrediction | InvalidInput]:
    """The answer to each question about its passage; an empty text where there is none."""
    return process_valid(
        [_read(pair) for pair in asked],
        lambda valid: run.reader.answers(valid, phase(progress, "predicting")) if valid else [],
    )


def evaluate(run: Run[Pair, AnswerPrediction], data: Files | None, options: Options, progress: Progress | None) -> Evaluation:
    """Scores, question by question; the outputs of the items are the answers."""
    records = list(eval_source(run.directory, run.config, data).records())
    answers = run.reader.answers([(record.question, record.passage) for record in records], phase(progress, "evaluating"))
    references = [[answer.text for answer in record.answers] for record in records]
    items = answer_items([answer.text for answer in answers], references, np.arange(len(answers)))
    scores = answer_scores(items, QASetup(run.vocabulary.hash, run.reader.threshold))
    return Evaluation(scores_by_name(scores), items, partial(observe, run, records, items), "questions/s", len(records))


def embed(run: Run[Pair, AnswerPrediction], texts: Sequence[str], pool: str, progress: Progress | None) -> EmbeddingOutput:
    return embedding.embed_texts(run, run.vocabulary, texts, pool, max_length=run.config.data.max_length, progress=progress)
