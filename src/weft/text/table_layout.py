"""Layout of tables and texts for a terminal, where some characters take two columns and combining marks none."""

from __future__ import annotations

from collections.abc import Container, Sequence


def display_width(text: str) -> int:
    """Number of terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # imported here, because most commands do not need it

    return cell_len(text)


def align(rows: Sequence[Sequence[str]], *, left: Container[int] = (0,)) -> list[str]:
    """Lines of a table, with the columns in `left` left-aligned and all others right-aligned."""
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
    """A table with the first `left` columns left-aligned and all others right-aligned."""
    return "".join(f"{line}\n" for line in align(rows, left=range(left)))


def wrap(head: str, text: str, width: int) -> str:
    """Wrap a text to lines of at most `width` columns; a longer word gets its own line. The first line starts with `head`, and
    the others are indented by its width."""
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
    """Replace newlines and NUL with escapes."""
    return text.replace("\n", "\\n").replace("\0", "\\0")
