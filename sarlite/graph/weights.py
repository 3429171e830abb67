"""Checks and sums of edge values: weights, features and times. A weighted sum multiplies each message by its edge's weight."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sarlite.comm import Communicator, agree, together
from sarlite.errors import ConfigError, DataError, ShapeError
from sarlite.graph.array_checks import check_array
from sarlite.structure import validation
from sarlite.structure.edges import row_chunks
from sarlite.types import Array, ArrayLike, DType

_CHUNK = 1 << 20  # number of edges that are summed at a time


class EdgeValues(NamedTuple):
    """Values of a rank's in-edges: weights, features and times, in the order of `edge_ids`.

    Attributes
    ----------
    weight : (n_edges,) float array, or None
    features : (n_edges, n_edge_features) float array, or None
    negative : (int, float), or None
        Global id and weight of one edge, of any rank, whose weight is negative; the same on every rank. None if no
        weight is negative.
    time : (n_edges,) int64 array, or None
    """

    weight: Array | None = None
    features: Array | None = None
    negative: tuple[int, float] | None = None
    time: Array | None = None

    def check_degrees(self) -> None:
        """Raise a DataError on every rank if an edge weight on any rank is negative, because degrees are sums of weights."""
        if self.negative is not None:
            edge, value = self.negative
            raise DataError(f"edge_weight of edge {edge} is {value}: weights whose sums are degrees must be 0 or more")

    def subset(self, index: Array | slice) -> "tuple[Array | None, Array | None, Array | None]":
        """Return (weights, features, times) of the edges selected by `index`, an index array or slice; None in place of values that
        the edges do not have.
        """
        weight, features, time = (None if values is None else values[index]
                                  for values in (self.weight, self.features, self.time))
        return weight, features, time


def check_values(comm: Communicator, weight: ArrayLike | None, features: ArrayLike | None,
                 edge_ids: Callable[[], Array], n_edges: int, owner: str = "", time: ArrayLike | None = None) -> EdgeValues:
    """Return this rank's edge values as EdgeValues, checked on all ranks together; None stands for no values. An error starts with
    the kind of values and `owner`, such as " of" and a relation, and names an edge by its global id from edge_ids(). Collective.

    Parameters
    ----------
    comm : Communicator
    weight, features, time : array, or None
    edge_ids : callable
        Function () -> (n_edges,) global ids of the edges; called only for the error of a negative weight.
    n_edges : int
    owner : str
        Text that errors append to the name of the values, such as " of" and a relation.

    Raises
    ------
    ShapeError, DataError
        See `Graph.with_edge_values`.
    """
    weight, features, time = together(comm, lambda: (_finite(f"edge_weight{owner}", weight, n_edges, 1),
                                                     _finite(f"edge_features{owner}", features, n_edges, 2),
                                                     check_times(f"edge_time{owner}", time, n_edges)))
    kinds = [None if values is None else (values.shape[1:], str(values.dtype)) for values in (weight, features, time)]
    agree(comm, kinds, f"edge values{owner}")
    return EdgeValues(weight, features, None if weight is None else _first_negative(comm, weight, edge_ids), time)


def check_times(name: str, times: ArrayLike | None, n: int) -> Array | None:
    """Return `times` of `n` edges as an int64 array: integers, or NumPy dates as nanoseconds since 1970. None stays None. Errors
    start with `name`.

    Raises
    ------
    ShapeError, DataError
        The times are not `n` whole numbers or dates; one is NaT, or its nanoseconds do not fit 64 bits.
    """
    if times is None:
        return None
    array = np.asarray(times)
    if array.shape != (n,) or (n and array.dtype.kind not in "iuM"):
        raise ShapeError(f"{name}: {array.dtype} of shape {array.shape}, but ({n},) whole numbers or dates are needed")
    if array.dtype.kind == "M":
        nanoseconds = array.astype("M8[ns]")
        wrong = np.isnat(nanoseconds) | (nanoseconds.astype(array.dtype) != array)
        array = nanoseconds.view(np.int64)
    else:
        wrong = array > np.iinfo(np.int64).max if array.dtype == np.uint64 else np.zeros(n, bool)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise DataError(f"{name}: entry {at} is {np.asarray(times)[at]}, which does not fit a time of 64 bits")
    return np.ascontiguousarray(array, np.int64)


def _finite(name: str, values: ArrayLike | None, n_edges: int, n_dims: int) -> Array | None:
    """Return edge values as float32 or float64, (n_edges,) if `n_dims` is 1, (n_edges, n) if 2; None stays None. An error that
    starts with `name` refuses another shape or dtype, and values that are not finite.
    """
    if values is None:
        return None
    array = check_array(name, values)
    if array.ndim != n_dims or len(array) != n_edges or array.dtype.kind not in "fiub":
        rows = f"({n_edges},)" if n_dims == 1 else f"({n_edges}, n)"
        needed = f"{rows} numbers are needed, one each edge of the graph"
        raise ShapeError(f"{name}: {array.dtype} of shape {array.shape}, but {needed}")
    flat = validation.weights(name, array.reshape(-1), array.size)
    return flat.reshape(array.shape)


def _first_negative(comm: Communicator, weight: Array,
                    edge_ids: Callable[[], Array]) -> tuple[int, float] | None:
    """Return (global id, weight) of an edge with a negative weight: the first one of the lowest rank that has one; None if no rank
    has one. edge_ids() returns this rank's global ids. Collective.
    """
    at = int(np.argmax(weight < 0)) if len(weight) and weight.min() < 0 else None
    local = None if at is None else (int(edge_ids()[at]), float(weight[at]))
    return next((negative for negative in comm.allgather(local) if negative is not None), None)


def check_unambiguous(ambiguous_edge_count: int, name: str) -> None:
    """Raise a ConfigError, which starts with `name`, if `ambiguous_edge_count` is above 0: `from_edges` then dropped as many edges
    as it added, so values in the caller's order would have the right number and belong to wrong edges.
    """
    if ambiguous_edge_count:
        raise ConfigError(f"{name}: Graph.from_edges has dropped {ambiguous_edge_count} of the edges and added as "
                          "many, so that values of the given edges would fit, but as other edges'; drop equal edges "
                          "before")


def range_error(weight: Array, values: Array) -> DataError | None:
    """Return a DataError that names the first entry of `weight` whose converted value in `values`, such as a float32, is not
    finite; None if all are finite.

    Parameters
    ----------
    weight, values : (n_edges,) float arrays
        Edge weights, and numbers computed from them, such as the weights as another dtype.
    """
    finite = np.isfinite(values)
    if finite.all():
        return None
    return DataError(f"edge_weight: {weight[np.argmin(finite)]} is not a finite {values.dtype}, which the rows are")


def check_range(weight: Array | None, dtype: DType) -> None:
    """Raise a DataError if one of the weights is not a finite number of `dtype`; None and integer dtypes pass."""
    if weight is not None and np.dtype(dtype).kind == "f":
        with np.errstate(over="ignore"):
            error = range_error(weight, weight.astype(dtype, copy=False))
        if error is not None:
            raise error


def positive(degrees: Array) -> Array:
    """Return a copy of `degrees` with each 0 replaced by 1."""
    return np.where(degrees == 0, 1.0, degrees)


def row_sums(indptr: Array, values: Callable[[slice], Array]) -> Array:
    """Return the sum of the edge values in each CSR row, (n_rows,) float64, which does not depend on the order of the edges.
    values(s) returns the values of the edges in the slice s.

    Parameters
    ----------
    indptr : (n_rows + 1,) int64
    values : callable
        Function of a slice of the CSR's edges -> the values of these edges.

    Notes
    -----
    The bits of a sum do not depend on the order of the row's edges. That order depends on the partition, and results
    must not.
    """
    out = np.zeros(len(indptr) - 1)
    for low, high in row_chunks(indptr, _CHUNK):
        chunk = np.asarray(values(slice(int(indptr[low]), int(indptr[high]))), np.float64)
        out[low:high] = _fixed_point_sums(indptr[low : high + 1] - indptr[low], chunk)
    return out


def _fixed_point_sums(indptr: Array, values: Array) -> Array:
    """Return the sum of `values` in each row of a CSR. The sum is added in integer arithmetic, as multiples of 2^(e - 60) where 2^e
    is above all values of the row, so that the order does not matter.
    """
    lengths = np.diff(indptr)
    nonempty, starts = lengths > 0, indptr[:-1][lengths > 0]
    sums = np.zeros(len(lengths))
    if not len(starts):
        return sums
    exponents = np.frexp(np.maximum.reduceat(np.abs(values), starts))[1]
    rest = np.ldexp(values, np.repeat(30 - exponents, lengths[nonempty]))
    upper = np.rint(rest)
    rest -= upper
    rest *= 2.0**30
    upper, lower = (np.add.reduceat(part.astype(np.int64), starts) for part in (upper, np.rint(rest, out=rest)))
    with np.errstate(over="ignore"):
        sums[nonempty] = np.ldexp(upper + lower * 2.0**-30, exponents - 30)
    return sums


def in_edge_order(values: Array, numbers: Array | None) -> Array:
    """Return edge `values`, which are in CSR order, in the order of the graph's edge values: values[k] goes to position numbers[k].
    If `numbers` is None, both orders are the same.

    Parameters
    ----------
    values : (n_edges,) array
    numbers : (n_edges,) int array, or None
        Index of each CSR edge in edge values; None if the two orders are the same.
    """
    if numbers is None:
        return values
    out = np.empty_like(values)
    out[numbers] = values
    return out
