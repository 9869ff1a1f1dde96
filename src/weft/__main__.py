"""`python -m weft`: the command line."""

import sys

from weft.cli.main import main

sys.exit(main())
