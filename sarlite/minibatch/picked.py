"""The graph that one layer of a batch computes on: sampled in-edges, called picks, and their factors in sums."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np

from sarlite import numerics
from sarlite.comm import Communicator
from sarlite.errors import ConfigError
from sarlite.graph.array_checks import Relation
from sarlite.graph.destinations import destinations
from sarlite.graph.layer_graph import LayerGraph, LayerInput
from sarlite.graph.relational_layer import RelationalLayer
from sarlite.minibatch.part_edges import PartEdges, RelationEdges
from sarlite.minibatch.sampler import Picked
from sarlite.operators.relation_sums import sets_of
from sarlite.schedule.pieces import Piece, Plan
from sarlite.schedule.schedule import Schedule
from sarlite.structure.block import Bundle, Edges
from sarlite.tape import Tensor
from sarlite.types import Array, DType


class Picks:
    """In-edges that the sampler picked for a layer, or for one relation in a layer, with their global ids.

    Attributes
    ----------
    edges : RelationEdges
        Edges that the picks were taken from.
    picked : Picked
        Picks whose columns are numbers of the graph's source rows.
    rows : (n_src,) int
        The part's column of each source row.
    dst_rows : (n_dst,) int
        The part's row of each destination; without relations they are the first source rows.
    n_src, n_dst, n_edges : int
    """

    def __init__(self, edges: RelationEdges, picked: Picked, rows: Array, dst_rows: Array) -> None:
        self.edges, self.picked, self.rows, self.dst_rows = edges, picked, rows, dst_rows
        self.n_src, self.n_dst, self.n_edges = len(rows), len(dst_rows), int(picked.indptr[-1])

    @cached_property
    def src_ids(self) -> Array:
        """Global ids of the sources, (n_src,) int64."""
        return self.edges.part.ids_of(self.rows)

    @cached_property
    def dst_ids(self) -> Array:
        """Global ids of the destinations, (n_dst,) int64."""
        return self.edges.part.ids_of(self.dst_rows) if self.edges.relation else self.src_ids[: self.n_dst]

    @cached_property
    def edge_ids(self) -> Array:
        """Index of each picked edge into the undivided graph's edge values, (n_edges,) int64."""
        return self.edges.edge_ids(self.picked.positions)


