"""The modes: how a layer's remote rows are computed with. A mode is an object; a new one is a file here and a line in `MODES`.

    prepare(exchange, prefetch) -> Plan            the blocks as the mode wants them
    run(schedule, arrays, visit, phase) -> list    call visit(block, rows) for each block; return what it returned, in order
    run_backward(schedule, arrays, kept, visit, d_arrays, phase)
                                                   call visit(block, rows, kept, d_rows) for each, and bring d_rows to the rows' owners
    keeps                                          whether `run`'s list is kept for backward, so that nothing is fetched again
    turns                                          whether a linear message's gradient goes over the reversed edges by default
    in_step                                        whether all ranks take the parts in one order, so that they wait for each other, and
                                                   send each all rows as they stand, which are then no `kernels.Rows`
"""

from sarlite.sar.modes.broadcast import Broadcast
from sarlite.sar.modes.oneshot import OneShot
from sarlite.sar.modes.sequential import Sequential

_ALL = (Sequential("sar", keeps=False), Sequential("sa", keeps=True), OneShot(), Broadcast("broadcast", keeps=False))
MODES = {mode.name: mode for mode in _ALL}
