"""Flags of a command that serves every task: which of them a task has, and which it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from weft.config import Config
from weft.errors import UsageError

T = TypeVar("T", bound=Config)


class Flag(NamedTuple):
    """What was given on the command line, and what stands there if nothing was."""

    value: Any
    default: Any = None
    name: str = ""  # as the command line spells it, where that differs from the option


def options_of(table: type[T], task: str, flags: Mapping[str, Flag]) -> T:
    """The options of a task among the flags of a command; one that was given and is none of them is refused."""
    for option, flag in flags.items():
        if option not in table.model_fields and flag.value != flag.default:
            raise UsageError(f"--{flag.name or option.replace('_', '-')}", f"not available for task {task!r}")
    return table(**{option: flag.value for option, flag in flags.items() if option in table.model_fields})
