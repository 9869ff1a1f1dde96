"""Neighbors of words, vectors of texts, and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import Field

from weft.errors import DataError, UsageError
from weft.runs.eval_data import as_paths, own_split
from weft.tasks.compare_spec import Predictions
from weft.tasks.embedding import EmbeddingOutput
from weft.tasks.spec import Evaluation, Files, InvalidInput, Options, Progress, phase, scores_by_name
from weft.tasks.word_vectors.data import FIRST_WORD, suite_dataset
from weft.tasks.word_vectors.evaluation import check_covered, score_suites, suite_score_list, suite_table
from weft.text.reading import check_text
from weft.vectors.word_vectors import Neighbor, WordVectors

if TYPE_CHECKING:
    from weft.runs.run import Run


class NeighborOptions(Options):
    """How many neighbors to return."""

    num_neighbors: int = Field(10, ge=1)
    """Number of words."""


class Neighbors(NamedTuple):
    """The words nearest to an expression, and their cosines."""

    text: str
    neighbors: list[Neighbor]


def predict(
    run: Run[str, Neighbors], inputs: Sequence[str], options: NeighborOptions, progress: Progress | None
) -> list[Neighbors | InvalidInput]:
    """The neighbors of each expression, such as 'king' or 'king - man + woman'."""
    vectors: WordVectors = run.model
    results: list[Neighbors | InvalidInput] = []
    for text in inputs:
        try:
            results.append(Neighbors(text, vectors.neighbors_of(text, options.num_neighbors)))
        except DataError as error:
            results.append(InvalidInput(str(error)))
    return results


def embed(run: Run[str, Neighbors], texts: Sequence[str], pooling: str, progress: Progress | None) -> EmbeddingOutput:
    """The mean of the vectors of the words of each text; zeros without any."""
    if pooling != "mean":
        raise UsageError("pooling", f"{pooling!r} is not available for word vectors", "use 'mean'")
    vectors: WordVectors = run.model
    output = np.zeros((len(texts), vectors.size), np.float32)
    for index, text in enumerate(texts):
        tokens = run.vocabulary.encode(check_text(text, f"line {index + 1}"))
        if len(rows := tokens[tokens >= FIRST_WORD] - FIRST_WORD):
            output[index] = vectors.rows.take(rows).mean(0)
    return EmbeddingOutput(output, np.zeros(len(texts), bool))


def evaluate(run: Run[str, Neighbors], data: Files | None, options: Options, progress: Progress | None) -> Evaluation:
    """Correlation with judgments of similarity, accuracy of analogies, coverage."""
    encoding = run.config.data.encoding
    if data is None:
        dataset = own_split(run.directory, run.config)[1]
    else:
        dataset = suite_dataset(Path(), [str(path) for path in as_paths(data)], encoding)
    items = list(dataset.records())
    result = score_suites(run.model, items, phase(progress, "evaluating"))
    check_covered(result, run.model)

    def details() -> Predictions:
        counts = np.array([sum(len(word) for word in item.words) for item in items], np.int64)
        questions, answers = [item.question for item in items], [item.answer for item in items]
        return Predictions(result.items, questions, answers, counts, "item")

    scores = scores_by_name(suite_score_list(result))
    return Evaluation(scores, result.items, details, "items/s", len(items), report=suite_table(result.suites))


def word_vectors(run: Run[Any, Any]) -> WordVectors:
    vectors: WordVectors = run.model
    return vectors
