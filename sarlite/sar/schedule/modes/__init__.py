"""The modes: in which order a layer's remote rows are fetched and used.

A mode is a value; a new mode is a file here and a line in `MODES`. A mode has

    plan(needs, prefetch) -> Plan        the pieces, forward and backward
    fetch                                the class that brings the rows of forward pieces, of `transport` or `broadcast`
    keeps_rows                           True if the rows of each block are kept for backward, so that nothing is fetched
                                         again; backward then takes the forward pieces, the own tile last
    reverses                             True if a linear message's gradient goes over the reversed edges by default
    in_step                              True if all ranks take the pieces in one order, so that they wait for each
                                         other, and send each rank all rows as they stand
"""

from typing import Any

from sarlite.sar.schedule.modes.broadcast import Broadcast
from sarlite.sar.schedule.modes.sequential import Sequential

MODES: dict[str, Any] = {
    "sar": Sequential("sar", keeps_rows=False),
    "sa": Sequential("sa", keeps_rows=True),
    "oneshot": Sequential("oneshot", keeps_rows=True, peers_at_once=None),
    "broadcast": Broadcast(),
}
