"""Aggregations in plain NumPy, edge by edge: the expected values with which tests of random programs compare the library's.

A `Dense` has the methods of `graph_programs.Ranked`, for whole arrays; its choices are `slopes.Frozen`.
"""

import math
from typing import NamedTuple

import numpy as np

from tests.helpers.tape.slopes import LONG, Unclear


class Edges(NamedTuple):
    src: np.ndarray
    dst: np.ndarray
    n_src: int
    n_dst: int
    bipartite: bool
    weight: np.ndarray | None = None
    features: np.ndarray | None = None

    @property
    def n_edges(self):
        return len(self.src)


class Dense:
    """Aggregations over a set of edges as NumPy formulas: expected values. `frozen` records their choices, such as an argmax."""

    def __init__(self, edges, frozen):
        self.edges, self.frozen = edges, frozen

    def copy_src(self, x, reducer, exact=False):
        m = x[self.edges.src]
        if reducer in ("max", "min"):
            return self.reduce(m, reducer, exact)
        return self.weighed(m, reducer)

    def linear(self, x, w, reducer, evaluation):
        return self.weighed((x @ w)[self.edges.src], reducer)

    def weighed(self, messages, reducer):
        """Return each node's sum, mean or symmetric sum (by `reducer`) of `messages`, where an edge of weight w counts w times."""
        counts = np.ones(self.edges.n_edges) if self.edges.weight is None else self.edges.weight
        if reducer != "sum":
            d_dst = self._degrees(self.edges.dst, counts, self.edges.n_dst)
            d_src = self._degrees(self.edges.src, counts, self.edges.n_src) if self.edges.bipartite else d_dst
            counts = counts / (
                d_dst[self.edges.dst] if reducer == "mean" else np.sqrt(d_dst[self.edges.dst] * d_src[self.edges.src])
            )
        return self.add_up(messages * _column(counts, messages))

    def mul_edge(self, x, w, reducer):
        m = x[self.edges.src]
        return self.reduce(m * _column(w, m), reducer)

    def attend(self, z, src, dst, slope, features=None, attn_edge=None):
        score = src[self.edges.src] + dst[self.edges.dst]
        score = score if features is None else score + features @ attn_edge
        score = np.where(self.frozen(score > 0, score), score, slope * score)
        value = z[self.edges.src] * np.ones((1, score.shape[1], 1))
        if self.edges.weight is not None:
            value = value * self.edges.weight.reshape(-1, 1, 1)
        return self.softmax(score, value)

    def attend_linear(self, x, w, src_w, dst, slope):
        return self.attend((x @ w).reshape(len(x), dst.shape[1], w.shape[1] // dst.shape[1]), x @ src_w, dst, slope)

    def message(self, function, reducer, src, dst, edge):
        out = function(
            self,
            {name: x[self.edges.src] for name, x in src.items()},
            {name: x[self.edges.dst] for name, x in dst.items()},
            edge,
        )
        return self.softmax(*out) if reducer == "softmax" else self.reduce(out, reducer)

    # ---- over each node's in-edges

    def reduce(self, m, reducer, exact=False):
        if reducer in ("sum", "mean"):
            out = self.add_up(m)
            return (
                out / _column(self._degrees(self.edges.dst, np.ones(self.edges.n_edges), self.edges.n_dst), out)
                if reducer == "mean"
                else out
            )
        sign, out = (1 if reducer == "max" else -1), np.zeros((self.edges.n_dst, *m.shape[1:]), m.dtype)
        for i in range(self.edges.n_dst):
            into = self.into(i)
            if len(into):
                values = sign * m[into]
                best = values.max(0)
                gap = values - best
                if not exact and ((gap == 0).sum(0) > 1)[best != 0].any() and self.frozen._next is None:
                    raise Unclear
                won = self.frozen(into[values.argmax(0)], gap)
                out[i] = np.take_along_axis(m, won[None], 0)[0]
        return out

    def add_up(self, m):
        out = np.zeros((self.edges.n_dst, *m.shape[1:]), m.dtype)
        for e, i in enumerate(self.edges.dst):
            out[i] += m[e]
        return out

    def softmax(self, score, value):
        out = np.zeros((self.edges.n_dst, *value.shape[1:]), LONG)
        for i in range(self.edges.n_dst):
            into = self.into(i)
            if len(into):
                p = np.exp(score[into] - self.frozen(score[into].max(0)))
                out[i] = (_column(p / p.sum(0), value) * value[into]).sum(0)
        return out

    def into(self, i):
        """Return the indices of the edges into node `i`, by ascending source; edges of equal source keep their order."""
        edge_ids = np.flatnonzero(self.edges.dst == i)
        return edge_ids[np.argsort(self.edges.src[edge_ids], kind="stable")]

    def _degrees(self, ends, counts, n):
        degrees = np.zeros(n)
        for e, i in enumerate(ends):
            degrees[i] += counts[e]
        return np.where(degrees == 0, 1, degrees)

    # ---- what expressions ask for

    def constant(self, make):
        """Return `make()`; later evaluations of the formula, for numerical derivatives, return the first evaluation's value instead."""
        return self.frozen(make())

    def relu(self, x):
        return np.where(self.frozen(x > 0, x), x, 0)

    def abs(self, x):
        return x * self.frozen(np.sign(x), x)

    def maximum(self, a, b):
        a, b = np.broadcast_arrays(a, b)
        return np.where(self.frozen(a >= b, a - b), a, b)

    def take(self, table, numbers):
        return table[numbers]

    def reshape(self, x, *shape):
        return in_rows(x, shape)


def _column(a, m):
    return a.reshape(*a.shape, *[1] * (m.ndim - a.ndim))


def in_rows(x, shape):
    """Reshape each row of x to `shape`, also if x has no rows; -1 in `shape` stands for the number of values of a row."""
    return x.reshape(len(x), *(math.prod(x.shape[1:]) if n == -1 else n for n in shape))
