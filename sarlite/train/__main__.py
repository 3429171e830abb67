"""`python -m sarlite.train`; the command itself is `sarlite.cli.train`."""

import sys

from sarlite.cli.train import main

if __name__ == "__main__":
    sys.exit(main())
