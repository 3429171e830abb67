"""`python -m sarlite.train`."""

import sys
from typing import Any

from sarlite.comm import Communicator, launch, threads
from sarlite.comm.guard import guard
from sarlite.errors import ConfigError, SarliteError, needs, raise_together
from sarlite.train import config as options

_OWN = ("threads",)  # what may differ between ranks


def main(argv=None):
    """Train as the command line says; return the exit status, or exit with it."""
    launch.begin()
    config, error = _parse(argv)
    stall = (config.stall_timeout or float("inf")) if config else launch.START_SECONDS
    launch.begin(stall)
    try:
        comm = launch.connect()
    except SarliteError as refused:
        print(f"error: {error or refused}", file=sys.stderr)
        return 2
    with guard(comm, stall, config.ranks if config else 1) as watch:
        raise_together(comm, error)
        agree_on_options(comm, config)
        return _train(comm, config, watch)


def _parse(argv):
    """The options, or what the parser raised: a rank that left now would leave the others waiting."""
    try:
        config = options.parse(argv)
        needs("safetensors", "a checkpoint")
        if config.progress == "bar":
            needs("tqdm", "--progress bar")
    except (SarliteError, SystemExit) as error:
        return None, error
    return config, None


def agree_on_options(comm: Communicator, config: Any) -> None:
    """Raise a ConfigError on every rank unless all have the same options. Collective."""
    for rank, other in enumerate(found := comm.allgather(vars(config))):
        for name, value in found[0].items():
            if name not in _OWN and other[name] != value:
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{flag} is {value!r} on rank 0, but {other[name]!r} on rank {rank}")


def _train(comm, config, watch):
    from sarlite.train.run import train  # whose imports take long: they are guarded

    if config.ranks == 1:
        train(comm, config, watch.tick, watch.interrupts)
        return 0
    if launch.launched_ranks() not in (None, 1):
        raise ConfigError("--ranks makes threads of one process; under mpiexec leave it out")
    try:
        threads.run(config.ranks, train, config, watch.tick, watch.interrupts)
    except SystemExit as left:  # before the end, whatever its status says
        return left.code or 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
