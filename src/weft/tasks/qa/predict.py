"""What a question-answering model says: answers, scores, vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import DataError
from weft.metrics.answers import Asked, answer_items, answer_scores
from weft.runs.eval_data import held_source
from weft.tasks import embedding
from weft.tasks.embedding import Embedded
from weft.tasks.qa.compare import observe
from weft.tasks.qa.objective import Answer, PassageReader
from weft.tasks.spec import Evaluation, Fault, Files, Options, Progress, is_tuple_of_texts, phase
from weft.text.gate import clean

if TYPE_CHECKING:
    from weft.runs.run import Run

Pair = tuple[str, str]  # a question, and the passage that it is about


def reader(run: Run[Pair, Answer]) -> PassageReader:
    return PassageReader(run.model, run.vocabulary, data=run.settings.data, device=run.device)


def is_single(run: Run[Pair, Answer], given: object) -> bool:
    """A tuple of two strings is one question with its passage."""
    return is_tuple_of_texts(given)


def predict(run: Run[Pair, Answer], asked: Sequence[Pair], options: Options, progress: Progress | None) -> list[Answer | Fault]:
    """The answer to each question about its passage; an empty text where there is none."""
    read: list[Pair] = []
    for number, row in enumerate(asked, 1):
        if isinstance(row, str) or len(row) != 2:
            raise DataError(f"line {number}: must be a question and a passage, a tuple of two texts")
        question, passage = (clean(text, f"line {number}") for text in row)
        for name, text in (("question", question), ("passage", passage)):
            if not text.strip():
                raise DataError(f"line {number}: has an empty {name}")
        read.append((question, passage))
    return [*run.reader.answers(read, phase(progress, "predicting"))] if read else []


def evaluate(run: Run[Pair, Answer], data: Files | None, options: Options, progress: Progress | None) -> Evaluation:
    """Scores, question by question; the outputs of the items are the answers."""
    records = list(held_source(run.folder, run.settings, data).records())
    said = run.reader.answers([(record.question, record.passage) for record in records], phase(progress, "evaluating"))
    references = [[answer.text for answer in record.answers] for record in records]
    items = answer_items([answer.text for answer in said], references, np.arange(len(said)))
    scores = answer_scores(items, Asked(run.vocabulary.hash, run.reader.threshold))
    return Evaluation(scores, items, partial(observe, run, records, items), "questions/s", len(records))


def embed(run: Run[Pair, Answer], texts: Sequence[str], pool: str, progress: Progress | None) -> Embedded:
    embedding.check_pool(pool)
    read = [clean(text, f"line {number}") for number, text in enumerate(texts, 1)]
    corpus, cut = embedding.read(run.vocabulary, read, run.settings.data.longest)
    return Embedded(
        embedding.embed(run.model.encoder, corpus, pool=pool, device=run.device, watch=phase(progress, "embedding")), cut
    )
