"""Model formats of other programs, as the command line names them."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import UsageError, unknown_name

FORMATS = ("hf", "arpa", "vectors")
EXPORT_FORMATS = (*FORMATS, "ctranslate2", "onnx")


def formats() -> list[str]:
    return list(FORMATS)


def export_formats() -> list[str]:
    return list(EXPORT_FORMATS)


def check_format(name: str, known: Sequence[str] = FORMATS) -> None:
    if name not in known:
        raise UsageError("format", *unknown_name("format", name, known))
