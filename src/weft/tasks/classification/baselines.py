"""Training classifiers that are counted, or solved in one go: naive Bayes and softmax regression over sparse features."""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from weft.data.provenance import write_fingerprints
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
    """How one kind finds its weights."""

    def __call__(self, features: Sparse, right: Any, classes: int, config: Any, weights: Any, job: Job) -> LinearModel: ...


def fit_bayes(features: Sparse, right: Any, classes: int, config: Any, weights: Any, job: Job) -> LinearModel:
    from weft.models import naive_bayes as bayes

    job.callback.on_progress("counting terms", 0, 1)
    return bayes.fit(features, right, classes, config, weights=weights)


def fit_regression(features: Sparse, right: Any, classes: int, config: Any, weights: Any, job: Job) -> LinearModel:
    from weft.models import logistic_regression as regression

    def progress(asked: int) -> None:
        job.callback.on_progress("solving the regression", min(asked, regression.MAX_STEPS - 1), regression.MAX_STEPS)

    return regression.fit(features, right, classes, config, weights=weights, progress=progress)


class SparseClassifier:
    """A linear model of terms that reads text."""

    def __init__(self, features: Sequence[Features], model: LinearModel, temperature: float) -> None:
        self.features, self.model, self.temperature = features, model, temperature
        self.max_length = None  # tokens that are read of a text: all of them

    @property
    def num_parameters(self) -> int:
        return self.model.num_parameters

    def parts(self) -> dict[str, int]:
        return self.model.parts()

    def featurize(self, texts: Sequence[tuple[str, ...]]) -> Sparse:
        """A row for each text; of pairs, the terms of both side by side."""
        columns = zip(*texts, strict=True)
        return hstack([part.transform(column) for part, column in zip(self.features, columns, strict=True)])

    def log_probs(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> np.ndarray:
        """float64 (N, K): log-probabilities of the labels of each text."""
        return self.scale_by_temperature(self.model.logits(self.featurize(texts)))

    def classify(self, texts: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None) -> ClassifierOutput:
        """The same, and which texts were cut: none ever is."""
        return ClassifierOutput(self.log_probs(texts, progress), np.zeros(len(texts), dtype=bool))

    def scale_by_temperature(self, scores: np.ndarray) -> np.ndarray:
        tempered = scores / self.temperature
        return log_sigmoid(tempered) if self.model.multilabel else log_softmax(tempered)


class Baseline:
    """Classifiers without a network."""

    by_steps, network_task = False, None

    def __init__(self, fit: Fit) -> None:
        self.fit = fit

    def num_parameters(self, config: RunConfig, vocabulary: LabelTokenizer) -> None:
        """As many as there are terms and labels."""

    def check(self, config: RunConfig) -> None:
        if config.train.init_from is not None:
            raise ConfigError("train.init_from", f"not available for {config.arch}, which has no initial weights", "remove it")

    def train(self, job: Job) -> None:
        config, labels, multilabel = job.config, job.tokenizer.labels, job.config.data.multilabel
        sources = config.datasets
        for split, source in sources.items():  # there are no tokens that would say so
            write_fingerprints(job.directory.data, split, fingerprints(source.paths))
        began = time.perf_counter()
        examples = list(sources["train"].records())
        gold = targets([example.labels for example in examples], labels, multilabel=multilabel)
        job.callback.on_progress("finding terms", 0, 1)
        columns = list(zip(*(example.texts for example in examples), strict=True))
        features = [Features.fit(column, config.model.features) for column in columns]
        weights = balance(gold, labels.size).astype(np.float64) if config.model.class_weight == "balanced" else None
        sparse = hstack([part.transform(column) for part, column in zip(features, columns, strict=True)])
        wanted = gold.astype(bool) if multilabel else gold[:, 0]
        model = self.fit(sparse, wanted, labels.size, config.model, weights, job)
        for note in model.notes:
            job.callback.on_note(note)
        ready, scores = self._validated(SparseClassifier(features, model, 1.0), sources, job)
        words = sum(len(text.split()) for example in examples for text in example.texts)
        self._write(job, ready, scores, time.perf_counter() - began, {"examples": len(examples), "tokens": words})

    def _validated(self, ready: SparseClassifier, sources: Any, job: Job) -> tuple[SparseClassifier, dict[str, float]]:
        """With the temperature, and the scores, of the validation texts, where there are any."""
        if "valid" not in sources:
            return ready, {}
        examples, labels, multilabel = list(sources["valid"].records()), job.tokenizer.labels, ready.model.multilabel
        found = [example.labels for example in examples]
        gold = targets(found, labels, multilabel=multilabel)
        scores = ready.model.logits(ready.featurize([example.texts for example in examples]))
        ready.temperature = sigmoid_temperature(scores, gold) if multilabel else softmax_temperature(scores, gold[:, 0])
        log_probs = score_predictions(ready.scale_by_temperature(scores), gold, unseen(found, labels), multilabel=multilabel)
        return ready, values(log_probs, label_metrics(multilabel=multilabel))

    def _write(self, job: Job, ready: SparseClassifier, scores: dict[str, float], seconds: float, read: dict[str, int]) -> None:
        for index, part in enumerate(ready.features):
            part.save(job.directory.path / f"features.{index}.json")
        with Log(job.directory.path / "metrics.jsonl") as metrics, Log(job.directory.path / "timings.jsonl") as timings:
            metrics.restore()
            metrics.write({"step": 1, **read, **{f"valid_{name}": value for name, value in scores.items()}})
            timings.write({"step": 1, "seconds": seconds})
        arrays = {**ready.model.arrays(), "temperature": np.array(ready.temperature, np.float64)}
        job.directory.write_weights(arrays, _vocabulary(job.tokenizer, ready.features), 1)
        job.callback.on_fit(ready.num_parameters, scores)

    def load(self, config: RunConfig, tokenizer: LabelTokenizer, directory: RunDir, device: str) -> SparseClassifier:
        paths = [directory.path / f"features.{index}.json" for index in range(len(config.data.columns()))]
        features = [Features.load(path) for path in paths]
        arrays = directory.read_arrays(_vocabulary(tokenizer, features))
        if "temperature" not in arrays:
            raise ModelError(directory.weights, "corrupted: temperature is missing")
        return SparseClassifier(features, LinearModel.from_arrays(arrays), float(arrays["temperature"]))


def _vocabulary(tokenizer: LabelTokenizer, features: Sequence[Features]) -> str:
    """What names labels and terms together: weights of others are refused."""
    return sha256(" ".join([tokenizer.labels.hash, *(part.hash for part in features)]).encode()).hexdigest()
