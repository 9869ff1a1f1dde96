"""Prediction, evaluation and embedding with classifiers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from weft.errors import DataError, UsageError
from weft.metrics.classification import LabeledSplit, label_scores
from weft.metrics.items import ItemStatistics
from weft.runs.eval_data import eval_source, no_known_labels
from weft.tasks import embedding
from weft.tasks.classification.compare import item_predictions
from weft.tasks.classification.evaluation import ClassifierOutput, score_predictions, targets, unseen
from weft.tasks.embedding import EmbeddingOutput
from weft.tasks.invalid_inputs import mark_invalid, process_valid, read_texts
from weft.tasks.label_report import label_report
from weft.tasks.spec import (
    Evaluation,
    Files,
    InvalidInput,
    LabelOptions,
    Options,
    Progress,
    ProgressCallback,
    is_tuple_of_texts,
    phase,
    scores_by_name,
)
from weft.text.label_tokenizer import LabelTokenizer
from weft.text.reading import pluralize

if TYPE_CHECKING:
    from weft.runs.run import Run

THRESHOLD = 0.5  # multilabel models predict the labels with a higher probability
Texts = str | tuple[str, ...]


class ClassPrediction(NamedTuple):
    """The labels of a text.

    Attributes:
        labels: The predicted labels, most probable first; one for single-label models.
        probabilities: The probability of every label, most probable first.
        truncated: Whether the text was too long for the model.
    """

    labels: tuple[str, ...]
    probabilities: dict[str, float]
    truncated: bool = False

    @property
    def label(self) -> str | None:
        """The most probable of the predicted labels; None if there are none."""
        return self.labels[0] if self.labels else None


class Classifies(Protocol):
    """A classifier without its run: a network with its tokenizer, or a linear model with its features."""

    @property
    def max_length(self) -> int | None: ...

    @property
    def temperature(self) -> float: ...

    def lengths(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray: ...

    def classify(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> ClassifierOutput: ...

    def log_probs(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> np.ndarray: ...


class ClassifierReader:
    """Applies a classifier to texts."""

    def __init__(self, run: Run[Texts, ClassPrediction]) -> None:
        self.run, self.directory, self.config = run, run.directory, run.config
        self.tokenizer: LabelTokenizer = run.vocabulary

    @cached_property
    def model(self) -> Classifies:
        """The model with its tokenizer or its features."""
        if self.run.network is None:
            terms: Classifies = self.run.model
            return terms
        from weft.tasks.classification.objective import TextClassifier

        return TextClassifier(
            self.run.network, self.tokenizer.tokenizer, max_length=self.config.data.max_length, device=self.run.device
        )

    @property
    def labels(self) -> tuple[str, ...]:
        return self.tokenizer.labels.names

    @property
    def columns(self) -> int:
        """The number of texts per example."""
        return len(self.config.data.columns())

    def read(self, value: Any) -> tuple[str, ...] | InvalidInput:
        """The texts of an input."""
        texts = read_texts(value)
        if isinstance(texts, InvalidInput) or len(texts) == self.columns:
            return texts
        return InvalidInput(f"has {pluralize(len(texts), 'text')}, but {self.directory.path} expects {self.columns}")

    def invalid_inputs(self, rows: Sequence[tuple[str, ...]]) -> dict[int, str]:
        """The texts that are too long for the model: the reason by index. Empty if data.truncate is true."""
        if not rows or self.config.data.truncate or self.model.max_length is None:
            return {}
        lengths, max_length = self.model.lengths(rows), self.model.max_length
        fix = f"more than the model's limit of {max_length} (data.truncate = false); shorten it"
        return {int(index): f"has {lengths[index]:,} tokens, {fix}" for index in np.flatnonzero(lengths > max_length)}

    def predict(self, rows: Sequence[tuple[str, ...]], progress: ProgressCallback | None) -> list[ClassPrediction]:
        """The predictions for valid texts."""
        if not rows:
            return []
        output = self.model.classify(rows, progress)
        return [
            self._prediction(row, truncated)
            for row, truncated in zip(np.exp(output.log_probs), output.truncated.tolist(), strict=True)
        ]

    def _prediction(self, row: np.ndarray, cut: bool) -> ClassPrediction:
        order = np.argsort(-row, kind="stable")
        fractions = {self.labels[index]: float(row[index]) for index in order.tolist()}
        if self.config.data.multilabel:
            return ClassPrediction(tuple(name for name, fraction in fractions.items() if fraction > THRESHOLD), fractions, cut)
        return ClassPrediction((self.labels[order[0]],), fractions, cut)

    def evaluate(self, data: Files | None, *, strict: bool, progress: ProgressCallback | None) -> Evaluation:
        """Evaluate the classifier on files, or on the run's own data."""
        source, multilabel = eval_source(self.directory, self.config, data), bool(self.config.data.multilabel)
        examples = list(source.records())
        labels = [example.labels for example in examples]
        new = unseen(labels, self.tokenizer.labels)
        if strict and new.any():
            index = int(np.flatnonzero(new)[0])
            name = next(name for name in labels[index] if self.tokenizer.labels.index(name) is None)
            raise DataError(source.location(index), f"label {name!r} is not in the training data of {self.directory.path}")
        if all(self.tokenizer.labels.index(name) is None for names in labels for name in names) and new.any():
            counts = Counter(chain.from_iterable(labels))
            raise no_known_labels(source, counts, self.labels, self.directory, unit="labels", fix=source.summary.label_place())
        texts = [example.texts for example in examples]
        if problems := self.invalid_inputs(texts):
            raise DataError(source.location(min(problems)), f"{problems[min(problems)]}")
        log_probs = self.model.log_probs(texts, progress)
        items = score_predictions(
            log_probs, targets(labels, self.tokenizer.labels, multilabel=multilabel), new, multilabel=multilabel
        )
        setup = LabeledSplit(self.tokenizer.labels.hash, multilabel, temperature=self.model.temperature)
        names = Counter(name for name in chain.from_iterable(labels) if self.tokenizer.labels.index(name) is None)
        report = label_report(self.labels, items, multilabel=multilabel)
        items_with_outputs = replace(items, outputs=self._outputs(items))
        observed = partial(item_predictions, self.run, examples, items_with_outputs)
        scores, notes = label_scores(items, setup), source.summary.skipped_notes()
        return Evaluation(scores_by_name(scores), items_with_outputs, observed, "texts/s", len(examples), report, names, notes)

    def _outputs(self, items: ItemStatistics) -> list[str]:
        """The predicted labels of each example, separated by ", "."""
        predicted = items.statistics["said"] > 0
        return [", ".join(name for name, hit in zip(self.labels, row, strict=True) if hit) for row in predicted.tolist()]


