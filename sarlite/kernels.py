"""The native kernels with checked arguments. The only module that imports the compiled `sarlite._native`.

Arrays are C-contiguous NumPy arrays. Values are float32 or float64, the same for all value arrays of a call; `indptr` is int64;
`indices`, `eid`, `label`, `arg`, `index` are int32 or int64, the same for all index arrays of a call. "Accumulates" means
`out +=`, "overwrites" means `out =`. Outputs must not overlap inputs. A row slice of a CSR is `indptr[a : b + 1]` with the
whole `indices`. The entries of `indices` and `eid` are trusted: checking them would cost a pass over the edges (graphs check
them once, when they are built). Every call releases the GIL.

Every function raises ShapeError naming the argument when shape, dtype or memory layout is wrong.
"""

from typing import NamedTuple

import numpy as np

from .errors import ShapeError

try:
    from ._native import ffi, lib
except ImportError as error:
    raise ImportError(f"the compiled module sarlite._native is missing; build it with: pip install -e . ({error})") from error

_FLOATS = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}
_INDEXES = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}
_C_ARRAYS = {
    np.dtype(np.float32): "float[]",
    np.dtype(np.float64): "double[]",
    np.dtype(np.int32): "int32_t[]",
    np.dtype(np.int64): "int64_t[]",
    np.dtype(np.uint32): "uint32_t[]",
}
_STATUS = {
    lib.SAR_INDEX_OUT_OF_BOUNDS: "index has an entry outside 0 .. number of rows",
    lib.SAR_LABEL_OUT_OF_BOUNDS: "label has an entry that is negative or outside order",
}


class Dropout(NamedTuple):
    """Which attention coefficients to drop: a function of (key, global edge id, head).

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


def _call(kernel, *args):
    """Call a kernel: arrays become pointers, None becomes NULL, a status becomes an exception."""
    status = getattr(lib, kernel)(*(_pointer(a) for a in args))
    if status != lib.SAR_OK:
        raise ShapeError(f"{kernel}: {_STATUS[status]}")


def _pointer(value):
    if value is None:
        return ffi.NULL
    if isinstance(value, np.ndarray):
        return ffi.from_buffer(_C_ARRAYS[value.dtype], value)
    return value


def _array(name, a, *, dtype=None, shape=None, out=False):
    """Check one array; `dtype` is a dtype or a table of the allowed ones, None in `shape` allows any length."""
    if not isinstance(a, np.ndarray):
        raise ShapeError(f"{name} must be a NumPy array, got {type(a).__name__}")
    got = f"got shape {a.shape}, dtype {a.dtype}"
    if isinstance(dtype, dict):
        if a.dtype not in dtype:
            raise ShapeError(f"{name} must have dtype {' or '.join(str(d) for d in dtype)}; {got}")
    elif dtype is not None and a.dtype != dtype:
        raise ShapeError(f"{name} must have dtype {np.dtype(dtype)}; {got}")
    if shape is not None and (a.ndim != len(shape) or any(n is not None and n != m for n, m in zip(shape, a.shape, strict=True))):
        raise ShapeError(f"{name} must have shape {str(shape).replace('None', 'any')}; {got}")
    if not a.flags.c_contiguous:
        raise ShapeError(f"{name} must be C-contiguous; {got}, strides {a.strides}")
    if out and not a.flags.writeable:
        raise ShapeError(f"{name} must be writeable; {got}")
    return a


def _rows(name, a, n=None, *, dtype=_FLOATS, out=False):
    """Check an array of rows, with any trailing shape."""
    _array(name, a, dtype=dtype, out=out)
    if a.ndim == 0 or (n is not None and len(a) != n):
        raise ShapeError(f"{name} must have {'rows' if n is None else f'{n} rows'}; got shape {a.shape}, dtype {a.dtype}")
    return a


def _width(a):
    """Number of elements of one row."""
    return int(np.prod(a.shape[1:], dtype=np.int64))


def _csr(indptr, indices, names=("indptr", "indices")):
    """Check a CSR; return (n_dst, end of the edges)."""
    _array(names[0], indptr, dtype=np.int64, shape=(None,))
    if len(indptr) == 0 or indptr[0] < 0 or indptr[-1] < indptr[0]:
        raise ShapeError(f"{names[0]} must be offsets, one more than rows; got shape {indptr.shape}, dtype {indptr.dtype}")
    end = int(indptr[-1])
    if indices is not None:
        _array(names[1], indices, dtype=_INDEXES, shape=(None,))
        if len(indices) < end:
            raise ShapeError(f"{names[1]} must have at least {end} edges ({names[0]}[-1]); got shape {indices.shape}")
    return len(indptr) - 1, end


def _no_overlap(out, **inputs):
    for name, a in inputs.items():
        if a is not None and np.may_share_memory(out, a):
            raise ShapeError(f"{name} must not share memory with the output; got shape {a.shape}, dtype {a.dtype}")


def _index_dtype(*arrays):
    """dtype of the first index array given; int64 when there is none."""
    return next((a.dtype for a in arrays if a is not None), np.dtype(np.int64))


def _key(key):
    return int(key) & 0xFFFFFFFFFFFFFFFF


def _probability(p):
    if not 0 <= p < 1:
        raise ShapeError(f"p must be in [0, 1), got {p}")
    return float(p)


def threads():
    """Return the number of OpenMP threads of the calling thread's kernels (1 without OpenMP)."""
    return lib.sar_threads()


