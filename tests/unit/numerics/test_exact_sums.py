"""Sums on grids: ties, accuracy beside float64 sums rounded once, the oracle's bounds, and repeated fast runs."""

from fractions import Fraction

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, kernels
from sarlite.comm import Solo
from sarlite.numerics import using
from sarlite.numerics.exact_sum import Exact, named
from sarlite.oracle import check
from tests.helpers.oracle.oracle_candidates import graph_run, graph_vjp
from tests.helpers.train.exact_runs import digest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_ties_of_a_grid_have_the_same_sums_in_any_order(name):
    """Half of a step is rounded to even, so the result would depend on the partial sum, unless the tie is broken."""
    before, rng = kernels.instruction_set(), np.random.default_rng(0)
    kernels.set_instruction_set(name)
    try:
        x = np.ldexp(rng.integers(0, 8, (300, 21)) - 3.5, rng.integers(-1, 2, (300, 21))).astype(np.float32)
        one, m = np.ones((300, 2), np.float32), np.ldexp(1.5, 52)  # the step of this grid is 1
        products, sums = set(), set()
        for _ in range(4):
            x, out = x[rng.permutation(300)], np.empty((2, 1, 21))
            products.add(kernels.exact_gemm_backward(one, x, np.ones(2), np.full(21, m), 1.0).tobytes())
            kernels.exact_spmm(np.array([0, 100, 300]), rng.permutation(300), x, out, np.full((1, 21), m), accumulate=False)
            sums.add(out.sum(0).tobytes())
        assert len(products) == len(sums) == 1
    finally:
        kernels.set_instruction_set(before)


def exactly(values):
    return sum(Fraction(float(value)) for value in np.ravel(values))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bound_of_a_sum_over_edges(dtype):
    """Values half a step of the grid apart nearly reach the bound; the largest value of the column is in another row."""
    rng, exact, ratios = np.random.default_rng(0), Exact(Solo()), []
    for _ in range(200):
        n, largest = int(rng.integers(1, 70)), float(rng.choice([1.0, np.nextafter(2, 0)]))
        n_most = n * int(rng.integers(1, 4))
        grid = exact.grid_of(np.array([largest]), n_most, np.dtype(dtype))
        step = grid[-1, 0] / 1.5 * 2.0**-52
        x = ((rng.integers(0, 3, (n, 1)) + rng.choice([0.499, 0.501, 0.4], (n, 1))) * step).astype(dtype)
        sums = np.zeros((1, *grid.shape))
        kernels.exact_spmm(np.array([0, n]), np.arange(n), x, sums, grid)
        bound = n * n_most * 2.0**-49 if dtype == np.float32 else n * n_most**2 * 2.0**-99
        ratios.append(float(abs(exactly(sums) - exactly(x))) / (bound * largest))
    assert 0.25 < max(ratios) <= 1


@pytest.mark.parametrize("scale", [2.0**-90, 1.0, 2.0**90])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bound_of_a_product_over_rows(dtype, scale):
    rng, exact, ratios = np.random.default_rng(0), Exact(Solo()), []
    for number in range(60):
        k = int(rng.integers(2, 90))
        a, g = (rng.standard_normal((k, 1)) * 10.0 ** rng.integers(-6, 1, (k, 1)) for _ in range(2))
        if number % 2:  # large values that do not meet, and small products that are rounded away
            small = 2.0 ** (-25 if dtype == np.float32 else -48)
            a, g = (small * rng.uniform(1, 2, (k, 1)) for _ in range(2))
            a[:2], g[:2] = [[1], [0]], [[0], [1]]
        a, g = a.astype(dtype), (g * scale).astype(dtype)
        norms, n_bits = exact._norms([a, g], False)
        sums = kernels.exact_gemm_backward(a, g, np.ldexp(1.0, norms[0]), np.ldexp(6.0, norms[1]), 2.0 ** (n_bits - 51))
        products = a.astype(np.float64) * g.astype(np.float64)  # float32 values are exact
        bound = k * 2.0**-49 if dtype == np.float32 else k**2 * 2.0**-99
        for x in (a.astype(np.float64), g.astype(np.float64)):
            bound *= np.sqrt((x**2).sum() + k * 2.0**-17 * np.abs(x).max() ** 2)
        ratios.append(float(abs(exactly(sums) - exactly(products)) / Fraction(float(bound))))
    assert 0.25 < max(ratios) <= 1


def test_products_over_rows_are_as_good_as_float64_sums_rounded_once():
    rng = np.random.default_rng(1)
    a, g = (rng.standard_normal(shape).astype(np.float32) for shape in ((900, 37), (900, 13)))
    product = Exact(Solo()).product_over_rows(a, g)
    assert product.tobytes() == (a.T.astype(np.longdouble) @ g.astype(np.longdouble)).astype(np.float32).tobytes()


