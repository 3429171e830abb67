"""Graph: one rank's part of a graph; a whole graph is the part of a single rank."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, cast

import numpy as np

from sarlite.comm import CommLike, Communicator, Solo, together, wrap
from sarlite.errors import ConfigError
from sarlite.graph import build, frames, weights
from sarlite.graph.build import GraphParts
from sarlite.graph.layer_graph import LayerGraph
from sarlite.graph.shard import divide_graph
from sarlite.graph.shared_state import check_whole
from sarlite.profile import Counted
from sarlite.schedule.modes import Mode
from sarlite.schedule.needs import Needs
from sarlite.schedule.plan_check import plan_of
from sarlite.schedule.reverse import out_edges
from sarlite.schedule.row_format import FLOAT32
from sarlite.schedule.schedule import Options, Schedule
from sarlite.structure.edges import destinations
from sarlite.structure.part_edges_csr import InEdges
from sarlite.types import Array, ArrayLike


class Graph(LayerGraph):
    """One part of a graph, or of one relation of a `HeteroGraph`: its in-edges by block, and how peers' rows arrive.

    Make a graph with `from_edges`, `from_csr`, `from_scipy`, `from_networkx`, `from_pandas`, `from_part` or `shard`. It
    has the attributes of a `LayerGraph`, and:

    Parameters
    ----------
    parts : GraphParts

    Attributes
    ----------
    node_ids : (n_dst,) int64
        Another name for `dst_ids`; also the same array as `src_ids`, unless the graph is bipartite.
    ids : (n_dst,) array
        The caller's names of the local rows: nodes of `from_networkx`, ids of `from_pandas`; else `node_ids`.
    names : (n_nodes,) array, or None
        The caller's names of the nodes of the whole graph.
    edge_ids : (n_edges,) int64
        Global ids of the local in-edges: a rank's edge values are `values[graph.edge_ids]`.
    explicit_edge_ids : (n_edges,) int64, or None
        `edge_ids`, or None if they are 0, 1, 2, ...
    edge_weight, edge_features : float array, or None
        Values of the local in-edges from `with_edge_values`, in the order of `edge_ids`.
    options : Options
        How the graph is computed with on several ranks.
    mode : Mode
        How rows travel; see `schedule.modes`.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, fn
    >>> graph = Graph.from_edges([0, 0, 1], [1, 2, 2])
    >>> graph
    Graph(n_src=3, n_dst=3, n_edges=3)
    >>> graph.aggregate(fn.copy_src(np.array([[1.0], [2.0], [4.0]])), "sum").data.tolist()
    [[0.0], [1.0], [3.0]]
    """

    has_all_edges = True

    def __init__(self, parts: GraphParts) -> None:
        counts = len(parts.src_ids), len(parts.dst_ids), int(parts.in_degrees.sum())
        super().__init__(cast(Communicator, Counted(parts.comm, parts.profile)), parts.schedule, parts.profile,
                         parts.n_nodes, counts, added_loops=parts.added_loops, bipartite=parts.bipartite,
                         relation=parts.relation, relation_index=parts.relation_index,
                         exchanged_sizes=parts.exchanged_sizes, evaluation_log=parts.evaluation_log)
        self.dst_ids, self.src_ids, self.in_degrees = parts.dst_ids, parts.src_ids, parts.in_degrees
        self.options, self.names, self.explicit_edge_ids = parts.options, parts.names, parts.edge_ids
        self.has_own_exchange = parts.options.separate
        self.ambiguous_edge_count, self.edge_values = parts.ambiguous_edge_count, parts.edge_values

    def __repr__(self) -> str:
        size = self.comm.size
        share = f", part {self.comm.rank} of {size}, mode {self.schedule.mode}" if size > 1 else ""
        return f"Graph(n_src={self.n_src}, n_dst={self.n_dst}, n_edges={self.n_edges}{share})"

    def __reduce__(self) -> tuple[Any, ...]:
        check_whole(self)
        return _whole, (self.in_edges(), self.dst_ids, self.src_ids if self.bipartite else None, self.explicit_edge_ids,
                        self.options, {"names": self.names, "edge_values": self.edge_values,
                                       "ambiguous_edge_count": self.ambiguous_edge_count})

    # ---- constructors

    @classmethod
    def from_edges(cls, src: ArrayLike, dst: ArrayLike, n_nodes: int | None = None, *, n_src: int | None = None,
                   n_dst: int | None = None, undirected: bool = False, self_loops: bool = False,
                   deduplicate: bool = False) -> "Graph":
        """Make a whole graph from an edge list.

        Parameters
        ----------
        src, dst : (n_edges,) int array, or anything with `__array__` or `__dlpack__`
            Edge e goes from src[e] to dst[e]. Edge values follow this order.
        n_nodes : int, optional
            By default one more than the largest index.
        n_src, n_dst : int, optional
            If both are given, the graph is bipartite: sources are numbered 0 .. n_src - 1, and destinations, which are
            other nodes, 0 .. n_dst - 1.
        undirected : bool
            Add each edge's reverse, then keep one of equal edges. Not for bipartite graphs.
        self_loops : bool
            Add the missing self loops, which `added_loops` marks. Not for bipartite graphs.
        deduplicate : bool
            Keep the first of equal edges. Edge values still follow the order of the given edges; the values of added
            edges follow, in order of (dst, src).

        Raises
        ------
        ConfigError
            n_nodes was given with n_src and n_dst, or only one of these, or a bipartite graph with `undirected` or
            `self_loops`.
        DataError
            Indices that are no integers or out of range, or src and dst of different lengths.

        Examples
        --------
        >>> from sarlite import Graph
        >>> Graph.from_edges([0, 1], [1, 2], undirected=True)
        Graph(n_src=3, n_dst=3, n_edges=4)
        >>> Graph.from_edges([0, 1, 4], [0, 0, 1], n_src=5, n_dst=2)
        Graph(n_src=5, n_dst=2, n_edges=3)
        """
        return cls(build.build_from_edges(src, dst, n_nodes, n_src=n_src, n_dst=n_dst, undirected=undirected,
                                          self_loops=self_loops, deduplicate=deduplicate))

    @classmethod
    def from_csr(cls, indptr: object, indices: ArrayLike | None = None, *, edge_index: ArrayLike | None = None,
                 n_src: int | None = None) -> "Graph":
        """Make a whole graph from a CSR by destination: row i lists the sources of i's in-edges.

        Parameters
        ----------
        indptr, indices : (n_dst + 1,) and (n_edges,) int arrays, or one SciPy sparse array or torch CSR tensor alone
            An entry a[i, j] of a matrix is an edge from j to i. Entries stored twice are two edges, and a stored zero
            is an edge (`graph.interop.entries`). All values must be 1; `from_scipy` takes others. Borrowed.
        edge_index : (n_edges,) int array, optional
            Index of each entry in edge values, a permutation; by default the position of the entry.
        n_src : int, optional
            If given, the graph is bipartite, and sources are numbered 0 .. n_src - 1. By default the graph is bipartite
            if a matrix is not square.

        Raises
        ------
        DataError
            An index out of range, an indptr that does not ascend, an edge_index that is no permutation, or a matrix
            with weights.

        Examples
        --------
        >>> from sarlite import Graph
        >>> Graph.from_csr([0, 1, 3], [1, 0, 1])
        Graph(n_src=2, n_dst=2, n_edges=3)
        """
        return cls(build.build_from_csr(indptr, indices, edge_index=edge_index, n_src=n_src))

    @classmethod
    def from_scipy(cls, matrix: object, *, n_src: int | None = None) -> "tuple[Graph, Array]":
        """Make a whole graph from a sparse matrix, whose values are edge weights.

        Parameters
        ----------
        matrix : SciPy sparse array or matrix of any format, or torch CSR tensor
            An entry a[i, j] is an edge from j to i. Entries stored twice are two edges. A stored zero is an edge,
            except in BSR and DIA, where zeros fill blocks and diagonals.
        n_src : int, optional
            As of `from_csr`.

        Returns
        -------
        graph : Graph
        weights : (n_edges,) float32 or float64
            Weights of the edges in the order of `matrix.tocoo()`, as `fn.mul_edge(x, weights)` expects them: the
            graph's `edge_ids` index them.

        Raises
        ------
        ConfigError, DataError
            No such matrix, or values that are not finite numbers.
        """
        parts, values = build.build_from_scipy(matrix, n_src)
        return cls(parts), values

    @classmethod
    def from_networkx(cls, graph: object, weight: str | None = None) -> "Graph | tuple[Graph, Array]":
        """Make a whole graph from a networkx graph; node i is the i-th of `graph.nodes`, and `ids[i]`.

        Parameters
        ----------
        graph : networkx.Graph, DiGraph, MultiGraph or MultiDiGraph
            Each edge of an undirected graph goes both ways, a self loop once. Parallel edges of a multigraph remain.
        weight : str, optional
            Attribute with the weights; an edge without the attribute has weight 1.

        Returns
        -------
        graph : Graph
        weights : (n_edges,) float64, only with `weight`
            Weights in the order of `graph.edges`, for `fn.mul_edge(x, weights)`. For an undirected graph the weights of
            the reversed edges follow, without self loops.

        Raises
        ------
        ConfigError
            The argument is no networkx graph.
        DataError
            A weight is not a finite number; or without `weight`, an edge has an attribute "weight" other than 1.
        """
        parts, values = build.build_from_networkx(graph, weight)
        return cls(parts) if weight is None else (cls(parts), values)

    @classmethod
    def from_pandas(cls, edges: Any, src: str = "src", dst: str = "dst", *, weight: str | None = None,
                    features: Iterable[str] = (), nodes: Any = None, id: str = "id",
                    undirected: bool = False) -> "Graph":
        """Make a whole graph from a table of edges, whose nodes have words or integers of any size as ids.

        Parameters
        ----------
        edges : table
            A DataFrame of pandas or polars, a pyarrow table, or a dict of arrays. Columns are read as `edges[name]`. A
            row is an edge; equal rows are parallel edges.
        src, dst : str
            Columns with the ids of each edge's source and destination: whole numbers or words, none missing.
        weight : str, optional
            Column with the edges' weights, which become `edge_weight`.
        features : iterable of str
            Columns of numbers that become `edge_features`.
        nodes : table, optional
            One row for each node, in the graph's order, including nodes without edges. By default the nodes are the ids
            of the edges in ascending order.
        id : str
            Column of `nodes` with their ids, each once.
        undirected : bool
            True if the reverse of each edge is added with the edge's values, and each edge is kept once, as `from_edges`
            and `convert` do. The reversed edges follow the given ones. Equal edges must have equal values.

        Returns
        -------
        Graph
            Graph whose `ids`, also in its parts, are the nodes' ids.

        Raises
        ------
        DataError
            A missing column, columns of different lengths, an id that is missing or neither a whole number nor a word,
            an edge's id that is not in `nodes`, an id twice in `nodes`, or values that are no finite numbers.

        Examples
        --------
        >>> from sarlite import Graph
        >>> graph = Graph.from_pandas({"src": ["ann", "bob"], "dst": ["bob", "eve"], "w": [0.5, 2.0]}, weight="w")
        >>> graph.ids.tolist(), graph.edge_weight.tolist()
        (['ann', 'bob', 'eve'], [0.5, 2.0])
        """
        table = frames.read_edges(edges, src, dst, weight, features, nodes, id, undirected)
        graph = cls(build.build_from_edges(table.src, table.dst, len(table.names))._replace(names=table.names))
        values = table.weight, table.features
        return graph if all(array is None for array in values) else graph.with_edge_values(*values)

    @classmethod
    def from_part(cls, comm: CommLike, indptr: ArrayLike, indices: ArrayLike, *, node_ids: ArrayLike | None = None,
                  src_ids: ArrayLike | None = None, n_src: int | None = None, edge_ids: ArrayLike | None = None,
                  added_loops: ArrayLike | None = None, mode: str | Mode = "sar", prefetch: int = 1,
                  backward: str | None = None, row_dtype: str = "float32",
                  peers_at_once: int | None = None) -> "Graph":
        """Make this rank's part of a graph from its own rows. Collective.

        Rank p owns the row numbers after those of the ranks before it, as many as it has destination rows. No array has
        n_nodes entries.

        Parameters
        ----------
        comm : Communicator, or an mpi4py communicator
        indptr, indices : (n_local + 1,) int64, (n_edges,) int
            In-edges of the local nodes; indices are row numbers of sources in the whole graph.
        node_ids : (n_local,) int64, optional
            Global ids of the local rows, which name them in dropout, ties and results; by default their row numbers.
        src_ids, n_src : (n_src,) int64 and int, optional
            Only for a bipartite graph: global ids of the sources that this rank owns, numbered by rank like
            destinations, and their number. n_src is enough if the ids are row numbers.
        edge_ids : (n_edges,) int64, optional
            Global ids of the local in-edges, for edge values; -1 for an added loop.
        added_loops : (n_local,) bool, optional
            True for each row whose self loop was added to the data.
        mode, prefetch, backward, row_dtype, peers_at_once
            See `schedule.schedule.Options`.

        Raises
        ------
        ConfigError, DataError
            On every rank: invalid options or arrays; ids that are no integers, negative, of the wrong number, or given
            to two rows.

        Examples
        --------
        Two ranks as threads; each owns one of two nodes, with an edge from the other one.

        >>> from sarlite import Graph
        >>> from sarlite.comm import threads
        >>> threads.run(2, lambda comm: Graph.from_part(comm, [0, 1], [1 - comm.rank]).n_halo)
        [1, 1]
        """
        options = Options(mode, prefetch, backward, row_dtype, peers_at_once)
        return cls(build.build_from_rows(comm, options, indptr, indices, node_ids=node_ids, src_ids=src_ids,
                                         n_src=n_src, edge_ids=edge_ids, added_loops=added_loops))

    def shard(self, comm: CommLike, parts: str | ArrayLike = "metis", *, src_parts: str | ArrayLike | None = None,
              order: str | ArrayLike | None = None, mode: str | Mode = "sar", prefetch: int = 1,
              backward: str | None = None, row_dtype: str = "float32", peers_at_once: int | None = None,
              seed: int = 0) -> "Graph":
        """Return this rank's part of a whole graph that every rank holds. Collective.

        Parameters
        ----------
        comm : Communicator, or an mpi4py communicator
        parts : {"metis", "fennel", "random", "contiguous"} or (n_nodes,) int array
            The rank of each node, or the method that divides the nodes on rank 0; of a bipartite graph the
            destinations.
        src_parts : as `parts`, optional
            The same for the sources of a bipartite graph; by default the method of `parts`.
        order : {"metis", "cluster"} or (n_nodes,) int array, optional
            Permutation of the nodes that orders the rows of each part; a method runs on rank 0. By default ids ascend.
            Not for bipartite graphs.
        mode, prefetch, backward, row_dtype, peers_at_once
            See `schedule.schedule.Options`.
        seed : int
            Seed of the method.

        Returns
        -------
        Graph
            Its rows are those of `node_ids`; of a bipartite graph those of `dst_ids` and `src_ids`.

        Raises
        ------
        ConfigError, DataError
            On every rank: an unknown method; parts or an order that do not fit the graph; a graph, parts or an order
            that differ between ranks. Each rank hashes its own.

        Examples
        --------
        >>> from sarlite import Graph
        >>> from sarlite.comm import threads
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0])
        >>> threads.run(2, lambda comm: graph.shard(comm, "contiguous").node_ids.tolist())
        [[0, 1], [2, 3]]
        """
        if self.comm.size > 1:
            raise ConfigError("only a whole graph can be sharded")
        comm, options = wrap(comm), Options(mode, prefetch, backward, row_dtype, peers_at_once)
        options.check(comm)
        part = divide_graph(comm, self.in_edges(), self.n_src, self.bipartite, parts, src_parts, order, seed)
        n_src = None if part.src_ids is None else len(part.src_ids)
        graph = type(self)(build.build_part(comm, part.edges, node_ids=part.node_ids, src_ids=part.src_ids, n_src=n_src,
                                            edge_ids=part.edge_ids, options=options, sorted_by_id=True)._replace(
                                                ambiguous_edge_count=self.ambiguous_edge_count, names=self.names))
        return graph.with_values_of(self, graph.edge_ids)

    def subgraph(self, mask: Array, edges: InEdges | None = None) -> "Graph":
        """Return the graph of all nodes and the edges selected by `mask`, with the values of these edges. Collective.

        Parameters
        ----------
        mask : (n_edges,) bool
            True for each edge that remains, in the order of `in_edges`.
        edges : InEdges, optional
            Result of `in_edges`, if the caller has it.
        """
        first_row = sum(self.comm.allgather(self.n_src)[: self.comm.rank])
        part, index = (edges or self.in_edges()).some(mask, first_row)
        src_ids, n_src = (self.src_ids, self.n_src) if self.bipartite else (None, None)
        graph = type(self)(build.build_part(
            self.schedule.transport.comm, part, node_ids=self.dst_ids, src_ids=src_ids, edge_ids=self.edge_ids[index],
            n_src=n_src, options=self.options, profile=self.profile)._replace(
                ambiguous_edge_count=self.ambiguous_edge_count, names=self.names))
        return graph.with_values_of(self, index)

    def with_edge_values(self, weight: ArrayLike | None = None, features: ArrayLike | None = None) -> "Graph":
        """Return this graph with weights and features on its edges, or without values. Collective.

        A_ij is the weight of the edge from j to i, d_i = sum_j A_ij, and d is a node's weighted degree. Sums of
        `copy_src` and `linear` count weights: "sum" is sum_j A_ij x_j, "mean" sum_j A_ij x_j / d_i, and "sym" sum_j
        A_ij x_j / sqrt(d_i d_j). A degree of 0 counts as 1. `fn.attend` multiplies its coefficients by the weights
        after the softmax, as `GATConv` of DGL does. Other messages, and max and min, ignore the weights and may take
        `graph.edge_weight` as an edge input.

        Parameters
        ----------
        weight : (n_edges,) array of numbers, optional
            Weights of the local in-edges; of a part `weights[graph.edge_ids]`. They are constants. Floats are borrowed.
        features : (n_edges, n_edge_features) array of numbers, optional
            Features of the local in-edges, for messages: `graph.aggregate(message, .., edge={"e":
            graph.edge_features})`. Floats are borrowed.

        Returns
        -------
        Graph
            It shares all but stored results with this graph. Its parts by `shard`, its batches and its message-flow
            graphs have the edge values.

        Raises
        ------
        ShapeError, DataError
            On every rank: not one row an edge, no numbers, a value that is not finite, or values on some ranks only.
            "mean" and "sym" refuse a negative weight.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, fn
        >>> graph = Graph.from_edges([0, 1], [1, 1], 2).with_edge_values([1.0, 3.0])
        >>> graph.aggregate(fn.copy_src(np.array([[4.0], [8.0]])), "mean").data.tolist()
        [[0.0], [7.0]]
        """
        names = [name for name, values in (("edge_weight", weight), ("edge_features", features)) if values is not None]
        together(self.comm, lambda: weights.check_unambiguous(self.ambiguous_edge_count, names[0]) if names else None)
        graph = self.copy_without_memo()
        graph.edge_values = weights.check_values(self.comm, weight, features, lambda: self.edge_ids, self.n_edges)
        return graph

    def with_values_of(self, other: "Graph", index: Array) -> "Graph":
        """Return this graph with the edge values of `other` at `index`, if `other` has edge values."""
        values = other.edge_values.subset(index)
        return self if all(array is None for array in values) else self.with_edge_values(*values)

    def full_precision(self) -> "Graph":
        """Return the graph whose rows are stored and sent as float32, for sums without rounded rows."""
        if not self.schedule.row_format.is_narrow:
            return self
        graph = self.copy_without_memo()
        graph.schedule = self.schedule._replace(row_format=FLOAT32)
        return graph

    # ---- nodes, layers and edges

    @property
    def mode(self) -> Mode:
        return self.schedule.mode

    @property
    def node_ids(self) -> Array:
        return self.dst_ids

    @property
    def ids(self) -> Array:
        return self.dst_ids if self.names is None else self.names[self.dst_ids]

    @cached_property
    def edge_ids(self) -> Array:
        return np.arange(self.n_edges) if self.explicit_edge_ids is None else self.explicit_edge_ids

    def layers(self, n: int) -> list[LayerGraph]:
        """Return the graphs that `n` layers compute on: this graph, n times.

        Raises
        ------
        ConfigError
            More than one layer over a bipartite graph.
        """
        if self.bipartite and n > 1:
            raise ConfigError(f"{n} layers over a bipartite graph: what one layer makes are no sources of the next")
        return [self] * n

    def schedule_of(self, needs: Needs) -> Schedule:
        """Return a schedule of other edges between the graph's rows, in its mode, with float32 rows. Collective."""
        mode, transport = self.schedule.mode, self.schedule.transport
        return Schedule(plan_of(self.comm, mode, needs, transport.prefetch), transport, mode)

    def in_edges(self) -> InEdges:
        """Return this part's edges in source order, as one CSR. Collective.

        Returns
        -------
        InEdges
            Its indices are row numbers of sources in the whole graph. One rank shares the arrays with the graph.

        Notes
        -----
        On several ranks: 8 bytes an edge, and one number a halo row is fetched, counted under "setup".
        """
        local, indptr = self.edges_of(self.plan.local), np.concatenate([[0], np.cumsum(self.in_degrees)])
        if self.comm.size == 1:
            return InEdges(indptr, local.indices, local.numbers, self.added_loops)
        first = sum(self.comm.allgather(self.n_src)[: self.comm.rank])
        with self.profile.phase("setup"):
            row_numbers = self.of_columns(np.arange(first, first + self.n_src))
        indices = np.empty(self.n_edges, np.int64)
        for block, numbers in zip(self.blocks, row_numbers):
            indices[slice(None) if block.positions is None else block.positions] = numbers[block.indices]
        return InEdges(indptr, indices, local.numbers, self.added_loops)

    def out_edges(self) -> tuple[Array, Array]:
        """Return the edges from this rank's source rows, by source. Collective.

        Returns
        -------
        indptr : (n_src + 1,) int64
        indices : (n_out_edges,) int64
            Row numbers of destinations in the whole graph, ascending in each row.

        Notes
        -----
        Temporary memory: 40 bytes an in-edge and an out-edge.
        """
        edges = out_edges(self.comm, self.in_edges(), self.n_src)
        return edges.indptr, edges.indices

    # ---- edges for other libraries

    def to_scipy(self) -> Any:
        """Return the edges as a sparse matrix whose entry a[i, j] is the edge from j to i. Collective.

        Returns
        -------
        scipy.sparse.csr_array
            (n_dst, sources of the whole graph) of the edges' weights, or of float32 ones; entries stored twice are two
            edges. The rows are those of this part; columns are row numbers of the whole graph.
        """
        from scipy import sparse

        n_columns, edges = sum(self.comm.allgather(self.n_src)), self.in_edges()
        if self.edge_weight is None:
            values = np.ones(len(edges.indices), np.float32)
        else:
            values = self.edge_weight if edges.numbers is None else self.edge_weight[edges.numbers]
        return sparse.csr_array((values, edges.indices, edges.indptr), shape=(self.n_dst, n_columns))

    def to_pandas(self, src: str = "src", dst: str = "dst", weight: str = "weight") -> Any:
        """Return the edges of a whole graph as a DataFrame of pandas, in the order of edge values.

        Returns
        -------
        pandas.DataFrame
            The ids of each edge's source and destination; its weight, if edges have weights; columns "edge_0",
            "edge_1", ... of its features, if edges have features.

        Raises
        ------
        ConfigError
            The graph is bipartite, or a part of a graph.
        """
        columns = dict(zip((src, dst), self._edge_ends("to_pandas")))
        columns |= {} if self.edge_weight is None else {weight: self.edge_weight}
        return frames.make_frame(columns, self.edge_features)

    def to_networkx(self) -> Any:
        """Return a whole graph as a networkx.MultiDiGraph, whose nodes are `ids`; weights are the attribute "weight".

        Raises
        ------
        ConfigError
            The graph is bipartite, or a part of a graph.
        """
        return frames.make_networkx(self.ids, *self._edge_ends("to_networkx"), self.edge_weight)

    def _edge_ends(self, name: str) -> tuple[Array, Array]:
        """Return the ids of each edge's source and destination, in the order of edge values."""
        if self.comm.size > 1 or self.bipartite:
            raise ConfigError(f"{name}: only of a whole graph of one kind of nodes; `in_edges` gives a part's edges")
        edges = self.in_edges()
        src, dst = edges.indices, destinations(edges.indptr)
        if edges.numbers is not None:
            order = np.argsort(edges.numbers)
            src, dst = src[order], dst[order]
        return self.ids[src], self.ids[dst]


def _whole(edges, dst_ids, src_ids, edge_ids, options, facts):
    """Return a whole graph that was pickled."""
    n_src = None if src_ids is None else len(src_ids)
    return Graph(build.build_part(Solo(), edges, node_ids=dst_ids, src_ids=src_ids, edge_ids=edge_ids, n_src=n_src,
                                  options=options)._replace(**facts))
