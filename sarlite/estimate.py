"""Entry point of `python -m sarlite.estimate`; the command itself is `sarlite.cli.estimate_command`."""

import sys

from sarlite.cli.estimate_command import main

if __name__ == "__main__":
    sys.exit(main())
