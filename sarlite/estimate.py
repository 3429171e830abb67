"""Entry point of `python -m sarlite.estimate`; the command itself is `sarlite.cli.estimate_command`."""

import sys
from functools import partial

from sarlite.command import start

main = partial(start, "sarlite.cli.estimate_command")

if __name__ == "__main__":
    sys.exit(main())
