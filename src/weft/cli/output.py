"""Results on standard output, in a form for people or for programs."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from weft.errors import UsageError

# C0 but tab and newline, DEL, C1, and all that Unicode counts as bidirectional controls
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_BYTES = re.compile("([\udc80-\udcff]+)")  # what stands for bytes that are no text


def check_files(named: Mapping[str, Path | None], *, will_be: Path | None = None) -> None:
    """Refuse files, by option, that can't be written, before any work is done; `will_be` is a folder that the work makes."""
    told = dict[Path, str]()
    for option, path in named.items():
        if path is None or str(path) == "-":
            continue
        if path.is_dir():
            raise UsageError(option, f"{path} is a folder", "name a file")
        if not (path.parent.is_dir() or (will_be is not None and path.parent.absolute() == will_be.absolute())):
            raise UsageError(option, f"{path}: there is no folder {path.parent} to write it into", "make it first")
        if (other := told.setdefault(path.absolute(), option)) != option:
            raise UsageError(f"{other} and {option}", f"both name {path}", "give each a file of its own")


def terminal_width() -> int | None:
    """How many columns a line of standard output may have; None where it is no terminal."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else None


def finite(value: float | None) -> float | None:
    """A number as JSON can hold it: null where it is none, or infinite."""
    return value if value is not None and math.isfinite(value) else None


def escape_control_chars(text: str) -> str:
    """`text` for a terminal: control characters but tab and newline, and those that turn the direction of text, as escapes.
    Labels, names and paths come from files that anybody may have written. The escapes are JSON's, so JSON stays what it is."""
    return text if _COMMANDS.search(text) is None else _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write(text: str) -> None:
    """To standard output: exact, unless that is a terminal; what it can't encode as escapes, for a result is never lost to a
    terminal's code page."""
    if sys.stdout.isatty():
        text = escape_control_chars(text)
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def write_exact(text: str) -> None:
    """The same with parts of a file that was read: bytes that are no text, which stand there as surrogates, are written as they
    were, unless that is to a terminal."""
    if _BYTES.search(text) is None or sys.stdout.isatty() or not isinstance(sys.stdout, io.TextIOWrapper):
        write(text)
        return
    encoding = sys.stdout.encoding or "utf-8"
    parts = [
        part.encode("utf-8", "surrogateescape") if at % 2 else part.encode(encoding, "backslashreplace")
        for at, part in enumerate(_BYTES.split(text))
    ]
    sys.stdout.flush()
    sys.stdout.buffer.write(b"".join(parts))


def write_json(value: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """One JSON value; without indent one line of JSONL."""
    write(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent) + "\n")


def print_error(text: str, stream: TextIO | None = None) -> None:
    """A line to standard error; one that can't be written is lost, for work is worth more than the word of it."""
    try:
        print(escape_control_chars(text), file=stream or sys.stderr, flush=True)
    except BrokenPipeError:
        raise  # whoever looked on has gone
    except OSError:  # a log on a full disk
        pass


def note(text: str, *, quiet: bool) -> None:
    """To standard error, unless only errors are wanted."""
    if not quiet:
        print_error(text)


def format_number(value: float) -> str:
    """Four decimals; of large numbers, fewer."""
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"


def format_duration(seconds: float) -> str:
    """75.2 -> '1:15', 3700 -> '1:01:40'."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def score_name(name: str) -> str:
    """loss -> nats/token."""
    return name.replace("_per_", "/").replace("_", " ")
