"""Entry point of `python -m sarlite.verify`; the command itself is `sarlite.cli.verify_command`."""

import sys
from functools import partial

from sarlite.command import start

main = partial(start, "sarlite.cli.verify_command")

if __name__ == "__main__":
    sys.exit(main())
