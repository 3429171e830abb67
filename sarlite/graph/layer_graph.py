"""LayerGraph: the graph that one layer computes on."""

from collections.abc import Callable, Mapping, MutableMapping
from functools import cached_property

import numpy as np

from sarlite import numerics
from sarlite.comm import Communicator
from sarlite.errors import ConfigError, ShapeError, raise_together
from sarlite.graph.array_checks import Relation, check_rows
from sarlite.graph.destinations import destinations
from sarlite.graph.shared_state import SharedState
from sarlite.graph.weights import EdgeValues, check_unambiguous, in_edge_order, positive, range_error, row_sums
from sarlite.numerics.edge_sums import FAST, EdgeSums
from sarlite.numerics.exact_edge_sums import ExactEdgeSums
from sarlite.numerics.exact_sum import Exact
from sarlite.operators import fn, operator_table
from sarlite.operators.aggregate import aggregate
from sarlite.operators.layer_contract import EvaluationLog, Inputs
from sarlite.operators.relation_sums import sets_of
from sarlite.profile import Profile
from sarlite.schedule.pieces import Plan
from sarlite.schedule.schedule import Schedule
from sarlite.structure.block import Bundle, Edges
from sarlite.tape import Tensor
from sarlite.tape.tensor import as_array
from sarlite.tape.tensor_map import TensorMap
from sarlite.types import Array, DType

LayerInput = Tensor | tuple[Tensor, Tensor]
"""Input rows of a layer: one tensor, or for a bipartite graph the pair (source rows, destination rows)."""


