"""Rows broadcast in turn, in one order on every rank (MG-GCN 4.1, Figure 2), or ahead by a thread (MG-GCN 4.3)."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from sarlite.comm import Communicator, Request
from sarlite.comm.wire_arrays import check_calls
from sarlite.schedule.ahead import Ahead
from sarlite.schedule.messages import allocate
from sarlite.schedule.pieces import Piece
from sarlite.schedule.transport import Fetch, Transport, wait_all
from sarlite.types import Array

MOVED_BYTES = 1 << 17
"""Bytes of rows that are moved at once, each time copied: few, so that they stay in the processor's cache."""


class Broadcasts(Fetch):
    """Brings the rows of pieces by broadcasts.

    The source of a piece sends all its rows, or a range of them, to every rank. With prefetch a thread brings the rows
    of up to `prefetch` ranks ahead of the rows in use. Two broadcasts are then in progress at a time, so that the setup
    of the second is hidden behind the first.

    If the computation fails on a rank, the rank still takes part in the remaining broadcasts and drops their rows.
    Other ranks, which may have failed at another piece, wait for it.
    """

    def __init__(self, transport: Transport, pieces: Sequence[Piece], arrays: tuple[Array, ...], phase: str) -> None:
        super().__init__(transport, pieces, arrays, phase)
        self.left = deque(self.coming)

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
    def threads(self) -> list[Ahead[Any]]:
        return self.transport.state.broadcasting

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        if error is not None and not self.ahead:
            while self.left:
                self.bring(self.left[0])

    def check(self) -> None:
        """Raise a ShapeError on every rank unless all ranks broadcast rows of the same shape and dtype. Collective."""
        rows = ", ".join(f"{dtype} rows of shape {shape}" for shape, dtype in self.templates)
        check_calls(self.comm.allgather(f"broadcasts of {rows}"))

    def release(self, piece: Piece) -> None:
        if not piece.own:
            super().release(piece)

    def bring(self, piece: Piece) -> tuple[tuple[Array, ...], Sequence[Request | None]]:
        self.left.popleft()
        try:
            return self.start(piece)(), ()
        except BaseException:
            self.left.clear()  # nobody knows how far the other ranks are
            raise

    def produce(self, leave: Callable[..., bool]) -> Iterator[tuple[Array, ...]]:
        under_way = deque[Callable[[], tuple[Array, ...]]]()
        self.check()
        for piece in self.coming:
            if not piece.own and not leave(wait=False):
                while under_way:  # before rows are freed they must be here
                    yield under_way.popleft()()
                leave()
            under_way.append(self.start(piece))
            if len(under_way) > 1:
                yield under_way.popleft()()
        while under_way:
            yield under_way.popleft()()

    def start(self, piece: Piece) -> Callable[[], tuple[Array, ...]]:
        """Start to broadcast the rows of a piece.

        Return a function that waits for the transfer and returns the rows of the piece's columns.
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
    """Return the needed rows; if their numbers ascend, move the rows to the front of `rows` in place.

    Each row only moves towards the front, and never over a row that is still to be read.
    """
    if isinstance(needed, slice) or not (np.diff(needed) > 0).all():
        return rows[needed]
    some = max(1, moved_bytes * len(rows) // max(rows.nbytes, 1))
    for a in range(0, len(needed), some):
        part = needed[a : a + some]
        rows[a : a + len(part)] = rows[part]
    return rows[: len(needed)]
