"""Running maxima and minima and their gradient: every value and index type, against a loop over edges."""


import numpy as np
import pytest

from sarlite import kernels
from sarlite.errors import ShapeError
from tests.helpers.kernels.kernel_references import (
    KINDS,
    WIDTHS,
    Csr,
    close,
    every_float,
    every_type,
    make_graph,
    normal,
    over_threads,
)


def extremum_reference(graph, x, sign, label, rank):
    out, arg = np.zeros((graph.n_dst, x.shape[1])), np.full((graph.n_dst, x.shape[1]), -1)
    for e, (i, r) in enumerate(zip(graph.dst, graph.src, strict=True)):
        for f in range(x.shape[1]):
            new, old = x[r, f], out[i, f]
            if arg[i, f] < 0 or sign * new > sign * old or (new == old and rank[label[e]] < rank[arg[i, f]]):
                out[i, f], arg[i, f] = new, label[e]
    return out, arg


@every_type
@pytest.mark.sampled(42)
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "star"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("labelled", "ordered"), [(False, False), (False, True), (True, False), (True, True)])
def test_extremum_is_a_loop_over_edges(dtype, itype, kind, sign, labelled, ordered):
    graph, rng = make_graph(kind, itype), np.random.default_rng(8)
    for width in (1, 17, 65):
        x = rng.integers(-2, 3, (graph.n_src, width)).astype(dtype)      # few values give many ties
        label = rng.integers(0, 50, graph.n_edges) if labelled else graph.src + 5
        rank = rng.permutation(60) if ordered else np.arange(60)
        out, arg = np.full((graph.n_dst, width), 0, dtype), np.full((graph.n_dst, width), -1, itype)
        kernels.extremum(graph.indptr, graph.indices, x, out, arg, sign=sign, offset=5,
                         label=label.astype(itype) if labelled else None, order=rank if ordered else None)
        expected_out, expected_arg = extremum_reference(graph, x, sign, label, rank)
        np.testing.assert_array_equal(out, expected_out)
        np.testing.assert_array_equal(arg, expected_arg)


@every_type
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("scale", [1, 2**33])
def test_extremum_does_not_depend_on_blocks(dtype, itype, sign, scale):
    """There is one call, or a call for each range of sources in any sequence, with ties broken by `order`, also by large numbers."""
    rng = np.random.default_rng(9)
    graph = Csr(rng.integers(0, 20, 500), rng.integers(0, 60, 500), 20, 60, itype)
    x, rank = rng.integers(-1, 2, (60, 21)).astype(dtype), rng.permutation(60)

    def run(ranges, rank=rank * scale):
        out, arg = np.zeros((20, 21), dtype), np.full((20, 21), -1, itype)
        for low, high in ranges:
            mine = (graph.src >= low) & (graph.src < high)
            block = Csr(graph.dst[mine], graph.src[mine] - low, 20, high - low, itype)
            kernels.extremum(block.indptr, block.indices, x[low:high], out, arg, sign=sign, offset=low, order=rank)
        return out, arg

    whole = run([(0, 60)], rank)
    for ranges in ([(0, 20), (20, 60)], [(50, 60), (0, 10), (10, 50)]):
        for a, b in zip(whole, run(ranges), strict=True):
            np.testing.assert_array_equal(a, b)


def test_extremum_is_independent_of_threads():
    rng = np.random.default_rng(22)
    graph = Csr(rng.zipf(1.5, 9000) % 400, rng.integers(0, 300, 9000), 400, 300, np.int32)
    x = rng.integers(-4, 5, (300, 11)).astype(np.float32)

    def run():
        out, arg = np.zeros((400, 11), np.float32), np.full((400, 11), -1, np.int32)
        kernels.extremum(graph.indptr, graph.indices, x, out, arg, sign=1)
        return np.stack([out, arg])

    expected = np.stack(extremum_reference(graph, x, 1, graph.src, np.arange(300)))
    for result in over_threads(run):
        np.testing.assert_array_equal(result, expected)


@every_float
@pytest.mark.parametrize("sign", [1, -1])
def test_extremum_keeps_nan(dtype, sign):
    x = np.array([[1, 9], [np.nan, 2], [np.inf, 3], [-np.inf, 4]], dtype)
    for permutation in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        out, arg = np.zeros((1, 2), dtype), np.full((1, 2), -1, np.int32)
        kernels.extremum(np.array([0, 4]), np.array(permutation, np.int32), x, out, arg, sign=sign)
        assert np.isnan(out[0, 0]) and arg[0, 0] == 1
        assert out[0, 1] == (9 if sign == 1 else 2)


@every_float
def test_extremum_over_edges(dtype):
    graph, rng = make_graph("random"), np.random.default_rng(10)
    x = normal(rng, dtype, graph.n_edges, 4)
    out, arg = np.zeros((graph.n_dst, 4), dtype), np.full((graph.n_dst, 4), -1, np.int64)
    kernels.extremum(graph.indptr, None, x, out, arg, sign=1)
    for i in range(graph.n_dst):
        rows = slice(graph.indptr[i], graph.indptr[i + 1])
        np.testing.assert_array_equal(out[i], x[rows].max(0))
        np.testing.assert_array_equal(arg[i], graph.indptr[i] + x[rows].argmax(0))


@every_type
@pytest.mark.parametrize("width", WIDTHS)
def test_extremum_backward_gives_gradients_to_the_winners(dtype, itype, width):
    rng = np.random.default_rng(11)
    g, arg = normal(rng, dtype, 300, width), rng.integers(-1, 40, (300, width)).astype(itype)
    start = normal(rng, dtype, 20, width)
    expected = start.astype(np.float64)
    i, f = np.nonzero((arg >= 10) & (arg < 30))
    np.add.at(expected, (arg[i, f] - 10, f), g[i, f])

    def run():
        dx = start.copy()
        kernels.extremum_backward(g, arg, dx, offset=10)
        return dx

    first, *others = over_threads(run)
    close(first, expected)
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_extremum_rejects_labels_outside_order():
    out, arg, x = np.zeros((1, 2)), np.full((1, 2), -1, np.int32), np.zeros((4, 2))
    with pytest.raises(ShapeError, match="label"):
        kernels.extremum(np.array([0, 1]), np.array([3], np.int32), x, out, arg, sign=1, order=np.arange(3))
    with pytest.raises(ShapeError, match="label"):
        kernels.extremum(np.array([0, 1]), np.array([0], np.int32), x, out, arg, sign=1, label=np.array([-4], np.int32))
    with pytest.raises(ShapeError, match="offset"):
        kernels.extremum(np.array([0, 1]), np.array([0], np.int32), x, out, arg, sign=1, offset=2**31 - 2)
