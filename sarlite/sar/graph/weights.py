"""Values on a graph's edges: weights, by which its sums count, and features."""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sarlite.comm import agree, together
from sarlite.errors import ConfigError, DataError, ShapeError, raise_together
from sarlite.graph import validation
from sarlite.graph.edges import row_chunks
from sarlite.numerics import name as numerics_name
from sarlite.sar.graph.construct import outside
from sarlite.sar.schedule.state import Kept
from sarlite.tape import Tensor
from sarlite.types import Array, DType

if TYPE_CHECKING:
    from sarlite.sar.graph.graph import Graph
    from sarlite.sar.graph.layer_graph import LayerGraph

_PIECE = 1 << 20  # edges at a time


def with_edge_values(graph: "Graph", weight: Any = None, features: Any = None) -> "Graph":
    """Return this graph with weights and features on its edges, or without those that it has. Collective.

        graph, weights = Graph.from_scipy(matrix)
        model(graph.with_edge_values(weights), x)

    Weights make A_ij the weight of the edge from j to i, d_i = sum_j A_ij and d a node's weighted degree, where
    `copy_src` and `linear` are aggregated: "sum" is sum_j A_ij x_j, "mean" sum_j A_ij x_j / d_i, "sym" sum_j A_ij x_j /
    sqrt(d_i d_j). A degree of 0 counts as 1, as that of a node without edges. `fn.attend` multiplies its coefficients
    by them, after the softmax, as `GATConv` of DGL does. Other messages, and max and min, do not see them: they take
    `graph.edge_weight` as an edge input.

    Parameters
    ----------
    weight : (n_edges,) array of numbers, optional
        One a local in-edge, as of `fn.mul_edge`: of a part `weights[graph.edge_ids]`. They are constants. Floats are
        borrowed.
    features : (n_edges, n_edge_features) array of numbers, optional
        Rows likewise, for messages: `graph.aggregate(message, .., edge={"e": graph.edge_features})`. Floats are
        borrowed.

    Returns
    -------
    Graph
        It shares all else with this one, but for aggregations that are kept. Its parts by `shard`, its batches and its
        message-flow graphs have their edges' values.

    Raises
    ------
    ShapeError, DataError
        On every rank together: not one row an edge, no numbers, a value that is not finite; given on some ranks alone.
        A weight below 0 is refused where a degree is taken, "mean" and "sym".
    """
    given = [name for name, values in (("edge_weight", weight), ("edge_features", features)) if values is not None]
    together(graph.comm, lambda: check_order(graph, given[0]) if given else None)
    made = copy.copy(graph)
    made.edge_weight, made.edge_features, made._negative = checked(graph.comm, weight, features, lambda: graph.edge_ids,
                                                                   graph.n_edges)
    made.kept = Kept(graph.kept.state)
    made.__dict__.pop("weighted_degrees", None)
    return made


class EdgeValues(NamedTuple):
    """Values on some edges: weights, rows of features, and the (id, value) of the first weight below 0."""

    weight: Array | None = None
    features: Array | None = None
    negative: tuple[int, float] | None = None


def checked(comm: Any, weight: Any, features: Any, edge_ids: Callable[[], Array], n_edges: int,
            of: str = "") -> EdgeValues:
    """Return values on a rank's `n_edges` edges, once they are checked. Collective.

    `of` is what an error adds to the values' name.

    Raises
    ------
    ShapeError, DataError
        As of `with_edge_values`.
    """
    weight, features = together(comm, lambda: (_numbers(f"edge_weight{of}", weight, n_edges, 1),
                                               _numbers(f"edge_features{of}", features, n_edges, 2)))
    agree(comm, [None if a is None else (a.shape[1:], str(a.dtype)) for a in (weight, features)], f"edge values{of}")
    return EdgeValues(weight, features, None if weight is None else _first_negative(comm, weight, edge_ids))


def _numbers(name, values, n_edges, n_dims):
    """Finite numbers as float32 or float64, one or one row an edge; None stays None."""
    if values is None:
        return None
    array = outside(name, values)
    if array.ndim != n_dims or len(array) != n_edges or array.dtype.kind not in "fiub":
        rows = f"({n_edges},)" if n_dims == 1 else f"({n_edges}, n)"
        needed = f"{rows} numbers are needed, one each edge of the graph"
        raise ShapeError(f"{name}: {array.dtype} of shape {array.shape}, but {needed}")
    flat = validation.weights(name, array.reshape(-1), array.size)
    return flat.reshape(array.shape)


def check_order(graph: "LayerGraph", name: str) -> None:
    """Raise a ConfigError where values of the edges that a graph was made of could be taken for its edges' values."""
    if n := graph.mistakable:
        raise ConfigError(f"{name}: Graph.from_edges has dropped {n} of the edges and added as many, so that values of "
                          "the given edges would fit, but as other edges'; drop equal edges before")


def _first_negative(comm, weight, edge_ids):
    """(id, value) of an in-edge whose weight is below 0, the same on every rank; None where none is. Collective."""
    at = int(np.argmax(weight < 0)) if len(weight) and weight.min() < 0 else None
    own = None if at is None else (int(edge_ids()[at]), float(weight[at]))
    return next((found for found in comm.allgather(own) if found is not None), None)


