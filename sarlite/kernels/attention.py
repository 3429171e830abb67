"""Kernels of fused graph attention: online softmax, weighted sum and gradients, one block of edges at a time (SAR Eq. 3).

See SAR sec. 3.3 and 3.4.
"""

from typing import Any, NamedTuple, cast

import numpy as np

from sarlite.errors import ShapeError
from sarlite.kernels.bfloat16 import widen
from sarlite.kernels.native import (
    BFLOAT16,
    FLOATS,
    ROWS,
    call,
    check,
    check_apart,
    check_csr,
    check_csr_rows,
    check_rows,
    key64,
    probability,
    suffix_of,
    team,
    wide,
)
from sarlite.types import Array

WIDENED_ROWS = 4096
"""Number of rows of a bfloat16 gradient that are converted to float32 at a time."""


class EdgeDropout(NamedTuple):
    """Dropout mask of attention coefficients. It depends only on the key, on the edge's global id and on the head.

    Attributes
    ----------
    key : int
        Key of the generator, taken modulo 2^64.
    p : float
        Probability of dropping, in [0, 1). Kept coefficients are scaled by 1 / (1 - p).
    src_ids, dst_ids : (n_src,), (n_dst,) int64
        Global node ids. The edge j -> i has the 64-bit id src_ids[j] * n_nodes + dst_ids[i].
    n_nodes : int
        Number of nodes of the whole graph.
    """

    key: int
    p: float
    src_ids: np.ndarray
    dst_ids: np.ndarray
    n_nodes: int


def forward_fields(indptr: Array, indices: Array, rows: Array | None, z: Array, src: Array, dst: Array, slope: float,
                   dropout: EdgeDropout | None) -> dict[str, Any]:
    """Check the arguments that `attend` and `exact_attend` share: a CSR, its output `rows` (None: row i for row i), source rows `z`,
    scores `src` and `dst`. Return the fields of the C struct sar_attention as a dict.
    """
    n_dst, _ = check_csr(indptr, check("indices", indices))
    check_rows("dst", dst)
    csr = {"indptr": indptr, "indices": indices, "rows": rows, "n_rows": n_dst}
    fields = _fields(csr, z, src, None, dst, slope, dropout)
    check("dst", dst, dtype=src.dtype, shape=(None, src.shape[1]))
    check_csr_rows(rows, n_dst, len(dst), indices.dtype, "dst")
    return fields


def backward_fields(t_indptr: Array, t_indices: Array, z: Array, src: Array, ends: Array, g: Array, slope: float,
                    dropout: EdgeDropout | None) -> tuple[dict[str, Any], int]:
    """Check the arguments that `attend_backward` and its exact version share: the edges by source, source rows `z`, their scores `src`,
    the result `ends` of `attend_ends`, and the output's gradient `g`. Return (fields of the C struct sar_attention as a dict, number of
    threads).
    """
    n_src, end = check_csr(t_indptr, check("t_indices", t_indices), names=("t_indptr", "t_indices"))
    csr = {"indptr": t_indptr, "indices": t_indices, "n_rows": n_src}
    fields = _fields(csr, z, src, n_src, ends, slope, dropout)
    n_heads, n_feat = src.shape[1], z.shape[2]
    check("ends", ends, dtype=src.dtype, shape=(None, n_heads, 4))
    check("g", g, dtype=z.dtype, shape=(len(ends), n_heads, n_feat))
    return fields, team((end - int(t_indptr[0])) * n_heads * (n_feat + 16))


def _fields(csr: dict[str, Any], z: Array, src: Array, n_src: int | None, per_destination: Array, slope: float,
            dropout: EdgeDropout | None) -> dict[str, Any]:
    """Check z, src and dropout of an attention kernel; return the fields of the C struct sar_attention as a dict, with the fields `csr`
    of its edges. `per_destination` is any array with a row per destination, and `n_src` None allows any number of sources.
    """
    check("z", z, dtype=ROWS, shape=(n_src, None, None))
    z_heads, n_feat = z.shape[1:]
    check("src", src, dtype=wide(z.dtype), shape=(len(z), None if z_heads == 1 else z_heads))
    drop = {}
    if dropout is not None:
        check("dropout.src_ids", dropout.src_ids, dtype=np.int64, shape=(len(z),))
        check("dropout.dst_ids", dropout.dst_ids, dtype=np.int64, shape=(len(per_destination),))
        drop = {"src_ids": dropout.src_ids, "dst_ids": dropout.dst_ids, "n_nodes": int(dropout.n_nodes),
                "key": key64(dropout.key), "p": probability(dropout.p)}
    return {"csr": csr, "z": z, "src": src, "dropout": drop, "slope": float(slope), "n_src": len(z),
            "n_heads": src.shape[1], "z_heads": z_heads, "n_feat": n_feat}


