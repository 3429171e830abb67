"""Aggregation by columns: ranks exchange their rows for columns, each sums all edges for its columns, and sums go back.

The N ranks stand in a grid of R rows by C columns. A group of C ranks that follow each other shares its rows: an
all-to-all within it brings each rank, for its own rows of all columns, all rows of the group of a C-th of the columns.
A graph of the R groups, whose peers are the ranks of one column, aggregates these in any mode; with R = 1 it is the
whole graph and has no peers. Then another all-to-all brings each rank the sums of its own rows.
"""

import copy
import math
from typing import Any, NamedTuple

import numpy as np

from sarlite import kernels, tape
from sarlite.comm import Solo
from sarlite.graph.part import InEdges
from sarlite.sar.aggregate import aggregate, narrow
from sarlite.sar.schedule.state import Kept
from sarlite.sar.schedule.transport import Transfer, Transport
from sarlite.tape import Tensor
from sarlite.tape.tensor_map import TensorMap
from sarlite.types import Array


class ColumnLayout(NamedTuple):
    """Which rows of an array each rank of a group has, and which columns: an all-to-all brings one from the other.

    `to_columns` and `to_rows` are each other's adjoint.

    Attributes
    ----------
    transport : Transport
        Of the group.
    counts : tuple of int
        By rank, its rows.
    pieces : tuple of tuple of slice
        By rank, which part of a row it has as columns. Ranks may have the same, but no pieces that overlap otherwise.
    shape : tuple of int
        Of a row.
    narrow : bool
        Whether `to_columns` sends bfloat16: of float32 rows that edges gather so.
    """

    transport: Transport
    counts: tuple[int, ...]
    pieces: tuple[tuple[slice, ...], ...]
    shape: tuple[int, ...]
    narrow: bool = False

    def n_values(self, rank: int) -> int:
        """How many values of a row a rank has."""
        return math.prod(self._shape(rank))

    def sizes(self) -> tuple[int, int]:
        """How many values `to_columns` sends and receives here; `to_rows` receives and sends them.

        With w_q of a row's f values at rank q of the group, n_p (f - w_p) are sent where no two ranks have the same,
        and (n - n_p) w_p received: over all ranks n f (C - 1) / C.
        """
        own = self.transport.comm.rank
        sent = self.counts[own] * sum(self.n_values(q) for q in range(len(self.counts)) if q != own)
        return sent, (sum(self.counts) - self.counts[own]) * self.n_values(own)

    def to_columns(self, x: Array, phase: str) -> Array:
        """Return the group's rows, of this rank's piece of each. x (n_own, ...). Collective within the group."""
        own, starts = self.transport.comm.rank, self._starts()
        x = kernels.narrow(np.ascontiguousarray(x)) if self.narrow else x
        out = np.empty((starts[-1], *self._shape(own)), x.dtype)
        places = [out[a:b] for a, b in zip(starts, starts[1:])]
        places[own][...] = x[self._at(own)]
        self._exchange(phase, lambda q: np.ascontiguousarray(x[self._at(q)]), places)
        return kernels.widen(out) if self.narrow else out

    def to_rows(self, y: Array, phase: str) -> Array:
        """Return this rank's rows, whole; what several ranks have is added. y (n of the group, ...). Collective."""
        own, starts = self.transport.comm.rank, self._starts()
        out = np.empty((self.counts[own], *self.shape), y.dtype)
        found = [np.empty((self.counts[own], *self._shape(q)), y.dtype) for q in range(len(self.pieces))]
        found[own] = y[starts[own] : starts[own + 1]]
        self._exchange(phase, lambda q: y[starts[q] : starts[q + 1]], found)
        for q, values in enumerate(found):
            if self.pieces[q] in self.pieces[:q]:
                out[self._at(q)] += values
            else:
                out[self._at(q)] = values
        return out

    def _exchange(self, phase, outgoing, incoming):
        """Send `outgoing(q)` to each other rank q, and fill `incoming[q]`, a contiguous array, with what q sends."""
        size, own = len(self.counts), self.transport.comm.rank
        with AllToAll(self.transport, phase) as exchange:
            receives = [exchange.receive(incoming[(own - s) % size], (own - s) % size) for s in range(1, size)]
            sends = [exchange.send(outgoing((own + s) % size), (own + s) % size) for s in range(1, size)]
            exchange.complete([*receives, *sends])

    def _at(self, rank):
        """The index of a rank's columns in whole rows."""
        return (slice(None), *self.pieces[rank])

    def _starts(self):
        return [0, *np.cumsum(self.counts, dtype=np.int64).tolist()]

    def _shape(self, rank):
        """Of a rank's piece of a row."""
        return tuple(piece.stop - piece.start for piece in self.pieces[rank])


