"""`weft` and `python -m weft`: the command line."""

import sys


def start() -> int:
    """Run the command line. Ctrl-C during its import gives the same exit code as later."""
    try:
        from weft.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(start())
