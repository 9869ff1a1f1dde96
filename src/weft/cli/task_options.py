"""Flags of a command that serves every task: each task accepts some of them."""

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
    name: str = ""  # of the flag, if it differs from that of the option


def options_of(config_class: type[T], task: str, flags: Mapping[str, Flag]) -> T:
    """The task's options from the flags of a command; a flag that is set but not available for the task is refused."""
    for option, flag in flags.items():
        if option not in config_class.model_fields and flag.value != flag.default:
            raise UsageError(f"--{flag.name or option.replace('_', '-')}", f"not available for task {task!r}")
    return config_class(**{option: flag.value for option, flag in flags.items() if option in config_class.model_fields})
