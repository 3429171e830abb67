"""A part's in-edges as samplers read them: a CSR whose columns are the local rows, followed by the halo rows."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

import numpy as np

from sarlite import kernels, numerics
from sarlite.comm import Solo
from sarlite.errors import ConfigError, ShapeError
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import NodeType
from sarlite.graph.weights import positive, row_sums
from sarlite.minibatch.sampler import EdgeSet
from sarlite.operators.relation_sums import sets_of
from sarlite.schedule.transport import Transport
from sarlite.structure.block import Bundle, Edges
from sarlite.structure.part_edges_csr import InEdges
from sarlite.tape.tensor import as_array
from sarlite.types import Array, ArrayLike


def check_graph(graph: object, what: str) -> None:
    """Raise a ConfigError if batches cannot be made of `graph`, such as a bipartite one; `what` names the batches in the error."""
    if not isinstance(graph, (Graph, NodeType)):
        raise ConfigError(f"{what}: graph is a {type(graph).__name__}, but must be a Graph, or a node type of a HeteroGraph, "
                          "as graph.of(type) returns it")
    if isinstance(graph, Graph) and graph.bipartite:
        raise ConfigError(f"{what} of a bipartite graph: the outputs of one layer are not the sources of the next layer")
    options = graph.options
    fetches = options.backward == "fetch" and (options.row_dtype == "float32" or isinstance(graph, NodeType))
    if fetches and graph.comm.size > 1:  # of narrow rows it is the default of a Graph, but batches push
        raise ConfigError(f"{what} of a graph with backward='fetch': parts of the graph have no reversed edges")


def input_rows(graph: Graph | NodeType, x: ArrayLike | Mapping[str, ArrayLike]) -> Array | dict[str, Array]:
    """Return the input features `x` as a contiguous array, or for a `NodeType` as a dict of arrays by node type.

    Raises
    ------
    ConfigError, ShapeError
        x is no dict although the graph is a NodeType, or names an unknown type, or has not one row for each node.
    """
    if not isinstance(graph, NodeType):
        return _checked_rows("x", x, graph.n_src)
    if not isinstance(x, Mapping):
        raise ConfigError(f"x is a {type(x).__name__}, but of a node type it is a dict of features by type")
    return {name: _checked_rows(f"x[{name!r}]", rows, graph.graph.of(name).n_dst) for name, rows in x.items()}


def _checked_rows(name, x, n):
    array = np.ascontiguousarray(as_array(x))
    if array.shape[:1] != (n,):
        raise ShapeError(f"{name} has shape {array.shape}, but the graph has {n} rows")
    return array


class PartEdges:
    """In-edges of a rank's part of a graph: a CSR for each relation; columns are local rows and then halo rows, which other ranks own.

    A column is a source row: first the local rows, type after type, and then the halo rows. Halo rows are sorted by
    owner, by type, and by row number. A `Graph` has one set of edges. Construction is collective.

    Parameters
    ----------
    graph : Graph or NodeType
        Graph that is not bipartite.
    local : bool
        True to leave out edges between parts. The columns are then the local rows, and degrees count the other edges.

    Attributes
    ----------
    sets : list of RelationEdges
    types : tuple of str
        Node types; a `Graph` has one type, "".
    first : (n_types + 1,) int64
        First local row of each type.
    targets : (n,) int, or None
        Local row of each row of `graph`; None if the numbers are equal.
    n_local, n_halo : int
        Numbers of local rows and of halo rows.
    cut : bool
        True if edges between parts are left out.
    peerless : bool
        True if no part has halo rows.
    ids : (n_local + n_halo,) int64
        Global ids of the columns; the ids of each type start at 0.
    halo_starts : (size + 1,) int64
        First halo row of each owner.
    asked : list by rank of (n,) int64
        Local rows that the rank has as halo, in the order of its columns.
    has_loops : bool
        True if any rank has added loops.
    graph : Graph or NodeType
    local_transport : Transport
        Transport of layers without peers, over which ranks may aggregate a different number of times.

    Notes
    -----
    Bytes received: 8 per halo row, and for a `Graph` 8 more, for degrees. Memory: 16 bytes per column. On several
    ranks, and with several types, also one index per edge, and a second one if rows had to be sorted; 24 bytes per edge
    during the sort.
    """

    def __init__(self, graph: Graph | NodeType, local: bool = False) -> None:
        size = graph.comm.size
        self.graph = graph
        self.local_transport = Transport(Solo(), 0, graph.profile)
        self.types, local_ids, self.relations = _by_type(graph)
        self.first = np.concatenate([[0], np.cumsum([len(ids) for ids in local_ids])])
        self.targets = _targets(graph, self.types, self.first)
        self.n_local = int(self.first[-1])
        self._plans = [out[0].plan if out else None for out in self.relations]
        needed = np.array([[0] * size if plan is None else plan.needed(size) for plan in self._plans], np.int64)
        ends = self.n_local + np.cumsum(needed.T)
        self._starts = np.concatenate([[self.n_local], ends])  # the first column of each owner's and type's halo rows
        self.halo_starts = self._starts[:: len(self.types)] - self.n_local
        asked = [[rows[:0] for rows in [np.empty(0, np.int64)] * size] if plan is None else plan.asked(size)
                 for plan in self._plans]
        self.asked = [np.concatenate([rows[q] + first for rows, first in zip(asked, self.first)]) for q in range(size)]
        self.n_halo = int(self.halo_starts[-1])
        self.peerless = not any(plan is not None and not plan.single_block for plan in self._plans)
        self.ids = local_ids[0] if len(local_ids) == 1 and self.peerless else self._all_ids(local_ids)
        n_columns, self.cut = self.n_local + self.n_halo, local and not self.peerless
        most = max([n_columns, *(relation.n_edges for out in self.relations for relation in out)])
        self._dtype = np.dtype(np.int32 if most < 2**31 else np.int64)
        if self.cut:
            self.n_halo, self.halo_starts = 0, np.zeros_like(self.halo_starts)
            self.asked = [rows[:0] for rows in self.asked]
        self.sets = [RelationEdges(self, relation, source, *self._csr(relation, source))
                     for source, out in enumerate(self.relations) for relation in out]
        self.ids = self.ids[: self.n_local + self.n_halo]
        self._counted = np.array_equal(self.ids, np.arange(len(self.ids)))  # True if ids are the column numbers
        for edges in self.sets:
            edges.count()
        loops = getattr(graph, "added_loops", None)
        self.has_loops = any(graph.comm.allgather(loops is not None and bool(loops.any())))

    @property
    def edges(self) -> "RelationEdges":
        """The in-edges of a part with a single relation; a part with several relations raises a ValueError."""
        (edges,) = self.sets
        return edges

    def type_of(self, columns: Array) -> Array:
        """Return the index of the node type of each source row, (n,) int, from the rows' CSR column numbers `columns`."""
        n = len(self.types)
        if n == 1:
            return np.zeros(len(columns), np.int64)
        types = np.searchsorted(self.first, columns, side="right") - 1
        halo = columns >= self.n_local
        types[halo] = (np.searchsorted(self._starts, columns[halo], side="right") - 1) % n
        return types

    def of_columns(self, values: Array, source: int = 0) -> Array:
        """Return an array with a value for each CSR column (local rows, then halo rows), from the `values` of this rank's rows of node
        type number `source`. Values of halo rows are fetched. Columns of other types stay uninitialized. Collective.
        """
        out = np.empty((self.n_local + self.n_halo, *values.shape[1:]), values.dtype)
        out[self.first[source] : self.first[source + 1]] = values
        if self._plans[source] is not None and not (self.cut or self.peerless):
            schedule = self.relations[source][0].schedule
            # messages go with these buffers; what a thread takes of malloc would stay with it
            with self.graph.profile.phase("setup"), kernels.Buffers():
                schedule.run((np.ascontiguousarray(values),),
                             lambda block, rows: self._put(out, source, block, rows[0]))
        return out

    def _put(self, out: Array, source: int, block: Edges | Bundle, values: Array) -> None:
        """Copy `values`, one row for each column of `block`, to the places of its halo rows in `out`, an array over all CSR columns.
        `source` is the number of the rows' node type.
        """
        for other, start, columns_slice in self._halo(source):
            if other is block:
                out[start : start + columns_slice.stop - columns_slice.start] = values[columns_slice]

    def ids_of(self, rows: Array) -> Array:
        """Return the global ids of the nodes with the CSR column numbers `rows`, (n,) int64."""
        return rows.astype(np.int64) if self._counted else self.ids[rows]

    def owners(self, halo: Array) -> Array:
        """Return offsets, (n_ranks + 1,): rank q owns halo[offsets[q] : offsets[q + 1]]. `halo` has ascending numbers of halo rows
        (rows of other ranks).
        """
        return np.searchsorted(halo, self.halo_starts)

    def slots(self, halo: Array) -> list[Array]:
        """Return a list with an int32 array for each rank: the positions of the rows in `halo` that this rank owns, within the
        fixed list of rows that the owner sends to the calling rank. `halo` has ascending numbers of halo rows (rows of other
        ranks).

        Such a position is called a slot.
        """
        shares = split_by_rank(halo, self.owners(halo))
        return [(rows - start).astype(np.int32) for rows, start in zip(shares, self.halo_starts)]

    def _all_ids(self, own_ids):
        ids = np.empty(self.n_local + self.n_halo, np.int64)
        ids[: self.n_local] = np.concatenate(own_ids)
        for source in range(len(self.types)):
            for block, start, columns_slice in self._halo(source):
                ids[start : start + columns_slice.stop - columns_slice.start] = block.src_ids[columns_slice]
        return ids

    def _halo(self, source: int) -> Iterator[tuple[Any, int, slice]]:
        """Yield (block, CSR column of its first row, slice of the block's columns) for each range of halo rows (rows of other ranks) of
        node type number `source`.
        """
        plan, starts = self._plans[source], self._starts[source :: len(self.types)].copy()
        for block, owner, columns_slice in plan.halo() if plan is not None else ():
            yield block, starts[owner], columns_slice
            starts[owner] += columns_slice.stop - columns_slice.start

    def _csr(self, graph: Any, source: int) -> tuple[Array, Array]:
        """Return (indptr, indices) of the edges of `graph`, a relation whose sources have node type number `source`. The indices are
        columns of the part: local rows of all types, then halo rows.
        """
        indptr, first = np.concatenate([[0], np.cumsum(graph.in_degrees)]), self._dtype.type(self.first[source])
        if graph.plan.single_block:
            indices = graph.blocks[0].indices.astype(self._dtype, copy=False)
            return indptr, indices + first if first else indices
        columns = {id(block): np.arange(first, first + block.n_src, dtype=self._dtype) for block in graph.plan.blocks}
        for block, start, columns_slice in self._halo(source):
            columns[id(block)][columns_slice] = np.arange(start, start + columns_slice.stop - columns_slice.start)
        indices = np.empty(graph.n_edges, self._dtype)
        for block in graph.plan.blocks:
            edges = sets_of(block)[graph.relation_index]
            indices[slice(None) if edges.positions is None else edges.positions] = columns[id(block)][edges.indices]
        return indptr, indices


