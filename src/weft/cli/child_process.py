"""Runs a command that stops with its parent process: when standard input closes, it saves and stops as after SIGTERM.

`weft compare` starts its runs this way: a comparison that is killed leaves no process behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from weft.cli.main import main


def _wait_for_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_wait_for_parent, daemon=True).start()
    sys.exit(main())
