"""Sampling in time: in each layer, only edges and nodes that are not later than the seed's time are sampled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError, DataError
from sarlite.graph.hetero import NodeType
from sarlite.graph.weights import check_times
from sarlite.keys import splitmix64
from sarlite.minibatch.cooperative import Cooperative
from sarlite.minibatch.part_edges import PartEdges
from sarlite.minibatch.sampler import EdgeSet, Picked, Recency, Sampled, Sampler, SampleRequest, merged
from sarlite.structure.edges import destinations
from sarlite.structure.part_edges_csr import among
from sarlite.types import Array, ArrayDType, ArrayLike, DType

PICKS = ("uniform", "latest")
ALWAYS = np.iinfo(np.int64).min
"""Time of edges and nodes without a time, which exist from the beginning."""
DATES_FROM = 10**15
"""Nanoseconds from 1970 to 12 January 1970: times below this number and above its negative are taken for numbers of another unit."""


@dataclass(frozen=True, eq=False)
class Temporal:
    """Times of nodes and seeds for a `NeighborLoader`; the graph has the times of its edges.

    A seed with time t reaches only edges with a time of at most t, and over these edges only nodes with a time of at most t.
    The seed's time holds in all layers. Nodes and edges without a time exist from the beginning.

    Parameters
    ----------
    pick : {"uniform", "latest"}
        "uniform": the edges that a row may pick are equally likely. "latest": the latest edges are picked; of equal
        times the edges whose source has the largest global id.
    nodes : (n_dst,) array, or for a node type a dict of arrays by type
        Times of this rank's rows: whole numbers, or dates of NumPy. Types without an entry have no times.
    seeds : (n_dst,) array, optional
        Time at which each of this rank's rows is a seed; by default the time of the node. A loader of links has a time
        for each link.
    recency : float, optional
        Unit of recency, above 0, in the unit of the times: nanoseconds for dates. The graphs of a batch then have one more
        column of `edge_features`, the last: log(1 + (seed's time - edge's time) / recency). An added self loop
        has recency 0. By default there is no such column. The edges need times, and a relational graph has no such column.

    Notes
    -----
    A node that is reached from two seeds with different times is two rows of the batch, so a batch is larger than
    without times. Memory: 24 bytes per edge. A batch takes about five to ten times as long to sample as without times.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph
    >>> from sarlite.minibatch import NeighborLoader, Temporal
    >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 1], 3)
    >>> graph = graph.with_edge_values(time=np.array([10, 20, 30])[graph.edge_ids])
    >>> loader = NeighborLoader(graph, np.eye(3), None, slice(None), fanouts=(2,), batch_size=3, temporal=Temporal(seeds=[25, 25, 25]))
    >>> loader.batch(np.array([1])).graphs[0].edge_ids.tolist()
    [0]
    """

    pick: str = "uniform"
    nodes: ArrayLike | Mapping[str, ArrayLike] | None = None
    seeds: ArrayLike | None = None
    recency: float | None = None

    def checked(self, graph: Any, sampler: str, n_seeds: int) -> "Temporal":
        """Return a copy with int64 times, one for each row of `graph` and for each of the `n_seeds` seeds. Raise an error if the times
        do not fit, or if the sampler kind `sampler` cannot sample in time.

        Raises
        ------
        ConfigError, ShapeError, DataError
            An unknown pick; a sampler that cannot follow it; times that do not fit the rows; no times of the seeds; a
            recency that is not above 0, or without times of edges.
        """
        if self.recency is not None:
            _check_recency(self.recency, graph)
        if self.pick not in PICKS:
            raise ConfigError(f"temporal {self.pick!r} is not one of {', '.join(PICKS)}", "temporal")
        if sampler == "labor" or (self.pick == "latest" and sampler == "replace"):
            raise ConfigError(f"temporal {self.pick} does not go with sampler {sampler}, which draws otherwise: sampler "
                              "uniform or full", "temporal")
        if isinstance(graph, NodeType):
            by_type: Any = self.nodes or {}
            unknown = next((name for name in by_type if name not in graph.graph.node_types), None)
            if unknown is not None:
                raise ConfigError(f"temporal: {unknown!r} is not one of the node types {', '.join(graph.graph.node_types)}")
            nodes: Any = {name: check_times(f"times of {name}", times, graph.graph.of(name).n_dst)
                          for name, times in by_type.items()}
        else:
            of_rows: Any = self.nodes
            nodes = check_times("times of nodes", of_rows, graph.n_dst)
        seeds: Any = self.seeds
        if seeds is None and isinstance(nodes, dict):
            seeds = nodes.get(graph.node_type) if len(graph.node_types) == 1 else None
        elif seeds is None:
            seeds = nodes
        if seeds is None:
            raise ConfigError("temporal: no times of the seeds: a column of times of their nodes says when each is "
                              "predicted", "temporal")
        return replace(self, nodes=nodes, seeds=check_times("times of seeds", seeds, n_seeds))


class TimedEdges(EdgeSet):
    """A set of in-edges with each row's edges in the order of time, so that the edges up to a time are the row's first.

    Parameters
    ----------
    edges : EdgeSet
    times : (n_edges,) int64
        Time from which on each edge may be picked.

    Attributes
    ----------
    order : (n_edges,) int64
        Position in `edges` of each edge in the order of time; an added self loop is its row's first.
    times : (n_edges,) int64
        Times in that order.
    sources : (n_edges,) int
        Columns of the sources in that order.

    Notes
    -----
    Edges of equal times keep their order, which does not depend on ranks. Memory: 24 bytes per edge, 48 while it sorts.
    """

    def __init__(self, edges: EdgeSet, times: Array) -> None:
        super().__init__(edges.edges, edges.first, edges.relation, edges.source)
        indptr, indices, _, loops = self.edges
        dst, added = destinations(indptr), np.zeros(len(indices), bool)
        self._n_loops = np.zeros(self.edges.n_dst, np.int64)
        if loops is not None:
            added, self._n_loops = loops[dst] & (indices == dst + self.first), loops.astype(np.int64)
        self.order = np.lexsort((times, ~added, dst))
        self.times, self.sources = times[self.order], indices[self.order]

    def pick(self, rows: Array, times: Array, latest: bool, ids: Array, without: Array | None,
             draw: dict[str, Any]) -> tuple[Array, Array, Array]:
        """Sample, for each of `rows`, in-edges that are not later than the row's time in `times` and not at a position in
        `without`: the last ones if `latest`, else random ones. Return (indptr, positions, number of candidates of each row). `draw`
        has arguments of `kernels.sample`, such as the number k of edges; the row's number in `ids` determines its random numbers.

        Parameters
        ----------
        rows, times : (n_rows,) int
            Rows of the set, and their times.
        latest : bool
        ids : (n_rows,) int64
            Numbers by which the rows' draws are keyed.
        without : (n,) int, or None
            Positions of edges that are left out, ascending.
        draw : dict
            Arguments k, kind and key of `kernels.sample`. k is -1 for all edges.

        Returns
        -------
        indptr : (n_rows + 1,) int64
        positions : (n_picks,) int64
            Positions among the set's edges, ascending in each row.
        degrees : (n_rows,) int64
            Number of edges that the picks of each row stand for.
        """
        loops, indptr = self._n_loops[rows], self.edges.indptr
        starts = indptr[rows] + loops
        stops = self._first_later(starts, indptr[rows + 1], times)
        degrees = stops - starts
        hit = np.zeros(len(rows), bool)
        if without is not None and len(without):
            left = np.sort(self._places[without])
            n_left = np.searchsorted(left, stops) - np.searchsorted(left, starts)
            hit, degrees = n_left > 0, degrees - n_left
        picks = _chosen(starts[~hit], stops[~hit], self.sources, latest, ids[~hit], draw)
        if hit.any():
            places = _ranges(starts[hit], stops[hit])
            places = places[~among(left, places)]
            ends = np.cumsum(degrees[hit])
            again = _chosen(ends - degrees[hit], ends, self.sources[places], latest, ids[hit], draw)
            picks = merged(hit, picks, (again[0], places[again[1]]))
        counts = np.diff(picks[0])
        degrees = (counts if latest else degrees) + loops
        looped = np.flatnonzero(loops)
        dst = np.concatenate([np.repeat(np.arange(len(rows)), counts), looped])
        positions = self.order[np.concatenate([picks[1], indptr[rows[looped]]])]
        positions = positions[np.lexsort((positions, dst))]
        return np.concatenate([[0], np.cumsum(counts + loops)]), positions, degrees

    @cached_property
    def _places(self) -> Array:
        """Position of each edge of the set in the order of time within its row, (n_edges,) int64."""
        places = np.empty_like(self.order)
        places[self.order] = np.arange(len(places))
        return places

    def _first_later(self, low: Array, high: Array, times: Array) -> Array:
        """Return, for each row i, the first position in low[i] .. high[i] - 1 whose edge is later than times[i], else high[i].
        Positions are in the order of time.
        """
        while (unsettled := low < high).any():
            middle = (low + high) // 2
            later = np.ones(len(low), bool)
            later[unsettled] = self.times[middle[unsettled]] > times[unsettled]
            low, high = np.where(unsettled & ~later, middle + 1, low), np.where(unsettled & later, middle, high)
        return low


class PairNumbering:
    """Map from (node, time) pairs, the rows of a batch that is sampled in time, to row numbers. It has the methods of
    `kernels.Numbering`.
    """

    dtype = np.dtype(np.int64)

    def __init__(self, n_columns: int) -> None:
        self.n_columns = n_columns

    def begin(self, seeds: Array) -> tuple[Array, Array]:
        """Start a new batch. Return (distinct, index): the distinct seeds, and for each of `seeds` its index in `distinct`."""
        return self.add(np.empty(0, np.int64), seeds)

    def add(self, rows: Array, seeds: Array) -> tuple[Array, Array]:
        """Append the seeds that are not among `rows` yet; return (all rows, the number of each seed among them).

        New seeds are appended in the order of their first occurrence.
        """
        every = np.concatenate([rows, seeds])
        _, first, places = np.unique(every, return_index=True, return_inverse=True)
        order, numbers = np.argsort(first), np.empty(len(first), np.int64)
        numbers[order] = np.arange(len(order))
        return every[first[order]], numbers[places.reshape(-1)[len(rows) :]]

    def join(self, rows: Array, sources: Array) -> Array:
        """Append the sources that are not in `rows` yet, ascending; return all rows, and overwrite each entry of `sources` with its
        number among them.
        """
        order, row_order = np.argsort(sources), np.argsort(rows)
        ascending = sources[order]
        first = np.diff(ascending, prepend=-1) > 0
        distinct = ascending[first]
        places = np.minimum(np.searchsorted(rows[row_order], distinct), max(len(rows) - 1, 0))
        is_numbered = rows[row_order[places]] == distinct if len(rows) else np.zeros(len(distinct), bool)
        numbers = len(rows) + np.cumsum(~is_numbered) - 1
        numbers[is_numbered] = row_order[places[is_numbered]]
        sources[order] = numbers[np.cumsum(first) - 1]
        return np.concatenate([rows, distinct[~is_numbered]])

    def end(self, rows: Array) -> None:
        """Do nothing at the end of a batch, because this numbering stores nothing between calls."""

    finish = end

    def clear(self) -> None:
        """Do nothing, because this numbering stores nothing between calls."""


class TemporalSampler(Sampler):
    """Sampler whose rows are (node, time) pairs: only edges that are not later than a row's time are picked for the row.

    Parameters
    ----------
    sets : sequence of TimedEdges
    args, options
        See `Sampler`.
    temporal : Temporal
        Checked.
    dtype : dtype
        Dtype of the column of recency for a graph without edge features.

    Notes
    -----
    A pick depends, beyond what `Sampler` says, on the seed's time.
    """

    def __init__(self, sets: Sequence[TimedEdges], *args: Any, temporal: Temporal, dtype: DType | None = None,
                 **options: Any) -> None:
        super().__init__(sets, *args, **options)
        self._recency = None if temporal.recency is None else Recency(float(temporal.recency), np.dtype(dtype or np.float32))
        self._latest, self._seed_times = temporal.pick == "latest", np.asarray(temporal.seeds)
        self._index_dtype: ArrayDType = self._numbering.dtype
        self._numbering: Any = PairNumbering(self._numbering.n_columns)

    def __call__(self, seeds: ArrayLike, step: int, without: Sequence[Array | None] | None = None,
                 times: Array | None = None) -> Sampled:
        """Return a Sampled (the rows and layers of a batch) for the output rows `seeds`, each at its time in `times` (None: the
        stored times of the seeds). The draws use the random numbers of `step`; edges at the positions without[k] of edge set k are
        not picked.
        """
        columns = self._checked(seeds)
        times = self._seed_times[np.asarray(seeds, np.int64)] if times is None else times
        distinct = self._distinct(times)
        request = SampleRequest(step, without or [None] * len(self.sets), distinct)
        pairs = columns * request.n_times + np.searchsorted(distinct, times)
        sampled = self._sampled(pairs, request)
        layers = [layer._replace(halo=self._columns(layer.halo, request)) for layer in sampled.layers]
        return sampled._replace(rows=self._columns(sampled.rows, request), layers=layers)

    def _columns(self, rows, request):
        return (rows // request.n_times).astype(self._index_dtype)

    def _distinct(self, times):
        return np.unique(times)

    def _layer(self, rows, layer, request):
        rows, sampled = super()._layer(rows, layer, request)
        sets = [picked._replace(columns=picked.columns.astype(self._index_dtype)) for picked in sampled.sets]
        return rows, sampled._replace(sets=sets)

    def _picked(self, edge_set, rows, layer, request, without):
        columns, at = np.divmod(rows, request.n_times)
        places = edge_set.places(columns)
        columns, at, draw = columns[places], at[places], self._draw(edge_set, layer, request.step)
        draw["k"] = self.fanouts[layer] if self.fanouts[layer] < 0 else draw["k"]
        times = request.times[at] if len(request.times) else np.empty(0, np.int64)
        ids = columns if self._ids is None else self._ids[columns]
        ids = splitmix64(splitmix64(times.view(np.uint64)) ^ ids.astype(np.uint64)).view(np.int64)
        indptr, positions, degrees = edge_set.pick(columns - edge_set.first, times, self._latest, ids, without, draw)
        sources = edge_set.edges.indices[positions] * np.int64(request.n_times) + np.repeat(at, np.diff(indptr))
        return Picked(indptr, sources, positions.astype(self._index_dtype), degrees=degrees, times=times,
                      recency=self._recency)


class CooperativeTemporalSampler(Cooperative, TemporalSampler):
    """A `TemporalSampler` over several ranks: the owner of a row that another rank needs picks its in-edges. Calls are collective."""

    def _distinct(self, times):
        return np.unique(np.concatenate(self._comm.allgather(np.unique(times))))


def timed_edges(part: PartEdges, temporal: Temporal) -> list[TimedEdges]:
    """Return the edge sets of `part` with the time from which on each edge may be sampled: the later one of the edge's time and its
    source's time in `temporal`. Collective.
    """
    nodes: Any = temporal.nodes if isinstance(temporal.nodes, dict) else {"": temporal.nodes}
    columns = {source: part.of_columns(nodes[name], source) for source, name in enumerate(part.types)
               if nodes.get(name) is not None}
    sets = []
    for edge_set in part.sets:
        times = np.full(len(edge_set.edges.indices), ALWAYS)
        if edge_set.graph.edge_values.time is not None:
            times = edge_set.of_edges(edge_set.graph.edge_values.time, slice(None)).copy()
        if edge_set.source_index in columns:
            np.maximum(times, columns[edge_set.source_index][edge_set.edges.indices], out=times)
        sets.append(TimedEdges(edge_set, times))
    return sets


def time_ranges(part: PartEdges, temporal: Temporal) -> dict[str, tuple[int, int]]:
    """Return a dict with the (smallest, largest) time on this rank of "edges" and of "nodes"; a key without times is left out."""
    nodes = temporal.nodes.values() if isinstance(temporal.nodes, Mapping) else [temporal.nodes]
    arrays = {"edges": [edge_set.graph.edge_values.time for edge_set in part.sets], "nodes": nodes}
    times = {name: np.concatenate([np.empty(0, np.int64), *(each for each in of_kind if each is not None)])
             for name, of_kind in arrays.items()}
    return {name: (int(of_kind.min()), int(of_kind.max())) for name, of_kind in times.items() if len(of_kind)}


def check_unit(times: Array, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raise a DataError if all `times` of seeds are nanoseconds of dates and all times of edges or nodes are small numbers, or the
    reverse. `ranges` is the result of `time_ranges`.

    Every edge would be earlier than the seeds, so they would see the future, or every edge would be later.
    """
    if not len(times):
        return
    seeds = int(times.min()), int(times.max())
    for name, others in ranges.items():
        if {_is_dates(*seeds), _is_dates(*others)} == {True, False}:
            raise DataError(f"times of seeds: {seeds[0]} to {seeds[1]}, but the times of {name} are {others[0]} to {others[1]}: the "
                            "larger ones are nanoseconds of dates: give both as dates, or both as numbers of one unit")


