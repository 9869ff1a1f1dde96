"""Baselines without a network: naive Bayes and logistic regression over sparse features."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.config import to_dict
from weft.data.provenance import write_fingerprints
from weft.data.source import fingerprints
from weft.errors import ConfigError, ModelError
from weft.log import Log
from weft.metrics.classification import label_metrics
from weft.metrics.metric import values
from weft.models.linear import LinearModel, log_sigmoid, log_softmax
from weft.tasks.classification.evaluation import ClassifierOutput, score_predictions, targets, unseen
from weft.tasks.classification.selection import (
    Examples,
    OptionValues,
    SearchFit,
    TrainingSet,
    calibrate,
    choose,
    describe,
    featurize,
    training_set,
)
from weft.text.feature_union import FeatureUnion
from weft.text.features import Sparse
from weft.training.objective import ProgressCallback

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.runs.run_dir import RunDir
    from weft.text.label_tokenizer import LabelTokenizer


def fit_bayes(data: TrainingSet, config: Any, progress: Callable[[int], None]) -> LinearModel:
    from weft.models import naive_bayes as bayes

    return bayes.fit(data.features, data.targets, data.num_labels, config, weights=data.class_weight)


def search_bayes(data: TrainingSet, config: Any, start: LinearModel | None) -> LinearModel:
    return fit_bayes(data, config, lambda step: None)


def fit_regression(data: TrainingSet, config: Any, progress: Callable[[int], None]) -> LinearModel:
    from weft.models import logistic_regression as regression

    features, targets, num_labels, weights = data
    return regression.fit(features, targets, num_labels, config, weights=weights, progress=progress)


def search_regression(data: TrainingSet, config: Any, start: LinearModel | None) -> LinearModel:
    from weft.models import logistic_regression as regression

    features, targets, num_labels, weights = data
    warm_start = regression.WarmStart(start, regression.SEARCH_TOLERANCE)
    return regression.fit(features, targets, num_labels, config, weights=weights, start=warm_start)


Fit = Callable[[TrainingSet, Any, Callable[[int], None]], LinearModel]  # of a configuration; reports the number of steps
OPTION = "option."  # prefix of the options in the weights
MAX_SHOWN = 500  # steps of a full progress bar


class SparseClassifier:
    """A linear model together with the feature extractors that turn texts into its inputs. `options` are those that
    it was fitted with, such as C: the run file may leave them to be chosen."""

    def __init__(
        self, features: Sequence[FeatureUnion], model: LinearModel, *, temperature: float, options: Mapping[str, bool | float]
    ) -> None:
        self.features, self.model, self.temperature, self.options = features, model, temperature, options
        self.max_length = None  # texts are never truncated

    @property
    def num_parameters(self) -> int:
        return self.model.num_parameters

    def parts(self) -> dict[str, int]:
        return self.model.parts()

    def featurize(self, texts: Sequence[tuple[str, ...]]) -> Sparse:
        """Sparse features, one row per example; the features of text pairs are concatenated."""
        return featurize(self.features, texts)

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


def _read(source: Any, job: Job) -> Examples:
    examples, labels, multilabel = list(source.records()), job.tokenizer.labels, job.config.data.multilabel
    names = [example.labels for example in examples]
    gold = targets(names, labels, multilabel=multilabel)
    return Examples([example.texts for example in examples], gold, unseen(names, labels), multilabel)


def _validate(classifier: SparseClassifier, valid: Examples, *, fits_temperature: bool) -> dict[str, float]:
    """The scores of the validation data, after its temperature has been set."""
    logits = classifier.model.logits(classifier.featurize(valid.texts))
    if fits_temperature:
        classifier.temperature = calibrate(logits, valid)
    log_probs = classifier.scale_by_temperature(logits)
    items = score_predictions(log_probs, valid.targets, valid.unseen, multilabel=valid.multilabel)
    return values(items, label_metrics(multilabel=valid.multilabel))


class Baseline:
    """Trains, saves and loads classifiers without a network."""

    by_steps, network_task = False, None

    def __init__(self, fit: Fit, search: SearchFit, choices: Sequence[OptionValues], *, uses_torch: bool = False) -> None:
        self.fit, self.search, self.choices = fit, search, choices
        self._uses_torch = uses_torch

    def uses_torch(self, config: RunConfig) -> bool:
        return self._uses_torch

    def num_parameters(self, config: RunConfig, vocabulary: LabelTokenizer) -> None:
        """Unknown before training: it depends on the terms of the training data."""

    def check(self, config: RunConfig) -> None:
        if config.train.init_from is not None:
            raise ConfigError("train.init_from", f"not available for {config.arch}, which has no initial weights", "remove it")
        if config.train.distill_from is not None:
            raise ConfigError("train.distill_from", f"{config.arch} cannot learn from teachers", "use a network")

    def train(self, job: Job) -> None:
        sources = job.config.datasets
        for split, source in sources.items():  # baselines have no tokenized corpus, which would record its origin
            write_fingerprints(job.directory.data, split, fingerprints(source.paths))
        start_time = time.perf_counter()
        train = _read(sources["train"], job)
        valid = _read(sources["valid"], job) if "valid" in sources else None
        config = self._choose(train, valid, job)
        job.callback.on_progress("finding terms", 0, 1)
        num_labels = job.tokenizer.labels.size
        features = [FeatureUnion.fit(column, config.features) for column in train.columns()]
        data = training_set(features, train, num_labels, config)
        model = self.fit(data, config, lambda step: job.callback.on_progress("fitting", min(step, MAX_SHOWN - 1), MAX_SHOWN))
        options = {name: value for name, value in to_dict(config).items() if isinstance(value, bool | float)}
        options.pop("temperature", None)  # stored with the weights
        for note in model.notes:
            job.callback.on_note(note)
        classifier = SparseClassifier(features, model, temperature=config.temperature or 1.0, options=options)
        fits_temperature = config.temperature is None
        scores = {} if valid is None else _validate(classifier, valid, fits_temperature=fits_temperature)
        words = sum(len(text.split()) for texts in train.texts for text in texts)
        seconds, counts = time.perf_counter() - start_time, {"examples": len(train.texts), "tokens": words}
        self._save(job, classifier, scores, seconds, counts)

    def _choose(self, train: Examples, valid: Examples | None, job: Job) -> Any:
        """The configuration of the model, with the best values of the options that are not set."""
        config = job.config.model
        choices = [choice for choice in self.choices if getattr(config, choice.option) is None]
        if not choices:
            return config
        progress = partial(job.callback.on_progress, "choosing options")
        chosen = choose(config, choices, self.search, train, valid, num_labels=job.tokenizer.labels.size, progress=progress)
        where = "in cross-validation on the training data" if valid is None else "on the validation data"
        job.callback.on_note(f"{describe(chosen, choices)} (lowest log loss {where})")
        return chosen

    def _save(
        self, job: Job, classifier: SparseClassifier, scores: dict[str, float], seconds: float, counts: dict[str, int]
    ) -> None:
        for index, extractor in enumerate(classifier.features):
            extractor.save(job.directory.path, index)
        with Log(job.directory.path / "metrics.jsonl") as metrics, Log(job.directory.path / "timings.jsonl") as timings:
            metrics.restore()
            metrics.write({"step": 1, **counts, **{f"valid_{name}": value for name, value in scores.items()}})
            timings.write({"step": 1, "seconds": seconds})
        arrays = {**classifier.model.arrays(), "temperature": np.array(classifier.temperature, np.float64)}
        arrays |= {OPTION + name: np.array(value) for name, value in classifier.options.items()}
        job.directory.write_weights(arrays, _vocabulary_hash(job.tokenizer, classifier.features), 1)
        job.callback.on_fit(classifier.num_parameters, scores)

    def load(self, config: RunConfig, tokenizer: LabelTokenizer, directory: RunDir, device: str) -> SparseClassifier:
        features = [FeatureUnion.load(directory.path, column) for column in range(len(config.data.columns()))]
        arrays = directory.read_arrays(_vocabulary_hash(tokenizer, features))
        if "temperature" not in arrays:
            raise ModelError(directory.weights, "corrupted: temperature is missing")
        options = {name.removeprefix(OPTION): value.item() for name, value in arrays.items() if name.startswith(OPTION)}
        temperature = float(arrays["temperature"])
        return SparseClassifier(features, LinearModel.from_arrays(arrays), temperature=temperature, options=options)

    def chosen_options(self, model: SparseClassifier) -> dict[str, Any]:
        features = to_dict(model.features[0].config)  # that of both texts of a pair
        return {**model.options, "features": features, "temperature": model.temperature}


def _vocabulary_hash(tokenizer: LabelTokenizer, features: Sequence[FeatureUnion]) -> str:
    """Hash of labels and terms, stored with the weights: weights of another vocabulary are refused."""
    return sha256(" ".join([tokenizer.labels.hash, *(extractor.hash for extractor in features)]).encode()).hexdigest()
