"""Runs a command that stops with its parent process: when standard input closes, or the pipe that the environment names, it
saves and stops as after SIGTERM.

`weft compare` starts its runs this way: a comparison that is killed leaves no process behind. A worker of a comparison also
sends a number of seconds from time to time. If nothing more comes for that time, the worker is paused and about to lose its
lease, so the command saves and stops; if that takes long as well, it ends at once.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time

from weft.__main__ import start
from weft.cli.group import LIFELINE

SAVE_FRACTION = 0.4  # of the seconds, to save and stop


def _wait_for_parent() -> None:
    seconds: float | None = None
    pipe = int(os.environ.get(LIFELINE, "0"))
    while select.select([pipe], [], [], seconds)[0] and (data := os.read(pipe, 4096)):
        seconds = float(data.split()[-1])
    os.kill(os.getpid(), signal.SIGTERM)
    if seconds is not None:
        time.sleep(SAVE_FRACTION * seconds)
        os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_wait_for_parent, daemon=True).start()
    sys.exit(start())
