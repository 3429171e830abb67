"""Entry point of `python -m sarlite.predict`; the command itself is `sarlite.cli.predict_command`."""

import sys
from functools import partial

from sarlite.command import start

main = partial(start, "sarlite.cli.predict_command")

if __name__ == "__main__":
    sys.exit(main())
