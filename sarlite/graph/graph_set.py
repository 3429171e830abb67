"""GraphSet: many graphs, stored as one graph of all nodes and the list of nodes of each graph."""

from typing import NoReturn

import numpy as np

from sarlite.comm import CommLike, Solo, agree, together, wrap
from sarlite.errors import ConfigError, raise_together
from sarlite.graph.array_checks import check_array, check_csr
from sarlite.graph.build import build_part
from sarlite.graph.graph import Graph
from sarlite.graph.shared_state import Unchanging, check_whole
from sarlite.schedule.modes import Mode
from sarlite.schedule.schedule import Options
from sarlite.structure import validation, whole_graphs
from sarlite.structure.edges import csr_by_dst, destinations
from sarlite.structure.part_edges_csr import InEdges
from sarlite.tape.row_index import row_numbers
from sarlite.types import Array, ArrayLike


class GraphSet(Unchanging):
    """Set of graphs, for models that predict a label or a number for each graph. Make one with `of`. Construction is collective.

    Each rank owns some of the graphs. Layers compute on `nodes`, one graph of the nodes of all graphs. A readout
    aggregates over `members`, which has an edge from each node to its graph; its output has one row for each graph.

    Parameters
    ----------
    nodes : Graph
        All graphs of the set as one graph, with float32 rows.
    indptr, indices : (n_dst + 1,), (n_members,) int64
        CSR of the nodes of each of this rank's graphs; indices are row numbers of all ranks.
    graph_ids : (n_dst,) int64
        Global ids of this rank's graphs.

    Attributes
    ----------
    nodes : Graph
    members : Graph
        Bipartite graph with an edge from each node, a row of `nodes`, to its graph.
    n_src, n_dst, n_nodes : int
        Number of this rank's nodes, of this rank's graphs, and of the graphs of all ranks.
    src_ids, dst_ids : (n_src,), (n_dst,) int64
        Global ids of this rank's nodes and of its graphs.
    comm, profile, memo
        Attributes of `nodes`.

    Raises
    ------
    ConfigError, DataError
        On every rank: `nodes` is bipartite or rounds rows, or an error of `Graph.from_part`.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite import Graph, GraphSet, fn
    >>> graphs = GraphSet.of(Graph.from_edges([0, 1, 3], [1, 2, 4]), graph_ids=[0, 0, 0, 1, 1])
    >>> graphs
    GraphSet(2 of 2 graphs, Graph(n_src=5, n_dst=5, n_edges=3))
    >>> graphs.members.aggregate(fn.copy_src(np.ones((5, 4))), "sum").data.tolist()
    [[3.0, 3.0, 3.0, 3.0], [2.0, 2.0, 2.0, 2.0]]
    """

    def __init__(self, nodes: Graph, indptr: Array, indices: Array, graph_ids: Array) -> None:
        if not isinstance(nodes, Graph):
            raise ConfigError(f"nodes is a {type(nodes).__name__}, but must be a Graph")
        edges, ids = together(nodes.comm, lambda: _checked(nodes, indptr, indices, graph_ids))
        self.nodes, self.comm, self.profile, self.memo = nodes, nodes.comm, nodes.profile, nodes.memo
        with nodes.profile.phase("setup"):
            self.members = Graph(build_part(nodes.schedule.transport.comm, edges, node_ids=ids, src_ids=nodes.dst_ids,
                                            n_src=nodes.n_dst, options=Options(prefetch=0), profile=nodes.profile))
        self.n_src, self.n_dst, self.n_nodes = nodes.n_dst, self.members.n_dst, self.members.n_nodes
        self.src_ids, self.dst_ids = nodes.dst_ids, self.members.dst_ids
        self._local_edges: tuple[int, InEdges, InEdges] | None = None

    @classmethod
    def of(cls, graph: Graph, graph_ids: ArrayLike, n_graphs: int | None = None, *, comm: CommLike | None = None,
           parts: str | ArrayLike = "metis", mode: str | Mode = "sar", prefetch: int | None = None, seed: int = 0) -> "GraphSet":
        """Make the set of the `n_graphs` graphs (None: the largest number + 1) that `graph` contains, where node i is in graph
        graph_ids[i]. With `comm`, ranks divide the graphs: `parts` is each graph's rank or a method's name. Collective.

        Parameters
        ----------
        graph : Graph
            Whole graph, the same on every rank, that contains the nodes and edges of all graphs, with edge values.
        graph_ids : (n_nodes,) int array
            Number of the graph that each node belongs to, from 0.
        n_graphs : int, optional
            Number of graphs; by default one more than the largest of `graph_ids`. A graph may have no nodes.
        comm : Communicator, or an mpi4py communicator, optional
            Ranks that divide the graphs; by default the set is not divided.
        parts : {"metis", "fennel", "random", "contiguous"}, or (n_graphs,) int array
            The rank that owns each graph, or a method of `structure.whole_graphs.divide`; "metis" balances the edges
            and the nodes of the ranks.
        mode, prefetch
            See `Graph.from_part`; for aggregations between nodes. A readout needs no rows of other ranks.
        seed : int
            Seed of the method.

        Raises
        ------
        ConfigError, DataError
            On every rank: graph_ids or parts do not fit the graph, or differ between ranks; an edge leads from one
            graph to another.

        Examples
        --------
        >>> from sarlite import Graph, GraphSet
        >>> from sarlite.comm import threads
        >>> graph = Graph.from_edges([0, 1, 3], [1, 2, 4])
        >>> threads.run(2, lambda comm: GraphSet.of(graph, [0, 0, 0, 1, 1], comm=comm, parts=[0, 1]))[1]
        GraphSet(1 of 2 graphs, Graph(n_src=2, n_dst=2, n_edges=1, part 1 of 2, mode sar))
        """
        comm = Solo() if comm is None else wrap(comm)
        graph_of, n_graphs = together(comm, lambda: _graphs_of(graph, graph_ids, n_graphs))
        agree(comm, (graph_of, n_graphs), "graph_ids")
        owner = together(comm, lambda: _owners(graph, graph_of, n_graphs, comm.size, parts, seed))
        agree(comm, owner, "parts")
        if comm.size > 1:
            graph = graph.shard(comm, owner[graph_of], mode=mode, prefetch=prefetch)
        ids = np.flatnonzero(owner == comm.rank)
        indptr, indices = _members(graph, graph_of[graph.dst_ids], ids)
        return cls(graph, indptr, indices, ids)

    def __repr__(self) -> str:
        return f"GraphSet({self.n_dst} of {self.n_nodes} graphs, {self.nodes!r})"

    def __reduce__(self) -> tuple[object, ...]:
        check_whole(self)
        edges = self.members.in_edges()
        return GraphSet, (self.nodes, edges.indptr, edges.indices, self.dst_ids)

    def layers(self, n: int) -> NoReturn:
        """Raise a ConfigError, because a model that asks a graph for `n` layers outputs rows of nodes, not of graphs."""
        raise ConfigError("a GraphSet's rows are graphs: give the model of nodes a readout, as nn.GraphPredictor does")

    def take(self, rows: ArrayLike | slice) -> tuple["GraphSet", Array]:
        """Return (graphs, nodes): `graphs` is a GraphSet of this rank's graphs at the row numbers `rows`; nodes[i] is the row
        number in this set of node i of `graphs`, so that x[nodes] are its input rows. Collective.

        Parameters
        ----------
        rows : (n_dst,) array of bools, slice, or (k,) array of row numbers
            Rows of this rank's graphs, each at most once.

        Returns
        -------
        graphs : GraphSet
        nodes : (n_src of `graphs`,) int64
            Row of each node of the batch: `x[nodes]` are the input rows of the batch.

        Notes
        -----
        All nodes and edges of a graph must be on one rank; see `check_whole`. Each rank sends a few numbers, and the
        ids of the nodes and of the graphs.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import Graph, GraphSet
        >>> graphs = GraphSet.of(Graph.from_edges([0, 1, 3], [1, 2, 4]), [0, 0, 0, 1, 1])
        >>> batch, nodes = graphs.take(np.array([1]))
        >>> batch, nodes.tolist()
        (GraphSet(1 of 1 graphs, Graph(n_src=2, n_dst=2, n_edges=1)), [3, 4])
        """
        rows = row_numbers("rows", rows, self.n_dst)
        whole, (first, members, edges) = self.nodes, self._local()
        places, lengths = _rows_of(members.indptr, rows)
        nodes = members.indices[places] - first
        places, degrees = _rows_of(edges.indptr, nodes)
        new = np.zeros(self.n_src, np.int64)
        new[nodes] = np.arange(len(nodes))
        comm = whole.schedule.transport.comm
        start = sum(comm.allgather(len(nodes))[: comm.rank])
        loops = None if edges.added_loops is None else edges.added_loops[nodes]
        # a graph's nodes keep their order, so the sources of a row still ascend
        part = InEdges(_indptr(degrees), start + new[edges.indices[places] - first], None, loops)
        numbers = places if edges.numbers is None else edges.numbers[places]
        options = Options(whole.schedule.mode, whole.schedule.transport.prefetch)
        graph = Graph(build_part(comm, part, node_ids=self.src_ids[nodes], edge_ids=whole.edge_ids[numbers],
                                 options=options, profile=self.profile)._replace(names=whole.names))
        members_of = start + np.arange(len(nodes))
        return GraphSet(graph.with_values_of(whole, numbers), _indptr(lengths), members_of, self.dst_ids[rows]), nodes

    def check_whole(self) -> None:
        """Raise a ConfigError on every rank unless each node is in exactly one graph and each graph is on a single rank. Collective."""
        first, members, edges = self._local()
        rows, sources = members.indices - first, edges.indices - first
        inside = all(((numbers >= 0) & (numbers < self.n_src)).all() for numbers in (rows, sources))
        whole = inside and (np.bincount(rows, minlength=self.n_src) == 1).all()
        raise_together(self.comm, None if whole else ConfigError(
            "graph_ids: each node must be in exactly one graph, and one rank must own all nodes and edges of a graph"))

    def _local(self):
        """Return (first row, in-edges of `members`, in-edges of `nodes`) of this rank: first the row number of this rank's first
        node; then the edges from each node to its graph; then the edges between nodes. Row numbers count the nodes of all ranks.
        The first call is collective.
        """
        if self._local_edges is None:  # a cached_property has a lock that ranks as threads would share
            first = sum(self.comm.allgather(self.n_src)[: self.comm.rank])
            self._local_edges = first, self.members.in_edges(), self.nodes.in_edges()
        return self._local_edges


