"""Entry point of `python -m sarlite.smooth`; the command itself is `sarlite.cli.smooth_command`."""

import sys

from sarlite.cli.smooth_command import main

if __name__ == "__main__":
    sys.exit(main())
