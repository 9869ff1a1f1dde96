"""The [model] tables of the baselines for classification."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from weft.config import OneOf, Table
from weft.text.features import FeatureTable

EVENTS = ("multinomial", "bernoulli")


def _counts() -> FeatureTable:
    """Naive Bayes is a model of counts: a weighted count is no event."""
    return FeatureTable.model_validate({"tfidf": False})


class BaselineTable(Table):
    """What all baselines have."""

    balanced: bool = False  # every label counts as much as any other, however rare it is

    def filled(self) -> Self:
        return self


class BayesTable(BaselineTable):
    """Naive Bayes: how often a class has each term, and nothing about terms that go together."""

    # what is drawn from a class: the terms of a text one by one, or for each term whether it is there
    events: Annotated[str, OneOf(EVENTS, "events")] = "multinomial"
    alpha: float = Field(1.0, gt=0.0)  # added to every count
    features: FeatureTable = Field(default_factory=_counts)


class RegressionTable(BaselineTable):
    """Softmax regression with an L2 penalty; a logistic regression for each label where texts have several."""

    C: float = Field(1.0, gt=0.0)  # inverse strength of the penalty, as in scikit-learn
    features: FeatureTable = Field(default_factory=lambda: FeatureTable.model_validate({}))
