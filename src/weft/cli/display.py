"""The live line on standard error: on a terminal one that is drawn over, elsewhere a plain one now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from weft.cli.output import duration, harmless, say

if TYPE_CHECKING:
    from rich.live import Live

DRAWN = 0.2  # seconds between two drawings
SAID = 10.0  # seconds between two plain lines


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
            say(text, self.stream)
            return
        with self._losing():
            self._drawing.console.print(harmless(text), markup=False, highlight=False, soft_wrap=True)

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

    def show(self, what: str, share: float, detail: str = "") -> None:
        """`share` of the work called `what` is done; a new name is new work, with an ETA of its own."""
        if self.quiet:
            return
        now = self.clock()
        if what != self._what:
            self.clear()
            # drawn at once, for what follows may take its time; said only of what does take time
            self._what, self._began, self._first, self._shown = what, now, share, now - DRAWN if self.live else now
        if now - self._shown < (DRAWN if self.live else SAID):
            return
        self._shown = now
        parts = [what, f"{min(share, 1.0):4.0%}", detail, self._eta(share, now)]
        text = "  ".join(part for part in parts if part)
        if self.live:
            with self._losing():
                self._draw(share, harmless(text))
        else:
            say(text, self.stream)

    def _eta(self, share: float, now: float) -> str:
        # what an earlier process did took none of this one's time
        gained = share - self._first
        return f"ETA {duration((now - self._began) * (1 - share) / gained)}" if gained > 0 else ""

    def _draw(self, share: float, text: str) -> None:
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
                ProgressBar(total=1.0, completed=min(share, 1.0), width=16),
                Text(text, no_wrap=True, overflow="ellipsis"),
            )
        else:
            row.add_row(Text(text, no_wrap=True, overflow="ellipsis"))
        self._drawing.update(row, refresh=True)
