"""Entry point of `python -m sarlite.predict`; the command itself is `sarlite.cli.predict_command`."""

import sys

from sarlite.cli.predict_command import main

if __name__ == "__main__":
    sys.exit(main())
