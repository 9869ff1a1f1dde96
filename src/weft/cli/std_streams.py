"""Standard input, output and error, whatever the caller has closed of them."""

from __future__ import annotations

import os
import sys


def open_standard_files() -> None:
    """Put the null device where one is closed: the next file opened would take its number, and be written over.

    Closed output can be opened, but not written to: a result that nobody can get is an error, not a success.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free: this one
    # Python has None for what was closed when it started
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
