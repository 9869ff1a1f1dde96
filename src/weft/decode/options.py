"""How to continue a text: the options of `weft generate`. Refusals spell an option as the command line does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from weft.config import Table
from weft.errors import UsageError, nearest

T = TypeVar("T", bound=Table)


def spelled(name: str) -> str:
    """An option as the command line has it."""
    return "--" + name.replace("_", "-")


def explain_option(error: ValidationError, known: Iterable[str]) -> str:
    """What is wrong with the first option that is."""
    fault = error.errors(include_url=False)[0]
    name = str(fault["loc"][0]) if fault["loc"] else "options"
    if fault["type"] == "extra_forbidden":
        return f"{spelled(name)}: no such option{nearest(spelled(name), map(spelled, known))}"
    return f"{spelled(name)}: must {fault['msg'].removeprefix('Input should ')}, not {fault['input']!r}"


LOWEST = {
    **dict.fromkeys(("least", "seed", "temperature", "alpha"), 0),
    **dict.fromkeys(("length", "top_k", "samples", "beam", "n_best", "repetition", "no_repeat"), 1),
}
# what takes more memory than there is, or would not end in a lifetime, is a slip of the finger
HIGHEST = {"length": 10**9, "samples": 10**5, "beam": 10**4, "alpha": 10}


def check_ranges(options: Table, highest: Mapping[str, int]) -> None:
    """Refuse a number out of its range."""
    given = {name: value for name in type(options).model_fields if (value := getattr(options, name)) is not None}
    for name, low in LOWEST.items():
        if name in given and given[name] < low:
            raise UsageError(f"{spelled(name)}: must be {low} or more, not {given[name]:g}")
    for name, high in highest.items():
        if name in given and given[name] > high:
            raise UsageError(f"{spelled(name)}: must be {high} or less, not {given[name]}")
    if "top_p" in given and not 0 < given["top_p"] <= 1:
        raise UsageError(f"--top-p: must be in (0, 1], not {given['top_p']:g}")
    if "length" in given and given["least"] > given["length"]:
        raise UsageError(f"--least: must be at most --length {given['length']}, not {given['least']}")


def chosen(table: type[T], options: Table | None, named: Mapping[str, Any]) -> T:
    """Options as they were given: as one object, of this table or of one that it extends, or by name."""
    if options is not None and named:
        raise UsageError(f"options: are given as an object and by name ({', '.join(named)}); use one of the two")
    if isinstance(options, table):
        return options
    given = named if options is None else {name: getattr(options, name) for name in type(options).model_fields}
    try:
        return table(**given)
    except ValidationError as error:  # of a task's plain table; others speak for themselves
        raise UsageError(explain_option(error, table.model_fields)) from None


def _check_own(options: GenerateOptions) -> None:
    if options.min_p is not None and not 0 <= options.min_p <= 1:
        raise UsageError(f"--min-p: must be in [0, 1], not {options.min_p:g}")
    if "" in options.stop:
        raise UsageError("--stop: must not be empty")


def _check_company(options: GenerateOptions) -> None:
    """Refuse options that would silently do nothing beside another one."""
    if options.beam is None:
        if options.alpha is not None:
            raise UsageError("--alpha: needs --beam")
        if options.n_best > 1:
            raise UsageError(f"--n-best {options.n_best}: needs --beam; for several samples use --samples {options.n_best}")
        if options.temperature == 0 and options.samples > 1:
            raise UsageError(f"--samples {options.samples}: --temperature 0 gives one continuation; raise it")
        return
    for name in ("temperature", "top_k", "top_p", "min_p"):
        if getattr(options, name) is not None:
            raise UsageError(f"{spelled(name)}: does not go with --beam, which does not sample")
    if options.samples > 1:
        raise UsageError(f"--samples {options.samples}: does not go with --beam; use --n-best {options.samples}")
    if options.n_best > options.beam:
        raise UsageError(f"--n-best: must be at most --beam {options.beam}, not {options.n_best}")


class GenerateOptions(Table):
    """Sampling, unless `beam` is given; temperature 0 is greedy."""

    length: int = 100  # tokens to add at most
    least: int = 0  # tokens before the end token may come
    stop: list[str] = Field(default_factory=list)  # the text ends before the first of these
    temperature: float | None = None  # None: 1
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None  # tokens at least this fraction as probable as the best one
    samples: int = 1  # continuations a prompt
    seed: int = 0
    beam: int | None = None  # width
    alpha: float | None = None  # score = log-probability / length^alpha; None: 0
    n_best: int = 1  # hypotheses a prompt
    repetition: float = 1.0  # a token's probability is divided by this for each time it stands in the last 64 tokens
    no_repeat: int | None = None  # no n-gram of this size twice

    @model_validator(mode="wrap")
    @classmethod
    def _speak_plainly(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            options = handler(values)
        except ValidationError as error:
            raise UsageError(explain_option(error, cls.model_fields)) from None
        check_ranges(options, HIGHEST)
        _check_own(options)
        _check_company(options)
        return options


def too_long(longest: int | None, prompt: int, length: int) -> str | None:
    """Why a prompt and what is added pass the last position a model can read, if they do; the last token is never read."""
    positions = prompt + length - 1
    if longest is None or positions <= longest:
        return None
    cure = f"use --length {longest + 1 - prompt}" if prompt <= longest else f"keep at most {longest} tokens of the prompt"
    return f"{prompt} prompt tokens and {length} more need {positions} positions, but the model reads at most {longest}; {cure}"


def check_length(longest: int | None, prompt: int, length: int) -> None:
    """Refuse what would pass the last position a model can read."""
    if fault := too_long(longest, prompt, length):
        raise UsageError(f"--length: {fault}")