class AllToAll(Transfer):
    """One all-to-all of a group under way; counts what it sends and receives."""

    def __init__(self, transport, phase):
        super().__init__(transport, transport.fetch_comm)
        self.phase, self.sent, self.received = phase, 0, 0

    def receive(self, array, source):
        self.received += array.nbytes
        return super().receive(array, source)

    def send(self, array, target):
        self.sent += array.nbytes
        return super().send(array, target)

    def complete(self, requests):
        with self.profile.span("turn", bytes=self.sent, phase=self.phase):
            for request in requests:
                if request is not None:
                    request.wait()
        self.profile.count(f"{self.phase}_turn", self.sent, self.received)


tape.primitive("to_columns", lambda needs, x, layout: (layout.to_columns(x, "forward"), ()),
               lambda g, needs, residuals, layout: [layout.to_rows(np.ascontiguousarray(g), "backward")])
tape.primitive("to_rows", lambda needs, y, layout: (layout.to_rows(np.ascontiguousarray(y), "forward"), ()),
               lambda g, needs, residuals, layout: [layout.to_columns(g, "backward")])


class Grid:
    """One rank's place among the ranks of a grid, and the graph that it aggregates over: see the module.

    Attributes
    ----------
    n_rows, n_columns : int
        R and C.
    graph : Graph
        Of all rows of the group, part `row` of R; each rank of the group holds its structure.
    transport : Transport
        Of the group's exchanges.
    counts : Counts
    structure_bytes : int
        That the graph's edges and ids take, without the transposes, which take as much as the edges again once they are
        made.
    """

    def __init__(self, comm: Any, n_columns: int, graph: Any, transport: Transport, counts: "Counts") -> None:
        self.n_rows, self.n_columns, self.graph, self.transport = comm.size // n_columns, n_columns, graph, transport
        self.counts = counts
        self._kept = Kept(transport.state)
        self.structure_bytes = _bytes_of(graph)

    def aggregate(self, call: Any) -> Tensor:
        """Run one aggregation (`operators.table.Call`) over the graph of the group's rows. Collective.

        Parameters
        ----------
        call : Call
            Its operator's output has the rows of the first input, (n, ...), or (n, n_heads, n_feat) where another input
            has a value or a gradient a head; the others are (n, n_heads) or (n,).

        Notes
        -----
        Columns are divided by heads as far as their number goes, then by features: with H heads gcd(C, H) ranks have
        other heads, and C / gcd(C, H) of them other features of the same. What has no features, as scores, goes to all
        of these, and its gradients, which are sums over features, are added. Where a call `divides` features alone,
        each rank has all heads.
        """
        rows, *others = call.inputs
        heads = rows.shape[1] if any(x.ndim == 2 for x in others) else 1
        shape = (heads, math.prod(rows.shape[1:]) // max(heads, 1))
        pieces = _pieces(self.n_columns, *shape, call.divides == "features")
        inputs = [rows.reshape(rows.shape[0], *shape), *others]
        operator = call.make(self.graph)
        if self.graph.schedule.rows != "float32":
            narrow(self.graph.schedule.rows, operator, rows.dtype)
        by_columns = [self._to_columns(x, place, pieces, operator.narrow and x is inputs[0])
                      for x, place in zip(inputs, call.places)]
        out = aggregate(self.graph.schedule, operator, by_columns)
        layout = ColumnLayout(self.transport, self.counts.dst, pieces, shape)
        n_own = self.counts.dst[self.transport.comm.rank]
        return tape.apply("to_rows", out, layout=layout).reshape(n_own, *rows.shape[1:])

    def wide(self) -> "Grid":
        """Return the grid whose rows are not narrowed."""
        made = copy.copy(self)
        made.graph = self.graph.wide()
        return made

    def _to_columns(self, x, place, pieces, narrows):
        """Of edge values that are constant what came is kept, as they are the same in each epoch."""
        pieces = tuple(piece[: x.ndim - 1] for piece in pieces)
        kept = self._kept.get("edge values", TensorMap).setdefault(x, {}) if place == "edge" and x.constant else {}
        key = str(pieces[self.transport.comm.rank])
        if key not in kept:
            layout = ColumnLayout(self.transport, getattr(self.counts, place), pieces, x.shape[1:], narrows)
            kept[key] = tape.apply("to_columns", x, layout=layout)
        return kept[key]


class Counts(NamedTuple):
    """By rank of a group, how many of each it has."""

    src: tuple[int, ...]
    dst: tuple[int, ...]
    edge: tuple[int, ...]


def _pieces(n_ranks, n_heads, n_feat, whole_heads):
    by_head = 1 if whole_heads else math.gcd(n_ranks, n_heads)
    by_feature = n_ranks // by_head
    return tuple((_part(n_heads, by_head, k // by_feature), _part(n_feat, by_feature, k % by_feature))
                 for k in range(n_ranks))


def _part(n, n_parts, k):
    return slice(n * k // n_parts, n * (k + 1) // n_parts)


def groups(comm: Any, n_columns: int) -> tuple[Any, Any]:
    """Return the communicators of this rank's group and of its column. Collective at the first call."""
    group = comm.group(f"row of {n_columns}", comm.rank // n_columns)
    return group, Solo() if n_columns == comm.size else comm.group(f"column of {n_columns}", comm.rank % n_columns)


def gather(group: Any, edges: InEdges, ids: list[Array | None], n_src: int,
           n_rows: int) -> tuple[InEdges, list[Array | None], Counts]:
    """Put the rows of a group together, on each of its ranks. Collective within it.

    Parameters
    ----------
    group : Communicator
    edges : InEdges
        Of this rank's destination rows.
    ids : list of (n,) int64 array or None
        By rank alike, what else is to be put together.
    n_src : int
        This rank's source rows.
    n_rows : int
        Source rows of the whole graph.

    Returns
    -------
    InEdges, list of arrays or None, Counts

    Notes
    -----
    Memory and bytes received: 4 or 8 bytes an edge of the group, twice that where edge values are in another order, and
    8 bytes a row.
    """
    has = edges.numbers is not None, edges.added_loops is not None
    facts = group.allgather((n_src, edges.n_dst, len(edges.indices), *has))
    counts = Counts(*(tuple(int(fact[k]) for fact in facts) for k in range(3)))
    numbers = loops = None
    if any(fact[3] for fact in facts):
        before = sum(counts.edge[: group.rank])
        own = np.arange(len(edges.indices)) if edges.numbers is None else edges.numbers.astype(np.int64)
        numbers = _all(group, before + own)
    if any(fact[4] for fact in facts):
        loops = _all(group, np.zeros(edges.n_dst, bool) if edges.added_loops is None else edges.added_loops)
    degrees = _all(group, np.diff(edges.indptr))
    indices = _all(group, edges.indices.astype(np.int32 if n_rows < 2**31 else np.int64, copy=False))
    whole = InEdges(np.concatenate([[0], np.cumsum(degrees)]), indices, numbers, loops)
    return whole, [None if own is None else _all(group, np.asarray(own, np.int64)) for own in ids], counts


def _all(group, array):
    return np.concatenate(group.alltoall([np.ascontiguousarray(array)] * group.size))


def _bytes_of(graph):
    blocks = graph.plan.blocks
    arrays = [array for block in blocks for array in (block.indptr, block.indices, block.rows, block.src_ids)]
    arrays += [blocks[0].numbers, graph.dst_ids, graph.in_degrees]
    return sum(array.nbytes for array in arrays if array is not None)
