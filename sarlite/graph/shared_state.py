"""SharedState: the attributes that Graph and HeteroGraph have in common, and what copies and pickles of graphs are."""

from typing import Any, TypeVar

from sarlite.comm import Communicator
from sarlite.profile import Profile
from sarlite.schedule.communicator_state import CommState, Memo

T = TypeVar("T", bound="SharedState")
U = TypeVar("U", bound="Unchanging")


class Unchanging:
    """Base class of objects that never change: a deep copy is the object itself, on any number of ranks."""

    def __deepcopy__(self: U, memo: dict[int, Any]) -> U:
        return self


class SharedState(Unchanging):
    """A graph's communicator, its counters, and the results that its ranks computed together.

    Attributes
    ----------
    comm : Communicator
    profile : Profile
        Counters of bytes and remote buffers.
    memo : Memo
        Results that later calls use, as scales and sums of constant rows. `recover` voids them.
    """

    def __init__(self, comm: Communicator, profile: Profile, state: CommState) -> None:
        self.comm, self.profile, self.memo = comm, profile, Memo(state)

    def copy_without_memo(self: T) -> T:
        """Return a shallow copy of the graph without stored results."""
        graph: T = object.__new__(type(self))
        vars(graph).update(vars(self), memo=Memo(self.memo.state))
        return graph

    def __copy__(self: T) -> T:
        return self.copy_without_memo()

    def recover(self) -> None:
        """Make the graphs of the communicator usable again after an aggregation that failed. Collective.

        Later calls compute the stored results and exchanges again.
        """
        self.memo.state.recover()


def check_whole(graph: Any) -> None:
    """Raise a TypeError if a graph to be pickled is a part: peers, which exchange rows with it, have no copy."""
    if graph.comm.size > 1:
        raise TypeError(f"a part of a {type(graph).__name__} on {graph.comm.size} ranks is not pickled, as its peers "
                        "exchange rows with it: pickle the whole graph, or its edges, and divide it on the ranks of "
                        "the other program")