def set_threads(n):
    """Set the number of OpenMP threads of the calling thread's kernels.

    Parameters
    ----------
    n : int
        At least 1.
    """
    if n < 1:
        raise ShapeError(f"n must be at least 1, got {n}")
    _call("sar_set_threads", int(n))


def _spmm_operands(indptr, indices, x, eid, edge_rows, edge_name):
    """Check what spmm and edge_dot share; return (n_dst, n_heads, n_feat, suffix)."""
    n_dst, end = _csr(indptr, indices)
    _rows("x", x)
    if indices is None and len(x) < end:
        raise ShapeError(f"x must have a row for each of the {end} edges; got shape {x.shape}, dtype {x.dtype}")
    index = _index_dtype(indices, eid)
    if eid is not None:
        _array("eid", eid, dtype=index, shape=(None,))
        if len(eid) < end:
            raise ShapeError(f"eid must have at least {end} edges (indptr[-1]); got shape {eid.shape}, dtype {eid.dtype}")
    n_heads = 1
    if edge_rows is not None:
        _array(edge_name, edge_rows, dtype=x.dtype, out=edge_name == "out")
        n_heads = edge_rows.shape[1] if edge_rows.ndim == 2 else 1
        fits = edge_rows.ndim == 1 or (edge_rows.ndim == 2 and x.ndim > 1 and n_heads == x.shape[1])
        if not fits or (eid is None and len(edge_rows) < end):
            raise ShapeError(f"{edge_name} must be (n,) or (n, H) with x (n_src, H, ...), a row for each edge; "
                             f"got shape {edge_rows.shape}, dtype {edge_rows.dtype}, x {x.shape}")
    n_feat = _width(x) // n_heads if n_heads else 0
    return n_dst, n_heads, n_feat, f"{_FLOATS[x.dtype]}_{_INDEXES[index]}"


