"""Evaluation of expressions: the protocol `Arithmetic`, its result `BoundedArray`, and arithmetic in floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sarlite.oracle.edge_structure import Index
from sarlite.oracle.formats import rounded
from sarlite.types import Array

CHUNK = 1 << 22  # elements of an edge-wise product that are in memory at once
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class BoundedArray:
    """An array of results with an error bound for each element.

    Attributes
    ----------
    value : array
        The result, in float64 or longdouble.
    error : array, float or None
        Largest difference from `value` that a right result may have: 0 if the element is exact, Inf if it is
        undecided. None if there is no bound.
    magnitude : array or None
        Sum of the absolute values of all terms of the element.
    """

    value: Array
    error: Array | float | None = 0.0
    magnitude: Array | None = None

    @property
    def bound(self) -> Array:
        """The error bound of each element, an array of the shape of `value`; NaN if there is no bound."""
        return np.broadcast_to(np.nan if self.error is None else self.error, self.value.shape)


class Arithmetic(Protocol[T]):
    """Protocol of arithmetics, which evaluate expressions on one kind of number, T, such as plain floats or numbers with error bounds.

    An arithmetic also has one method for each primitive of `expression`, by the name `Expr.op`. Such a method takes the
    numbers of the arguments and the options of the expression, and returns a number.
    """

    def from_array(self, value: Array) -> T:
        """Convert an input array to the arithmetic's kind of number. The input counts as exact."""

    def constant(self, value: Array) -> T:
        """Convert a constant of the formula to the arithmetic's kind of number."""

    def rounded(self, x: T, dtype: str) -> T:
        """Return the number x rounded to the floating type `dtype`, such as "float32"."""

    def result(self, x: T, rounds: int = 0) -> BoundedArray:
        """Convert x, an array or other value of this arithmetic, to a BoundedArray of values and error bounds. The bounds also
        cover `rounds` roundings that the caller applies to x later.
        """


