"""The limit of a rank's memory: the estimate is checked before a run, the measured peak after its first step."""

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
    """Largest memory that this rank may use, including Python and its libraries.

    Parameters
    ----------
    n_bytes : float
    name : str
        Where the limit comes from, for error messages.
    base : int
        Bytes that the rank had before it read its part of the data.
    peak : callable
        Returns the most bytes that the rank has had so far, above `base`.
    """

    def __init__(self, n_bytes: float, name: str, base: int, peak: Callable[[], int]) -> None:
        self.n_bytes, self.name, self.base, self._peak, self._checked = n_bytes, name, base, peak, False

    def check(self, comm: Communicator, n_bytes: int, what: str) -> None:
        """Refuse `n_bytes` above `base` that exceed the limit. Collective.

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
        """Check the measured peak, in the first call alone. Collective."""
        if not self._checked:
            self._checked = True
            self.check(comm, self._peak(), "the first step took")


def of_run(comm: Communicator, part: Shard, given: float | None, n_sharing: int) -> MemoryLimit:
    """Return the limit of each rank. Collective.

    Parameters
    ----------
    comm : Communicator
    part : Shard
    given : float, optional
        Bytes, as of --memory-limit; by default the rank's share of the memory of its machine or container.
    n_sharing : int
        Number of ranks that are threads of this process.
    """
    memory, hosts = part.memory, comm.allgather(host())
    share = memory_limit() / hosts.count(host())
    name = "a rank's share of the memory of the machine or container," if given is None else "--memory-limit"
    return MemoryLimit(share if given is None else given, name, memory.base // n_sharing,
                       lambda: memory.peak() // n_sharing)


def check_estimate(comm: Communicator, limit: MemoryLimit, run: Settings, part: Shard) -> None:
    """Raise an error if the estimated memory of a full-batch run exceeds the limit. Collective.

    Other runs have no formula; the measured peak is checked for them, too.
    """
    full_batch = not run.batches and not run.training.mfg
    shape = Shape.of_part(comm, part, run.model, run.graph, bool(run.training.label_inputs)) if full_batch else None
    if shape is not None:
        limit.check(comm, peak_bytes(shape), "training would take about")
