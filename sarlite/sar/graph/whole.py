"""How whole graphs are made: from edges, from matrices and graphs of other libraries."""

from typing import TYPE_CHECKING, Any

import numpy as np

from sarlite.comm import Solo
from sarlite.errors import ConfigError
from sarlite.graph import edges as edge_lists
from sarlite.graph import interop, validation
from sarlite.graph.part import InEdges
from sarlite.sar.graph.construct import csr, make, outside
from sarlite.types import Array

if TYPE_CHECKING:
    from sarlite.sar.graph.graph import Graph


def from_edges(cls: Any, src: Any, dst: Any, n_nodes: int | None = None, *, n_src: int | None = None,
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
        Given both, the graph is bipartite: sources are numbered 0 .. n_src, destinations, other nodes, 0 .. n_dst.
    undirected, self_loops, deduplicate : bool
        Add each edge's reverse and then keep one of equal edges; add the self loops that miss; keep one of equal edges.
        Edge values still follow the order of the given edges, of equal ones the first; values of the edges that were
        added follow, in order of (dst, src). The first two are not for bipartite graphs.

    Returns
    -------
    Graph

    Raises
    ------
    ConfigError
        n_nodes beside n_src and n_dst, one of these alone, or a reverse or self loop asked of a bipartite graph.
    DataError
        Indices that are no integers or out of range, or src and dst of different lengths.
    """
    src, dst = outside("src", src), outside("dst", dst)
    changes = dict(undirected=undirected, self_loops=self_loops, deduplicate=deduplicate)
    if (n_src is None) != (n_dst is None) or (n_src is not None and n_nodes is not None):
        raise ConfigError("give n_nodes, or both n_src and n_dst for a bipartite graph")
    if n_src is not None:
        return _bipartite(cls, src, dst, n_src, n_dst, **changes)
    if n_nodes is None:
        src, dst = edge_lists.checked_ends(src, dst, validation.MOST_NODES, validation.MOST_NODES)
        n_nodes = int(max(src.max(initial=-1), dst.max(initial=-1))) + 1
    return _of_csr(cls, len(src), edge_lists.csr_by_dst(src, dst, n_nodes, **changes, edge_index=True))


def _bipartite(cls, src, dst, n_src, n_dst, undirected, self_loops, deduplicate):
    if undirected or self_loops:
        raise ConfigError("a bipartite graph has neither reverse edges nor self loops; src and dst are other nodes")
    n_src, n_dst = validation.count("n_src", n_src), validation.count("n_dst", n_dst)
    src, dst = edge_lists.checked_ends(src, dst, n_src, n_dst)
    n_nodes = max(n_src, n_dst)
    indptr, *edges = edge_lists.csr_by_dst(src, dst, n_nodes, deduplicate=deduplicate, edge_index=True)
    return _of_csr(cls, len(src), (indptr[: n_dst + 1], *edges), n_src)


def _of_csr(cls, n_given, csr, n_src=None):
    """The graph of what `edge_lists.csr_by_dst` returns, with its `edge_index`."""
    indptr, indices, origin = csr
    made, added = _whole(cls, indptr, indices, _numbers(origin, n_given), n_src), int(np.count_nonzero(origin < 0))
    made.ambiguous_edge_count = added if len(origin) == n_given else 0
    return made


def _numbers(origin, n_given):
    """Each edge's index into edge values: the given edges that are left in their order, then those that were added."""
    given = origin >= 0
    left = np.zeros(n_given, bool)
    left[origin[given]] = True
    numbers = np.empty_like(origin)
    numbers[given] = (np.cumsum(left) - 1)[origin[given]]
    numbers[~given] = np.arange(np.count_nonzero(left), len(origin))
    return numbers


def from_csr(cls: Any, indptr: Any, indices: Any = None, *, edge_index: Any = None,
             n_src: int | None = None) -> "Graph":
    """Make a whole graph from a CSR by destination: row i lists the sources of i's in-edges.

    Parameters
    ----------
    indptr, indices : (n_dst + 1,) and (n_edges,) int arrays, or one SciPy sparse array or matrix, or torch CSR tensor,
    alone
        Of a matrix a, a[i, j] is an edge from j to i; entries stored twice are two edges, a stored zero is one
        (`graph.interop.entries`). All values must be 1; `from_scipy` takes others. Borrowed.
    edge_index : (n_edges,) int array, optional
        Each entry's index into edge values, each once; by default its position.
    n_src : int, optional
        Given, the graph is bipartite: sources are numbered 0 .. n_src. A matrix that is not square is.

    Returns
    -------
    Graph

    Raises
    ------
    DataError
        An index out of range, an indptr that does not ascend, an edge_index that is no permutation, or a matrix with
        weights.
    """
    if indices is None:
        found = interop.entries(indptr, "from_csr")
        interop.refuse_weights(found.values, "from_csr", "Graph.from_scipy(matrix)")
        return _of_entries(cls, found, edge_index, n_src)
    indptr, indices = csr(indptr, indices)
    if edge_index is not None:
        edge_index = validation.permutation("edge_index", outside("edge_index", edge_index), len(indices))
    return _whole(cls, indptr, indices, edge_index, n_src)


def from_scipy(cls: Any, matrix: Any, *, n_src: int | None = None) -> "tuple[Graph, Array]":
    """Make a whole graph from a sparse matrix, with its values as edge weights.

    Parameters
    ----------
    matrix : SciPy sparse array or matrix of any format, or torch CSR tensor
        a[i, j] is an edge from j to i. Entries stored twice are two edges, a stored zero is one, but in BSR and DIA,
        where zeros fill up blocks and diagonals.
    n_src : int, optional
        Given, the graph is bipartite: sources are numbered 0 .. n_src. A matrix that is not square is.

    Returns
    -------
    Graph
    weights : (n_edges,) float32 or float64
        One an edge, in the order of `matrix.tocoo()`: the graph's `edge_ids` index them, as `fn.mul_edge(x, weights)`
        expects.

    Raises
    ------
    ConfigError, DataError
        No such matrix, or values that are not finite numbers.
    """
    found = interop.entries(matrix, "from_scipy")
    return _of_entries(cls, found, None, n_src), validation.weights("from_scipy", found.values, len(found.columns))


def from_networkx(cls: Any, graph: Any, weight: str | None = None) -> "Graph | tuple[Graph, Array]":
    """Make a whole graph from a networkx graph; node i is the i-th of `graph.nodes`, and `ids[i]`.

    Parameters
    ----------
    graph : networkx.Graph, DiGraph, MultiGraph or MultiDiGraph
        Of an undirected one each edge goes both ways, a self loop once; of a multigraph parallel edges stay.
    weight : str, optional
        The attribute that holds the weights; an edge without it has weight 1.

    Returns
    -------
    Graph
    weights : (n_edges,) float64, only with `weight`
        One an edge, for `fn.mul_edge(x, weights)`: in the order of `graph.edges`; of an undirected graph those of the
        same edges backward follow, self loops excepted.

    Raises
    ------
    ConfigError
        It is no networkx graph.
    DataError
        A weight is not a finite number; without `weight`, an edge has an attribute "weight" other than 1.
    """
    src, dst, weights, nodes = interop.networkx_edges(graph, "weight" if weight is None else weight)
    if weight is None:
        interop.refuse_weights(weights, "from_networkx", "Graph.from_networkx(graph, weight='weight')")
    made = from_edges(cls, src, dst, len(nodes))
    made.names = nodes
    return made if weight is None else (made, weights)


def _of_entries(cls, found, edge_index, n_src):
    n_dst, n_columns = found.shape
    if n_src is None and n_dst != n_columns:
        n_src = n_columns
    if found.indptr is not None:
        return from_csr(cls, found.indptr, found.columns, edge_index=edge_index, n_src=n_src)
    if edge_index is not None:
        raise ConfigError("edge_index: only with indptr and indices; "
                          "the edges of a matrix are numbered as matrix.tocoo() has them")
    if n_src is None:
        return from_edges(cls, found.columns, found.rows, n_dst)
    return from_edges(cls, found.columns, found.rows, n_src=n_src, n_dst=n_dst)


def _whole(cls, indptr, indices, edge_index, n_src=None):
    n_src = None if n_src is None else validation.count("n_src", n_src)
    if edge_index is not None and np.array_equal(edge_index, np.arange(len(edge_index))):
        edge_index = None
    return make(cls, Solo(), InEdges(indptr, indices, edge_index), None, None, None, n_src)
