"""The classifiers that run files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.metrics.labels import label_metrics
from weft.metrics.metric import metric_names
from weft.models.baseline_tables import BayesTable, RegressionTable
from weft.models.encoder_tables import ClassifierTable
from weft.tasks.classification.baselines import Baseline, fit_bayes, fit_regression
from weft.tasks.presets import BLOCKS, FINE_TUNED, PRETRAINED
from weft.tasks.spec import Choice, Preset
from weft.train.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.train.network import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.classification.network import Classification

    return Classification()


def check(settings: Settings) -> None:
    """Refuse options that do not go together."""
    known = metric_names([label_metrics(several=settings.data.multi)])
    if settings.train.monitor is not None and settings.train.monitor not in known:
        several = str(settings.data.multi).lower()
        raise ConfigError(f"train.monitor: {settings.train.monitor!r} is no score where data.multi={several}; use {known[0]!r}")


NETWORK = NetworkEstimator(find_network, check)
TRAIN: Mapping[str, Any] = {
    "steps": 1000, "batch_tokens": 2048, "lr": 3e-3, "weight_decay": 0.01, "schedule": "cosine", "warmup": 0.05,
    "label_smoothing": 0.1, "average": 0.99,
}  # fmt: skip
RECURRENT: Mapping[str, Any] = {"layers": 1, "dropout": 0.5, "pool": "max"}
BAYES = (
    Choice("alpha", (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)),
    Choice("events", ("multinomial", "bernoulli")),
    Choice("features.ngrams", ([1, 1], [1, 2], [1, 3])),
    Choice("features.binary", (False, True), ("events", "multinomial")),
    Choice("features.tfidf", (False, True), ("events", "multinomial")),
)
REGRESSION = (
    Choice("C", (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
    Choice("features.ngrams", ([1, 1], [1, 2], [1, 3])),
    Choice("features.sublinear", (False, True)),
    Choice("features.min_count", (1, 2)),
)


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, ClassifierTable, values, TRAIN)


PRESETS: Mapping[str, Preset] = {
    "naive-bayes": Preset(Baseline(fit_bayes), BayesTable, choices=BAYES),
    "regression": Preset(Baseline(fit_regression), RegressionTable, choices=REGRESSION),
    "window": _preset({**RECURRENT, "mixer": "window", "context": 3}),
    "rnn": _preset({**RECURRENT, "mixer": "rnn"}),
    "lstm": _preset({**RECURRENT, "mixer": "lstm"}),
    "gru": _preset({**RECURRENT, "mixer": "gru"}),
    "transformer": _preset({**BLOCKS, "pool": "mean"}),
    "bert": Preset(NETWORK, ClassifierTable, {**PRETRAINED, "pool": "first"}, FINE_TUNED),
}
