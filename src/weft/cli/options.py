"""What commands share. A command is a dataclass: its fields are its arguments and options, `run` does the work.

So that help and completion answer at once, a command's module imports at its top what is light, and the rest in `run`.
"""

# no postponed annotations here: those of fields are read where a command inherits them, and must not be names by then
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from weft.errors import UsageError, suggest

# titles of what a command's help lists after its own options, in this order; an option names the one that it stands under
DECODING, ENSEMBLE, FILES, COMMON = "Decoding", "Ensemble", "Input and output", "Common options"
PANELS = (DECODING, ENSEMBLE, FILES, COMMON)
LAST = ("device", "json", "quiet", "threads", "debug", "help")  # what most commands have, as it is listed


@dataclass(kw_only=True)
class Command:
    """Options of every command."""

    debug: Annotated[bool, typer.Option("--debug", rich_help_panel=COMMON, help="Show where in the code an error arose.")] = (
        False
    )

    def run(self) -> int:
        """Do what was asked; the exit code."""
        raise NotImplementedError


@dataclass(kw_only=True)
class ModelCommand(Command):
    """Options of every command that works with a model."""

    json: Annotated[bool, typer.Option("--json", rich_help_panel=COMMON, help="Print the result as JSON.")] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", rich_help_panel=COMMON, help="No progress and no notes; errors only.")
    ] = False
    threads: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=COMMON, min=1, max=1024, metavar="N", help="Threads to compute with.  [default: one a CPU]"
        ),
    ] = None


SHARED = [field.name for field in fields(ModelCommand)]


def _devices() -> list[str]:
    return ["auto", "cpu", "cuda"]


def _present(name: str) -> str:
    """Refuses a device that is not here before a command does anything."""
    if name == "auto" or name == "cpu":
        return name
    if name not in _devices():
        raise UsageError("device", f"no such device {name!r}", suggest(name, _devices()))
    import torch

    if not torch.cuda.is_available():
        raise UsageError("device", "'cuda' was asked for, but torch sees no GPU", "use 'auto' or 'cpu'")
    return name


Device = Annotated[
    str,
    typer.Option(
        rich_help_panel=COMMON,
        metavar="NAME",
        autocompletion=_devices,
        callback=_present,
        help="Where to compute: cpu, cuda, or auto, a GPU if there is one.",
    ),
]


TopK = Annotated[
    int | None, typer.Option(rich_help_panel=DECODING, metavar="N", help="Sample from the N most probable tokens.")
]
TopP = Annotated[
    float | None,
    typer.Option(rich_help_panel=DECODING, metavar="X", help="Sample from the fewest tokens that have X of the probability."),
]
MinP = Annotated[
    float | None,
    typer.Option(rich_help_panel=DECODING, metavar="X", help="Sample from tokens at least X times as probable as the best."),
]
Context = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY",
        help="Of language models: what a token is predicted from: full (its whole past, as far as the model reads), reset (its "
        "line), carry (all before it), stride or stride:N (a window that moves on by N tokens).  [default: full]",
    ),
]


class GroupedHelp(TyperCommand):
    """Help that lists a command's own options first, and then those that others have too, each kind under its title."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", "Options", *PANELS)}
        for param in sorted(self.get_params(ctx), key=lambda one: LAST.index(one.name) + 1 if one.name in LAST else 0):
            if (shown := param.get_help_record(ctx)) is not None:
                sections[_title(param)].append(shown)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _title(param: Any) -> str:
    """What a parameter stands under in its command's help."""
    if param.param_type_name == "argument":
        return "Arguments"
    panel = param.rich_help_panel if isinstance(param, TyperOption) else None
    return COMMON if param.name == "help" else panel or "Options"


# of runs that are measured; readable: the gate says what is wrong with data, and that is no fault of the command line
Data = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", readable=False, help="Measure runs on this, not on their own test data; may be given several times."
    ),
]
