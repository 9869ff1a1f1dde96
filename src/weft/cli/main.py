"""`weft`: the command line. Results go to standard output, all else to standard error; an error is one line."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from weft import __version__
from weft.cli.demo import Demo
from weft.cli.evaluate import Evaluate
from weft.cli.generate import Generate
from weft.cli.info import Info
from weft.cli.init import Init
from weft.cli.options import Bare, OwnFirst, Shared
from weft.cli.score import Score
from weft.cli.threads import set_threads
from weft.cli.train import Train
from weft.cli.usage import explain, one_line
from weft.errors import WeftError

SIGINT, SIGPIPE = 130, 141

app = typer.Typer(
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS: dict[str, type[Bare]] = {
    "init": Init,
    "train": Train,
    "evaluate": Evaluate,
    "score": Score,
    "generate": Generate,
    "info": Info,
    "demo": Demo,
}
for _name, _command in COMMANDS.items():
    app.command(_name, cls=OwnFirst)(_command)


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
    """Sequence models, from n-gram counts to Transformers: train, evaluate, score and generate with one run file.

    Begin with: weft init lm > run.toml
    """


def _run(words: list[str]) -> int:
    set_threads(None)
    found: Any = app(words, prog_name="weft", standalone_mode=False)
    if not isinstance(found, Bare):  # help and version have been printed
        return int(found or 0)
    command: Bare = found
    if isinstance(command, Shared) and command.threads is not None:
        set_threads(command.threads)
    code = command.run()
    sys.stdout.flush()
    return code


def main(args: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if args is None else args) or ["--help"]
    try:
        return _run(words)
    except TyperException as error:
        print(f"weft: {one_line(explain(error, COMMANDS))}", file=sys.stderr)
        return 2
    except WeftError as error:
        if "--debug" in words:
            traceback.print_exc()
        print(f"weft: {one_line(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return SIGINT
    except BrokenPipeError:
        # whoever read our output has seen enough; Python would complain when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return SIGPIPE


if __name__ == "__main__":
    sys.exit(main())
