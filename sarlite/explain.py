"""Entry point of `python -m sarlite.explain`; the command itself is `sarlite.cli.explain_command`."""

import sys

from sarlite.cli.explain_command import main

if __name__ == "__main__":
    sys.exit(main())