def _is_dates(first, last):
    """Return True if times from `first` to `last` can only be nanoseconds of dates, False if they can hardly be, else None."""
    return True if first >= DATES_FROM else False if -DATES_FROM < first and last < DATES_FROM else None


def _check_recency(unit: object, graph: Any) -> None:
    """Raise a ConfigError unless `unit`, the time unit of the edge feature recency, is above 0 and `graph` has one relation with times."""
    if isinstance(graph, NodeType):
        raise ConfigError("recency is an edge feature of a Graph, but the graph is relational, whose models take no edge "
                          "features", "recency")
    if isinstance(unit, (bool, np.bool_)) or not isinstance(unit, (int, float, np.number)) or not 0 < unit < np.inf:
        raise ConfigError(f"recency {unit!r} is not a number above 0", "recency")
    if graph.edge_values.time is None:
        raise ConfigError("recency: the edges have no times: a column of times of their table says when each was",
                          "recency")


def _ranges(starts: Array, stops: Array) -> Array:
    """Return the integers starts[i] .. stops[i] - 1 of every i, one range after the other, (n,) int64."""
    counts = stops - starts
    ends = np.cumsum(counts)
    return np.repeat(starts - ends + counts, counts) + np.arange(counts.sum())


def _chosen(starts: Array, stops: Array, sources: Array, latest: bool, ids: Array,
            draw: dict[str, Any]) -> tuple[Array, Array]:
    """Sample edges from each range of positions starts[i] .. stops[i] - 1, ordered by time: the last ones if `latest`, else random
    ones. Return (indptr, positions). `sources` has the sources of all edges; `draw` has arguments of `kernels.sample`, such as the
    number k of edges; ids[i] determines the random numbers of range i.

    The edges of a range are in the order of time, and `sources` are the columns of all edges. `draw` has the arguments
    k, kind and key of `kernels.sample`, and `ids` key the draws of the ranges. With k = -1 all edges are taken.
    """
    if latest or draw["k"] < 0:
        counts = stops - starts if draw["k"] < 0 else np.minimum(stops - starts, draw["k"])
        return np.concatenate([[0], np.cumsum(counts)]), _ranges(stops - counts, stops)
    n = len(starts)
    # `kernels.sample` reads where a row begins and where the next one begins: range i becomes row 2 i
    indptr, dst_ids = np.full(2 * n + 1, len(sources)), np.zeros(2 * n, np.int64)
    indptr[:-1:2], indptr[1::2], dst_ids[::2] = starts, stops, ids
    indptr, _, places = kernels.sample(indptr, sources, np.arange(0, 2 * n, 2, dtype=sources.dtype), dst_ids=dst_ids, **draw)
    return indptr, places.astype(np.int64)