def spmm(indptr, indices, x, out, *, eid=None, weight=None, src_scale=None, dst_scale=None):
    """Add the weighted sum of each row's neighbours.

    ``out[i,h,:] += dst_scale[i] * sum_{e in row i} weight[eid[e],h] * src_scale[c] * x[c,h,:]`` with ``c = indices[e]``, or
    ``c = e`` when `indices` is None (a segment sum over edges).

    Parameters
    ----------
    indptr : (n_dst + 1,) int64
    indices : (n_edges,) int32 or int64, or None
    x : (n_src, ...) float32 or float64
        Any trailing shape; (n_src, H, ...) with a weight per head.
    out : (n_dst, ...), x's dtype and trailing shape
        Accumulates.
    eid : (n_edges,), indices' dtype, optional
        Row of `weight` of each edge; default: the edge's position.
    weight : (n,) or (n, H), x's dtype, optional
        One per edge, or one per edge and head. Default 1, as for the scales.
    src_scale, dst_scale : (n_src,), (n_dst,), x's dtype, optional

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n_edges * F) time, no memory. A row is summed by one thread, so the result does not depend on the number of threads.
    The gradient of x is the same call on the transpose with the scales exchanged. SAR Eq. 1 and 2.
    """
    n_dst, n_heads, n_feat, suffix = _spmm_operands(indptr, indices, x, eid, weight, "weight")
    _array("out", out, dtype=x.dtype, shape=(n_dst, *x.shape[1:]), out=True)
    if src_scale is not None:
        _array("src_scale", src_scale, dtype=x.dtype, shape=(len(x),))
    if dst_scale is not None:
        _array("dst_scale", dst_scale, dtype=x.dtype, shape=(n_dst,))
    _no_overlap(out, x=x, weight=weight, src_scale=src_scale, dst_scale=dst_scale)
    _call(f"sar_spmm_forward_{suffix}", out, indptr, indices, eid, x, weight, src_scale, dst_scale, n_dst, n_heads, n_feat)


def edge_dot(indptr, indices, g, x, out, *, eid=None, dst_scale=None):
    """Add, for each edge, the dot product of its two rows: the gradient of spmm's weights (SDDMM).

    ``out[eid[e],h] += dst_scale[i] * sum_d g[i,h,d] * x[c,h,d]`` with ``c = indices[e]``, or ``c = e`` when `indices` is None.

    Parameters
    ----------
    indptr, indices, eid, dst_scale
        As for spmm; the values of `eid` are unique.
    g : (n_dst, ...), x's dtype and trailing shape
    x : (n_src, ...) float32 or float64
    out : (n,) or (n, H), x's dtype
        Accumulates.

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n_edges * F) time, no memory.
    """
    if out is None:
        raise ShapeError("out must be a NumPy array, got NoneType")
    n_dst, n_heads, n_feat, suffix = _spmm_operands(indptr, indices, x, eid, out, "out")
    _array("g", g, dtype=x.dtype, shape=(n_dst, *x.shape[1:]))
    if dst_scale is not None:
        _array("dst_scale", dst_scale, dtype=x.dtype, shape=(n_dst,))
    _no_overlap(out, g=g, x=x, dst_scale=dst_scale)
    _call(f"sar_edge_dot_forward_{suffix}", out, indptr, indices, eid, g, x, dst_scale, n_dst, n_heads, n_feat)


