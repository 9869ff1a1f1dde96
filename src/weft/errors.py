"""Everything weft raises on purpose. One line each: where, what was seen, what to do.

WeftError               1  anything below; also a failure that fits none of them
├── UsageError          2  a wrong command line, call or option value
│   └── ConfigError     2  a run file that can't be right
├── DataError           3  text or data that can't be used
├── ModelError          4  a run folder or model file that is damaged, of another version, or does not fit
├── ResourceError       5  memory, disk, or a folder in use
│   └── InUseError      5  another process holds the folder
└── DivergedError       6  the loss or a gradient became NaN or Inf

The number is the exit code of the command line; signals give 130 (SIGINT) and 143 (SIGTERM).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WeftError(Exception):
    exit_code = 1


class UsageError(WeftError):
    exit_code = 2


class ConfigError(UsageError):
    """`option` is the dotted name of what is wrong, where that is one option; what decides by an error looks at its fields,
    never at its words."""

    def __init__(self, text: str, *, option: str = "", unknown: bool = False, near: bool = False) -> None:
        super().__init__(text)
        self.option = option
        self.unknown = unknown  # there is no option of that name
        self.near = near  # but one of a like name

    @property
    def reason(self) -> str:
        """What is wrong, without the option's name."""
        return str(self).removeprefix(f"{self.option}: ") if self.option else str(self)


class DataError(WeftError):
    exit_code = 3


class ModelError(WeftError):
    exit_code = 4


class ResourceError(WeftError):
    exit_code = 5


class InUseError(ResourceError):
    pass


class DivergedError(WeftError):
    exit_code = 6


def close(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like one that is not known, if any is."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)), None)


def unknown_option(place: str, name: str, known: Iterable[str]) -> ConfigError:
    """The refusal of `name` in the table `place`, which has the options `known`."""
    names, option = list(known), f"{place}.{name}" if place else name
    text = f"{option}: no such option{nearest(name, names)}"
    return ConfigError(text, option=option, unknown=True, near=close(name, names) is not None)


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean 'x'? known: x, y', the part of a message that helps whoever misspelt a name."""
    names = list(known)
    found = close(name, names)
    hint = f"; did you mean {found!r}?" if found is not None else ";"
    return f"{hint} known: {', '.join(names)}"
