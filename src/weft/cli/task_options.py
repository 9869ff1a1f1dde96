"""Flags of a command that serves every task: a task accepts some of them and refuses the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from weft.config import Config
from weft.errors import UsageError

T = TypeVar("T", bound=Config)


class Flag(NamedTuple):
    """The value on the command line, and the default."""

    value: Any
    default: Any = None
    name: str = ""  # of the flag, if it differs from the option's


def options_of(table: type[T], task: str, flags: Mapping[str, Flag]) -> T:
    """The task's options from the flags of a command; refuse a flag that is set and not one of them."""
    for option, flag in flags.items():
        if option not in table.model_fields and flag.value != flag.default:
            raise UsageError(f"--{flag.name or option.replace('_', '-')}", f"not available for task {task!r}")
    return table(**{option: flag.value for option, flag in flags.items() if option in table.model_fields})
