"""How to continue a text: the options of `weft generate`. Refusals spell an option as the command line does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from weft.config import Config
from weft.errors import UsageError, suggest

T = TypeVar("T", bound=Config)


def flag_name(name: str) -> str:
    """An option as the command line has it."""
    return "--" + name.replace("_", "-")


def option_error(error: ValidationError, known: Iterable[str]) -> UsageError:
    """The first problem of a set of options."""
    problem = error.errors(include_url=False)[0]
    name = str(problem["loc"][0]) if problem["loc"] else "options"
    if problem["type"] == "extra_forbidden":
        return UsageError(name, "unknown option", suggest(name, known))
    return UsageError(name, f"expected {problem['msg'].removeprefix('Input should be ')}, got {problem['input']!r}")


MINIMA = {
    **dict.fromkeys(("min_new_tokens", "seed", "temperature", "length_penalty"), 0),
    **dict.fromkeys(
        ("max_new_tokens", "top_k", "num_samples", "beam_size", "n_best", "repetition_penalty", "no_repeat_ngram_size"), 1
    ),
}
# what takes more memory than there is, or would not end in a lifetime, is a slip of the finger
MAXIMA = {"max_new_tokens": 10**9, "num_samples": 10**5, "beam_size": 10**4, "length_penalty": 10}


def check_ranges(options: Config, maxima: Mapping[str, int]) -> None:
    """Refuse a number out of its range."""
    given = {name: value for name in type(options).model_fields if (value := getattr(options, name)) is not None}
    for name, low in MINIMA.items():
        if name in given and given[name] < low:
            raise UsageError(flag_name(name), f"must be {low} or more, not {given[name]:g}")
    for name, high in maxima.items():
        if name in given and given[name] > high:
            raise UsageError(flag_name(name), f"must be {high} or less, not {given[name]}")
    if "top_p" in given and not 0 < given["top_p"] <= 1:
        raise UsageError("--top-p", f"must be in (0, 1], not {given['top_p']:g}")
    if "max_new_tokens" in given and given["min_new_tokens"] > given["max_new_tokens"]:
        raise UsageError(
            "--min-new-tokens", f"must be at most --max-new-tokens {given['max_new_tokens']}, not {given['min_new_tokens']}"
        )


def options_from(config_class: type[T], options: Config | None, keywords: Mapping[str, Any]) -> T:
    """Options as they were given: as one object, of this table or of one that it extends, or by name."""
    if options is not None and keywords:
        raise UsageError("options", f"are given as an object and by name ({', '.join(keywords)})", "use one of the two")
    if isinstance(options, config_class):
        return options
    given = keywords if options is None else {name: getattr(options, name) for name in type(options).model_fields}
    try:
        return config_class(**given)
    except ValidationError as error:  # of a task's plain table; others speak for themselves
        raise option_error(error, config_class.model_fields) from None


def _check_own(options: GenerationConfig) -> None:
    if options.min_p is not None and not 0 <= options.min_p <= 1:
        raise UsageError("--min-p", f"must be in [0, 1], not {options.min_p:g}")
    if "" in options.stop:
        raise UsageError("--stop", "must not be empty")


def _check_combinations(options: GenerationConfig) -> None:
    """Refuse options that would silently do nothing beside another one."""
    if options.beam_size is None:
        if options.length_penalty is not None:
            raise UsageError("--length-penalty", "needs --beam-size")
        if options.n_best > 1:
            raise UsageError(
                f"--n-best {options.n_best}", "needs --beam-size", f"for several samples use --num-samples {options.n_best}"
            )
        if options.temperature == 0 and options.num_samples > 1:
            raise UsageError(f"--num-samples {options.num_samples}", "--temperature 0 gives one continuation", "raise it")
        return
    for name in ("temperature", "top_k", "top_p", "min_p"):
        if getattr(options, name) is not None:
            raise UsageError(flag_name(name), "does not go with --beam-size, which does not sample")
    if options.num_samples > 1:
        raise UsageError(
            f"--num-samples {options.num_samples}", "does not go with --beam-size", f"use --n-best {options.num_samples}"
        )
    if options.n_best > options.beam_size:
        raise UsageError("--n-best", f"must be at most --beam-size {options.beam_size}, not {options.n_best}")


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
        _check_own(options)
        _check_combinations(options)
        return options


def too_long(max_positions: int | None, prompt: int, length: int) -> str | None:
    """Why a prompt and what is added pass the last position a model can read, if they do; the last token is never read."""
    positions = prompt + length - 1
    if max_positions is None or positions <= max_positions:
        return None
    fix = (
        f"use --max-new-tokens {max_positions + 1 - prompt}"
        if prompt <= max_positions
        else f"keep at most {max_positions} tokens of the prompt"
    )
    return f"{prompt} prompt tokens and {length} more need {positions} positions, but the model reads at most {max_positions}; {fix}"


def check_length(max_positions: int | None, prompt: int, length: int) -> None:
    """Refuse what would pass the last position a model can read."""
    if problem := too_long(max_positions, prompt, length):
        raise UsageError("--max-new-tokens", f"{problem}")
