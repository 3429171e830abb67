"""The modes: each is one order of fetching and using a layer's remote rows.

A mode is a value with the methods of `Mode`. A new mode is a file in this folder and a line in `MODES`.
"""

from typing import Protocol

from sarlite.schedule.broadcast_transport import Broadcasts
from sarlite.schedule.modes.broadcast import Broadcast
from sarlite.schedule.modes.sequential import Sequential
from sarlite.schedule.needs import Needs
from sarlite.schedule.pieces import Plan
from sarlite.schedule.transport import Fetch


class Mode(Protocol):
    """Interface of modes: a mode is an order of fetching and using the rows of other ranks; `str(mode)` is its name."""

    def plan(self, needs: Needs, prefetch: int) -> Plan:
        """Return the plan of one rank, its pieces of work in order, from `needs`, the rows that ranks need of each other. `prefetch` is
        the number of peers to fetch ahead.
        """
        ...

    @property
    def fetch(self) -> "type[Fetch] | type[Broadcasts]":
        """Class that fetches the rows of forward pieces: `transport.Fetch` or `broadcast_transport.Broadcasts`."""
        ...

    @property
    def keeps_rows(self) -> bool:
        """True if the rows of each block are kept for the backward pass, so that no rows are fetched again.

        The backward pieces are then the forward pieces, with the own tile last.
        """
        ...

    @property
    def reverses(self) -> bool:
        """True if gradients of linear messages are by default computed over the reversed edges (`backward="fetch"`)."""
        ...

    @property
    def in_step(self) -> bool:
        """True if every rank sends all its rows to all ranks, and all ranks take the pieces in the same order."""
        ...


MODES: dict[str, Mode] = {  # by name, as in the option `mode`
    "sar": Sequential("sar", keeps_rows=False),
    "sa": Sequential("sa", keeps_rows=True),
    "oneshot": Sequential("oneshot", keeps_rows=True, peers_at_once=None),
    "broadcast": Broadcast(),
}
