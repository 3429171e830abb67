"""Entry point of `python -m sarlite.explain`; the command itself is `sarlite.cli.explain_command`."""

import sys
from functools import partial

from sarlite.command import start

main = partial(start, "sarlite.cli.explain_command")

if __name__ == "__main__":
    sys.exit(main())
