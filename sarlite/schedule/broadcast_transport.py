"""Transport of mode "broadcast": each rank in turn broadcasts its rows to all ranks (MG-GCN paper, section 4.1, figures 2 and 3).

With prefetch, a thread runs the broadcasts ahead of the computation (MG-GCN 4.3).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import numpy as np

from sarlite.comm import Communicator, Request
from sarlite.comm.wire_arrays import check_calls
from sarlite.schedule.communicator_state import Waitable
from sarlite.schedule.messages import allocate
from sarlite.schedule.pieces import Piece
from sarlite.schedule.transport import Fetch, Transport, wait_all
from sarlite.types import Array

MOVED_BYTES = 1 << 17
"""Number of bytes that `columns_of` moves in one copy: few, so that they stay in the processor's cache."""


class Broadcasts(Fetch):
    """Fetch of peers' rows by broadcasts. For each piece, a block of edges whose sources belong to one rank, that rank sends its rows
    to every rank.

    The owner sends all its rows, or a range of its rows. With prefetch a thread fetches the rows of up to `prefetch`
    ranks ahead of the rows in use. Then two broadcasts are in progress at a time, so that the setup of the second is
    hidden behind the first.

    If the computation fails on a rank, the rank still takes part in the remaining broadcasts and drops their rows,
    because the other ranks wait for it.
    """

    def __init__(self, transport: Transport, pieces: Sequence[Piece], arrays: tuple[Array, ...], phase: str) -> None:
        super().__init__(transport, pieces, arrays, phase)
        self.remaining = deque(self.coming)

    def __enter__(self):
        if self.coming and not self.goes_ahead:
            try:
                self.check()
            except BaseException as error:
                self.transport.state.fail(error)
                raise
        return super().__enter__()

    @staticmethod
    def channel_of(transport: Transport) -> Communicator:
        return transport.comm.channel("broadcast")

    @property
    def threads(self) -> list[Waitable]:
        return self.transport.state.broadcasting

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        if error is not None and not self.ahead:
            while self.remaining:
                self.bring(self.remaining[0])

    def check(self) -> None:
        """Raise a ShapeError on every rank unless all ranks broadcast rows of the same shape and dtype. Collective."""
        rows = ", ".join(f"{dtype} rows of shape {shape}" for shape, dtype in self.templates)
        check_calls(self.comm.allgather(f"broadcasts of {rows}"))

    def release(self, piece: Piece) -> None:
        if not piece.own:
            super().release(piece)

    def bring(self, piece: Piece) -> tuple[tuple[Array, ...], Sequence[Request | None]]:
        self.remaining.popleft()
        try:
            return self.start(piece)(), ()
        except BaseException:
            self.remaining.clear()  # a broadcast failed, so this rank does not know how far the other ranks are
            raise

    def produce(self, may_continue: Callable[..., bool]) -> Iterator[tuple[Array, ...]]:
        in_progress = deque[Callable[[], tuple[Array, ...]]]()
        self.check()
        for piece in self.coming:
            if not piece.own and not may_continue(wait=False):
                while in_progress:  # the consumer releases rows only after it has taken them
                    yield in_progress.popleft()()
                may_continue()  # False after a failure, when this rank still takes part in the other ranks' broadcasts
            in_progress.append(self.start(piece))
            if len(in_progress) > 1:
                yield in_progress.popleft()()
        while in_progress:
            yield in_progress.popleft()()

    def start(self, piece: Piece) -> Callable[[], tuple[Array, ...]]:
        """Start the broadcasts of the rows of `piece`, one for each array. Return a function that waits for them and returns the rows
        of the piece's columns.

        Returns
        -------
        callable () -> tuple of (n_columns, ...) array
            Waits for the broadcasts and returns the rows of the piece's columns.
        """
        (arrival,) = piece.arrivals
        if piece.own:
            rows = tuple(array[arrival.send_rows] for array in self.arrays)
        else:
            buffer, rows = allocate(arrival.n_rows, self.templates)
            self.profile.hold(buffer, piece.share)
        n_bytes = sum(array.nbytes for array in rows)
        others = [peer for peer in range(self.comm.size) if peer != self.comm.rank] if piece.own else []
        sent = len(others) * n_bytes
        span = self.profile.span("broadcast", "fetch", peer=arrival.source, bytes=n_bytes, phase=self.phase)
        requests = [self.comm.start_broadcast(array, arrival.source) for array in rows if array.nbytes]

        def finish():
            wait_all(requests)
            span.end()
            self.profile.count(f"{self.phase}_fetch", sent, 0 if piece.own else n_bytes, to=others)
            return self.arrays if piece.own else tuple(columns_of(array, arrival.needed) for array in rows)

        return finish


def columns_of(rows, needed, moved_bytes=MOVED_BYTES):
    """Return `rows[needed]`, where `needed` has row numbers or is a slice. If the numbers ascend, the rows are moved to the front of
    `rows` in place, `moved_bytes` at a time, to save the memory of a second array.

    Each row moves towards the front only, and never over a row that is still to be read.

    Examples
    --------
    >>> rows = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> columns_of(rows, np.array([1, 3])).ravel(), rows.ravel()
    (array([1., 3.]), array([1., 3., 2., 3.]))
    """
    if isinstance(needed, slice) or not (np.diff(needed) > 0).all():
        return rows[needed]
    n_at_once = max(1, moved_bytes * len(rows) // max(rows.nbytes, 1))
    for a in range(0, len(needed), n_at_once):
        part = needed[a : a + n_at_once]
        rows[a : a + len(part)] = rows[part]
    return rows[: len(needed)]
