"""`weft`: the command line. Results go to standard output, all else to standard error; an error is one line."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from weft import __version__
from weft.cli.commands.check import Check
from weft.cli.commands.compare import Compare
from weft.cli.commands.demo import Demo
from weft.cli.commands.embed import Embed
from weft.cli.commands.evaluate import Evaluate
from weft.cli.commands.explain import Explain
from weft.cli.commands.export import Export
from weft.cli.commands.fill import Fill
from weft.cli.commands.generate import Generate
from weft.cli.commands.geometry import Geometry
from weft.cli.commands.gradcheck import Gradcheck
from weft.cli.commands.import_ import Import
from weft.cli.commands.info import Info
from weft.cli.commands.init import Init
from weft.cli.commands.predict import Predict
from weft.cli.commands.probe import MinimalPairs
from weft.cli.commands.prune import Prune
from weft.cli.commands.report import Report
from weft.cli.commands.score import Score
from weft.cli.commands.similarity import Similarity
from weft.cli.commands.train import Train
from weft.cli.options import Command, GroupedHelp, ModelCommand
from weft.cli.output import print_error
from weft.cli.signals import Terminated, terminable
from weft.cli.std_streams import open_standard_files
from weft.cli.threads import set_threads
from weft.cli.usage import explain, one_line, show_error
from weft.errors import ResourceError, WeftError

SIGINT, SIGPIPE, SIGHUP = 130, 141, 129

app = typer.Typer(
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS: dict[str, type[Command]] = {
    "init": Init,
    "check": Check,
    "gradcheck": Gradcheck,
    "train": Train,
    "evaluate": Evaluate,
    "compare": Compare,
    "report": Report,
    "predict": Predict,
    "score": Score,
    "generate": Generate,
    "fill": Fill,
    "embed": Embed,
    "explain": Explain,
    "geometry": Geometry,
    "similarity": Similarity,
    "prune": Prune,
    "probe": MinimalPairs,
    "import": Import,
    "export": Export,
    "info": Info,
    "demo": Demo,
}


def _first_sentence(command: type[Command]) -> str:
    """What the list of all commands says of one: nothing is cut off."""
    text = " ".join((command.__doc__ or "").partition("\n\n")[0].split())
    return text.partition(". ")[0].partition("; ")[0].removesuffix(".")


for _name, _command in COMMANDS.items():
    app.command(_name, cls=GroupedHelp, short_help=_first_sentence(_command))(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Sequence models, from n-gram counts to Transformers, of texts and of pairs of texts: train, evaluate, score, generate
    and predict with one run file.

    Begin with weft demo, or with a run file for a task: weft init lm > run.toml, or, instead of lm, masked-lm, translate,
    classify, tag or span.
    """


@cache
def _commands() -> Any:
    """All commands and their options, made of the dataclasses once: that takes most of the time of `--help`."""
    return typer.main.get_command(app)


def _flags(words: Sequence[str]) -> set[str]:
    """The flags of the command that was called."""
    command = _commands().commands.get(words[0])
    return set() if command is None else {flag for param in command.params for flag in param.opts}


def _run(words: list[str]) -> int:
    set_threads(None)
    found: Any = _commands()(words, prog_name="weft", standalone_mode=False)
    if not isinstance(found, Command):  # help and version have been printed
        return int(found or 0)
    command: Command = found
    if isinstance(command, ModelCommand) and command.threads is not None:
        set_threads(command.threads)
    code = command.run()
    sys.stdout.flush()
    return code


def main(args: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if args is None else args) or ["--help"]
    if words[0] == "help":
        words = [*words[1:], "--help"]
    try:
        open_standard_files()
        with terminable():
            return _run(words)
    except TyperException as error:
        print_error(f"weft: error: {one_line(explain(error, COMMANDS))}")
        return 2
    except WeftError as error:
        if "--debug" in words:
            traceback.print_exc()
        print_error(f"weft: error: {show_error(error, _flags(words))}")
        return error.exit_code
    except KeyboardInterrupt:
        return SIGINT
    except Terminated as error:
        if error.exit_code == SIGHUP:  # the terminal is gone, and what was meant for it
            _drop_output()
        return error.exit_code
    except BrokenPipeError:  # whoever read our output has seen enough
        _drop_output()
        return SIGPIPE
    except (OSError, MemoryError, RuntimeError) as error:
        line = _resources(error)
        if line is None:
            raise
        if "--debug" in words:
            traceback.print_exc()
        _drop_output()
        print_error(f"weft: error: {one_line(line)}")
        return ResourceError.exit_code


def _drop_output() -> None:
    """What could not be written can't be written at exit either, and Python would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _resources(error: Exception) -> str | None:
    """What the machine refused, in words; None where the fault is our own."""
    if isinstance(error, OSError):
        where = "input or output" if error.filename is None else os.fsdecode(error.filename)
        return None if error.strerror is None else f"{where}: {error.strerror}"
    # torch has no type of its own for a computer's memory
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "t allocate memory" in str(error):
        return "memory: there is not enough for this; make the text, the batch or the model smaller"
    return None


if __name__ == "__main__":
    sys.exit(main())
