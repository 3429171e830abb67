"""Limit of a rank's memory. An estimate is checked before training, and the measured peak after the first step."""

from collections.abc import Callable

from sarlite.cli.settings import Settings
from sarlite.comm import Communicator
from sarlite.comm.launch import host
from sarlite.command import readable
from sarlite.errors import ConfigError
from sarlite.profile import memory_limit
from sarlite.train.cost import Shape, peak_bytes
from sarlite.train.load import Shard


class MemoryLimit:
    """Largest amount of memory that this rank may use, including Python and its libraries.

    Parameters
    ----------
    n_bytes : float
        The limit, in bytes.
    name : str
        Source of the limit, such as "--memory-limit", for error messages.
    base : int
        Bytes in use before the rank read its part of the data.
    peak : callable
        Returns the peak memory of the rank so far, in bytes above `base`.
    """

    def __init__(self, n_bytes: float, name: str, base: int, peak: Callable[[], int]) -> None:
        self.n_bytes, self.name, self.base, self._peak, self._checked = n_bytes, name, base, peak, False

    def check(self, comm: Communicator, n_bytes: int, what: str) -> None:
        """Raise a ConfigError on every rank if the memory of any rank exceeds its limit. A rank's memory is `n_bytes` and the bytes in use
        before it read its data; `what` begins the message, such as "the first step took". Collective.

        Parameters
        ----------
        comm : Communicator
        n_bytes : int
            Memory of this rank in bytes, above `base`.
        what : str
            Beginning of the error message, such as "the first step took".

        Raises
        ------
        ConfigError
            On every rank, if any rank exceeds its limit.
        """
        ranks = comm.allgather((self.base + n_bytes, self.n_bytes))
        rank, (needed, n_allowed) = max(enumerate(ranks), key=lambda each: each[1][0] - each[1][1])
        if needed > n_allowed:
            raise ConfigError(f"{what} {readable(needed)} on rank {rank}, more than {self.name} {readable(n_allowed)}: "
                              "more ranks take less each; docs/how-to/memory.md lists other ways")

    def check_once(self, comm: Communicator) -> None:
        """Raise a ConfigError on every rank if the peak memory of a rank exceeds its limit. Calls after the first do nothing, so it
        can be called after every step. Collective.
        """
        if not self._checked:
            self._checked = True
            self.check(comm, self._peak(), "the first step took")


def of_run(comm: Communicator, part: Shard, limit: float | None, n_sharing: int) -> MemoryLimit:
    """Return the memory limit of this rank: `limit` bytes or, if None, an equal share of the memory of its machine or container.
    `n_sharing` ranks are threads of this process; each is charged an equal part of the memory of the process. Collective.

    Parameters
    ----------
    comm : Communicator
    part : Shard
    limit : float or None
        Value of --memory-limit in bytes; None for the rank's share of the memory of its machine or container.
    n_sharing : int
        Number of ranks that are threads of this process.
    """
    memory, hosts = part.memory, comm.allgather(host())
    share = memory_limit() / hosts.count(host())
    name = "a rank's share of the memory of the machine or container," if limit is None else "--memory-limit"
    return MemoryLimit(share if limit is None else limit, name, memory.base // n_sharing,
                       lambda: memory.peak() // n_sharing)


def check_estimate(comm: Communicator, limit: MemoryLimit, run: Settings, part: Shard) -> None:
    """Raise a ConfigError if the estimated memory of a full-batch run exceeds the memory limit. Minibatch and message-flow runs
    have no estimate and are not checked. Collective.
    """
    full_batch = not run.batches and not run.training.mfg
    shape = Shape.of_part(comm, part, run.model, run.graph, bool(run.training.label_inputs)) if full_batch else None
    if shape is not None:
        limit.check(comm, peak_bytes(shape), "training would take about")
