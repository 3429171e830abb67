"""The modes: in which order a layer's remote rows are fetched and used.

A mode is a value; a new mode is a file here and a line in `MODES`.
"""

from typing import Any, Protocol

from sarlite.schedule.modes.broadcast import Broadcast
from sarlite.schedule.modes.sequential import Sequential
from sarlite.schedule.needs import Needs
from sarlite.schedule.pieces import Plan


class Mode(Protocol):
    """The order in which a layer's remote rows are fetched and used; `str(mode)` is its name."""

    def plan(self, needs: Needs, prefetch: int) -> Plan:
        """Return the pieces, forward and backward."""
        ...

    @property
    def fetch(self) -> Any:
        """The class that brings the rows of forward pieces, of `transport` or `broadcast`."""
        ...

    @property
    def keeps_rows(self) -> bool:
        """True if the rows of each block are kept for backward, so that no rows are fetched again.

        Backward then takes the forward pieces, the own tile last.
        """
        ...

    @property
    def reverses(self) -> bool:
        """True if a linear message's gradient goes over the reversed edges by default."""
        ...

    @property
    def in_step(self) -> bool:
        """True if all ranks take the pieces in one order, wait for each other, and send each rank all rows."""
        ...


MODES: dict[str, Mode] = {
    "sar": Sequential("sar", keeps_rows=False),
    "sa": Sequential("sa", keeps_rows=True),
    "oneshot": Sequential("oneshot", keeps_rows=True, peers_at_once=None),
    "broadcast": Broadcast(),
}
