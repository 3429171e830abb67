"""SharedState: the attributes that Graph and HeteroGraph have in common."""

import copy
from typing import TypeVar

from sarlite.comm import Communicator
from sarlite.profile import Profile
from sarlite.schedule.communicator_state import CommState, Memo

T = TypeVar("T", bound="SharedState")


class SharedState:
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
        graph = copy.copy(self)
        graph.memo = Memo(self.memo.state)
        return graph

    def recover(self) -> None:
        """Make the graphs of the communicator usable again after an aggregation that failed. Collective.

        Later calls compute the stored results and exchanges again.
        """
        self.memo.state.recover()