def attend(indptr: Array, indices: Array, z: Array, src: Array, dst: Array, m: Array, l: Array, acc: Array,  # noqa: E741
           *, slope: float, rows: Array | None = None, dropout: EdgeDropout | None = None, accumulate: bool = True) -> None:
    """Add the edges of a CSR to attention's running softmax, for source rows `z` and scores leaky_relu(src[source] + dst[row],
    slope). For each row, m holds the largest score so far, l the sum of exp(score - m), and acc the sum of exp(score - m) z. With
    `accumulate` False, m, l and acc start anew.

    ``s = leaky_relu(src[j] + dst[i], slope)`` with ``i = rows[row]``, or the row itself when `rows` is None. The
    running maximum `m` moves, and `acc` and `l` are corrected by ``exp(old - new)``. Then ``l += sum exp(s - m)`` and
    ``acc += sum mask / (1-p) * exp(s - m) * z[j]``.

    Parameters
    ----------
    indptr : (n_dst + 1,) int64
    indices : (n_edges,) int32 or int64
        The source j of each edge.
    z : (n_src, H, D) or (n_src, 1, D), float32, float64, or uint16 as bfloat16
        Source rows. A z of one head is shared by all heads. With bfloat16 the other arrays are float32.
    src, dst : (n_src, H), (n_out, H), z's dtype
        Scores of the sources and of the destinations.
    m, l, acc : (n_out, H), (n_out, H), (n_out, H, D), z's dtype
        Running maximum, sum of exponentials and weighted sum; updated. They start at -inf, 0, 0.
    slope : float
        Slope of the leaky ReLU below zero.
    rows : (n_dst,), indices' dtype, optional
        Row of the outputs for each row of the CSR, each at most once; by default row i for row i, with n_out = n_dst.
    dropout : EdgeDropout, optional
        Drops coefficients after the softmax: in acc, not in l. Its dst_ids are (n_out,).
    accumulate : bool
        If False, m, l and acc of the CSR's rows start at -inf, 0, 0, whatever they hold. Other rows do not change.

    Notes
    -----
    O(n_edges * H * D) time; nothing per edge is stored. SAR Eq. 3, sec. 3.3 (fused kernel) and 3.4 (stable softmax).
    """
    fields = forward_fields(indptr, indices, rows, z, src, dst, slope, dropout)
    check("m", m, dtype=src.dtype, shape=dst.shape, out=True)
    check("l", l, dtype=src.dtype, shape=dst.shape, out=True)
    check("acc", acc, dtype=src.dtype, shape=(*dst.shape, z.shape[2]), out=True)
    check_apart(acc, z=z, src=src, dst=dst)
    call(f"sar_attend_forward_{suffix_of(z.dtype, indices.dtype)}", m, l, acc, dst, fields, accumulate)


def attend_finish(m: Array, l: Array, acc: Array) -> None:  # noqa: E741
    """Finish the online softmax of `attend`: ``acc /= l``, so that acc is attention's output, and ``l = 1 / l``.

    Rows without edges, or whose scores are all -inf, get acc = l = m = 0.

    Parameters
    ----------
    m, l : (n_dst, H) float32 or float64
        Updated. Afterwards an edge's softmax coefficient is ``exp(s - m) * l``.
    acc : (n_dst, H, D), m's dtype
        Updated to attention's output.

    Notes
    -----
    O(n_dst * H * D) time. SAR sec. 3.4.
    """
    check("m", m, dtype=FLOATS, shape=(None, None), out=True)
    check("l", l, dtype=m.dtype, shape=m.shape, out=True)
    check("acc", acc, dtype=m.dtype, shape=(*m.shape, None), out=True)
    call(f"sar_attend_finish_forward_{FLOATS[m.dtype]}", m, l, acc, m.size, acc.shape[2])


def attend_ends(dst: Array, m: Array, scale: Array, g: Array, out: Array) -> Array:
    """Return four numbers of each destination and head, (n_dst, H, 4), for `attend_backward`. They are the score `dst`, the
    softmax's maximum `m` and factor `scale`, and the dot product of the output `out` and its gradient `g`.

    They are next to each other, so that an edge reads one cache line. The last number is ``delta = sum_d g * out``.

    Parameters
    ----------
    dst : (n_dst, H) float32 or float64
        Scores of the destinations.
    m, scale : (n_dst, H), dst's dtype
        m and 1 / l, as `attend_finish` returns them in its arguments m and l.
    g : (n_dst, H, D), dst's dtype, or uint16 as bfloat16
        Gradient of the output, as edges gather it. With a more accurate g the gradients of the scores would not cancel.
    out : (n_dst, H, D), dst's dtype
        Attention's output.

    Returns
    -------
    (n_dst, H, 4), dst's dtype

    Notes
    -----
    O(n_dst * H * D) time. The single number m + log l would replace m and 1 / l, but loses digits of l if m is large.
    """
    check("dst", dst, dtype=FLOATS, shape=(None, None))
    check("m", m, dtype=dst.dtype, shape=dst.shape)
    check("scale", scale, dtype=dst.dtype, shape=dst.shape)
    if getattr(g, "dtype", None) == BFLOAT16:
        ends = np.empty((*dst.shape, 4), dst.dtype)
        for a in range(0, len(dst), WIDENED_ROWS):
            some = slice(a, a + WIDENED_ROWS)
            ends[some] = attend_ends(dst[some], m[some], scale[some], widen(g[some]), out[some])
        return ends
    check("g", g, dtype=dst.dtype, shape=(*dst.shape, None))
    check("out", out, dtype=dst.dtype, shape=g.shape)
    delta = np.empty_like(dst)
    row_dot(g, out, delta)
    return np.stack((dst, m, scale, delta), axis=-1)


