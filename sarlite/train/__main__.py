"""`python -m sarlite.train`; the command itself is `sarlite.cli.train_command`."""

import sys
from functools import partial

from sarlite.command import start

main = partial(start, "sarlite.cli.train_command")

if __name__ == "__main__":
    sys.exit(main())
