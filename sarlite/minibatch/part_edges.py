"""A part's in-edges as minibatches see them: by columns, which are the local rows and then those of the halo."""

from functools import cached_property
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.comm import Solo
from sarlite.errors import ConfigError
from sarlite.graph.part import InEdges
from sarlite.sar.graph.graph import Graph
from sarlite.sar.graph.weights import check_negative, positive, row_sums
from sarlite.sar.schedule.transport import Transport
from sarlite.types import Array


def check_graph(graph: Any, what: str) -> None:
    """Raise a ConfigError where batches, which the error calls `what`, cannot be made of a graph."""
    if not isinstance(graph, Graph):
        raise ConfigError(f"{what} are of a Graph, but graph is a {type(graph).__name__}")
    if graph.bipartite:
        raise ConfigError(f"{what} of a bipartite graph: what one layer makes are no sources of the next")
    if graph.grid is not None:
        columns = graph.grid.n_columns
        raise ConfigError(f"{what} of a graph with columns={columns}: parts of the graph are computed by rows")
    if graph.schedule.reverses_attention and graph.schedule.rows == "float32":  # narrow rows' default, but batches push
        raise ConfigError(f"{what} of a graph with backward='fetch': parts of the graph have no reversed edges")


class PartEdges:
    """The in-edges of a part's rows, each row's in ascending order of their sources' global ids, whatever the division
    and the order.

    A column is a source: first the local rows, then the halo rows by ascending row number of the whole graph, so by
    owner. Construction is collective.

    Parameters
    ----------
    graph : Graph
        Not bipartite.
    local : bool
        Leave out the edges that cross parts: the columns are the local rows, and degrees count the other edges alone.

    Attributes
    ----------
    edges : InEdges
        Its indices are columns; equal edges stand in the order of the part's.
    n_local, n_halo : int
    ids : (n_local + n_halo,) int64
        Global ids of the columns.
    halo_starts : (size + 1,) int64
        The first halo row of each owner.
    asked : list by rank of (n,) int64
        Local rows that it has as halo, ascending; there they are this rank's halo rows, in this order.
    degrees : (n_local + n_halo,) int64
        In-degrees in the whole graph, without the edges that were left out.
    weighted_degrees : (n_local + n_halo,) float64, or None
        Likewise, of a graph with edge weights of 0 or more.
    has_loops : bool
        Whether any rank has added loops.
    graph : Graph
    alone : Transport
        Of layers that have no peers: ranks need not aggregate over them equally often, as over the graph.

    Notes
    -----
    Bytes received: 8 a halo row. Memory: 16 bytes a column; on several ranks an index an edge, and where rows had to be
    put in order another one; 24 bytes an edge while that is done.
    """

    def __init__(self, graph: Graph, local: bool = False) -> None:
        self.graph, size = graph, graph.comm.size
        self.alone = Transport(Solo(), 0, graph.profile)
        self.n_local = graph.n_dst
        alone = graph.plan.alone
        self.halo_starts = np.concatenate([[0], np.cumsum(graph.plan.needed(size), dtype=np.int64)])
        self.asked = graph.plan.asked(size)
        self.n_halo = int(self.halo_starts[-1])
        self._places = None  # of an edge among the part's; None: the same
        self.ids = graph.src_ids if alone else self._all_ids()
        self._counted = np.array_equal(self.ids, np.arange(len(self.ids)))  # whether ids are the columns themselves
        indptr, indices = self._csr()
        if local and not alone:
            indptr, indices = self._without_halo(indptr, indices)
        self.edges = self._in_order(InEdges(indptr, indices, None, graph.added_loops))
        self.degrees = np.diff(indptr) if local or alone else self.of_columns(graph.in_degrees)
        self.weighted_degrees: Array | None = None
        if graph.edge_weight is not None and graph._negative is None:
            own = row_sums(self.edges.indptr, lambda edges: self.of_edges(graph.edge_weight, edges))
            self.weighted_degrees = own if local or alone else self.of_columns(own)
        self.has_loops = any(graph.comm.allgather(graph.added_loops is not None and bool(graph.added_loops.any())))

    @cached_property
    def inverse_root(self) -> Array:
        """(n_local + n_halo,) float64: 1 / sqrt(d), of isolated rows 1."""
        return np.sqrt(1.0 / np.maximum(self.degrees, 1))

    @cached_property
    def inverse_weighted(self) -> Array:
        """(n_local + n_halo,) float64: 1 / the weighted degree, of which 0 counts as 1."""
        check_negative(self.graph)
        assert self.weighted_degrees is not None
        return 1.0 / positive(self.weighted_degrees)

    def of_edges(self, values: Array, positions: Any) -> Array:
        """Return the rows of the part's edge values, which are in its order, of edges by their place here.

        `positions` are an array, or a slice.
        """
        places = positions if self._places is None else self._places[positions]
        numbers = self.graph.plan.local.numbers
        return values[places if numbers is None else numbers[places]]

    def of_columns(self, values: Array) -> Array:
        """Return (n_local + n_halo, ...): of values of the local rows, every column's. Collective."""
        graph = self.graph
        out = self._local_first(values)
        # messages go with these buffers; what a thread takes of malloc would stay with it
        with graph.profile.phase("setup"), kernels.Buffers():
            graph.schedule.run((np.ascontiguousarray(values),), lambda block, rows: self._put(out, block, rows[0]))
        return out

    def _put(self, out, block, values):
        """Put what a block's columns have in the order of the columns here; the local ones are there."""
        for other, start, place in self._halo():
            if other is block:
                out[start : start + place.stop - place.start] = values[place]

    def find(self, rows: Array, ids: Array) -> Array:
        """Return where the edges stand here, ascending, (n,) int64, that go into local rows from sources of these global
        ids: row by row none, one, or several edges.
        """
        indptr, columns = self.edges.indptr, self.edges.indices
        starts, stops = (self._first(indptr[rows], indptr[rows + 1], columns, wanted) for wanted in (ids, ids + 1))
        n = stops - starts
        return np.unique(np.repeat(starts - np.cumsum(n) + n, n) + np.arange(n.sum()))

    def _first(self, low, high, columns, ids):
        """By bisection, the first place from `low` to `high` whose source's id is not below `ids`."""
        while (open_ := low < high).any():
            middle = (low + high) // 2
            below = np.zeros(len(low), bool)
            below[open_] = self.ids_of(columns[middle[open_]]) < ids[open_]
            low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
        return low

    def edge_ids(self, positions: Array) -> Array:
        """Return (n,) int64: of edges by their place here, the index into the whole graph's edge values."""
        places = positions if self._places is None else self._places[positions]
        ids, numbers = self.graph._edge_ids, self.graph.plan.local.numbers
        labels = ids if ids is not None else numbers
        return (places if labels is None else labels[places]).astype(np.int64)

    def ids_of(self, rows: Array) -> Array:
        """Return (n,) int64: the global ids of columns."""
        return rows.astype(np.int64) if self._counted else self.ids[rows]

    def owners(self, halo: Array) -> Array:
        """Return (size + 1,): where each owner's begin among ascending halo rows, which count from 0."""
        return np.searchsorted(halo, self.halo_starts)

    def slots(self, halo: Array) -> list[Array]:
        """Return by owner the slots of ascending halo rows: their places in the owner's `asked`, (m,) int32."""
        shares = share(halo, self.owners(halo))
        return [(rows - start).astype(np.int32) for rows, start in zip(shares, self.halo_starts)]

    def _all_ids(self):
        ids = self._local_first(self.graph.src_ids)
        for block, start, place in self._halo():
            ids[start : start + place.stop - place.start] = block.src_ids[place]
        return ids

    def _local_first(self, values):
        """Every column's place, those of the local rows filled."""
        out = np.empty((self.n_local + self.n_halo, *values.shape[1:]), values.dtype)
        out[: self.n_local] = values
        return out

    def _halo(self):
        """Yield (block, first column here, columns of the block) of the peers' rows."""
        starts = self.n_local + self.halo_starts
        for block, owner, place in self.graph.plan.halo():
            yield block, starts[owner], place
            starts[owner] += place.stop - place.start

    def _csr(self):
        graph = self.graph
        blocks, indptr = graph.plan.blocks, np.concatenate([[0], np.cumsum(graph.in_degrees)])
        if graph.plan.alone:
            return indptr, blocks[0].indices
        dtype = np.int32 if max(self.n_local + self.n_halo, graph.n_edges) < 2**31 else np.int64
        columns = {id(block): np.arange(block.n_src, dtype=dtype) for block in blocks}  # here, of each block's columns
        for block, start, place in self._halo():
            columns[id(block)][place] = np.arange(start, start + place.stop - place.start)
        indices = np.empty(graph.n_edges, dtype)
        for block in blocks:
            indices[slice(None) if block.positions is None else block.positions] = columns[id(block)][block.indices]
        return indptr, indices

    def _without_halo(self, indptr, indices):
        keep = np.flatnonzero(indices < self.n_local)
        self._places, self.n_halo = keep.astype(indices.dtype), 0
        self.ids, self.halo_starts = self.ids[: self.n_local], np.zeros_like(self.halo_starts)
        self.asked = [rows[:0] for rows in self.asked]
        return np.searchsorted(keep, indptr).astype(np.int64), indices[keep]

    def _in_order(self, edges):
        """Put each row's edges in the order of their sources' global ids, from that of columns, or of row numbers."""
        if not self.n_halo and (np.diff(self.ids) > 0).all():
            return edges
        ids = self.ids[edges.indices]
        falls = ids[1:] < ids[:-1]
        starts = edges.indptr[1:-1]
        falls[starts[(starts > 0) & (starts < len(ids))] - 1] = False
        if not falls.any():
            return edges
        order = np.lexsort((ids, np.repeat(np.arange(edges.n_dst), np.diff(edges.indptr)))).astype(edges.indices.dtype)
        self._places = order if self._places is None else self._places[order]
        return edges._replace(indices=edges.indices[order])


def share(of: Any, starts: Array) -> list[Array]:
    """Cut an array into each rank's: from starts[q] to starts[q + 1]."""
    return [np.ascontiguousarray(of[a:b]) for a, b in zip(starts, starts[1:])]
