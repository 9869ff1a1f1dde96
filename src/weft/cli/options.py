"""What commands share. A command is a dataclass: its fields are its arguments and options, `run` does the work.

So that help and completion answer at once, a command's module imports at its top what is light, and the rest in `run`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand


@dataclass(kw_only=True)
class Bare:
    """Options of every command."""

    debug: Annotated[bool, typer.Option("--debug", help="Show where in the code an error arose.")] = False

    def run(self) -> int:
        """Do what was asked; the exit code."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Shared(Bare):
    """Options of every command that works with a model."""

    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes; errors only.")] = False
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, metavar="N", help="Threads to compute with.  [default: one a CPU]")
    ] = None


SHARED = [field.name for field in fields(Shared)]


def _devices() -> list[str]:
    return ["auto", "cpu", "cuda"]


Device = Annotated[
    str,
    typer.Option(metavar="NAME", autocompletion=_devices, help="Where to compute: cpu, cuda, or auto, a GPU if there is one."),
]


Context = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY",
        help="Of language models: what a token is predicted from: full (its whole past, as far as the model reads), reset (its "
        "line), carry (all before it), stride or stride:N (a window that moves on by N tokens).  [default: full]",
    ),
]


class OwnFirst(TyperCommand):
    """Help that lists a command's own options before those that all have."""

    def get_params(self, ctx: Any) -> list[Any]:
        return sorted(super().get_params(ctx), key=lambda param: param.name in SHARED)


# of runs that are measured; readable: the gate says what is wrong with data, and that is no fault of the command line
Data = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", readable=False, help="Measure runs on this, not on their own test data; may be given several times."
    ),
]