class PickedGraph(Picks, LayerGraph):  # type: ignore[override]
    """The graph that a layer of a batch computes on: the in-edges that the sampler picked for its destinations.

    Sums over the picked edges estimate sums over all edges; see `Estimate`.

    Without relations the destinations are the first source rows.

    Parameters
    ----------
    edges, picked, rows, dst_rows
        See `Picks`.
    schedule : Schedule, optional
        Schedule of the blocks; by default one block of all edges, without peers.
    relation_index : int
        Index of the relation among those that one fetch serves.
    halo, brought : (n_halo,) int
        The part's columns of the halo rows, in the order of their numbers and in the order of the blocks.
    sizes : (n_src, n_dst, n_edges), optional
        Sums over all ranks, if peers' rows arrive.
    lasting : bool
        True if the graph is used in several steps. Its blocks then keep arrays outside a step's memory, and the graph
        must have all in-edges of its destinations.
    """

    def __init__(self, edges: RelationEdges, picked: Picked, rows: Array, dst_rows: Array,
                 schedule: Schedule | None = None, *, relation_index: int = 0, halo: Array | tuple[()] = (),
                 brought: Array | tuple[()] = (), sizes: tuple[int, int, int] | None = None, lasting: bool = False) -> None:
        Picks.__init__(self, edges, picked, rows, dst_rows)
        part, graph = edges.part, edges.graph
        if schedule is None:
            base = graph.schedule
            schedule = Schedule(one_block(part, [picked], rows, lasting), part.local_transport, base.mode,
                                row_format=base.row_format)
        counts, loops, comm = (self.n_src, self.n_dst, self.n_edges), edges.edges.added_loops, schedule.transport.comm
        loops = None if loops is None else loops[dst_rows]
        LayerGraph.__init__(self, graph.comm, schedule, graph.profile, graph.n_nodes, counts, added_loops=loops,
                            bipartite=graph.relation is not None, relation=graph.relation,
                            relation_index=relation_index, exchanged_sizes=sizes or counts)
        self.has_all_edges, self.ambiguous_edge_count = comm.size == graph.comm.size, graph.ambiguous_edge_count
        sources, columns = (np.concatenate([rows, more]) if len(more) else rows for more in (halo, brought))
        self.estimate = Estimate(edges, picked, dst_rows, sources, columns, loops, exact=lasting,
                                 single_block=schedule.plan.single_block)
        if lasting:  # outside of a step's buffers
            self.src_ids, self.dst_ids, self.in_degrees  # noqa: B018 (made at the first use)

    @property
    def all_blocks(self) -> list[Edges | Bundle]:
        """Blocks of edges in the order of computation; a block may hold the edges of several relations."""
        return list(self.plan.blocks)

    def dst(self, h: LayerInput) -> Tensor:
        if isinstance(h, Tensor) and numerics.rank_invariant(len(h) > self.n_dst, True):
            return destinations(h, self.n_dst)
        return super().dst(h)

    def most_edges(self) -> int:
        """Return the number of the layer's sampled edges, summed over all ranks. It is an upper bound of every degree, and every
        rank knows it without communication.
        """
        return self.sizes[2]

    @property
    def in_degrees(self) -> Array:  # type: ignore[override]
        """Number of picked in-edges of each destination, (n_dst,) int64."""
        return self.estimate.in_degrees

    def layers(self, n: int) -> list[LayerGraph]:
        """Return [this graph], the graph of a single layer.

        Raises
        ------
        ConfigError
            For another number of layers.
        """
        if n != 1:
            raise ConfigError(f"layers({n}): the graph is one layer of a batch: call layers({n}) of the batch")
        return [self]

    def recover(self) -> None:
        """Make the graph that the batch was sampled from usable again after an aggregation failed. Collective."""
        self.edges.graph.recover()

    @cached_property
    def edge_weight(self) -> Array | None:
        """Edge weight of each picked edge, (n_edges,) float, or None without edge weights."""
        return self._of_edges(self.edges.graph.edge_weight)

    @cached_property
    def edge_features(self) -> Array | None:
        """Edge features of each picked edge, (n_edges, n_edge_features) float, or None without edge features.

        With `Picked.recency` the last column is the recency of the picks.
        """
        features, recency = self._of_edges(self.edges.graph.edge_features), self.picked.recency
        if recency is None:
            return features
        column = self._recency(recency.unit)[:, None]
        if features is None:
            return column.astype(recency.dtype)
        return np.concatenate([features, column.astype(features.dtype)], 1)

    def _recency(self, unit):
        """Return log(1 + age / unit) of each picked edge, (n_edges,) float64, where `unit` is a time and the age is the seed's time
        minus the edge's time; 0 for an added self loop.
        """
        edge_times = self._of_edges(self.edges.graph.edge_values.time)
        dst = np.repeat(np.arange(self.n_dst), np.diff(self.picked.indptr))
        # no pick is later than its seed, so the difference fits unsigned integers
        ages = (self.picked.times[dst] - edge_times).view(np.uint64)
        if self.added_loops is not None:
            ages[self.added_loops[dst] & (self.picked.columns == dst)] = 0
        return numerics.log(1 + ages / unit)

    def _of_edges(self, values):
        return None if values is None else self.edges.of_edges(values, self.picked.positions)

    def scales(self, reducer: str) -> tuple[Array | None, Array | None]:
        return self.estimate.scales(reducer)

    def edge_factors(self, reducer: str, dtype: DType) -> Tensor | None:
        if self.edge_weight is not None:
            return super().edge_factors(reducer, dtype)
        factors = self.pick_factors(reducer)
        return None if factors is None else Tensor(factors.astype(dtype), constant=True, placement="rows")

    def pick_factors(self, reducer: str) -> Array | None:
        return self.estimate.factors(reducer) if self.estimate.uneven else None

    def _float64_factors(self, reducer: str) -> Array:
        return self.estimate.factors(reducer, self.edge_weight)