def extremum(indptr, indices, x, out, arg, *, sign, offset=0, label=None, order=None):
    """Update a running maximum or minimum of each row's neighbours, with its argument.

    For edge e of row i with ``r = indices[e]`` (or e when `indices` is None) the candidate is ``(x[r,f], label)``, where label is
    ``label[e]`` if given, else ``offset + r``. It replaces ``(out[i,f], arg[i,f])`` when ``arg[i,f] < 0``, when it is better, or
    when it is equal and ``order[candidate] < order[arg]``. A NaN wins over any number and stays.

    Parameters
    ----------
    indptr : (n_dst + 1,) int64
    indices : (n_edges,) int32 or int64, or None
    x : (n_src, ...) float32 or float64
    out : (n_dst, ...), x's dtype and trailing shape
        Updated. The caller prepares it; where arg is -1 the value does not matter.
    arg : (n_dst, ...), indices' dtype, out's shape
        Updated. -1: no candidate yet.
    sign : {1, -1}
        1 for the maximum, -1 for the minimum.
    offset : int
        Label of x's first row.
    label : (n_edges,), indices' dtype, optional
    order : (n_labels,) int64, optional
        Rank of each label at ties; default: the label itself.

    Raises
    ------
    ShapeError
        Naming the argument; also for a label that is negative or outside `order`.

    Notes
    -----
    O(n_edges * F) time. How the edges are split into blocks or ordered does not change the result.
    """
    n_dst, end = _csr(indptr, indices)
    _rows("x", x)
    if indices is None and len(x) < end:
        raise ShapeError(f"x must have a row for each of the {end} edges; got shape {x.shape}, dtype {x.dtype}")
    _array("out", out, dtype=x.dtype, shape=(n_dst, *x.shape[1:]), out=True)
    _array("arg", arg, dtype=_INDEXES, shape=out.shape, out=True)
    index = _index_dtype(indices, arg)
    _array("arg", arg, dtype=index)
    if label is not None:
        _array("label", label, dtype=index, shape=(None,))
        if len(label) < end:
            raise ShapeError(f"label must have at least {end} edges (indptr[-1]); got shape {label.shape}, dtype {label.dtype}")
    elif offset < 0 or offset + len(x) - 1 > np.iinfo(index).max:
        raise ShapeError(f"offset must keep labels within {index}, got {offset} with {len(x)} rows")
    if order is not None:
        _array("order", order, dtype=np.int64, shape=(None,))
    if sign not in (1, -1):
        raise ShapeError(f"sign must be 1 or -1, got {sign}")
    _no_overlap(out, x=x)
    _call(f"sar_extremum_forward_{_FLOATS[x.dtype]}_{_INDEXES[index]}", out, arg, indptr, indices, label, order, x, int(sign),
          int(offset), 0 if order is None else len(order), n_dst, _width(x))


def extremum_backward(g, arg, dx, offset=0):
    """Add each gradient to the row that its value came from: ``dx[arg[i,f] - offset, f] += g[i,f]``.

    Parameters
    ----------
    g : (n_dst, ...) float32 or float64
    arg : g's shape, int32 or int64
        Labels from `extremum`; those outside ``offset .. offset + n_src`` (other blocks, -1) are passed over.
    dx : (n_src, ...), g's dtype and trailing shape
        Accumulates.
    offset : int
        Label of dx's first row.

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n_dst * F) time, parallel over columns, the same result for any number of threads.
    """
    _rows("g", g)
    _array("arg", arg, dtype=_INDEXES, shape=g.shape)
    _array("dx", dx, dtype=g.dtype, shape=(None, *g.shape[1:]), out=True)
    _no_overlap(dx, g=g)
    _call(f"sar_extremum_backward_{_FLOATS[g.dtype]}_{_INDEXES[arg.dtype]}", dx, g, arg, int(offset), len(g), len(dx), _width(g))


def _attend_operands(z, src, dst, n_src, n_dst, dropout):
    """Check what both directions of attention share; return the kernel's dropout arguments and (n_heads, n_feat)."""
    _array("z", z, dtype=_FLOATS, shape=(n_src, None, None))
    n_heads, n_feat = z.shape[1:]
    _array("src", src, dtype=z.dtype, shape=(len(z), n_heads))
    _array("dst", dst, dtype=z.dtype, shape=(n_dst, n_heads))
    if dropout is None:
        return (None, None, 0, 0, 0.0), (n_heads, n_feat)
    src_ids = _array("dropout.src_ids", dropout.src_ids, dtype=np.int64, shape=(len(z),))
    dst_ids = _array("dropout.dst_ids", dropout.dst_ids, dtype=np.int64, shape=(n_dst,))
    return (src_ids, dst_ids, int(dropout.n_nodes), _key(dropout.key), _probability(dropout.p)), (n_heads, n_feat)


