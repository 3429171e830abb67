"""`python -m sarlite.train`; the command itself is `sarlite.cli.train_command`."""

import sys

from sarlite.cli.train_command import main

if __name__ == "__main__":
    sys.exit(main())
