"""`weft explain`: how a run came to what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.drawn import check_kind, write_views
from weft.cli.entries import note_file
from weft.cli.options import DECODING, FILES, Device, MinP, Shared, TopK, TopP
from weft.cli.output import note, write, write_json
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.explain.options import ExplainOptions
    from weft.explain.view import View
    from weft.runs.run import AnyRun


def _views() -> list[str]:
    from weft.explain.views import VIEWS

    return list(VIEWS)


def _parts() -> list[str]:
    return ["encoder", "decoder", "cross", "pool"]


def _methods() -> list[str]:
    return ["integrated", "gradient", "occlusion", "exact"]


def _baselines() -> list[str]:
    return ["unk", "mask", "mean", "zero"]


def as_json(folders: Sequence[Path], text: str, views: Sequence[View]) -> dict[str, Any]:
    """The numbers of all views."""
    return {
        "run": str(folders[0]),
        **({"with": [str(folder) for folder in folders[1:]]} if len(folders) > 1 else {}),
        "input": text,
        "views": [{"what": view.what, "title": view.title, **view.data} for view in views],
    }


@dataclass(kw_only=True)
class Explain(Shared):
    """Show how a run came to what it says of a text: where it looked, what spoke for it, what went on inside.

    Prints a summary. With --out it writes all there is: a page that opens anywhere (.html), pictures (.svg, .png), or the
    numbers with the place of every token (.json).
    """

    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="What to explain: a source, text, sentence or prompt; without, standard input."),
    ] = None
    what: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VIEW",
            autocompletion=_views,
            help="Which view: attention, rollout, attribution, surprisal, distribution, counts, search, lens, units, "
            "gradients, positions; may be given several times.  [default: the first that the run has]",
        ),
    ] = None
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="RUN", help="Of gradients: another run on the same plot; may be given several times."),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write all of it: x.html, x.svg, x.png or x.json."),
    ] = None
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What is asked about: an output, next token, label or tag; not the run's own."),
    ] = None
    position: Annotated[int | None, typer.Option(metavar="N", help="Only this word, gap or token of the output, from 1.")] = (
        None
    )
    part: Annotated[
        str | None, typer.Option(metavar="NAME", autocompletion=_parts, help="Of attention: encoder, decoder, cross or pool.")
    ] = None
    layer: Annotated[int | None, typer.Option(metavar="N", help="Only this layer, from 1.")] = None
    head: Annotated[int | None, typer.Option(metavar="N", help="Only this head, from 1.")] = None
    unit: Annotated[list[int] | None, typer.Option(metavar="N", help="Only this unit, from 1; may be given several times.")] = (
        None
    )
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", autocompletion=_methods, help="Of attribution: integrated, gradient, occlusion, or exact for terms."
        ),
    ] = None
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Of integrated gradients.  [default: as many as make them complete]")
    ] = None
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", autocompletion=_baselines, help="What attribution puts in a token's place: unk, mask, mean or zero."
        ),
    ] = None
    beam: Annotated[
        int | None,
        typer.Option(rich_help_panel=DECODING, metavar="N", help="Width of the beam that finds the output; 1 is greedy."),
    ] = None
    alpha: Annotated[
        float | None, typer.Option(rich_help_panel=DECODING, metavar="X", help="Score = log-probability / length^X.")
    ] = None
    length: Annotated[int | None, typer.Option(rich_help_panel=DECODING, metavar="N", help="Tokens of the output at most.")] = (
        None
    )
    temperature: Annotated[
        float | None, typer.Option(rich_help_panel=DECODING, metavar="X", help="Of sampling: below 1 safer, above 1 wilder.")
    ] = None
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    top: Annotated[int, typer.Option(metavar="N", help="How many tokens, candidates or units are named.")] = 5
    device: Device = "auto"

    def run(self) -> int:
        from weft.runs.load import load, ready

        check_kind("--out", self.out)
        options, names = self._options(), self._names()
        runs = {name: ready(load(folder, device=self.device)) for name, folder in names.items()}
        text = self._text(next(iter(runs.values())))
        views = [self._show(runs, text, what or None, options) for what in dict.fromkeys(self.what or [""])]
        numbers = as_json(list(names.values()), text, views)
        if self.json:
            write_json(numbers, indent=None)
        else:
            heads = [f"{view.title}\n" if len(views) > 1 else "" for view in views]
            bodies = ("\n".join(view.lines) + "\n" for view in views)
            write("\n".join(head + body for head, body in zip(heads, bodies, strict=True)))
        if self.out is not None:
            write_views(self.out, views, title=text, numbers=numbers, quiet=self.quiet)
        return 0

    def _names(self) -> dict[str, Path]:
        """The runs by what a legend calls them: the names of their folders, or, where two are alike, all of their paths."""
        folders = [self.folder, *(self.others or [])]
        for at, folder in enumerate(folders):
            if folder in folders[:at]:
                raise UsageError(f"--with: {folder} is given twice")
        alike = len({folder.name for folder in folders}) < len(folders)
        return {str(folder) if alike else folder.name: folder for folder in folders}

    def _options(self) -> ExplainOptions:
        from weft.explain.options import ExplainOptions

        given = {name: getattr(self, name) for name in ExplainOptions.model_fields}
        return ExplainOptions(**given | {"unit": self.unit or []})

    def _text(self, run: AnyRun) -> str:
        from weft.cli.lines import stdin_lines
        from weft.explain.inputs import explaining
        from weft.explain.views import VIEWS

        if self.text is not None:
            note_file(self.text, f"use < {self.text} to read the file", quiet=self.quiet)
            return self.text
        if self.what and not any(VIEWS[name].reads for name in self.what if name in VIEWS):
            return ""
        lines = list(stdin_lines(run.settings.data.encoding))
        if len(lines) > 1 and explaining(run).line(run):  # running text has as many as it likes
            note(f"weft: {len(lines):,} lines are read as one text; explain each by a command of its own", quiet=self.quiet)
        return "\n".join(lines)

    def _show(self, runs: Mapping[str, AnyRun], text: str, what: str | None, options: ExplainOptions) -> View:
        from weft.cli.display import Display
        from weft.explain.views import show, show_together

        with Display(quiet=self.quiet) as display:
            telling = partial(display.show, "explaining")
            if len(runs) > 1:
                return show_together(runs, text, what, options, telling=telling)
            return show(runs[next(iter(runs))], text, what, options, telling=telling)
