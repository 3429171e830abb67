"""GraphSet: a set of graphs, whose rows are graphs, as one graph and the graph of each node."""

from typing import Any

import numpy as np

from sarlite.comm import Solo, agree, together, wrap
from sarlite.errors import ConfigError, raise_together
from sarlite.graph import validation, whole_graphs
from sarlite.graph.edges import csr_by_dst, destinations
from sarlite.graph.part import InEdges
from sarlite.sar.graph.construct import csr, make, outside
from sarlite.sar.graph.graph import Graph
from sarlite.sar.schedule.schedule import Options
from sarlite.types import Array


class GraphSet:
    """This rank's graphs of a set of graphs. Make one with `of`. Construction is collective.

    A model's rows are graphs: `nodes` is what layers compute on, and `members` leads from each node to its graph, so a
    readout is one aggregation over it.

    Parameters
    ----------
    nodes : Graph
        All graphs of the set as one, with rows float32.
    indptr, indices : (n_dst + 1,), (n_members,) int64
        The nodes of each of this rank's graphs, by row number in `nodes` of all ranks.
    graph_ids : (n_dst,) int64
        Of this rank's graphs.

    Attributes
    ----------
    nodes, members : Graph
        `members` is bipartite: its sources are the rows of `nodes`, its destinations graphs.
    n_src, n_dst, n_nodes : int
        Nodes of this rank; its graphs; graphs of all ranks.
    src_ids, dst_ids : (n_src,), (n_dst,) int64
        Global ids of the nodes and of the graphs.
    comm, profile, kept
        Those of `nodes`.

    Raises
    ------
    ConfigError, DataError
        On every rank: `nodes` is another graph than is said here; what `Graph.from_part` refuses of the others.
    """

    def __init__(self, nodes: Graph, indptr: Array, indices: Array, graph_ids: Array) -> None:
        if not isinstance(nodes, Graph):
            raise ConfigError(f"a GraphSet is of a Graph, but nodes is a {type(nodes).__name__}")
        edges, ids = together(nodes.comm, lambda: _checked(nodes, indptr, indices, graph_ids))
        self.nodes, self.comm, self.profile, self.kept = nodes, nodes.comm, nodes.profile, nodes.kept
        with nodes.profile.phase("setup"):
            self.members = make(Graph, nodes.schedule.transport.comm, edges, ids, nodes.dst_ids, None, nodes.n_dst,
                                Options(prefetch=0), nodes.profile)
        self.n_src, self.n_dst, self.n_nodes = nodes.n_dst, self.members.n_dst, self.members.n_nodes
        self.src_ids, self.dst_ids = nodes.dst_ids, self.members.dst_ids
        self._found: tuple[int, InEdges, InEdges] | None = None

    @classmethod
    def of(cls, graph: Graph, graph_ids: Any, n_graphs: int | None = None, *, comm: Any = None, parts: Any = "metis",
           mode: str = "sar", prefetch: int = 1, seed: int = 0) -> "GraphSet":
        """Make a set of a whole graph that every rank holds, or this rank's graphs of it. Collective.

        Parameters
        ----------
        graph : Graph
            Whole: all graphs of the set side by side, with the values on their edges.
        graph_ids : (n_nodes,) int array
            The graph of each node, from 0.
        n_graphs : int, optional
            By default one more than the largest id. A graph may have no nodes.
        comm : Communicator, or an mpi4py communicator, optional
            Without it the set is whole.
        parts : {"metis", "fennel", "random", "contiguous"}, or (n_graphs,) int array
            The rank that owns each graph; a method as of `graph.whole_graphs.divide`, by default even in edges and
            nodes.
        mode, prefetch
            As of `Graph.from_part`, for aggregations between nodes. A readout needs no rows of other ranks.
        seed : int
            Of a method.

        Raises
        ------
        ConfigError, DataError
            On every rank: graph_ids or parts do not fit, or differ between ranks; an edge leads to another graph.
        """
        comm = Solo() if comm is None else wrap(comm)
        graph_of, n_graphs = together(comm, lambda: _graphs_of(graph, graph_ids, n_graphs))
        agree(comm, (graph_of, n_graphs), "graph_ids")
        owner = together(comm, lambda: _owners(graph, graph_of, n_graphs, comm.size, parts, seed))
        agree(comm, owner, "parts")
        if comm.size > 1:
            graph = graph.shard(comm, owner[graph_of], mode=mode, prefetch=prefetch)
        own = np.flatnonzero(owner == comm.rank)
        indptr, indices = _members(graph, graph_of[graph.dst_ids], own)
        return cls(graph, indptr, indices, own)

    def __repr__(self) -> str:
        return f"GraphSet({self.n_dst} of {self.n_nodes} graphs, {self.nodes!r})"

    def layers(self, n: int) -> list[Any]:
        """Refuse a model of nodes, which makes no rows of graphs."""
        raise ConfigError("a GraphSet's rows are graphs: give the model of nodes a readout, as nn.GraphPredictor does")

    def take(self, rows: Array) -> tuple["GraphSet", Array]:
        """Return the set of some of this rank's graphs, and which rows its nodes were: graph after graph. Collective.

        Parameters
        ----------
        rows : (k,) int64
            Distinct.

        Notes
        -----
        Needs all nodes and edges of a graph on one rank, as `check_whole` finds out. Sends a few numbers of each rank,
        and the ids.
        """
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
        made = make(Graph, comm, part, self.src_ids[nodes], None, whole.edge_ids[numbers], None,
                    options, self.profile)
        values = [None if array is None else array[numbers] for array in (whole.edge_weight, whole.edge_features)]
        made = made if all(array is None for array in values) else made.with_edge_values(*values)
        return GraphSet(made, _indptr(lengths), start + np.arange(len(nodes)), self.dst_ids[rows]), nodes

    def check_whole(self) -> None:
        """Raise a ConfigError on every rank where a graph is cut, or a node is not in one graph. Collective."""
        first, members, edges = self._local()
        rows, sources = members.indices - first, edges.indices - first
        inside = all(((own >= 0) & (own < self.n_src)).all() for own in (rows, sources))
        whole = inside and (np.bincount(rows, minlength=self.n_src) == 1).all()
        raise_together(self.comm, None if whole else ConfigError(
            "whole graphs are needed: each node in one graph, whose nodes and edges one rank owns"))

    def _local(self):
        """This rank's first row, and its edges to graphs and between nodes. Collective at first."""
        if self._found is None:  # no cached_property, whose lock ranks as threads share
            first = sum(self.comm.allgather(self.n_src)[: self.comm.rank])
            self._found = first, self.members.in_edges(), self.nodes.in_edges()
        return self._found