def weight_as(graph: "LayerGraph", dtype: DType) -> Array:
    """Return the edges' weights as floats of `dtype`, (n_edges,); they are kept."""
    assert graph.edge_weight is not None
    if graph.edge_weight.dtype == dtype:
        return graph.edge_weight
    return normalised(graph, "sum", dtype).data


def normalised(graph: "LayerGraph", reducer: str, dtype: DType) -> Tensor:
    """Return what an edge's row counts in a weighted sum: w_ij, w_ij / d_i or w_ij / sqrt(d_i d_j). Collective.

    A constant tensor of `dtype`, which is kept: so many bytes an edge. Of "sym" a number a halo row is fetched, counted
    under "setup".

    Raises
    ------
    DataError
        On every rank that aggregates over the graph: a weight is no finite number of this dtype.
    """
    key = "weights", reducer, np.dtype(dtype), numerics_name()
    return graph.kept.get(key, lambda: _normalised(graph, reducer, dtype))


def _normalised(graph, reducer, dtype):
    with np.errstate(over="ignore"):
        found = graph.edge_factors(reducer).astype(dtype, copy=False)
    raise_together(graph.kept.state.comm, _out_of_range(graph.edge_weight, found))  # of a batch alone this rank's
    return Tensor(found, constant=True)


def _out_of_range(weight, values):
    """The error of the first of the values made of weights that is not finite, or None."""
    fits = np.isfinite(values)
    if fits.all():
        return None
    return DataError(f"edge_weight: {weight[np.argmin(fits)]} is no finite {values.dtype}, which the rows are")


def check_range(weight: Array | None, dtype: DType) -> None:
    """Raise a DataError where a weight is no finite number of `dtype`."""
    if weight is not None and np.dtype(dtype).kind == "f":
        with np.errstate(over="ignore"):
            error = _out_of_range(weight, weight.astype(dtype, copy=False))
        if error is not None:
            raise error


def degrees(graph: "LayerGraph", weight: Array) -> Array:
    """Return the sum of the weights of each row's in-edges, (n_dst,) float64. Nothing is fetched."""
    indptr, numbers = np.concatenate([[0], np.cumsum(graph.in_degrees)]), graph.edges_of(graph.plan.local).numbers
    return row_sums(indptr, lambda edges: weight[edges if numbers is None else numbers[edges]])


def row_sums(indptr: Array, values: Any) -> Array:
    """Return (n_rows,) float64: of a CSR the sum over each row of values(slice of edges), a piece at a time.

    A row's sum has the same bits in any order of its edges, which differs between divisions.
    """
    out = np.zeros(len(indptr) - 1)
    for low, high in row_chunks(indptr, _PIECE):
        found = np.asarray(values(slice(int(indptr[low]), int(indptr[high]))), np.float64)
        out[low:high] = _sums(indptr[low : high + 1] - indptr[low], found)
    return out


def _sums(indptr, values):
    """The sum of each row's values as whole numbers, which add up exactly: of 2^-60 of the row's largest one."""
    n = np.diff(indptr)
    some, starts = n > 0, indptr[:-1][n > 0]
    total = np.zeros(len(n))
    if not len(starts):
        return total
    exponents = np.frexp(np.maximum.reduceat(np.abs(values), starts))[1]
    left = np.ldexp(values, np.repeat(30 - exponents, n[some]))
    upper = np.rint(left)
    left -= upper
    left *= 2.0**30
    upper, lower = (np.add.reduceat(part.astype(np.int64), starts) for part in (upper, np.rint(left, out=left)))
    with np.errstate(over="ignore"):
        total[some] = np.ldexp(upper + lower * 2.0**-30, exponents - 30)
    return total


def check_negative(graph: "LayerGraph") -> None:
    """Raise a DataError where a weight is below 0, the same on every rank."""
    if graph._negative is not None:
        edge, value = graph._negative
        raise DataError(f"edge_weight of edge {edge} is {value}: weights whose sums are degrees must be 0 or more")


def positive(degrees: Array) -> Array:
    """Return the degrees, with 1 in place of 0."""
    return np.where(degrees == 0, 1.0, degrees)


def factors(graph: "LayerGraph", reducer: str) -> Array:
    """Return `normalised` as float64, new but for "sum". Collective."""
    assert graph.edge_weight is not None
    if reducer == "sum":
        return graph.edge_weight
    check_negative(graph)
    indptr, numbers = np.concatenate([[0], np.cumsum(graph.in_degrees)]), graph.edges_of(graph.plan.local).numbers
    inverse = 1.0 / positive(graph.weighted_degrees)
    of_rows = np.repeat(inverse if reducer == "mean" else np.sqrt(inverse), np.diff(indptr))
    out = _labelled(of_rows, numbers)
    out *= graph.edge_weight
    if reducer == "sym":
        with graph.profile.phase("setup"):
            if graph.bipartite:
                inverse = 1.0 / positive(graph.out_degrees(weight_as(graph, np.float64)))
            columns = graph.of_columns(np.sqrt(inverse))
        for block, found in zip(graph.blocks, columns):
            out[block.labels] *= found[block.indices]
    return out


def _labelled(values, numbers):
    """Put what stands in the order of the rows' edges in that of edge values."""
    if numbers is None:
        return values
    out = np.empty_like(values)
    out[numbers] = values
    return out
