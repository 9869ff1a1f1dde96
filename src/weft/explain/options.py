"""What to explain, and how: the options of `weft explain`. Refusals spell an option as the command line does."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from weft.config import Config
from weft.decode.options import flag_name, option_error
from weft.errors import UsageError, unknown_name

METHODS = ("input-x-gradient", "integrated-gradients", "occlusion", "coefficients")
BASELINES = ("unk", "mask", "mean", "zero")
COMPONENTS = ("encoder", "decoder", "cross", "pooling")
# what lies outside is a slip of the finger, or would not end in a lifetime
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
CHOICES = {"component": COMPONENTS, "method": METHODS, "baseline": BASELINES}


class ExplainConfig(Config):
    """Layers, heads, positions and units are counted from 1, as people do; None: all of them, or what the view says."""

    # what is looked at
    component: str | None = None  # attention within an encoder, within a decoder, across from it to its source, or of a pool
    layer: int | None = None
    head: int | None = None
    unit: list[int] = Field(default_factory=list)  # of recurrent layers
    # what is explained
    target: str | None = None  # the translation, next token, label or tag; None: what the model itself says
    position: int | None = None  # which word (tag), gap (masked) or token of the output
    # attribution
    method: str | None = None  # None: integrated, or of models without gradients what they have
    n_steps: int | None = None  # of integrated gradients; None: as many as make them complete
    baseline: str | None = None  # where integrated gradients start, and what occlusion puts in place of a token
    # how outputs are searched or drawn, as `predict` and `generate` do
    beam_size: int | None = None
    length_penalty: float | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    top: int = 5  # how many candidates, units or tokens are named

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            options = handler(values)
        except ValidationError as error:
            raise option_error(error, cls.model_fields) from None
        _check(options)
        return options


def _check(options: ExplainConfig) -> None:
    for name, known in CHOICES.items():
        value = getattr(options, name)
        if value is not None and value not in known:
            raise UsageError(flag_name(name), *unknown_name(name, value, known))
    for name, (low, high) in RANGES.items():
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            raise UsageError(flag_name(name), f"must be from {low:,} to {high:,}, not {value:g}")
    for name, lowest in (("top_p", "("), ("min_p", "[")):
        value = getattr(options, name)
        if value is not None and not (0 <= value <= 1 and (value or lowest == "[")):
            raise UsageError(flag_name(name), f"must be in {lowest}0, 1], not {value:g}")
    if wrong := [unit for unit in options.unit if unit < 1]:
        raise UsageError("--unit", f"must be 1 or more, not {wrong[0]}")
