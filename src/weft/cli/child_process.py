"""A command that ends with whoever started it: when its standard input closes, it stops as by SIGTERM, and saves.

`weft compare` starts its runs so: a comparison that is killed leaves none of them behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from weft.cli.main import main


def _watch() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    sys.exit(main())
