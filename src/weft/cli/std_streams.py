"""Standard input, output and error, even if the caller has closed some of them."""

from __future__ import annotations

import os
import sys


def open_standard_files() -> None:
    """Open the null device for each closed stream: the next file opened would take its number and be overwritten.

    Standard output is opened for reading only: a result that nobody can receive is an error, not a success.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number: this one
    # Python uses None for a stream that was closed at its start
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
