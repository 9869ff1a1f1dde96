"""Lay out tables and texts for a terminal, where some characters take two columns and combining marks none."""

from __future__ import annotations

from collections.abc import Container, Sequence


def display_width(text: str) -> int:
    """The number of columns that a text takes in a monospaced font."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # imported late: most commands do not need it

    return cell_len(text)


def align(rows: Sequence[Sequence[str]], *, left: Container[int] = (0,)) -> list[str]:
    """Rows as aligned lines: the columns in `left` left-aligned, all others right-aligned."""
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padding = [" " * (width - display_width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [
            cell + spaces if column in left else spaces + cell
            for column, (cell, spaces) in enumerate(zip(row, padding, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def columns(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Rows as an aligned table: the first `left` columns left-aligned, all others right-aligned."""
    return "".join(f"{line}\n" for line in align(rows, left=range(left)))


def wrap(head: str, text: str, width: int) -> str:
    """Wrap a text to lines of at most `width` columns; a longer word gets its own line. The first line starts with `head`, the
    others are indented to match."""
    lines, indent = list[str](), " " * display_width(head)
    for word in text.split():
        if lines and display_width(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append((indent if lines else head) + word)
    return "\n".join(lines)


def count_of(count: int, item: str) -> str:
    """'1 line', '53 blocks of about 100 bytes'."""
    noun, _, rest = item.partition(" ")
    return f"{count:,} {noun}{'' if count == 1 else 's'}{' ' if rest else ''}{rest}"


def on_one_line(text: str) -> str:
    """An output on one line: newlines and NUL as escapes."""
    return text.replace("\n", "\\n").replace("\0", "\\0")