def attend(indptr, indices, z, src, dst, m, l, acc, *, slope, dropout=None):  # noqa: E741
    """Add one block of edges to the online softmax of graph attention.

    ``s = leaky_relu(src[j] + dst[i], slope)``; the running maximum `m` moves and `acc`, `l` are corrected by ``exp(old - new)``;
    ``l += sum exp(s - m)``; ``acc += sum mask / (1-p) * exp(s - m) * z[j]``.

    Parameters
    ----------
    indptr : (n_dst + 1,) int64
    indices : (n_edges,) int32 or int64
        The source j of each edge.
    z : (n_src, H, D) float32 or float64
    src, dst : (n_src, H), (n_dst, H), z's dtype
        Scores of the two ends.
    m, l, acc : (n_dst, H), (n_dst, H), (n_dst, H, D), z's dtype
        Updated; they start at -inf, 0, 0.
    slope : float
        Negative slope of the leaky ReLU.
    dropout : Dropout, optional
        Drops coefficients after the softmax: it acts on acc, not on l.

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n_edges * H * D) time; nothing per edge is stored. SAR Eq. 3, sec. 3.3 (fused kernel) and 3.4 (stable softmax).
    """
    n_dst, _ = _csr(indptr, _array("indices", indices))
    drop, (n_heads, n_feat) = _attend_operands(z, src, dst, None, n_dst, dropout)
    _array("m", m, dtype=z.dtype, shape=(n_dst, n_heads), out=True)
    _array("l", l, dtype=z.dtype, shape=(n_dst, n_heads), out=True)
    _array("acc", acc, dtype=z.dtype, shape=(n_dst, n_heads, n_feat), out=True)
    _no_overlap(acc, z=z, src=src, dst=dst)
    _call(f"sar_attend_forward_{_FLOATS[z.dtype]}_{_INDEXES[indices.dtype]}", m, l, acc, indptr, indices, z, src, dst, *drop,
          float(slope), n_dst, n_heads, n_feat)


def attend_finish(m, l, acc):  # noqa: E741
    """Finish the online softmax: ``acc /= l`` and ``m += log(l)``, the log-sum-exp. Rows without edges: acc = 0, m = 0.

    Parameters
    ----------
    m, l : (n_dst, H) float32 or float64
        m is updated; l is kept.
    acc : (n_dst, H, D), m's dtype
        Updated.

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n_dst * H * D) time. SAR sec. 3.4.
    """
    _array("m", m, dtype=_FLOATS, shape=(None, None), out=True)
    _array("l", l, dtype=m.dtype, shape=m.shape, out=True)
    _array("acc", acc, dtype=m.dtype, shape=(*m.shape, None), out=True)
    _call(f"sar_attend_finish_forward_{_FLOATS[m.dtype]}", m, l, acc, m.size, acc.shape[2])


def attend_backward(t_indptr, t_indices, z, src, dst, lse, delta, g, dz, dsrc, ddst, *, slope, dropout=None):
    """Add the gradients of finished attention over one block of edges, walking the transpose.

    ``alpha = exp(s - lse[i])``; ``t = g[i].z[j]``; ``k = mask / (1-p)``; ``dz[j] += alpha k g[i]``;
    ``de = alpha (k t - delta[i]) leaky_relu'(src[j] + dst[i])``; ``dsrc[j] += de``; ``ddst[i] += de``.

    Parameters
    ----------
    t_indptr : (n_src + 1,) int64
    t_indices : (n_edges,) int32 or int64
        The destination i of each edge.
    z, src, dst, slope, dropout
        As given to `attend`.
    lse, delta : (n_dst, H), z's dtype
        The m of `attend_finish`; ``row_dot(g, out)``.
    g : (n_dst, H, D), z's dtype
        Gradient of the finished output.
    dz, dsrc, ddst : as z, src, dst
        Accumulate.

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n_edges * H * D) time; 8 * threads * n_dst * H bytes for private sums of ddst, added in thread order, so results are
    the same for the same number of threads. SAR alg. 2 and sec. 3.3.
    """
    n_src, end = _csr(t_indptr, _array("t_indices", t_indices), ("t_indptr", "t_indices"))
    n_dst = len(_rows("dst", dst))
    drop, (n_heads, n_feat) = _attend_operands(z, src, dst, n_src, n_dst, dropout)
    _array("lse", lse, dtype=z.dtype, shape=dst.shape)
    _array("delta", delta, dtype=z.dtype, shape=dst.shape)
    _array("g", g, dtype=z.dtype, shape=(n_dst, n_heads, n_feat))
    _array("dz", dz, dtype=z.dtype, shape=z.shape, out=True)
    _array("dsrc", dsrc, dtype=z.dtype, shape=src.shape, out=True)
    _array("ddst", ddst, dtype=z.dtype, shape=dst.shape, out=True)
    _no_overlap(dz, z=z, g=g)
    n_threads = threads() if (end - int(t_indptr[0])) * n_heads * (n_feat + 16) > 32768 else 1
    workspace = np.zeros((n_threads, n_dst, n_heads))
    _call(f"sar_attend_backward_{_FLOATS[z.dtype]}_{_INDEXES[t_indices.dtype]}", dz, dsrc, ddst, workspace, t_indptr, t_indices,
          z, src, dst, lse, delta, g, *drop, float(slope), n_threads, n_src, n_dst, n_heads, n_feat)


