"""Entry point of `python -m sarlite.verify`; the command itself is `sarlite.cli.verify_command`."""

import sys

from sarlite.cli.verify_command import main

if __name__ == "__main__":
    sys.exit(main())
