"""`weft` and `python -m weft`: the command line."""

import sys


def start() -> int:
    """Run the command line. Importing it takes a moment and may be interrupted, too."""
    try:
        from weft.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(start())
