"""A batch as a graph: the blocks of its layers, each a Graph, and what the picks stand for."""

from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, NoReturn

import numpy as np

from sarlite import kernels
from sarlite.errors import ConfigError
from sarlite.graph.block import Edges
from sarlite.minibatch.columns import Columns
from sarlite.minibatch.sampler import Layer, Sampled
from sarlite.sar.graph import layer_graph
from sarlite.sar.graph.graph import Graph
from sarlite.sar.operators import fn
from sarlite.sar.operators.table import SUMS, product_first
from sarlite.sar.schedule.pieces import Piece, Plan
from sarlite.sar.schedule.schedule import Schedule
from sarlite.tape import Tensor, ops
from sarlite.tape.engine import as_array
from sarlite.tape.taken import Taken
from sarlite.types import Array


class _Picks(Edges):
    """All picks of a layer as one block. Its columns' ids are looked up when they are asked for."""

    rows = positions = None
    offset = source = 0

    def __init__(self, layer, columns, rows, lasting):
        self.indptr, self.indices, self.n_dst, self.lasting = layer.indptr, layer.columns, layer.n_dst, lasting
        self._columns, self._of = columns, rows

    @property
    def n_src(self):
        return len(self._of)

    @property
    def src_ids(self):
        return self._columns.ids_of(self._of)


