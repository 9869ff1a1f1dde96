"""The formats that a model can be exported to, as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.text.table_layout import wrap


def export_lines(problems: Mapping[str, Sequence[str]], width: int, *, indent: int = 0) -> list[str]:
    """One line per format, "yes" or "no" with the reasons, which continue below themselves."""
    longest = max(map(len, problems))
    lines = list[str]()
    for name, found in problems.items():
        head = f"{'':<{indent}}{name:<{longest}}  "
        text = f"no: {'; '.join(found)}" if found else "yes"
        lines += wrap(head, text, width).removesuffix("\n").split("\n")
    return lines