def row_dot(a, b, out):
    """Overwrite ``out[i,h] = sum_d a[i,h,d] * b[i,h,d]``.

    Parameters
    ----------
    a, b : (..., D) float32 or float64
    out : (...), a's dtype

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n * H * D) time. With a = g and b = out it is the delta of `attend_backward`.
    """
    _rows("a", a)
    _array("b", b, dtype=a.dtype, shape=a.shape)
    _array("out", out, dtype=a.dtype, shape=a.shape[:-1], out=True)
    _call(f"sar_row_dot_forward_{_FLOATS[a.dtype]}", out, a, b, out.size, a.shape[-1])


def gather_rows(x, index, out):
    """Overwrite ``out[k] = x[index[k]]``.

    Parameters
    ----------
    x : (n, ...) float32 or float64
    index : (k,) int32 or int64
    out : (k, ...), x's dtype and trailing shape

    Raises
    ------
    ShapeError
        Naming the argument; also when an entry of `index` is outside 0 .. n.

    Notes
    -----
    O(k * F) time.
    """
    _rows("x", x)
    _array("index", index, dtype=_INDEXES, shape=(None,))
    _array("out", out, dtype=x.dtype, shape=(len(index), *x.shape[1:]), out=True)
    _no_overlap(out, x=x)
    _call(f"sar_gather_rows_forward_{_FLOATS[x.dtype]}_{_INDEXES[index.dtype]}", out, x, index, len(x), len(index), _width(x))


def scatter_add_rows(rows, index, out):
    """Add ``out[index[k]] += rows[k]``. The values of `index` are unique: rows are added in parallel.

    Parameters
    ----------
    rows : (k, ...) float32 or float64
    index : (k,) int32 or int64
    out : (n, ...), rows' dtype and trailing shape
        Accumulates.

    Raises
    ------
    ShapeError
        Naming the argument; also when an entry of `index` is outside 0 .. n.

    Notes
    -----
    O(k * F) time. The gradient of `gather_rows`.
    """
    _rows("rows", rows)
    _array("index", index, dtype=_INDEXES, shape=(len(rows),))
    _array("out", out, dtype=rows.dtype, shape=(None, *rows.shape[1:]), out=True)
    _no_overlap(out, rows=rows)
    _call(f"sar_gather_rows_backward_{_FLOATS[rows.dtype]}_{_INDEXES[index.dtype]}", out, rows, index, len(out), len(index),
          _width(rows))


