"""Everything weft raises on purpose. One line each: where, what was seen, what to do.

WeftError               1  anything below; also a failure that fits none of them
├── UsageError          2  a wrong command line, call or option value
│   └── ConfigError     2  a run file that can't be right
├── DataError           3  text or data that can't be used
├── ModelError          4  a run folder or model file that is damaged, of another version, or does not fit
│   └── LogError        4  a log of a run that is damaged
├── ResourceError       5  memory, disk, or a folder in use
│   └── InUseError      5  another process holds the folder
└── DivergedError       6  the loss, a gradient or a weight became NaN or Inf

The number is the exit code of the command line; signals give 129 (SIGHUP), 130 (SIGINT) and 143 (SIGTERM).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WeftError(Exception):
    exit_code = 1


class UsageError(WeftError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class DataError(WeftError):
    exit_code = 3


class ModelError(WeftError):
    exit_code = 4


class LogError(ModelError):
    pass


class ResourceError(WeftError):
    exit_code = 5


class InUseError(ResourceError):
    pass


class DivergedError(WeftError):
    exit_code = 6


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean 'x'? known: x, y', the part of a message that helps whoever misspelt a name."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{hint} known: {', '.join(names)}"
