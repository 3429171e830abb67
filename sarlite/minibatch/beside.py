"""Messages exchanged beside computing: in pieces, and by a look now and then, so that neither the link nor a core is taken from it."""

import time
from collections.abc import Callable, Sequence

from sarlite.comm import Communicator
from sarlite.types import Array

PIECE_BYTES = 1 << 19
"""What else is sent to a peer waits for a piece at most, not for a message: 4 ms at 1 Gbit/s."""
PAUSE = 4e-4
"""Seconds between looks. MPI's own wait spins: on full cores it would take half the time of what computes there."""


def exchange(comm: Communicator, given: Sequence[Array], wanted: Sequence[Array], hurried: Callable[[], bool]) -> None:
    """Send given[q] to each other rank q, and fill wanted[q] with what it sends here. Collective.

    Parameters
    ----------
    comm : Communicator
        Nothing else is sent on it meanwhile.
    given, wanted : list by rank of (n_bytes,) uint8 arrays
        wanted[q] has the length of what q gives this rank; this rank's own are passed over. Borrowed until the return.
    hurried : callable
        Whether somebody waits for the end; then looks follow each other without a pause.

    Raises
    ------
    PeerError
        A rank failed.

    Notes
    -----
    Any thread may call it. One piece a peer and direction is under way. What is under way goes on only at a look, so it never waits for
    a single piece: two ranks could wait for each other's next one.
    """
    lanes = []
    for step in range(1, comm.size):  # in a ring, so that not all send to one rank at once
        source, target = (comm.rank - step) % comm.size, (comm.rank + step) % comm.size
        lanes += [_lane(comm.start_recv, source, wanted[source]), _lane(comm.start_send, target, given[target])]
    while lanes:
        moved = [next(lane, None) for lane in lanes]
        lanes = [lane for lane, found in zip(lanes, moved) if found is not None]
        if lanes and not any(moved):
            time.sleep(0 if hurried() else PAUSE)


def _lane(start, peer, array):
    """Yield at each look, until all pieces are there, whether one has come since the last."""
    for at in range(0, len(array), PIECE_BYTES):
        request, moved = start(array[at : at + PIECE_BYTES], peer), at > 0
        while not request.test():
            yield moved
            moved = False
        request.wait()
