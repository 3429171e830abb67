"""Correct operations in NumPy, in the dtype of the test case, with edges summed in a chosen order; tests plant bugs in them."""

import numpy as np


class Sparse:
    """Edges of an oracle test case, with sums and maxima of rows over these edges, added in a chosen order."""

    def __init__(self, case, order=None):
        self.src, self.dst = case.src, case.dst
        self.order = np.arange(len(self.src)) if order is None else order
        self.n_src, self.n_dst = case.n_src, case.n_dst

    def into(self, row_of_edge, n_rows, edge_rows):
        """Return (n_rows, ...) sums: edge_rows[e] is added to row row_of_edge[e], edge by edge in the chosen order."""
        out = np.zeros((n_rows, *edge_rows.shape[1:]), edge_rows.dtype)
        np.add.at(out, row_of_edge[self.order], edge_rows[self.order])
        return out

    def greatest(self, edge_rows):
        """Return the maximum of `edge_rows` over each destination's edges, (n_dst, ...); -Inf without edges."""
        out = np.full((self.n_dst, *edge_rows.shape[1:]), -np.inf, edge_rows.dtype)
        np.maximum.at(out, self.dst, edge_rows)
        return out


def wide(row_values, array):
    """Reshape `row_values`, one number for each row of `array`, so that it broadcasts with `array`."""
    return row_values.reshape(row_values.shape + (1,) * (array.ndim - row_values.ndim))


def degrees(case, index, n):
    return np.maximum(np.bincount(index, minlength=n), 1).astype(case.dtype)


def messages(case, edges, x):
    rows = x[edges.src]
    return rows * wide(case.weight, rows) if "weight" in case.arrays else rows


def scale(case, edges):
    """Return the factor of each edge's message, (n_edges,), in the oracle case's mean or symmetric sum; None for a plain sum."""
    if case.reduce == "mean":
        return (1 / degrees(case, edges.dst, edges.n_dst)).astype(case.dtype)[edges.dst]
    if case.reduce == "sym":
        out = 1 / np.sqrt(degrees(case, edges.src, edges.n_src), dtype=case.dtype)
        return out[edges.src] * (1 / np.sqrt(degrees(case, edges.dst, edges.n_dst), dtype=case.dtype))[edges.dst]
    return None


def spmm(case, order=None):
    edges, x = Sparse(case, order), case.x
    if case.reduce in ("max", "min"):
        return extremum(case, edges, x)[0]
    rows, by_edge = messages(case, edges, x), scale(case, edges)
    if case.reduce == "mean":
        return edges.into(edges.dst, edges.n_dst, rows) / wide(degrees(case, edges.dst, edges.n_dst), rows)
    return edges.into(edges.dst, edges.n_dst, rows if by_edge is None else rows * wide(by_edge, rows))


def spmm_vjp(case, g, order=None):
    edges, x = Sparse(case, order), case.x
    if case.reduce in ("max", "min"):
        return {"x": edges.into(edges.src, edges.n_src, g[edges.dst] * winners(case, edges, x))}
    by_edge = scale(case, edges)
    rows = g[edges.dst] if by_edge is None else g[edges.dst] * wide(by_edge, g)
    gradients = {"x": edges.into(edges.src, edges.n_src, messages_back(case, rows))}
    if "weight" in case.arrays:
        gradients["weight"] = (rows * x[edges.src]).sum(1, dtype=rows.dtype)
    return gradients


def messages_back(case, rows):
    return rows * wide(case.weight, rows) if "weight" in case.arrays else rows


def extremum(case, edges, x):
    """Return (each row's maximum or minimum, 0 without edges; messages, negated for a minimum; each row's maximum of these messages).

    For a minimum, messages and maxima are negated.
    """
    sign = x.dtype.type(-1 if case.reduce == "min" else 1)
    rows = sign * messages(case, edges, x)
    top = edges.greatest(rows)
    empty = np.bincount(edges.dst, minlength=edges.n_dst) == 0
    return sign * np.where(wide(empty, top), 0, top).astype(x.dtype), rows, top


