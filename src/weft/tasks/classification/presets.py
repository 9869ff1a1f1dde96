"""The architectures of classification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.metrics.classification import label_metrics
from weft.metrics.metric import metric_names
from weft.models.baseline_config import DEFAULT_ALPHA, DEFAULT_C, LogisticRegressionConfig, NaiveBayesConfig
from weft.models.config import MIN_RNNS
from weft.models.encoder_config import ClassifierConfig
from weft.tasks.classification.baselines import Baseline, fit_bayes, fit_regression, search_bayes, search_regression
from weft.tasks.classification.selection import OptionValues
from weft.tasks.presets import BLOCKS, FINE_TUNED, PRETRAINED
from weft.tasks.spec import Preset, SearchDimension
from weft.text.features import FeatureConfig
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.classification.network import ClassificationBuilder

    return ClassificationBuilder()


def check(config: RunConfig) -> None:
    """Reject options that cannot be combined."""
    available = metric_names([label_metrics(multilabel=config.data.multilabel)])
    if config.train.monitor is not None and config.train.monitor not in available:
        multilabel = str(config.data.multilabel).lower()
        problem = f"{config.train.monitor!r} is not available with data.multilabel = {multilabel}"
        raise ConfigError("train.monitor", problem, f"use {available[0]!r}")


def _ngrams(longest: int, tfidf: bool) -> FeatureConfig:
    """N-grams of words with TF-IDF weights, or the presence of each."""
    return FeatureConfig.model_validate({"ngram_range": [1, longest], "max_char_ngram": 0, "tfidf": tfidf, "binary": not tfidf})


NETWORK = NetworkEstimator(find_network, check)
TRAIN: Mapping[str, Any] = {
    "max_steps": 1000, "batch_tokens": 2048, "lr": 3e-3, "weight_decay": 0.01, "lr_schedule": "cosine", "warmup_ratio": 0.05,
    "label_smoothing": 0.1, "ema_decay": 0.99,
}  # fmt: skip
RECURRENT: Mapping[str, Any] = {"num_layers": 1, "dropout": 0.5, "pooling": "max"}
BAYES = (
    SearchDimension("alpha", (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)),
    SearchDimension("event_model", ("multinomial", "bernoulli")),
    SearchDimension("features.ngram_range", ([1, 1], [1, 2], [1, 3])),
    SearchDimension("features.binary", (False, True), ("event_model", "multinomial")),
    SearchDimension("features.tfidf", (False, True), ("event_model", "multinomial")),
)
REGRESSION = (
    SearchDimension("C", (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
    SearchDimension("features.ngram_range", ([1, 1], [1, 2], [1, 3])),
    SearchDimension("features.sublinear_tf", (False, True)),
    SearchDimension("features.min_df", (1, 2)),
    SearchDimension("naive_bayes_weights", (False, True)),
)
# values that are tried for options which are not set; strong regularization first, which wins if several are as good
BAYES_CHOICES = (
    OptionValues("features", [_ngrams(longest, tfidf) for longest in (1, 2, 3) for tfidf in (False, True)], _ngrams(1, False)),
    OptionValues("alpha", (3.0, 1.0, 0.3, 0.1, 0.03), DEFAULT_ALPHA, is_ordered=True),
)
REGRESSION_CHOICES = (OptionValues("C", (0.3, 1.0, 3.0, 10.0, 30.0, 100.0), DEFAULT_C, is_ordered=True),)


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, ClassifierConfig, values, TRAIN)


PRESETS: Mapping[str, Preset] = {
    "naive-bayes": Preset(Baseline(fit_bayes, search_bayes, BAYES_CHOICES), NaiveBayesConfig, search_space=BAYES),
    "logistic-regression": Preset(
        Baseline(fit_regression, search_regression, REGRESSION_CHOICES, uses_torch=True),
        LogisticRegressionConfig,
        search_space=REGRESSION,
    ),
    "conv": _preset({**RECURRENT, "layer_type": "conv", "kernel_size": 3}),
    "rnn": _preset({**RECURRENT, "layer_type": "rnn"}),
    "lstm": _preset({**RECURRENT, "layer_type": "lstm"}),
    "gru": _preset({**RECURRENT, "layer_type": "gru"}),
    **{arch: _preset({**RECURRENT, **values}) for arch, values in MIN_RNNS.items()},
    "transformer": _preset({**BLOCKS, "pooling": "mean"}),
    "bert": Preset(NETWORK, ClassifierConfig, {**PRETRAINED, "pooling": "first"}, FINE_TUNED),
}
