"""`weft explain`: how a run came to what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.explanation_output import check_format, write_explanations
from weft.cli.inputs import note_file
from weft.cli.options import DECODING, FILES, Device, MinP, ModelCommand, TopK, TopP
from weft.cli.output import note, write, write_json
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.explain.explanation import Explanation
    from weft.explain.options import ExplainConfig
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


def as_json(directories: Sequence[Path], text: str, views: Sequence[Explanation]) -> dict[str, Any]:
    """The numbers of all views."""
    return {
        "run": str(directories[0]),
        **({"with": [str(directory) for directory in directories[1:]]} if len(directories) > 1 else {}),
        "input": text,
        "views": [{"what": view.view, "title": view.title, **view.data} for view in views],
    }


@dataclass(kw_only=True)
class Explain(ModelCommand):
    """Show how a run came to what it says of a text: where it looked, what spoke for it, what went on inside.

    Prints a summary. With --output-dir it writes all there is: a page that opens anywhere (.html), pictures (.svg, .png), or the
    numbers with the place of every token (.json).
    """

    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="What to explain: a source, text, sentence or prompt; without, standard input."),
    ] = None
    view: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VIEW",
            autocompletion=_views,
            help="Which view: attention, rollout, attribution, surprisal, distribution, counts, search, lens, units, "
            "gradients, positions; may be given several times.  [default: the first that the run has]",
        ),
    ] = None
    compare_with: Annotated[
        list[Path] | None,
        typer.Option(
            "--ensemble", metavar="RUN", help="Of gradients: another run on the same plot; may be given several times."
        ),
    ] = None
    output: Annotated[
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
    component: Annotated[
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
    n_steps: Annotated[
        int | None, typer.Option(metavar="N", help="Of integrated gradients.  [default: as many as make them complete]")
    ] = None
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", autocompletion=_baselines, help="What attribution puts in a token's place: unk, mask, mean or zero."
        ),
    ] = None
    beam_size: Annotated[
        int | None,
        typer.Option(rich_help_panel=DECODING, metavar="N", help="Width of the beam that finds the output; 1 is greedy."),
    ] = None
    length_penalty: Annotated[
        float | None, typer.Option(rich_help_panel=DECODING, metavar="X", help="Score = log-probability / length^X.")
    ] = None
    max_new_tokens: Annotated[
        int | None, typer.Option(rich_help_panel=DECODING, metavar="N", help="Tokens of the output at most.")
    ] = None
    temperature: Annotated[
        float | None, typer.Option(rich_help_panel=DECODING, metavar="X", help="Of sampling: below 1 safer, above 1 wilder.")
    ] = None
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    top: Annotated[int, typer.Option(metavar="N", help="How many tokens, candidates or units are named.")] = 5
    device: Device = "auto"

    def run(self) -> int:
        from weft.runs.load import load, prepared

        check_format("--output-dir", self.output)
        options, names = self._options(), self._names()
        runs = {name: prepared(load(directory, device=self.device)) for name, directory in names.items()}
        text = self._text(next(iter(runs.values())))
        views = [self._show(runs, text, what or None, options) for what in dict.fromkeys(self.view or [""])]
        numbers = as_json(list(names.values()), text, views)
        if self.json:
            write_json(numbers, indent=None)
        else:
            heads = [f"{view.title}\n" if len(views) > 1 else "" for view in views]
            bodies = ("\n".join(view.lines) + "\n" for view in views)
            write("\n".join(head + body for head, body in zip(heads, bodies, strict=True)))
        if self.output is not None:
            write_explanations(self.output, views, title=text, numbers=numbers, quiet=self.quiet)
        return 0

    def _names(self) -> dict[str, Path]:
        """The runs by what a legend calls them: the names of their folders, or, where two are alike, all of their paths."""
        directories = [self.run_dir, *(self.compare_with or [])]
        for at, directory in enumerate(directories):
            if directory in directories[:at]:
                raise UsageError("--ensemble", f"{directory} is given twice")
        alike = len({directory.name for directory in directories}) < len(directories)
        return {str(directory) if alike else directory.name: directory for directory in directories}

    def _options(self) -> ExplainConfig:
        from weft.explain.options import ExplainConfig

        given = {name: getattr(self, name) for name in ExplainConfig.model_fields}
        return ExplainConfig(**given | {"unit": self.unit or []})

    def _text(self, run: AnyRun) -> str:
        from weft.cli.input_lines import stdin_lines
        from weft.explain.inputs import explaining
        from weft.explain.views import VIEWS

        if self.text is not None:
            note_file(self.text, f"use < {self.text} to read the file", quiet=self.quiet)
            return self.text
        if self.view and not any(VIEWS[name].needs_text for name in self.view if name in VIEWS):
            return ""
        lines = list(stdin_lines(run.config.data.encoding))
        if len(lines) > 1 and explaining(run).line(run):  # running text has as many as it likes
            note(f"weft: {len(lines):,} lines are read as one text; explain each by a command of its own", quiet=self.quiet)
        return "\n".join(lines)

    def _show(self, runs: Mapping[str, AnyRun], text: str, what: str | None, options: ExplainConfig) -> Explanation:
        from weft.cli.display import Display
        from weft.explain.views import explain_runs, explain_text

        with Display(quiet=self.quiet) as display:
            progress = partial(display.show, "explaining")
            if len(runs) > 1:
                return explain_runs(runs, text, what, options, progress=progress)
            return explain_text(runs[next(iter(runs))], text, what, options, progress=progress)
