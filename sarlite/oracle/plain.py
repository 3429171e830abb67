"""`Plain`: what each primitive computes, in one floating type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sarlite.oracle.edge_structure import Index
from sarlite.oracle.formats import rounded
from sarlite.types import Array

CHUNK = 1 << 22  # numbers of an edge-wise product that are held at once


@dataclass(frozen=True, eq=False)
class Number:
    """An array of results.

    Attributes
    ----------
    value : array
        float64 or longdouble.
    error : array or 0
        The most by which a result may differ from `value`; inf where nothing can be said.
    magnitude : array or None
        The sum of the absolute values of all terms, whatever their association.
    """

    value: Array
    error: Any = 0.0
    magnitude: Any = None


class Plain:
    """Values in float64 or longdouble, one rounding an operation: exact where all partial results are."""

    def __init__(self, dtype: Any = np.float64) -> None:
        self.dtype = np.dtype(dtype)

    def given(self, value: Array) -> Array:
        return np.asarray(value, self.dtype)

    constant = given

    def rounded(self, value: Array, dtype: str) -> Array:
        return rounded(value, dtype).astype(self.dtype)

    def result(self, value: Array, rounds: int = 0) -> Number:
        return Number(value)

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

    def settled(self, x):
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

    def _product(self, weight, columns, index, x):
        """The sparse matrix of `weight`, or ones, by x: its row i has the entries of row i of the index, at `columns`.
        """
        data = np.ones(len(columns), self.dtype) if weight is None else np.ascontiguousarray(weight)
        from scipy import sparse  # takes longer to import than all of the oracle

        matrix = sparse.csr_array((data, columns, index.indptr), shape=(index.n, len(x)))
        flat = np.ascontiguousarray(x).reshape(len(x), int(np.prod(x.shape[1:])))
        return (matrix @ flat).reshape(index.n, *x.shape[1:])

    def edge_dot(self, a, b, of_a, of_b, heads):
        out = np.empty((len(of_a.rows), *a.shape[1 : 1 + heads]), self.dtype)
        step = max(1, CHUNK // max(1, int(np.prod(a.shape[1:]))))
        for start in range(0, len(out), step):
            i, j = of_a.rows[start : start + step], of_b.rows[start : start + step]
            out[start : start + step] = (a[i] * b[j]).sum(tuple(range(1 + heads, a.ndim)))
        return out

    def scatter_max(self, x, index, ties=None, rank=None):
        return by_row(np.maximum, x, index)

    def softmax(self, scores, index, epsilon):
        top = by_row(np.maximum, scores, index)
        e = np.exp(np.where(scores == -np.inf, scores, scores - top[index.rows]))
        total = self.scatter_sum(e, index) + self.dtype.type(epsilon)
        return np.where(e == 0, e, e / total[index.rows])

    def promised(self, x, scores, index):
        return x

    def select(self, g, x, index, ties, rank):
        won = greatest(x, self.scatter_max(x, index), index)
        if ties == "all":
            g = g / np.maximum(self.scatter_sum(won.astype(self.dtype), index), 1)
        else:
            won = first(won, index, rank)
        return np.where(won, g[index.rows], self.dtype.type(0))


def by_row(reduce: np.ufunc, x: Array, index: Index, empty: float = 0) -> Array:
    """(n, ...) the entries of each row reduced; `empty` where there is none."""
    out = np.full((index.n, *x.shape[1:]), empty, x.dtype)
    full = np.flatnonzero(index.counts)
    if len(full):
        out[full] = reduce.reduceat(x[index.order], index.indptr[full])
    return out


def column(of_rows: Any, ndim: int) -> Array:
    """(n, 1, ...) of `ndim` axes: one number a row, to be broadcast with the rows of an array."""
    return np.reshape(of_rows, (-1, *[1] * (ndim - 1)))


def all_masked(scores: Array, index: Index) -> Array:
    """(k, ...) bool: the entries of rows whose scores are all -Inf."""
    return (by_row(np.maximum, scores, index) == -np.inf)[index.rows]


def greatest(x: Array, best: Array, index: Index) -> Array:
    """(k, ...) bool: the entries that are the greatest of their row; in a row with NaN, the entries that are NaN."""
    return (x == best[index.rows]) | np.isnan(x)


def first(among: Array, index: Index, rank: Array | None) -> Array:
    """(k, ...) bool: the first by (rank, place) of each row's entries `among`."""
    order = index.order if rank is None else np.lexsort((rank, index.rows))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    place = np.where(among, column(place, among.ndim), len(order))
    return among & (place == by_row(np.minimum, place, index)[index.rows])
