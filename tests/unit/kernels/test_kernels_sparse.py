"""Sums over neighbours, dot products over edges, the transpose: every value and index type, against naive float64 NumPy."""


import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite import kernels
from tests.helpers.kernels.kernel_references import (
    KINDS,
    WIDTHS,
    Csr,
    close,
    every_float,
    every_kind,
    every_type,
    make_graph,
    normal,
    over_threads,
    spmm_reference,
)


@every_type
@every_kind
@pytest.mark.parametrize("width", WIDTHS)
def test_spmm_without_weights_is_the_reference(dtype, itype, kind, width):
    graph, rng = make_graph(kind, itype), np.random.default_rng(1)
    x, out = normal(rng, dtype, graph.n_src, width), normal(rng, dtype, graph.n_dst, width)
    expected = out + spmm_reference(graph, x)
    kernels.spmm(graph.indptr, graph.indices, x, out)
    close(out, expected)


@pytest.mark.sampled(227)
@every_type
@every_kind
@pytest.mark.parametrize("shape", [(1, 5), (4, 8), (3, 33)])
@pytest.mark.parametrize("options", [("weight",), ("weight", "eid"), ("heads",), ("heads", "eid"), ("src_scale",), ("dst_scale",),
                                     ("heads", "eid", "src_scale", "dst_scale")])
def test_spmm_weights_and_scales(dtype, itype, kind, shape, options):
    graph, rng = make_graph(kind, itype), np.random.default_rng(2)
    x = normal(rng, dtype, graph.n_src, *shape)
    arguments = {"src_scale": normal(rng, dtype, graph.n_src), "dst_scale": normal(rng, dtype, graph.n_dst),
                 "eid": rng.permutation(graph.n_edges + 3)[: graph.n_edges].astype(itype)}
    arguments = {name: a for name, a in arguments.items() if name in options}
    if "weight" in options or "heads" in options:
        arguments["weight"] = normal(rng, dtype, graph.n_edges + 3, *([shape[0]] if "heads" in options else []))
    out = np.zeros((graph.n_dst, *shape), dtype)
    kernels.spmm(graph.indptr, graph.indices, x, out, **arguments)
    close(out, spmm_reference(graph, x, **arguments))


@every_float
@every_kind
def test_spmm_segment_sum(dtype, kind):
    graph, rng = make_graph(kind), np.random.default_rng(3)
    x, out = normal(rng, dtype, graph.n_edges, 6), np.zeros((graph.n_dst, 6), dtype)
    weight = normal(rng, dtype, graph.n_edges)
    kernels.spmm(graph.indptr, None, x, out, weight=weight)
    close(out, spmm_reference(graph, x, weight=weight, segment=True))


@every_type
def test_spmm_trailing_shapes(dtype, itype):
    graph, rng = make_graph("random", itype), np.random.default_rng(4)
    for shape in [(), (2, 3, 4), (0,)]:
        x, out = normal(rng, dtype, graph.n_src, *shape), np.zeros((graph.n_dst, *shape), dtype)
        kernels.spmm(graph.indptr, graph.indices, x, out)
        close(out, spmm_reference(graph, x))


@every_type
def test_a_long_row_is_summed_like_others(dtype, itype):
    rng = np.random.default_rng(5)
    graph = Csr([1] * 100_000, rng.integers(0, 50, 100_000), 3, 50, itype)
    x, out = normal(rng, dtype, 50, 19), np.zeros((3, 19), dtype)
    kernels.spmm(graph.indptr, graph.indices, x, out)
    times = np.bincount(graph.src, minlength=50)
    close(out[1], times @ x.astype(np.float64), scale=np.abs(times @ x).max() + 300)
    assert not out[[0, 2]].any()


