"""`weft` and `python -m weft`: the command line."""

import gc
import sys


def start() -> int:
    """Run the command line. Ctrl-C during its import gives the same exit code as later."""
    try:
        from weft.cli.collector import pause_imports, paused

        pause_imports("torch")
        with paused():
            from weft.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130
    finally:
        gc.freeze()  # what is left is not searched at exit, which returns all memory anyway


if __name__ == "__main__":
    sys.exit(start())
