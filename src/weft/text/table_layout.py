"""Rows and texts as lines for a terminal, which gives some letters two places and marks none."""

from __future__ import annotations

from collections.abc import Container, Sequence


def display_width(text: str) -> int:
    """How many places of a terminal, or of a font whose letters are all as wide, a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # which most commands do without

    return cell_len(text)


def align(rows: Sequence[Sequence[str]], *, left: Container[int] = (0,)) -> list[str]:
    """The rows as lines: the columns numbered in `left` flush left, the others flush right."""
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        gaps = [" " * (width - display_width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [cell + gap if at in left else gap + cell for at, (cell, gap) in enumerate(zip(row, gaps, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def columns(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Rows as aligned lines: the first `left` columns flush left, the others flush right."""
    return "".join(f"{line}\n" for line in align(rows, left=range(left)))


def wrap(head: str, text: str, width: int) -> str:
    """The words of a text in lines of at most so many places, a longer word on a line of its own; the first line begins with
    `head`, the others with as much room."""
    lines, room = list[str](), " " * display_width(head)
    for word in text.split():
        if lines and display_width(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append((room if lines else head) + word)
    return "\n".join(lines)


def count_of(count: int, item: str) -> str:
    """'1 line', '53 blocks of about 100 bytes'."""
    noun, _, rest = item.partition(" ")
    return f"{count:,} {noun}{'' if count == 1 else 's'}{' ' if rest else ''}{rest}"


def on_one_line(text: str) -> str:
    """An output as a line: a newline in it, or what no line can hold, as an escape."""
    return text.replace("\n", "\\n").replace("\0", "\\0")
