"""Entry point of `python -m sarlite.report`; the command itself is `sarlite.cli.report_command`."""

import sys

from sarlite.cli.report_command import main

if __name__ == "__main__":
    sys.exit(main())
