"""The options of `weft predict` for models that generate: how to predict a target."""

from __future__ import annotations

from typing import Any, Self
from urllib.parse import quote

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from weft.config import Config
from weft.decode.options import check_ranges, option_error
from weft.errors import UsageError

BEAM, ALPHA = 5, 1.0
MAXIMA = {"max_new_tokens": 10**6, "num_samples": 10**4, "beam_size": 10**3, "length_penalty": 10}
TRUNCATION = " or set `truncate`"  # end of the fix for a source that is too long
SAMPLING = ("temperature", "top_k", "top_p")


class PredictionConfig(Config):
    """How to predict a target: beam search, or sampling if one of its options is set. A beam size of 1 is greedy search."""

    beam_size: int | None = None
    """Beam size; 1 is greedy. Default: 5."""
    length_penalty: float | None = None
    """Divide log-probabilities by length^X. Default: 1."""
    n_best: int = 1
    """Number of outputs per line."""
    max_new_tokens: int | None = None
    """Maximum number of tokens to generate. Default: twice the source length plus 32."""
    min_new_tokens: int = 0
    """Minimum number of tokens to generate."""
    banned_tokens: list[str] = Field(default_factory=list)
    """Never generate the tokens of these texts."""
    temperature: float | None = None
    """Sampling temperature; 0 is greedy."""
    top_k: int | None = None
    """Sample from this many of the most probable tokens."""
    top_p: float | None = None
    """Sample from the smallest set of tokens with this total probability."""
    num_samples: int = 1
    """Sample this many outputs instead of searching."""
    seed: int = 0
    """Sampling seed."""
    truncate: bool = False
    """Truncate sources that are too long for the model. If false, they are an error."""

    @property
    def is_sampling(self) -> bool:
        return self.num_samples > 1 or any(getattr(self, name) is not None for name in SAMPLING)

    @property
    def resolved_beam_size(self) -> int:
        return BEAM if self.beam_size is None else self.beam_size

    @property
    def resolved_length_penalty(self) -> float:
        return ALPHA if self.length_penalty is None else self.length_penalty

    def describe(self) -> str:
        """The search, for a signature."""
        if self.is_sampling:
            kept = [f"{name}:{getattr(self, name):g}" for name in SAMPLING if getattr(self, name) is not None]
            way = ["sampling", *kept, f"seed:{self.seed}"]
        else:
            way = (
                ["greedy"]
                if self.resolved_beam_size == 1
                else [f"beam:{self.resolved_beam_size}", f"alpha:{self.resolved_length_penalty:g}"]
            )
        return "/".join([*way, *self._bounds()])

    def _bounds(self) -> list[str]:
        """What else changes outputs, where it is set."""
        found = [] if self.max_new_tokens is None else [f"length:{self.max_new_tokens}"]
        found += [f"least:{self.min_new_tokens}"] if self.min_new_tokens else []
        # escaped: a token may be one of the signs that part a signature
        found += (
            ["ban:" + ",".join(quote(text, safe="") for text in sorted(set(self.banned_tokens)))] if self.banned_tokens else []
        )
        return [*found, "truncate"] if self.truncate else found

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            options = handler(values)
        except ValidationError as error:
            raise option_error(error, cls.model_fields) from None
        check_ranges(options, MAXIMA)
        _check_combinations(options)
        return options


def _check_combinations(options: PredictionConfig) -> None:
    """Reject options that would have no effect in combination with another one."""
    if options.is_sampling:
        for name in ("beam_size", "length_penalty"):
            if getattr(options, name) is not None:
                fix = "remove it, or `num_samples`, `temperature`, `top_k` and `top_p`"
                raise UsageError(name, "cannot be combined with sampling", fix)
        if options.n_best > 1:
            raise UsageError("n_best", "cannot be combined with sampling", f"use `num_samples` {options.n_best}")
        if options.temperature == 0 and options.num_samples > 1:
            raise UsageError("num_samples", "a `temperature` of 0 gives one output", "increase it")
    elif options.n_best > options.resolved_beam_size:
        raise UsageError("n_best", f"{options.n_best} is more than `beam_size` ({options.resolved_beam_size})")
