"""LayerGraph: the graph that one layer computes on."""

import copy
from collections.abc import Mapping, MutableMapping
from functools import cached_property
from typing import Any

import numpy as np

from sarlite import numerics
from sarlite.comm import Communicator
from sarlite.errors import ConfigError, ShapeError
from sarlite.profile import Profile
from sarlite.sar.aggregate import aggregate
from sarlite.sar.graph import weights
from sarlite.sar.graph.destinations import destinations
from sarlite.sar.operators import evaluation, fn, table
from sarlite.sar.operators.edge_sums import FAST, EdgeSums
from sarlite.sar.operators.exact_edge_sums import ExactEdgeSums
from sarlite.sar.operators.extremum import Extremum
from sarlite.sar.operators.relations import sets_of
from sarlite.sar.schedule.pieces import Plan
from sarlite.sar.schedule.row_format import FLOAT32
from sarlite.sar.schedule.schedule import Schedule
from sarlite.sar.schedule.state import Kept
from sarlite.tape import Tensor
from sarlite.tape.tensor import as_array
from sarlite.tape.tensor_map import TensorMap
from sarlite.types import Array, DType

Inputs = Mapping[str, Tensor | Array]  # what a function of rows or edges gets, by name


class LayerGraph:
    """The graph that one layer computes on: edges from source rows to destination rows, and how peers' rows arrive.

    A whole graph, a rank's part, one layer of a batch and one relation of a `HeteroGraph` are each a LayerGraph.

    Parameters
    ----------
    comm : Communicator
        Which counts what it brings.
    schedule : Schedule
    profile : Profile
    kept : Kept
        Empty.
    n_nodes : int
        Destination nodes of the whole graph.
    sizes : (n_src, n_dst, n_edges)
    added_loops, bipartite
        See below.

    Attributes
    ----------
    n_nodes : int
        Destination nodes of the whole graph; all nodes, but on a bipartite graph.
    n_src, n_dst, n_edges : int
        Local source rows, which models pass in; destination rows, which they get back; and in-edges.
    src_ids, dst_ids : (n_src,), (n_dst,) int64
        Global ids of the local rows, in their order: `x[graph.src_ids]` are this rank's. A subclass sets or makes them.
    in_degrees : (n_dst,) int64
        A subclass sets or makes them.
    added_loops : (n_dst,) bool, or None
        Whether a row's self loop was added to the data.
    bipartite : bool
        Whether sources and destinations are other nodes.
    edge_weight : (n_edges,) float array, or None
    edge_features : (n_edges, n_edge_features) float array, or None
        Of the local in-edges.
    comm : Communicator
    profile : Profile
        Counters of bytes and remote buffers.
    schedule : Schedule
        The plan, the transport and the mode.
    kept : Kept
        What aggregations have found together and the next ones use: scales, sums of constant rows. `recover` voids it.
    mistakable : int
        Edges that were added while as many were dropped, so that values of the given edges would fit though they are
        not of these edges; edge values are then refused.
    relation : (str, str, str), or None
        Whose edges these are, of a `HeteroGraph`'s.
    place : int
        Where the graph's edges stand among the sets of edges of the schedule's blocks, which one fetch serves.
    noted : dict of evaluation.Evaluation, or None
        Where it is noted what was chosen for a relation's weights, by what it was chosen for.
    """

    src_ids: Array
    dst_ids: Array
    in_degrees: Array
    edge_weight: Array | None = None
    edge_features: Array | None = None
    noted: dict[Any, evaluation.Evaluation] | None = None
    place = 0
    relation: Any = None
    whole_edges = False  # whether its edges are all edges of its nodes, of one kind, as exact numerics want them
    mistakable = 0
    _all_sizes: tuple[int, ...] | None = None  # what `sizes` are, where somebody counted them
    _edge_ids: Array | None = None
    _negative: tuple[int, float] | None = None  # a weight that no degree may have

    def __init__(self, comm: Communicator, schedule: Schedule, profile: Profile, kept: Kept,
                 n_nodes: int, sizes: tuple[int, int, int], added_loops: Array | None = None,
                 bipartite: bool = False) -> None:
        self.comm, self.schedule, self.profile, self.kept, self.n_nodes = comm, schedule, profile, kept, n_nodes
        (self.n_src, self.n_dst, self.n_edges), self.added_loops, self.bipartite = sizes, added_loops, bipartite

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_src={self.n_src}, n_dst={self.n_dst}, n_edges={self.n_edges})"

    @property
    def plan(self) -> Plan:
        return self.schedule.plan

    @property
    def n_halo(self) -> int:
        """How many peers' rows this rank needs."""
        return self.plan.n_halo

    # ---- what models ask

    def layers(self, n: int) -> list[Any]:
        """Return the `LayerGraph`s that `n` layers compute on: this one, n times.

        Raises
        ------
        ConfigError
            Of a bipartite graph, for more than one layer.
        """
        if self.bipartite and n > 1:
            raise ConfigError(f"{n} layers over a bipartite graph: what one layer makes are no sources of the next")
        return [self] * n

    def enter(self, h: Any) -> tuple["LayerGraph", Any]:
        """Return (graph, h) for a layer, as they are: here a sampled batch's halo rows would join."""
        return self, h

    def src(self, h: Any) -> Any:
        """Return the source rows of h: h itself, or the first of a bipartite graph's pair (h_src, h_dst)."""
        return h[0] if isinstance(h, tuple) else h

    def dst(self, h: Any) -> Any:
        """Return the destinations' own rows of h: h, or the second of a bipartite graph's pair (h_src, h_dst)."""
        if isinstance(h, tuple):
            return h[1]
        if self.bipartite:
            raise ShapeError("a bipartite graph's layer takes a pair (h_src, h_dst)")
        if len(h) <= self.n_dst:
            return h
        return destinations(h, self.n_dst) if isinstance(h, Tensor) else h[: self.n_dst]

    def aggregate(self, message: Any, reducer: str, src: Inputs | None = None, dst: Inputs | None = None,
                  edge: Inputs | None = None) -> Tensor:
        """Return out_i = reduce over in-edges (j, i) of message(src_j, dst_i, edge_ij), 0 where i has none. Collective.

        Parameters
        ----------
        message : fn.copy_src(...), fn.linear(...), fn.mul_edge(...), fn.attend(...), fn.attend_linear(...), \
                fn.message(...), or a function (src, dst, edge) -> Tensor
            A function gets dicts of tensors of one row an edge (with the rows' global ids as `.ids`), and may use any
            tape operation on rows and any learnable value. Backward calls it again: it must not branch on values, and
            what it closes over must stay until then (a loop's variable as a default argument, `lambda s, d, e, w=w:`).
        reducer : {"sum", "mean", "sym", "max", "min", "softmax"}
            "sym" is the sum over m_ij / sqrt(d_i d_j), d the in-degrees but at least 1, of `copy_src` and `linear`; on
            a bipartite graph d_j is the out-degree. With edge weights sums of these two are weighted,
            `with_edge_values` says how. Ties of max and min go to the lowest global source id. "softmax" takes a
            message that returns a pair, score (n_edges, ...heads) and value (n_edges, ...heads, ...), and weighs the
            values by the softmax of the scores over each node's in-edges.
        src, dst, edge : dict of str to Tensor or ndarray
            A function's inputs: n_src, n_dst and n_edges rows.

        Returns
        -------
        Tensor (n_dst, ...)

        Raises
        ------
        ConfigError
            Unknown reducer, or one that the message does not go with; inputs beside a message that is no function.
        ShapeError
            An input without one row a node or edge.
        PeerError
            An aggregation over this graph failed before; see `recover`.
        RuntimeError
            In backward: a function does something else than in forward, or what it uses has changed.

        Notes
        -----
        Collective, and so is its backward. Every rank's message must be the same.
        Bytes received: one message a peer of the rows needed from it; in mode `sar` again in backward in case 2.
        The sum of `copy_src` or `linear` of a constant tensor is kept, and fetches in the first call alone.
        The first "sym" of a graph fetches a number a row more, counted under "setup".
        Source: SAR Eq. 1, algorithms 1 and 2.
        """
        if callable(message):
            table.find(message, reducer)
            message = fn.message(message, src, dst, edge)
        elif any(inputs is not None for inputs in (src, dst, edge)):
            table.find(message, reducer)
            name = type(message).__name__
            raise ConfigError(f"src, dst and edge are inputs of a function, but the message {name} has its own")
        call = table.call(self, message, reducer)
        out = call.keep(self.apply(call)) if call.found is None else call.found
        return call.weighted(out)

    # ---- what operators ask

    def check(self, message: str, src: Inputs | None = None, dst: Inputs | None = None,
              edge: Inputs | None = None) -> list[Tensor]:
        """Return the inputs of a message as tensors, once their numbers of rows are right; errors name the input."""
        if edge:
            weights.check_order(self, message)
        inputs: list[Tensor] = []
        places = ("source row", src, self.n_src), ("destination row", dst, self.n_dst), ("edge", edge, self.n_edges)
        for place, values, n in places:
            for name, value in (values or {}).items():
                array = value if isinstance(value, Tensor) else as_array(value)
                if array.shape[:1] != (n,):
                    needed = f"{n} rows, one each {place} of the graph"
                    raise ShapeError(f"{message}: {name} has shape {array.shape}, but needs {needed}")
                inputs.append(array if isinstance(array, Tensor) else Tensor(np.ascontiguousarray(array)))
        return inputs

    @property
    def apart(self) -> bool:
        """True if no other relation's aggregation is joined with this graph's, which has reversed edges of its own."""
        return self.schedule.reverse is not None

    def apply(self, call: table.Call) -> Tensor:
        """Run one aggregation. Collective."""
        return aggregate(self.schedule, call.operator, call.inputs, self.edge_sums())

    def kept_of(self, x: Tensor) -> MutableMapping[str, Tensor]:
        """The aggregations of a constant tensor by reducer; they go when the tensor does."""
        return self.kept.get("sums", TensorMap).setdefault(x, {}).setdefault(numerics.name(), {})

    def wide(self) -> Any:
        """Return the graph whose rows are not narrowed, for sums that nothing may round."""
        if not self.schedule.row_format.is_narrow:
            return self
        made = copy.copy(self)
        made.kept, made.schedule = Kept(self.kept.state), self.schedule._replace(row_format=FLOAT32)
        return made

    def recover(self) -> None:
        """Make the graphs of the communicator usable again after an aggregation that failed. Collective.

        What they kept, as sums of constant rows, is found anew.
        """
        self.kept.state.recover()

    # ---- which order of products and sums is cheaper

    @property
    def sizes(self) -> tuple[int, ...]:
        """Source rows, destination rows and edges of all ranks whose rows are exchanged, as `evaluation.Sizes`.

        Where nobody counted them the widths alone decide: as many sources as destinations, and one edge.
        """
        if self._all_sizes is not None:
            return self._all_sizes
        nobody = (0, 0, 1)
        return numerics.rank_invariant((self.n_src, self.n_dst, self.n_edges), nobody) if self.comm.size == 1 else nobody

    # ---- degrees

    def most_edges(self) -> int:
        """Return the most edges of one row, in or out, over all ranks. Collective at first."""
        return self.kept.get("most edges", self._most_edges)

    def _most_edges(self):
        with self.profile.phase("setup"):
            own = max(self.in_degrees.max(initial=0), self.out_degrees().max(initial=0))
            return int(self.comm.allreduce(np.array([own], np.float64), "max")[0])

    @cached_property
    def inverse_degrees(self) -> Array:
        """(n_dst,) float64: 1 / in-degree, of isolated rows 1."""
        return 1.0 / np.maximum(self.in_degrees, 1)

    def scales(self, reducer: str) -> tuple[Array | None, Array | None]:
        """What `Sum` multiplies destinations and sources by. Collective."""
        if reducer != "sym":
            return self.inverse_degrees if reducer == "mean" else None, None
        return self.kept.get("sym", self._sym)

    def _sym(self):
        with self.profile.phase("setup"):
            degrees = self.out_degrees() if self.bipartite else self.in_degrees
            columns = self.of_columns(np.sqrt(1.0 / np.maximum(degrees, 1)))
        return np.sqrt(self.inverse_degrees), np.concatenate(columns)

    def edge_sums(self) -> EdgeSums:
        """Return the accumulators of the numerics in use. Collective in numerics "exact".

        Raises
        ------
        ConfigError
            Numerics "exact" has no sums over such a graph.
        """
        exact = numerics.current()
        if exact is None:
            return FAST
        if not self.whole_edges:
            raise ConfigError(f"numerics exact: sums over a {type(self).__name__} are not exact yet")
        return ExactEdgeSums(exact.on(self.comm), self.most_edges())

    def out_degrees(self, weight: Array | None = None) -> Array:
        """Return the number of edges from each source, or the sum of their weights, (n_src,) float64. Collective."""
        ones = np.ones((self.n_dst, 1))
        sums = FAST if weight is None else self.edge_sums()
        found = sums.row_gradient(ones, ones.dtype, weight=weight).start(self.n_src)

        def count(block, rows, arrays):
            edges = self.edges_of(block)
            weights = {} if weight is None else {"weight": weight, "eid": edges.transpose_eid}
            found.over(arrays[0]).add_rows(edges.transpose, ones, **weights)

        self.schedule.run_backward(None, None, count, [found.array])
        return found.rounded()[:, 0]

    def of_columns(self, values: Array) -> list[Array]:
        """Return the values of each block's columns, from one value for each local source row. Collective."""
        found: list[tuple[int, Array]] = []
        self.schedule.run((values,), lambda block, rows: found.append((block.offset, rows[0].copy())))
        return [columns for _, columns in sorted(found, key=lambda each: each[0])]

    def largest_scores(self, src: Tensor) -> Tensor:
        """Return the largest of each destination's sources' scores, (n_dst, n_heads), as a constant. Collective."""
        rows = np.ascontiguousarray(src.data)
        forward_pass = Extremum(self.n_dst, 1, self.column_ids, self.itype).forward([rows], None)
        self.schedule.run((rows,), lambda block, rows: forward_pass.add(self.edges_of(block), rows))
        return Tensor(forward_pass.finish()[0])

    @cached_property
    def weighted_degrees(self) -> Array:
        """(n_dst,) float64: the sum of the weights of each row's in-edges, of which there must be."""
        assert self.edge_weight is not None
        return weights.degrees(self, self.edge_weight)

    def edge_counts(self, reducer: str, dtype: DType) -> Tensor | None:
        """What each edge's row counts in a sum, (n_edges,) constants; None where `scales` say it all. Collective."""
        return None if self.edge_weight is None else weights.normalised(self, reducer, dtype)

    def pick_counts(self, reducer: str) -> Array | None:
        """What each edge's message counts in a sum, edge weights aside, (n_edges,) float64; None: `scales` say it all.

        Edges that are picks stand for further edges, and may count unevenly.
        """
        return None

    def edge_factors(self, reducer: str) -> Array:
        """`edge_counts` of a graph with edge weights, as float64 and not kept. Collective."""
        return weights.factors(self, reducer)

    def weight_as(self, dtype: DType) -> Array:
        """The edges' weights as floats of `dtype`, (n_edges,); they are kept."""
        return weights.weight_as(self, dtype)

    # ---- its edges

    def edges_of(self, block: Any) -> Any:
        """The graph's edges in a block of its schedule, which may be a bundle."""
        return sets_of(block)[self.place]

    @property
    def blocks(self) -> list[Any]:
        """The graph's edges by block."""
        return [self.edges_of(block) for block in self.plan.blocks]

    @property
    def itype(self) -> np.dtype[Any]:
        """dtype of the blocks' indices."""
        return self.edges_of(self.plan.local).indices.dtype

    @cached_property
    def column_ids(self) -> Array | None:
        """Global id of each column of all blocks; None where they ascend."""
        ids = np.concatenate([block.src_ids for block in self.plan.blocks])
        return None if (np.diff(ids) > 0).all() else ids

    @cached_property
    def edge_src_ids(self) -> Array:
        """(n_edges,) global id of each edge's source, in the order of edge values."""
        ids = np.empty(self.n_edges, np.int64)
        for block in self.blocks:
            ids[block.labels] = block.src_ids[block.indices]
        return ids
