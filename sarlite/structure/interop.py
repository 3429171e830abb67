"""Conversion of other libraries' graphs to edges and weights: SciPy sparse arrays, torch CSR tensors, networkx graphs.

None of these libraries is imported: an object's methods tell what it is.
"""

from typing import NamedTuple

import numpy as np

from sarlite.errors import ConfigError, DataError
from sarlite.structure import validation

_PADDED = ("bsr", "dia")


class Entries(NamedTuple):
    """Stored entries of a sparse matrix, one per edge; duplicates and stored zeros are entries too.

    Attributes
    ----------
    shape : (n_dst, n_src)
    rows, columns : arrays
        Destination and source of each edge; `rows` is None if there is an `indptr`.
    values : (n_edges,) array
    indptr : array, or None
        Row pointers of a CSR matrix, whose entries are in row order.
    """

    shape: tuple
    rows: np.ndarray | None
    columns: np.ndarray
    values: np.ndarray
    indptr: np.ndarray | None = None


def entries(matrix, name="matrix"):
    """Return the `Entries` of a SciPy sparse array or matrix, or of a torch CSR tensor.

    Notes
    -----
    Entries stand in the order of `matrix.tocoo()`, which for CSR, CSC and COO is the order of `data`. Nothing is
    summed. BSR and DIA fill their blocks and diagonals up with zeros, so in these two a zero is no entry.

    Raises
    ------
    ConfigError, DataError
        The matrix is of neither kind; it has not two dimensions.
    """
    if hasattr(matrix, "crow_indices") and not hasattr(matrix, "tocoo"):
        return _of_torch(matrix, name)
    if not hasattr(matrix, "tocoo"):
        raise ConfigError(f"{name}: {type(matrix).__name__} is neither a SciPy sparse array nor a torch CSR tensor")
    if len(matrix.shape) != 2:
        raise DataError(f"{name}: expected two dimensions, found shape {matrix.shape}")
    if matrix.format == "csr":
        return Entries(matrix.shape, None, matrix.indices, matrix.data, matrix.indptr)
    found = matrix.tocoo(copy=False)
    row, column, values = found.row, found.col, found.data
    if matrix.format in _PADDED:
        keep = np.flatnonzero(values)
        row, column, values = row[keep], column[keep], values[keep]
    return Entries(matrix.shape, row, column, values)


def _of_torch(tensor, name):
    try:
        parts = [part().detach() for part in (tensor.crow_indices, tensor.col_indices, tensor.values)]
        found = [part.__array__() for part in parts]
    except (RuntimeError, TypeError) as error:  # another layout, or another device
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{name}: a torch tensor must be sparse CSR on the CPU: {reason}") from error
    if len(tensor.shape) != 2 or found[2].ndim != 1:
        raise DataError(f"{name}: expected a matrix with one number an entry, found values of {found[2].shape}")
    return Entries(tuple(tensor.shape), None, found[1], found[2], found[0])


def refuse_weights(values, name, instead):
    """Raise a DataError unless every value is 1: weights that the caller may have overlooked.

    Parameters
    ----------
    values : (n_edges,) array
    instead : str
        What returns the weights too.
    """
    other = np.flatnonzero(~(values == 1))
    if len(other):
        first = f"the first is {values[other[0]]} (entry {other[0]})"
        raise DataError(f"{name}: {len(other)} of {len(values)} edges have another value than 1, {first}; "
                        f"weights are never left out silently: {instead} returns (graph, weights)")


def networkx_edges(graph, weight):
    """Return the edges of a networkx graph by the places of their ends in `graph.nodes`.

    Parameters
    ----------
    graph : networkx.Graph, DiGraph, MultiGraph or MultiDiGraph
    weight : str
        The attribute with an edge's weight; an edge without it has weight 1.

    Returns
    -------
    src, dst : (n_edges,) int64
        In the order of `graph.edges`. Behind the edges of an undirected graph stand their reverses, but for self loops.
    weights : (n_edges,) float64
    nodes : (n_nodes,) array of objects
    """
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise ConfigError(f"graph: {type(graph).__name__} is no networkx graph")
    place = {node: at for at, node in enumerate(graph.nodes)}
    found = [(place[u], place[v], w) for u, v, w in graph.edges(data=weight, default=1)]
    src, dst = (np.fromiter((edge[end] for edge in found), np.int64, len(found)) for end in (0, 1))
    values = validation.weights(f"edge attribute {weight!r}", [edge[2] for edge in found], len(found))
    values = values.astype(np.float64, copy=False)
    if not graph.is_directed():
        back = np.flatnonzero(src != dst)
        src, dst, values = np.append(src, dst[back]), np.append(dst, src[back]), np.append(values, values[back])
    nodes = np.empty(len(place), object)
    nodes[:] = [*place]
    return src, dst, values, nodes
