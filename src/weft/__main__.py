"""`weft` and `python -m weft`: the command line."""

import sys


def start() -> int:
    """Reading the modules takes a moment, too, and may be interrupted."""
    try:
        from weft.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(start())
