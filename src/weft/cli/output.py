"""Results on standard output, messages on standard error; formats of numbers, durations and sizes."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

from weft.errors import UsageError

Level = Literal["error", "warning", "note"]
Style = Literal["", "bold", "dim", "green", "red", "yellow"]

# C0 except tab and newline, DEL, C1, and all bidirectional controls of Unicode
_CONTROL_CHARS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_BYTES = re.compile("([\udc80-\udcff]+)")  # surrogate escapes of bytes that are not text

_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33}
_LEVEL_STYLES: dict[Level, Style] = {"error": "red", "warning": "yellow", "note": "dim"}


def check_files(paths: Mapping[str, Path | None], *, new_dir: Path | None = None) -> None:
    """Refuse output files (by option) that cannot be written, before any work. The command itself creates `new_dir`."""
    options = dict[Path, str]()
    for option, path in paths.items():
        if path is None or str(path) == "-":
            continue
        if path.is_dir():
            raise UsageError(option, f"{path} is a directory", "name a file")
        if not (path.parent.is_dir() or (new_dir is not None and path.parent.absolute() == new_dir.absolute())):
            raise UsageError(option, f"directory {path.parent} does not exist")
        if (other := options.setdefault(path.absolute(), option)) != option:
            raise UsageError(f"{other} and {option}", f"both name {path}", "use two files")


def terminal_width() -> int | None:
    """The number of columns of standard output; None if it is not a terminal."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else None


def finite(value: float | None) -> float | None:
    """A number that JSON can represent: null for infinity and NaN."""
    return value if value is not None and math.isfinite(value) else None


def escape_control_chars(text: str) -> str:
    """Escape control characters except tab and newline, and characters that change the direction of text. Labels, names and
    paths come from files that anybody may have written. The escapes are JSON's, so JSON remains valid."""
    return text if _CONTROL_CHARS.search(text) is None else _CONTROL_CHARS.sub(lambda char: f"\\u{ord(char[0]):04x}", text)


# ---- color


def has_color(stream: TextIO) -> bool:
    """Whether text on the stream may be colored: on a terminal, unless NO_COLOR is set."""
    return stream.isatty() and os.environ.get("TERM") not in (None, "dumb") and not os.environ.get("NO_COLOR")


def styled(text: str, style: Style, stream: TextIO) -> str:
    """`text` with the codes of a style, if the stream has color; control characters of the text itself are escaped."""
    if not style or not has_color(stream):
        return text
    return f"\x1b[{_CODES[style]}m{escape_control_chars(text)}\x1b[0m"


# ---- standard output


def write(text: str) -> None:
    """Write to standard output. On a terminal, control characters are escaped. Characters that the encoding lacks are escaped
    as well, so that no result is lost."""
    if sys.stdout.isatty():
        text = escape_control_chars(text)
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def write_styled(lines: Iterable[tuple[str, Style]]) -> None:
    """Write lines to standard output, each in its style if it is a terminal."""
    for line, style in lines:
        if style and has_color(sys.stdout):
            encoding = sys.stdout.encoding or "utf-8"
            sys.stdout.write(styled(line, style, sys.stdout).encode(encoding, "backslashreplace").decode(encoding) + "\n")
        else:
            write(f"{line}\n")


def write_table(table: str) -> None:
    """Write an aligned table whose first line is its header."""
    head, *rows = table.removesuffix("\n").split("\n")
    write_styled([(head, "bold"), *((row, "") for row in rows)])


def write_exact(text: str) -> None:
    """Write parts of a file: like `write`, but surrogate escapes are written as the bytes they represent, unless standard
    output is a terminal."""
    if _BYTES.search(text) is None or sys.stdout.isatty() or not isinstance(sys.stdout, io.TextIOWrapper):
        write(text)
        return
    encoding = sys.stdout.encoding or "utf-8"
    parts = [
        part.encode("utf-8", "surrogateescape") if index % 2 else part.encode(encoding, "backslashreplace")
        for index, part in enumerate(_BYTES.split(text))
    ]
    sys.stdout.flush()
    sys.stdout.buffer.write(b"".join(parts))


def write_json(value: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write a JSON value; without indent, as one line of JSON Lines."""
    write(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent) + "\n")


# ---- standard error


def print_error(text: str, stream: TextIO | None = None, style: Style = "") -> None:
    """Print a line to standard error. Errors are ignored: the work matters more than the message."""
    stream = stream or sys.stderr
    try:
        print(styled(escape_control_chars(text), style, stream), file=stream, flush=True)
    except BrokenPipeError:
        raise  # the reader has closed the stream
    except OSError:  # for example, a log on a full disk
        pass


def print_message(level: Level, text: str) -> None:
    """Print 'weft: error: text' to standard error."""
    try:
        prefix = f"weft: {styled(level, _LEVEL_STYLES[level], sys.stderr)}: "
        print(prefix + escape_control_chars(text), file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        pass


def warn(text: str, *, quiet: bool = False) -> None:
    """Print 'weft: warning: text', unless quiet."""
    if not quiet:
        print_message("warning", text)


def note(text: str, *, quiet: bool) -> None:
    """Print 'weft: note: text', unless quiet."""
    if not quiet:
        print_message("note", text)


def status(text: str, *, quiet: bool, style: Style = "") -> None:
    """Print a status line, unless quiet."""
    if not quiet:
        print_error(text, style=style)


# ---- formats


def format_duration(seconds: float) -> str:
    """8.2 -> '8s', 85 -> '1m25s', 7500 -> '2h05m'."""
    rounded = max(0, round(seconds))
    if rounded < 60:
        return f"{rounded}s"
    if rounded < 3600:
        return f"{rounded // 60}m{rounded % 60:02d}s"
    minutes = round(rounded / 60)
    return f"{minutes // 60}h{minutes % 60:02d}m"


def format_short_duration(seconds: float) -> str:
    """Like `format_duration`, with one decimal below ten seconds: 4.25 -> '4.2s'."""
    return f"{seconds:.1f}s" if seconds < 9.95 else format_duration(seconds)


def format_count(count: float) -> str:
    """A large count in a table: 2,913 -> '2.9k', 3178281 -> '3.18M'; below 1,000 all digits."""
    for factor, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= factor * 0.9995:
            short = count / factor
            digits = (1 if suffix == "k" else 2) if short < 99.95 else 0
            return f"{short:.{digits}f}{suffix}"
    return f"{count:.0f}"


def format_percent(fraction: float) -> str:
    """0.05 -> '5%', 0.125 -> '12.5%'."""
    return f"{100 * fraction:.1f}".removesuffix(".0") + "%"


def pluralize(count: int, noun: str) -> str:
    """'1 line', '2 lines'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