class LayerGraph(SharedState):
    """Graph that one layer computes on: edges from source rows to destination rows, and the exchange of remote rows.

    A whole graph, a rank's part of a graph, one layer of a batch and one relation of a `HeteroGraph` are LayerGraphs.

    Parameters
    ----------
    comm : Communicator
        Communicator that counts the bytes it receives.
    schedule : Schedule
    profile : Profile
    n_nodes : int
    counts : tuple of int
        (n_src, n_dst, n_edges).
    added_loops, bipartite, relation, relation_index
        Values of the attributes of these names.
    exchanged_sizes : tuple of int, optional
        Sizes that the property `sizes` returns.
    evaluation_log
        Value of the attribute of this name.

    Attributes
    ----------
    n_nodes : int
        Number of destination nodes of the whole graph; the number of all nodes, unless the graph is bipartite.
    n_src, n_dst, n_edges : int
        Numbers of local source rows (the inputs of a layer), destination rows (its outputs) and in-edges.
    src_ids, dst_ids : (n_src,), (n_dst,) int64
        Global ids of the local rows, in order: `x[graph.src_ids]` are the rows of this rank. Set by subclasses.
    in_degrees : (n_dst,) int64
        Number of in-edges of each destination row. Set by subclasses.
    added_loops : (n_dst,) bool, or None
        True for each row whose self loop was added to the data.
    bipartite : bool
        True if sources and destinations are different nodes.
    edge_values : EdgeValues
        Weights and features of the local in-edges.
    comm : Communicator
    profile : Profile
    schedule : Schedule
        The plan, the transport and the mode.
    memo : Memo
        Results that later calls use again, such as the factors of "sym" and the sums of constant rows.
    ambiguous_edge_count : int
        Number of edges that `from_edges` added, if it dropped as many; else 0. The graph then has as many edges as the
        caller's arrays, so values of the caller's edges would fit other edges unnoticed: edge values are refused.
    has_all_edges : bool
        True if the graph has all in-edges of its destination nodes, as exact numerics requires; False for a sample.
    relation : (str, str, str), or None
        The relation of a `HeteroGraph` that the edges belong to.
    relation_index : int
        Index of this relation among the relations that share one fetch.
    has_own_exchange : bool
        True if the graph's rows are fetched for this graph alone, and no other relation shares the fetch.
    evaluation_log : EvaluationLog, or None
        Log of the chosen evaluation orders of a relation, keyed by relation and widths.

    Examples
    --------
    The two layers that compute node 0 of a ring; the first n_dst sources of a layer are the layer's destinations:

    >>> import numpy as np
    >>> from sarlite import Graph
    >>> from sarlite.minibatch import NeighborLoader
    >>> ring = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0])
    >>> loader = NeighborLoader(ring, np.eye(4), None, [0], fanouts=(-1, -1), batch_size=1, sampler="full")
    >>> batch, = loader
    >>> [(layer.n_src, layer.n_dst, layer.n_edges) for layer in batch.graphs]
    [(3, 2, 2), (2, 1, 1)]
    >>> [(layer.src_ids.tolist(), layer.dst_ids.tolist()) for layer in batch.graphs]
    [([0, 3, 2], [0, 3]), ([0, 3], [0])]
    """

    src_ids: Array
    dst_ids: Array
    in_degrees: Array
    edge_values = EdgeValues()
    has_all_edges = False
    has_own_exchange = False
    ambiguous_edge_count = 0

    def __init__(self, comm: Communicator, schedule: Schedule, profile: Profile, n_nodes: int,
                 counts: tuple[int, int, int], *, added_loops: Array | None = None, bipartite: bool = False,
                 relation: Relation | None = None, relation_index: int = 0,
                 exchanged_sizes: tuple[int, ...] | None = None,
                 evaluation_log: EvaluationLog | None = None) -> None:
        super().__init__(comm, profile, schedule.transport.state)
        self.schedule, self.n_nodes = schedule, n_nodes
        (self.n_src, self.n_dst, self.n_edges), self.added_loops, self.bipartite = counts, added_loops, bipartite
        self.relation, self.relation_index, self.evaluation_log = relation, relation_index, evaluation_log
        self._exchanged_sizes = exchanged_sizes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_src={self.n_src}, n_dst={self.n_dst}, n_edges={self.n_edges})"

    @property
    def edge_weight(self) -> Array | None:
        """Weights of the local in-edges, (n_edges,) float; None if the edges have none."""
        return self.edge_values.weight

    @property
    def edge_features(self) -> Array | None:
        """Features of the local in-edges, (n_edges, n_edge_features) float; None if the edges have none."""
        return self.edge_values.features

    @property
    def plan(self) -> Plan:
        """Plan of the exchange on this rank: the blocks of edges that the forward and the backward pass compute, in their order."""
        return self.schedule.plan

    @property
    def n_halo(self) -> int:
        """Number of halo rows: rows of other ranks that this rank needs."""
        return self.plan.n_halo

    # ---- members that models use

    def enter(self, h: Tensor) -> tuple["LayerGraph", Tensor]:
        """Return the graph and the input rows that a layer computes with: this graph, and `h` unchanged.

        A model calls `g, h = g.enter(h)` before each layer, because a batch with a historical cache appends its halo
        rows to `h` here.

        Parameters
        ----------
        h : Tensor (n_src, ...)
        """
        return self, h

    def src(self, h: LayerInput) -> Tensor:
        """Return the source rows of a layer's input: h itself, or h_src of a bipartite graph's pair (h_src, h_dst)."""
        return h[0] if isinstance(h, tuple) else h

    def dst(self, h: LayerInput) -> Tensor:
        """Return the destination rows of a layer's input: its first n_dst rows, or h_dst of a pair (h_src, h_dst).

        Raises
        ------
        ShapeError
            The graph is bipartite, and h is no pair.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, Tensor
        >>> graph = Graph.from_edges([0, 4], [1, 0], n_src=5, n_dst=2)
        >>> h = Tensor(np.zeros((5, 3))), Tensor(np.ones((2, 3)))
        >>> graph.src(h).shape, graph.dst(h).shape
        ((5, 3), (2, 3))
        """
        if isinstance(h, tuple):
            return h[1]
        if self.bipartite:
            raise ShapeError("a bipartite graph's layer takes a pair (h_src, h_dst)")
        if len(h) <= self.n_dst:
            return h
        return destinations(h, self.n_dst) if isinstance(h, Tensor) else h[: self.n_dst]

    def aggregate(self, message: fn.BuiltIn | Callable[..., Tensor | tuple[Tensor, Tensor]], reducer: str, src: Inputs | None = None,
                  dst: Inputs | None = None, edge: Inputs | None = None) -> Tensor:
        """Return each node's incoming messages reduced by `reducer`, such as "sum", (n_dst, ...); 0 for a node without in-edges. If
        `message` is a function, `src`, `dst` and `edge` are its inputs, dicts {name: rows of sources, destinations or edges}.
        Collective.

        out_i = reduce over in-edges (j, i) of message(src_j, dst_i, edge_ij), and out_i = 0 if i has no in-edges.

        Parameters
        ----------
        message : fn.copy_src(...), fn.linear(...), fn.mul_edge(...), fn.attend(...), fn.attend_linear(...), \
                fn.message(...), or a function (src, dst, edge) -> Tensor
            A function gets three dicts of tensors, each with one row for each edge; `.ids` of a dict are the rows'
            global ids. The function may use any tape operation on rows, and learnable values. Backward calls the
            function again, so the function must not branch on values, and everything that it reads must stay unchanged
            until then. Bind the variable of a loop as a default argument: `lambda s, d, e, w=w:`.
        reducer : {"sum", "mean", "sym", "max", "min", "softmax"}
            "sym" is sum_j m_ij / sqrt(d_i d_j), for `copy_src` and `linear`; d is max(in-degree, 1), and on a bipartite
            graph d_j is max(out-degree of j, 1). `with_edge_values` says how edge weights enter. "max" and "min" give
            the gradient of a tie to the source with the lowest global id. "softmax" takes a message function that
            returns a pair, scores (n_edges, ...heads) and values (n_edges, ...heads, ...), and sums the values with the
            softmax of the scores over each node's in-edges.
        src, dst, edge : dict of str to Tensor or ndarray, optional
            Inputs of a message function, with n_src, n_dst and n_edges rows.

        Returns
        -------
        Tensor (n_dst, ...)

        Raises
        ------
        ConfigError
            The reducer is unknown or does not fit the message, or inputs were given with a message that is no function.
        ShapeError
            An input does not have one row per node or edge.
        PeerError
            An aggregation over this graph failed before; see `recover`.
        RuntimeError
            In backward: the function computes another result than in forward, or its inputs have changed.

        Notes
        -----
        Forward and backward are collective, and every rank must pass the same kind of message. In forward each rank
        receives each row that it needs once; in case 2 of mode `sar` it receives the rows again in backward. The sum of
        `copy_src` or `linear` of a constant tensor is stored, so only the first call fetches rows. The first "sym" of a
        graph also fetches one number for each halo row, counted under "setup".

        References
        ----------
        SAR, Eq. 1, algorithms 1 and 2.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, fn
        >>> graph = Graph.from_edges([0, 1, 1], [2, 2, 0])
        >>> x = np.array([[1.0], [2.0], [4.0]])
        >>> graph.aggregate(fn.copy_src(x), "sum").data.tolist()
        [[2.0], [0.0], [3.0]]

        A message function, here the product of source and destination:

        >>> graph.aggregate(lambda src, dst, edge: src["x"] * dst["x"], "max", {"x": x}, {"x": x}).data.tolist()
        [[2.0], [0.0], [8.0]]
        """
        if callable(message):
            operator_table.find(message, reducer)
            message = fn.message(message, src, dst, edge)
        elif any(inputs is not None for inputs in (src, dst, edge)):
            operator_table.find(message, reducer)
            name = type(message).__name__
            raise ConfigError(f"src, dst and edge are inputs of a function, but the message {name} has its own")
        call = operator_table.call(self, message, reducer)
        out = call.keep(self.apply(call)) if call.kept_output is None else call.kept_output
        return call.weighted(out)

    # ---- members that operators use

    def check(self, message: str, src: Inputs | None = None, dst: Inputs | None = None,
              edge: Inputs | None = None) -> list[Tensor]:
        """Return the inputs of a message function as one list of tensors: the values of the dicts `src`, `dst` and `edge`, in this
        order. Raise an error that starts with `message`, the message's name, unless each has a row for each source, destination or
        edge.

        Parameters
        ----------
        message : str
            Name of the message, for errors.
        src, dst, edge : dict of str to Tensor or ndarray, optional
            Inputs with n_src, n_dst and n_edges rows.

        Raises
        ------
        ShapeError
            An input does not have one row per node or edge.
        ConfigError
            An input is the same on every rank, while each rank has rows of its own.
        """
        for argument, values in (("src", src), ("dst", dst), ("edge", edge)):
            if values is not None and not isinstance(values, Mapping):
                raise ConfigError(f"{message}: {argument} is a {type(values).__name__}, but must be a dict of arrays by name")
        if edge:
            check_unambiguous(self.ambiguous_edge_count, message)
        inputs: list[Tensor] = []
        kinds = ("source row", src, self.n_src), ("destination row", dst, self.n_dst), ("edge", edge, self.n_edges)
        for kind, values, n in kinds:
            for name, value in (values or {}).items():
                array = value if isinstance(value, Tensor) else as_array(value)
                if array.shape[:1] != (n,):
                    needed = f"{n} rows, one each {kind} of the graph"
                    raise ShapeError(f"{message}: {name} has shape {array.shape}, but needs {needed}")
                if not isinstance(array, Tensor):
                    array = Tensor(np.ascontiguousarray(array), placement="rows")
                check_rows(f"{message}: {name}", array, self.memo.state.comm.size)
                inputs.append(array)
        return inputs

    def apply(self, call: operator_table.Call) -> Tensor:
        """Return the output rows, (n_dst, ...), of the aggregation `call` (an operator with its inputs), recorded as one tape
        primitive. Collective.
        """
        return aggregate(self.schedule, call.operator, call.inputs, self.edge_sums())

    def kept_sums(self, x: Tensor) -> MutableMapping[str, Tensor]:
        """Return the cache {reducer: aggregated rows} for the constant tensor `x`. The cache is freed with `x`; exact and fast
        numerics have separate caches.
        """
        return self.memo.get("sums", TensorMap).setdefault(x, {}).setdefault(numerics.name(), {})

    def edge_sums(self) -> EdgeSums:
        """Return the factory of accumulators for sums over edges: float accumulators, or in numerics "exact" accumulators whose
        sums do not depend on the order of the edges.

        Collective in numerics "exact".

        Raises
        ------
        ConfigError
            Numerics "exact" is in use, and the graph is a sample or rounds rows, or the numerics was set up for
            another communicator.
        """
        exact = numerics.current()
        if not isinstance(exact, Exact):
            return FAST
        if not self.has_all_edges:
            raise ConfigError(f"numerics exact: sums over a {type(self).__name__} are not exact yet")
        if self.schedule.row_format.is_narrow:
            raise ConfigError(f"numerics exact: sums of {self.schedule.row_format.name} rows are not exact yet: make the "
                              "graph with row_dtype='float32'")
        exact.check_comm(self.comm)
        return ExactEdgeSums(exact, self.most_edges())

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of source rows, destination rows and edges, each summed over all ranks. They decide if rows are first summed over edges
        or first multiplied by a weight matrix; all ranks must decide alike. If a rank knows only its own numbers, (0, 0, 1) stands for them
        on every rank.
        """
        if self._exchanged_sizes is not None:
            return self._exchanged_sizes
        unknown = (0, 0, 1)
        return numerics.rank_invariant((self.n_src, self.n_dst, self.n_edges), unknown) if self.comm.size == 1 else unknown

    # ---- degrees, and how much each edge counts

    def most_edges(self) -> int:
        """Return the largest in-degree or out-degree of any node on any rank (a sampled layer returns an upper bound). The first
        call is collective.
        """
        return self.memo.get("most edges", self._most_edges)

    def _most_edges(self):
        with self.profile.phase("setup"):
            most = max(self.in_degrees.max(initial=0), self.out_degrees().max(initial=0))
            return int(self.comm.allreduce(np.array([most], np.float64), "max")[0])

    @cached_property
    def inverse_degrees(self) -> Array:
        """1 / in-degree of each destination, and 1 for a destination without in-edges, (n_dst,) float64."""
        return 1.0 / np.maximum(self.in_degrees, 1)

    def scales(self, reducer: str) -> tuple[Array | None, Array | None]:
        """Return (factor of each output row, factor of each source row, halo rows included), float64, with which a weighted sum
        becomes the reduction `reducer`; None in place of factors that are all 1. Collective.

        Returns
        -------
        destinations : (n_dst,) float64, or None
            Factor of each output row; None stands for 1.
        columns : (n_columns,) float64, or None
            Factor of each source row, halo rows included, in the order of the blocks' columns.
        """
        if reducer != "sym":
            return self.inverse_degrees if reducer == "mean" else None, None
        return self.memo.get("sym", self._sym)

    def _sym(self):
        with self.profile.phase("setup"):
            degrees = self.out_degrees() if self.bipartite else self.in_degrees
            columns = self.of_columns(np.sqrt(1.0 / np.maximum(degrees, 1)))
        return np.sqrt(self.inverse_degrees), np.concatenate(columns)

    def out_degrees(self, weight: Array | None = None) -> Array:
        """Return the number of out-edges of each local source, (n_src,) float64; with `weight`, a weight of each local in-edge, the
        sum of the out-edges' weights. Collective.

        Parameters
        ----------
        weight : (n_edges,) float array, optional
            Weights of the local in-edges.
        """
        ones = np.ones((self.n_dst, 1))
        sums = FAST if weight is None else self.edge_sums()
        accumulator = sums.row_gradient(ones, ones.dtype, weight=weight).start(self.n_src)

        def count(block, rows, arrays):
            edges = self.edges_of(block)
            weights = {} if weight is None else {"weight": weight, "eid": edges.transpose_edge_index}
            accumulator.over(arrays[0]).add_rows(edges.transpose, ones, **weights)

        self.schedule.run_backward(None, None, count, [accumulator.array])
        return accumulator.rounded()[:, 0]

    def weighted_in_degrees(self, weight: Array) -> Array:
        """Return the sum of `weight`, a weight of each local in-edge, over the in-edges of each destination, (n_dst,) float64."""
        indptr, numbers = np.concatenate([[0], np.cumsum(self.in_degrees)]), self.edges_of(self.plan.local).numbers
        return row_sums(indptr, lambda edges: weight[edges if numbers is None else numbers[edges]])

    def edge_factors(self, reducer: str, dtype: DType) -> Tensor | None:
        """Return a Tensor (n_edges,) of `dtype` with the factor of each edge's message that turns `reducer` ("sum", "mean" or
        "sym") into a plain sum. The factor includes the edge weight; the result is None if the graph has no edge weights.
        Collective.

        Collective. The factors are w_ij for "sum", w_ij / d_i for "mean" and w_ij / sqrt(d_i d_j) for "sym". They are
        stored, one number for each edge. "sym" fetches one number for each halo row, counted under "setup". Without
        edge weights `scales` has all factors.

        Raises
        ------
        DataError
            On every rank that aggregates over the graph: a weight is not a finite number of `dtype`.
        """
        if self.edge_weight is None:
            return None
        key = "weights", reducer, np.dtype(dtype), numerics.name()
        return self.memo.get(key, lambda: self._edge_factors(reducer, dtype))

    def _edge_factors(self, reducer, dtype):
        with np.errstate(over="ignore"):
            factors = self._float64_factors(reducer).astype(dtype, copy=False)
        raise_together(self.memo.state.comm, range_error(self.edge_weight, factors))  # a batch's communicator is Solo
        return Tensor(factors, constant=True, placement="rows")

    def _float64_factors(self, reducer: str) -> Array:
        """Return the factor of each edge of weight w that turns `reducer` into a sum, (n_edges,) float64: w for "sum", w / d_i for
        "mean", w / sqrt(d_i d_j) for "sym", with weighted degrees d. Collective.
        """
        assert self.edge_weight is not None
        if reducer == "sum":
            return self.edge_weight
        self.edge_values.check_degrees()
        inverse = 1.0 / positive(self.weighted_in_degrees(self.edge_weight))
        of_rows = np.repeat(inverse if reducer == "mean" else np.sqrt(inverse), self.in_degrees)
        factors = in_edge_order(of_rows, self.edges_of(self.plan.local).numbers)
        factors *= self.edge_weight
        if reducer == "sym":
            with self.profile.phase("setup"):
                if self.bipartite:
                    inverse = 1.0 / positive(self.out_degrees(self.weight_as(np.float64)))
                columns = self.of_columns(np.sqrt(inverse))
            for block, of_columns in zip(self.blocks, columns):
                factors[block.edge_index_array] *= of_columns[block.indices]
        return factors

    def pick_factors(self, reducer: str) -> Array | None:
        """Return a factor for each sampled edge, (n_edges,), so that `reducer` over the sampled edges times their factors estimates
        `reducer` over all in-edges; None if all factors are 1, as here, where no edges are sampled. If all edges of a row have the
        same factor, a subclass returns None here and the factor from `scales`.
        """
        return None

    def weight_as(self, dtype: DType) -> Array:
        """Return the edge weights as floats of `dtype`, (n_edges,). A converted copy is stored for later calls."""
        assert self.edge_weight is not None
        if self.edge_weight.dtype == dtype:
            return self.edge_weight
        return self.memo.get(("weight", np.dtype(dtype)), lambda: self._weight_as(dtype))

    def _weight_as(self, dtype):
        with np.errstate(over="ignore"):
            weight = self.edge_weight.astype(dtype)
        raise_together(self.memo.state.comm, range_error(self.edge_weight, weight))
        return weight

    # ---- edges

    def of_columns(self, values: Array) -> list[Array]:
        """Return an array for each of `blocks`: the value of each of its source rows. `values`, (n_src,), has the values of this
        rank's rows; the values of rows of other ranks are fetched. Collective.

        Parameters
        ----------
        values : (n_src,) array

        Returns
        -------
        list of (n_columns of the block,) array
            One array for each block, in the order of `blocks`.
        """
        columns: list[tuple[int, Array]] = []
        self.schedule.run((values,), lambda block, rows: columns.append((block.offset, rows[0].copy())))
        return [values for _, values in sorted(columns, key=lambda each: each[0])]

    def edges_of(self, block: Edges | Bundle) -> Edges:
        """Return the edges of `block` that belong to this graph, as Edges; a block may also have the edges of other relations,
        which share one fetch of source rows with this graph.
        """
        return sets_of(block)[self.relation_index]

    @property
    def blocks(self) -> list[Edges]:
        """List with an `Edges` for each block of edges: the block of sources on this rank comes first, then the blocks of sources
        on other ranks.
        """
        return [self.edges_of(block) for block in self.plan.blocks]

    @property
    def itype(self) -> np.dtype[np.generic]:
        """Dtype of the blocks' CSR indices: int32 or int64."""
        return self.edges_of(self.plan.local).indices.dtype

    @cached_property
    def column_ids(self) -> Array | None:
        """Global node ids of the source rows of all blocks, block after block, (n_columns,) int64. Max and min break ties by the
        lowest id. None if the ids ascend, because the lowest column number then has the lowest id.
        """
        ids = np.concatenate([block.src_ids for block in self.plan.blocks])
        return None if (np.diff(ids) > 0).all() else ids

    @cached_property
    def edge_src_ids(self) -> Array:
        """Global id of each edge's source, (n_edges,) int64, in the order of edge values."""
        ids = np.empty(self.n_edges, np.int64)
        for block in self.blocks:
            ids[block.edge_index_array] = block.src_ids[block.indices]
        return ids