def ranged(dtype, longest, ascending=True):
    """Return a graph so dense that its sums over 256 columns take ranges (native/spmm.c), and the end of each range.

    It has two tiles of rows, a row without edges, and a row of several groups.
    """
    rng, n_dst, n = np.random.default_rng(7), 4200, 1100
    dst, src = rng.integers(0, n_dst, 40_000), rng.integers(0, n, 40_000 + longest)
    dst = np.concatenate([np.where(dst == 5, 6, dst), np.full(longest, 3)])
    order = np.lexsort((src, dst)) if ascending else slice(None)
    n_ranges = n * 256 * np.dtype(dtype).itemsize // 2**20 + 1
    assert n_ranges > 1
    ends = [n // n_ranges * r + n % n_ranges * r // n_ranges for r in range(1, n_ranges + 1)]
    return Csr(dst[order], src[order], n_dst, n), ends


@every_type
@pytest.mark.parametrize("accumulate", [True, False])
def test_ranges_are_added_one_after_another(dtype, itype, accumulate):
    graph, ends = ranged(dtype, 60_000)
    rng = np.random.default_rng(8)
    x, start = normal(rng, dtype, graph.n_src, 256), normal(rng, dtype, graph.n_dst, 256)
    scale = normal(rng, dtype, graph.n_dst)

    def run():
        out = start.copy()
        kernels.spmm(graph.indptr, graph.src.astype(itype), x, out, dst_scale=scale, accumulate=accumulate)
        return out

    expected = start.copy() if accumulate else np.zeros_like(start)
    for first, end in zip([0, *ends], ends):
        in_part = (graph.src >= first) & (graph.src < end)
        part = Csr(graph.dst[in_part], graph.src[in_part], graph.n_dst, graph.n_src, itype)
        kernels.spmm(part.indptr, part.indices, x, expected, dst_scale=scale)
    for actual in over_threads(run):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.sampled(4)
@every_type
@pytest.mark.parametrize("ascending", [True, False])
def test_sums_in_ranges(dtype, itype, ascending):
    graph, _ = ranged(dtype, 17_000, ascending)
    rng = np.random.default_rng(9)
    x, out = normal(rng, dtype, graph.n_src, 2, 128), np.zeros((graph.n_dst, 2, 128), dtype)
    arguments = {"weight": normal(rng, dtype, graph.n_edges, 2), "eid": rng.permutation(graph.n_edges).astype(itype),
                 "src_scale": normal(rng, dtype, graph.n_src), "dst_scale": normal(rng, dtype, graph.n_dst)}
    kernels.spmm(graph.indptr, graph.src.astype(itype), x, out, **arguments)
    close(out, spmm_reference(graph, x, **arguments))


@every_type
def test_narrow_rows_take_one_range(dtype, itype):
    """A few rows get the same bits as among all rows, although few rows read x too rarely for ranges."""
    rng, n_dst, n = np.random.default_rng(10), 4096, 9000
    graph = Csr(rng.integers(0, n_dst, 300_000), np.sort(rng.integers(0, n, 300_000)), n_dst, n, itype)
    x = normal(rng, dtype, n, 128 // np.dtype(dtype).itemsize)
    assert x.nbytes > 2**20 and graph.n_edges // n_dst * n_dst >= 32 * n  # as large and as dense as graphs that take ranges

    def run(rows):
        out = np.zeros((rows.stop - rows.start, x.shape[1]), dtype)
        kernels.spmm(graph.indptr[rows.start : rows.stop + 1], graph.indices, x, out)
        return out

    np.testing.assert_array_equal(run(slice(0, n_dst))[:100], run(slice(0, 100)))


def test_spmm_is_independent_of_threads_and_row_slices():
    rng = np.random.default_rng(6)
    graph = Csr(rng.zipf(1.5, 60_000) % 500, rng.integers(0, 500, 60_000), 500, 500, np.int32)
    x = normal(rng, np.float32, 500, 48)

    def run(rows=slice(0, 500)):
        out = np.zeros((rows.stop - rows.start, 48), np.float32)
        kernels.spmm(graph.indptr[rows.start : rows.stop + 1], graph.indices, x, out)
        return out

    one, *others = over_threads(run)
    for other in others:
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one, np.concatenate([run(slice(0, 3)), run(slice(3, 200)), run(slice(200, 500))]))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 20), st.integers(0, 80), st.sampled_from(WIDTHS))
def test_spmm_over_the_transpose_is_the_adjoint_of_spmm(seed, n_dst, n_src, n_edges, width):
    """<A x, y> = <x, A' y>, also through the transpose's permutation of the weights."""
    rng = np.random.default_rng(seed)
    graph = Csr(rng.integers(0, n_dst, n_edges), rng.integers(0, n_src, n_edges), n_dst, n_src, np.int32)
    x, y, weight = rng.standard_normal((n_src, width)), rng.standard_normal((n_dst, width)), rng.standard_normal(n_edges)
    t_indptr, t_indices, perm = kernels.transpose(graph.indptr, graph.indices, n_src)
    ax, aty, dots = np.zeros_like(y), np.zeros_like(x), np.zeros(n_edges)
    kernels.spmm(graph.indptr, graph.indices, x, ax, weight=weight)
    kernels.spmm(t_indptr, t_indices, y, aty, weight=weight, eid=perm)
    kernels.edge_dot(graph.indptr, graph.indices, y, x, dots)
    assert np.vdot(ax, y) == pytest.approx(np.vdot(x, aty), rel=1e-10, abs=1e-10)
    assert np.vdot(ax, y) == pytest.approx(weight @ dots, rel=1e-10, abs=1e-10)


