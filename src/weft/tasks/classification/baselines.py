"""Training classifiers that are counted, or solved in one go: naive Bayes and softmax regression over sparse features."""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from weft.data.record import write_record
from weft.data.source import fingerprints
from weft.errors import ConfigError, ModelError
from weft.log import Log
from weft.metrics.calibration import sigmoid_temperature, softmax_temperature
from weft.metrics.labels import label_metrics
from weft.metrics.metric import values
from weft.models.linear import LinearModel, log_sigmoid, log_softmax
from weft.tasks.classification.judging import Judged, balance, judged, targets, unseen
from weft.text.features import Features, Sparse, beside
from weft.train.objective import Watch

if TYPE_CHECKING:
    from weft.runs.folder import RunFolder
    from weft.runs.job import Job
    from weft.runs.settings import Settings
    from weft.text.labelled_tokens import LabelledTokens


class Fit(Protocol):
    """How one kind finds its weights."""

    def __call__(self, features: Sparse, right: Any, classes: int, table: Any, weights: Any, job: Job) -> LinearModel: ...


def fit_bayes(features: Sparse, right: Any, classes: int, table: Any, weights: Any, job: Job) -> LinearModel:
    from weft.models import bayes

    job.watcher.working("counting terms", 0, 1)
    return bayes.fit(features, right, classes, table, weights=weights)


def fit_regression(features: Sparse, right: Any, classes: int, table: Any, weights: Any, job: Job) -> LinearModel:
    from weft.models import regression

    def watch(asked: int) -> None:
        job.watcher.working("solving the regression", min(asked, regression.STEPS - 1), regression.STEPS)

    return regression.fit(features, right, classes, table, weights=weights, watch=watch)


class SparseLabeller:
    """A linear model of terms that reads text."""

    def __init__(self, features: Sequence[Features], model: LinearModel, temperature: float) -> None:
        self.features, self.model, self.temperature = features, model, temperature
        self.longest = None  # tokens that are read of a text: all of them

    @property
    def parameters(self) -> int:
        return self.model.parameters

    def parts(self) -> dict[str, int]:
        return self.model.parts()

    def sparse(self, texts: Sequence[tuple[str, ...]]) -> Sparse:
        """A row for each text; of pairs, the terms of both side by side."""
        columns = zip(*texts, strict=True)
        return beside([part.transform(column) for part, column in zip(self.features, columns, strict=True)])

    def log_probs(self, texts: Sequence[tuple[str, ...]], watch: Watch | None = None) -> np.ndarray:
        """float64 (N, K): log-probabilities of the labels of each text."""
        return self.tempered(self.model.scores(self.sparse(texts)))

    def judge(self, texts: Sequence[tuple[str, ...]], watch: Watch | None = None) -> Judged:
        """The same, and which texts were cut: none ever is."""
        return Judged(self.log_probs(texts, watch), np.zeros(len(texts), dtype=bool))

    def tempered(self, scores: np.ndarray) -> np.ndarray:
        tempered = scores / self.temperature
        return log_sigmoid(tempered) if self.model.multi else log_softmax(tempered)


class Baseline:
    """Classifiers without a network."""

    by_steps, shape = False, None

    def __init__(self, fit: Fit) -> None:
        self.fit = fit

    def parameters(self, settings: Settings, vocabulary: LabelledTokens) -> None:
        """As many as there are terms and labels."""

    def check(self, settings: Settings) -> None:
        if settings.train.init_from is not None:
            raise ConfigError(f"train.init_from: {settings.kind} is solved anew and starts from no weights; drop it")

    def train(self, job: Job) -> None:
        settings, labels, several = job.settings, job.tokenizer.labels, job.settings.data.multi
        sources = settings.datasets
        for split, source in sources.items():  # there are no tokens that would say so
            write_record(job.folder.data, split, fingerprints(source.paths))
        began = time.perf_counter()
        examples = list(sources["train"].records())
        right = targets([example.labels for example in examples], labels, several=several)
        job.watcher.working("finding terms", 0, 1)
        columns = list(zip(*(example.texts for example in examples), strict=True))
        features = [Features.fit(column, settings.model.features) for column in columns]
        weights = balance(right, labels.size).astype(np.float64) if settings.model.balanced else None
        sparse = beside([part.transform(column) for part, column in zip(features, columns, strict=True)])
        wanted = right.astype(bool) if several else right[:, 0]
        model = self.fit(sparse, wanted, labels.size, settings.model, weights, job)
        for note in model.notes:
            job.watcher.note(note)
        ready, scores = self._validated(SparseLabeller(features, model, 1.0), sources, job)
        words = sum(len(text.split()) for example in examples for text in example.texts)
        self._write(job, ready, scores, time.perf_counter() - began, {"examples": len(examples), "tokens": words})

    def _validated(self, ready: SparseLabeller, sources: Any, job: Job) -> tuple[SparseLabeller, dict[str, float]]:
        """With the temperature, and the scores, of the validation texts, where there are any."""
        if "valid" not in sources:
            return ready, {}
        examples, labels, several = list(sources["valid"].records()), job.tokenizer.labels, ready.model.multi
        found = [example.labels for example in examples]
        right = targets(found, labels, several=several)
        scores = ready.model.scores(ready.sparse([example.texts for example in examples]))
        ready.temperature = sigmoid_temperature(scores, right) if several else softmax_temperature(scores, right[:, 0])
        said = judged(ready.tempered(scores), right, unseen(found, labels), several=several)
        return ready, values(said, label_metrics(several=several))

    def _write(self, job: Job, ready: SparseLabeller, scores: dict[str, float], seconds: float, read: dict[str, int]) -> None:
        for at, part in enumerate(ready.features):
            part.save(job.folder.path / f"features.{at}.json")
        with Log(job.folder.path / "metrics.jsonl") as metrics, Log(job.folder.path / "timings.jsonl") as timings:
            metrics.restore()
            metrics.write({"step": 1, **read, **{f"valid_{name}": value for name, value in scores.items()}})
            timings.write({"step": 1, "seconds": seconds})
        arrays = {**ready.model.arrays(), "temperature": np.array(ready.temperature, np.float64)}
        job.folder.write_weights(arrays, _vocabulary(job.tokenizer, ready.features), 1)
        job.watcher.counted(ready.parameters, scores)

    def load(self, settings: Settings, tokenizer: LabelledTokens, folder: RunFolder, device: str) -> SparseLabeller:
        paths = [folder.path / f"features.{at}.json" for at in range(len(settings.data.columns()))]
        features = [Features.load(path) for path in paths]
        arrays = folder.read_arrays(_vocabulary(tokenizer, features))
        if "temperature" not in arrays:
            raise ModelError(f"{folder.weights}: has no temperature; the file is damaged")
        return SparseLabeller(features, LinearModel.from_arrays(arrays), float(arrays["temperature"]))


def _vocabulary(tokenizer: LabelledTokens, features: Sequence[Features]) -> str:
    """What names labels and terms together: weights of others are refused."""
    return sha256(" ".join([tokenizer.labels.hash, *(part.hash for part in features)]).encode()).hexdigest()
