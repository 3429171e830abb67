"""SharedState: the attributes that Graph and HeteroGraph have in common, and the rules for their copies and pickles."""

from typing import Protocol, TypeVar

from sarlite.comm import Communicator
from sarlite.profile import Profile
from sarlite.schedule.communicator_state import CommState, Memo
from sarlite.types import Array

T = TypeVar("T", bound="SharedState")
U = TypeVar("U", bound="Unchanging")


class Unchanging:
    """Base class of immutable objects: `copy.deepcopy` returns the object itself."""

    def __deepcopy__(self: U, memo: dict[int, object]) -> U:
        return self


class SharedState(Unchanging):
    """Base class of Graph and HeteroGraph, so that both count transfers, store results for later calls, and recover from failures
    alike.

    Attributes
    ----------
    comm : Communicator
    profile : Profile
        Counters of bytes and remote buffers.
    memo : Memo
        Results that later calls use again, such as sums of constant rows. `recover` discards them.
    """

    def __init__(self, comm: Communicator, profile: Profile, state: CommState) -> None:
        self.comm, self.profile, self.memo = comm, profile, Memo(state)

    def copy_without_memo(self: T) -> T:
        """Return a shallow copy of the graph whose cache of results, such as stored sums and exchanges, is empty."""
        graph: T = object.__new__(type(self))
        vars(graph).update(vars(self), memo=Memo(self.memo.state))
        return graph

    def __copy__(self: T) -> T:
        return self.copy_without_memo()

    def recover(self) -> None:
        """Make all graphs of this communicator usable again after an aggregation that failed. Collective.

        After a failure every call on these graphs raises a PeerError until each rank has called `recover`. Stored
        results and exchanges are computed again when they are next needed.
        """
        self.memo.state.recover()


class OutputRows(Protocol):
    """Protocol of an object that describes the rows that a layer outputs on this rank, for norms and activations: a graph or a batch."""

    @property
    def comm(self) -> Communicator: ...
    @property
    def dst_ids(self) -> Array: ...


def check_whole(graph: OutputRows | SharedState) -> None:
    """Raise a TypeError if `graph` is one rank's part of a graph: such a part cannot be pickled without its peers."""
    if graph.comm.size > 1:
        raise TypeError(f"a part of a {type(graph).__name__} on {graph.comm.size} ranks is not pickled, as its peers "
                        "exchange rows with it: pickle the whole graph, or its edges, and divide it on the ranks of "
                        "the other program")
