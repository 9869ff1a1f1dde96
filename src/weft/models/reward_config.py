"""The [model] tables of reward models."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from weft.config import Choice, Config, invalid
from weft.models.encoder_config import TextEncoderConfig
from weft.nn.choices import POOLINGS
from weft.text.features import FeatureConfig


class RewardConfig(TextEncoderConfig):
    """An encoder, or a causal stack, with pooling and a linear layer to one number."""

    pooling: Annotated[str, Choice(POOLINGS)] = "mean"
    """How token vectors become one vector."""
    length_feature: bool = False
    """Add a learned multiple of the logarithm of the number of tokens to the reward."""

    @model_validator(mode="after")
    def check_pooling(self) -> Self:
        if self.pooling == "first" and not self.bidirectional:
            raise invalid("pooling", "'first' requires bidirectional = true", "use 'last'")
        return self


class LinearRewardConfig(Config):
    """A linear function of n-grams, fitted to preferences with an L2 penalty."""

    C: float | None = Field(None, gt=0.0)
    """Inverse regularization strength. Default: chosen on validation data."""
    length_feature: bool = True
    """Add a multiple of the logarithm of the number of characters to the reward."""
    features: FeatureConfig = Field(default_factory=lambda: FeatureConfig.model_validate({"min_df": 2}))
    """Options of the bag-of-n-grams features."""

    def with_defaults(self) -> Self:
        return self
