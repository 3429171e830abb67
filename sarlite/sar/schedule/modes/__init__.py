"""The modes: how a layer's remote rows are computed with.

A mode is a value; a new one is a file here and a line in `MODES`.

    lay_out(needs, prefetch) -> Plan     the pieces, forward and backward
    fetch                                the class that brings the rows of forward pieces: `transport.Fetch` or
                                         `broadcast.Broadcasts`
    keeps                                whether what the operator returns of each forward piece is kept for backward,
                                         so that nothing is fetched again; then backward takes the forward pieces, the
                                         own tile last
    reverses                             whether a linear message's gradient goes over the reversed edges by default
    in_step                              whether all ranks take the parts in one order, so that they wait for each
                                         other, and send each all rows as they stand, which are then no `kernels.Rows`
"""

from typing import Any

from sarlite.sar.schedule.modes.broadcast import Broadcast
from sarlite.sar.schedule.modes.oneshot import OneShot
from sarlite.sar.schedule.modes.sequential import Sequential

MODES: dict[str, Any] = {
    mode.name: mode
    for mode in (Sequential("sar", keeps=False), Sequential("sa", keeps=True), OneShot(), Broadcast())
}
