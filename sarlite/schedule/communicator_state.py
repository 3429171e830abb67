"""State that all graphs of one communicator share: message tags, a failure, and whether cached results are still valid."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol, cast

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import PeerError, SarliteError
from sarlite.types import T


class Waitable(Protocol):
    """A thread that can be waited for, such as an `Ahead`."""

    def wait(self) -> None: ...


class CommState:
    """State that all graphs of one communicator share: message tags, a failure, and threads. Construction is collective.

    Attributes
    ----------
    n_tags : int
        Number of message tags used so far, which is the last tag.
    generation : int
        Number of recoveries so far. Each recovery invalidates the results that graphs kept before; see `Memo`.
    failure : str or None
        Description of the failure after which no graph is usable; None if all graphs are usable.
    broadcasting, fetching : list of Waitable
        Prefetch threads of unfinished aggregations: threads that broadcast, and threads that fetch from peers.
    channels : list of Communicator
        Channels for the messages of aggregations: for fetched rows and for pushed gradients.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.n_tags, self.generation = comm, 0, 0
        self.failure: str | None = None
        self.broadcasting: list[Waitable] = []
        self.fetching: list[Waitable] = []
        self.channels = [comm.channel(name) for name in ("fetch", "push")]

    @classmethod
    def of(cls, comm: Communicator) -> "CommState":
        """Return the state of a communicator. The first call creates the state and is collective."""
        attributes = comm.channel("fetch").__dict__
        if "_state" not in attributes:
            attributes["_state"] = cls(comm)
        return attributes["_state"]

    def check(self) -> None:
        """Raise a PeerError if an earlier aggregation failed and `recover` was not called since."""
        if self.failure is not None:
            again = "graph.recover() on every rank makes graphs usable again"
            raise PeerError(f"an aggregation failed ({self.failure}); {again}")

    def fail(self, error: BaseException) -> None:
        """Record a failure, after which messages may be missing; all graphs refuse to aggregate until `recover`.

        On a communicator of one rank no message can be missing, so nothing is recorded.
        """
        if self.comm.size > 1:
            self.failure = f"{type(error).__name__}: {error}"

    @contextmanager
    def together(self) -> Iterator[None]:
        """Return a context for a step that all ranks take together. An unexpected error inside it is recorded as a failure, after which
        all graphs of the communicator refuse to work until `recover`.

        An unexpected error, such as a lack of memory, may occur on one rank alone. A SarliteError is raised by all ranks
        together, or its transfer has recorded the failure already.
        """
        self.check()
        try:
            yield
        except SarliteError:  # all ranks raise it together, or the transfer has already recorded the failure
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def recover(self) -> None:
        """Make the graphs usable again after a failure. Collective.

        Messages in transit are dropped, results that graphs kept become invalid, and the ranks agree on the next tag.
        """
        self.generation += 1
        while self.broadcasting:
            self.broadcasting.pop().wait()
        self.n_tags = int(self.comm.allreduce(np.array([self.n_tags], np.int64), "max")[0])
        for channel in self.channels:  # after the allreduce: until then a peer may still need a message to fail itself
            channel.drain()
        while self.fetching:  # their messages are cancelled now, and they start no new messages
            self.fetching.pop().wait()
        self.failure = None


class Memo:
    """Cache of values that all ranks compute together from a graph, such as its normalized edge weights. `CommState.recover`, which is
    called after the failure of a rank, empties the cache on every rank.

    If a rank fails, other ranks may have cached a result that the failed rank lacks. If they used the cached result
    after `recover`, they would skip an exchange that the failed rank waits for. So after `recover` every rank computes
    every result again.

    Examples
    --------
    >>> from sarlite import Solo
    >>> memo = Memo(CommState.of(Solo()))
    >>> memo.get("degrees", lambda: [1, 2]), memo.get("degrees", lambda: [3, 4])
    ([1, 2], [1, 2])
    """

    def __init__(self, state: CommState) -> None:
        self.state, self._generation = state, state.generation
        self._results: dict[Hashable, object] = {}

    def get(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return the cached result with this name; if there is none yet, call `make()`, cache its result and return it.

        Collective if `make` is.
        """
        if self._generation != self.state.generation:
            self._generation, self._results = self.state.generation, {}
        if name not in self._results:
            with self.state.together():
                self._results[name] = make()
        return cast(T, self._results[name])
