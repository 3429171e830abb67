"""Entry point of `python -m sarlite.info`; the command itself is `sarlite.cli.info_command`."""

import sys
from functools import partial

from sarlite.command import start

main = partial(start, "sarlite.cli.info_command")

if __name__ == "__main__":
    sys.exit(main())