def _checked(nodes, indptr, indices, graph_ids):
    """The edges to this rank's graphs, and the ids of these."""
    _check(nodes)
    ids = validation.integers("graph_ids", outside("graph_ids", graph_ids))
    return InEdges(*csr(indptr, indices, len(ids))), ids


def _check(nodes):
    if nodes.bipartite or nodes.schedule.row_format.is_narrow:
        kind = "bipartite" if nodes.bipartite else "with rows bfloat16"
        raise ConfigError(f"a GraphSet of a graph {kind} is not done yet")


def _graphs_of(graph, graph_ids, n_graphs):
    """The graph of each node, and the number of graphs, checked."""
    if not isinstance(graph, Graph):
        raise ConfigError(f"a GraphSet is of a Graph, but graph is a {type(graph).__name__}")
    if graph.comm.size > 1:
        raise ConfigError("only a whole graph can be divided; a part makes GraphSet(nodes, indptr, indices, graph_ids)")
    _check(graph)
    stop = None if n_graphs is None else validation.count("n_graphs", n_graphs)
    found = validation.integers("graph_ids", outside("graph_ids", graph_ids), length=graph.n_dst, start=0,
                                **({} if stop is None else {"stop": stop})).astype(np.int64)
    edges = graph.in_edges()
    whole_graphs.check_within(found, edges.indices, destinations(edges.indptr))
    return found, int(found.max(initial=-1)) + 1 if stop is None else stop


def _owners(graph, graph_of, n_graphs, n_parts, parts, seed):
    if isinstance(parts, str):
        return whole_graphs.divide(graph_of, graph.in_degrees, n_graphs, n_parts, parts, seed)
    found = validation.integers("parts", outside("parts", parts), length=n_graphs, stop=n_parts)
    return found.astype(np.int32)


def _members(graph, graph_of, own):
    """CSR of this rank's graphs, `own`, of row numbers of all ranks' nodes; local rows have `graph_of`. Collective."""
    first = sum(graph.comm.allgather(graph.n_dst)[: graph.comm.rank])
    rows, n = np.arange(graph.n_dst), max(graph.n_dst, len(own), 1)
    indptr, indices = csr_by_dst(rows, np.searchsorted(own, graph_of), n)[:2]
    return indptr[: len(own) + 1], indices.astype(np.int64) + first


def _rows_of(indptr, rows):
    """The places of some rows' entries, row after row, and how many each row has."""
    lengths = np.diff(indptr)[rows]
    ends = _indptr(lengths)
    return np.repeat(indptr[rows] - ends[:-1], lengths) + np.arange(ends[-1]), lengths


def _indptr(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


