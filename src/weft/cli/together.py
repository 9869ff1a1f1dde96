"""What `predict` and `evaluate` share: how outputs are searched for, and by which runs together."""

# no postponed annotations here: those of fields are read where a command inherits them, and must not be names by then
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import Device, Shared

if TYPE_CHECKING:
    from weft.run import Run
    from weft.translator import Translator


@dataclass(kw_only=True)
class Together(Shared):
    """Options of commands that write outputs for sources."""

    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    beam: Annotated[int | None, typer.Option(metavar="N", help="Width of the beam; 1 is greedy.  [default: 5]")] = None
    alpha: Annotated[float | None, typer.Option(metavar="X", help="Score = log-probability / length^X.  [default: 1]")] = None
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="RUN", help="Write together with another run; may be given several times."),
    ] = None
    lm: Annotated[Path | None, typer.Option(metavar="RUN", help="A language model of the outputs that helps to choose.")] = None
    lm_weight: Annotated[
        float | None, typer.Option(metavar="X", help="How much the language model counts.  [default: 0.3]")
    ] = None
    device: Device = "auto"

    def load(self) -> "Run | Translator":
        """The run, or all of them as one."""
        from weft.errors import UsageError
        from weft.run import LM_WEIGHT, ensemble, load

        if self.lm_weight is not None and self.lm is None:
            raise UsageError("--lm-weight: weighs --lm RUN, which is not given")
        if not self.others and self.lm is None:
            return load(self.folder, device=self.device)
        weight = LM_WEIGHT if self.lm_weight is None else self.lm_weight
        return ensemble([self.folder, *(self.others or [])], lm=self.lm, lm_weight=weight, device=self.device)
