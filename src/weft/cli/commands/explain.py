"""`weft explain`: explain one prediction of a run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.ensemble_options import BeamSize, LengthPenalty, Patience
from weft.cli.explanation_output import check_format, write_explanations
from weft.cli.inputs import note_if_file
from weft.cli.options import DECODING, Device, MinP, ModelCommand, RunDirectory, Temperature, TopK, TopP, ViewFile
from weft.cli.output import note, status, write, write_json
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.explain.explanation import Explanation
    from weft.explain.options import ExplainConfig
    from weft.runs.run import AnyRun


def _views() -> list[str]:
    from weft.explain.views import VIEWS

    return list(VIEWS)


def _components() -> list[str]:
    return ["encoder", "decoder", "cross", "pooling"]


def _methods() -> list[str]:
    return ["integrated-gradients", "input-x-gradient", "occlusion", "coefficients"]


def _baselines() -> list[str]:
    return ["unk", "mask", "mean", "zero"]


def as_json(directories: Sequence[Path], text: str, views: Sequence[Explanation]) -> dict[str, Any]:
    """The numbers of all views."""
    return {
        "run": str(directories[0]),
        **({"compare_with": [str(directory) for directory in directories[1:]]} if len(directories) > 1 else {}),
        "input": text,
        "views": [{"view": view.view, "title": view.title, **view.data} for view in views],
    }


@dataclass(kw_only=True)
class Explain(ModelCommand):
    """Explain one prediction: attention, attribution, surprisal, gradient flow and more.

    Prints a summary. --output writes everything: a page that works offline (.html), figures (.svg, .png), or the numbers with
    the position of every token (.json).
    """

    run_dir: RunDirectory
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT", show_default=False, help="Input or prompt to explain; without it, standard input is read."
        ),
    ] = None
    view: Annotated[
        list[str] | None,
        typer.Option(
            "--view",  # spelled out: some versions of typer make it --VIEW, as the metavar
            metavar="VIEW",
            autocompletion=_views,
            help="attention, rollout, attribution, surprisal, distribution, beam-search, logit-lens, units or gradient-flow; "
            "also counts and positions. Repeatable.  [default: the first that the run has]",
        ),
    ] = None
    compare_with: Annotated[
        list[Path] | None,
        typer.Option("--compare-with", metavar="RUN", help="gradient-flow only: another run in the same plot. Repeatable."),
    ] = None
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Output, token, label or tag to explain.  [default: the prediction]"),
    ] = None
    position: Annotated[int | None, typer.Option(metavar="N", help="Output position to explain, from 1.")] = None
    component: Annotated[
        str | None,
        typer.Option(metavar="NAME", autocompletion=_components, help="attention only: encoder, decoder, cross or pooling."),
    ] = None
    layer: Annotated[int | None, typer.Option(metavar="N", help="Layer number, from 1.")] = None
    head: Annotated[int | None, typer.Option(metavar="N", help="Head number, from 1.")] = None
    unit: Annotated[list[int] | None, typer.Option(metavar="N", help="Hidden unit number, from 1. Repeatable.")] = None
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=_methods,
            help="Attribution method: integrated-gradients, input-x-gradient, occlusion or coefficients.",
        ),
    ] = None
    n_steps: Annotated[
        int | None,
        typer.Option(metavar="N", help="Steps of integrated gradients.  [default: until the attribution is complete]"),
    ] = None
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", autocompletion=_baselines, help="Attribution baseline: unk, mask, mean or zero."),
    ] = None
    top: Annotated[int, typer.Option(metavar="N", help="Number of items to list.")] = 5
    beam_size: BeamSize = None
    length_penalty: LengthPenalty = None
    patience: Patience = None
    max_new_tokens: Annotated[
        int | None, typer.Option(rich_help_panel=DECODING, metavar="N", help="Maximum number of tokens to generate.")
    ] = None
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    output: ViewFile = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.runs.load import load, with_model

        check_format("output", self.output)
        options, names = self._options(), self._names()
        runs = {name: with_model(load(directory, device=self.device)) for name, directory in names.items()}
        text = self._text(next(iter(runs.values())))
        views = [self._explain(runs, text, view or None, options) for view in dict.fromkeys(self.view or [""])]
        numbers = as_json(list(names.values()), text, views)
        if self.json:
            write_json(numbers, indent=None)
        else:
            heads = [f"{view.title}\n" if len(views) > 1 else "" for view in views]
            bodies = ("\n".join(view.lines) + "\n" for view in views)
            write("\n".join(head + body for head, body in zip(heads, bodies, strict=True)))
        if self.output is not None:
            write_explanations(self.output, views, title=text, numbers=numbers, quiet=self.quiet)
        elif not self.json and sys.stdout.isatty():
            words = ["weft", "explain", str(self.run_dir), *([] if self.text is None else [self.text])]
            words += [word for view in self.view or () for word in ("--view", view)]
            status(f"Next: {shlex.join([*words, '--output', f'{views[0].view}.html'])}", quiet=self.quiet)
        return 0

    def _names(self) -> dict[str, Path]:
        """The runs by their names in a legend: the names of their directories, or their paths if two names are equal."""
        directories = [self.run_dir, *(self.compare_with or [])]
        for index, directory in enumerate(directories):
            if directory in directories[:index]:
                raise UsageError("compare_with", f"{directory} is listed twice")
        is_ambiguous = len({directory.name for directory in directories}) < len(directories)
        return {str(directory) if is_ambiguous else directory.name: directory for directory in directories}

    def _options(self) -> ExplainConfig:
        from weft.explain.options import ExplainConfig

        values: dict[str, Any] = {name: getattr(self, name) for name in ExplainConfig.model_fields}
        return ExplainConfig(**{**values, "unit": self.unit or []})

    def _text(self, run: AnyRun) -> str:
        from weft.cli.input_lines import stdin_lines
        from weft.explain.inputs import explain_spec
        from weft.explain.views import VIEWS

        if run.spec.file_views is not None:
            return next(stdin_lines(run.config.data.encoding), "") if self.text is None else self.text
        if self.text is not None:
            note_if_file(self.text, f"use < {self.text} to read the file", quiet=self.quiet)
            return self.text
        if self.view and not any(VIEWS[name].needs_text for name in self.view if name in VIEWS):
            return ""
        lines = list(stdin_lines(run.config.data.encoding))
        if len(lines) > 1 and explain_spec(run).is_single_line(run):  # running text may have several lines
            note(f"{len(lines):,} lines are read as one text; use one command per line to explain each", quiet=self.quiet)
        return "\n".join(lines)

    def _explain(self, runs: Mapping[str, AnyRun], text: str, view: str | None, options: ExplainConfig) -> Explanation:
        from weft.cli.display import Display
        from weft.explain.views import explain_runs, explain_text

        with Display(quiet=self.quiet) as display:
            progress = partial(display.show, "explaining")
            if len(runs) > 1:
                return explain_runs(runs, text, view, options, progress=progress)
            return explain_text(runs[next(iter(runs))], text, view, options, progress=progress)
