"""The [model] tables of the baselines for classification."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from weft.config import Choice, Config
from weft.models.encoder_config import CLASS_WEIGHTS
from weft.text.features import FeatureConfig

EVENT_MODELS = ("multinomial", "bernoulli")
DEFAULT_ALPHA, DEFAULT_C = 1.0, 1.0  # without enough data to choose


class BaselineConfig(Config):
    """The options of all baselines."""

    class_weight: Annotated[str, Choice(CLASS_WEIGHTS)] = "none"
    """balanced: weight classes inversely to their frequency."""
    temperature: float | None = Field(None, gt=0.0)
    """Divisor of the logits, which calibrates probabilities. Default: fitted on validation data; 1 without any."""

    def with_defaults(self) -> Self:
        return self


class NaiveBayesConfig(BaselineConfig):
    """Naive Bayes: the terms of a text are independent given its class."""

    event_model: Annotated[str, Choice(EVENT_MODELS, "event model")] = "multinomial"
    """Event model: multinomial or bernoulli."""
    alpha: float | None = Field(None, gt=0.0)
    """Additive smoothing. Default: chosen on validation data."""
    features: FeatureConfig | None = None
    """Options of the bag-of-n-grams features. Default: length and weights of n-grams of words are chosen on validation data."""


class LogisticRegressionConfig(BaselineConfig):
    """Softmax regression with an L2 penalty; one logistic regression per label if texts may have several labels."""

    C: float | None = Field(None, gt=0.0)
    """Inverse regularization strength. Default: chosen on validation data."""
    naive_bayes_weights: bool = False
    """Multiply terms by their naive Bayes log-ratios (Wang and Manning 2012)."""
    features: FeatureConfig = Field(default_factory=lambda: FeatureConfig.model_validate({}))
    """Options of the bag-of-n-grams features."""
