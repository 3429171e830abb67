"""References for the kernels' tests: small graphs, formulas in float64, and calls of the attention kernels as a layer makes them."""

import numpy as np
import pytest

from sarlite import kernels
from sarlite.kernels import EdgeDropout, native

FLOATS = [np.float32, np.float64]
INDEXES = [np.int32, np.int64]
WIDTHS = [1, 3, 7, 17, 33, 100, 257]
KINDS = ["random", "no edges", "one node", "star", "self loops", "duplicates", "empty rows"]
EPSILON = {np.float32: 2e-6, np.float64: 4e-15}

every_type = pytest.mark.parametrize(("dtype", "itype"), [(t, i) for t in FLOATS for i in INDEXES])
every_float = pytest.mark.parametrize("dtype", FLOATS)
every_kind = pytest.mark.parametrize("kind", KINDS)


class Csr:
    """Small graph as a CSR and as plain lists of edges."""

    def __init__(self, dst, src, n_dst, n_src, itype=np.int64):
        order = np.argsort(dst, kind="stable")
        self.dst, self.src = np.asarray(dst, dtype=np.int64)[order], np.asarray(src, dtype=np.int64)[order]
        self.n_dst, self.n_src, self.n_edges = n_dst, n_src, len(dst)
        self.indptr = np.concatenate([[0], np.cumsum(np.bincount(self.dst, minlength=n_dst))]).astype(np.int64)
        self.indices = self.src.astype(itype)


def make_graph(kind, itype=np.int64, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "no edges":
        return Csr([], [], 5, 4, itype)
    if kind == "one node":
        return Csr([0], [0], 1, 1, itype)
    if kind == "star":
        return Csr([0] * 700 + list(range(1, 701)), [*range(1, 701), *[0] * 700], 701, 701, itype)
    if kind == "self loops":
        return Csr(range(9), range(9), 9, 9, itype)
    if kind == "duplicates":
        return Csr([1, 1, 1, 0, 1], [2, 2, 0, 1, 2], 2, 3, itype)
    if kind == "empty rows":
        return Csr(rng.integers(40, 60, 300), rng.integers(0, 50, 300), 100, 50, itype)
    return Csr(rng.integers(0, 31, 400), rng.integers(0, 37, 400), 31, 37, itype)


def close(actual, expected, scale=None, factor=30):
    """Check that |actual - expected| <= `factor` * precision of the dtype * (`scale`, or if None the largest expected value)."""
    tolerance = factor * EPSILON[actual.dtype.type]
    scale = np.abs(expected).max(initial=0) if scale is None else scale
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * max(scale, 1e-30))