def is_single(run: Run[Texts, ClassPrediction], given: object) -> bool:
    """A string is one text; for runs that read two, a tuple of two strings is one input."""
    return isinstance(given, str) or (run.predictor.columns > 1 and is_tuple_of_texts(given))


def predict(
    run: Run[Texts, ClassPrediction], texts: Sequence[Texts], options: Options, progress: Progress | None
) -> list[ClassPrediction | InvalidInput]:
    reader: ClassifierReader = run.predictor
    rows = mark_invalid([reader.read(text) for text in texts], reader.invalid_inputs)
    return process_valid(rows, lambda valid: reader.predict(valid, phase(progress, "predicting")))


def evaluate(
    run: Run[Texts, ClassPrediction], data: Files | None, options: LabelOptions, progress: Progress | None
) -> Evaluation:
    reader: ClassifierReader = run.predictor
    return reader.evaluate(data, strict=options.strict, progress=phase(progress, "evaluating"))


def embed(run: Run[Texts, ClassPrediction], texts: Sequence[str], pool: str, progress: Progress | None) -> EmbeddingOutput:
    embedding.check_pooling(pool)
    if run.network is None:
        raise UsageError(run.path, f"{run.arch} has no text encoder")
    tokenizer, max_length = run.vocabulary.tokenizer, run.config.data.max_length
    return embedding.embed_texts(run, tokenizer, texts, pool, max_length=max_length, progress=progress)
