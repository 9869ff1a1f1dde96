"""`weft similarity`: which layers, runs and heads do the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.drawn import check_kind, write_views
from weft.cli.options import FILES, Device, Shared
from weft.cli.output import write, write_json
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.explain.view import View


@dataclass(kw_only=True)
class Similarity(Shared):
    """Compare the layers of a run with each other, or with those of another run, and the heads of its attention; or several
    runs with each other, by their last layers and by those that are most alike.

    Layers by linear CKA: 1 where they say the same of all words but for a rotation and a scale, 0 where they have nothing in
    common. Heads by how many bits apart they look: 0 where they look alike, 1 where they never look at the same. Reads a text,
    or of translating runs pairs, or the first run's own validation data.
    """

    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="A run folder, two, or more.")]
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read these lines instead; may be given several times."),
    ] = None
    most: Annotated[int, typer.Option(metavar="N", help="How many words are read; of heads, a fifth of that.")] = 10_000
    layer: Annotated[
        int | None,
        typer.Option(metavar="N", help="Compare three runs or more by this layer; 0 is the input.  [default: last and best]"),
    ] = None
    top: Annotated[int, typer.Option(metavar="N", help="How many pairs of heads, or of runs, are named.")] = 5
    out: Annotated[
        Path | None,
        typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write all of it: x.html, x.svg, x.png or x.json."),
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display

        check_kind("--out", self.out)
        for option, value in (("most", self.most), ("top", self.top)):
            if value < 1:
                raise UsageError(f"--{option}: must be 1 or more, not {value}")
        if self.layer is not None and len(self.folders) < 3:
            raise UsageError("--layer: is for three runs or more; of one or two, all layers are compared")
        with Display(quiet=self.quiet) as display:
            views = self._views(display)
        numbers = {"views": [{"what": view.what, "title": view.title, **view.data} for view in views]}
        if self.json:
            write_json(numbers)
        else:
            write("\n".join("\n".join([view.title, *view.lines, ""]) for view in views))
        if self.out is not None:
            title = (" and " if len(self.folders) == 2 else ", ").join(map(str, self.folders))
            write_views(self.out, views, title=title, numbers=numbers, quiet=self.quiet)
        return 0

    def _views(self, display: Display) -> list[View]:
        from weft.explain.attention import sites
        from weft.explain.inputs import network
        from weft.explain.models_alike import models_alike
        from weft.explain.similarity import heads_alike, layers_alike
        from weft.runs.load import load

        runs = [load(folder, device=self.device) for folder in self.folders]
        run, other = runs[0], runs[1] if len(runs) > 1 else None

        def told(done: int, total: int) -> None:
            display.show("comparing layers", done / max(1, total), f"{done:,} of {total:,} texts")

        def looked(done: int, total: int) -> None:
            display.show("comparing heads", done / max(1, total), f"{done:,} of {total:,} texts")

        display.show("tokenising", 0.0)
        if len(runs) > 2:
            return [models_alike(runs, self.data, layer=self.layer, most=self.most, top=self.top, told=told)]
        views = [layers_alike(run, self.data, other, most=self.most, told=told)]
        model = network(run)
        attends = model is not None and any(site.part != "pool" for site in sites(model))
        if other is None and attends:
            views.append(heads_alike(run, self.data, most=max(1, self.most // 5), top=self.top, told=looked))
        return views
