"""The training command, and the way in that all commands on ranks share."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from sarlite.cli import config
from sarlite.comm import Communicator, launch, threads
from sarlite.comm.ending import call_off
from sarlite.comm.guard import guard
from sarlite.command import flag, returns_status, show
from sarlite.errors import ConfigError, SarliteError, needs, raise_together
from sarlite.kernels import instruction_set

_MAY_DIFFER = ("threads",)  # between ranks
Parse = Callable[[Sequence[str] | None], tuple[Any, ...]]


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit status."""
    return main_on_ranks(argv, _parse, _train)


def main_on_ranks(argv: Sequence[str] | None, parse: Parse, load_action: Callable[[], Callable[..., Any]]) -> int:
    """Run a command on all ranks; return the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        By default the words of the command line, after which the process is expected to end. With `argv` the caller's
        process goes on.
    parse : callable
        parse(argv) -> (options, own...): the `RunOptions`, and the command's own dataclass of options if it has one.
    load_action : callable
        Returns the function (comm, options, own..., tick, interrupts) that every rank runs. Its imports take long, and
        here they are guarded.
    """
    try:
        return _on_ranks(argv, parse, load_action)
    finally:
        if argv is not None:
            call_off()  # what `guard` has set for the end of the process


@returns_status
def _on_ranks(argv, parse, load_action):
    launch.begin()
    found, error = _parsed(argv, parse)
    machine = found[0].machine if found else None
    stall = (machine.stall_timeout or float("inf")) if machine else launch.START_SECONDS
    launch.begin(stall)
    try:
        comm = launch.connect()
    except SarliteError as refused:
        show(f"error: {error or refused}", sys.stderr)
        return 2
    with guard(comm, stall, machine.ranks if machine else 1) as watch:
        raise_together(comm, error)
        agree_on_options(comm, found)
        return _run(comm, found, watch, _with_threads(load_action()))


def _parsed(argv, parse):
    """The options, or the error of the parser: a rank that left now would leave the others waiting."""
    try:
        found = parse(argv)
        if found[0].output.progress == "bar":
            needs("tqdm", "--progress bar")
        instruction_set()  # which refuses a value of SARLITE_ISA that it does not know
    except (SarliteError, SystemExit) as error:
        return None, error
    return found, None


def _parse(argv):
    options = config.parse(argv)
    needs("safetensors", "a checkpoint")
    return (options,)


def agree_on_options(comm: Communicator, found: tuple[Any, ...]) -> None:
    """Raise a ConfigError on every rank unless all ranks have the same options. Collective."""
    options, *own = found
    values = {name: value for part in (options.values, *map(vars, own)) for name, value in part.items()}
    for rank, other in enumerate(all_values := comm.allgather(values)):
        for name, value in all_values[0].items():
            if name not in _MAY_DIFFER and other[name] != value:
                raise ConfigError(f"{flag(name)} is {value!r} on rank 0, but {other[name]!r} on rank {rank}")


def _train():
    from sarlite.cli.run import train

    return train


def _with_threads(action):
    """The action of every rank, whose kernels get the threads that the options say."""
    from sarlite.train.loop import set_threads

    def run(comm, options, *more):
        set_threads(launch.rank_threads(comm, options.machine.threads))
        return action(comm, options, *more)

    return run


def _run(comm, found, watch, action):
    n_ranks = found[0].machine.ranks
    if n_ranks == 1:
        action(comm, *found, watch.tick, watch.interrupts)
        return 0
    if launch.launched_ranks() not in (None, 1):
        raise ConfigError("--ranks makes threads of one process; under mpiexec leave it out")
    try:
        threads.run(n_ranks, action, *found, watch.tick, watch.interrupts)
    except SystemExit as left:  # before the end, whatever its status says
        return left.code or 1
    return 0