def normal(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


def over_threads(run, counts=(1, 2, 3)):
    """Call `run()` with each of the numbers of threads in `counts`, and return the list of its results."""
    before, results = kernels.threads(), []
    try:
        for n in counts:
            kernels.set_threads(n)
            results.append(run())
    finally:
        kernels.set_threads(before)
    return results


def spmm_reference(graph, x, *, eid=None, weight=None, src_scale=None, dst_scale=None, segment=False):
    x = x.astype(np.float64)
    rows = x[np.arange(graph.n_edges) if segment else graph.src]
    if src_scale is not None:
        rows = rows * src_scale[graph.src].astype(np.float64).reshape(-1, *[1] * (x.ndim - 1))
    if weight is not None:
        w = (weight if eid is None else weight[eid])[: graph.n_edges].astype(np.float64)
        rows = rows * w.reshape(w.shape + (1,) * (x.ndim - w.ndim))
    if dst_scale is not None:
        rows = rows * dst_scale[graph.dst].astype(np.float64).reshape(-1, *[1] * (x.ndim - 1))
    out = np.zeros((graph.n_dst, *x.shape[1:]))
    np.add.at(out, graph.dst, rows)
    return out


def philox4x32(counter, key):
    """Return the 4 random words that the C kernels draw from a counter of 4 words and a key of 2 words (Philox4x32-10)."""
    out = np.empty(4, np.uint32)
    native.call("sar_philox4x32", out, np.array(counter, np.uint32), np.array(key, np.uint32))
    return out.tolist()


def philox_reference(counter, key):
    """Return the 4 words of Philox4x32-10 for a counter and a key, computed on Python integers by the paper's formulas."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def keep_reference(row_id, column, key, dropout_rate):
    """Return the dropout factor, 0 or 1 / (1 - `dropout_rate`), of an element, computed from its row's id, column and the key."""
    row_id, key = int(row_id) & (2**64 - 1), key & (2**64 - 1)
    words = philox_reference([row_id & 0xFFFFFFFF, row_id >> 32, column // 4, 0], [key & 0xFFFFFFFF, key >> 32])
    return 0.0 if words[column % 4] < int(dropout_rate * 2**32) else 1 / (1 - dropout_rate)


def edge_factors(graph, n_heads, dropout):
    if dropout is None:
        return np.ones((graph.n_edges, n_heads))
    ids = [int(dropout.src_ids[j]) * dropout.n_nodes + int(dropout.dst_ids[i]) for i, j in zip(graph.dst, graph.src, strict=True)]
    return np.array([[keep_reference(e, h, dropout.key, dropout.p) for h in range(n_heads)] for e in ids]).reshape(-1, n_heads)


def attend_reference(graph, z, src, dst, slope, dropout=None):
    """Return (output of attention over `z`, log-sum-exp of each destination's scores) in float64, by an explicit softmax."""
    z, src, dst = (a.astype(np.float64) for a in (z, src, dst))
    n_heads = z.shape[1]
    pre = src[graph.src] + dst[graph.dst]
    s = np.where(pre > 0, pre, slope * pre)
    factor = edge_factors(graph, n_heads, dropout)
    out, lse = np.zeros((graph.n_dst, n_heads, z.shape[2])), np.zeros((graph.n_dst, n_heads))
    for i in range(graph.n_dst):
        rows = slice(graph.indptr[i], graph.indptr[i + 1])
        if rows.start < rows.stop:
            top = s[rows].max(0)
            weight = np.exp(s[rows] - top)
            lse[i] = top + np.log(weight.sum(0))
            alpha = weight / weight.sum(0)
            out[i] = ((alpha * factor[rows])[:, :, None] * z[graph.src[rows]]).sum(0)
    return out, lse


def attend(blocks, z, src, dst, slope, dropout=None):
    """Run attention kernels over `blocks`, [(csr, first source, end of sources)]; return (output, largest scores, 1 / softmax sums)."""
    n_dst, n_heads, n_feat = len(dst), z.shape[1], z.shape[2]
    m, total = np.full((n_dst, n_heads), -np.inf, z.dtype), np.zeros((n_dst, n_heads), z.dtype)
    acc = np.zeros((n_dst, n_heads, n_feat), z.dtype)
    for block, low, high in blocks:
        part = None if dropout is None else dropout._replace(src_ids=dropout.src_ids[low:high])
        kernels.attend(block.indptr, block.indices, z[low:high], src[low:high], dst, m, total, acc, slope=slope, dropout=part)
    kernels.attend_finish(m, total, acc)
    return acc, m, total


def log_sum_exp(largest_score, inverse_sum):
    """Return the log-sum-exp of scores: largest_score - log(inverse_sum), where `inverse_sum` is 1 / sum of exp(score - largest_score).

    Where `inverse_sum` is 0, there are no scores, and the result is `largest_score`.
    """
    return largest_score - np.log(np.where(inverse_sum == 0, 1, inverse_sum).astype(np.float64))


def attend_operands(graph, dtype, n_heads, n_feat, seed=0, spread=3):
    rng = np.random.default_rng(seed)
    scores = [(spread * rng.standard_normal((n, n_heads))).astype(dtype) for n in (graph.n_src, graph.n_dst)]
    return normal(rng, dtype, graph.n_src, n_heads, n_feat), *scores


def make_dropout(graph, p=0.4):
    rng = np.random.default_rng(99)
    return EdgeDropout(2**63 + 5, p, rng.permutation(10**6)[: graph.n_src], rng.permutation(10**6)[: graph.n_dst], 10**6)


def attend_gradients(graph, z, src, dst, g, slope, dropout):
    out, m, scale = attend([(graph, 0, graph.n_src)], z, src, dst, slope, dropout)
    ends = kernels.attend_ends(dst, m, scale, g, out)
    t_indptr, t_indices, _ = kernels.transpose(graph.indptr, graph.indices, graph.n_src)
    grads = [np.zeros_like(a) for a in (z, src, dst)]
    kernels.attend_backward(t_indptr, t_indices, z, src, ends, g, *grads, slope=slope, dropout=dropout)
    return grads
