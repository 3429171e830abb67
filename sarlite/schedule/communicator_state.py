"""State that all graphs of one communicator share: message tags, a failure, and the validity of kept results."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sarlite.comm import Communicator
from sarlite.errors import PeerError, SarliteError
from sarlite.schedule.ahead import Ahead
from sarlite.types import T


class CommState:
    """State that all graphs of one communicator share.

    Attributes
    ----------
    n_tags : int
        Number of the last tag.
    generation : int
        Number of recoveries so far. Each recovery invalidates what graphs kept before: see `Memo`.
    failure : str or None
        Description of the failure after which no graph is usable.
    broadcasting, fetching : list of Ahead
        Threads of unfinished transfers: those that take part in every broadcast, and those that wait for peers'
        messages.
    channels : list of Communicator
        Channels for the messages of aggregations.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.n_tags, self.generation = comm, 0, 0
        self.failure: str | None = None
        self.broadcasting: list[Ahead[object]] = []
        self.fetching: list[Ahead[object]] = []
        self.channels = [comm.channel(name) for name in ("fetch", "push")]

    @classmethod
    def of(cls, comm: Communicator) -> "CommState":
        """Return the state of a communicator. The first call makes the state and is collective."""
        kept = comm.channel("fetch").__dict__
        if "_state" not in kept:
            kept["_state"] = cls(comm)
        return kept["_state"]

    def check(self) -> None:
        """Raise a PeerError if an earlier aggregation failed."""
        if self.failure is not None:
            again = "graph.recover() on every rank makes graphs usable again"
            raise PeerError(f"an aggregation failed ({self.failure}); {again}")

    def fail(self, error: BaseException) -> None:
        """Record a failure: from now on messages may be missing, so graphs refuse until `recover`."""
        if self.comm.size > 1:
            self.failure = f"{type(error).__name__}: {error}"

    @contextmanager
    def together(self) -> Iterator[None]:
        """Return a context for a step that all ranks take once, such as a collective set-up.

        If the step fails on one rank alone, for example for lack of memory, graphs are unusable there until `recover`.
        """
        self.check()
        try:
            yield
        except SarliteError:  # raised on all ranks together, or noted where the messages travel
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def recover(self) -> None:
        """Make the graphs usable again after a failure. Collective.

        Messages in transit are dropped, kept results become invalid, and the ranks agree on the next tag.
        """
        self.generation += 1
        while self.broadcasting:
            self.broadcasting.pop().wait()
        self.n_tags = int(self.comm.allreduce(np.array([self.n_tags], np.int64), "max")[0])
        for channel in self.channels:  # not before all are here: a peer may need what was sent to see its own failure
            channel.drain()
        while self.fetching:  # their messages are cancelled, and they start no others
            self.fetching.pop().wait()
        self.failure = None


class Memo:
    """Results that a graph keeps by name and that all ranks computed together, valid until `CommState.recover`.

    If a rank fails, other ranks may have kept a result that it lacks. If they used the result after `recover`, they
    would skip an exchange that the failed rank waits for. So after `recover` every rank computes every result again.
    """

    def __init__(self, state: CommState) -> None:
        self.state, self._generation = state, state.generation
        self._found: dict[Hashable, Any] = {}

    def get(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return the result kept under `name`; the first call computes it by `make` and is collective if `make` is."""
        if self._generation != self.state.generation:
            self._generation, self._found = self.state.generation, {}
        if name not in self._found:
            with self.state.together():
                self._found[name] = make()
        return self._found[name]
