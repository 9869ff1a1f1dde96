"""`weft` and `python -m weft`: the command line."""

import atexit
import gc
import sys


def start() -> int:
    """Run the command line. Ctrl-C during its import gives the same exit code as later."""
    try:
        from weft.cli.collector import paused, pausing_import

        atexit.register(gc.freeze)  # what is left is not searched at exit, which returns all memory anyway
        with pausing_import("torch"):
            with paused():
                from weft.cli.main import main

            return main()
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:  # Python 3.11 makes it of Ctrl-C while a class is created
        if isinstance(error.__cause__, KeyboardInterrupt):
            return 130
        raise


if __name__ == "__main__":
    sys.exit(start())
