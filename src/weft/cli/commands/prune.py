"""`weft prune`: importance of attention heads, and a run without the least important ones."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.explanation_output import check_format, write_explanations
from weft.cli.options import FILES, Data, Device, ModelCommand, OutputDir, RunDirectory
from weft.cli.output import status, write, write_json
from weft.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.cli.display import Display
    from weft.explain.heads import LayerHeads
    from weft.explain.pruning import Pruning
    from weft.runs.run import AnyRun


def _importance_measures() -> list[str]:
    return ["masking", "gradient"]


@dataclass(kw_only=True)
class Prune(ModelCommand):
    """Rank attention heads by importance and remove the least important.

    --output-dir writes a run without them: smaller, faster, and otherwise an ordinary run, whose run file trains it further.
    """

    run_dir: RunDirectory
    remove: Annotated[
        str | None,
        typer.Option(metavar="N", help="Heads to remove: a number or a percentage, e.g. 8 or 50%.  [default: only rank]"),
    ] = None
    importance: Annotated[
        str,
        typer.Option(metavar="NAME", autocompletion=_importance_measures, help="Importance measure: masking or gradient."),
    ] = "masking"
    heads_per_round: Annotated[
        int | None,
        typer.Option(
            "--heads-per-round",
            metavar="N",
            help="Heads to remove before importance is measured again.  [default: an eighth]",
        ),
    ] = None
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens to evaluate on.")] = 50_000
    data: Data = None
    output_dir: OutputDir = None
    plot: Annotated[
        Path | None,
        typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write a plot: .html, .svg, .png or .json."),
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.explain.heads import all_heads, attention_layers
        from weft.explain.pruning import check_prunable, parse_num_heads, view, write_pruned_run
        from weft.runs.derived_run import check_output_dir
        from weft.runs.finished import remove_on_failure
        from weft.runs.load import load

        check_format("plot", self.plot)
        if self.max_tokens < 1:
            raise UsageError("max_tokens", f"must be at least 1, got {self.max_tokens}")
        if self.output_dir is not None and self.remove is None:
            raise UsageError("output_dir", "requires `remove`, the number of heads to remove")
        run = load(self.run_dir, device=self.device)
        layers = attention_layers(run)
        num_removed = 0 if self.remove is None else parse_num_heads(self.remove, len(all_heads(layers)))
        with remove_on_failure(self.output_dir) if self.output_dir is not None else nullcontext():
            if self.output_dir is not None:
                check_output_dir(self.output_dir)  # before the work
                check_prunable(run)
            with Display(quiet=self.quiet) as display:
                pruning, tokens = self._prune(run, layers, num_removed, display)
            files = [str(path) for path in self.data] if self.data else "validation data"
            setup = {"data": files, "tokens": tokens, "measure": self.importance}
            explanation = view(run, pruning, setup)
            if self.output_dir is not None:
                write_pruned_run(run, self.output_dir, pruning, setup)
        if self.json:
            write_json(explanation.data)
        else:
            write("\n".join(explanation.lines) + "\n")
        if self.plot is not None:
            write_explanations(self.plot, [explanation], title=str(self.run_dir), numbers=explanation.data, quiet=self.quiet)
        if self.output_dir is not None:
            self._summarize(run, pruning, self.output_dir)
        return 0

    def _prune(self, run: AnyRun, layers: Sequence[LayerHeads], num_removed: int, display: Display) -> tuple[Pruning, int]:
        """The result, and the number of tokens it was measured on."""
        from weft.explain.eval_loss import eval_batches
        from weft.explain.pruning import prune

        def progress(done: int, total: int) -> None:
            display.show("measuring", done / max(1, total), f"{done:,} of {total:,} passes over the data")

        with TemporaryDirectory() as directory:
            display.show("reading", 0.0)
            batches = eval_batches(run, self.data, Path(directory), max_tokens=self.max_tokens)
            pruning = prune(
                run.members[0].model,
                layers,
                batches,
                num_removed=num_removed,
                heads_per_round=self.heads_per_round,
                measure=self.importance,
                progress=progress,
            )
        return pruning, sum(batch.num_tokens for batch in batches)

    def _summarize(self, run: AnyRun, pruning: Pruning, output_dir: Path) -> None:
        from weft.explain.heads import all_heads
        from weft.explain.inputs import network
        from weft.runs.load import load

        smaller = load(output_dir, device="cpu")
        before, after = (
            sum(weight.numel() for weight in model.parameters()) for model in map(network, (run, smaller)) if model is not None
        )
        total = len(all_heads(pruning.layers))
        heads = f"{total - len(pruning.removed)} of {total} heads, {after:,} of {before:,} parameters"
        name = shlex.quote(str(output_dir))
        status(f"Run saved to {output_dir} ({heads})\nNext: weft evaluate {name}", quiet=self.quiet)
