"""Linear reward models: features, their weights, and the choice of C on validation data.

Shapes: M texts, N pairs, F features.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.data.provenance import write_fingerprints
from weft.data.source import fingerprints
from weft.errors import ConfigError, ModelError
from weft.log import Log
from weft.metrics.metric import values
from weft.metrics.preferences import PREFERENCES, preference_items
from weft.models.linear import product
from weft.tasks.reward_model.data import pairs_of_texts
from weft.text.feature_union import FeatureUnion
from weft.text.features import Sparse
from weft.training.objective import ProgressCallback

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.runs.run_dir import RunDir
    from weft.text.tokenizers import Tokenizer

DEFAULT_C = 0.1  # without validation data
C_VALUES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
MAX_SHOWN = 100  # steps of a full progress bar


def _unique(sides: Sequence[Sequence[tuple[str, ...]]]) -> tuple[list[str], np.ndarray]:
    """The different texts, without their prompts, and int64 (N, sides): their indices."""
    texts = [[row[-1] for row in side] for side in sides]
    index = {text: number for number, text in enumerate(dict.fromkeys(text for side in texts for text in side))}
    return list(index), np.array([[index[text] for text in row] for row in zip(*texts, strict=True)], np.int64)


class LinearReward:
    """A linear function of the n-grams of a text and of the logarithm of its length. Prompts are not used: their terms would be
    equal for both texts of a pair."""

    def __init__(self, features: FeatureUnion, weight: np.ndarray, length_weight: float) -> None:
        self.features, self.weight, self.length_weight = features, weight, length_weight

    @property
    def num_parameters(self) -> int:
        return self.weight.size + 1

    def parts(self) -> dict[str, int]:
        return {"weights": self.weight.size, "length": 1}

    def score(self, texts: Sequence[str]) -> np.ndarray:
        """float64 (M,): the reward of each text."""
        sums = product(self.features.transform(texts), self.weight[:, None])[:, 0]
        return sums + self.length_weight * log_lengths(texts)

    def rewards(
        self, rows: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """float64 (N,): the reward of each text; bool (N,): no text is truncated."""
        return self.score([row[-1] for row in rows]), np.zeros(len(rows), bool)


def log_lengths(texts: Sequence[str]) -> np.ndarray:
    """float64 (M,)."""
    return np.log1p(np.array([len(text) for text in texts], np.float64))


def with_column(features: Sparse, column: np.ndarray) -> Sparse:
    """Features with one more column, (M,)."""
    size = np.diff(features.indptr)
    ends = features.indptr[1:]
    indices = np.insert(features.indices, ends, features.columns)
    return Sparse(
        np.concatenate([[0], np.cumsum(size + 1)]), indices, np.insert(features.values, ends, column), features.columns + 1
    )


def fit_linear(
    texts: Sequence[str], pairs: np.ndarray, features: FeatureUnion, *, C: float, length_feature: bool, progress: Any = None
) -> LinearReward:
    """The model of texts (M,), of which the first of each pair (N, 2) was preferred."""
    from weft.models import preference_regression

    matrix, scale = features.transform(texts), 1.0
    if length_feature:
        lengths = log_lengths(texts)
        scale = float(np.std(lengths)) or 1.0  # the scale of rows of TF-IDF, or the penalty would depend on the unit
        matrix = with_column(matrix, lengths / scale)
    weight = preference_regression.fit(matrix, pairs, C, progress)
    if not length_feature:
        return LinearReward(features, weight, 0.0)
    return LinearReward(features, weight[:-1], float(weight[-1]) / scale)


class LinearEstimator:
    """Trains, saves and loads linear reward models."""

    by_steps, network_task = False, None

    def uses_torch(self, config: RunConfig) -> bool:
        return True

    def num_parameters(self, config: RunConfig, vocabulary: Tokenizer) -> None:
        """Unknown before training: it depends on the terms of the training data."""

    def check(self, config: RunConfig) -> None:
        if config.train.init_from is not None:
            raise ConfigError("train.init_from", f"not available for {config.arch}, which has no initial weights", "remove it")

    def train(self, job: Job) -> None:
        sources, config = job.config.datasets, job.config.model
        for split, source in sources.items():  # there is no tokenized corpus, which would record its origin
            write_fingerprints(job.directory.data, split, fingerprints(source.paths))
        start = time.perf_counter()
        texts, pairs = _unique(pairs_of_texts(sources["train"]))
        job.callback.on_progress("finding terms", 0, 1)
        features = FeatureUnion.fit(texts, config.features)
        choices = [config.C or DEFAULT_C] if config.C is not None or "valid" not in sources else list(C_VALUES)
        fitted = list[tuple[LinearReward, dict[str, float]]]()
        for number, C in enumerate(choices):
            job.callback.on_progress("fitting", number, len(choices))
            model = fit_linear(texts, pairs, features, C=C, length_feature=config.length_feature)
            fitted.append((model, _validate(model, sources["valid"]) if "valid" in sources else {}))
        chosen = min(range(len(fitted)), key=lambda index: fitted[index][1].get("log_loss", 0.0))
        best, scores = fitted[chosen]
        if len(choices) > 1:
            job.callback.on_note(f"C = {choices[chosen]:g} (lowest log loss on the validation data)")
        counts = {"examples": len(pairs), "tokens": sum(len(text.split()) for text in texts)}
        self._save(job, best, scores, time.perf_counter() - start, counts)

    def _save(self, job: Job, model: LinearReward, scores: dict[str, float], seconds: float, counts: dict[str, int]) -> None:
        model.features.save(job.directory.path, 0)
        with Log(job.directory.path / "metrics.jsonl") as metrics, Log(job.directory.path / "timings.jsonl") as timings:
            metrics.restore()
            metrics.write({"step": 1, **counts, **{f"valid_{name}": value for name, value in scores.items()}})
            timings.write({"step": 1, "seconds": seconds})
        arrays = {"weight": model.weight, "length": np.array([model.length_weight])}
        job.directory.write_weights(arrays, _vocabulary_hash(job.tokenizer, model.features), 1)
        job.callback.on_fit(model.num_parameters, scores)

    def load(self, config: RunConfig, tokenizer: Tokenizer, directory: RunDir, device: str) -> LinearReward:
        features = FeatureUnion.load(directory.path, 0)
        arrays = directory.read_arrays(_vocabulary_hash(tokenizer, features))
        shapes = {name: array.shape for name, array in arrays.items()}
        if shapes != {"weight": (features.num_features,), "length": (1,)}:
            raise ModelError(directory.weights, "corrupted: its arrays do not match the features")
        return LinearReward(features, arrays["weight"], float(arrays["length"][0]))

    def chosen_options(self, model: LinearReward) -> dict[str, Any]:
        return {}


def _validate(model: LinearReward, dataset: Any) -> dict[str, float]:
    chosen, rejected = pairs_of_texts(dataset)
    lengths = np.array([[len(a[-1]), len(b[-1])] for a, b in zip(chosen, rejected, strict=True)], np.int64)
    return values(preference_items(model.rewards(chosen)[0], model.rewards(rejected)[0], lengths), PREFERENCES)


def _vocabulary_hash(tokenizer: Tokenizer, features: FeatureUnion) -> str:
    """Hash of tokenizer and terms, stored with the weights: weights of another vocabulary are refused."""
    return sha256(f"{tokenizer.hash} {features.hash}".encode()).hexdigest()
