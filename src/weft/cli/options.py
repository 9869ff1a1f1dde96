"""Base classes and options of commands. A command is a dataclass: fields are its arguments and options, `run` does the work.

To keep help and completion fast, the module of a command imports only light modules at its top, and the others in `run`.
"""

# no postponed annotations here: typer reads those of inherited fields in the subclass's module, where names may be missing
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from weft.errors import UsageError, unknown_name

# titles of option groups, in the order of a command's help; an option without a group is the command's own
DECODING, ENSEMBLE, CACHE, FILES, COMMON = "Decoding", "Ensemble", "Neural cache", "Input and output", "Common options"
SERVER, ACCESS, WORKERS = "Server", "Access", "Several machines"
GROUPS = (DECODING, ENSEMBLE, CACHE, SERVER, ACCESS, WORKERS, FILES, COMMON)
COMMON_ORDER = ("device", "threads", "json", "quiet", "debug", "help")


@dataclass(kw_only=True)
class Command:
    """Options of every command."""

    debug: Annotated[bool, typer.Option("--debug", rich_help_panel=COMMON, help="Show a traceback on errors.")] = False

    def run(self) -> int:
        """Do the work and return the exit code."""
        raise NotImplementedError


@dataclass(kw_only=True)
class QuietCommand(Command):
    """Options of every command that prints messages."""

    quiet: Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=COMMON, help="Print results and errors only.")] = False


@dataclass(kw_only=True)
class ThreadedCommand(QuietCommand):
    """Options of every command that computes."""

    threads: Annotated[
        int | None,
        typer.Option(rich_help_panel=COMMON, min=1, max=1024, metavar="N", help="Number of CPU threads.  [default: all]"),
    ] = None

    def num_processes(self) -> int:
        """The processes that run the command together."""
        return 1

    def advice(self) -> str:
        """What is left if one of these processes is lost, for its message."""
        return "the last checkpoint is intact"


@dataclass(kw_only=True)
class ModelCommand(ThreadedCommand):
    """Options of every command that works with a model and prints a result."""

    json: Annotated[bool, typer.Option("--json", rich_help_panel=COMMON, help="Print the result as JSON.")] = False


# ---- arguments and options that several commands share


def _devices() -> list[str]:
    """The values of --device; a function, because shell completion calls it."""
    return ["auto", "cpu", "cuda"]


def _check_device(name: str) -> str:
    """Refuse a device that is unknown or missing before the command does anything."""
    if name == "auto" or name == "cpu":
        return name
    if name not in _devices():
        raise UsageError("device", *unknown_name("device", name, _devices()))
    import torch

    if not torch.cuda.is_available():
        raise UsageError("device", "no CUDA GPU found", "use 'auto' or 'cpu'")
    return name


RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]
RunFile = Annotated[Path, typer.Argument(metavar="RUN.TOML", help="Run file; weft init prints one.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override an option of the run file, e.g. --set model.hidden_size=512. Repeatable.",
    ),
]
Processes = Annotated[
    int | None, typer.Option(min=1, max=1024, metavar="N", help="Number of processes on this machine.  [default: 1]")
]
Device = Annotated[
    str,
    typer.Option(
        rich_help_panel=COMMON,
        metavar="NAME",
        autocompletion=_devices,
        callback=_check_device,
        show_default=False,
        help="cpu, cuda or auto (a GPU if there is one).  [default: auto]",
    ),
]
# files need not be readable: reading them reports problems as data errors, not as errors of the command line
Data = Annotated[
    list[Path] | None,
    typer.Option(
        rich_help_panel=FILES, metavar="FILE", readable=False, help="Data files to use instead of the run's own. Repeatable."
    ),
]
InputFiles = Annotated[
    list[Path] | None,
    typer.Option(
        rich_help_panel=FILES,
        metavar="FILE",
        readable=False,
        help="Read lines from this file instead of standard input. Repeatable.",
    ),
]
OutputDir = Annotated[
    Path | None, typer.Option("--output-dir", "-o", rich_help_panel=FILES, metavar="DIR", help="Output directory.")
]
ViewFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        rich_help_panel=FILES,
        metavar="FILE",
        help="Output file. The suffix selects the format: .html, .svg, .png or .json.",
    ),
]
Csv = Annotated[
    Path | None,
    typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write the table as CSV; - for standard output."),
]
TopK = Annotated[
    int | None, typer.Option(rich_help_panel=DECODING, metavar="N", help="Sample from the N most probable tokens.")
]
TopP = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=DECODING, metavar="X", help="Sample from the smallest set of tokens with total probability X."
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=DECODING, metavar="X", help="Sample from tokens with at least X times the probability of the best."
    ),
]
Temperature = Annotated[
    float | None, typer.Option(rich_help_panel=DECODING, metavar="X", help="Sampling temperature; 0 is greedy.")
]
Context = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY", help="Language models: context policy: full, reset, carry, stride or stride:N.  [default: full]"
    ),
]


# ---- help


class GroupedHelp(TyperCommand):
    """Help that lists a command's own options first, then the shared ones, each group under its title."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", "Options", *GROUPS)}
        for param in sorted(self.get_params(ctx), key=_common_order):
            if (record := _help_record(param, ctx)) is not None:
                sections[_group(param)].append(record)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments without the braces that typer puts around required ones."""
        return [re.sub(r"^\{(.*)\}(\.\.\.)?$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]


def _help_record(param: Any, ctx: Any) -> tuple[str, str] | None:
    """Name and help of a parameter; for an argument without its type and [required], which the usage line shows."""
    record: tuple[str, str] | None = param.get_help_record(ctx)
    if record is None or param.param_type_name != "argument":
        return record
    return param.metavar or record[0], record[1].removesuffix("[required]").rstrip()


def _common_order(param: Any) -> int:
    """Sort key: the command's own options in their order, then the common ones."""
    return COMMON_ORDER.index(param.name) + 1 if param.name in COMMON_ORDER else 0


def _group(param: Any) -> str:
    """The title above a parameter in its command's help."""
    if param.param_type_name == "argument":
        return "Arguments"
    panel = param.rich_help_panel if isinstance(param, TyperOption) else None
    return COMMON if param.name == "help" else panel or "Options"


class GroupedCommands(TyperGroup):
    """Help that lists commands by purpose, in the order in which they were added."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        formatter.write_paragraph()
        self.format_commands(ctx, formatter)
        rows = [record for param in self.get_params(ctx) if (record := param.get_help_record(ctx)) is not None]
        if rows:
            _write_section(formatter, "Options", rows)
        formatter.write(f"Run {ctx.command_path} COMMAND --help for details.\n")

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        width = max(map(len, self.commands), default=0)
        for name, command in self.commands.items():
            # the first line of the command's docstring, never shortened
            title = vars(command).get("rich_help_panel")
            sections.setdefault(title if isinstance(title, str) else "Commands", []).append(
                (name.ljust(width), command.short_help or "")
            )
        for title, rows in sections.items():
            formatter.write_heading(title)
            for name, text in rows:  # not wrapped: one line per command
                formatter.write(f"  {name}  {text}\n")


def _write_section(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    """A titled list without a blank line above it."""
    formatter.write_heading(title)
    with formatter.indentation():
        formatter.write_dl(rows)
