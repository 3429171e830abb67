"""Entry point of `python -m sarlite.sweep`; the command itself is `sarlite.cli.sweep_command`."""

import sys

from sarlite.cli.sweep_command import main

if __name__ == "__main__":
    sys.exit(main())
