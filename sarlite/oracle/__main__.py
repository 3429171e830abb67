"""Entry point of `python -m sarlite.oracle`."""

import sys

from sarlite.oracle.oracle_command import main

if __name__ == "__main__":
    sys.exit(main())
