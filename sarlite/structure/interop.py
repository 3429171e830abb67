"""Edges and weights of graphs of other libraries: SciPy sparse arrays, torch CSR tensors and networkx graphs.

The libraries are not imported: an object is recognised by its methods.
"""

from typing import Any, NamedTuple

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.structure import validation
from sarlite.types import Array

_PADDED = ("bsr", "dia")


class Entries(NamedTuple):
    """Stored entries of a sparse matrix, each of which is an edge; duplicates and stored zeros count as entries.

    Attributes
    ----------
    shape : (n_dst, n_src)
    rows, columns : arrays
        Destination and source of each edge, (n_edges,) int; `rows` is None if `indptr` is not None.
    values : (n_edges,) array
    indptr : (n_dst + 1,) int array, or None
        Row pointers, if the matrix is a CSR.
    """

    shape: tuple
    rows: np.ndarray | None
    columns: np.ndarray
    values: np.ndarray
    indptr: np.ndarray | None = None


def entries(matrix: Any, name: str = "matrix") -> Entries:
    """Return the stored entries of `matrix`, a SciPy sparse array or matrix or a torch CSR tensor, as Entries, one edge each;
    errors start with `name`.

    Parameters
    ----------
    matrix : object
    name : str
        Name of the caller, for errors.

    Returns
    -------
    Entries
        Entries in the order of `matrix.tocoo()`, which for CSR, CSC and COO is the order of `data`. Duplicates are not
        summed. Zeros of BSR and DIA matrices, which fill blocks and diagonals, are left out.

    Raises
    ------
    ConfigError, DataError
        The matrix is of no supported type, or has not two dimensions.
    """
    if hasattr(matrix, "crow_indices") and not hasattr(matrix, "tocoo"):
        return _of_torch(matrix, name)
    if not hasattr(matrix, "tocoo"):
        raise ConfigError(f"{name}: {type(matrix).__name__} is neither a SciPy sparse array nor a torch CSR tensor")
    if len(matrix.shape) != 2:
        raise DataError(f"{name}: expected two dimensions, found shape {matrix.shape}")
    if matrix.format == "csr":
        return Entries(matrix.shape, None, matrix.indices, matrix.data, matrix.indptr)
    coo = matrix.tocoo(copy=False)
    row, column, values = coo.row, coo.col, coo.data
    if matrix.format in _PADDED:
        keep = np.flatnonzero(values)
        row, column, values = row[keep], column[keep], values[keep]
    return Entries(matrix.shape, row, column, values)


def _of_torch(tensor, name):
    try:
        parts = [part().detach() for part in (tensor.crow_indices, tensor.col_indices, tensor.values)]
        indptr, columns, values = (part.__array__() for part in parts)
    except (RuntimeError, TypeError) as error:  # another layout, or another device
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{name}: a torch tensor must be sparse CSR on the CPU: {reason}") from error
    if len(tensor.shape) != 2 or values.ndim != 1:
        raise DataError(f"{name}: expected a matrix with one number an entry, found values of {values.shape}")
    return Entries(tuple(tensor.shape), None, columns, values, indptr)


def refuse_weights(values: Array, name: str, instead: str) -> None:
    """Raise a DataError unless all edge `values` are 1, so that no weights are silently ignored. The error starts with `name`, the
    caller, and suggests the call `instead`, which returns the weights too.

    Parameters
    ----------
    values : (n_edges,) array
    name : str
        Name of the caller, for the error.
    instead : str
        Call that returns the weights too, for the error.
    """
    other = np.flatnonzero(~(values == 1))
    if len(other):
        first = f"the first is {values[other[0]]} (entry {other[0]})"
        raise DataError(f"{name}: {len(other)} of {len(values)} edges have another value than 1, {first}; "
                        f"weights are never left out silently: {instead} returns (graph, weights)")


def networkx_edges(graph: Any, weight: str) -> tuple[Array, Array, Array, Array]:
    """Return (src, dst, weights, nodes) of a networkx graph, where src and dst are positions in `nodes`. Weights come from the edge
    attribute named `weight`, 1 where it is missing; an undirected graph gets both directions.

    Parameters
    ----------
    graph : networkx.Graph, DiGraph, MultiGraph or MultiDiGraph
    weight : str
        Name of the attribute with an edge's weight; an edge without the attribute has weight 1.

    Returns
    -------
    src, dst : (n_edges,) int64
        Ends of the edges in the order of `graph.edges`. For an undirected graph the reversed edges follow, without self
        loops.
    weights : (n_edges,) float64
    nodes : (n_nodes,) array of objects
        Nodes of the graph.
    """
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise ConfigError(f"graph: {type(graph).__name__} is not a networkx graph")
    place = {node: at for at, node in enumerate(graph.nodes)}
    edges = [(place[u], place[v], w) for u, v, w in graph.edges(data=weight, default=1)]
    src, dst = (np.fromiter((edge[end] for edge in edges), np.int64, len(edges)) for end in (0, 1))
    values = validation.weights(f"edge attribute {weight!r}", [edge[2] for edge in edges], len(edges))
    values = values.astype(np.float64, copy=False)
    if not graph.is_directed():
        back = np.flatnonzero(src != dst)
        src, dst, values = np.append(src, dst[back]), np.append(dst, src[back]), np.append(values, values[back])
    nodes = np.empty(len(place), object)
    nodes[:] = [*place]
    return src, dst, values, nodes
