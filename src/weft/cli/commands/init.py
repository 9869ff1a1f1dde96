"""weft init: a run file to start from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import Command
from weft.cli.output import write
from weft.errors import UsageError, unknown_name
from weft.tasks.registry import TASKS
from weft.tasks.templates import find_template


def _tasks() -> list[tuple[str, str]]:
    return [(name, task.description) for name, task in TASKS.items()]


def _archs(ctx: typer.Context) -> list[str]:
    """The architectures of the task on the command line, or of all tasks."""
    tasks = [task for task in TASKS if task in ctx.args] or list(TASKS)
    return sorted({arch for task in tasks for arch in find_template(task).archs})


@dataclass(kw_only=True)
class Init(Command):
    """Print a commented run file for a task."""

    task: Annotated[str, typer.Argument(metavar="TASK", autocompletion=_tasks, help=f"Task: {', '.join(TASKS)}.")]
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch",  # spelled out: some versions of typer make it --ARCH, as the metavar
            metavar="ARCH",
            autocompletion=_archs,
            help="Architecture.  [default: the first of the task]",
        ),
    ] = None
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", metavar="FILE", help="Training data: fill in the recommended options for it. Repeatable."),
    ] = None
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the run file instead.")] = False

    def run(self) -> int:
        if self.task not in TASKS:
            raise UsageError("init", *unknown_name("task", self.task, TASKS))
        archs = find_template(self.task).archs
        if self.arch is not None and self.arch not in archs:
            raise UsageError("arch", *unknown_name("architecture", self.arch, archs))
        if self.schema:
            from weft.cli.run_file_schema import run_file_schema

            write(json.dumps(run_file_schema(self.task), indent=2, ensure_ascii=False) + "\n")
            return 0
        if self.data:
            from weft.cli.recommended_run_file import render_recommended

            write(render_recommended(self.task, self.arch, [str(path) for path in self.data]))
            return 0
        from weft.cli.run_file_template import render_template

        write(render_template(self.task, self.arch or archs[0]))
        return 0
