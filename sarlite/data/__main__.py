"""`python -m sarlite.data`; the command itself is `sarlite.cli.data_command`."""

import sys
from functools import partial

from sarlite.command import start

main = partial(start, "sarlite.cli.data_command")

if __name__ == "__main__":
    sys.exit(main())