class FloatArithmetic:
    """Arithmetic on plain arrays of float64 or longdouble, with one rounding for each operation.

    The result is exact if all partial results are numbers of the dtype.
    """

    def __init__(self, dtype: npt.DTypeLike = np.float64) -> None:
        self.dtype = np.dtype(dtype)

    def from_array(self, value: Array) -> Array:
        return np.asarray(value, self.dtype)

    constant = from_array

    def rounded(self, value: Array, dtype: str) -> Array:
        return rounded(value, dtype).astype(self.dtype)

    def result(self, value: Array, rounds: int = 0) -> BoundedArray:
        return BoundedArray(value)

    # ---- by element

    negative, multiply, divide, matmul = map(staticmethod, (np.negative, np.multiply, np.divide, np.matmul))
    exp, log, sqrt, tanh = map(staticmethod, (np.exp, np.log, np.sqrt, np.tanh))

    def add(self, first, *rest):
        return sum(rest, first)

    def leaky(self, x, slope):
        return np.where(x > 0, x, np.where(np.isnan(x), x, slope * x if slope else 0))

    def leaky_gradient(self, g, x, slope):
        return np.where(x > 0, g, slope * g if slope else 0)

    def where(self, x, mask):
        return np.where(mask, x, self.dtype.type(0))

    def barrier(self, x):
        return x

    # ---- dense

    def sum(self, x, axes):
        return np.sum(x, axis=axes, keepdims=True)

    def transpose(self, x):
        return x.T

    def reshape(self, x, shape):
        return x.reshape(shape)

    def broadcast(self, x, shape):
        return np.broadcast_to(x, shape)

    def concat(self, *parts, axis):
        return np.concatenate(parts, axis)

    def slice(self, x, start, stop, axis):
        return x[(slice(None),) * axis + (slice(start, stop),)]

    # ---- by edges

    def gather(self, x, index):
        return x[index.rows]

    def scatter_sum(self, x, index):
        return self._product(None, index.order, index, x)

    def propagate(self, x, weight=None, *, source, target):
        if weight is None:
            return self._product(None, source.rows[target.order], target, x)
        heads = weight.ndim - 1
        lead = int(np.prod(weight.shape[1:]))
        weight, rows = weight[target.order].reshape(-1, lead), source.rows[target.order]
        flat = x.reshape(len(x), lead, int(np.prod(x.shape[1 + heads :])))
        out = [self._product(weight[:, k], rows, target, flat[:, k]) for k in range(lead)]
        return np.stack(out, 1).reshape(target.n, *x.shape[1:]) if out else np.zeros((target.n, *x.shape[1:]),
                                                                                     self.dtype)

    def _product(self, weight: Array | None, columns: Array, index: Index, x: Array) -> Array:
        """Return A @ x for the sparse CSR matrix A with the values `weight` (None: ones), column numbers `columns` and `index.indptr`."""
        data = np.ones(len(columns), self.dtype) if weight is None else np.ascontiguousarray(weight)
        from scipy import sparse  # here, as its import takes longer than the oracle's

        matrix = sparse.csr_array((data, columns, index.indptr), shape=(index.n, len(x)))
        flat = np.ascontiguousarray(x).reshape(len(x), int(np.prod(x.shape[1:])))
        return (matrix @ flat).reshape(index.n, *x.shape[1:])

    def edge_dot(self, a, b, index_a, index_b, heads):
        out = np.empty((len(index_a.rows), *a.shape[1 : 1 + heads]), self.dtype)
        step = max(1, CHUNK // max(1, int(np.prod(a.shape[1:]))))
        for start in range(0, len(out), step):
            i, j = index_a.rows[start : start + step], index_b.rows[start : start + step]
            out[start : start + step] = (a[i] * b[j]).sum(tuple(range(1 + heads, a.ndim)))
        return out

    def scatter_max(self, x, index, ties=None, rank=None):
        return by_row(np.maximum, x, index)

    def softmax(self, scores, index, epsilon):
        top = by_row(np.maximum, scores, index)
        e = np.exp(np.where(scores == -np.inf, scores, scores - top[index.rows]))
        total = self.scatter_sum(e, index) + self.dtype.type(epsilon)
        return np.where(e == 0, e, e / total[index.rows])

    def undecided_if_masked(self, x, scores, index):
        return x

    def select(self, g, x, index, ties, rank):
        won = greatest(x, self.scatter_max(x, index), index)
        if ties == "all":
            g = g / np.maximum(self.scatter_sum(won.astype(self.dtype), index), 1)
        else:
            won = first(won, index, rank)
        return np.where(won, g[index.rows], self.dtype.type(0))


def by_row(reduce: np.ufunc, x: Array, index: Index, empty: float = 0) -> Array:
    """Return for each row the reduction of its entries in x by the ufunc `reduce`, or `empty` for a row without entries, shape
    (n, ...). `index` has the row of each entry.
    """
    out = np.full((index.n, *x.shape[1:]), empty, x.dtype)
    full = np.flatnonzero(index.counts)
    if len(full):
        out[full] = reduce.reduceat(x[index.order], index.indptr[full])
    return out


def column(of_rows: npt.ArrayLike, ndim: int) -> Array:
    """Reshape `of_rows`, one number for each of n rows, to `ndim` axes, shape (n, 1, ...), so that it broadcasts with an array of
    n rows.
    """
    return np.reshape(of_rows, (-1, *[1] * (ndim - 1)))


def all_masked(scores: Array, index: Index) -> Array:
    """Return a mask, shape (k, ...), of the entries of rows whose scores are all -Inf; `index` has each entry's row."""
    return (by_row(np.maximum, scores, index) == -np.inf)[index.rows]


def greatest(x: Array, best: Array, index: Index) -> Array:
    """Return a mask, shape (k, ...), of the entries of x that equal `best`, the maximum of each row, or are NaN; `index` has each
    entry's row.
    """
    return (x == best[index.rows]) | np.isnan(x)


def first(among: Array, index: Index, rank: Array | None) -> Array:
    """Return a mask, shape (k, ...), that selects one entry for each row out of the mask `among`: the entry with the lowest sort
    key `rank`, and among equal keys the first. If `rank` is None, it is the first entry. `index` has the row of each entry.
    """
    order = index.order if rank is None else np.lexsort((rank, index.rows))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    place = np.where(among, column(place, among.ndim), len(order))
    return among & (place == by_row(np.minimum, place, index)[index.rows])
