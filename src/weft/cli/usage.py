"""Command-line errors on one line, with the nearest valid name."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import SequenceMatcher
from typing import Any, Protocol, runtime_checkable

from typer.exceptions import TyperException

from weft.errors import SYNONYMS, WeftError, synonym, unknown_name
from weft.tasks.registry import TASKS

# options of the run file that people look for on the command line
RUN_FILE_OPTIONS = {
    **{
        name: f"train.{name}"
        for name in ("max_steps", "max_tokens", "max_epochs", "max_minutes", "lr", "batch_tokens", "patience")
    },
    **{
        name: f"train.{name}"
        for name in ("optimizer", "weight_decay", "warmup_ratio", "max_grad_norm", "micro_batches", "device")
    },
    **{name: f"model.{name}" for name in ("hidden_size", "num_layers", "num_heads", "dropout", "arch")},
    "seed": "seed",
}
# flags whose names differ from those of the options that they set
FLAGS = {
    "banned_tokens": "--ban-token",
    "return_alignments": "--save-alignments",
    "alignments": "--save-alignments",
    "weights": "--ensemble-weights",
}
DELETING_FLAGS = ("--overwrite",)  # suggested only if misspelled, never as a synonym
MIN_SIMILARITY = 0.78  # of a misspelling such as --overwirte


@runtime_checkable
class InCommand(Protocol):
    """An exception of typer about a command that it has recognized; typer's own class is not public."""

    ctx: Any  # typer's context; None before a command is known


@runtime_checkable
class AboutOption(Protocol):
    """An exception of typer about one option."""

    option_name: str


def one_line(text: str) -> str:
    """Escape all characters, e.g. of a file name, that could end the line or control the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def show_error(error: WeftError, flags: Collection[str]) -> str:
    """The message of an error with flags instead of options: `top_p` becomes --top-p if the command has that flag."""

    def flag(match: re.Match[str]) -> str:
        name = _flag(match[1])
        return name if name in flags else match[1]

    location = re.sub(r"(?:^|(?<= and ))`?([a-z][a-z_]*)`?(?= |$)", flag, error.where)
    texts = [re.sub("`([a-z][a-z_]*)`", flag, text) for text in (error.problem, error.fix)]
    return one_line("; ".join(filter(None, (": ".join(filter(None, (location, texts[0]))), texts[1]))))


def _flag(option: str) -> str:
    return FLAGS.get(option, f"--{option.replace('_', '-')}")


def with_flags(text: str) -> str:
    """A message of the library with flags instead of options: `top_p` becomes --top-p."""
    return re.sub("`([a-z][a-z_]*)`", lambda match: _flag(match[1]), text)


def explain(error: TyperException, commands: Collection[str]) -> str:
    """A message for an error that typer reports about a command line."""
    text, context = error.format_message(), error.ctx if isinstance(error, InCommand) else None
    path = "" if context is None or context.parent is None else context.command_path.partition(" ")[2]
    prefix, fix = f"{path}: " if path else "", f"see weft {path + ' ' if path else ''}--help"
    if unknown := re.match(r"No such command '(.*?)'", text):
        names = [*commands, "--version"] if context is None or not path else list(context.command.commands)
        problem, suggestion = unknown_name("command", unknown[1], names)
        return f"{prefix}{problem}; {suggestion or fix}"
    if text.startswith("No such option"):
        problem = _unknown_option(error, context)
        return f"{prefix}{problem}" if problem.endswith("?") else f"{prefix}{problem}; {fix}"
    if extra := re.match(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", text, re.DOTALL):
        return f"{prefix}unexpected argument {extra[1]!r}; {_extra_argument_fix(context) or fix}"
    if text.startswith("Missing argument 'TASK'"):
        return f"{prefix}missing argument 'TASK'; choose from {', '.join(TASKS)}"
    if invalid := re.match(r"Invalid value for '(.*?)': (.*)", text, re.DOTALL):
        option = invalid[1].rpartition(" / ")[2]  # of '-o' / '--output' the long name
        return f"{option}: {_lower_first(invalid[2].replace('Input should', 'must')).rstrip('.')}; {fix}"
    return f"{prefix}{_lower_first(text).rstrip('.')}; {fix}"


def _extra_argument_fix(context: Any) -> str:
    """What to do about an argument too many: a text of several words needs quotes, and data files need a flag."""
    names = {param.name for param in context.command.params}
    if "text" in names or "prompt" in names:
        return "quote a text that has spaces, and pass several texts on standard input, one per line"
    if "input" in names:
        return "use --input for a file, or pass the text on standard input"
    return "use --data for data files" if "data" in names else ""


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _unknown_option(error: TyperException, context: Any) -> str:
    name = error.option_name if isinstance(error, AboutOption) else ""
    flags = [] if context is None else [flag for param in context.command.params for flag in param.opts]
    plain = name.lstrip("-").replace("-", "_")
    names = (plain, *SYNONYMS.get(plain, ()))
    option = next((RUN_FILE_OPTIONS[name] for name in names if name in RUN_FILE_OPTIONS), None)
    if option is not None and "--set" in flags:
        return f"unknown option {name!r}; did you mean '--set {option}=...'?"
    if option is not None and synonym(name, flags) is None:
        return f"unknown option {name!r}; it is an option of the run file: weft train RUN.TOML --set {option}=..."
    # suggest only similar flags: the whole list would fill the screen
    long = [flag for flag in flags if flag.startswith("--") or not name.startswith("--")]
    safe = [flag for flag in long if flag not in DELETING_FLAGS or _is_misspelling(name, flag)]
    return "; ".join(filter(None, unknown_name("option", name, safe)))


def _is_misspelling(name: str, flag: str) -> bool:
    similarity = SequenceMatcher(None, name.lstrip("-"), flag.lstrip("-")).ratio()
    return synonym(name, [flag]) is not None or similarity >= MIN_SIMILARITY
