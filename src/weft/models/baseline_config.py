"""The [model] tables of the baselines for classification."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from weft.config import Choice, Config
from weft.text.features import FeatureConfig

EVENT_MODELS = ("multinomial", "bernoulli")


def _counts() -> FeatureConfig:
    """Naive Bayes is a model of counts: a weighted count is no event."""
    return FeatureConfig.model_validate({"tfidf": False})


class BaselineConfig(Config):
    """What all baselines have."""

    balanced: bool = False  # every label counts as much as any other, however rare it is

    def with_defaults(self) -> Self:
        return self


class NaiveBayesConfig(BaselineConfig):
    """Naive Bayes: how often a class has each term, and nothing about terms that go together."""

    # what is drawn from a class: the terms of a text one by one, or for each term whether it is there
    event_model: Annotated[str, Choice(EVENT_MODELS, "events")] = "multinomial"
    alpha: float = Field(1.0, gt=0.0)  # added to every count
    features: FeatureConfig = Field(default_factory=_counts)


class LogisticRegressionConfig(BaselineConfig):
    """Softmax regression with an L2 penalty; a logistic regression for each label where texts have several."""

    C: float = Field(1.0, gt=0.0)  # inverse strength of the penalty, as in scikit-learn
    features: FeatureConfig = Field(default_factory=lambda: FeatureConfig.model_validate({}))
