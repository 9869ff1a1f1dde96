"""How a source becomes a target: the options of `weft predict`. Refusals spell an option as the command line does."""

from __future__ import annotations

from typing import Any, Self
from urllib.parse import quote

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from weft.config import Table
from weft.decode.options import check_ranges, explain_option, spelled
from weft.errors import UsageError

BEAM, ALPHA = 5, 1.0
HIGHEST = {"length": 10**6, "samples": 10**4, "beam": 10**3, "alpha": 10}
CUT = ", or have it cut with --truncate"  # how a refusal of a long source ends
SAMPLING = ("temperature", "top_k", "top_p")


class PredictOptions(Table):
    """Beam search, unless an option of sampling is given; a beam of 1 is greedy."""

    beam: int | None = None  # width; None: 5
    alpha: float | None = None  # score = log-probability / length^alpha; None: 1
    n_best: int = 1  # hypotheses a line
    length: int | None = None  # tokens to write at most; None: twice the source's, and 32 more
    least: int = 0  # tokens before the end may come
    ban: list[str] = Field(default_factory=list)  # texts whose tokens are never written
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    samples: int = 1
    seed: int = 0
    truncate: bool = False  # cut a source that is longer than the model reads, instead of refusing it

    @property
    def samples_instead(self) -> bool:
        return self.samples > 1 or any(getattr(self, name) is not None for name in SAMPLING)

    @property
    def width(self) -> int:
        return BEAM if self.beam is None else self.beam

    @property
    def power(self) -> float:
        return ALPHA if self.alpha is None else self.alpha

    def describe(self) -> str:
        """The search, for a signature."""
        if self.samples_instead:
            kept = [f"{name}:{getattr(self, name):g}" for name in SAMPLING if getattr(self, name) is not None]
            way = ["sampling", *kept, f"seed:{self.seed}"]
        else:
            way = ["greedy"] if self.width == 1 else [f"beam:{self.width}", f"alpha:{self.power:g}"]
        return "/".join([*way, *self._bounds()])

    def _bounds(self) -> list[str]:
        """What else changes outputs, where it is set."""
        found = [] if self.length is None else [f"length:{self.length}"]
        found += [f"least:{self.least}"] if self.least else []
        # escaped: a token may be one of the signs that part a signature
        found += ["ban:" + ",".join(quote(text, safe="") for text in sorted(set(self.ban)))] if self.ban else []
        return [*found, "truncate"] if self.truncate else found

    @model_validator(mode="wrap")
    @classmethod
    def _speak_plainly(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            options = handler(values)
        except ValidationError as error:
            raise UsageError(explain_option(error, cls.model_fields)) from None
        check_ranges(options, HIGHEST)
        _check_company(options)
        return options


def _check_company(options: PredictOptions) -> None:
    """Refuse options that would silently do nothing beside another one."""
    if options.samples_instead:
        for name in ("beam", "alpha"):
            if getattr(options, name) is not None:
                raise UsageError(
                    f"{spelled(name)}: does not go with sampling; drop it, or --samples, --temperature, --top-k, --top-p"
                )
        if options.n_best > 1:
            raise UsageError(f"--n-best {options.n_best}: does not go with sampling; use --samples {options.n_best}")
        if options.temperature == 0 and options.samples > 1:
            raise UsageError(f"--samples {options.samples}: --temperature 0 gives one output; raise it")
    elif options.n_best > options.width:
        raise UsageError(f"--n-best: must be at most --beam {options.width}, not {options.n_best}")
