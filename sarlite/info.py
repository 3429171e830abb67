"""Entry point of `python -m sarlite.info`; the command itself is `sarlite.cli.info_command`."""

import sys

from sarlite.cli.info_command import main

if __name__ == "__main__":
    sys.exit(main())
