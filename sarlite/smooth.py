"""Entry point of `python -m sarlite.smooth`; the command itself is `sarlite.cli.smooth_command`."""

import sys
from functools import partial

from sarlite.command import start

main = partial(start, "sarlite.cli.smooth_command")

if __name__ == "__main__":
    sys.exit(main())
