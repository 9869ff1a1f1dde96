"""The options of `weft predict` for models that generate: how to predict a target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import quote

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from weft.config import Config
from weft.decode.options import check_patience, check_ranges, option_error, resolve_patience
from weft.errors import UsageError

DEFAULT_BEAM_SIZE, DEFAULT_LENGTH_PENALTY = 5, 1.0
MAXIMA = {"max_new_tokens": 10**6, "num_samples": 10**4, "beam_size": 10**3, "length_penalty": 10}
TRUNCATION = " or set `truncate`"  # last part of the advice for a source that is too long
SAMPLING_OPTIONS = ("temperature", "top_k", "top_p")


class PredictionConfig(Config):
    """How to predict a target: beam search, or sampling if one of its options is set. A beam size of 1 is greedy search."""

    beam_size: int | None = None
    """Beam size; 1 is greedy. Default: 5."""
    length_penalty: float | None = None
    """Divide log-probabilities by length^X. Default: 1."""
    patience: float | None = None
    """Stop a search after X times the beam size of finished outputs; 0: when none can be better. Default: 2 with a length
    penalty, 0 without."""
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
        return self.num_samples > 1 or any(getattr(self, name) is not None for name in SAMPLING_OPTIONS)

    @property
    def resolved_beam_size(self) -> int:
        return DEFAULT_BEAM_SIZE if self.beam_size is None else self.beam_size

    @property
    def resolved_length_penalty(self) -> float:
        return DEFAULT_LENGTH_PENALTY if self.length_penalty is None else self.length_penalty

    @property
    def resolved_patience(self) -> float | None:
        return resolve_patience(self.patience, self.resolved_length_penalty)

    def describe(self) -> str:
        """The decoding method and its options, for a signature. Without `patience`, a search ended when no hypothesis could be
        better, as every search did before there was that option."""
        if self.is_sampling:
            values = {name: getattr(self, name) for name in SAMPLING_OPTIONS}
            method = ["sampling", *(f"{name}:{value:g}" for name, value in values.items() if value is not None)]
            method.append(f"seed:{self.seed}")
        elif self.resolved_beam_size == 1:
            method = ["greedy"]
        else:
            method = [f"beam:{self.resolved_beam_size}", f"alpha:{self.resolved_length_penalty:g}"]
            if self.resolved_patience is not None:
                method.append(f"patience:{self.resolved_patience:g}")
        return "/".join([*method, *self._constraints()])

    def _constraints(self) -> Iterator[str]:
        """All other options that change outputs, if they are set."""
        if self.max_new_tokens is not None:
            yield f"length:{self.max_new_tokens}"
        if self.min_new_tokens:
            yield f"least:{self.min_new_tokens}"
        if self.banned_tokens:  # escaped, because a token may be a separator of signatures
            yield "ban:" + ",".join(quote(text, safe="") for text in sorted(set(self.banned_tokens)))
        if self.truncate:
            yield "truncate"

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            options = handler(values)
        except ValidationError as error:
            raise option_error(error, cls.model_fields) from None
        check_ranges(options, MAXIMA)
        check_patience(options.patience)
        _check_combinations(options)
        return options


def _check_combinations(options: PredictionConfig) -> None:
    """Reject options that would have no effect in combination with another one."""
    if options.is_sampling:
        for name in ("beam_size", "length_penalty", "patience"):
            if getattr(options, name) is not None:
                fix = "remove it, or `num_samples`, `temperature`, `top_k` and `top_p`"
                raise UsageError(name, "cannot be combined with sampling", fix)
        if options.n_best > 1:
            raise UsageError("n_best", "cannot be combined with sampling", f"use `num_samples` {options.n_best}")
        if options.temperature == 0 and options.num_samples > 1:
            raise UsageError("num_samples", "a `temperature` of 0 gives one output", "increase it")
    elif options.n_best > options.resolved_beam_size:
        raise UsageError("n_best", f"{options.n_best} is more than `beam_size` ({options.resolved_beam_size})")
