"""Pieces: units of computation, with the rows that must arrive before each.

A plan is two lists of pieces, forward and backward.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from sarlite.structure.block import Bundle, Edges
from sarlite.types import RowIndex


class Arrival(NamedTuple):
    """Exchange of rows: this rank receives rows of `source` and sends its `send_rows` to `target`.

    Attributes
    ----------
    source : int
        Rank whose rows arrive. In a broadcast it may be this rank; then it sends its rows and none arrive.
    target : int, or None
        Rank that `send_rows` go to; None in a broadcast, where the source's rows go to every rank.
    n_rows : int
        Number of rows that arrive.
    contiguous : bool
        True if the rows that arrive are consecutive at their owner, which then sends them array by array without
        copying.
    send_rows : slice or (n_send,) int
        Local rows to send, ascending on a graph; a slice if they are consecutive.
    needed : slice or (n_columns,) int, optional
        Arriving rows that are columns of the block; by default all are.
    """

    source: int
    target: int | None
    n_rows: int
    contiguous: bool
    send_rows: RowIndex
    needed: RowIndex | None = None

    @property
    def n_send(self) -> int:
        """Number of rows to send."""
        return length(self.send_rows)

    @property
    def n_columns(self) -> int:
        """Number of the arriving rows that are columns of the block."""
        return self.n_rows if self.needed is None else length(self.needed)

    def cut(self, n: int) -> list["Arrival"]:
        """Divide the arriving rows, and the rows to send, into `n` parts of nearly equal size."""
        come, go = ((np.arange(n + 1) * m // n).tolist() for m in (self.n_rows, self.n_send))
        return [self._replace(n_rows=come[k + 1] - come[k], send_rows=some(self.send_rows, go[k], go[k + 1]))
                for k in range(n)]


class Piece(NamedTuple):
    """One unit of computation: a block of edges, and the sources of the rows of the block's columns.

    Attributes
    ----------
    block : Edges, or Bundle of several sets of edges, or None
        The block's columns are this rank's rows if `own`, then the rows of each arrival. With None rows are sent, and
        nothing is computed.
    own : bool
        True if this rank's own rows are the first columns.
    arrivals : tuple of Arrival
    share : Fraction
        Number of peers whose rows arrive; below 1 if the rows of one peer arrive in several pieces.
    """

    block: Edges | Bundle | None
    own: bool = False
    arrivals: tuple[Arrival, ...] = ()
    share: Fraction = Fraction(1)

    @property
    def n_rows(self) -> int:
        """Number of rows that arrive."""
        return sum(arrival.n_rows for arrival in self.arrivals)

    def cut(self, n: int) -> list["Piece"]:
        """Divide a piece that has one arrival into `n` pieces, each for a range of the block's columns."""
        if n == 1:
            return [self]
        (arrival,), block = self.arrivals, self.block
        assert block is not None  # a piece whose rows arrive computes
        parts, ends = arrival.cut(n), [0]
        for part in parts:
            ends.append(ends[-1] + part.n_rows)
        return [Piece(block.columns(a, b), False, (part,), self.share / n)
                for part, a, b in zip(parts, ends, ends[1:])]


class Plan(NamedTuple):
    """Work of one rank over a graph, as two lists of pieces that a mode builds.

    Attributes
    ----------
    n_src : int
        Number of source rows that this rank owns.
    forward, backward : tuple of Piece
        Pieces in the order in which the rank takes them. Every edge of the rank is in one forward and in one backward
        piece. Backward pieces always exchange rows between two peers, never by broadcast.
    degree : float
        Mean number of edges of a destination row, over all ranks.
    """

    n_src: int
    forward: tuple[Piece, ...]
    backward: tuple[Piece, ...]
    degree: float = 0.0

    @property
    def blocks(self) -> tuple[Edges | Bundle, ...]:
        """The blocks of the forward pieces in the order of their columns.

        The first block holds the local edges, or all edges if there is one block.
        """
        blocks = (piece.block for piece in self.forward if piece.block is not None)
        return tuple(sorted(blocks, key=lambda block: block.offset))

    @property
    def local(self) -> Edges | Bundle:
        """The block that holds the edges from this rank's own rows; with one block of all edges, that block."""
        return next(piece.block for piece in self.forward if piece.own and piece.block is not None)

    @property
    def single_block(self) -> bool:
        """True if one block has all edges, and no peer's rows arrive."""
        return not any(piece.arrivals for piece in self.forward)

    @property
    def n_halo(self) -> int:
        """Number of peers' rows that this rank needs."""
        return sum(arrival.n_rows for arrival in self.exchanges)

    @property
    def exchanges(self) -> list[Arrival]:
        """The arrivals of the backward pieces, grouped by peer; the rows of each peer ascend."""
        return [arrival for piece in self.backward for arrival in piece.arrivals]

    def halo(self) -> list[tuple[Edges | Bundle, int, slice]]:
        """Return (block, owner, columns of the block) for the peers' rows, in the order of all blocks' columns."""
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
        """Return, for each rank, the number of its rows that this rank needs."""
        found = [0] * size
        for arrival in self.exchanges:
            found[arrival.source] += arrival.n_rows
        return found

    def asked(self, size: int) -> list[np.ndarray]:
        """Return, for each rank, the local rows that are sent to it, (n,) int64, in the order of sending."""
        found = [[np.empty(0, np.int64)] for _ in range(size)]
        for arrival in self.exchanges:
            rows = arrival.send_rows
            assert arrival.target is not None  # backward pieces come and go from peer to peer
            numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.astype(np.int64)
            found[arrival.target].append(numbers)
        return [np.concatenate(rows) for rows in found]


def length(rows: RowIndex) -> int:
    """Return the number of rows in a slice or in an array of row numbers."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def some(rows: RowIndex, a: int, b: int) -> RowIndex:
    """Return the rows at positions a .. b - 1 of a slice or an array of row numbers."""
    return slice(rows.start + a, rows.start + b) if isinstance(rows, slice) else rows[a:b]


def as_range(rows: np.ndarray) -> RowIndex:
    """Return row numbers as a slice if they are consecutive, else as the smallest integer dtype that fits."""
    if len(rows) == 0:
        return slice(0, 0)
    if rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows.astype(np.int32 if rows.max() < 2**31 else np.int64)
