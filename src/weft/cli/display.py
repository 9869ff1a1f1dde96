"""The progress line on standard error: redrawn in place on a terminal, elsewhere a plain line every few seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from weft.cli.output import Style, escape_control_chars, format_duration, print_error, styled

if TYPE_CHECKING:
    from rich.live import Live

DRAW_SECONDS = 0.2  # between two redraws
LOG_SECONDS = 10.0  # between two plain lines
BAR_WIDTH = 24


def is_live(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") not in (None, "dumb")


class Display:
    """Shows the progress of work. A context manager, so that the terminal is restored."""

    def __init__(
        self, *, quiet: bool = False, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream, self.quiet, self.clock = stream or sys.stderr, quiet, clock
        self.live = not quiet and is_live(self.stream)
        self._live_display: Live | None = None
        self._phase, self._start, self._first_fraction, self._last_time = "", 0.0, 0.0, 0.0

    def __enter__(self) -> Display:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.clear()

    def line(self, text: str, style: Style = "") -> None:
        """Print a permanent line above the progress line."""
        if self.quiet:
            return
        if self._live_display is None:
            print_error(text, self.stream, style)
            return
        from rich.text import Text

        with self._ignore_lost_terminal():
            line = Text.from_ansi(styled(escape_control_chars(text), style, self.stream))
            self._live_display.console.print(line, soft_wrap=True)

    def clear(self) -> None:
        """Remove the progress line at the end of a phase."""
        live_display, self._live_display, self._phase = self._live_display, None, ""
        if live_display is not None:
            with self._ignore_lost_terminal():
                live_display.stop()

    @contextmanager
    def _ignore_lost_terminal(self) -> Iterator[None]:
        """Draw nothing more once the terminal is gone: the work matters more than its progress line."""
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError:
            self._live_display, self.quiet = None, True

    def show(self, phase: str, fraction: float, detail: str = "", *, title: str | None = None) -> None:
        """Show that a fraction of the phase is done; a new phase gets a new ETA. `title` is printed instead of the phase."""
        if self.quiet:
            return
        now = self.clock()
        if phase != self._phase:
            self.clear()
            # drawn at once, since the work may take long; logged only if it does
            self._phase, self._start, self._first_fraction, self._last_time = (
                phase,
                now,
                fraction,
                now - DRAW_SECONDS if self.live else now,
            )
        if now - self._last_time < (DRAW_SECONDS if self.live else LOG_SECONDS):
            return
        self._last_time = now
        percent, eta = f"{min(fraction, 1.0):.0%}", self._eta(fraction, now)
        title = phase if title is None else title
        if self.live:
            with self._ignore_lost_terminal():
                parts = [percent.rjust(4), title, detail, eta]
                self._draw(fraction, escape_control_chars("  ".join(filter(None, parts))))
            return
        head, _, rest = detail.partition("  ")
        parts = [f"{title} ({percent})", detail, eta] if title else [f"{head} ({percent})", rest, eta]
        print_error("  ".join(filter(None, parts)), self.stream)

    def _eta(self, fraction: float, now: float) -> str:
        # excludes what an earlier process has done, which took none of this one's time
        progress = fraction - self._first_fraction
        return f"ETA {format_duration((now - self._start) * (1 - fraction) / progress)}" if progress > 0 else ""

    def _draw(self, fraction: float, text: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if self._live_display is None:
            console = Console(file=self.stream, highlight=False)
            self._live_display = Live(console=console, auto_refresh=False, transient=True)
            self._live_display.start()
        row = Table.grid(padding=(0, 1))
        line = Text(text, no_wrap=True, overflow="ellipsis")
        if self._live_display.console.width >= 80:
            row.add_row(ProgressBar(total=1.0, completed=min(fraction, 1.0), width=BAR_WIDTH), line)
        else:
            row.add_row(line)
        self._live_display.update(row, refresh=True)
