"""`weft similarity`: which layers, runs and heads do the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.explanation_output import check_format, write_explanations
from weft.cli.options import FILES, Device, ModelCommand
from weft.cli.output import write, write_json
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.explain.explanation import Explanation


@dataclass(kw_only=True)
class Similarity(ModelCommand):
    """Compare the layers of a run with each other, or with those of another run, and the heads of its attention; or several
    runs with each other, by their last layers and by those that are most alike.

    Layers by linear CKA: 1 where they say the same of all words but for a rotation and a scale, 0 where they have nothing in
    common. Heads by how many bits apart they look: 0 where they look alike, 1 where they never look at the same. Reads a text,
    or of translating runs pairs, or the first run's own validation data.
    """

    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="A run folder, two, or more.")]
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read these lines instead; may be given several times."),
    ] = None
    max_words: Annotated[int, typer.Option(metavar="N", help="How many words are read; of heads, a fifth of that.")] = 10_000
    layer: Annotated[
        int | None,
        typer.Option(metavar="N", help="Compare three runs or more by this layer; 0 is the input.  [default: last and best]"),
    ] = None
    top: Annotated[int, typer.Option(metavar="N", help="How many pairs of heads, or of runs, are named.")] = 5
    output: Annotated[
        Path | None,
        typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write all of it: x.html, x.svg, x.png or x.json."),
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display

        check_format("--output-dir", self.output)
        for option, value in (("most", self.max_words), ("top", self.top)):
            if value < 1:
                raise UsageError(f"--{option}", f"must be 1 or more, not {value}")
        if self.layer is not None and len(self.run_dirs) < 3:
            raise UsageError("--layer", "is for three runs or more", "of one or two, all layers are compared")
        with Display(quiet=self.quiet) as display:
            views = self._views(display)
        numbers = {"views": [{"what": view.view, "title": view.title, **view.data} for view in views]}
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

        def told(done: int, total: int) -> None:
            display.show("comparing layers", done / max(1, total), f"{done:,} of {total:,} texts")

        def looked(done: int, total: int) -> None:
            display.show("comparing heads", done / max(1, total), f"{done:,} of {total:,} texts")

        display.show("tokenising", 0.0)
        if len(runs) > 2:
            return [model_similarity(runs, self.data, layer=self.layer, max_words=self.max_words, top=self.top, progress=told)]
        views = [layer_similarity(run, self.data, other, max_words=self.max_words, progress=told)]
        model = network(run)
        attends = model is not None and any(site.component != "pool" for site in sites(model))
        if other is None and attends:
            views.append(head_similarity(run, self.data, max_words=max(1, self.max_words // 5), top=self.top, progress=looked))
        return views