@pytest.mark.sampled(152)
@every_type
@every_kind
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("heads", [None, 3])
def test_edge_dot_is_the_reference(dtype, itype, kind, width, heads):
    graph, rng = make_graph(kind, itype), np.random.default_rng(7)
    shape = (width,) if heads is None else (heads, width)
    g, x = normal(rng, dtype, graph.n_dst, *shape), normal(rng, dtype, graph.n_src, *shape)
    eid, scale = rng.permutation(graph.n_edges).astype(itype), normal(rng, dtype, graph.n_dst)
    out = normal(rng, dtype, graph.n_edges, *shape[:-1])
    expected = out.astype(np.float64)
    products = scale[graph.dst].astype(np.float64).reshape(-1, *[1] * len(shape)) * g[graph.dst] * x[graph.src]
    expected[eid] += products.sum(-1)
    kernels.edge_dot(graph.indptr, graph.indices, g, x, out, eid=eid, dst_scale=scale)
    close(out, expected, scale=np.abs(products).sum(-1).max(initial=1))


@every_float
def test_edge_dot_of_values_that_are_not_finite(dtype):
    """Infinity anywhere in a row, on either side, gives infinity; NaN comes from NaN, or from infinities that cancel."""
    one, both_ends = np.arange(2), np.array([0, 2])
    indices = np.arange(2, dtype=np.int32)
    for width in [*range(1, 40), 47, 63, 65, 100, 127, 128, 129, 150, 257]:
        for column in {0, 1, width // 2, width - 9, width - 2, width - 1} & set(range(width)):
            for where in (0, 1):
                for value, expected in ((np.inf, np.inf), (-np.inf, -np.inf), (np.nan, np.nan)):
                    both, out = [np.ones((1, width), dtype) for _ in range(2)], np.zeros(1, dtype)
                    both[where][0, column] = value
                    kernels.edge_dot(one, indices[:1], *both, out)
                    assert np.array_equal(out, [expected], equal_nan=True), (width, column, where, value)
    g, x, out = np.ones((1, 33), dtype), np.full((2, 33), np.inf, dtype), np.zeros(2, dtype)
    x[1, 20] = -np.inf
    kernels.edge_dot(both_ends, indices, g, x, out)
    assert out[0] == np.inf and np.isnan(out[1])


@every_type
def test_transpose_is_a_stable_sort_by_source(dtype, itype):
    for kind in KINDS:
        graph = make_graph(kind, itype)
        t_indptr, t_indices, perm = kernels.transpose(graph.indptr, graph.indices, graph.n_src)
        assert (t_indptr.dtype, t_indices.dtype, perm.dtype) == (np.int64, itype, itype)
        order = np.lexsort((np.arange(graph.n_edges), graph.dst, graph.src))
        np.testing.assert_array_equal(perm, order)
        np.testing.assert_array_equal(t_indices, graph.dst[order])
        np.testing.assert_array_equal(t_indptr, np.searchsorted(graph.src[order], np.arange(graph.n_src + 1)))
        *without, none = kernels.transpose(graph.indptr, graph.indices, graph.n_src, position=False)
        assert none is None and [a.dtype for a in without] == [np.int64, itype]
        assert all(np.array_equal(a, b) for a, b in zip(without, (t_indptr, t_indices)))


def test_transpose_by_several_threads():
    """The graph has enough edges that each thread computes a range of columns."""
    n, n_edges = 5_003, 1 << 22
    indptr = np.linspace(0, n_edges, n + 1).astype(np.int64)
    indices = np.random.default_rng(0).integers(0, n, n_edges, dtype=np.int32)
    one_thread, several = over_threads(lambda: kernels.transpose(indptr, indices, n), (1, 4))
    assert all(np.array_equal(a, b) for a, b in zip(several, one_thread))
    assert np.array_equal(several[0][1:], np.cumsum(np.bincount(indices, minlength=n)))
    assert np.array_equal(indices[several[2]], np.repeat(np.arange(n), np.diff(several[0])))