def _checked(nodes: Graph, indptr: ArrayLike, indices: ArrayLike, graph_ids: ArrayLike) -> tuple[InEdges, Array]:
    """Check the arguments of GraphSet; return (members, ids): first InEdges whose row k lists the nodes of the k-th graph; then the
    ids of the graphs as an integer array.
    """
    _check_nodes(nodes)
    ids = validation.integers("graph_ids", check_array("graph_ids", graph_ids))
    return InEdges(*check_csr(indptr, indices, len(ids))), ids


def _check_nodes(nodes: Graph) -> None:
    """Raise a ConfigError if the graph `nodes` is bipartite or rounds its rows, which a GraphSet does not support."""
    if nodes.bipartite or nodes.schedule.row_format.is_narrow:
        kind = "bipartite" if nodes.bipartite else f"with rows {nodes.schedule.row_format.name}"
        raise ConfigError(f"a GraphSet of a graph {kind} is not supported yet")


def _graphs_of(graph: Graph, graph_ids: ArrayLike, n_graphs: int | None) -> tuple[Array, int]:
    """Check the arguments; return (index of each node's graph, (n_nodes,) int64; number of graphs, by default the largest index + 1)."""
    if not isinstance(graph, Graph):
        raise ConfigError(f"graph is a {type(graph).__name__}, but must be a Graph")
    if graph.comm.size > 1:
        raise ConfigError("graph is a part, but must be whole; GraphSet(nodes, indptr, indices, graph_ids) takes a part")
    _check_nodes(graph)
    stop = None if n_graphs is None else validation.count("n_graphs", n_graphs)
    ids = validation.integers("graph_ids", check_array("graph_ids", graph_ids), length=graph.n_dst, start=0,
                              stop=validation.MOST_NODES if stop is None else stop).astype(np.int64)
    edges = graph.in_edges()
    whole_graphs.check_within(ids, edges.indices, destinations(edges.indptr))
    return ids, int(ids.max(initial=-1)) + 1 if stop is None else stop


