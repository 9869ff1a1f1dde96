"""HTML tables for results in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(column_names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; the text of cells is escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in column_names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
