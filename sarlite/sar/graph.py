"""Graph: what models aggregate over, blocks from source rows to destination rows. A whole graph is a sharded graph of one part."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np

from sarlite import kernels
from sarlite.comm import Communicator
from sarlite.errors import ConfigError, ShapeError
from sarlite.graph.part import InEdges
from sarlite.profile import Counted, Profile
from sarlite.sar import construct, weights
from sarlite.sar.aggregate import Operator, aggregate
from sarlite.sar.columns import Grid
from sarlite.sar.custom import aggregate_custom, multiplied
from sarlite.sar.destinations import destinations
from sarlite.sar.fn import MulEdge
from sarlite.sar.operators import TABLE, attends_products
from sarlite.sar.reducers import REDUCERS
from sarlite.sar.schedule.pieces import Plan
from sarlite.sar.schedule.reverse import out_edges
from sarlite.sar.schedule.schedule import Schedule
from sarlite.sar.shard import shard
from sarlite.tape import Tensor
from sarlite.tape.engine import as_array, grad_enabled
from sarlite.tape.tensor_map import TensorMap
from sarlite.types import Array

TABLE = {**TABLE, **{(MulEdge, reducer): multiplied for reducer in ("max", "min")}}
KNOWN = tuple(dict.fromkeys(["sum", "mean", "sym", *REDUCERS]))
Rows = Mapping[str, Tensor | Array]  # what a function of rows or edges gets, by name


class Graph:
    """One part of a graph: its in-edges by block, and how its neighbours' rows arrive.

    Make one with `from_edges`, `from_csr`, `from_scipy`, `from_networkx`, `from_part` or `shard`.

    Attributes
    ----------
    n_nodes : int
        Destination nodes of the whole graph; all nodes, but on a bipartite graph.
    n_src, n_dst, n_edges : int
        Local source rows, which models pass in; destination rows, which they get back; and in-edges.
    src_ids, dst_ids : (n_src,), (n_dst,) int64
        Global ids of the local rows, in their order: `x[graph.src_ids]` are this rank's. The same array, but on a bipartite graph.
    node_ids : (n_dst,) int64
        Another name for `dst_ids`.
    edge_ids : (n_edges,) int64
        Global ids of the local in-edges: a rank's edge values are `values[graph.edge_ids]`. Made at the first use where they count up.
    in_degrees : (n_dst,) int64
    added_loops : (n_dst,) bool, or None
        Whether a row's self loop was added to the data.
    bipartite : bool
        Whether sources and destinations are other nodes.
    edge_weight : (n_edges,) float array, or None
    edge_features : (n_edges, n_edge_features) float array, or None
        What `with_edge_values` gave the local in-edges, in the order of `edge_ids`.
    comm : Communicator
    profile : Profile
        Counters of bytes and remote buffers.
    schedule : Schedule
        The plan, the transport and the mode. With columns it is made when it is first needed, as by custom messages; collective then.
    grid : Grid, or None
        How its ranks share rows and divide columns, where they do.
    """

    from_edges = classmethod(construct.from_edges)
    from_csr = classmethod(construct.from_csr)
    from_scipy = classmethod(construct.from_scipy)
    from_networkx = classmethod(construct.from_networkx)
    from_part = classmethod(construct.from_part)
    shard = shard
    with_edge_values = weights.with_edge_values
    edge_weight: Array | None = None
    edge_features: Array | None = None
    _negative: tuple[int, float] | None = None  # a weight that no degree may have
    _sym: tuple[Array, Array] | None

    def __init__(self, comm: Communicator, schedule: Schedule | Callable[[], Schedule], profile: Profile, *, n_nodes: int, dst_ids: Array,
                 src_ids: Array, edge_ids: Array | None, in_degrees: Array, added_loops: Array | None = None, bipartite: bool = False,
                 grid: Grid | None = None) -> None:
        self.dst_ids, self.src_ids, self.in_degrees, self._edge_ids = dst_ids, src_ids, in_degrees, edge_ids
        sizes = len(src_ids), len(dst_ids), int(in_degrees.sum())
        self._begin(comm, schedule, profile, n_nodes, sizes, added_loops, bipartite, grid)

    def _begin(self, comm, schedule, profile, n_nodes, sizes, added_loops=None, bipartite=False, grid=None):
        """Set all but ids and degrees, which a graph may make at their first use."""
        self._schedule, self.profile, self.comm = schedule, profile, cast(Communicator, Counted(comm, profile))
        self.grid, self.n_nodes, self.bipartite = grid, n_nodes, bipartite
        (self.n_src, self.n_dst, self.n_edges), self.added_loops = sizes, added_loops
        self._sym, self._kept = None, TensorMap()  # constant Tensor -> {reducer: its aggregation}

    def __repr__(self) -> str:
        size = self.comm.size
        grid, inner = self.grid, self if self.grid is None else self.grid.graph
        share = f", part {self.comm.rank} of {size}, mode {inner.schedule.mode}" if size > 1 else ""
        share += "" if grid is None else f", grid {grid.n_rows} x {grid.n_columns}"
        return f"Graph(n_src={self.n_src}, n_dst={self.n_dst}, n_edges={self.n_edges}{share})"

    @property
    def node_ids(self) -> Array:
        return self.dst_ids

    @property
    def schedule(self) -> Schedule:
        found = self._schedule
        if not isinstance(found, Schedule):
            found = self._schedule = kernels.unbuffered(found)
        return found

    @property
    def plan(self) -> Plan:
        return self.schedule.plan

    # ---- what models ask

    def layers(self, n: int) -> list["Graph"]:
        """Return the graphs that `n` layers compute on: this one, n times.

        Raises
        ------
        ConfigError
            Of a bipartite graph, for more than one layer.
        """
        if self.bipartite and n > 1:
            raise ConfigError(f"{n} layers over a bipartite graph: what one layer makes are no sources of the next")
        return [self] * n

    def enter(self, h: Any) -> tuple["Graph", Any]:
        """Return (graph, h) for a layer, as they are: here a sampled batch's halo rows would join."""
        return self, h

    def src(self, h: Any) -> Any:
        """Return the source rows of h: h itself, or the first of a bipartite graph's pair (h_src, h_dst)."""
        return h[0] if isinstance(h, tuple) else h

    def dst(self, h: Any) -> Any:
        """Return the destinations' own rows of h: h itself, or the second of a bipartite graph's pair (h_src, h_dst)."""
        if isinstance(h, tuple):
            return h[1]
        if self.bipartite:
            raise ShapeError("a bipartite graph's layer takes a pair (h_src, h_dst)")
        return destinations(h, self.n_dst) if isinstance(h, Tensor) and len(h) > self.n_dst else h[: self.n_dst]

    def aggregate(self, message: Any, reducer: str, src: Rows | None = None, dst: Rows | None = None, edge: Rows | None = None) -> Tensor:
        """Return out_i = reduce over in-edges (j, i) of message(src_j, dst_i, edge_ij), 0 where i has no edges. Collective.

        Parameters
        ----------
        message : fn.copy_src(...), fn.linear(...), fn.mul_edge(...), fn.attend(...), or a function (src, dst, edge) -> Tensor
            A function gets dicts of tensors of one row an edge (with the rows' global ids as `.ids`), and may use any tape
            operation on rows and any learnable value. It must not branch on values, as it is replayed.
        reducer : {"sum", "mean", "sym", "max", "min", "softmax"}
            "sym" is the sum over m_ij / sqrt(d_i d_j), d the in-degrees but at least 1, of `copy_src` and `linear`; on a bipartite
            graph d_j is the out-degree. With edge weights sums of these two are weighted, `with_edge_values` says how.
            Ties of max and min go to the lowest global source id. "softmax" takes a message that returns a pair, score
            (n_edges, ...heads) and value (n_edges, ...heads, ...), and weighs the values by the softmax of the scores over
            each node's in-edges.
        src, dst, edge : dict of str to Tensor or ndarray
            A function's inputs: n_src, n_dst and n_edges rows.

        Returns
        -------
        Tensor (n_dst, ...)

        Raises
        ------
        ConfigError
            Unknown reducer, or one that the message does not go with.
        ShapeError
            An input without one row a node or edge.
        PeerError
            An aggregation over this graph failed before; see `recover`.

        Notes
        -----
        Collective, and so is its backward. Every rank's message must be the same.
        Bytes received: one message a peer of the rows needed from it; in mode `sar` again in backward in case 2.
        The sum of `copy_src` or `linear` of a constant tensor is kept, and fetches in the first call alone.
        The first "sym" of a graph fetches a number a row more, counted under "setup".
        Source: SAR Eq. 1, algorithms 1 and 2.
        """
        if reducer not in KNOWN:
            raise ConfigError(f"reducer {reducer!r} is not one of {', '.join(KNOWN)}")
        how = TABLE.get((type(message), reducer))
        if how is not None:
            return how(self, message, reducer)
        if callable(message) and reducer in REDUCERS:
            return aggregate_custom(self, message, reducer, src or {}, dst or {}, edge or {})
        raise ConfigError(f"message {type(message).__name__} does not go with reducer {reducer!r}")

    def recover(self) -> None:
        """Make the graph usable again after an aggregation that failed. Collective."""
        (self.schedule if self.grid is None else self.grid).transport.recover()

    # ---- its edges

    @cached_property
    def edge_ids(self) -> Array:
        return np.arange(self.n_edges) if self._edge_ids is None else self._edge_ids

    def in_edges(self) -> InEdges:
        """Return this part's edges in source order, as one CSR. Collective.

        Returns
        -------
        InEdges
            Its indices are row numbers of sources in the whole graph. Arrays are shared where there is but one rank; else made anew,
            8 bytes an edge, and a number a halo row is fetched, counted under "setup".
        """
        local, indptr = self.plan.local, np.concatenate([[0], np.cumsum(self.in_degrees)])
        if self.comm.size == 1:
            return InEdges(indptr, local.indices, local.numbers, self.added_loops)
        first = sum(self.comm.allgather(self.n_src)[: self.comm.rank])
        with self.profile.phase("setup"):
            row_numbers = self.schedule.run((np.arange(first, first + self.n_src),), lambda block, rows: rows[0].copy(), keep=True)
        indices = np.empty(self.n_edges, np.int64)
        for block, numbers in zip(self.plan.blocks, row_numbers):
            indices[slice(None) if block.positions is None else block.positions] = numbers[block.indices]
        return InEdges(indptr, indices, local.numbers, self.added_loops)

    def out_edges(self) -> tuple[Array, Array]:
        """Return the edges from this rank's source rows, by source. Collective.

        Returns
        -------
        indptr : (n_src + 1,) int64
        indices : (edges,) int64
            Row numbers of destinations in the whole graph, ascending in each row.

        Notes
        -----
        Memory: 40 bytes an in-edge and an out-edge while it runs; nothing is kept.
        """
        edges = out_edges(self.comm, self.in_edges(), self.n_src)
        return edges.indptr, edges.indices

    # ---- what operators ask

    def check(self, message: str, src: Rows | None = None, dst: Rows | None = None, edge: Rows | None = None) -> list[Tensor]:
        """Return the inputs of a message as tensors, once their numbers of rows and float dtypes are right; errors name the input."""
        inputs: dict[str, Any] = {}
        for place, values, n in (("source row", src, self.n_src), ("destination row", dst, self.n_dst), ("edge", edge, self.n_edges)):
            for name, value in (values or {}).items():
                array = value if isinstance(value, Tensor) else as_array(value)
                if array.shape[:1] != (n,):
                    raise ShapeError(f"{message}: {name} has shape {array.shape}, but needs {n} rows, one each {place} of the graph")
                inputs[f"{place} {name}"] = value if isinstance(value, Tensor) else Tensor(np.ascontiguousarray(array))
        return list(inputs.values())

    def apply(self, make: Callable[["Graph"], Operator], inputs: list[Tensor], places: tuple[str, ...] = ("src",),
              whole_heads: bool = False) -> Tensor:
        """Aggregate by the operator that `make` makes for a graph; `places` and `whole_heads` are `Grid.aggregate`'s. Collective."""
        if self.grid is not None:
            return self.grid.aggregate(make, inputs, places, whole_heads)
        return aggregate(self.schedule, make(self), inputs)

    def kept_of(self, x: Tensor) -> dict[str, Any]:
        """The aggregations of a constant tensor by reducer; they go when the tensor does."""
        return self._kept.setdefault(x, {})

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Source rows, destination rows and edges of all ranks whose rows are exchanged; (0, 0, 0) where nobody counted them."""
        return (self.n_src, self.n_dst, self.n_edges) if self.comm.size == 1 else (0, 0, 0)

    def attends_products(self, x: Any, n_heads: int, n_feat: int) -> bool:
        """Whether attention over z = x W, (n_src, n_heads, n_feat), is better given z, or x as a z that all heads share.

        The sum's products with W are then the caller's: out_ih = S_ih W_h. Of fewer destinations than sources, as in a batch, these are
        fewer, but sums over edges are n_heads x.shape[1] wide. Counted as `fn.linear` does; the same on every rank.
        """
        return attends_products(self, x.shape[1], n_heads, n_feat, grad_enabled() and x.requires_grad)

    @cached_property
    def inverse_degrees(self) -> Array:
        """(n_dst,) float64: 1 / in-degree, of isolated rows 1."""
        return 1.0 / np.maximum(self.in_degrees, 1)

    def scales(self, reducer: str) -> tuple[Array | None, Array | None]:
        """What `Sum` multiplies destinations and sources by. Collective."""
        if reducer == "sym":
            if self._sym is None:  # no cached_property: its lock would be held while thread ranks wait for each other
                with self.profile.phase("setup"):
                    degrees = np.diff(self.out_edges()[0]) if self.bipartite else self.in_degrees
                    own = np.sqrt(1.0 / np.maximum(degrees, 1))
                    columns = self.schedule.run((own,), lambda block, rows: rows[0].copy(), keep=True)
                self._sym = np.sqrt(self.inverse_degrees), np.concatenate(columns)
            return self._sym
        return self.inverse_degrees if reducer == "mean" else None, None

    @cached_property
    def weighted_degrees(self) -> Array:
        """(n_dst,) float64: the sum of the weights of each row's in-edges, of which there must be."""
        assert self.edge_weight is not None
        return weights.degrees(self, self.edge_weight)

    def edge_factors(self, reducer: str) -> Array:
        """What `weights.normalised` keeps, (n_edges,) floats. Collective."""
        return weights.factors(self, reducer)

    @property
    def itype(self) -> np.dtype[Any]:
        """dtype of the blocks' indices."""
        return self.plan.local.indices.dtype

    @cached_property
    def column_ids(self) -> Array | None:
        """Global id of each column of all blocks; None where they ascend."""
        ids = np.concatenate([block.src_ids for block in self.plan.blocks])
        return None if (np.diff(ids) > 0).all() else ids

    @cached_property
    def edge_src_ids(self) -> Array:
        """(n_edges,) global id of each edge's source, in the order of edge values."""
        ids = np.empty(self.n_edges, np.int64)
        for block in self.plan.blocks:
            ids[block.labels] = block.src_ids[block.indices]
        return ids
