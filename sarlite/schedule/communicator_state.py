"""What the graphs of one communicator share: tags, a failure after which all refuse, how long they keep things."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from sarlite.errors import PeerError, SarliteError

T = TypeVar("T")


class CommState:
    """What the graphs of one communicator share.

    Attributes
    ----------
    n_tags : int
        The number of the last tag.
    generation : int
        How often the graphs recovered. What a graph kept before is void: see `Memo`.
    failure : str or None
        The failure after which no graph is usable.
    broadcasting, fetching : list of Ahead
        Threads of transfers that are not over: those that take part in every broadcast, and those that wait for peers'
        messages.
    channels : list of Communicator
        The channels of messages.
    """

    def __init__(self, comm: Any) -> None:
        self.comm, self.n_tags, self.generation = comm, 0, 0
        self.failure: str | None = None
        self.broadcasting: list[Any] = []
        self.fetching: list[Any] = []
        self.channels = [comm.channel(name) for name in ("fetch", "push")]

    @classmethod
    def of(cls, comm: Any) -> "CommState":
        """Return the state of a communicator, made at the first call. Collective then."""
        kept = comm.channel("fetch").__dict__
        if "_state" not in kept:
            kept["_state"] = cls(comm)
        return kept["_state"]

    def check(self) -> None:
        """Raise a PeerError after a failure."""
        if self.failure is not None:
            again = "graph.recover() on every rank makes graphs usable again"
            raise PeerError(f"an aggregation failed ({self.failure}); {again}")

    def fail(self, error: BaseException) -> None:
        """Note that messages may be missing from here on."""
        if self.comm.size > 1:
            self.failure = f"{type(error).__name__}: {error}"

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do what all ranks do once; where it fails on one of them, as for want of memory, graphs refuse there."""
        self.check()
        try:
            yield
        except SarliteError:  # raised on all ranks together, or noted where the messages travel
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def recover(self) -> None:
        """Make the graphs usable: drop what is under way, void what was kept, agree on the next tag. Collective."""
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
    """What a graph keeps of what ranks found together, by name, until the communicator's graphs recover.

    Where a rank failed, the ranks that finished have kept what that rank has not. Were it still used after `recover`,
    they would skip an exchange that the rank waits for. So every rank then finds everything anew.
    """

    def __init__(self, state: CommState) -> None:
        self.state, self._generation = state, state.generation
        self._found: dict[Any, Any] = {}

    def get(self, name: Any, make: Callable[[], T]) -> T:
        """Return what is kept under a name, made at the first call. Where `make` is collective, so is that call."""
        if self._generation != self.state.generation:
            self._generation, self._found = self.state.generation, {}
        if name not in self._found:
            with self.state.together():
                self._found[name] = make()
        return self._found[name]
