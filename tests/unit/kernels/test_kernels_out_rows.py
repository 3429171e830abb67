"""Kernels on a CSR of only the rows with edges, whose output rows `rows` names: the bits of the CSR of all rows."""


import numpy as np
import pytest

from sarlite import kernels
from tests.helpers.kernels.kernel_references import (
    KINDS,
    attend_operands,
    attend_reference,
    close,
    every_float,
    every_kind,
    every_type,
    make_dropout,
    make_graph,
    normal,
    over_threads,
    spmm_reference,
)


def short(graph, order):
    """Return (indptr, indices, rows, edges) of the rows that have edges, ascending or not.

    `edges` are the positions of the edges in the whole CSR.
    """
    rows = np.flatnonzero(np.diff(graph.indptr))
    rows = rows if order == "ascending" else np.random.default_rng(31).permutation(rows)
    edges = [np.arange(graph.indptr[i], graph.indptr[i + 1]) for i in rows]
    edges = np.concatenate([*edges, np.empty(0, np.int64)]).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(np.diff(graph.indptr)[rows])]).astype(np.int64)
    return indptr, graph.indices[edges], rows.astype(graph.indices.dtype), edges


every_order = pytest.mark.parametrize("order", ["ascending", "shuffled"])


@every_type
@every_kind
@every_order
def test_spmm_into_numbered_rows(dtype, itype, kind, order):
    graph, rng = make_graph(kind, itype), np.random.default_rng(32)
    indptr, indices, rows, edges = short(graph, order)
    x, start = normal(rng, dtype, graph.n_src, 3, 7), normal(rng, dtype, graph.n_dst, 3, 7)
    weight, scale = normal(rng, dtype, graph.n_edges, 3), normal(rng, dtype, graph.n_dst)
    whole, part = start.copy(), start.copy()
    kernels.spmm(graph.indptr, graph.indices, x, whole, weight=weight, dst_scale=scale)
    kernels.spmm(indptr, indices, x, part, rows=rows, weight=weight, eid=edges.astype(itype), dst_scale=scale)
    np.testing.assert_array_equal(part, whole)

    kernels.spmm(indptr, indices, x, part, rows=rows, accumulate=False)
    others = np.setdiff1d(np.arange(graph.n_dst), rows)
    np.testing.assert_array_equal(part[others], start[others])
    close(part[rows], spmm_reference(graph, x)[rows])


@every_type
@every_kind
@every_order
def test_edge_dot_of_numbered_rows(dtype, itype, kind, order):
    graph, rng = make_graph(kind, itype), np.random.default_rng(33)
    indptr, indices, rows, edges = short(graph, order)
    g, x, scale = normal(rng, dtype, graph.n_dst, 2, 9), normal(rng, dtype, graph.n_src, 2, 9), normal(rng, dtype, graph.n_dst)
    whole = normal(rng, dtype, graph.n_edges, 2)
    part = whole.copy()
    kernels.edge_dot(graph.indptr, graph.indices, g, x, whole, dst_scale=scale)
    kernels.edge_dot(indptr, indices, g, x, part, rows=rows, eid=edges.astype(itype), dst_scale=scale)
    np.testing.assert_array_equal(part, whole)


@every_type
@every_kind
@every_order
def test_extremum_into_numbered_rows(dtype, itype, kind, order):
    graph, rng = make_graph(kind, itype), np.random.default_rng(34)
    indptr, indices, rows, _ = short(graph, order)
    x = rng.integers(-2, 3, (graph.n_src, 6)).astype(dtype)
    results = []
    for csr, more in (((graph.indptr, graph.indices), {}), ((indptr, indices), {"rows": rows})):
        out, arg = np.zeros((graph.n_dst, 6), dtype), np.full((graph.n_dst, 6), -1, itype)
        kernels.extremum(*csr, x, out, arg, sign=1, **more)
        results.append((out, arg))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


@every_type
@every_kind
@every_order
@pytest.mark.sampled(28)
@pytest.mark.parametrize("dropped", [False, True])
def test_attend_and_its_gradients(dtype, itype, kind, order, dropped):
    graph, rng = make_graph(kind, itype), np.random.default_rng(35)
    indptr, indices, rows, _ = short(graph, order)
    z, src, dst = attend_operands(graph, dtype, 3, 10)
    g, dropout, results = normal(rng, dtype, graph.n_dst, 3, 10), make_dropout(graph) if dropped else None, []
    for csr, more in (((graph.indptr, graph.indices), {}), ((indptr, indices), {"rows": rows})):
        m, total, acc = np.full(dst.shape, -np.inf, dtype), np.zeros(dst.shape, dtype), np.zeros(g.shape, dtype)
        kernels.attend(*csr, z, src, dst, m, total, acc, slope=0.2, dropout=dropout, **more)
        kernels.attend_finish(m, total, acc)
        ends, grads = kernels.attend_ends(dst, m, total, g, acc), [np.zeros_like(a) for a in (z, src, dst)]
        transposed = kernels.transpose(*csr, graph.n_src, position=False, **more)[:2]
        kernels.attend_backward(*transposed, z, src, ends, g, *grads, slope=0.2, dropout=dropout)
        results.append((acc, m, *grads))
    close(results[1][0], attend_reference(graph, z, src, dst, 0.2, dropout)[0], scale=np.abs(z).max())
    for a, b in zip(*results, strict=True):
        if order == "ascending":
            np.testing.assert_array_equal(a, b)
        else:       # a source's destinations come in another order
            close(b, a.astype(np.float64), scale=10)


