"""`python -m sarlite.train`."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from sarlite.comm import Communicator, launch, threads
from sarlite.comm.guard import guard
from sarlite.command import flag
from sarlite.errors import ConfigError, SarliteError, needs, raise_together
from sarlite.kernels import instruction_set
from sarlite.train import config as options

_OWN = ("threads",)  # what may differ between ranks


def main(argv: Sequence[str] | None = None, parse: Callable[..., Any] | None = None,
         action: Callable[[], Any] | None = None) -> int:
    """Train as the command line says; return the exit status, or exit with it.

    Another command on ranks gives its own `parse(argv)`, which returns what `config.parse` does, and `action()`, which
    returns the function (comm, config, tick, interrupts) that every rank runs, with the threads that the options say.
    """
    launch.begin()
    config, error = _parse(argv, parse or _options)
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
        found = (action or _train)()  # imports take long: they are guarded
        return _run(comm, config, watch, _with_threads(found))


def _parse(argv, parse):
    """The options, or what the parser raised: a rank that left now would leave the others waiting."""
    try:
        config = parse(argv)
        if config.progress == "bar":
            needs("tqdm", "--progress bar")
        instruction_set()  # which refuses what SARLITE_ISA may not say
    except (SarliteError, SystemExit) as error:
        return None, error
    return config, None


def _options(argv):
    config = options.parse(argv)
    needs("safetensors", "a checkpoint")
    return config


def agree_on_options(comm: Communicator, config: Any) -> None:
    """Raise a ConfigError on every rank unless all have the same options. Collective."""
    for rank, other in enumerate(found := comm.allgather(vars(config))):
        for name, value in found[0].items():
            if name not in _OWN and other[name] != value:
                raise ConfigError(f"{flag(name)} is {value!r} on rank 0, but {other[name]!r} on rank {rank}")


def _train():
    from sarlite.train.run import train

    return train


def _with_threads(action):
    """What every rank runs: its kernels get the threads that the options say."""
    from sarlite.train.loop import set_threads

    def run(comm, config, tick, interrupts):
        set_threads(config.threads or launch.default_threads(comm))
        return action(comm, config, tick, interrupts)

    return run


def _run(comm, config, watch, action):
    if config.ranks == 1:
        action(comm, config, watch.tick, watch.interrupts)
        return 0
    if launch.launched_ranks() not in (None, 1):
        raise ConfigError("--ranks makes threads of one process; under mpiexec leave it out")
    try:
        threads.run(config.ranks, action, config, watch.tick, watch.interrupts)
    except SystemExit as left:  # before the end, whatever its status says
        return left.code or 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
