"""`weft init`: a commented run file to start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from weft.cli.options import Bare
from weft.cli.output import write
from weft.cli.templates import TEMPLATES, template
from weft.errors import UsageError, nearest


def _tasks() -> list[str]:
    return list(TEMPLATES)


def _kinds(ctx: typer.Context) -> list[str]:
    """The kinds of the task that was typed before, or of all."""
    typed = [task for task in TEMPLATES if task in ctx.args] or list(TEMPLATES)
    return sorted({kind for task in typed for kind in TEMPLATES[task]})


def _choices() -> str:
    return "; ".join(f"of {task} {', '.join(kinds)}" for task, kinds in TEMPLATES.items())


@dataclass(kw_only=True)
class Init(Bare):
    """Print a commented run file to start from: weft init translate > run.toml"""

    task: Annotated[
        str, typer.Argument(metavar="TASK", autocompletion=_tasks, help=f"What to train for: {', '.join(TEMPLATES)}.")
    ]
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            autocompletion=_kinds,
            help=f"The model; the first is the default: {_choices()}.",
        ),
    ] = None

    def run(self) -> int:
        if self.task not in TEMPLATES:
            raise UsageError(f"init: no such task {self.task!r}{nearest(self.task, TEMPLATES)}")
        kinds = TEMPLATES[self.task]
        if self.kind is not None and self.kind not in kinds:
            raise UsageError(f"--kind: no such kind {self.kind!r}{nearest(self.kind, kinds)}")
        write(template(self.task, self.kind or next(iter(kinds))))
        return 0
