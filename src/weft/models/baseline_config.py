"""The [model] tables of the baselines for classification."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from weft.config import Choice, Config
from weft.models.encoder_config import CLASS_WEIGHTS
from weft.text.features import FeatureConfig

EVENT_MODELS = ("multinomial", "bernoulli")


def _counts() -> FeatureConfig:
    """Naive Bayes is a model of counts: TF-IDF weights are not counts."""
    return FeatureConfig.model_validate({"tfidf": False})


class BaselineConfig(Config):
    """The options of all baselines."""

    class_weight: Annotated[str, Choice(CLASS_WEIGHTS)] = "none"
    """balanced: weight classes inversely to their frequency."""

    def with_defaults(self) -> Self:
        return self


class NaiveBayesConfig(BaselineConfig):
    """Naive Bayes: the terms of a text are independent given its class."""

    event_model: Annotated[str, Choice(EVENT_MODELS, "event model")] = "multinomial"
    """Event model: multinomial or bernoulli."""
    alpha: float = Field(1.0, gt=0.0)
    """Additive smoothing."""
    features: FeatureConfig = Field(default_factory=_counts)
    """Options of the bag-of-n-grams features."""


class LogisticRegressionConfig(BaselineConfig):
    """Softmax regression with an L2 penalty; one logistic regression per label if texts may have several labels."""

    C: float = Field(1.0, gt=0.0)
    """Inverse regularization strength."""
    features: FeatureConfig = Field(default_factory=lambda: FeatureConfig.model_validate({}))
    """Options of the bag-of-n-grams features."""