def winners(case, edges, x, marks_ties=False):
    """Return (n_edges, width) in the case's dtype: 1 at the edge that gives its row's maximum, and with `marks_ties` at all ties, else 0.

    Otherwise ties go to the edge of the lowest source, then to the first edge.
    """
    _, rows, top = extremum(case, edges, x)
    ties = rows == top[edges.dst]
    if marks_ties:
        return ties.astype(x.dtype)
    rank = np.empty(len(edges.src), np.int64)
    rank[np.lexsort((np.arange(len(edges.src)), edges.src))] = np.arange(len(edges.src))
    place = np.where(ties, wide(rank, ties), len(rank))
    lowest = np.full(top.shape, len(rank))
    np.minimum.at(lowest, edges.dst, place)
    return (ties & (place == lowest[edges.dst])).astype(x.dtype)


def softmax_of(edges, scores):
    top = edges.greatest(scores)
    top = np.where(np.isfinite(top), top, 0).astype(scores.dtype)
    with np.errstate(under="ignore", invalid="ignore"):
        weights = np.exp(scores - top[edges.dst])
    total = edges.into(edges.dst, edges.n_dst, weights)
    return weights / np.where(total > 0, total, 1).astype(scores.dtype)[edges.dst]


def softmax_back(edges, p, g):
    return p * (g - edges.into(edges.dst, edges.n_dst, p * g)[edges.dst])


def softmax(case, order=None):
    return softmax_of(Sparse(case, order), case.scores)


def softmax_vjp(case, g, order=None):
    edges = Sparse(case, order)
    return {"scores": softmax_back(edges, softmax_of(edges, case.scores), g)}


def sddmm(case, order=None):
    edges, x, y = Sparse(case), case.x, case.y
    return (x[edges.src] * y[edges.dst])[:, _columns(x, order)].sum(1, dtype=x.dtype)


def sddmm_vjp(case, g, order=None):
    edges, x, y = Sparse(case, order), case.x, case.y
    g = g[:, None]
    return {"x": edges.into(edges.src, edges.n_src, g * y[edges.dst]), "y": edges.into(edges.dst, edges.n_dst, g * x[edges.src])}


def _columns(x, order):
    return slice(None) if order is None else np.random.default_rng(len(order)).permutation(x.shape[1])


def gat(case, order=None):
    edges = Sparse(case, order)
    p = softmax_of(edges, gat_scores(case, edges))
    p = p * case.mask if "mask" in case.arrays else p
    return edges.into(edges.dst, edges.n_dst, case.z[edges.src] * p[..., None])


def gat_scores(case, edges):
    raw = case.el[edges.src] + case.er[edges.dst]
    return np.where(raw > 0, raw, raw.dtype.type(case.slope) * raw)


def gat_vjp(case, g, order=None):
    edges, z = Sparse(case, order), case.z
    p = softmax_of(edges, gat_scores(case, edges))
    mask = case.mask if "mask" in case.arrays else np.ones_like(p)
    dp = (g[edges.dst] * z[edges.src]).sum(2, dtype=z.dtype) * mask
    slope = np.where(case.el[edges.src] + case.er[edges.dst] > 0, 1, case.slope).astype(z.dtype)
    ds = softmax_back(edges, p, dp) * slope
    return {"z": edges.into(edges.src, edges.n_src, g[edges.dst] * (p * mask)[..., None]), "el": edges.into(edges.src, edges.n_src, ds),
            "er": edges.into(edges.dst, edges.n_dst, ds)}


KERNELS = {"spmm": (spmm, spmm_vjp), "softmax": (softmax, softmax_vjp), "sddmm": (sddmm, sddmm_vjp), "attention": (gat, gat_vjp)}
CORRECT = (
    ("spmm", {"reduce": "sum"}), ("spmm", {"reduce": "sum", "weighted": True}), ("spmm", {"reduce": "mean"}), ("spmm", {"reduce": "sym"}),
    ("spmm", {"reduce": "max"}), ("spmm", {"reduce": "min"}), ("softmax", {}), ("sddmm", {}), ("attention", {}),
    ("attention", {"masked": True}),
)  # fmt: skip
