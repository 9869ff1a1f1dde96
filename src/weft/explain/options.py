"""The options of `weft explain`: what to explain, and how."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from weft.config import Config
from weft.decode.options import check_patience, option_error
from weft.errors import UsageError, unknown_name

METHODS = ("input-x-gradient", "integrated-gradients", "occlusion", "coefficients")
BASELINES = ("unk", "mask", "mean", "zero")
COMPONENTS = ("encoder", "decoder", "cross", "pooling")
# values outside of these ranges are mistakes or would take forever
RANGES: dict[str, tuple[float, float]] = {
    "layer": (1, 10**4),
    "head": (1, 10**4),
    "position": (1, 10**9),
    "n_steps": (1, 10**5),
    "top": (1, 10**4),
    "beam_size": (1, 10**3),
    "length_penalty": (0, 10),
    "max_new_tokens": (1, 10**6),
    "temperature": (0, 10**3),
    "top_k": (1, 10**9),
}
MAX_UNITS = 1000  # each has a picture
CHOICES = {"component": COMPONENTS, "method": METHODS, "baseline": BASELINES}


class ExplainConfig(Config):
    """What to explain, and how. Layers, heads, positions and units count from 1. None means all, or the default of the view."""

    component: str | None = None
    """attention only: encoder, decoder, cross or pooling."""
    layer: int | None = None
    """Layer number, from 1."""
    head: int | None = None
    """Head number, from 1."""
    unit: list[int] = Field(default_factory=list)
    """Hidden unit numbers of recurrent layers, from 1."""
    target: str | None = None
    """Output, token, label or tag to explain. Default: the prediction."""
    position: int | None = None
    """Output position to explain, from 1."""
    method: str | None = None
    """Attribution method: integrated-gradients, input-x-gradient, occlusion or coefficients."""
    n_steps: int | None = None
    """Steps of integrated gradients. Default: until they are complete."""
    baseline: str | None = None
    """Attribution baseline: unk, mask, mean or zero."""
    beam_size: int | None = None
    """Beam size; 1 is greedy."""
    length_penalty: float | None = None
    """Divide log-probabilities by length^X."""
    patience: float | None = None
    """Stop a beam search after X times the beam size of finished outputs; 0: when none can be better."""
    max_new_tokens: int | None = None
    """Maximum number of tokens to generate."""
    temperature: float | None = None
    """Sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Sample from this many of the most probable tokens."""
    top_p: float | None = None
    """Sample from the smallest set of tokens with this total probability."""
    min_p: float | None = None
    """Sample from tokens with at least this fraction of the probability of the best."""
    top: int = 5
    """Number of items to list."""

    @model_validator(mode="wrap")
    @classmethod
    def _check_options(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            options = handler(values)
        except ValidationError as error:
            raise option_error(error, cls.model_fields) from None
        _check_values(options)
        return options


def _check_values(options: ExplainConfig) -> None:
    for name, choices in CHOICES.items():
        value = getattr(options, name)
        if value is not None and value not in choices:
            raise UsageError(name, *unknown_name(name, value, choices))
    check_patience(options.patience)
    for name, (low, high) in RANGES.items():
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            raise UsageError(name, f"must be between {low:,} and {high:,}, got {value:g}")
    for name, bracket in (("top_p", "("), ("min_p", "[")):
        value = getattr(options, name)
        if value is not None and not (0 <= value <= 1 and (value or bracket == "[")):
            raise UsageError(name, f"must be in {bracket}0, 1], got {value:g}")
    if len(options.unit) > MAX_UNITS:
        raise UsageError("unit", f"{len(options.unit):,} units are more than {MAX_UNITS:,}")
    if invalid := [unit for unit in options.unit if unit < 1]:
        raise UsageError("unit", f"must be at least 1, got {invalid[0]}")
