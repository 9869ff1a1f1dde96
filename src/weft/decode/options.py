"""The options of `weft generate`: how to continue a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from weft.config import Config, describe_problem
from weft.errors import UsageError, suggest

T = TypeVar("T", bound=Config)


def option_error(error: ValidationError, names: Iterable[str]) -> UsageError:
    """The first problem of a set of options as a `UsageError`; `names` are the valid options."""
    problem = error.errors(include_url=False)[0]
    name = str(problem["loc"][0]) if problem["loc"] else "options"
    if problem["type"] == "extra_forbidden":
        return UsageError(name, "unknown option", suggest(name, names))
    return UsageError(name, describe_problem(problem))


MINIMA = {
    **dict.fromkeys(("min_new_tokens", "seed", "temperature", "length_penalty"), 0),
    **dict.fromkeys(
        ("max_new_tokens", "top_k", "num_samples", "beam_size", "n_best", "repetition_penalty", "no_repeat_ngram_size"), 1
    ),
}
# larger values are typing errors: they would need too much memory, or never end
MAXIMA = {"max_new_tokens": 10**9, "num_samples": 10**5, "beam_size": 10**4, "length_penalty": 10}


def check_ranges(options: Config, maxima: Mapping[str, int]) -> None:
    """Reject numbers that are out of range."""
    values = {name: value for name in type(options).model_fields if (value := getattr(options, name)) is not None}
    for name, low in MINIMA.items():
        if name in values and values[name] < low:
            raise UsageError(name, f"must be at least {low}, got {values[name]:g}")
    for name, high in maxima.items():
        if name in values and values[name] > high:
            raise UsageError(name, f"must be at most {high}, got {values[name]}")
    if "top_p" in values and not 0 < values["top_p"] <= 1:
        raise UsageError("top_p", f"must be in (0, 1], got {values['top_p']:g}")
    if "max_new_tokens" in values and values["min_new_tokens"] > values["max_new_tokens"]:
        problem = f"{values['min_new_tokens']} is more than `max_new_tokens` ({values['max_new_tokens']})"
        raise UsageError("min_new_tokens", problem)


DEFAULT_PATIENCE = 2.0
MAX_PATIENCE = 1000


def check_patience(patience: float | None) -> None:
    """Reject a patience that is neither 0 nor in range."""
    if patience is not None and patience != 0 and not 1 <= patience <= MAX_PATIENCE:
        raise UsageError("patience", f"must be 0 or from 1 to {MAX_PATIENCE}, got {patience:g}")


def resolve_patience(patience: float | None, length_penalty: float) -> float | None:
    """The patience of a beam search; None: the search ends when no hypothesis can be better. That is the default without a
    length penalty: scores only decrease with the length then, and the search ends as early as with patience."""
    if patience is None:
        return DEFAULT_PATIENCE if length_penalty else None
    return patience or None


def options_from(config_class: type[T], options: Config | None, keywords: Mapping[str, Any]) -> T:
    """Options that a caller passes as one object, of `config_class` or of a class that it extends, or as keyword arguments."""
    if options is not None and keywords:
        raise UsageError("options", f"are given as an object and by name ({', '.join(keywords)})", "use one of the two")
    if isinstance(options, config_class):
        return options
    values = keywords if options is None else {name: getattr(options, name) for name in type(options).model_fields}
    try:
        return config_class(**values)
    except ValidationError as error:  # of a class that does not raise UsageError itself
        raise option_error(error, config_class.model_fields) from None


def _check_values(options: GenerationConfig) -> None:
    check_patience(options.patience)
    if options.min_p is not None and not 0 <= options.min_p <= 1:
        raise UsageError("min_p", f"must be in [0, 1], got {options.min_p:g}")
    if "" in options.stop:
        raise UsageError("stop", "must not be empty")


def _check_combinations(options: GenerationConfig) -> None:
    """Reject options that would have no effect in combination with another one."""
    if options.beam_size is None:
        if options.length_penalty is not None:
            raise UsageError("length_penalty", "requires `beam_size`")
        if options.patience is not None:
            raise UsageError("patience", "requires `beam_size`")
        if options.n_best > 1:
            raise UsageError("n_best", "requires `beam_size`", f"for samples, use `num_samples` {options.n_best}")
        if options.temperature == 0 and options.num_samples > 1:
            raise UsageError("num_samples", "a `temperature` of 0 gives one output", "increase it")
        return
    for name in ("temperature", "top_k", "top_p", "min_p"):
        if getattr(options, name) is not None:
            raise UsageError(name, "cannot be combined with `beam_size`, which does not sample")
    if options.num_samples > 1:
        raise UsageError("num_samples", "cannot be combined with `beam_size`", f"use `n_best` {options.num_samples}")
    if options.n_best > options.beam_size:
        raise UsageError("n_best", f"{options.n_best} is more than `beam_size` ({options.beam_size})")


class GenerationConfig(Config):
    """How to generate: sampling, or beam search if `beam_size` is set. A temperature of 0 is greedy search."""

    max_new_tokens: int = 100
    """Maximum number of tokens to generate."""
    min_new_tokens: int = 0
    """Minimum number of tokens to generate."""
    stop: list[str] = Field(default_factory=list)
    """Stop before the first of these strings."""
    temperature: float | None = None
    """Sampling temperature; 0 is greedy. Default: 1."""
    top_k: int | None = None
    """Sample from this many of the most probable tokens."""
    top_p: float | None = None
    """Sample from the smallest set of tokens with this total probability."""
    min_p: float | None = None
    """Sample from tokens with at least this fraction of the probability of the best."""
    num_samples: int = 1
    """Number of samples per prompt."""
    seed: int = 0
    """Sampling seed."""
    beam_size: int | None = None
    """Beam size; 1 is greedy. Default: sampling."""
    length_penalty: float | None = None
    """Divide log-probabilities by length^X. Default: 0."""
    patience: float | None = None
    """Stop a beam search after X times the beam size of finished outputs; 0: when none can be better. Default: 2 with a length
    penalty, 0 without."""
    n_best: int = 1
    """Number of outputs of a beam search."""
    repetition_penalty: float = 1.0
    """Divide a token's probability by this number for each occurrence among the last 64 tokens."""
    no_repeat_ngram_size: int | None = None
    """Never generate an n-gram of this size twice."""

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            options = handler(values)
        except ValidationError as error:
            raise option_error(error, cls.model_fields) from None
        check_ranges(options, MAXIMA)
        _check_values(options)
        _check_combinations(options)
        return options


def length_problem(max_positions: int | None, prompt_length: int, max_new_tokens: int) -> str | None:
    """The problem, if a prompt and its continuation exceed the positions of a model. The last token needs no position, because
    it is never read."""
    if max_positions is None or prompt_length + max_new_tokens - 1 <= max_positions:
        return None
    problem = f"{prompt_length} prompt tokens and {max_new_tokens} new tokens exceed the model's {max_positions} positions"
    if prompt_length > max_positions:
        return f"{problem}; shorten the prompt to at most {max_positions} tokens"
    return f"{problem}; use at most {max_positions + 1 - prompt_length}"


def check_length(max_positions: int | None, prompt_length: int, max_new_tokens: int) -> None:
    """Reject a prompt and a continuation that exceed the positions of a model."""
    if problem := length_problem(max_positions, prompt_length, max_new_tokens):
        raise UsageError("max_new_tokens", problem)