class Estimate:
    """Factors of sampled edges, chosen so that a sum over them is an unbiased estimate of the sum over all in-edges.

    With k picks from d in-edges, a sum is d / k times the sum of the picks, and a mean is the mean of the picks. "sym"
    is a sum with the whole graph's degrees. An added self loop is always picked and counts once. A mean over d in-edges
    and a loop is therefore (d / k * sum of picks + loop) / (d + 1). With all in-edges the sums equal the whole graph's.
    max, min and softmax are over the picks.

    With edge weights each message is multiplied by its weight, and degrees are the whole graph's weighted degrees. A
    mean is then d / k times the weighted sum of the picks, divided by the weighted degree.

    Picks in time stand for `Picked.degrees` edges. A weighted mean is then over the weights of the picks. "sym" is
    refused, because its degrees count later edges.

    Parameters
    ----------
    edges : RelationEdges
        Edges that the picks were taken from.
    picked : Picked
    dst_rows : (n_dst,) int
        The part's row of each destination.
    sources, columns : (n_columns,) int
        The part's column of each source, by number, and of each column of the graph's blocks.
    loops : (n_dst,) bool, or None
        True for each destination with an added self loop.
    exact : bool
        True if the picks are all in-edges.
    single_block : bool
        True if no rows of other ranks arrive.

    Attributes
    ----------
    in_degrees : (n_dst,) int64
        Number of picks of each destination.
    uneven : bool
        True if picks of one row have different factors, as beside an added loop. `factors` then returns all factors, and
        `scales` none. Ranks that exchange rows agree on the value.
    """

    def __init__(self, edges: RelationEdges, picked: Picked, dst_rows: Array, sources: Array, columns: Array,
                 loops: Array | None, *, exact: bool, single_block: bool) -> None:
        self._edges, self._picked, self._loops = edges, picked, loops
        self._sources, self._columns = sources, columns
        self._rows = dst_rows - dst_rows.dtype.type(edges.first) if edges.first else dst_rows
        self._exact, self._single_block = exact, single_block
        self._factors: dict[tuple[str, bool, str], Array] = {}

    @cached_property
    def in_degrees(self) -> Array:
        return np.diff(self._picked.indptr)

    @property
    def uneven(self) -> bool:  # not cached: numerics may differ from call to call
        if self._exact:
            return False
        if not self._single_block:
            return self._edges.part.has_loops
        has_uneven = self._loops is not None and bool(self._loops.any()) and self._edges_per_pick is not None
        return numerics.rank_invariant(has_uneven, self._edges.part.has_loops)

    def scales(self, reducer: str) -> tuple[Array | None, Array | None]:
        """Return (factor of each destination, factor of each source), (n,) float64, that make the reduction `reducer` ("sum",
        "mean" or "sym") over the picked edges an estimate of the reduction over all in-edges. None stands for factors that are all
        1; if edges of a row need different factors, both are None, and `factors` returns the factors.
        """
        if self.uneven:
            return None, None
        if reducer == "mean":
            return self._inverse_degrees, None
        if reducer == "sum":
            return self._edges_per_pick, None
        into, out_of = self._inverse_roots()
        return into[self._rows] * (1.0 if self._edges_per_pick is None else self._edges_per_pick), out_of[self._columns]

    def factors(self, reducer: str, weight: Array | None = None) -> Array:
        """Return the factor of each picked edge, (n_edges,) float64, that turns the reduction `reducer` ("sum", "mean" or "sym")
        into a plain sum; it is multiplied by `weight`, the edges' weights, unless that is None.

        The factors are computed once and kept for later calls.
        """
        key = reducer, weight is not None, numerics.name()
        if key not in self._factors:
            self._factors[key] = self._computed_factors(reducer, weight)
        return self._factors[key]

    def _computed_factors(self, reducer, weight):
        dst, columns = np.repeat(np.arange(len(self._rows)), self.in_degrees), self._picked.columns
        factors = np.ones(len(dst)) if self._edges_per_pick is None else self._edges_per_pick[dst]
        if self._loops is not None:
            factors[self._loops[dst] & (columns == dst)] = 1.0  # a destination is its own source's row
        if weight is not None:
            factors *= weight
        if reducer == "mean":
            factors /= (np.maximum(self._candidate_degrees, 1) if weight is None else self._weighted_sums(dst, factors))[dst]
        elif reducer == "sym":
            into, out_of = self._inverse_roots(weight is not None)
            factors *= into[self._rows[dst]] * out_of[self._sources[columns]]
        return factors

    def _inverse_roots(self, weighted=False):
        if self._picked.degrees is not None:
            raise ConfigError("reducer 'sym' divides by degrees of the whole graph, which count later edges: with temporal "
                              "sampling take mean or sum, such as --model sage, gat or gin", "temporal")
        return self._edges.inverse_roots(weighted)

    @cached_property
    def _edges_per_pick(self):
        """Number of in-edges that each picked edge of a destination stands for, (n_dst,) float64: d / k for in-degree d and k
        picked edges; None if it is 1 everywhere. Added loops and edges that are left out do not count.
        """
        loops = 0 if self._loops is None else self._loops.astype(np.int64)
        picks = self.in_degrees - loops
        per_pick = np.where(picks > 0, (self._candidate_degrees - loops) / np.maximum(picks, 1), 1.0)
        return None if (per_pick == 1).all() else per_pick

    @cached_property
    def _whole_degrees(self):
        """In-degree of each destination in the full graph, not in the sample, (n_dst,)."""
        return self._edges.degrees[self._rows]

    @cached_property
    def _candidate_degrees(self):
        """Number of in-edges of each destination that could be sampled, (n_dst,). By default these are all in-edges of the whole
        graph but the edges that the batch leaves out. `Picked.degrees` overrides the number.
        """
        if self._picked.degrees is not None:
            return self._picked.degrees
        if self._picked.without is None:
            return self._whole_degrees
        ends = self._edges.edges.indptr
        starts, stops = (np.searchsorted(self._picked.without, ends[at]) for at in (self._rows, self._rows + 1))
        return self._whole_degrees - (stops - starts)

    def _weighted_sums(self, dst: Array, factors: Array) -> Array:
        """Return the sum of weights that a weighted mean of each destination's messages is divided by, (n_dst,) float64. `factors`
        has the weighted factor of each picked edge, and `dst` the row of its destination.
        """
        if self._picked.degrees is None:
            return self._weighted_candidate_degrees
        sums = np.bincount(dst, factors, len(self._rows))
        return np.where(sums > 0, sums, 1.0)

    @cached_property
    def _weighted_candidate_degrees(self):
        """Sum of the weights of each destination's in-edges that could be sampled, (n_dst,) float64; 1 if the sum is 0."""
        edges, without = self._edges, self._picked.without
        full = 1 / edges.inverse_weighted[self._rows]
        if without is None or not len(without):
            return full
        weights = edges.of_edges(edges.graph.edge_weight, without).astype(np.float64)
        owner = np.searchsorted(edges.edges.indptr, without, side="right") - 1
        left = full - np.bincount(owner, weights, edges.edges.n_dst)[self._rows]
        return np.where(left > 0, left, 1.0)

    @cached_property
    def _inverse_degrees(self):
        return 1.0 / np.maximum(self.in_degrees, 1)


