"""`weft similarity`: which layers, runs and heads do the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.drawn import check_kind, write_views
from weft.cli.options import Device, Shared
from weft.cli.output import write, write_json
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.explain.view import View


@dataclass(kw_only=True)
class Similarity(Shared):
    """Compare the layers of a run with each other, or with those of another run, and the heads of its attention.

    Layers by linear CKA: 1 where they say the same of all words but for a rotation and a scale, 0 where they have nothing in
    common. Heads by how many bits apart they look: 0 where they look alike, 1 where they never look at the same. Reads a text,
    or of translating runs pairs, or the first run's own validation data.
    """

    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    other: Annotated[Path | None, typer.Argument(metavar="RUN2", help="Another, whose layers are compared with those.")] = None
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read these lines instead; may be given several times."),
    ] = None
    most: Annotated[int, typer.Option(metavar="N", help="How many words are read; of heads, a fifth of that.")] = 10_000
    top: Annotated[int, typer.Option(metavar="N", help="How many pairs of heads are named.")] = 5
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all of it: x.html, x.svg, x.png or x.json.")] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display

        check_kind("--out", self.out)
        for option, value in (("most", self.most), ("top", self.top)):
            if value < 1:
                raise UsageError(f"--{option}: must be 1 or more, not {value}")
        with Display(quiet=self.quiet) as display:
            views = self._views(display)
        numbers = {"views": [{"what": view.what, "title": view.title, **view.data} for view in views]}
        if self.json:
            write_json(numbers)
        else:
            write("\n".join("\n".join([view.title, *view.lines, ""]) for view in views))
        if self.out is not None:
            title = " and ".join(str(path) for path in (self.folder, self.other) if path is not None)
            write_views(self.out, views, title=title, numbers=numbers, quiet=self.quiet)
        return 0

    def _views(self, display: Display) -> list[View]:
        from weft.explain.attention import sites
        from weft.explain.inputs import network
        from weft.explain.similarity import heads_alike, layers_alike
        from weft.run import load

        run: Any = load(self.folder, device=self.device)
        other: Any = None if self.other is None else load(self.other, device=self.device)

        def told(done: int, total: int) -> None:
            display.show("comparing layers", done / max(1, total), f"{done:,} of {total:,} texts")

        def looked(done: int, total: int) -> None:
            display.show("comparing heads", done / max(1, total), f"{done:,} of {total:,} texts")

        display.show("tokenising", 0.0)
        views = [layers_alike(run, self.data, other, most=self.most, told=told)]
        model = network(run)
        attends = model is not None and any(site.part != "pool" for site in sites(model))
        if other is None and attends:
            views.append(heads_alike(run, self.data, most=max(1, self.most // 5), top=self.top, told=looked))
        return views
