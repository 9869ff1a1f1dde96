"""`weft`: the command line. Results go to standard output, everything else to standard error; an error is one line."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from weft import __version__
from weft.cli.commands.align import Align
from weft.cli.commands.analyze_geometry import AnalyzeGeometry
from weft.cli.commands.analyze_minimal_pairs import AnalyzeMinimalPairs
from weft.cli.commands.analyze_similarity import AnalyzeSimilarity
from weft.cli.commands.analyze_word_map import AnalyzeWordMap
from weft.cli.commands.average import Average
from weft.cli.commands.chat import Chat
from weft.cli.commands.check import Check
from weft.cli.commands.compare import Compare
from weft.cli.commands.demo import Demo
from weft.cli.commands.distill import Distill
from weft.cli.commands.embed import Embed
from weft.cli.commands.evaluate import Evaluate
from weft.cli.commands.explain import Explain
from weft.cli.commands.export import Export
from weft.cli.commands.fit import Fit
from weft.cli.commands.generate import Generate
from weft.cli.commands.import_ import Import
from weft.cli.commands.info import Info
from weft.cli.commands.init import Init
from weft.cli.commands.merge import Merge
from weft.cli.commands.neighbors import Neighbors
from weft.cli.commands.predict import Predict
from weft.cli.commands.prepare import Prepare
from weft.cli.commands.prune import Prune
from weft.cli.commands.score import Score
from weft.cli.commands.serve import Serve
from weft.cli.commands.train import Train
from weft.cli.options import Command, GroupedCommands, GroupedHelp, ThreadedCommand
from weft.cli.output import print_message
from weft.cli.signals import Terminated, terminable
from weft.cli.std_streams import open_standard_files
from weft.cli.threads import set_threads
from weft.cli.usage import explain, one_line, show_error
from weft.errors import ResourceError, WeftError

SIGINT, SIGPIPE, SIGHUP = 130, 141, 129  # exit codes: 128 plus the number of the signal

app = typer.Typer(
    cls=GroupedCommands,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
analyze = typer.Typer(cls=GroupedCommands, context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode=None)
ANALYZE = "Analyze a model on a data set: geometry, similarity, minimal-pairs, word-map."

ANALYSES: dict[str, type[Command]] = {
    "geometry": AnalyzeGeometry,
    "similarity": AnalyzeSimilarity,
    "minimal-pairs": AnalyzeMinimalPairs,
    "word-map": AnalyzeWordMap,
}
# commands by purpose, as the help lists them
GROUPS: dict[str, dict[str, type[Command] | typer.Typer]] = {
    "Getting started": {"demo": Demo, "init": Init, "info": Info},
    "Training": {
        "check": Check,
        "prepare": Prepare,
        "train": Train,
        "compare": Compare,
        "fit": Fit,
        "distill": Distill,
        "average": Average,
        "merge": Merge,
    },
    "Using a model": {
        "evaluate": Evaluate,
        "predict": Predict,
        "generate": Generate,
        "chat": Chat,
        "score": Score,
        "embed": Embed,
        "neighbors": Neighbors,
        "align": Align,
    },
    "Understanding a model": {"explain": Explain, "analyze": analyze, "prune": Prune},
    "Sharing": {"serve": Serve, "import": Import, "export": Export},
}
COMMANDS = [name for commands in GROUPS.values() for name in commands]


def _first_line(command: type[Command]) -> str:
    """The first paragraph of a command's docstring, for the list of all commands."""
    return " ".join((command.__doc__ or "").partition("\n\n")[0].split())


def _add(parent: typer.Typer, commands: Mapping[str, type[Command] | typer.Typer], title: str) -> None:
    """Add commands under a title of the help."""
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            parent.add_typer(command, name=name, help=ANALYZE, short_help=ANALYZE, rich_help_panel=title)
        else:
            parent.command(name, cls=GroupedHelp, short_help=_first_line(command), rich_help_panel=title)(command)


_add(analyze, ANALYSES, "Commands")
for _title, _commands in GROUPS.items():
    _add(app, _commands, _title)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train, compare and explain sequence models, from n-grams to Transformers.

    Start with: weft init lm > run.toml && weft train run.toml
    """


@cache
def _root_command() -> Any:
    """All commands and their options, built from the dataclasses once: that takes most of the time of `--help`."""
    command: Any = typer.main.get_command(app)
    command.commands = {name: command.commands[name] for name in COMMANDS}  # typer puts groups of commands last
    return command


def _flags(words: Sequence[str]) -> set[str]:
    """The flags of the command that was called: errors name a flag instead of the option if there is one."""
    command = _root_command().commands.get(words[0], _root_command())
    if words[0] == "analyze" and len(words) > 1:
        command = command.commands.get(words[1], command)
    return {flag for param in command.params for flag in param.opts}


def _run(args: list[str]) -> int:
    """Parse the arguments into a command, and run it."""
    set_threads(None)
    if "WORLD_SIZE" in os.environ:  # one of several processes: torch would report lost connections with stack traces
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    result: Any = _root_command()(args, prog_name="weft", standalone_mode=False)
    if not isinstance(result, Command):  # help and version have been printed
        return int(result or 0)
    if isinstance(result, ThreadedCommand) and result.num_processes() > 1:
        from weft.cli.launch import is_child, launch

        if not is_child():
            return launch(args, result.num_processes(), result.threads, result.advice())
    if isinstance(result, ThreadedCommand) and result.threads is not None:
        set_threads(result.threads)
    code: int = result.run()
    sys.stdout.flush()
    return code


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if args is None else args) or ["--help"]
    if words[0] == "help" or words == ["analyze"]:
        words = [*(word for word in words if word != "help"), "--help"]
    try:
        open_standard_files()
        with terminable():
            return _run(words)
    except TyperException as error:
        print_message("error", one_line(explain(error, COMMANDS)))
        return 2
    except WeftError as error:
        if "--debug" in words:
            traceback.print_exc()
        print_message("error", show_error(error, _flags(words)))
        return error.exit_code
    except KeyboardInterrupt:
        return SIGINT
    except Terminated as error:
        if error.exit_code == SIGHUP:  # the terminal is gone, and so is the reader of the output
            _discard_output()
        return error.exit_code
    except BrokenPipeError:  # the reader of our output has closed it
        _discard_output()
        return SIGPIPE
    except (OSError, MemoryError, RuntimeError) as error:
        message = _resource_problem(error)
        if message is None:
            raise
        if "--debug" in words:
            traceback.print_exc()
        _discard_output()
        print_message("error", one_line(message))
        return ResourceError.exit_code


def _discard_output() -> None:
    """Redirect standard output to the null device, so that Python does not fail to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _resource_problem(error: Exception) -> str | None:
    """A message for an error of the operating system or memory; None for a bug in weft."""
    if isinstance(error, OSError):
        name = "input or output" if error.filename is None else os.fsdecode(error.filename)
        return None if error.strerror is None else f"{name}: {error.strerror}"
    # torch has no exception type for main memory; "can't allocate memory" is its message, "Cannot" that of the system
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "t allocate memory" in str(error):
        return "memory: not enough memory; use less text, a smaller batch or a smaller model"
    return None


if __name__ == "__main__":
    sys.exit(main())
