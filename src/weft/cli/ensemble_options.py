"""Options that several commands share: ensembles, beam search, and lines that cannot be used."""

# no postponed annotations here: typer reads those of inherited fields in the subclass's module, where names may be missing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import DECODING, ENSEMBLE, FILES, Device, ModelCommand, RunDirectory
from weft.cli.output import pluralize, warn
from weft.cli.usage import one_line, with_flags
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections import Counter

    from weft.cli.input_lines import Line
    from weft.runs.run import AnyRun

MAX_LISTED_TOKENS = 3  # unknown tokens listed in a warning
BeamSize = Annotated[
    int | None, typer.Option(rich_help_panel=DECODING, metavar="N", help="Beam size; 1 is greedy.  [default: 5]")
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(rich_help_panel=DECODING, metavar="X", help="Divide log-probabilities by length^X.  [default: 1]"),
]


@dataclass(kw_only=True)
class EnsembleOptions(ModelCommand):
    """Options of commands that read inputs with one run or with an ensemble."""

    run_dir: RunDirectory
    ensemble: Annotated[
        list[Path] | None,
        typer.Option("--ensemble", rich_help_panel=ENSEMBLE, metavar="RUN", help="Average with another run. Repeatable."),
    ] = None
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
    device: Device = "auto"

    def load(self) -> "AnyRun":
        """The run, or the ensemble."""
        from weft.runs.load import LM_WEIGHT, ensemble, load, with_model

        if self.lm_weight is not None and self.lm is None:
            raise UsageError("lm_weight", "requires `lm`")
        if not self.ensemble and self.lm is None:
            return with_model(load(self.run_dir, device=self.device))
        weight = LM_WEIGHT if self.lm_weight is None else self.lm_weight
        return ensemble([self.run_dir, *(self.ensemble or [])], lm=self.lm, lm_weight=weight, device=self.device)


@dataclass(kw_only=True)
class SearchOptions(EnsembleOptions):
    """Options of commands that search for outputs."""

    beam_size: BeamSize = None
    length_penalty: LengthPenalty = None


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
