"""Formats of other programs, as the command line names them."""

from __future__ import annotations

from weft.errors import UsageError, suggest

FORMATS = ("hf", "arpa")


def formats() -> list[str]:
    return list(FORMATS)


def check_format(name: str) -> None:
    if name not in FORMATS:
        raise UsageError("", f"no such format {name!r}", suggest(name, FORMATS))