class RelationEdges(EdgeSet):
    """In-edges of a rank's rows from which samplers draw: the edges of one relation of a `HeteroGraph`, or all edges of a `Graph`.

    The edges of each row are in ascending order of the sources' global ids, for any division and order of the rows.

    Parameters
    ----------
    part : PartEdges
    graph : LayerGraph
        Graph of the relation over the whole part.
    source : int
        Index of the source type.
    indptr, indices
        CSR of columns, in the order of the part's edges. If the part is cut, edges from halo rows are removed.

    Attributes
    ----------
    edges : InEdges
        Edges whose indices are columns; equal edges keep the order of the part.
    to : int
        Index of the destination type.
    degrees : (n,) int64
        In-degrees in the whole graph without removed edges: for the relation's destinations, or for all columns of a
        `Graph`.
    weighted_degrees : (n,) float64, or None
        Weighted in-degrees of the same rows, if the graph has non-negative edge weights.
    """

    weighted_degrees: Array | None = None

    def __init__(self, part: PartEdges, graph: Graph, source: int, indptr: Array,
                 indices: Array) -> None:
        relation = graph.relation
        self.part, self.graph, self.source_index = part, graph, source
        self.to = source if relation is None else part.types.index(relation[2])
        self._places: Array | None = None  # position of each edge among the part's edges; None if it is the same
        if part.cut:
            keep = np.flatnonzero(indices < part.n_local)
            self._places = keep.astype(indices.dtype)
            indptr, indices = np.searchsorted(keep, indptr).astype(np.int64), indices[keep]
        edges = self._in_order(InEdges(indptr, indices, None, graph.added_loops))
        names = ("", "") if relation is None else (repr(relation), relation[0])
        super().__init__(edges, int(part.first[self.to]), *names)

    def count(self) -> None:
        """Compute the in-degrees of destinations, for a `Graph` also of halo rows, and store them in this object. Collective."""
        part, graph = self.part, self.graph  # halo rows: the reducer "sym" divides by their degrees
        local_degrees = bool(self.relation) or part.cut or part.peerless
        self.degrees = np.diff(self.edges.indptr) if local_degrees else part.of_columns(graph.in_degrees)
        weight = graph.edge_weight
        if weight is not None and graph.edge_values.negative is None:
            sums = row_sums(self.edges.indptr, partial(self.of_edges, weight))
            self.weighted_degrees = sums if local_degrees else part.of_columns(sums)

    def inverse_roots(self, weighted: bool = False) -> tuple[Array, Array]:
        """Return (1 / sqrt(degree) of each destination, 1 / sqrt(degree) of each column), float64. With `weighted`, a degree is the sum
        of the weights of a row's in-edges, else their number.

        The first call is collective. The degrees are in-degrees, or weighted in-degrees; a degree of 0 counts as 1. For
        a relation the columns have out-degrees.
        """
        if weighted:
            self.graph.edge_values.check_degrees()
        key = "inverse roots", self.part.cut, weighted, numerics.name()
        return self.graph.memo.get(key, lambda: self._inverse_roots(weighted))

    def _inverse_roots(self, weighted):
        roots = np.sqrt(1.0 / positive(self.weighted_degrees if weighted else self.degrees))
        if not self.relation:
            return roots, roots
        part, weight = self.part, None
        if weighted:
            weight = self.graph.weight_as(np.dtype(np.float64))
        if part.cut:
            weight = None if weight is None else self.of_edges(weight, slice(None))
            degrees = np.bincount(self.edges.indices, weight, part.n_local)
            return roots, np.sqrt(1.0 / positive(degrees))
        with part.graph.profile.phase("setup"):
            inverse = np.sqrt(1.0 / positive(self.graph.out_degrees(weight)))
        return roots, part.of_columns(inverse, self.source_index)

    @property
    def inverse_weighted(self) -> Array:
        """1 / weighted in-degree of each destination, (n,) float64; a degree of 0 counts as 1."""
        self.graph.edge_values.check_degrees()
        weighted = cast(Array, self.weighted_degrees)
        return self.graph.memo.get(("inverse weighted", self.part.cut), lambda: 1.0 / positive(weighted))

    def of_edges(self, values: Array, positions: Array | slice) -> Array:
        """Return the values of the edges at the positions `positions` of this CSR, from `values`, the values of all edges of the
        part in the graph's order of edge values.

        Parameters
        ----------
        values : (n, ...) array
            Edge values of the part, in their order.
        positions : (k,) int array, or slice
        """
        places: Array | slice = positions if self._places is None else self._places[positions]
        numbers = self._numbers
        return values[places if numbers is None else numbers[places]]

    @property
    def _numbers(self):
        return self.graph.edges_of(self.graph.plan.local).numbers

    def find(self, rows: Array, ids: Array) -> Array:
        """Return the ascending positions, (n,) int64, of all edges that lead from source id ids[i] to local row rows[i] for some i.

        Each i may match no edge, one or several. Rows count from the first row of the type.
        """
        indptr, columns = self.edges.indptr, self.edges.indices
        starts, stops = (self._first(indptr[rows], indptr[rows + 1], columns, wanted) for wanted in (ids, ids + 1))
        n = stops - starts
        return np.unique(np.repeat(starts - np.cumsum(n) + n, n) + np.arange(n.sum()))

    def _first(self, low: Array, high: Array, columns: Array, ids: Array) -> Array:
        """Return, for each i, the first position in low[i] .. high[i] - 1 whose source, in the CSR columns `columns`, has a global id
        >= ids[i]; high[i] if there is none. Ids ascend within a range.
        """
        while (open_ := low < high).any():
            middle = (low + high) // 2
            below = np.zeros(len(low), bool)
            below[open_] = self.part.ids_of(columns[middle[open_]]) < ids[open_]
            low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
        return low

    def edge_ids(self, positions: Array) -> Array:
        """Return the index of each edge into the edge values of the undivided graph, (n,) int64. `positions` are the edges'
        positions in this CSR.
        """
        places = positions if self._places is None else self._places[positions]
        ids, numbers = self.graph.explicit_edge_ids, self._numbers
        labels = ids if ids is not None else numbers
        return (places if labels is None else labels[places]).astype(np.int64)

    def _in_order(self, edges: InEdges) -> InEdges:
        """Return `edges` with each row's edges sorted by the sources' global ids."""
        part = self.part
        if (part.cut or part.peerless) and len(part.types) == 1 and (np.diff(part.ids[: part.n_local]) > 0).all():
            return edges
        ids = part.ids[edges.indices]
        falls = ids[1:] < ids[:-1]
        starts = edges.indptr[1:-1]
        falls[starts[(starts > 0) & (starts < len(ids))] - 1] = False
        if not falls.any():
            return edges
        rows = np.repeat(np.arange(edges.n_dst), np.diff(edges.indptr))
        order = np.lexsort((ids, rows)).astype(edges.indices.dtype)
        self._places = order if self._places is None else self._places[order]
        return edges._replace(indices=edges.indices[order])


