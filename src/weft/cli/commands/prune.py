"""`weft prune`: which heads of attention can go, and a run without them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.drawn import check_kind, write_views
from weft.cli.options import FILES, Device, Shared
from weft.cli.output import note, write, write_json
from weft.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.cli.display import Display
    from weft.explain.heads import Heads
    from weft.explain.prune import Pruning
    from weft.runs.run import AnyRun


def _measures() -> list[str]:
    return ["masking", "gradient"]


@dataclass(kw_only=True)
class Prune(Shared):
    """Measure what each head of attention is worth, take away those that are worth least, and show what that costs.

    With --out a run is written without them: smaller, faster, and an ordinary run in all else. Its run file trains it on.
    """

    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    heads: Annotated[
        str | None, typer.Option(metavar="N", help="How many go, or which share: 8, or 50%; without, all are only measured.")
    ] = None
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            readable=False,
            help="Measure on these files, not the run's validation data; may be given several times.",
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option(rich_help_panel=FILES, metavar="DIR", help="Write the smaller run into this folder.")
    ] = None
    at_once: Annotated[
        int | None,
        typer.Option("--at-once", metavar="N", help="How many go before the rest are measured anew.  [default: an eighth]"),
    ] = None
    measure: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=_measures,
            help="masking: by the loss without each head; gradient: about that, for all heads in one pass.",
        ),
    ] = "masking"
    tokens: Annotated[int, typer.Option(metavar="N", help="How many tokens of the data are measured on.")] = 50_000
    draw: Annotated[
        Path | None, typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write pictures: x.html, x.svg, x.png or x.json.")
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.explain.heads import every, heads_of
        from weft.explain.prune import count, free_folder, view
        from weft.explain.prune import write as write_run
        from weft.runs.finished import leaving_nothing
        from weft.runs.load import load

        check_kind("--draw", self.draw)
        if self.tokens < 1:
            raise UsageError(f"--tokens: must be 1 or more, not {self.tokens}")
        if self.out is not None and self.heads is None:
            raise UsageError("--out: a smaller run needs --heads, how many go")
        run = load(self.folder, device=self.device)
        layers = heads_of(run)
        wanted = 0 if self.heads is None else count(self.heads, len(every(layers)))
        with leaving_nothing(self.out) if self.out is not None else nullcontext():
            if self.out is not None:
                free_folder(self.out)  # before the work, not after it
            with Display(quiet=self.quiet) as display:
                found, tokens = self._pruned(run, layers, wanted, display)
            files = [str(path) for path in self.data] if self.data else "validation data"
            measured = {"data": files, "tokens": tokens, "measure": self.measure}
            shown = view(run, found, measured)
            if self.out is not None:
                write_run(run, self.out, found, measured)
        if self.json:
            write_json(shown.data)
        else:
            write("\n".join(shown.lines) + "\n")
        if self.draw is not None:
            write_views(self.draw, [shown], title=str(self.folder), numbers=shown.data, quiet=self.quiet)
        if self.out is not None:
            self._tell(run, found)
        return 0

    def _pruned(self, run: AnyRun, layers: Sequence[Heads], wanted: int, display: Display) -> tuple[Pruning, int]:
        """What was found, and on how many tokens."""
        from weft.explain.held_loss import portions
        from weft.explain.prune import prune

        def told(done: int, total: int) -> None:
            display.show("measuring", done / max(1, total), f"{done:,} of {total:,} times over the data")

        with TemporaryDirectory() as place:
            display.show("reading", 0.0)
            parts = portions(run, self.data, Path(place), tokens=self.tokens)
            found = prune(
                run.members[0].model, layers, parts, wanted=wanted, at_once=self.at_once, measure=self.measure, told=told
            )
        return found, sum(part.size for part in parts)

    def _tell(self, run: AnyRun, found: Pruning) -> None:
        from weft.explain.heads import every
        from weft.explain.inputs import network
        from weft.runs.load import load

        smaller = load(self.out or self.folder, device="cpu")
        before, after = (
            sum(weight.numel() for weight in model.parameters()) for model in map(network, (run, smaller)) if model is not None
        )
        total = len(every(found.layers))
        kept = f"{total - len(found.gone)} of {total} heads, {after:,} of {before:,} parameters"
        note(f"{self.out}: {kept}", quiet=self.quiet)
