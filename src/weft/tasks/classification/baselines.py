"""Baselines without a network: naive Bayes and logistic regression over sparse features."""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from weft.data.provenance import write_record
from weft.data.source import fingerprints
from weft.errors import ConfigError, ModelError
from weft.log import Log
from weft.metrics.calibration import sigmoid_temperature, softmax_temperature
from weft.metrics.classification import label_metrics
from weft.metrics.metric import values
from weft.models.linear import LinearModel, log_sigmoid, log_softmax
from weft.tasks.classification.evaluation import ClassifierOutput, balance, score_predictions, targets, unseen
from weft.text.features import Features, Sparse, hstack
from weft.training.objective import ProgressCallback

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.runs.run_dir import RunDir
    from weft.text.label_tokenizer import LabelTokenizer


class Fit(Protocol):
    """Fits a linear model to sparse features (N, terms) and targets, label IDs (N,) or multi-hot (N, K) bool."""

    def __call__(self, features: Sparse, targets: Any, classes: int, config: Any, weights: Any, job: Job) -> LinearModel: ...


def fit_bayes(features: Sparse, targets: Any, classes: int, config: Any, weights: Any, job: Job) -> LinearModel:
    from weft.models import naive_bayes as bayes

    job.callback.on_progress("counting terms", 0, 1)
    return bayes.fit(features, targets, classes, config, weights=weights)


def fit_regression(features: Sparse, targets: Any, classes: int, config: Any, weights: Any, job: Job) -> LinearModel:
    from weft.models import logistic_regression as regression

    def progress(step: int) -> None:
        job.callback.on_progress("solving the regression", min(step, regression.MAX_STEPS - 1), regression.MAX_STEPS)

    return regression.fit(features, targets, classes, config, weights=weights, progress=progress)


class SparseClassifier:
    """A linear model together with the feature extractors that turn texts into its inputs."""

    def __init__(self, features: Sequence[Features], model: LinearModel, temperature: float) -> None:
        self.features, self.model, self.temperature = features, model, temperature
        self.max_length = None  # texts are never truncated

    @property
    def num_parameters(self) -> int:
        return self.model.num_parameters

    def parts(self) -> dict[str, int]:
        return self.model.parts()

    def featurize(self, texts: Sequence[tuple[str, ...]]) -> Sparse:
        """Sparse features, one row per example; the features of text pairs are concatenated."""
        columns = zip(*texts, strict=True)
        return hstack([extractor.transform(column) for extractor, column in zip(self.features, columns, strict=True)])

    def log_probs(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> np.ndarray:
        """float64 (N, K): log-probabilities of the labels."""
        return self.scale_by_temperature(self.model.logits(self.featurize(texts)))

    def classify(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> ClassifierOutput:
        """Log-probabilities of the labels; no text is truncated."""
        return ClassifierOutput(self.log_probs(texts, progress), np.zeros(len(texts), dtype=bool))

    def scale_by_temperature(self, logits: np.ndarray) -> np.ndarray:
        """Log-probabilities (N, K) from logits (N, K)."""
        scaled = logits / self.temperature
        return log_sigmoid(scaled) if self.model.multilabel else log_softmax(scaled)


class Baseline:
    """Trains, saves and loads classifiers without a network."""

    by_steps, network_task = False, None

    def __init__(self, fit: Fit) -> None:
        self.fit = fit

    def num_parameters(self, config: RunConfig, vocabulary: LabelTokenizer) -> None:
        """Unknown before training: it depends on the terms of the training data."""

    def check(self, config: RunConfig) -> None:
        if config.train.init_from is not None:
            raise ConfigError("train.init_from", f"not available for {config.arch}, which has no initial weights", "remove it")

    def train(self, job: Job) -> None:
        config, labels, multilabel = job.config, job.tokenizer.labels, job.config.data.multilabel
        sources = config.datasets
        for split, source in sources.items():  # baselines have no tokenized corpus, which would record its origin
            write_record(job.directory.data, split, fingerprints(source.paths))
        start_time = time.perf_counter()
        examples = list(sources["train"].records())
        gold = targets([example.labels for example in examples], labels, multilabel=multilabel)
        job.callback.on_progress("finding terms", 0, 1)
        columns = list(zip(*(example.texts for example in examples), strict=True))
        features = [Features.fit(column, config.model.features) for column in columns]
        weights = balance(gold, labels.size).astype(np.float64) if config.model.class_weight == "balanced" else None
        inputs = hstack([extractor.transform(column) for extractor, column in zip(features, columns, strict=True)])
        fit_targets = gold.astype(bool) if multilabel else gold[:, 0]
        model = self.fit(inputs, fit_targets, labels.size, config.model, weights, job)
        for note in model.notes:
            job.callback.on_note(note)
        classifier = SparseClassifier(features, model, temperature=1.0)
        scores = self._validate(classifier, sources, job)
        words = sum(len(text.split()) for example in examples for text in example.texts)
        self._save(job, classifier, scores, time.perf_counter() - start_time, {"examples": len(examples), "tokens": words})

    def _validate(self, classifier: SparseClassifier, sources: Any, job: Job) -> dict[str, float]:
        """Set the temperature on the validation data, and return its scores; {} without validation data."""
        if "valid" not in sources:
            return {}
        examples, labels, multilabel = list(sources["valid"].records()), job.tokenizer.labels, classifier.model.multilabel
        label_names = [example.labels for example in examples]
        gold = targets(label_names, labels, multilabel=multilabel)
        logits = classifier.model.logits(classifier.featurize([example.texts for example in examples]))
        classifier.temperature = sigmoid_temperature(logits, gold) if multilabel else softmax_temperature(logits, gold[:, 0])
        log_probs = classifier.scale_by_temperature(logits)
        items = score_predictions(log_probs, gold, unseen(label_names, labels), multilabel=multilabel)
        return values(items, label_metrics(multilabel=multilabel))

    def _save(
        self, job: Job, classifier: SparseClassifier, scores: dict[str, float], seconds: float, counts: dict[str, int]
    ) -> None:
        for index, extractor in enumerate(classifier.features):
            extractor.save(job.directory.path / f"features.{index}.json")
        with Log(job.directory.path / "metrics.jsonl") as metrics, Log(job.directory.path / "timings.jsonl") as timings:
            metrics.restore()
            metrics.write({"step": 1, **counts, **{f"valid_{name}": value for name, value in scores.items()}})
            timings.write({"step": 1, "seconds": seconds})
        arrays = {**classifier.model.arrays(), "temperature": np.array(classifier.temperature, np.float64)}
        job.directory.write_weights(arrays, _vocabulary_hash(job.tokenizer, classifier.features), 1)
        job.callback.on_fit(classifier.num_parameters, scores)

    def load(self, config: RunConfig, tokenizer: LabelTokenizer, directory: RunDir, device: str) -> SparseClassifier:
        paths = [directory.path / f"features.{index}.json" for index in range(len(config.data.columns()))]
        features = [Features.load(path) for path in paths]
        arrays = directory.read_arrays(_vocabulary_hash(tokenizer, features))
        if "temperature" not in arrays:
            raise ModelError(directory.weights, "corrupted: temperature is missing")
        return SparseClassifier(features, LinearModel.from_arrays(arrays), float(arrays["temperature"]))


def _vocabulary_hash(tokenizer: LabelTokenizer, features: Sequence[Features]) -> str:
    """Hash of labels and terms, stored with the weights: weights of another vocabulary are refused."""
    return sha256(" ".join([tokenizer.labels.hash, *(extractor.hash for extractor in features)]).encode()).hexdigest()
