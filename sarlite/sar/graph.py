"""Graph: what models aggregate over. A whole graph is a sharded graph of one part."""

from functools import cached_property

import numpy as np

from sarlite.comm import Solo, wrap
from sarlite.errors import ConfigError, DataError, ShapeError, raise_together
from sarlite.graph import edges as edge_lists
from sarlite.graph import order as orders
from sarlite.graph import partition
from sarlite.profile import Counted, Profile
from sarlite.sar import fn, operators, plan, reducers, schedule
from sarlite.sar.aggregate import aggregate
from sarlite.sar.custom import Custom
from sarlite.tape import Tensor, ops
from sarlite.tape.engine import as_array, grad_enabled
from sarlite.tape.tensor_map import TensorMap

SUMS = ("sum", "mean", "sym")
REDUCERS = (*SUMS, "max", "min", "softmax")


class Graph:
    """One part of a graph: its in-edges by block, and how its neighbours' rows arrive.

    Make one with `from_edges`, `from_csr`, `from_part` or `shard`.

    Attributes
    ----------
    n_nodes : int
        Of the whole graph.
    n_src, n_dst, n_edges : int
        Local rows that models pass in and get back (equal here), and local in-edges.
    node_ids : (n_dst,) int64
        Global ids of the local nodes, in the order of their rows: `x[graph.node_ids]` are this rank's.
    edge_ids : (n_edges,) int64
        Global ids of the local in-edges: a rank's edge values are `values[graph.edge_ids]`. Made at the first use where they count up.
    in_degrees : (n_dst,) int64
    comm : Communicator
    profile : Profile
        Counters of bytes and remote buffers.
    """

    def __init__(self, comm, node_ids, edge_ids, n_nodes, the_plan, mode="sar", prefetch=1, in_degrees=None):
        self.node_ids, self._edge_ids, self.n_nodes, self.plan = node_ids, edge_ids, n_nodes, the_plan
        self.n_src = self.n_dst = len(node_ids)
        self.n_edges = sum(block.n_edges for block in the_plan.blocks)
        self.profile = Profile()
        self.comm = Counted(comm, self.profile)
        self.schedule = schedule.make(comm, the_plan, mode, prefetch, self.profile)
        self.in_degrees = in_degrees
        self._csr = self._sym = None
        self._kept = TensorMap()  # constant Tensor -> {reducer: its aggregation}

    @classmethod
    def from_edges(cls, src, dst, n_nodes=None, *, undirected=False, self_loops=False, deduplicate=False):
        """Make a whole graph from an edge list.

        Parameters
        ----------
        src, dst : (n_edges,) int array, or anything with `__array__` or `__dlpack__`
            Edge e goes from src[e] to dst[e]; edge values follow this order.
        n_nodes : int, optional
            By default one more than the largest index.
        undirected, self_loops, deduplicate : bool
            Add each edge's reverse, add the self loops that miss, keep one of equal edges.
            Edges are then numbered anew, in order of (dst, src).

        Raises
        ------
        DataError
            An index out of range, or src and dst of different lengths.
        """
        src, dst = as_array(src), as_array(dst)
        if n_nodes is None:
            n_nodes = int(max(src.max(initial=-1), dst.max(initial=-1))) + 1
        indptr, indices, edge_index = edge_lists.csr_by_dst(
            src, dst, n_nodes, undirected=undirected, self_loops=self_loops, deduplicate=deduplicate, edge_index=True)
        renumbered = undirected or self_loops or deduplicate
        return cls._whole(indptr, indices, None if renumbered else edge_index)

    @classmethod
    def from_csr(cls, indptr, indices=None, *, edge_index=None):
        """Make a whole graph from a CSR by destination: row i lists the sources of i's in-edges.

        Parameters
        ----------
        indptr, indices : (n_nodes + 1,) and (n_edges,) int arrays, or one SciPy sparse array or matrix alone
            Of a SciPy array a, a[i, j] is the edge from j to i. Borrowed.
        edge_index : (n_edges,) int array, optional
            Each entry's index into edge values; by default its position.
        """
        if indices is None:
            matrix = indptr.tocsr()
            if matrix.shape[0] != matrix.shape[1]:
                raise ShapeError(f"an adjacency matrix must be square, not {matrix.shape}")
            indptr, indices = matrix.indptr, matrix.indices
        indptr, indices = as_array(indptr).astype(np.int64, copy=False), as_array(indices)
        return cls._whole(indptr, indices, edge_index)

    @classmethod
    def _whole(cls, indptr, indices, edge_index):
        n = len(indptr) - 1
        ids, parts = np.arange(n), np.zeros(n, np.int8)
        comm = Solo()
        the_plan = plan.build(comm, ids, indptr, indices, parts)
        if edge_index is not None and not np.array_equal(edge_index, np.arange(len(edge_index))):
            the_plan.local.eid = edge_index.astype(the_plan.local.indices.dtype)
        graph = cls(comm, ids, None, n, the_plan, in_degrees=np.diff(indptr))
        graph._csr = (indptr, indices, the_plan.local.eid)
        return graph

    @classmethod
    def from_part(cls, comm, node_ids, indptr, indices, parts, *, edge_ids=None, mode="sar", prefetch=1):
        """Make this rank's part of a graph from its own rows. Collective.

        Parameters
        ----------
        comm : Communicator, or an mpi4py communicator
        node_ids : (n_local,) int64
            In any order, which is that of the local rows; it changes memory's locality, and results by rounding alone.
        indptr, indices : (n_local + 1,) int64, (n_edges,) int
            In-edges of the local nodes; indices are global source ids.
        parts : (n_nodes,) int
            The rank that owns each node.
        edge_ids : (n_edges,) int64, optional
            Global ids of the local in-edges, for edge values.
        mode : {"sar", "sa", "oneshot"}
        prefetch : int
            Peers' rows to fetch ahead, by a thread; 0 fetches when the rows are used.

        Raises
        ------
        ConfigError, DataError
            On every rank together.
        """
        comm = wrap(comm)
        _check_mode(comm, mode, prefetch)
        the_plan = plan.build(comm, node_ids, indptr, indices, parts, merge=mode == "oneshot")
        return cls(comm, np.asarray(node_ids, np.int64), edge_ids, len(parts), the_plan, mode, prefetch, np.diff(indptr))

    def shard(self, comm, parts="metis", *, order=None, mode="sar", prefetch=1, seed=0):
        """Return this rank's part of a whole graph that every rank holds. Collective.

        Parameters
        ----------
        comm : Communicator, or an mpi4py communicator
        parts : {"metis", "random", "contiguous"} or (n_nodes,) int array
            How to divide the nodes; computed on rank 0.
        order : {"metis"} or (n_nodes,) int array, optional
            A permutation of the nodes: each part's rows stand in this order; computed on rank 0. By default ids ascend.

        Raises
        ------
        ConfigError, DataError
            On every rank: an unknown method; parts or an order that do not fit the graph.
        """
        if self._csr is None:
            raise ConfigError("only a whole graph can be sharded")
        comm = wrap(comm)
        indptr, indices, eid = self._csr
        if isinstance(parts, str):
            method = parts
            parts = comm.bcast(partition.partition(indptr, indices, comm.size, method, seed=seed) if comm.rank == 0 else None)
        parts = as_array(parts)
        if parts.shape != (self.n_nodes,):
            raise DataError(f"parts has shape {parts.shape}, not ({self.n_nodes},): one rank a node")
        if order is None:
            node_ids = np.flatnonzero(parts == comm.rank)
        else:
            order = self._order(comm, order, seed)
            node_ids = order[parts[order] == comm.rank]
        lengths = np.diff(indptr)[node_ids]
        local_indptr = np.concatenate([[0], np.cumsum(lengths)])
        where = np.repeat(indptr[node_ids] - local_indptr[:-1], lengths) + np.arange(local_indptr[-1])
        return Graph.from_part(comm, node_ids, local_indptr, indices[where], parts,
                               edge_ids=where if eid is None else eid[where].astype(np.int64), mode=mode, prefetch=prefetch)

    def _order(self, comm, order, seed):
        if isinstance(order, str):
            orders.check_method(order)
            order = comm.bcast(orders.order(*self._csr[:2], order, seed=seed) if comm.rank == 0 else None)
        return orders.check_order(as_array(order), self.n_nodes, "shard")

    def aggregate(self, message, reducer, src=None, dst=None, edge=None):
        """Return out_i = reduce over in-edges (j, i) of message(src_j, dst_i, edge_ij), 0 where i has no edges. Collective.

        Parameters
        ----------
        message : fn.copy_src(...), fn.linear(...), fn.mul_edge(...), fn.attend(...), or a function (src, dst, edge) -> Tensor
            A function gets dicts of tensors of one row an edge (with the rows' global ids as `.ids`), and may use any tape
            operation on rows and any learnable value. It must not branch on values, as it is replayed.
        reducer : {"sum", "mean", "sym", "max", "min", "softmax"}
            "sym" is the sum over m_ij / sqrt(d_i d_j), d the in-degrees but at least 1, of `copy_src` and `linear`.
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

        Notes
        -----
        Collective, and so is its backward. Every rank's message must be the same.
        Bytes received: one message a peer of the rows needed from it; in mode `sar` again in backward in case 2.
        The sum of `copy_src` or `linear` of a constant tensor is kept, and fetches in the first call alone.
        The first "sym" of a graph fetches a number a row more, counted under "setup".
        Source: SAR Eq. 1, algorithms 1 and 2.
        """
        if reducer not in REDUCERS:
            raise ConfigError(f"reducer {reducer!r} is not one of {', '.join(REDUCERS)}")
        if isinstance(message, fn.CopySrc) and reducer in SUMS:
            return self._sum(*self._check(src=(message.x,)), reducer)
        if isinstance(message, fn.Linear) and reducer in SUMS:
            return self._linear(*self._check(src=(message.x,)), message.weight, reducer)
        if isinstance(message, fn.CopySrc) and reducer in ("max", "min"):
            operator = operators.Extremum(self.n_dst, 1 if reducer == "max" else -1, self._column_ids, self._itype)
            return aggregate(self.schedule, operator, self._check(src=(message.x,)))
        if isinstance(message, fn.MulEdge) and reducer in ("sum", "mean"):
            inputs = self._check(src=(message.x,), edge=(message.weight,))
            return aggregate(self.schedule, operators.Sum(self.n_dst, True, *self._scales(reducer)), inputs)
        if isinstance(message, fn.Attend) and reducer == "sum":
            inputs = self._check(src=(message.z, message.src), dst=(message.dst,))
            operator = operators.Attend(message.slope, message.dropout, message.key, self.node_ids, self.n_nodes)
            return aggregate(self.schedule, operator, inputs)
        if isinstance(message, fn.MulEdge) and reducer in ("max", "min"):
            src, edge = {"x": message.x}, {"weight": _per_row(message.weight, message.x)}
            return self._custom(lambda s, d, e: s["x"] * e["weight"], reducer, src, {}, edge)
        if callable(message) and reducer != "sym":
            return self._custom(message, reducer, src or {}, dst or {}, edge or {})
        raise ConfigError(f"message {type(message).__name__} does not go with reducer {reducer!r}")

    def _sum(self, x, reducer):
        """A X. Of a constant x it is kept as long as x and this graph are there, and is a constant itself."""
        kept = self._kept.setdefault(x, {}) if x.constant else {}
        if reducer not in kept:
            out = aggregate(self.schedule, operators.Sum(self.n_dst, False, *self._scales(reducer)), [x])
            kept[reducer] = Tensor(out.data, constant=True) if x.constant else out
        return kept[reducer]

    def _linear(self, x, weight, reducer):
        """A (X W) or (A X) W: what aggregates fewer values, forward and backward together (MG-GCN 4.4)."""
        if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != len(weight):
            raise ShapeError(f"linear: x {x.shape} and weight {weight.shape} are not (n_src, n_in) and (n_in, n_out)")
        needs = [grad_enabled() and isinstance(t, Tensor) and t.requires_grad for t in (x, weight)]
        before, after = x.shape[1] * (1 + needs[0]), weight.shape[1] * (1 + any(needs))
        if x.dtype.kind == "f" and (x.constant or before < after):
            return ops.matmul(self._sum(x, reducer), weight)
        return self._sum(ops.matmul(x, weight), reducer)

    def _custom(self, message, reducer, src, dst, edge):
        made = {
            "sum": lambda: reducers.SumReducer(),
            "mean": lambda: reducers.SumReducer(self._inverse_degree),
            "max": lambda: reducers.ExtremumReducer(1, self._edge_src_ids),
            "min": lambda: reducers.ExtremumReducer(-1, self._edge_src_ids),
            "softmax": lambda: reducers.SoftmaxReducer(),
        }[reducer]()
        operator = Custom(message, (tuple(src), tuple(dst), tuple(edge)), made, self.node_ids, self.n_nodes)
        inputs = self._check(tuple(src.values()), tuple(dst.values()), tuple(edge.values()))
        operator.probe(inputs)
        return aggregate(self.schedule, operator, inputs, operator.sinks if grad_enabled() else ())

    def _check(self, src=(), dst=(), edge=()):
        for place, values, n in (("src", src, self.n_src), ("dst", dst, self.n_dst), ("edge", edge, self.n_edges)):
            for value in values:
                if np.shape(as_array(value))[:1] != (n,):
                    raise ShapeError(f"{place} input of shape {np.shape(as_array(value))} needs {n} rows")
        return [x if isinstance(x, Tensor) else Tensor(np.ascontiguousarray(as_array(x))) for x in (*src, *dst, *edge)]

    @cached_property
    def edge_ids(self):
        return np.arange(self.n_edges) if self._edge_ids is None else self._edge_ids

    @cached_property
    def _inverse_degree(self):
        return 1.0 / np.maximum(self.in_degrees, 1)

    def _scales(self, reducer):
        """What `Sum` multiplies destinations and sources by. Collective."""
        if reducer == "sym":
            if self._sym is None:  # cached_property would hold a lock while threads as ranks wait for each other
                own = np.sqrt(self._inverse_degree)
                with self.profile.phase("setup"):
                    columns = schedule.run(self.schedule, (own,), lambda block, rows: rows[0].copy(), keep=True)
                self._sym = own, np.concatenate(columns)
            return self._sym
        return self._inverse_degree if reducer == "mean" else None, None

    @property
    def _itype(self):
        return self.plan.local.indices.dtype

    @cached_property
    def _column_ids(self):
        """Global id of each column of all blocks; None where they ascend."""
        merged = self.schedule.mode == "oneshot"
        ids = self.plan.local.src_ids if merged else np.concatenate([block.src_ids for block in self.plan.blocks])
        return None if (np.diff(ids) > 0).all() else ids

    @cached_property
    def _edge_src_ids(self):
        ids = np.empty(self.n_edges, np.int64)
        for block in self.plan.blocks:
            ids[block.labels] = block.src_ids[block.indices]
        return ids


def _per_row(weight, x):
    """Give weights one axis for each of x's that they lack."""
    missing = as_array(x).ndim - as_array(weight).ndim
    return weight.reshape(*weight.shape, *[1] * missing) if missing > 0 else weight


def _check_mode(comm, mode, prefetch):
    error = None
    if mode not in schedule.MODES:
        error = ConfigError(f"mode {mode!r} is not one of {', '.join(schedule.MODES)}")
    elif not isinstance(prefetch, (int, np.integer)) or prefetch < 0:
        error = ConfigError(f"prefetch {prefetch!r} is not a number >= 0")
    raise_together(comm, error)
