"""The live line on standard error: on a terminal one that is drawn over, elsewhere a plain one now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from weft.cli.output import escape_control_chars, format_duration, print_error

if TYPE_CHECKING:
    from rich.live import Live

DRAW_SECONDS = 0.2  # seconds between two drawings
LOG_SECONDS = 10.0  # seconds between two plain lines


def is_live(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") not in (None, "dumb")


class Display:
    """Shows how far work has come; use it as a context, so that the terminal is left as it was."""

    def __init__(
        self, *, quiet: bool = False, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream, self.quiet, self.clock = stream or sys.stderr, quiet, clock
        self.live = not quiet and is_live(self.stream)
        self._drawing: Live | None = None
        self._what, self._began, self._first, self._shown = "", 0.0, 0.0, 0.0

    def __enter__(self) -> Display:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.clear()

    def line(self, text: str) -> None:
        """A line that stays, above the live one."""
        if self.quiet:
            return
        if self._drawing is None:
            print_error(text, self.stream)
            return
        with self._losing():
            self._drawing.console.print(escape_control_chars(text), markup=False, highlight=False, soft_wrap=True)

    def clear(self) -> None:
        """The work that was shown is over."""
        drawing, self._drawing, self._what = self._drawing, None, ""
        if drawing is not None:
            with self._losing():
                drawing.stop()

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Once the terminal is gone nothing more is drawn: work is worth more than the sight of it."""
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError:
            self._drawing, self.quiet = None, True

    def show(self, phase: str, fraction: float, detail: str = "") -> None:
        """`share` of the work called `what` is done; a new name is new work, with an ETA of its own."""
        if self.quiet:
            return
        now = self.clock()
        if phase != self._what:
            self.clear()
            # drawn at once, for what follows may take its time; said only of what does take time
            self._what, self._began, self._first, self._shown = phase, now, fraction, now - DRAW_SECONDS if self.live else now
        if now - self._shown < (DRAW_SECONDS if self.live else LOG_SECONDS):
            return
        self._shown = now
        parts = [phase, f"{min(fraction, 1.0):4.0%}", detail, self._eta(fraction, now)]
        text = "  ".join(part for part in parts if part)
        if self.live:
            with self._losing():
                self._draw(fraction, escape_control_chars(text))
        else:
            print_error(text, self.stream)

    def _eta(self, fraction: float, now: float) -> str:
        # what an earlier process did took none of this one's time
        gained = fraction - self._first
        return f"ETA {format_duration((now - self._began) * (1 - fraction) / gained)}" if gained > 0 else ""

    def _draw(self, fraction: float, text: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if self._drawing is None:
            console = Console(file=self.stream)
            self._drawing = Live(console=console, auto_refresh=False, transient=True)
            self._drawing.start()
        row = Table.grid(padding=(0, 1))
        if self._drawing.console.width >= 80:
            row.add_row(
                ProgressBar(total=1.0, completed=min(fraction, 1.0), width=16),
                Text(text, no_wrap=True, overflow="ellipsis"),
            )
        else:
            row.add_row(Text(text, no_wrap=True, overflow="ellipsis"))
        self._drawing.update(row, refresh=True)
