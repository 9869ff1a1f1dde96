"""`weft init`: a commented run file to start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from weft.cli.options import Command
from weft.cli.output import write
from weft.errors import UsageError, suggest
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
class Init(Command):
    """Print a commented run file to start from: weft init seq2seq > run.toml"""

    task: Annotated[str, typer.Argument(metavar="TASK", autocompletion=_tasks, help=f"What to train for: {', '.join(TASKS)}.")]
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            autocompletion=_kinds,
            help=f"The model; the first is the default: {_choices()}.",
        ),
    ] = None

    def run(self) -> int:
        if self.task not in TASKS:
            raise UsageError("init", f"no such task {self.task!r}", suggest(self.task, TASKS))
        kinds = find_templates(self.task)
        if self.arch is not None and self.arch not in kinds:
            raise UsageError("--arch", f"no such kind {self.arch!r}", suggest(self.arch, kinds))
        write(template(self.task, self.arch or TASKS[self.task].kind))
        return 0
