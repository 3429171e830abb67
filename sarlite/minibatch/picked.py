"""The graph that one layer of a batch computes on: picked in-edges, and what the picks count in sums."""

from functools import cached_property
from typing import Any

import numpy as np

from sarlite.errors import ConfigError
from sarlite.graph.block import Edges
from sarlite.minibatch.part_edges import PartEdges
from sarlite.minibatch.sampler import Layer
from sarlite.sar.graph.destinations import destinations
from sarlite.sar.graph.layer_graph import LayerGraph
from sarlite.sar.schedule.pieces import Piece, Plan
from sarlite.sar.schedule.schedule import Schedule
from sarlite.sar.schedule.state import Kept
from sarlite.tape import Tensor
from sarlite.tape.numerics import known
from sarlite.types import Array, DType


class Picks:
    """The picked in-edges of a layer: whose edges they are, by global ids.

    Attributes
    ----------
    part : PartEdges
        What was picked from.
    layer : Layer
    rows : (n_src,) int
        The part's column of each source row; the first n_dst are the destinations'.
    n_src, n_dst, n_edges : int
    """

    def __init__(self, part: PartEdges, layer: Layer, rows: Array) -> None:
        self.part, self.layer, self.rows = part, layer, rows
        self.n_src, self.n_dst, self.n_edges = layer.n_src, layer.n_dst, int(layer.indptr[-1])

    @cached_property
    def src_ids(self) -> Array:
        """(n_src,) int64: the sources' global ids."""
        return self.part.ids_of(self.rows)

    @property
    def dst_ids(self) -> Array:
        """(n_dst,) int64: the destinations' global ids."""
        return self.src_ids[: self.n_dst]

    @cached_property
    def edge_ids(self) -> Array:
        """(n_edges,) int64: where each pick stands in the whole graph's edge values."""
        return self.part.edge_ids(self.layer.positions)


