"""Prediction, evaluation and embedding with classifiers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from weft.errors import ConfigError, DataError, UsageError
from weft.metrics.classification import THRESHOLD, ClassificationSetup, label_scores
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
    InputSpec,
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
    from weft.runs.config import RunConfig
    from weft.runs.run import Run

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
    """A model that classifies texts: a network with its tokenizer, or a linear model with its feature extractors."""

    @property
    def max_length(self) -> int | None: ...

    @property
    def temperature(self) -> float: ...

    def lengths(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray: ...

    def classify(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> ClassifierOutput: ...

    def log_probs(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> np.ndarray: ...


class ClassifierPredictor:
    """Applies a classifier to texts."""

    def __init__(self, run: Run[Texts, ClassPrediction]) -> None:
        self.run, self.directory, self.config = run, run.directory, run.config
        self.tokenizer: LabelTokenizer = run.vocabulary

    @cached_property
    def model(self) -> Classifies:
        """The model with its tokenizer or feature extractors."""
        if self.run.network is None:  # a linear model or an ensemble
            linear: Classifies = self.run.model
            return linear
        from weft.tasks.classification.objective import TextClassifier

        return TextClassifier(
            self.run.network,
            self.tokenizer.tokenizer,
            max_length=self.config.data.max_length,
            device=self.run.device,
            group=self.run.group,
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
        """Index and problem of the texts that are too long for the model; empty if data.truncate is true."""
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
            self._prediction(probs, truncated)
            for probs, truncated in zip(np.exp(output.log_probs), output.truncated.tolist(), strict=True)
        ]

    def _prediction(self, probs: np.ndarray, truncated: bool) -> ClassPrediction:
        order = np.argsort(-probs, kind="stable")
        by_label = {self.labels[index]: float(probs[index]) for index in order.tolist()}
        if self.config.data.multilabel:
            return ClassPrediction(tuple(name for name, prob in by_label.items() if prob > THRESHOLD), by_label, truncated)
        return ClassPrediction((self.labels[order[0]],), by_label, truncated)

    def evaluate(self, data: Files | None, *, strict: bool, progress: ProgressCallback | None) -> Evaluation:
        """Evaluate the classifier on files, or on the run's own data."""
        source, multilabel = eval_source(self.directory, self.config, data), bool(self.config.data.multilabel)
        examples = list(source.records())
        labels = [example.labels for example in examples]
        unseen_counts = unseen(labels, self.tokenizer.labels)
        unseen_labels = Counter(name for name in chain.from_iterable(labels) if self.tokenizer.labels.index(name) is None)
        if strict and unseen_labels:
            index = int(np.flatnonzero(unseen_counts)[0])
            name = next(name for name in labels[index] if name in unseen_labels)
            raise DataError(source.location(index), f"label {name!r} is not in the training data of {self.directory.path}")
        if unseen_labels and unseen_labels.total() == sum(map(len, labels)):
            fix = source.summary.label_hint()
            raise no_known_labels(source, unseen_labels, self.labels, self.directory, unit="labels", fix=fix)
        texts = [example.texts for example in examples]
        if problems := self.invalid_inputs(texts):
            raise DataError(source.location(min(problems)), f"{problems[min(problems)]}")
        log_probs = self.model.log_probs(texts, progress)
        gold = targets(labels, self.tokenizer.labels, multilabel=multilabel)
        items = score_predictions(log_probs, gold, unseen_counts, multilabel=multilabel)
        setup = ClassificationSetup(self.tokenizer.labels.hash, multilabel, temperature=self.model.temperature)
        report = label_report(self.labels, items, multilabel=multilabel)
        items = replace(items, outputs=self._outputs(items))
        details = partial(item_predictions, self.run, examples, items)
        scores, notes = scores_by_name(label_scores(items, setup)), source.summary.skipped_notes()
        return Evaluation(scores, items, details, "texts/s", len(examples), report, unseen_labels, notes)

    def _outputs(self, items: ItemStatistics) -> list[str]:
        """The predicted labels of each example, separated by ", "."""
        predicted = items.statistics["predicted"] > 0
        return [", ".join(name for name, is_hit in zip(self.labels, row, strict=True) if is_hit) for row in predicted.tolist()]


def input_spec(config: RunConfig) -> InputSpec:
    """One text, or two."""
    names = tuple(map(str, config.data.columns()))
    return InputSpec("pair" if len(names) > 1 else "text", names)


def is_single(run: Run[Texts, ClassPrediction], value: object) -> bool:
    """Whether a value is one input: a string, or a tuple of strings for runs that read text pairs."""
    return isinstance(value, str) or (run.predictor.columns > 1 and is_tuple_of_texts(value))


def predict(
    run: Run[Texts, ClassPrediction], texts: Sequence[Texts], options: Options, progress: Progress | None
) -> list[ClassPrediction | InvalidInput]:
    predictor: ClassifierPredictor = run.predictor
    rows = mark_invalid([predictor.read(text) for text in texts], predictor.invalid_inputs)
    return process_valid(rows, lambda valid: predictor.predict(valid, phase(progress, "predicting")))


def evaluate(
    run: Run[Texts, ClassPrediction], data: Files | None, options: LabelOptions, progress: Progress | None
) -> Evaluation:
    predictor: ClassifierPredictor = run.predictor
    return predictor.evaluate(data, strict=options.strict, progress=phase(progress, "evaluating"))


def embed(run: Run[Texts, ClassPrediction], texts: Sequence[str], pool: str, progress: Progress | None) -> EmbeddingOutput:
    embedding.check_pooling(pool)
    if run.network is None:
        raise UsageError(run.path, f"{run.arch} has no text encoder")
    tokenizer, max_length = run.vocabulary.tokenizer, run.config.data.max_length
    return embedding.embed_texts(run, tokenizer, texts, pool, max_length=max_length, progress=progress)


def rewards(run: Run[Texts, ClassPrediction], pairs: Sequence[tuple[str, str]], label: str | None) -> list[float]:
    """The log-odds of a label for each (prompt, response) pair, at most about 20; a run that reads one text reads the response
    alone."""
    predictor: ClassifierPredictor = run.predictor
    if label is None or label not in predictor.labels:
        problem = f"required, because {run.path} is a classifier" if label is None else f"{run.path} has no label {label!r}"
        raise ConfigError("data.reward_label", problem, f"use one of {', '.join(predictor.labels[:8])}")
    rows = [pair if predictor.columns > 1 else (pair[1],) for pair in pairs]
    probs = np.array([prediction.probabilities[label] for prediction in predictor.predict(rows, None)]).clip(1e-9, 1 - 1e-9)
    log_odds: list[float] = np.log(probs / (1 - probs)).tolist()
    return log_odds
