"""Pieces and plans: a piece is a block of edges and the rows that must arrive before the block is computed.

A plan is two lists of pieces, one for the forward pass and one for the backward pass.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from sarlite.structure.block import Bundle, Edges
from sarlite.types import Array, RowIndex


class Arrival(NamedTuple):
    """One exchange of rows: this rank receives rows of rank `source` and sends `send_rows` to rank `target`.

    Attributes
    ----------
    source : int
        Rank whose rows arrive. In a broadcast `source` may be this rank, which then sends rows and receives none.
    target : int, or None
        Rank that receives `send_rows`; None in a broadcast, where the source's rows go to every rank.
    n_rows : int
        Number of rows that arrive.
    contiguous : bool
        True if the arriving rows are consecutive at their owner, which then sends each array without copying rows.
    send_rows : slice or (n_send,) int
        Local rows to send, a slice if they are consecutive. They ascend on a graph, but not in a batch.
    needed : slice or (n_columns,) int, optional
        Positions, among the arriving rows, of the rows that are columns of the block; by default all rows.
    """

    source: int
    target: int | None
    n_rows: int
    contiguous: bool
    send_rows: RowIndex
    needed: RowIndex | None = None

    @property
    def n_send(self) -> int:
        """Number of rows that this rank sends in this exchange."""
        return length(self.send_rows)

    @property
    def n_columns(self) -> int:
        """Number of the arriving rows that are sources of the piece's edges (columns of its block): `n_rows`, or fewer in a
        broadcast, which also brings rows that this rank does not need.
        """
        return self.n_rows if self.needed is None else length(self.needed)

    def cut(self, n: int) -> list["Arrival"]:
        """Divide this exchange into `n`: return a list of Arrivals with nearly equal shares of the rows that arrive and of the rows
        to send.
        """
        received, sent = ((np.arange(n + 1) * m // n).tolist() for m in (self.n_rows, self.n_send))
        return [self._replace(n_rows=received[k + 1] - received[k],
                              send_rows=some(self.send_rows, sent[k], sent[k + 1])) for k in range(n)]


class Piece(NamedTuple):
    """One step of an aggregation: a block of edges, and the exchanges that bring the rows of its sources.

    The block's columns are this rank's rows if `own` is True; otherwise they are the rows of the arrivals, one after the other.

    Attributes
    ----------
    block : Edges or Bundle, or None
        Edges to compute. With None this rank only sends rows.
    own : bool
        True if the block's columns are this rank's own rows.
    arrivals : tuple of Arrival
        Exchanges that bring the rows of peers.
    share : Fraction
        Number of peers whose rows arrive. It is below 1 if the rows of one peer arrive in several pieces.
    """

    block: Edges | Bundle | None
    own: bool = False
    arrivals: tuple[Arrival, ...] = ()
    share: Fraction = Fraction(1)

    @property
    def n_rows(self) -> int:
        """Number of peers' rows that arrive for this piece."""
        return sum(arrival.n_rows for arrival in self.arrivals)

    def cut(self, n: int) -> list["Piece"]:
        """Divide this piece (a block of edges with its source rows) into a list of `n` pieces, one for each of `n` nearly equal
        ranges of the block's columns. The rows of the piece must come from one peer, in one exchange.
        """
        if n == 1:
            return [self]
        (arrival,), block = self.arrivals, self.block
        assert block is not None  # only a broadcasting rank's own piece, which is never cut, may lack a block
        parts, ends = arrival.cut(n), [0]
        for part in parts:
            ends.append(ends[-1] + part.n_rows)
        return [Piece(block.columns(a, b), False, (part,), self.share / n)
                for part, a, b in zip(parts, ends, ends[1:])]


class Plan(NamedTuple):
    """Order of one rank's computation over a graph: its pieces, which are blocks of edges, once for the forward pass and once for the
    backward pass.

    Attributes
    ----------
    n_src : int
        Number of source rows that this rank owns.
    forward, backward : tuple of Piece
        Pieces in the order of computation. Every in-edge of this rank is in exactly one forward piece and in exactly
        one backward piece. Backward pieces exchange rows between two peers, never by broadcast.
    degree : float
        Mean number of edges of a destination row, over all ranks.
    """

    n_src: int
    forward: tuple[Piece, ...]
    backward: tuple[Piece, ...]
    degree: float = 0.0

    @property
    def blocks(self) -> tuple[Edges | Bundle, ...]:
        """The blocks of the forward pieces, ordered by their columns: the block of this rank's own rows comes first."""
        blocks = (piece.block for piece in self.forward if piece.block is not None)
        return tuple(sorted(blocks, key=lambda block: block.offset))

    @property
    def local(self) -> Edges | Bundle:
        """The block of edges from this rank's own rows, in the forward pass; it has all edges if no rows of peers are needed."""
        return next(piece.block for piece in self.forward if piece.own and piece.block is not None)

    @property
    def single_block(self) -> bool:
        """True if one block has all edges, and no peer's rows arrive."""
        return not any(piece.arrivals for piece in self.forward)

    @property
    def n_halo(self) -> int:
        """Number of halo rows: rows of peers that this rank needs."""
        return sum(arrival.n_rows for arrival in self.exchanges)

    @property
    def exchanges(self) -> list[Arrival]:
        """Exchanges of rows with peers in the backward pieces, a list of `Arrival`s grouped by peer. The rows of a peer are in
        ascending order.
        """
        return [arrival for piece in self.backward for arrival in piece.arrivals]

    def halo(self) -> list[tuple[Edges | Bundle, int, slice]]:
        """Return a list of (block, MPI rank that owns the rows, slice of the block's columns), one for each range of halo rows (rows of
        peers), in ascending order of their columns.
        """
        columns = []
        for piece in self.forward:
            if piece.block is None:
                continue
            start = self.n_src if piece.own else 0
            for arrival in piece.arrivals:
                if arrival.n_columns:
                    columns.append((piece.block, arrival.source, slice(start, start + arrival.n_columns)))
                start += arrival.n_columns
        return sorted(columns, key=lambda each: each[0].offset)

    def needed(self, size: int) -> list[int]:
        """Return a list that has, for each of the `size` ranks, the number of its rows that this rank needs."""
        counts = [0] * size
        for arrival in self.exchanges:
            counts[arrival.source] += arrival.n_rows
        return counts

    def asked(self, size: int) -> list[Array]:
        """Return a list that has, for each of the `size` ranks, the rows of this rank that are sent to it, (n,) int64, in sending order."""
        sent: list[list[Array]] = [[np.empty(0, np.int64)] for _ in range(size)]
        for arrival in self.exchanges:
            rows = arrival.send_rows
            assert arrival.target is not None  # backward pieces never broadcast
            numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.astype(np.int64)
            sent[arrival.target].append(numbers)
        return [np.concatenate(parts) for parts in sent]


def length(rows: RowIndex) -> int:
    """Return the number of rows in a slice or in an array of row numbers."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def some(rows: RowIndex, a: int, b: int) -> RowIndex:
    """Return the rows at positions a .. b - 1 of a slice or an array of row numbers."""
    return slice(rows.start + a, rows.start + b) if isinstance(rows, slice) else rows[a:b]


def as_range(rows: Array) -> RowIndex:
    """Return row numbers as a slice if they are consecutive, else as int32 or, if they are too large, int64.

    Examples
    --------
    >>> as_range(np.array([4, 5, 6])), as_range(np.array([4, 6]))
    (slice(4, 7, None), array([4, 6], dtype=int32))
    """
    if len(rows) == 0:
        return slice(0, 0)
    if rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows.astype(np.int32 if rows.max() < 2**31 else np.int64)