class PickedGraph(Picks, LayerGraph):  # type: ignore[override]
    """A layer's graph: picked in-edges of its destinations, which are its first rows. Its sums are estimates; see
    `Estimate`.

    Parameters
    ----------
    part : PartEdges
        What was picked from.
    layer : Layer
        Its halo rows are left out where `plan` has none.
    rows : (n_src,) int
        The column of each source row.
    plan : Plan, optional
        Of the blocks; by default one block of all edges, and no peers.
    halo : (n_halo,) int
        The columns that the plan brings, in the order of its blocks.
    sizes : (n_src, n_dst, n_edges), optional
        Of all ranks, where peers' rows come.
    lasting : bool
        Whether it is used again, so that what its blocks keep is not of a step's memory. It then has all in-edges of
        its destinations.
    """

    def __init__(self, part: PartEdges, layer: Layer, rows: Array, plan: Plan | None = None, halo: Any = (),
                 sizes: tuple[int, int, int] | None = None, lasting: bool = False) -> None:
        Picks.__init__(self, part, layer, rows)
        graph, transport = part.graph, part.graph.schedule.transport
        if plan is None:
            all_edges = (Piece(_OneBlock(layer, part, rows, lasting), own=True),)
            plan, transport = Plan(layer.n_src, all_edges, all_edges), part.alone
        own, loops, self.mistakable = (self.n_src, self.n_dst, self.n_edges), part.edges.added_loops, graph.mistakable
        loops = None if loops is None else loops[rows[: layer.n_dst]]
        schedule = Schedule(plan, transport, graph.schedule.mode, rows=graph.schedule.rows)
        self.whole_edges = transport.comm.size == graph.comm.size
        LayerGraph.__init__(self, graph.comm, schedule, graph.profile, Kept(transport.state), graph.n_nodes, own, loops)
        self._all_sizes = sizes or own
        sources = np.concatenate([rows, halo]) if len(halo) else rows
        self.estimate = Estimate(part, layer, rows, sources, loops, exact=lasting, alone=plan.alone)
        if lasting:  # outside of a step's buffers
            self.src_ids, self.in_degrees  # noqa: B018 (made at the first use)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self._all_sizes

    def dst(self, h: Any) -> Any:
        if isinstance(h, Tensor) and known(len(h) > self.n_dst, True):
            return destinations(h, self.n_dst)
        return super().dst(h)

    def most_edges(self) -> int:
        """Return the edges of all ranks: no row has more, and nothing is sent to tell."""
        return self.sizes[2]

    @property
    def in_degrees(self) -> Array:  # type: ignore[override]
        """(n_dst,) int64: how many picks each destination has."""
        return self.estimate.in_degrees

    def layers(self, n: int) -> list[LayerGraph]:
        """Return the graphs of `n` layers: of one, this.

        Raises
        ------
        ConfigError
            For another number of layers.
        """
        if n != 1:
            raise ConfigError(f"{n} layers over one layer of a batch: ask the batch for its layers")
        return [self]

    def recover(self) -> None:
        """Make the graph that was sampled from usable again after an aggregation that failed. Collective."""
        self.part.graph.recover()

    @cached_property
    def edge_weight(self) -> Array | None:  # type: ignore[override]
        """(n_edges,) float: the picks' weights in the graph that was sampled from, if that has weights."""
        return self._of_edges(self.part.graph.edge_weight)

    @cached_property
    def edge_features(self) -> Array | None:  # type: ignore[override]
        """(n_edges, n_edge_features) float: the picks' features in the graph that was sampled from, if it has some."""
        return self._of_edges(self.part.graph.edge_features)

    def _of_edges(self, values):
        return None if values is None else self.part.of_edges(values, self.layer.positions)

    def scales(self, reducer: str) -> tuple[Array | None, Array | None]:
        return self.estimate.scales(reducer)

    def edge_counts(self, reducer: str, dtype: DType) -> Tensor | None:
        if self.edge_weight is not None:
            return super().edge_counts(reducer, dtype)
        counts = self.pick_counts(reducer)
        return None if counts is None else Tensor(counts.astype(dtype), constant=True)

    def pick_counts(self, reducer: str) -> Array | None:
        return self.estimate.counts(reducer) if self.estimate.uneven else None

    def edge_factors(self, reducer: str) -> Array:
        return self.estimate.counts(reducer, self.edge_weight)


