"""`python -m sarlite.data`; the command itself is `sarlite.cli.data_command`."""

import sys

from sarlite.cli.data_command import main

if __name__ == "__main__":
    sys.exit(main())
