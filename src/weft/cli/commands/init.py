"""`weft init`: a commented run file to start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from weft.cli.options import Bare
from weft.cli.output import write
from weft.errors import UsageError, nearest
from weft.tasks.registry import TASKS
from weft.tasks.templates import find_templates, template


def _tasks() -> list[tuple[str, str]]:
    return [(name, task.about) for name, task in TASKS.items()]


def _kinds(ctx: typer.Context) -> list[str]:
    """The kinds of the task that was typed before, or of all."""
    typed = [task for task in TASKS if task in ctx.args] or list(TASKS)
    return sorted({kind for task in typed for kind in find_templates(task)})


def _choices() -> str:
    return "; ".join(f"of {task} {', '.join(find_templates(task))}" for task in TASKS)


@dataclass(kw_only=True)
class Init(Bare):
    """Print a commented run file to start from: weft init translate > run.toml"""

    task: Annotated[str, typer.Argument(metavar="TASK", autocompletion=_tasks, help=f"What to train for: {', '.join(TASKS)}.")]
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            autocompletion=_kinds,
            help=f"The model; the first is the default: {_choices()}.",
        ),
    ] = None

    def run(self) -> int:
        if self.task not in TASKS:
            raise UsageError(f"init: no such task {self.task!r}{nearest(self.task, TASKS)}")
        kinds = find_templates(self.task)
        if self.kind is not None and self.kind not in kinds:
            raise UsageError(f"--kind: no such kind {self.kind!r}{nearest(self.kind, kinds)}")
        write(template(self.task, self.kind or TASKS[self.task].kind))
        return 0
