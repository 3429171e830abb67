"""`python -m sarlite.train`."""

import sys

from sarlite.errors import SarliteError, needs
from sarlite.train import config as options


def main(argv=None):
    """Train as the command line says; return the exit status."""
    try:
        config = options.parse(argv)
        needs("safetensors", "a checkpoint")
        if config.progress == "bar":
            needs("tqdm", "--progress bar")
    except SarliteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from sarlite.comm import Solo, launch, threads
    from sarlite.comm.guard import guard
    from sarlite.train.run import train

    stall = config.stall_timeout or float("inf")
    if config.ranks > 1:
        if launch.launched_ranks() not in (None, 1):
            print("error: --ranks makes threads of one process; under mpiexec leave it out", file=sys.stderr)
            return 2
        with guard(Solo(), stall, config.ranks) as watch:
            try:
                threads.run(config.ranks, train, config, watch.tick, watch.interrupts)
            except SystemExit as left:  # before the end, whatever its status says
                return left.code or 1
        return 0
    try:
        comm = launch.connect()
    except SarliteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with guard(comm, stall) as watch:
        train(comm, config, watch.tick, watch.interrupts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
