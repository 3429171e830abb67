"""The training command, and `main_on_ranks`, the entry point of all commands that run on several ranks."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from sarlite.cli import config
from sarlite.comm import Communicator, launch, threads
from sarlite.comm.ending import call_off
from sarlite.comm.guard import guard
from sarlite.command import exit_status, flag, open_closed_streams, show
from sarlite.errors import ConfigError, SarliteError, import_optional, raise_together
from sarlite.kernels import instruction_set

_RANK_LOCAL = ("threads",)
"""Options whose values may differ between ranks."""
Parsed = tuple[Any, ...]
"""`RunOptions`, followed by the command's own dataclass of options if the command has one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m sarlite.train` and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Command line arguments; by default the arguments of the process.
    """
    return main_on_ranks(argv, _parse, _train)


def main_on_ranks(argv: Sequence[str] | None, parse: Callable[[Sequence[str] | None], Parsed],
                  load_action: Callable[[], Callable[..., object]]) -> int:
    """Run a command on every rank and return its exit status. `parse(argv)` returns its options, and `load_action()` imports and
    returns its main function. `argv` None stands for the arguments of the process.

    Parameters
    ----------
    argv : sequence of str, optional
        Command line arguments. By default the arguments of the process, which is then expected to end after the
        command. If `argv` is passed, the calling process goes on.
    parse : callable
        parse(argv) -> `Parsed`. May raise a SarliteError or SystemExit, which all ranks then share.
    load_action : callable
        load_action() -> action. Imports the code of the command, which takes long, while the ranks are guarded.
        action(comm, *parsed, tick, interrupts) then runs on every rank.

    Returns
    -------
    int
        0, 2 after a SarliteError, or the status of a SystemExit.
    """
    try:
        return _on_ranks(argv, parse, load_action)
    finally:
        if argv is not None:
            call_off()  # the timer that `guard` has set for the end of the process


def _on_ranks(argv, parse, load_action):
    try:
        return _connect_and_run(argv, parse, load_action)
    except SystemExit as exit:  # of argparse, of `guard`, or of the user's model
        return exit_status(exit)


def _connect_and_run(argv, parse, load_action):
    open_closed_streams()
    launch.begin()
    parsed, error = _parse_and_check(argv, parse)
    machine = parsed[0].machine if parsed else None
    stall = (machine.stall_timeout or float("inf")) if machine else launch.START_SECONDS
    launch.begin(stall)
    try:
        comm = launch.connect()
    except SarliteError as refused:
        show(f"error: {error or refused}", sys.stderr)
        return 2
    with guard(comm, stall, machine.ranks if machine else 1) as watch:
        raise_together(comm, error)
        agree_on_options(comm, parsed)
        return _run(comm, parsed, watch, _with_threads(load_action()))


def _parse_and_check(argv, parse):
    """Return (options that `parse` reads from the command line `argv`, None) or, after an error, (None, error). The caller raises
    the error on all ranks together, as ranks without the error would hang.
    """
    try:
        parsed = parse(argv)
        if parsed[0].output.progress == "bar":
            import_optional("tqdm", "--progress bar")
        instruction_set()  # raises for an unknown value of SARLITE_ISA
    except (SarliteError, SystemExit) as error:
        return None, error
    return parsed, None


def _parse(argv):
    options = config.parse(argv)
    import_optional("safetensors", "a checkpoint")
    return (options,)


def agree_on_options(comm: Communicator, parsed: Parsed) -> None:
    """Raise a ConfigError on every rank unless the options in `parsed` are equal on all ranks, except for the number of threads.
    Collective.

    Parameters
    ----------
    comm : Communicator
    parsed : tuple
        `RunOptions` and further dataclasses of options, as in `Parsed`.
    """
    options, *further = parsed
    values = {name: value for part in (options.values, *map(vars, further)) for name, value in part.items()}
    for rank, other in enumerate(all_values := comm.allgather(values)):
        for name, value in all_values[0].items():
            if name not in _RANK_LOCAL and other[name] != value:
                raise ConfigError(f"{flag(name)} is {value!r} on rank 0, but {other[name]!r} on rank {rank}")


def _train():
    from sarlite.cli.run import train

    return train


def _with_threads(action: Callable[..., object]) -> Callable[..., object]:
    """Return `action`, the main function of a command, wrapped so that it first sets the number of threads of this rank's compiled
    kernels.
    """
    from sarlite.train.loop import set_threads

    def run(comm, options, *more):
        set_threads(launch.rank_threads(comm, options.machine.threads))
        return action(comm, options, *more)

    return run


def _run(comm, parsed, watch, action):
    n_ranks = parsed[0].machine.ranks
    if n_ranks == 1:
        action(comm, *parsed, watch.tick, watch.interrupts)
        return 0
    if launch.launched_ranks() not in (None, 1):
        raise ConfigError("--ranks makes threads of one process: leave the flag out under mpiexec")
    try:
        threads.run(n_ranks, action, *parsed, watch.tick, watch.interrupts)
    except SystemExit as exit:  # the run is not complete, so its status is never 0
        return exit.code or 1
    return 0