class LayerGraph(Graph):
    """The graph that one layer of a batch computes on: picked in-edges of its destinations, which are its first rows.

    Its sums are estimates of the whole graph's: of k picks from d in-edges a sum is d / k times the picks', a mean the picks' mean, and
    "sym" a sum with the whole graph's degrees. An added self loop is always there, so it counts once, and a mean over d in-edges and a loop
    is (d / k sum of picks + loop) / (d + 1). With all in-edges they are the whole graph's. max, min and softmax are over the picks.
    With edge weights each pick's message counts its weight, and degrees are the whole graph's weighted ones: a mean is d / k times the
    picks' weighted sum over the node's weighted degree.

    Parameters
    ----------
    graph : Graph
        What was sampled from.
    columns : Columns
        Its edges.
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
        Whether it is used again, so that what its blocks keep is not of a step's memory. It then has all in-edges of its destinations.
    """

    def __init__(self, graph: Graph, columns: Columns, layer: Layer, rows: Array, plan: Plan | None = None, halo: Any = (),
                 sizes: tuple[int, int, int] | None = None, lasting: bool = False) -> None:
        self._graph, self._columns, self._layer, self._rows, self._lasting = graph, columns, layer, rows, lasting
        transport = graph.schedule.transport
        if plan is None:
            all_edges = (Piece(_Picks(layer, columns, rows, lasting), own=True),)
            plan, transport = Plan(layer.n_src, all_edges, all_edges), columns.alone
        schedule, loops = Schedule(plan, transport, graph.schedule.mode), columns.edges.added_loops
        layer_graph.LayerGraph.__init__(self, graph.comm, schedule, graph.profile, graph.n_nodes,
                                        (layer.n_src, layer.n_dst, int(layer.indptr[-1])),
                                        None if loops is None else loops[rows[: layer.n_dst]])
        if lasting:  # outside of a step's buffers
            self.src_ids, self.in_degrees  # noqa: B018 (made at the first use)
        self.all_sizes = sizes or (self.n_src, self.n_dst, self.n_edges)
        self._sources = np.concatenate([rows, halo]) if len(halo) else rows
        self._weights: dict[tuple[str, bool], Array] = {}

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.all_sizes

    def layers(self, n: int) -> list[Graph]:
        """Return the graphs of `n` layers: of one, this."""
        if n != 1:
            raise ConfigError(f"{n} layers over one layer of a batch: ask the batch for its layers")
        return [self]

    def recover(self) -> None:
        self._graph.recover()

    @cached_property
    def src_ids(self) -> Array:  # type: ignore[override]
        return self._columns.ids_of(self._rows)

    @property
    def dst_ids(self) -> Array:  # type: ignore[override]
        return self.src_ids[: self.n_dst]

    @cached_property
    def in_degrees(self) -> Array:  # type: ignore[override]
        return np.diff(self._layer.indptr)

    @cached_property
    def edge_ids(self) -> Array:
        """(n_edges,) int64: where each pick stands in the whole graph's edge values."""
        return self._columns.edge_ids(self._layer.positions)

    @cached_property
    def edge_weight(self) -> Array | None:  # type: ignore[override]
        return self._of_edges(self._graph.edge_weight)

    @cached_property
    def edge_features(self) -> Array | None:  # type: ignore[override]
        return self._of_edges(self._graph.edge_features)

    def _of_edges(self, values):
        """Each pick's row of the part's edge values."""
        return None if values is None else self._columns.of_edges(values, self._layer.positions)

    def with_edge_values(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError("a batch's edges have the values of the graph that it was sampled from")

    @cached_property
    def _full(self):
        """(n_dst,) in-degrees in the whole graph."""
        return self._columns.degrees[self._rows[: self.n_dst]]

    @cached_property
    def _share(self):
        """(n_dst,) float64: d / k, which a pick stands for; added loops count in neither. None where all are 1."""
        loops = 0 if self.added_loops is None else self.added_loops.astype(np.int64)
        picks = self.in_degrees - loops
        share = np.where(picks > 0, (self._full - loops) / np.maximum(picks, 1), 1.0)
        return None if (share == 1).all() else share

    @cached_property
    def _uneven(self):
        """Whether picks of a row count differently, as they do beside an added loop; ranks that exchange rows decide alike."""
        if self._lasting:  # of all in-edges
            return False
        if not self.plan.alone:
            return self._columns.has_loops
        return self.added_loops is not None and bool(self.added_loops.any()) and self._share is not None

    def scales(self, reducer: str) -> tuple[Array | None, Array | None]:
        """What `Sum` multiplies destinations and sources by; where picks count differently their weights have it all."""
        if self._uneven:
            return None, None
        if reducer == "mean":
            return self.inverse_degrees, None
        if reducer == "sum":
            return self._share, None
        root = self._columns.inverse_root[self._sources]
        return root[: self.n_dst] * (1.0 if self._share is None else self._share), root

    def edge_factors(self, reducer: str) -> Array:
        return self._edge_weights(reducer, True)

    def _edge_weights(self, reducer, weighted):
        """(n_edges,) float64: what each pick's message counts in the estimate, with the edges' weights or without."""
        if (reducer, weighted) not in self._weights:
            dst, columns = np.repeat(np.arange(self.n_dst), self.in_degrees), self._layer.columns
            weights = np.ones(self.n_edges) if self._share is None else self._share[dst]
            if self.added_loops is not None:
                weights[self.added_loops[dst] & (columns == dst)] = 1.0  # a destination is its own source's row
            sources = np.concatenate([self._rows, self._layer.halo])
            if weighted:
                weights *= self.edge_weight
            if reducer == "mean":
                weights /= 1 / self._columns.inverse_weighted[self._rows[dst]] if weighted else self._full[dst]
            elif reducer == "sym":
                root = np.sqrt(self._columns.inverse_weighted[sources]) if weighted else self._columns.inverse_root[sources]
                weights *= root[dst] * root[columns]
            self._weights[reducer, weighted] = weights
        return self._weights[reducer, weighted]

    def aggregate(self, message: Any, reducer: str, src: Any = None, dst: Any = None, edge: Any = None) -> Tensor:
        """Return the estimate of `Graph.aggregate` from the picks."""
        fits = isinstance(message, (fn.CopySrc, fn.Linear))
        if reducer != "sym":
            fits = fits or isinstance(message, fn.MulEdge) or _is_function(message)
        weighted = self._graph.edge_weight is not None and isinstance(message, (fn.CopySrc, fn.Linear))
        if reducer not in SUMS or weighted or not self._uneven or not fits:
            return super().aggregate(message, reducer, src, dst, edge)
        weights = self._edge_weights(reducer, False)
        if _is_function(message):
            return super().aggregate(_weighted(message, weights), "sum", src, dst, {**(edge or {}), _WEIGHT: weights})
        if isinstance(message, fn.Linear):
            return self._linear(message, weights)
        x = message.x
        own = weights.astype(as_array(x).dtype)
        if isinstance(message, fn.MulEdge):
            (given,) = self.check("fn.mul_edge", edge={"weight": message.weight})
            own = given * own.reshape(-1, *[1] * (given.ndim - 1))
        return super().aggregate(fn.MulEdge(x, own), "sum")

    def _linear(self, message, weights):
        (x,), w = self.check("fn.linear", {"x": message.x}), message.weight
        weights = weights.astype(x.dtype)
        if product_first(self, x, w):
            return super().aggregate(fn.MulEdge(ops.matmul(x, w), weights), "sum")
        return ops.matmul(super().aggregate(fn.MulEdge(x, weights), "sum"), w)


_WEIGHT = "sarlite.pick"


def _take(x, rows, buffers):
    """x[rows], made in these buffers."""
    with buffers:
        return kernels.Rows(x, rows).array()


def _is_function(message):
    return callable(message) and not isinstance(message, (fn.CopySrc, fn.Linear, fn.MulEdge, fn.Attend))


def _weighted(message, weights):
    def weighted(src, dst, edge):
        out = message(src, dst, edge)
        return out * edge[_WEIGHT].reshape(-1, *[1] * (out.ndim - 1)).astype(out.dtype)

    return weighted


class Batch(Graph):
    """A minibatch: the graph that a model computes the seeds' rows on, and what goes with them.

        loss = ops.cross_entropy(model(batch, batch.x), batch.labels, batch.rows, batch.n_global)

    Attributes
    ----------
    n_src, n_dst : int
        Rows that the first layer reads; distinct seeds, whose rows the last layer makes.
    src_ids, dst_ids : (n_src,), (n_dst,) int64
        Their global ids; seeds come first.
    step : int
        The global step.
    x : Tensor (n_src, ...)
        The input rows. Products and sums read float matrices where they stand, so the loader's x must not change until the backward pass
        is over; what anything else reads is gathered at its first use. In mode "broadcast", which sends all rows, they are gathered.
    labels : (n_dst, ...) array, or None
    rows : (n_seeds,) int64
        The row of the model's output of each seed as asked: one asked for twice is there twice.
    n_global : int
        Seeds of all ranks, as asked: what the loss is divided by.
    lasting : bool
        Whether it is used again: then x is a constant tensor.
    """

    def __init__(self, graph: Graph, sampled: Sampled, graphs: list[LayerGraph], *, step: int, n_global: int, x: Array,
                 labels: Array | None, buffers: kernels.Buffers, lasting: bool = False) -> None:
        rows, self._graphs = sampled.rows, graphs
        first, last = self._graphs[0], self._graphs[-1]
        self.comm, self.profile, self.n_nodes, self.bipartite = graph.comm, graph.profile, graph.n_nodes, False
        self.n_src, self.n_dst, self.n_edges = first.n_src, last.n_dst, sum(g.n_edges for g in self._graphs)
        self.step, self.rows, self.n_global = step, sampled.numbers, n_global
        self.labels = None if labels is None else labels[rows[: self.n_dst]]
        self._x, self._rows, self.buffers, self.lasting = x, rows, buffers, lasting
        self._sent_whole = graph.comm.size > 1 and graph.schedule.mode.in_step

    def __repr__(self) -> str:
        rows, edges = [*(g.n_src for g in self._graphs), self.n_dst], [g.n_edges for g in self._graphs]
        return f"Batch({self.n_global} seeds, rows {rows}, edges {edges})"

    @property
    def src_ids(self) -> Array:  # type: ignore[override]
        return self._graphs[0].src_ids

    @property
    def dst_ids(self) -> Array:  # type: ignore[override]
        return self._graphs[-1].dst_ids

    @property
    def part_rows(self) -> Array:
        """(n_src,) int: which rows of the part that was sampled from the first layer reads."""
        return self._rows

    @cached_property
    def x(self) -> Tensor:
        make = partial(_take, self._x, self._rows, self.buffers)  # of no batch: that would hold itself
        stands = not (self.lasting or self._sent_whole)
        if stands and self._x.ndim == 2 and self._x.dtype in (np.float32, np.float64):
            return Taken(kernels.Rows(self._x, self._rows), make)
        return Tensor(make(), constant=self.lasting)

    def take(self, x: Array) -> Array:
        """Return (n_src, ...), new: of rows of the part that was sampled from, those that the first layer reads."""
        return _take(x, self._rows, nullcontext())

    def layers(self, n: int) -> list[Graph]:
        """Return the graphs that `n` layers compute on.

        Raises
        ------
        ConfigError
            The batch was sampled for another number of layers.
        """
        if n != len(self._graphs):
            raise ConfigError(f"fanouts has {len(self._graphs)} entries, but the model {n} layers")
        return list(self._graphs)

    def aggregate(self, message: Any, reducer: str, src: Any = None, dst: Any = None, edge: Any = None) -> Tensor:
        """Aggregate over a batch of one layer; see `LayerGraph`."""
        return self._only("aggregate").aggregate(message, reducer, src, dst, edge)

    @cached_property
    def edge_ids(self) -> Array:
        return self._only("edge_ids").edge_ids

    @property
    def edge_weight(self) -> Array | None:  # type: ignore[override]
        return self._only("edge_weight").edge_weight

    @property
    def edge_features(self) -> Array | None:  # type: ignore[override]
        return self._only("edge_features").edge_features

    def recover(self) -> None:
        self._graphs[0].recover()

    def _only(self, what):
        if len(self._graphs) != 1:
            raise ConfigError(f"{what}: a batch of {len(self._graphs)} layers has a graph for each, batch.layers({len(self._graphs)})")
        return self._graphs[0]

    def __getattr__(self, name: str) -> Any:
        """What a graph has beside the above, such as its plan, a batch's layers have each."""
        if name.startswith("__") or name == "_graphs":
            raise AttributeError(name)
        return getattr(self._only(name), name)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError("a batch is no graph to be divided, or asked for all its edges")

    shard = in_edges = out_edges = with_edge_values = _refuse
