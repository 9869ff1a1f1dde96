"""Options that several commands share: ensembles, beam search, and lines that cannot be used."""

# no postponed annotations here: typer reads those of inherited fields in the subclass's module, where names may be missing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from weft.cli.options import DECODING, ENSEMBLE, FILES, Device, ModelCommand, RunDirectory
from weft.cli.output import pluralize, warn
from weft.cli.usage import one_line, with_flags
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections import Counter

    from weft.cli.input_lines import Line
    from weft.runs.run import AnyRun

FITTED: Literal["fitted"] = "fitted"  # the value of --ensemble-weights, beside numbers
MAX_LISTED_TOKENS = 3  # unknown tokens listed in a warning
BeamSize = Annotated[
    int | None, typer.Option(rich_help_panel=DECODING, metavar="N", help="Beam size; 1 is greedy.  [default: 5]")
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(rich_help_panel=DECODING, metavar="X", help="Divide log-probabilities by length^X.  [default: 1]"),
]
Patience = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=DECODING,
        metavar="X",
        help="Stop after X times the beam size of finished outputs; 0: when none can be better.  "
        "[default: 2 with a length penalty, 0 without]",
    ),
]


@dataclass(kw_only=True)
class MixtureOptions(ModelCommand):
    """Options of commands that use one run, or the weighted mean of several."""

    run_dir: RunDirectory
    ensemble: Annotated[
        list[Path] | None,
        typer.Option("--ensemble", rich_help_panel=ENSEMBLE, metavar="RUN", help="Average with another run. Repeatable."),
    ] = None
    ensemble_weights: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=ENSEMBLE,
            metavar="X,Y",
            help="Weights of the runs, or fitted: the best for the validation data.  [default: equal]",
        ),
    ] = None
    device: Device = "auto"

    def cache_options(self) -> bool | dict[str, float]:
        """The `cache` of `weft.load`; commands with options for it override this."""
        return False

    def load(self) -> "AnyRun":
        """The run, or the ensemble, with what is fitted on validation data."""
        return self._load(None, None)

    def _load(self, lm: Path | None, lm_weight: float | None) -> "AnyRun":
        from weft.cli.display import Display
        from weft.runs.load import LM_WEIGHT, ensemble, load, with_model

        weights, cache = self._weights(), self.cache_options()
        if weights is not None and not self.ensemble:
            raise UsageError("ensemble_weights", "requires `ensemble`")
        with Display(quiet=self.quiet) as display:
            if cache is not False or weights == FITTED:
                display.show("fitting on validation data", 0.0)
            if not self.ensemble and lm is None:
                return with_model(load(self.run_dir, device=self.device, cache=cache))
            return ensemble(
                [self.run_dir, *(self.ensemble or [])],
                weights=weights,
                lm=lm,
                lm_weight=LM_WEIGHT if lm_weight is None else lm_weight,
                cache=cache,
                device=self.device,
            )

    def _weights(self) -> list[float] | Literal["fitted"] | None:
        if self.ensemble_weights is None:
            return None
        if self.ensemble_weights == FITTED:
            return FITTED
        try:
            return [float(part) for part in self.ensemble_weights.split(",")]
        except ValueError:
            problem = f"expected numbers separated by commas, or {FITTED!r}, got {self.ensemble_weights!r}"
            raise UsageError("ensemble_weights", problem) from None


@dataclass(kw_only=True)
class EnsembleOptions(MixtureOptions):
    """Options of commands that read inputs with one run or with an ensemble, and with shallow fusion."""

    lm: Annotated[
        Path | None,
        typer.Option(rich_help_panel=ENSEMBLE, metavar="RUN", help="Language model for shallow fusion."),
    ] = None
    lm_weight: Annotated[
        float | None,
        typer.Option(rich_help_panel=ENSEMBLE, metavar="X", help="Weight of the language model.  [default: 0.3]"),
    ] = None
    truncate: Annotated[
        bool,
        typer.Option("--truncate", rich_help_panel=FILES, help="Truncate inputs that are too long for the model."),
    ] = False

    def load(self) -> "AnyRun":
        if self.lm_weight is not None and self.lm is None:
            raise UsageError("lm_weight", "requires `lm`")
        return self._load(self.lm, self.lm_weight)


def describe_mixture(run: "AnyRun") -> list[str]:
    """How a run combines models: 'mixture: 0.612 runs/lstm, 0.388 runs/ngram', 'cache: size 500, theta 0.3, weight 0.12'."""
    lines, members = list[str](), run.members
    if len(members) > 1:
        weights = run.weights or [1 / len(members)] * len(members)
        pairs = zip(weights, members, strict=True)
        lines.append("mixture: " + ", ".join(f"{weight:.3f} {member.path}" for weight, member in pairs))
    for member in members:
        if member.cache is not None:
            lines.append(f"cache{f' of {member.path}' if len(members) > 1 else ''}: {member.cache.describe()}")
    return lines


@dataclass(kw_only=True)
class SearchOptions(EnsembleOptions):
    """Options of commands that search for outputs."""

    beam_size: BeamSize = None
    length_penalty: LengthPenalty = None
    patience: Patience = None


def warn_truncated(count: int, item: str = "line", *, quiet: bool) -> None:
    """Report how many lines were truncated, if any, since the results do not show it."""
    if count:
        verb = "that was" if count == 1 else "that were"
        warn(f"truncated {pluralize(count, item)} {verb} too long for the model", quiet=quiet)


def warn_unknown(unknown: "Counter[str]", *, quiet: bool) -> None:
    """Report the tokens that are not in the vocabulary, if any, since the results do not show them."""
    from weft.text.reading import preview

    if unknown:
        tokens = ", ".join(preview(text, 20) for text, _ in unknown.most_common(MAX_LISTED_TOKENS))
        more = ", ..." if len(unknown) > MAX_LISTED_TOKENS else ""
        verb = "is" if unknown.total() == 1 else "are"
        warn(f"{pluralize(unknown.total(), 'token')} {verb} not in the vocabulary, read as <unk>: {tokens}{more}", quiet=quiet)


def invalid_lines(lines: "Sequence[Line]") -> dict[int, str]:
    """The lines that cannot be read, by index, with the reason."""
    return {index: str(line) for index, line in enumerate(lines) if isinstance(line, DataError)}


def blank_invalid(lines: "Sequence[Line]", problems: Mapping[int, str]) -> list[str]:
    """The lines, with an empty string for each invalid one."""
    return ["" if index in problems else str(line) for index, line in enumerate(lines)]


def warn_invalid(
    unreadable: Mapping[int, str], unusable: Mapping[int, str], num_before: int, prefix: str = ""
) -> dict[int, str]:
    """Report the lines that give no result, and return all of them. `prefix` precedes the line number."""
    unusable = {index: with_flags(problem) for index, problem in unusable.items()}
    for index in sorted({*unreadable, *unusable}):
        problem = unreadable.get(index) or f"{prefix}line {num_before + index + 1}: {unusable[index]}"
        problem = problem.replace("`truncate`", "--truncate")
        warn(one_line(f"{problem}; skipped"))
    return {**unusable, **unreadable}