def attend_backward(t_indptr: Array, t_indices: Array, z: Array, src: Array, ends: Array, g: Array, dz: Array,
                    dsrc: Array, ddst: Array | None, *, slope: float, dropout: EdgeDropout | None = None,
                    sums: Array | None = None, accumulate: bool = True) -> None:
    """Compute the gradients dz, dsrc and ddst of attention from `g`, the output's gradient, and `ends`, the result of
    `attend_ends`. The edges are a CSR by source (t_indptr, t_indices); z, src, `slope` and `dropout` are as in `attend`. dz and
    dsrc are added to, or overwritten if `accumulate` is False; `sums`, if not None, collects ddst separately for each thread.

    ``alpha = exp(s - m[i]) / l[i]``; ``t = g[i].z[j]``; ``k = mask / (1-p)``; ``dz[j] += alpha k g[i]``;
    ``de = alpha (k t - delta[i]) leaky_relu'(src[j] + dst[i])``; ``dsrc[j] += de``; ``ddst[i] += de``. If z has one
    head, all heads add to its gradient.

    Parameters
    ----------
    t_indptr : (n_src + 1,) int64
    t_indices : (n_edges,) int32 or int64
        The destination i of each edge: a row of ends and g.
    z, src, slope, dropout
        The arguments of `attend`.
    ends : (n_dst, H, 4), z's dtype
        Result of `attend_ends`.
    g : (n_dst, H, D), z's dtype, also bfloat16
        Gradient of attention's output.
    dz, dsrc, ddst : shapes of z and of src, and (n_dst, H), z's dtype
        Gradients; accumulated. ddst is None if `sums` are given.
    accumulate : bool
        If False, dz and dsrc are overwritten.
    sums : (threads, n_dst, H) float64, optional
        Accumulates each thread's part of ddst over several blocks. The caller fills `sums` with zeros before the first
        block, and calls `attend_backward_finish` after the last. By default this call does both.

    Notes
    -----
    O(n_edges * H * D) time; 8 * threads * n_dst * H bytes if `sums` are not given. The threads' parts are added in
    thread order, so ddst is the same for the same number of threads. At most as many threads run as `sums` has parts.

    References
    ----------
    SAR algorithm 2 and sec. 3.3.
    """
    fields, n_threads = backward_fields(t_indptr, t_indices, z, src, ends, g, slope, dropout)
    n_dst, n_heads = ends.shape[:2]
    check("dz", dz, dtype=src.dtype, shape=z.shape, out=True)
    check("dsrc", dsrc, dtype=src.dtype, shape=src.shape, out=True)
    check_apart(dz, z=z, g=g)
    parts = np.zeros((n_threads, n_dst, n_heads)) if sums is None else sums
    check("sums", parts, dtype=np.float64, shape=(None, n_dst, n_heads), out=True)
    if sums is None:
        check("ddst", ddst, dtype=src.dtype, shape=(n_dst, n_heads), out=True)
    elif ddst is not None or len(sums) == 0:
        raise ShapeError(f"sums must have a part for each thread and take the place of ddst; got shape {sums.shape}")
    call(f"sar_attend_backward_{suffix_of(z.dtype, t_indices.dtype)}", dz, dsrc, parts, ends, g, fields, accumulate,
         min(n_threads, len(parts)), n_dst)
    if sums is None:
        attend_backward_finish(parts, cast(Array, ddst))


def attend_backward_finish(sums: Array, ddst: Array) -> None:
    """Add `sums`, the gradient of the destination scores by thread that `attend_backward` computed, to the gradient `ddst`: ``ddst
    += sum_t sums[t]``, in the order of t.

    Parameters
    ----------
    sums : (threads, n_dst, H) float64
    ddst : (n_dst, H) float32 or float64

    Notes
    -----
    O(threads * n_dst * H) time.
    """
    check("sums", sums, dtype=np.float64, shape=(None, None, None))
    check("ddst", ddst, dtype=FLOATS, shape=sums.shape[1:], out=True)
    if len(sums):
        call(f"sar_attend_backward_finish_{FLOATS[ddst.dtype]}", ddst, sums, len(sums), ddst.size)


def row_dot(a: Array, b: Array, out: Array) -> None:
    """Overwrite `out` with the dot products of the rows of `a` and `b` over the last axis: ``out[i,h] = sum_d a[i,h,d] * b[i,h,d]``.

    Parameters
    ----------
    a, b : (..., D) float32 or float64
    out : (...), a's dtype

    Notes
    -----
    O(n * H * D) time. The delta of `attend_ends` is the result for a = g and b = out.
    """
    check_rows("a", a)
    check("b", b, dtype=a.dtype, shape=a.shape)
    check("out", out, dtype=a.dtype, shape=a.shape[:-1], out=True)
    call(f"sar_row_dot_forward_{FLOATS[a.dtype]}", out, a, b, out.size, a.shape[-1])