@every_float
def test_sums_of_ddst_are_shared_by_blocks(dtype):
    """Two blocks into one `sums` equal one call on all edges; a float64 sum is rounded once."""
    graph, rng = make_graph("random", np.int32), np.random.default_rng(36)
    z, src, dst = attend_operands(graph, dtype, 2, 50)
    g = normal(rng, dtype, graph.n_dst, 2, 50)
    ends = np.stack([dst, np.zeros_like(dst), np.ones_like(dst), normal(rng, dtype, *dst.shape)], axis=-1)
    t_indptr, t_indices, _ = kernels.transpose(graph.indptr, graph.indices, graph.n_src)

    def run(cuts, together):
        dz, dsrc, ddst = (np.zeros_like(a) for a in (z, src, dst))
        sums = np.zeros((kernels.threads(), *dst.shape)) if together else None
        for a, b in zip(cuts, cuts[1:], strict=False):
            kernels.attend_backward(t_indptr[a : b + 1], t_indices, z[a:b], src[a:b], ends, g, dz[a:b], dsrc[a:b],
                                    None if together else ddst, slope=0.2, sums=sums)
        if together:
            assert not ddst.any() and np.count_nonzero(sums) > 0
            kernels.attend_backward_finish(sums, ddst)
        return dz, dsrc, ddst

    whole = [0, graph.n_src]
    for one, two in zip(over_threads(lambda: run(whole, False)), over_threads(lambda: run(whole, True)), strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)
    for a, b in zip(run(whole, True), run([0, 9, 20, graph.n_src], True), strict=True):
        close(b, a.astype(np.float64), scale=100)


def test_fewer_sums_than_threads():
    graph, rng = make_graph("random", np.int32), np.random.default_rng(37)
    z, src, dst = attend_operands(graph, np.float64, 2, 50)
    g, sums = rng.standard_normal((graph.n_dst, 2, 50)), np.zeros((1, *dst.shape))
    ends = kernels.attend_ends(dst, np.zeros_like(dst), np.ones_like(dst), g, np.zeros_like(g))
    t = kernels.transpose(graph.indptr, graph.indices, graph.n_src)[:2]
    ddst, start = np.zeros_like(dst), rng.standard_normal(dst.shape)

    def run():
        sums[:] = 0
        kernels.attend_backward(*t, z, src, ends, g, np.zeros_like(z), np.zeros_like(src), None, slope=0.2, sums=sums)
        ddst[:] = start
        kernels.attend_backward_finish(sums, ddst)
        np.testing.assert_array_equal(ddst, start + sums[0])
        return ddst.copy()

    first, *others = over_threads(run)
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("itype", [np.int32, np.int64])
def test_transpose_of_short_rows_and_threads(itype):
    rng = np.random.default_rng(38)
    n_dst, n_src, n_edges = 3000, 2500, 60_000
    dst, src = np.sort(rng.zipf(1.3, n_edges) % n_dst), rng.zipf(1.3, n_edges) % n_src       # hubs, and rows without edges
    rows = rng.permutation(10 * n_dst)[:n_dst].astype(itype)
    indptr = np.searchsorted(dst, np.arange(n_dst + 1)).astype(np.int64)
    order = np.argsort(src, kind="stable")
    for got in over_threads(lambda: kernels.transpose(indptr, src.astype(itype), n_src, rows=rows), (1, 2, 3, 7)):
        np.testing.assert_array_equal(got[0], np.searchsorted(src[order], np.arange(n_src + 1)))
        np.testing.assert_array_equal(got[1], rows[dst[order]])
        np.testing.assert_array_equal(got[2], order)
        assert [a.dtype for a in got] == [np.int64, itype, itype]


@pytest.mark.parametrize("kind", KINDS)
def test_transpose_with_rows(kind):
    graph = make_graph(kind, np.int32)
    indptr, indices, rows, _ = short(graph, "ascending")
    expected = kernels.transpose(graph.indptr, graph.indices, graph.n_src)
    for a, b in zip(kernels.transpose(indptr, indices, graph.n_src, rows=rows), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_transpose_without_rows_or_columns():
    none = np.empty(0, np.int32)
    t_indptr, t_indices, perm = kernels.transpose(np.zeros(1, np.int64), none, 3)
    assert t_indptr.tolist() == [0, 0, 0, 0] and len(t_indices) == len(perm) == 0
    assert kernels.transpose(np.zeros(4, np.int64), none, 0)[0].tolist() == [0]