def _owners(graph: Graph, graph_of: Array, n_graphs: int, n_parts: int, parts: str | ArrayLike, seed: int) -> Array:
    """Return the MPI rank of each graph, (n_graphs,) int32: `parts` itself, checked, if it is an array; else the division into
    `n_parts` ranks by the method that `parts` names, seeded by `seed`. Node i of `graph` is in graph graph_of[i].
    """
    if isinstance(parts, str):
        return whole_graphs.divide(graph_of, graph.in_degrees, n_graphs, n_parts, parts, seed)
    owners = validation.integers("parts", check_array("parts", parts), length=n_graphs, stop=n_parts)
    return owners.astype(np.int32)


def _members(graph: Graph, graph_of: Array, ids: Array) -> tuple[Array, Array]:
    """Return a CSR (indptr, indices) whose row k has the nodes of graph ids[k], as row numbers counted over all ranks. Local node i
    is in graph graph_of[i]; `ids` ascend. Collective.
    """
    first = sum(graph.comm.allgather(graph.n_dst)[: graph.comm.rank])
    rows, n = np.arange(graph.n_dst), max(graph.n_dst, len(ids), 1)
    indptr, indices = csr_by_dst(rows, np.searchsorted(ids, graph_of), n)[:2]
    return indptr[: len(ids) + 1], indices.astype(np.int64) + first


def _rows_of(indptr: Array, rows: Array) -> tuple[Array, Array]:
    """Return (positions of all entries in the CSR rows numbered `rows`, row after row; number of entries in each of these rows)."""
    lengths = np.diff(indptr)[rows]
    ends = _indptr(lengths)
    return np.repeat(indptr[rows] - ends[:-1], lengths) + np.arange(ends[-1]), lengths


def _indptr(lengths: Array) -> Array:
    """Return the CSR row pointers, (n + 1,) int64, of n rows with lengths[i] entries in row i."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