class PickedRelations(RelationalLayer):
    """In-edges that a sampler picked for one layer from several relations, a `PickedGraph` for each relation.

    One fetch serves the relations with the same source type.

    Parameters
    ----------
    part : PartEdges
    out_of : list of list of PickedGraph
        Graphs of the relations out of each source type.
    src_ids, dst_ids : dict of str to (n,) int64
        Global ids of the local rows by type; each type's destinations are its first rows.

    Attributes
    ----------
    n_src, n_dst, n_edges : int
        Sums over all types and relations.
    """

    def __init__(self, part: PartEdges, out_of: Sequence[Sequence[PickedGraph]], src_ids: dict[str, Array],
                 dst_ids: dict[str, Array]) -> None:
        self.part, self.comm, self.profile = part, part.graph.comm, part.graph.profile
        self.src_ids, self.dst_ids, self._out_of = src_ids, dst_ids, out_of
        self.relations = tuple(graph.relation for graphs in out_of for graph in graphs if graph.relation)
        self.n_src, self.n_dst = (sum(map(len, ids.values())) for ids in (src_ids, dst_ids))
        self.n_edges = sum(graph.n_edges for graphs in out_of for graph in graphs)

    def __repr__(self) -> str:
        return f"PickedRelations(n_src={self.n_src}, n_dst={self.n_dst}, n_edges={self.n_edges})"

    @property
    def n_halo(self) -> int:
        """Number of rows of other ranks, over all node types, that this rank needs."""
        return sum(graphs[0].n_halo for graphs in self._out_of)

    def by_source(self, chosen: Collection[Relation]) -> list[dict[Relation, LayerGraph]]:
        by_source: list[dict[Relation, LayerGraph]] = [
            {graph.relation: graph for graph in graphs if graph.relation is not None and graph.relation in chosen}
            for graphs in self._out_of]
        return [graphs for graphs in by_source if graphs]

    def of(self, node_type: str) -> "TypeRows":
        return TypeRows(self.comm, node_type, self.dst_ids[node_type])

    def dst(self, h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        n_dst = {name: len(self.dst_ids[name]) for name in h}
        return {name: destinations(x, n_dst[name]) if numerics.rank_invariant(len(x) > n_dst[name], True) else x
                for name, x in h.items()}

    @property
    def all_blocks(self) -> list[Edges]:
        """List of all edges as `Edges`, one for each relation in each block of edges, in the order of the blocks."""
        return [edges for graphs in self._out_of for block in graphs[0].plan.blocks for edges in sets_of(block)]


class TypeRows:
    """The destination rows of one node type in a layer: their ids and number, as `nn.Activation` and `nn.BatchNorm` need them.

    Attributes
    ----------
    comm : Communicator
    node_type : str
    dst_ids : (n_dst,) int64
    n_dst : int
    """

    def __init__(self, comm: Communicator, node_type: str, dst_ids: Array) -> None:
        self.comm, self.node_type, self.dst_ids, self.n_dst = comm, node_type, dst_ids, len(dst_ids)


def one_block(part: PartEdges, picked: Sequence[Picked], rows: Array, used_again: bool) -> Plan:
    """Return the plan of a sampled layer that needs no rows of other ranks: one block with the edges `picked`, a list by relation,
    whose sources are the local `rows`. `used_again` is True if the block stores its transposes.

    `used_again` is True if transposes are stored as long as the block.
    """
    blocks = [_OneBlock(picks, part, rows, used_again) for picks in picked]
    pieces = (Piece(blocks[0] if len(blocks) == 1 else Bundle(blocks), own=True),)
    return Plan(len(rows), pieces, pieces)


class _OneBlock(Edges):
    """All sampled edges of one relation as one block of a plan. The global ids of its sources are looked up at each access."""

    rows = positions = None
    offset = source = 0

    def __init__(self, picked, part, rows, used_again):
        self.indptr, self.indices, self.n_dst = picked.indptr, picked.columns, len(picked.indptr) - 1
        self._part, self._of, self.lasting = part, rows, used_again

    @property
    def n_src(self):
        return len(self._of)

    @property
    def src_ids(self):
        return self._part.ids_of(self._of)
