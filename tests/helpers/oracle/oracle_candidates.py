"""Functions under test for the oracle's tests: sarlite's own kernels and graphs, and plain NumPy with planted bugs."""

import numpy as np

from sarlite import Graph, Tensor, fn, kernels
from sarlite.comm import Solo, threads


def kernel_spmm(case):
    """Return the sum or mean of rows over the edges of an oracle test case, computed by the kernel `sarlite.kernels.spmm`."""
    scale = _scale(case)
    out = np.empty((case.n_dst, *case.x.shape[1:]), case.x.dtype)
    weight = case.weight if case.weighted else None
    kernels.spmm(case.indptr.astype(np.int64), case.indices, case.x, out, eid=case.eid if case.weighted else None, weight=weight,
                 dst_scale=scale, accumulate=False)
    return out


def kernel_spmm_vjp(case, g):
    """Return {input's name: gradient} of an oracle case's sum or mean, given the output's gradient `g`, by sarlite's kernels."""
    scale, x, indptr = _scale(case), case.x, case.indptr.astype(np.int64)
    order = np.lexsort((case.dst, case.src))
    back = np.concatenate([[0], np.cumsum(np.bincount(case.src, minlength=case.n_src))])
    dx, dst = np.empty_like(x), case.dst[order]
    eid = order.astype(case.eid.dtype) if case.weighted else None
    kernels.spmm(back, dst, g, dx, eid=eid, weight=case.weight if case.weighted else None, src_scale=scale, accumulate=False)
    if not case.weighted:
        return {"x": dx}
    dw = np.zeros(case.n_edges, x.dtype)
    kernels.edge_dot(indptr, case.indices, g, x, dw, eid=case.eid, dst_scale=scale)
    return {"x": dx, "weight": dw}


def _scale(case):
    if case.reduce != "mean":
        return None
    return (1 / np.maximum(np.diff(case.indptr), 1)).astype(case.x.dtype)


def kernel_sample(case):
    """Return the indices of the edges that the kernel `sarlite.kernels.sample` picks for an oracle test case."""
    rows = np.arange(case.n_dst, dtype=case.indices.dtype)
    kind = "replace" if case.replace else "uniform"
    return case.eid[kernels.sample(case.indptr.astype(np.int64), case.indices, rows, case.k, kind=kind, key=case.seed)[2]]


def message(arrays, reduce):
    """Return ({name: Tensor} of `arrays`, sarlite's message made of them, its reducer): attention if there is a "z", else `reduce`."""
    leaves = {name: Tensor(value, requires_grad=True) for name, value in arrays.items()}
    if "z" in leaves:
        return leaves, fn.attend(leaves["z"], leaves["el"], leaves["er"], slope=0.2), "sum"
    return leaves, fn.copy_src(leaves["x"]), reduce


def _gradients(leaves):
    return {name: np.zeros_like(leaf.data) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}


def graph_run(case, row_dtype="float32"):
    return _graph(case, row_dtype)[1].data


def graph_vjp(case, g, row_dtype="float32"):
    leaves, out = _graph(case, row_dtype)
    out.backward(g)
    return _gradients(leaves)


def _graph(case, row_dtype):
    graph = Graph.from_edges(case.src, case.dst, n_src=case.n_src, n_dst=case.n_dst).shard(Solo(), row_dtype=row_dtype)
    leaves, messages, reducer = message({name: getattr(case, name) for name in case.arrays}, case.attributes.get("reduce"))
    return leaves, graph.aggregate(messages, reducer)


def graph_ranks(parts):
    """Run Graph.aggregate on ranks as threads, rank k on parts[k]; return each rank's output and gradients, in its order of rows."""
    first = np.concatenate([[0], np.cumsum([len(part.ids) for part in parts])])
    row = np.empty(parts[0].n_nodes, np.int64)
    for part in parts:
        row[part.ids] = first[part.rank] + np.arange(len(part.ids))

    def one(comm):
        part = parts[comm.rank]
        local = np.searchsorted(part.ids, part.dst)
        order = np.lexsort((part.src, local))
        indptr = np.concatenate([[0], np.cumsum(np.bincount(local, minlength=len(part.ids)))])
        graph = Graph.from_part(comm, indptr, row[part.src][order], node_ids=part.ids)
        leaves, messages, reducer = message(part.arrays, part.attributes.get("reduce"))
        out = graph.aggregate(messages, reducer)
        out.backward(part.cotangents["out"])
        return {"out": out.data, "gradients": _gradients(leaves)}

    return threads.run(len(parts), one)


# ---- plain NumPy


def spmm(src, dst, x, n_dst):
    out = np.zeros((n_dst, *x.shape[1:]), x.dtype)
    np.add.at(out, dst, x[src])
    return out


def plain(case):
    return spmm(case.src, case.dst, case.x, case.n_dst)


def plain_vjp(case, g):
    return {"x": spmm(case.dst, case.src, g, case.n_src)}
