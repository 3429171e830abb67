"""Entry point of `python -m sarlite.report`; the command itself is `sarlite.cli.report_command`."""

import sys
from functools import partial

from sarlite.command import start

main = partial(start, "sarlite.cli.report_command")

if __name__ == "__main__":
    sys.exit(main())