def _by_type(graph: Graph | NodeType) -> tuple[tuple[str, ...], list[Array], list[Any]]:
    """Return three lists with an entry for each node type: its name, the global ids of this rank's rows of the type, and a list of
    the graphs of the relations with sources of the type. A `Graph` has one type, "". Collective.
    """
    if isinstance(graph, NodeType):
        of = graph.graph
        return of.node_types, [of.node_ids[name] for name in of.node_types], [of.out_of(name) for name in of.node_types]
    return ("",), [graph.src_ids], [[graph]]


def _targets(graph: Graph | NodeType, types: tuple[str, ...], first: Array) -> Array | None:
    """Return for each row of `graph`, (n_dst,), its row number in this rank's part; None if both count the rows alike. The part has
    the rows of node type types[t] from row first[t] on; a `NodeType` may have fewer types, in another order.
    """
    if isinstance(graph, Graph):
        return None
    of = [types.index(name) for name in graph.node_types]
    rows = np.concatenate([np.arange(first[at], first[at + 1]) for at in of])
    return None if np.array_equal(rows, np.arange(first[-1])) else rows


def split_by_rank(array: Array, starts: Array) -> list[Array]:
    """Split `array` into one view for each rank: rank q gets the rows starts[q] .. starts[q + 1] - 1. Return the list of views."""
    return [np.ascontiguousarray(array[a:b]) for a, b in zip(starts, starts[1:])]
