"""The modes: orders for fetching and using a layer's remote rows.

A mode is a value. A new mode is a file here and a line in `MODES`.
"""

from typing import Protocol

from sarlite.schedule.broadcast_transport import Broadcasts
from sarlite.schedule.modes.broadcast import Broadcast
from sarlite.schedule.modes.sequential import Sequential
from sarlite.schedule.needs import Needs
from sarlite.schedule.pieces import Plan
from sarlite.schedule.transport import Fetch


class Mode(Protocol):
    """Order for fetching and using a layer's remote rows; `str(mode)` is its name."""

    def plan(self, needs: Needs, prefetch: int) -> Plan:
        """Return the plan of one rank: its forward and backward pieces."""
        ...

    @property
    def fetch(self) -> "type[Fetch] | type[Broadcasts]":
        """The class that brings the rows of forward pieces: `transport.Fetch` or `broadcast_transport.Broadcasts`."""
        ...

    @property
    def keeps_rows(self) -> bool:
        """True if the rows of each block are kept for backward, so that no rows are fetched again.

        The backward pieces are then the forward pieces with the own tile last.
        """
        ...

    @property
    def reverses(self) -> bool:
        """True if the gradient of a linear message is by default computed over the reversed edges."""
        ...

    @property
    def in_step(self) -> bool:
        """True if all ranks take the pieces in one order, wait for each other, and send all their rows to each rank."""
        ...


MODES: dict[str, Mode] = {
    "sar": Sequential("sar", keeps_rows=False),
    "sa": Sequential("sa", keeps_rows=True),
    "oneshot": Sequential("oneshot", keeps_rows=True, peers_at_once=None),
    "broadcast": Broadcast(),
}
