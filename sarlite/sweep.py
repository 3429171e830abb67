"""Entry point of `python -m sarlite.sweep`; the command itself is `sarlite.cli.sweep_command`."""

import sys
from functools import partial

from sarlite.command import start

main = partial(start, "sarlite.cli.sweep_command")

if __name__ == "__main__":
    sys.exit(main())