class Estimate:
    """What picks count in sums, so that a sum over picks is an unbiased estimate of the whole graph's.

    Of k picks from d in-edges a sum is d / k times the picks', a mean the picks' mean, and "sym" a sum with the whole
    graph's degrees.
    An added self loop is always there, so it counts once, and a mean over d in-edges and a loop is (d / k sum of picks
    + loop) / (d + 1).
    With all in-edges the sums are the whole graph's. max, min and softmax are over the picks.
    With edge weights each pick's message counts its weight, and degrees are the whole graph's weighted ones: a mean is
    d / k times the picks' weighted sum over the node's weighted degree.

    Parameters
    ----------
    part : PartEdges
        What was picked from.
    layer : Layer
    rows : (n_src,) int
        The part's column of each source row.
    sources : (n_columns,) int
        The part's column of each column of the graph's blocks.
    loops : (n_dst,) bool, or None
        Which destinations have an added self loop.
    exact : bool
        Whether the picks are all in-edges.
    alone : bool
        Whether no rows of peers come.

    Attributes
    ----------
    in_degrees : (n_dst,) int64
        How many picks each destination has.
    uneven : bool
        Whether picks of one row count differently, as they do beside an added loop; ranks that exchange rows decide
        alike. `counts` then says what each pick counts, and `scales` nothing.
    """

    def __init__(self, part: PartEdges, layer: Layer, rows: Array, sources: Array, loops: Array | None, *, exact: bool,
                 alone: bool) -> None:
        self._part, self._layer, self._rows, self._sources, self._loops = part, layer, rows, sources, loops
        self._exact, self._alone = exact, alone
        self._counts: dict[tuple[str, bool], Array] = {}

    @cached_property
    def in_degrees(self) -> Array:
        return np.diff(self._layer.indptr)

    @cached_property
    def uneven(self) -> bool:
        if self._exact:
            return False
        if not self._alone:
            return self._part.has_loops
        alone = self._loops is not None and bool(self._loops.any()) and self._share is not None
        return known(alone, self._part.has_loops)

    def scales(self, reducer: str) -> tuple[Array | None, Array | None]:
        """Return what a sum multiplies destinations and sources by, each (n,) float64 or None."""
        if self.uneven:
            return None, None
        if reducer == "mean":
            return self._inverse_degrees, None
        if reducer == "sum":
            return self._share, None
        root = self._part.inverse_root[self._sources]
        return root[: self._layer.n_dst] * (1.0 if self._share is None else self._share), root

    def counts(self, reducer: str, weight: Array | None = None) -> Array:
        """Return (n_edges,) float64: what each pick's message counts, with the picks' weights or without. Kept."""
        key = reducer, weight is not None
        if key not in self._counts:
            self._counts[key] = self._counted(reducer, weight)
        return self._counts[key]

    def _counted(self, reducer, weight):
        part, layer, rows = self._part, self._layer, self._rows
        dst, columns = np.repeat(np.arange(layer.n_dst), self.in_degrees), layer.columns
        counts = np.ones(len(dst)) if self._share is None else self._share[dst]
        if self._loops is not None:
            counts[self._loops[dst] & (columns == dst)] = 1.0  # a destination is its own source's row
        if weight is not None:
            counts *= weight
        if reducer == "mean":
            counts /= (np.maximum(self._rest, 1) if weight is None else self._weighted_rest)[dst]
        elif reducer == "sym":
            sources = np.concatenate([rows, layer.halo])
            root = part.inverse_root[sources] if weight is None else np.sqrt(part.inverse_weighted[sources])
            counts *= root[dst] * root[columns]
        return counts

    @cached_property
    def _share(self):
        """(n_dst,) float64: d / k, which a pick stands for; added loops count in neither, edges left out in both. None
        where all are 1."""
        loops = 0 if self._loops is None else self._loops.astype(np.int64)
        picks = self.in_degrees - loops + (0 if self._layer.n_left_out is None else self._layer.n_left_out)
        share = np.where(picks > 0, (self._full - loops) / np.maximum(picks, 1), 1.0)
        return None if (share == 1).all() else share

    @cached_property
    def _full(self):
        """(n_dst,) in-degrees in the whole graph."""
        return self._part.degrees[self._rows[: self._layer.n_dst]]

    @cached_property
    def _rest(self):
        """(n_dst,) in-degrees in the whole graph without the edges that are left out."""
        if self._layer.without is None:
            return self._full
        ends = self._part.edges.indptr
        rows = self._rows[: self._layer.n_dst]
        starts, stops = (np.searchsorted(self._layer.without, ends[at]) for at in (rows, rows + 1))
        return self._full - (stops - starts)

    @cached_property
    def _weighted_rest(self):
        """(n_dst,) weighted in-degrees in the whole graph without the edges that are left out."""
        part, rows, without = self._part, self._rows[: self._layer.n_dst], self._layer.without
        full = 1 / part.inverse_weighted[rows]
        if without is None or not len(without):
            return full
        weights = part.of_edges(part.graph.edge_weight, without).astype(np.float64)
        owner = np.searchsorted(part.edges.indptr, without, side="right") - 1
        left = full - np.bincount(owner, weights, part.n_local)[rows]
        return np.where(left > 0, left, 1.0)

    @cached_property
    def _inverse_degrees(self):
        return 1.0 / np.maximum(self.in_degrees, 1)


class _OneBlock(Edges):
    """All picks of a layer as one block. Its columns' ids are looked up when they are asked for."""

    rows = positions = None
    offset = source = 0

    def __init__(self, layer, part, rows, lasting):
        self.indptr, self.indices, self.n_dst, self.lasting = layer.indptr, layer.columns, layer.n_dst, lasting
        self._part, self._of = part, rows

    @property
    def n_src(self):
        return len(self._of)

    @property
    def src_ids(self):
        return self._part.ids_of(self._of)
