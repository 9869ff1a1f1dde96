"""`weft analyze similarity`: similarity of layers, heads and runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.explanation_output import check_format, write_explanations
from weft.cli.options import Data, Device, ModelCommand, ViewFile
from weft.cli.output import write, write_json
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.explain.explanation import Explanation


@dataclass(kw_only=True)
class AnalyzeSimilarity(ModelCommand):
    """Measure how similar the layers and attention heads of runs are.

    One run: its layers with each other, and its attention heads. Two runs: the layers of one with those of the other. More
    runs: each with each, by their last and by their most similar layers. Layers are compared with linear CKA: 1 if they are
    equal up to rotation and scale, 0 if they share nothing. Heads are compared by Jensen-Shannon divergence in bits: 0 if their
    attention weights are equal, 1 if they never overlap. Reads texts (seq2seq: pairs), by default the validation data of the
    first run.
    """

    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories: one, two or more.")]
    max_words: Annotated[int, typer.Option(metavar="N", help="Maximum number of words to read; for heads a fifth of it.")] = (
        10_000
    )
    layer: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Three or more runs: compare by this layer; 0 is the embedding.  [default: last and best]"
        ),
    ] = None
    top: Annotated[int, typer.Option(metavar="N", help="Number of items to list.")] = 5
    data: Data = None
    output: ViewFile = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display

        check_format("output", self.output)
        for option, value in (("max_words", self.max_words), ("top", self.top)):
            if value < 1:
                raise UsageError(option, f"must be at least 1, got {value}")
        if self.layer is not None and len(self.run_dirs) < 3:
            raise UsageError("layer", "requires three or more runs; one or two are compared by all layers")
        with Display(quiet=self.quiet) as display:
            views = self._views(display)
        numbers = {"views": [{"view": view.view, "title": view.title, **view.data} for view in views]}
        if self.json:
            write_json(numbers)
        else:
            write("\n".join("\n".join([view.title, *view.lines, ""]) for view in views))
        if self.output is not None:
            title = (" and " if len(self.run_dirs) == 2 else ", ").join(map(str, self.run_dirs))
            write_explanations(self.output, views, title=title, numbers=numbers, quiet=self.quiet)
        return 0

    def _views(self, display: Display) -> list[Explanation]:
        from weft.explain.attention import sites
        from weft.explain.inputs import network
        from weft.explain.model_similarity import model_similarity
        from weft.explain.similarity import head_similarity, layer_similarity
        from weft.runs.load import load

        runs = [load(directory, device=self.device) for directory in self.run_dirs]
        run, other = runs[0], runs[1] if len(runs) > 1 else None

        def on_layers(done: int, total: int) -> None:
            display.show("comparing layers", done / max(1, total), f"{done:,} of {total:,} texts")

        def on_heads(done: int, total: int) -> None:
            display.show("comparing heads", done / max(1, total), f"{done:,} of {total:,} texts")

        display.show("tokenizing", 0.0)
        if len(runs) > 2:
            return [
                model_similarity(runs, self.data, layer=self.layer, max_words=self.max_words, top=self.top, progress=on_layers)
            ]
        views = [layer_similarity(run, self.data, other, max_words=self.max_words, progress=on_layers)]
        model = network(run)
        has_attention = model is not None and any(site.component != "pooling" for site in sites(model))
        if other is None and has_attention:
            views.append(
                head_similarity(run, self.data, max_words=max(1, self.max_words // 5), top=self.top, progress=on_heads)
            )
        return views
