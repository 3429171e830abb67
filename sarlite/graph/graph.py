"""Graph: a rank's part of a graph; on one rank the part is the whole graph."""

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
    """A rank's part of a graph: the in-edges of the rank's nodes, and the exchange that brings other ranks' rows.

    On one rank the part is the whole graph. Make a graph with `from_edges`, `from_csr`, `from_scipy`, `from_networkx`,
    `from_pandas`, `from_part` or `shard`, not with the constructor. A Graph is also one relation of a `HeteroGraph`.

    Parameters
    ----------
    parts : GraphParts
        Result of a function of `graph.build`.

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
        `edge_ids`, or None if `edge_ids` are 0, 1, 2, ...
    edge_weight, edge_features : float array, or None
        Values of the local in-edges from `with_edge_values`, in the order of `edge_ids`.
    options : Options
        Mode, prefetch depth and row format of the exchange.
    mode : Mode
        Order in which remote rows are fetched and used; see `schedule.modes`.

    See Also
    --------
    LayerGraph : Base class, with the attributes `n_src`, `n_dst`, `n_edges`, `src_ids`, `dst_ids` and others.

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

    def __reduce__(self) -> tuple[object, ...]:
        check_whole(self)
        return _unpickled, (self.in_edges(), self.dst_ids, self.src_ids if self.bipartite else None, self.explicit_edge_ids,
                        self.options, {"names": self.names, "edge_values": self.edge_values,
                                       "ambiguous_edge_count": self.ambiguous_edge_count})

    # ---- constructors

    @classmethod
    def from_edges(cls, src: ArrayLike, dst: ArrayLike, n_nodes: int | None = None, *, n_src: int | None = None,
                   n_dst: int | None = None, undirected: bool = False, self_loops: bool = False,
                   deduplicate: bool = False) -> "Graph":
        """Make a whole graph from edges src[k] -> dst[k] between `n_nodes` nodes (None: the largest number + 1); `n_src` and
        `n_dst` instead make it bipartite. `undirected` adds reversed edges, `self_loops` adds self loops, `deduplicate` drops equal
        edges.

        Parameters
        ----------
        src, dst : (n_edges,) int array, or anything with `__array__` or `__dlpack__`
            Edge e goes from node src[e] to node dst[e].
        n_nodes : int, optional
            Number of nodes; by default one more than the largest index.
        n_src, n_dst : int, optional
            Numbers of sources and of destinations of a bipartite graph, whose sources 0 .. n_src - 1 and destinations
            0 .. n_dst - 1 are different nodes. Give both or neither.
        undirected : bool
            True to add the reverse of each edge, and then to drop all but one of equal edges. Not for bipartite graphs.
        self_loops : bool
            True to add the self loops that are missing; the attribute `added_loops` marks their nodes. Not for
            bipartite graphs.
        deduplicate : bool
            True to drop all but the first of equal edges.

        Returns
        -------
        Graph
            Edge values of the graph (`with_edge_values`) are in the order of src and dst, without the dropped edges.
            The values of edges that `undirected` or `self_loops` added stand behind them, in order of (dst, src).

        Raises
        ------
        ConfigError
            Both n_nodes and n_src were passed, or only one of n_src and n_dst, or a bipartite graph with `undirected`
            or `self_loops`.
        DataError
            An index is no integer or out of range, or src and dst have different lengths.

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
        """Make a whole graph from a CSR whose row v lists the sources of node v; `indptr` may also be a sparse matrix. Entry k has
        the edge values at edge_index[k] (None: k). `n_src` makes the graph bipartite with that many sources.

        Parameters
        ----------
        indptr, indices : (n_dst + 1,) and (n_edges,) int arrays, or one SciPy sparse array or torch CSR tensor alone
            An entry a[i, j] of a matrix is an edge from j to i. An entry that is stored twice is two edges, and a
            stored zero is an edge. All values of a matrix must be 1: `from_scipy` reads other values as weights. The
            arrays are not copied, so they must not change.
        edge_index : (n_edges,) int array, optional
            Permutation: entry k of the CSR is edge edge_index[k] in arrays of edge values. By default entry k is edge
            k.
        n_src : int, optional
            Number of sources of a bipartite graph, 0 .. n_src - 1. By default a matrix that is not square is a
            bipartite graph, and everything else is a graph of one set of nodes.

        Raises
        ------
        DataError
            An index is out of range, indptr does not ascend, edge_index is no permutation, or the matrix has weights.

        Examples
        --------
        >>> from sarlite import Graph
        >>> Graph.from_csr([0, 1, 3], [1, 0, 1])
        Graph(n_src=2, n_dst=2, n_edges=3)
        """
        return cls(build.build_from_csr(indptr, indices, edge_index=edge_index, n_src=n_src))

    @classmethod
    def from_scipy(cls, matrix: object, *, n_src: int | None = None) -> "tuple[Graph, Array]":
        """Return (whole graph with an edge j -> i for each stored entry a[i, j] of the sparse `matrix`, the values of the entries
        as edge weights). `n_src` makes the graph bipartite with that many sources.

        Parameters
        ----------
        matrix : SciPy sparse array or matrix of any format, or torch CSR tensor
            An entry a[i, j] is an edge from j to i. An entry that is stored twice is two edges. A stored zero is an
            edge, except in BSR and DIA, where zeros fill blocks and diagonals.
        n_src : int, optional
            See `from_csr`.

        Returns
        -------
        graph : Graph
            Graph without edge weights; `graph.with_edge_values(weights)` has them.
        weights : (n_edges,) float32 or float64
            Values in the order of `matrix.tocoo()`, which is the graph's order of edge values.

        Raises
        ------
        ConfigError, DataError
            The argument is no such matrix, or a value is not a finite number.

        Examples
        --------
        >>> from scipy.sparse import csr_array
        >>> from sarlite import Graph
        >>> graph, weights = Graph.from_scipy(csr_array([[0.0, 2.0], [3.0, 0.0]]))
        >>> graph, weights.tolist()
        (Graph(n_src=2, n_dst=2, n_edges=2), [2.0, 3.0])
        """
        parts, values = build.build_from_scipy(matrix, n_src)
        return cls(parts), values

    @classmethod
    def from_networkx(cls, graph: object, weight: str | None = None) -> "Graph | tuple[Graph, Array]":
        """Return the networkx graph `graph` as an undivided Graph; if `weight` names an edge attribute, return (Graph, weights of
        the edges, (n_edges,)).

        Row i is the i-th node of `graph.nodes`.

        Parameters
        ----------
        graph : networkx.Graph, DiGraph, MultiGraph or MultiDiGraph
            Each edge of an undirected graph becomes two directed edges; a self loop becomes one. All parallel edges of
            a multigraph remain.
        weight : str, optional
            Edge attribute with the weights; an edge without the attribute has weight 1.

        Returns
        -------
        graph : Graph
            Graph whose `ids` are the nodes of `graph`.
        weights : (n_edges,) float64
            Only with `weight`: weights in the order of `graph.edges`, for `with_edge_values`. For an undirected graph
            the weights of the reversed edges follow, without self loops.

        Raises
        ------
        ConfigError
            The argument is no networkx graph.
        DataError
            A weight is not a finite number; or without `weight`, an edge has an attribute "weight" other than 1.

        Examples
        --------
        >>> import networkx  # doctest: +SKIP
        >>> graph = Graph.from_networkx(networkx.path_graph(["a", "b", "c"]))  # doctest: +SKIP
        >>> graph, graph.ids.tolist()  # doctest: +SKIP
        (Graph(n_src=3, n_dst=3, n_edges=4), ['a', 'b', 'c'])
        """
        parts, values = build.build_from_networkx(graph, weight)
        return cls(parts) if weight is None else (cls(parts), values)

    @classmethod
    def from_pandas(cls, edges: object, src: str = "src", dst: str = "dst", *, weight: str | None = None,
                    features: Iterable[str] = (), nodes: object = None, id: str = "id", undirected: bool = False,
                    fill: str | int | None = None, on_unknown: str = "refuse") -> "Graph":
        """Make a graph from a table `edges` with a row for each edge: columns `src` and `dst` have node ids, `weight` and
        `features` name columns of edge values. The table `nodes`, with ids in column `id`, lists all nodes (None: the ends of the
        edges).

        Parameters
        ----------
        edges : table
            DataFrame of pandas or polars, pyarrow table, dict of arrays, or path of a file that `convert` reads. Each
            row is an edge; equal rows are parallel edges. The packages of `sarlite[tables]` read the table.
        src, dst : str
            Names of the columns with the ids of each edge's source and destination: all integers or all strings, none
            missing.
        weight : str, optional
            Name of the column with the edges' weights, which become `edge_weight`, float64.
        features : iterable of str
            Names of columns of numbers, which become the columns of `edge_features`, float32.
        nodes : table, optional
            One row for each node, in the order of the graph's rows, including nodes without edges. By default the nodes
            are the ids of the edges in ascending order.
        id : str
            Name of the column of `nodes` with the nodes' ids; each id occurs once.
        undirected : bool
            True to add the reverse of each edge, with the edge's values, and to keep one of equal edges. Equal edges
            must have equal values. The reversed edges stand behind all edges of the table.
        fill : {None, "0", "mean"}
            Value of a weight or a feature that is missing; by default a missing value is refused.
        on_unknown : {"refuse", "drop"}
            What happens to an edge with an end that is not in `nodes`.

        Returns
        -------
        Graph
            Graph whose `ids` are the nodes' ids; so are the `ids` of its parts by `shard`.

        Raises
        ------
        ConfigError
            The packages are not installed, or edges that become one have different values.
        DataError
            A column is missing or shorter than the others; an id is missing, or neither an integer nor a string; an
            edge's id is not in `nodes`; an id occurs twice in `nodes`; or a value is not a finite number.

        Notes
        -----
        The rules are those of `convert` and `sarlite.data.from_tables`, except that integers are always names of nodes,
        as with names=edges.

        Examples
        --------
        >>> from sarlite import Graph
        >>> graph = Graph.from_pandas({"src": ["ann", "bob"], "dst": ["bob", "eve"], "w": [0.5, 2.0]}, weight="w")
        >>> graph.ids.tolist(), graph.edge_weight.tolist()
        (['ann', 'bob', 'eve'], [0.5, 2.0])
        """
        table = frames.tables_reader().read_edges(edges, src, dst, weight, features, nodes, id, undirected, fill,
                                                  on_unknown)
        graph = cls(build.build_from_edges(table.src, table.dst, len(table.names))._replace(names=table.names))
        values = table.weight, table.features
        return graph if all(array is None for array in values) else graph.with_edge_values(*values)

    @classmethod
    def from_part(cls, comm: CommLike, indptr: ArrayLike, indices: ArrayLike, *, node_ids: ArrayLike | None = None,
                  src_ids: ArrayLike | None = None, n_src: int | None = None, edge_ids: ArrayLike | None = None,
                  added_loops: ArrayLike | None = None, mode: str | Mode = "sar", prefetch: int | None = None,
                  backward: str | None = None, row_dtype: str = "float32",
                  peers_at_once: int | None = None) -> "Graph":
        """Make this rank's part of a graph from the CSR of its nodes' in-edges, whose indices are row numbers counted over all
        ranks. Optional ids name nodes and edges; `added_loops` marks nodes whose self loop was added. Options from `mode` on
        control the exchange of rows. Collective.

        Row numbers count the nodes of all ranks, rank after rank: rank p's first node has the row number that follows
        the last node of rank p - 1. No rank holds an array of n_nodes entries.

        Parameters
        ----------
        comm : Communicator, or an mpi4py communicator
        indptr, indices : (n_local + 1,) int64, (n_edges,) int
            CSR of the in-edges of the local nodes; indices are row numbers of sources.
        node_ids : (n_local,) int64, optional
            Global ids of the local nodes, which name the nodes in dropout, ties and results; by default their row
            numbers.
        src_ids : (n_src,) int64, optional
            Only for a bipartite graph: global ids of the sources that this rank owns; by default their row numbers,
            which count the sources of all ranks.
        n_src : int, optional
            Only for a bipartite graph: number of sources that this rank owns; needed only without `src_ids`.
        edge_ids : (n_edges,) int64, optional
            Global ids of the local in-edges, by which edge values are indexed; -1 for an added self loop.
        added_loops : (n_local,) bool, optional
            True for each node whose self loop was added to the data.
        mode : {"sar", "sa", "oneshot", "broadcast"}, or Mode
            Order in which remote rows are fetched and used.
        prefetch, backward, row_dtype, peers_at_once
            See `schedule.schedule.Options`.

        Raises
        ------
        ConfigError, DataError
            On every rank: an option or an array is invalid; ids are not integers, negative, not one for each row, or
            two rows have the same id.

        Examples
        --------
        Two ranks as threads. Each rank owns one of two nodes, with an edge from the other rank's node.

        >>> from sarlite import Graph
        >>> from sarlite.comm import threads
        >>> threads.run(2, lambda comm: Graph.from_part(comm, [0, 1], [1 - comm.rank]).n_halo)
        [1, 1]
        """
        options = Options(mode, prefetch, backward, row_dtype, peers_at_once)
        return cls(build.build_from_rows(comm, options, indptr, indices, node_ids=node_ids, src_ids=src_ids,
                                         n_src=n_src, edge_ids=edge_ids, added_loops=added_loops))

    def shard(self, comm: CommLike, parts: str | ArrayLike = "metis", *, src_parts: str | ArrayLike | None = None,
              order: str | ArrayLike | None = None, mode: str | Mode = "sar", prefetch: int | None = None,
              backward: str | None = None, row_dtype: str = "float32", peers_at_once: int | None = None,
              seed: int = 0) -> "Graph":
        """Divide a whole graph among the ranks of `comm` and return this rank's part. `parts` is each node's rank or a
        partitioner's name; `order` is a permutation that orders each part's rows (None: by id). Options from `mode` on control the
        exchange. Collective.

        Parameters
        ----------
        comm : Communicator, or an mpi4py communicator
        parts : {"metis", "fennel", "random", "contiguous"} or (n_nodes,) int array
            The rank of each node, or the name of the partitioner that divides the nodes on rank 0. In a bipartite graph
            the nodes are the destinations.
        src_parts : same types as `parts`, optional
            Only for a bipartite graph: the rank of each source, or a partitioner; by default the partitioner of
            `parts`.
        order : {"metis", "cluster"} or (n_nodes,) int array, optional
            Permutation of the nodes that orders the rows of each part, or the name of the method that computes it on
            rank 0. By default the ids of a part's rows ascend. Not for bipartite graphs.
        mode : {"sar", "sa", "oneshot", "broadcast"}, or Mode
            Order in which remote rows are fetched and used.
        prefetch, backward, row_dtype, peers_at_once
            See `schedule.schedule.Options`.
        seed : int
            Seed of the partitioner and of the ordering method.

        Returns
        -------
        Graph
            Part whose `dst_ids` and `src_ids` say which nodes this rank owns. Edge values are divided with the edges.

        Raises
        ------
        ConfigError, DataError
            On every rank: a method is unknown, or `parts` or `order` does not fit the graph. The graph, `parts` or
            `order` differs between ranks, which the ranks find out by comparing hashes.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, fn
        >>> from sarlite.comm import threads
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0])
        >>> threads.run(2, lambda comm: graph.shard(comm, "contiguous").node_ids.tolist())
        [[0, 1], [2, 3]]

        Each rank passes the rows of its own nodes, and gets the sums of its own nodes.

        >>> def sums(comm):
        ...     part = graph.shard(comm, "contiguous")
        ...     x = np.eye(4)[part.node_ids]
        ...     return x.shape, part.aggregate(fn.copy_src(x), "sum").shape
        >>> threads.run(2, sums)
        [((2, 4), (2, 4)), ((2, 4), (2, 4))]
        """
        if self.comm.size > 1:
            raise ConfigError("shard: this graph is a part already; only a whole graph can be sharded")
        comm, options = wrap(comm), Options(mode, prefetch, backward, row_dtype, peers_at_once)
        options.check(comm)
        part = divide_graph(comm, self.in_edges(), self.n_src, self.bipartite, parts, src_parts, order, seed)
        n_src = None if part.src_ids is None else len(part.src_ids)
        graph = type(self)(build.build_part(comm, part.edges, node_ids=part.node_ids, src_ids=part.src_ids, n_src=n_src,
                                            edge_ids=part.edge_ids, options=options, sorted_by_id=True)._replace(
                                                ambiguous_edge_count=self.ambiguous_edge_count, names=self.names))
        return graph.with_values_of(self, graph.edge_ids)

    def subgraph(self, mask: Array, edges: InEdges | None = None) -> "Graph":
        """Return the graph of all nodes and of the local in-edges where `mask` is True, with their edge values. `edges` is the
        result of `in_edges()`, if the caller has it already (None: computed). Collective.

        Parameters
        ----------
        mask : (n_edges,) bool
            True for each edge that remains, in the order of `in_edges`.
        edges : InEdges, optional
            Result of `in_edges`, if the caller has it already.

        Returns
        -------
        Graph

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph
        >>> Graph.from_edges([0, 0, 1], [1, 2, 2]).subgraph(np.array([True, False, True]))
        Graph(n_src=3, n_dst=3, n_edges=2)
        """
        first_row = sum(self.comm.allgather(self.n_src)[: self.comm.rank])
        part, index = (edges or self.in_edges()).some(mask, first_row)
        src_ids, n_src = (self.src_ids, self.n_src) if self.bipartite else (None, None)
        graph = type(self)(build.build_part(
            self.schedule.transport.comm, part, node_ids=self.dst_ids, src_ids=src_ids, edge_ids=self.edge_ids[index],
            n_src=n_src, options=self.options, profile=self.profile)._replace(
                ambiguous_edge_count=self.ambiguous_edge_count, names=self.names))
        return graph.with_values_of(self, index)

    def with_edge_values(self, weight: ArrayLike | None = None, features: ArrayLike | None = None,
                         time: ArrayLike | None = None) -> "Graph":
        """Return a copy of this graph whose local in-edges have the edge values `weight`, `features` and `time`; an argument of
        None means that the edges have no values of this kind. Collective.

        Let A_ij be the weight of the edge from j to i, and d_i = sum_j A_ij the weighted degree of node i. Sums of
        `fn.copy_src` and `fn.linear` multiply by the weights: "sum" is sum_j A_ij x_j, "mean" is sum_j A_ij x_j / d_i,
        and "sym" is sum_j A_ij x_j / sqrt(d_i d_j). A degree of 0 counts as 1. `fn.attend` multiplies its coefficients
        by the weights after the softmax, as DGL's `GATConv` does. Other messages, and max and min, ignore the weights;
        a message function can take `graph.edge_weight` as an edge input.

        Parameters
        ----------
        weight : (n_edges,) array of numbers, optional
            Weights of the local in-edges; for a part these are `weights[graph.edge_ids]`. Weights get no gradient.
            Float arrays are not copied.
        features : (n_edges, n_edge_features) array of numbers, optional
            Features of the local in-edges, for messages: `graph.aggregate(message, .., edge={"e":
            graph.edge_features})`. Float arrays are not copied.
        time : (n_edges,) array of whole numbers or dates, optional
            Times of the local in-edges, for `minibatch.Temporal`. Dates become nanoseconds since 1970.

        Returns
        -------
        Graph
            Graph that shares its edges and its exchange with this one. Its parts by `shard`, its batches and its
            message-flow graphs have the edge values too.

        Raises
        ------
        ShapeError, DataError
            On every rank: an array has not one row for each edge, a value is not a finite number, or only some ranks
            pass an array. An aggregation by "mean" or "sym" refuses a negative weight.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, fn
        >>> graph = Graph.from_edges([0, 1], [1, 1], 2).with_edge_values([1.0, 3.0])
        >>> graph.aggregate(fn.copy_src(np.array([[4.0], [8.0]])), "mean").data.tolist()
        [[0.0], [7.0]]
        """
        every = {"edge_weight": weight, "edge_features": features, "edge_time": time}
        names = [name for name, values in every.items() if values is not None]
        together(self.comm, lambda: weights.check_unambiguous(self.ambiguous_edge_count, names[0]) if names else None)
        graph = self.copy_without_memo()
        graph.edge_values = weights.check_values(self.comm, weight, features, lambda: self.edge_ids, self.n_edges,
                                                 time=time)
        return graph

    def with_values_of(self, other: "Graph", index: Array) -> "Graph":
        """Return this graph with the edge values of the graph `other`: edge k gets the weight, features and time of edge index[k]
        of `other`.

        If `other` has no edge values, the graph itself is returned.

        Parameters
        ----------
        other : Graph
        index : (n_edges,) int array
            Edge of `other` for each edge of this graph.
        """
        values = other.edge_values.subset(index)
        return self if all(array is None for array in values) else self.with_edge_values(*values)

    def full_precision(self) -> "Graph":
        """Return this graph with row_dtype "float32", so that aggregations exchange rows without rounding."""
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
        """Return a list with the graph that each of `n` layers computes on: this graph, n times.

        A batch has the same method, with another graph for each layer, so a model works on both.

        Raises
        ------
        ConfigError
            The graph is bipartite and n is above 1.

        Examples
        --------
        >>> from sarlite import Graph
        >>> Graph.from_edges([0], [1]).layers(2)
        [Graph(n_src=2, n_dst=2, n_edges=1), Graph(n_src=2, n_dst=2, n_edges=1)]
        """
        if self.bipartite and n > 1:
            raise ConfigError(f"{n} layers over a bipartite graph: the outputs of one layer are not the sources of the next layer")
        return [self] * n

    def schedule_of(self, needs: Needs) -> Schedule:
        """Return a Schedule, which exchanges rows in this graph's mode, for edges other than the graph's own between the same
        nodes. `needs` has these edges and lists the rows of other ranks that they need. Collective.

        Parameters
        ----------
        needs : Needs
            The other edges, and the rows of other ranks that they need. Rows are sent as float32.
        """
        mode, transport = self.schedule.mode, self.schedule.transport
        return Schedule(plan_of(self.comm, mode, needs, transport.prefetch), transport, mode)

    def in_edges(self) -> InEdges:
        """Return the in-edges of this rank's nodes as one CSR, whose rows list the row numbers of the sources, counted over all
        ranks, in ascending order. Collective.

        Returns
        -------
        InEdges
            CSR whose indices are row numbers of sources in the whole graph. On one rank the arrays are the graph's own.

        Notes
        -----
        On several ranks: 8 bytes of memory for each edge; one number for each halo row is fetched, and its bytes are
        counted under "setup".

        Examples
        --------
        >>> from sarlite import Graph
        >>> edges = Graph.from_edges([2, 0, 0], [1, 1, 2]).in_edges()
        >>> edges.indptr.tolist(), edges.indices.tolist()
        ([0, 0, 2, 3], [0, 2, 0])
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
        """Return the out-edges of this rank's source rows as a CSR (indptr, indices); indices are row numbers of destinations,
        counted over all ranks. Collective.

        Returns
        -------
        indptr : (n_src + 1,) int64
        indices : (n_out_edges,) int64
            Row numbers of destinations in the whole graph, ascending in each row.

        Notes
        -----
        Temporary memory: 40 bytes for each in-edge and each out-edge.

        Examples
        --------
        >>> from sarlite import Graph
        >>> indptr, indices = Graph.from_edges([2, 0, 0], [1, 1, 2]).out_edges()
        >>> indptr.tolist(), indices.tolist()
        ([0, 2, 2, 3], [1, 2, 1])
        """
        edges = out_edges(self.comm, self.in_edges(), self.n_src)
        return edges.indptr, edges.indices

    # ---- edges for other libraries

    def to_scipy(self) -> Any:
        """Return this rank's in-edges as a sparse matrix whose entry a[i, j] is the edge from j to i. Collective.

        Returns
        -------
        scipy.sparse.csr_array
            Matrix of the edges' weights, or of float32 ones. Row i is this rank's i-th destination row, and column j is
            row number j of the whole graph. Parallel edges are entries that are stored twice.

        Examples
        --------
        >>> from sarlite import Graph
        >>> Graph.from_edges([0, 0], [1, 2]).to_scipy().toarray().tolist()
        [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
        """
        from scipy import sparse

        n_columns, edges = sum(self.comm.allgather(self.n_src)), self.in_edges()
        if self.edge_weight is None:
            values = np.ones(len(edges.indices), np.float32)
        else:
            values = self.edge_weight if edges.numbers is None else self.edge_weight[edges.numbers]
        return sparse.csr_array((values, edges.indices, edges.indptr), shape=(self.n_dst, n_columns))

    def to_pandas(self, src: str = "src", dst: str = "dst", weight: str = "weight") -> Any:
        """Return the edges of an undivided graph as a pandas.DataFrame; `src`, `dst` and `weight` name its columns.

        Parameters
        ----------
        src, dst, weight : str
            Names of the columns with the ids of each edge's source and destination, and with the weights.

        Returns
        -------
        pandas.DataFrame
            One row for each edge. The column `weight` exists if the edges have weights; columns "edge_0", "edge_1", ...
            exist if the edges have features.

        Raises
        ------
        ConfigError
            The graph is bipartite, or a part of a graph on several ranks.

        Examples
        --------
        >>> from sarlite import Graph
        >>> frame = Graph.from_pandas({"src": ["ann", "bob"], "dst": ["bob", "eve"]}).to_pandas()
        >>> frame.values.tolist()
        [['ann', 'bob'], ['bob', 'eve']]
        """
        columns = dict(zip((src, dst), self._edge_ends("to_pandas")))
        columns |= {} if self.edge_weight is None else {weight: self.edge_weight}
        return frames.make_frame(columns, self.edge_features)

    def to_networkx(self) -> Any:
        """Return an undivided graph as a networkx.MultiDiGraph, whose nodes are the `ids` of this graph.

        Returns
        -------
        networkx.MultiDiGraph
            Edges have the attribute "weight" if this graph has edge weights.

        Raises
        ------
        ConfigError
            The graph is bipartite, or a part of a graph on several ranks.

        Examples
        --------
        >>> Graph.from_edges([0, 1], [1, 2]).to_networkx().number_of_edges()  # doctest: +SKIP
        2
        """
        return frames.make_networkx(self.ids, *self._edge_ends("to_networkx"), self.edge_weight)

    def _edge_ends(self, method_name: str) -> tuple[Array, Array]:
        """Return (source ids, destination ids) of all edges, in the order of edge values. A graph that is divided or bipartite is
        refused by an error that starts with `method_name`, the caller.
        """
        if self.comm.size > 1 or self.bipartite:
            raise ConfigError(f"{method_name}: the graph must be whole and not bipartite; in_edges() returns the edges of a part")
        edges = self.in_edges()
        src, dst = edges.indices, destinations(edges.indptr)
        if edges.numbers is not None:
            order = np.argsort(edges.numbers)
            src, dst = src[order], dst[order]
        return self.ids[src], self.ids[dst]


def _unpickled(edges: InEdges, dst_ids: Array, src_ids: Array | None, edge_ids: Array | None, options: Options,
               facts: dict[str, Any]) -> Graph:
    """Rebuild an undivided graph from what `Graph.__reduce__` pickled: its in-edges, ids, options, and further fields of GraphParts
    in `facts`. `src_ids` is None unless the graph is bipartite; `edge_ids` is None for the ids 0, 1, 2, ...
    """
    n_src = None if src_ids is None else len(src_ids)
    return Graph(build.build_part(Solo(), edges, node_ids=dst_ids, src_ids=src_ids, edge_ids=edge_ids, n_src=n_src,
                                  options=options)._replace(**facts))
