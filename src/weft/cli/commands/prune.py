"""`weft prune`: which heads of attention can go, and a run without them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.explanation_output import check_format, write_explanations
from weft.cli.options import FILES, Device, ModelCommand
from weft.cli.output import note, write, write_json
from weft.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.cli.display import Display
    from weft.explain.heads import LayerHeads
    from weft.explain.pruning import Pruning
    from weft.runs.run import AnyRun


def _measures() -> list[str]:
    return ["masking", "gradient"]


@dataclass(kw_only=True)
class Prune(ModelCommand):
    """Measure what each head of attention is worth, take away those that are worth least, and show what that costs.

    With --output-dir a run is written without them: smaller, faster, and an ordinary run in all else. Its run file trains it on.
    """

    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    remove: Annotated[
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
    output_dir: Annotated[
        Path | None, typer.Option(rich_help_panel=FILES, metavar="DIR", help="Write the smaller run into this folder.")
    ] = None
    heads_per_round: Annotated[
        int | None,
        typer.Option(
            "--heads-per-round", metavar="N", help="How many go before the rest are measured anew.  [default: an eighth]"
        ),
    ] = None
    importance: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=_measures,
            help="masking: by the loss without each head; gradient: about that, for all heads in one pass.",
        ),
    ] = "masking"
    max_tokens: Annotated[int, typer.Option(metavar="N", help="How many tokens of the data are measured on.")] = 50_000
    plot: Annotated[
        Path | None, typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write pictures: x.html, x.svg, x.png or x.json.")
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.explain.heads import all_heads, heads_of
        from weft.explain.pruning import check_free, count, view
        from weft.explain.pruning import write as write_run
        from weft.runs.finished import remove_on_failure
        from weft.runs.load import load

        check_format("--plot", self.plot)
        if self.max_tokens < 1:
            raise UsageError("--max-tokens", f"must be 1 or more, not {self.max_tokens}")
        if self.output_dir is not None and self.remove is None:
            raise UsageError("--output-dir", "a smaller run needs --remove, how many go")
        run = load(self.run_dir, device=self.device)
        layers = heads_of(run)
        wanted = 0 if self.remove is None else count(self.remove, len(all_heads(layers)))
        with remove_on_failure(self.output_dir) if self.output_dir is not None else nullcontext():
            if self.output_dir is not None:
                check_free(self.output_dir)  # before the work, not after it
            with Display(quiet=self.quiet) as display:
                found, tokens = self._pruned(run, layers, wanted, display)
            files = [str(path) for path in self.data] if self.data else "validation data"
            measured = {"data": files, "tokens": tokens, "measure": self.importance}
            shown = view(run, found, measured)
            if self.output_dir is not None:
                write_run(run, self.output_dir, found, measured)
        if self.json:
            write_json(shown.data)
        else:
            write("\n".join(shown.lines) + "\n")
        if self.plot is not None:
            write_explanations(self.plot, [shown], title=str(self.run_dir), numbers=shown.data, quiet=self.quiet)
        if self.output_dir is not None:
            self._tell(run, found)
        return 0

    def _pruned(self, run: AnyRun, layers: Sequence[LayerHeads], wanted: int, display: Display) -> tuple[Pruning, int]:
        """What was found, and on how many tokens."""
        from weft.explain.eval_loss import eval_batches
        from weft.explain.pruning import prune

        def told(done: int, total: int) -> None:
            display.show("measuring", done / max(1, total), f"{done:,} of {total:,} times over the data")

        with TemporaryDirectory() as place:
            display.show("reading", 0.0)
            parts = eval_batches(run, self.data, Path(place), tokens=self.max_tokens)
            found = prune(
                run.members[0].model,
                layers,
                parts,
                wanted=wanted,
                heads_per_round=self.heads_per_round,
                measure=self.importance,
                progress=told,
            )
        return found, sum(part.size for part in parts)

    def _tell(self, run: AnyRun, found: Pruning) -> None:
        from weft.explain.heads import all_heads
        from weft.explain.inputs import network
        from weft.runs.load import load

        smaller = load(self.output_dir or self.run_dir, device="cpu")
        before, after = (
            sum(weight.numel() for weight in model.parameters()) for model in map(network, (run, smaller)) if model is not None
        )
        total = len(all_heads(found.layers))
        kept = f"{total - len(found.removed)} of {total} heads, {after:,} of {before:,} parameters"
        note(f"{self.output_dir}: {kept}", quiet=self.quiet)
