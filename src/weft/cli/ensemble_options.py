"""What commands share that read sources: by which runs together, how outputs are searched for, and lines that can't be read."""

# no postponed annotations here: those of fields are read where a command inherits them, and must not be names by then
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import DECODING, ENSEMBLE, FILES, Device, ModelCommand
from weft.cli.output import note, print_error
from weft.cli.usage import one_line
from weft.errors import DataError

if TYPE_CHECKING:
    from collections import Counter

    from weft.cli.input_lines import Line
    from weft.runs.run import AnyRun


@dataclass(kw_only=True)
class EnsembleOptions(ModelCommand):
    """Options of commands that read sources."""

    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    truncate: Annotated[
        bool, typer.Option("--truncate", rich_help_panel=FILES, help="Cut sources that are longer than the model reads.")
    ] = False
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(
            "--ensemble", rich_help_panel=ENSEMBLE, metavar="RUN", help="Together with another run; may be given several times."
        ),
    ] = None
    lm: Annotated[
        Path | None,
        typer.Option(rich_help_panel=ENSEMBLE, metavar="RUN", help="A language model of the outputs that helps to choose."),
    ] = None
    lm_weight: Annotated[
        float | None,
        typer.Option(rich_help_panel=ENSEMBLE, metavar="X", help="How much the language model counts.  [default: 0.3]"),
    ] = None
    device: Device = "auto"

    def load(self) -> "AnyRun":
        """The run, or all of them as one."""
        from weft.errors import UsageError
        from weft.runs.load import LM_WEIGHT, ensemble, load, prepared

        if self.lm_weight is not None and self.lm is None:
            raise UsageError("--lm-weight", "weighs --lm RUN, which is not given")
        if not self.ensemble and self.lm is None:
            return prepared(load(self.run_dir, device=self.device))
        weight = LM_WEIGHT if self.lm_weight is None else self.lm_weight
        return ensemble([self.run_dir, *(self.ensemble or [])], lm=self.lm, lm_weight=weight, device=self.device)


@dataclass(kw_only=True)
class SearchOptions(EnsembleOptions):
    """Options of commands that write outputs for sources."""

    beam_size: Annotated[
        int | None, typer.Option(rich_help_panel=DECODING, metavar="N", help="Width of the beam; 1 is greedy.  [default: 5]")
    ] = None
    length_penalty: Annotated[
        float | None,
        typer.Option(rich_help_panel=DECODING, metavar="X", help="Score = log-probability / length^X.  [default: 1]"),
    ] = None


def note_truncated(number: int, item: str = "line", *, quiet: bool) -> None:
    """Say how many lines were shortened, if any was: nothing in the results shows it."""
    if number:
        some = f"1 {item} was" if number == 1 else f"{number:,} {item}s were"
        note(f"weft: {some} longer than the model reads, and cut", quiet=quiet)


def note_unknown(unknown: "Counter[str]", *, quiet: bool) -> None:
    """Say what the model could not read, if anything: nothing in its output shows that it guessed."""
    from weft.text.reading import preview

    if unknown:
        some = ", ".join(preview(text, 20) for text, _ in unknown.most_common(3)) + (", ..." if len(unknown) > 3 else "")
        what = "1 token was" if unknown.total() == 1 else f"{unknown.total():,} tokens were"
        note(f"weft: {what} unknown and read as <unk>: {some}", quiet=quiet)


def invalid_lines(lines: "Sequence[Line]") -> dict[int, str]:
    """Which lines can't be read, by their number from 0, and why."""
    return {number: str(line) for number, line in enumerate(lines) if isinstance(line, DataError)}


def blank_invalid(lines: "Sequence[Line]", problems: Mapping[int, str]) -> list[str]:
    """The lines; one with a fault is as an empty one."""
    return ["" if number in problems else str(line) for number, line in enumerate(lines)]


def report_invalid(broken: Mapping[int, str], unusable: Mapping[int, str], before: int, where: str = "") -> dict[int, str]:
    """Say which lines give no result, those that can't be read and those that can't be used; all of them. `where` comes before
    the number of a line."""
    for number in sorted({*broken, *unusable}):
        problem = broken[number] if number in broken else f"{where}line {before + number + 1}: {unusable[number]}"
        print_error(f"weft: {one_line(problem)}")
    return {**unusable, **broken}