def dropout(x, ids, key, p, out):
    """Overwrite ``out[r,c] = x[r,c] * (keep ? 1 / (1-p) : 0)`` with a mask that depends on (key, ids[r], c) alone.

    Parameters
    ----------
    x : (n, ...) float32 or float64
        c counts the elements of a row.
    ids : (n,) int64
        Global row ids.
    key : int
        Taken modulo 2^64.
    p : float
        Probability of dropping, in [0, 1).
    out : x's shape and dtype

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n * F) time. Element c is dropped when word c % 4 of Philox4x32-10 with counter (id_low, id_high, c // 4, 0) and key
    (key_low, key_high) is below floor(p * 2^32). The gradient is the same call on g. Salmon et al., SC 2011.
    """
    _rows("x", x)
    _array("ids", ids, dtype=np.int64, shape=(len(x),))
    _array("out", out, dtype=x.dtype, shape=x.shape, out=True)
    _no_overlap(out, x=x)
    _call(f"sar_dropout_forward_{_FLOATS[x.dtype]}", out, x, ids, _key(key), _probability(p), len(x), _width(x))


def philox4x32(counter, key):
    """Return the 4 words of Philox4x32-10.

    Parameters
    ----------
    counter : sequence of 4 int
        Each below 2^32.
    key : sequence of 2 int
        Each below 2^32.

    Returns
    -------
    (4,) uint32
    """
    counter, key = np.array(counter, dtype=np.uint32), np.array(key, dtype=np.uint32)
    _array("counter", counter, shape=(4,))
    _array("key", key, shape=(2,))
    out = np.empty(4, dtype=np.uint32)
    _call("sar_philox4x32", out, counter, key)
    return out


def _columns(x, name="x"):
    _array(name, x, dtype=_FLOATS, shape=(None, None))
    return x.shape


def _team(x):
    """Threads for kernels with a private sum for each thread."""
    return threads() if x.size > 32768 else 1


def column_moments(x, mean, m2):
    """Overwrite the mean and the sum of squared deviations of each column; zeros when there are no rows.

    Parameters
    ----------
    x : (n, F) float32 or float64
    mean, m2 : (F,) float64

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n * F) time, 16 * threads * F bytes. Welford's update, ranges of rows merged in thread order (Chan, Golub, LeVeque 1979):
    the same result for the same number of threads.
    """
    n, n_feat = _columns(x)
    _array("mean", mean, dtype=np.float64, shape=(n_feat,), out=True)
    _array("m2", m2, dtype=np.float64, shape=(n_feat,), out=True)
    n_threads = _team(x)
    workspace = np.empty((n_threads, 2, n_feat))
    _call(f"sar_column_moments_forward_{_FLOATS[x.dtype]}", mean, m2, workspace, x, n_threads, n, n_feat)


def batch_norm_apply(x, mean, inv_std, gamma, beta, out):
    """Overwrite ``out = (x - mean) * inv_std * gamma + beta``.

    Parameters
    ----------
    x : (n, F) float32 or float64
    mean, inv_std : (F,) float64
    gamma, beta : (F,), x's dtype
    out : (n, F), x's dtype

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n * F) time. Ioffe and Szegedy 2015; SAR sec. 3.4.
    """
    n, n_feat = _columns(x)
    _array("mean", mean, dtype=np.float64, shape=(n_feat,))
    _array("inv_std", inv_std, dtype=np.float64, shape=(n_feat,))
    _array("gamma", gamma, dtype=x.dtype, shape=(n_feat,))
    _array("beta", beta, dtype=x.dtype, shape=(n_feat,))
    _array("out", out, dtype=x.dtype, shape=x.shape, out=True)
    _no_overlap(out, x=x)
    _call(f"sar_batch_norm_forward_{_FLOATS[x.dtype]}", out, x, mean, inv_std, gamma, beta, n, n_feat)


