"""Model formats of other programs that `weft import` reads."""

from __future__ import annotations

from weft.errors import UsageError, unknown_name

FORMATS = ("hf", "arpa", "vectors")


def formats() -> list[str]:
    return list(FORMATS)


def check_format(name: str) -> None:
    if name not in FORMATS:
        raise UsageError("format", *unknown_name("format", name, FORMATS))
