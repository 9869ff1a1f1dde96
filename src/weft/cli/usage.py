"""A wrong command line, explained in one line that names the nearest right word."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import SequenceMatcher
from typing import Any, Protocol, runtime_checkable

from typer.exceptions import TyperException

from weft.errors import SYNONYMS, WeftError, synonym, unknown_name

# options of the run file that people look for on the command line
SETTINGS = {
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
DELETES = ("--overwrite",)  # never suggested for what merely looks a little like it
LIKE = 0.78  # as like as --frehs


@runtime_checkable
class InCommand(Protocol):
    """What typer raises about a command line that it began to read; its own class of it is not public."""

    ctx: Any  # typer's context; None before a command is known


@runtime_checkable
class AboutOption(Protocol):
    """What typer raises about one option."""

    option_name: str


def one_line(text: str) -> str:
    """`text` such that nothing a file name holds can end the line, or command the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def show_error(error: WeftError, flags: Collection[str]) -> str:
    """An error in the words of the command line: `top_p` is --top-p where the command has that flag."""

    def flag(match: re.Match[str]) -> str:
        name = f"--{match[1].replace('_', '-')}"
        return name if name in flags else match[1]

    where = re.sub(r"^([a-z_]+)$", flag, error.where)
    texts = [re.sub("`([a-z_]+)`", flag, text) for text in (error.problem, error.fix)]
    return one_line("; ".join(filter(None, (": ".join(filter(None, (where, texts[0]))), texts[1]))))


def explain(error: TyperException, commands: Collection[str]) -> str:
    """What typer found wrong."""
    text, context = error.format_message(), error.ctx if isinstance(error, InCommand) else None
    if unknown := re.match(r"No such command '(.*?)'", text):
        return "; ".join(filter(None, unknown_name("command", unknown[1], commands)))
    command = "" if context is None or context.parent is None else f"{context.info_name} "
    place, fix = command and f"{command.rstrip()}: ", f" see weft {command}--help"
    if text.startswith("No such option"):
        return f"{place}{_option(error, context)}{fix}"
    if bad := re.match(r"Invalid value for '(.*?)': (.*)", text, re.DOTALL):
        return f"{place}{bad[1]}: {bad[2].replace('Input should', 'must').rstrip('.')};{fix}"
    return f"{place}{text[:1].lower()}{text[1:].rstrip('.')};{fix}"


def _option(error: TyperException, context: Any) -> str:
    name = error.option_name if isinstance(error, AboutOption) else ""
    known = [] if context is None else [flag for param in context.command.params for flag in param.opts]
    plain = name.lstrip("-").replace("-", "_")
    setting = next((SETTINGS[one] for one in (plain, *SYNONYMS.get(plain, ())) if one in SETTINGS), None)
    if setting is not None and "--set" in known:
        return f"unknown option {name!r}; did you mean '--set {setting}=...'?"
    if setting is not None and synonym(name, known) is None:
        return f"unknown option {name!r}; it is set in training: weft train RUN.TOML --set {setting}=...;"
    # all options would fill the screen: the nearest will do
    safe = [flag for flag in known if flag not in DELETES or _is_like(name, flag)]
    return "; ".join(filter(None, unknown_name("option", name, safe)))


def _is_like(name: str, flag: str) -> bool:
    return synonym(name, [flag]) is not None or SequenceMatcher(None, name.lstrip("-"), flag.lstrip("-")).ratio() >= LIKE