def batch_norm_sums(g, x, mean, inv_std, sum_g, sum_gx):
    """Overwrite the column sums of g and of ``g * xhat``, ``xhat = (x - mean) * inv_std``: gradients of beta and gamma.

    Parameters
    ----------
    g : (n, F), x's dtype
    x : (n, F) float32 or float64
    mean, inv_std, sum_g, sum_gx : (F,) float64

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n * F) time, 16 * threads * F bytes; the same result for the same number of threads.
    """
    n, n_feat = _columns(x)
    _array("g", g, dtype=x.dtype, shape=x.shape)
    _array("mean", mean, dtype=np.float64, shape=(n_feat,))
    _array("inv_std", inv_std, dtype=np.float64, shape=(n_feat,))
    _array("sum_g", sum_g, dtype=np.float64, shape=(n_feat,), out=True)
    _array("sum_gx", sum_gx, dtype=np.float64, shape=(n_feat,), out=True)
    n_threads = _team(x)
    workspace = np.empty((n_threads, 2, n_feat))
    _call(f"sar_batch_norm_sums_backward_{_FLOATS[x.dtype]}", sum_g, sum_gx, workspace, g, x, mean, inv_std, n_threads, n, n_feat)


def batch_norm_backward(g, x, mean, inv_std, gamma, mean_g, mean_gx, dx):
    """Overwrite ``dx = gamma * inv_std * (g - mean_g - xhat * mean_gx)``, ``xhat = (x - mean) * inv_std``.

    Parameters
    ----------
    g : (n, F), x's dtype
    x : (n, F) float32 or float64
    mean, inv_std : (F,) float64
    gamma : (F,), x's dtype
    mean_g, mean_gx : (F,) float64
        The sums of `batch_norm_sums` over all ranks, divided by the number of all rows.
    dx : (n, F), x's dtype

    Raises
    ------
    ShapeError
        Naming the argument.

    Notes
    -----
    O(n * F) time. Ioffe and Szegedy 2015; SAR sec. 3.4.
    """
    n, n_feat = _columns(x)
    _array("g", g, dtype=x.dtype, shape=x.shape)
    _array("gamma", gamma, dtype=x.dtype, shape=(n_feat,))
    for name, a in {"mean": mean, "inv_std": inv_std, "mean_g": mean_g, "mean_gx": mean_gx}.items():
        _array(name, a, dtype=np.float64, shape=(n_feat,))
    _array("dx", dx, dtype=x.dtype, shape=x.shape, out=True)
    _no_overlap(dx, g=g, x=x)
    _call(f"sar_batch_norm_backward_{_FLOATS[x.dtype]}", dx, g, x, mean, inv_std, gamma, mean_g, mean_gx, n, n_feat)


def transpose(indptr, indices, n_src):
    """Transpose a CSR.

    Parameters
    ----------
    indptr : (n_dst + 1,) int64
    indices : (n_edges,) int32 or int64
    n_src : int
        Number of columns.

    Returns
    -------
    t_indptr : (n_src + 1,) int64
    t_indices : (n_edges,), indices' dtype
        Destinations; ascending in each row.
    perm : (n_edges,), indices' dtype
        Position in `indices` of each edge of the transpose; ascending among duplicate edges.

    Raises
    ------
    ShapeError
        Naming the argument; also when an entry of `indices` is outside 0 .. n_src.

    Notes
    -----
    O(n_edges + n_src + n_dst) time; a stable counting sort (scipy.sparse).
    """
    n_dst, n_edges = _csr(indptr, indices)
    if indptr[0] != 0 or n_edges != len(indices):
        raise ShapeError(f"indices must hold just the edges of indptr, {n_edges}; got shape {indices.shape}, dtype {indices.dtype}")
    if n_edges and (indices.min() < 0 or indices.max() >= n_src):
        raise ShapeError(f"indices must lie in 0 .. {n_src}; got {indices.min()} .. {indices.max()}, shape {indices.shape}")
    from scipy.sparse import csr_array

    position = np.arange(n_edges, dtype=indices.dtype)
    t = csr_array((position, indices, indptr), shape=(n_dst, n_src)).tocsc()
    return t.indptr.astype(np.int64, copy=False), t.indices.astype(indices.dtype, copy=False), t.data
