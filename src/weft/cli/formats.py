"""Model formats of other programs, as the command line names them."""

from __future__ import annotations

from weft.errors import UsageError, unknown_name

FORMATS = ("hf", "arpa", "vectors", "onnx")


def formats() -> list[str]:
    return list(FORMATS)


def check_format(name: str) -> None:
    if name not in FORMATS:
        raise UsageError("format", *unknown_name("format", name, FORMATS))