@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_products_add_one_factor_after_another_in_one_rounding(name):
    """At most 256 products are added, each in one rounding; then these sums are added in ascending order."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 600), (600, 37)))
    wide, expected = a.astype(np.longdouble), np.zeros((9, 37), np.float32)
    for first in range(0, 600, 256):
        part = np.zeros((9, 37), np.float32)
        for p in range(first, min(first + 256, 600)):
            part = (part + wide[:, p, None] * b[p]).astype(np.float32)  # 64 bits hold these sums
        expected += part
    before = kernels.instruction_set()
    kernels.set_instruction_set(name)
    try:
        assert Exact(Solo()).product(a, b).tobytes() == expected.tobytes()
    finally:
        kernels.set_instruction_set(before)


@pytest.mark.parametrize("name, options", [("spmm", {"reduce": "sum"}), ("spmm", {"reduce": "mean"}), ("spmm", {"reduce": "max"}),
                                           ("attention", {"kind": "gat"})])
def test_the_oracle_finds_nothing(name, options):
    def run(case):
        with using(Exact(Solo())):
            return graph_run(case)

    def vjp(case, g):
        with using(Exact(Solo())):
            return graph_vjp(case, g)

    few = ("ring-2", "in-star-64", "isolated-12-odd-ties", "powers-60-*")
    report = check(run, name, vjp=vjp, level="certified", graphs=few, shrink=False, **options).require()
    assert report.checked["certified"] > 10


def test_a_fast_run_is_repeated_bit_for_bit():
    """The run has the same ranks, threads and mode; with other ranks it has other bits, or the hash would show nothing."""
    way = {"mode": "sar", "parts": "by hand", "n_threads": 2, "numerics": "fast"}
    digests = {digest(3, "gcn", **way) for _ in range(2)}
    assert len(digests) == 1 and digests != {digest(2, "gcn", **way)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_without_columns(dtype):
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], 3)
    with using(named("exact", Solo())):
        for reducer in ("mean", "max"):
            x = Tensor(np.zeros((3, 0), dtype), requires_grad=True)
            out = graph.aggregate(fn.copy_src(x), reducer)
            out.backward(out.data)
            assert out.shape == x.grad.shape == (3, 0)


@pytest.mark.parametrize("n_heads", [1, 3, 4, 6])
def test_attention_over_all_edges_computes_the_largest_scores(n_heads):
    """The kernel has the bits that it has with scores from outside; rows of -inf, NaN and no edges included."""
    rng, indptr = np.random.default_rng(0), np.array([0, 3, 3, 300, 302, 303])
    src = rng.standard_normal((40, n_heads)).astype(np.float32)
    src[38], src[39] = -np.inf, np.nan
    indices = np.concatenate([rng.integers(0, 38, 300), [38, 38, 39]])
    dst, z = rng.standard_normal((5, n_heads)).astype(np.float32), rng.standard_normal((40, n_heads, 7)).astype(np.float32)
    grids = np.full((1, n_heads), 1.5 * 2.0**20), np.full((1, n_heads, 7), 1.5 * 2.0**20)
    score = src[indices] + dst[np.repeat(np.arange(5), np.diff(indptr))]
    score = np.where(score > 0, score, np.float32(0.2) * score)
    largest = np.array([score[a:b].max(0) if b > a else np.zeros(n_heads) for a, b in zip(indptr, indptr[1:])], np.float32)
    largest[np.isneginf(largest)] = 0
    sums = np.zeros((5, 1, n_heads)), np.zeros((5, 1, n_heads, 7))
    kernels.exact_attend(indptr, indices, z, src, dst, largest.copy(), *sums, *grids, slope=0.2)
    m, inverse, out = np.full_like(dst, 7), np.zeros_like(dst), np.zeros((5, n_heads, 7), np.float32)
    kernels.exact_attend(indptr, indices, z, src, dst, m, inverse, out, *grids, slope=0.2)
    np.testing.assert_array_equal(m[:4], largest[:4])
    expected = np.zeros_like(out)
    with np.errstate(divide="ignore"):
        kernels.exact_whole(sums[1], expected, np.where(sums[0][:, 0] == 0, 0, 1 / sums[0][:, 0]))
    np.testing.assert_array_equal(out, expected)
    assert np.isnan(out[4]).all() and np.isfinite(out[:4]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_columns_of_centred_values_as_of_a_matrix(dtype, n_threads):
    rng, before = np.random.default_rng(0), kernels.threads()
    x, y = rng.standard_normal((2, 4000, 21)).astype(dtype)
    x[7, 3], y[8, 4] = np.inf, np.nan
    centre, scale = rng.standard_normal((2, 21))
    kernels.set_threads(n_threads)
    try:
        for factor in (y, None):
            dense = (x - centre) * scale
            dense *= dense if factor is None else factor
            largest = kernels.exact_centred(x, centre, scale, factor, "largest")
            np.testing.assert_array_equal(largest, kernels.exact_largest(dense))
            inverse = np.ldexp(1.0, -np.frexp(largest)[1])
            squares = kernels.exact_centred(x, centre, scale, factor, "squares", inverse)
            np.testing.assert_array_equal(squares, kernels.exact_squares(dense, inverse))
            grid, sums = np.ldexp(1.5, [[30], [-9]]) * np.ones(21), np.zeros((1, 2, 21))
            kernels.exact_spmm(np.array([0, 4000]), None, dense, sums, grid)
            np.testing.assert_array_equal(kernels.exact_centred(x, centre, scale, factor, "sum", grid), sums[0])
    finally:
        kernels.set_threads(before)
