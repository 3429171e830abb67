"""Sums on grids: ties of a grid, accuracy beside float64 sums rounded once, the oracle's bounds, and fast runs repeated."""

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
    """Half of a step is rounded to even, so by where a sum stands, unless something makes it no tie."""
    before, rng = kernels.instruction_set(), np.random.default_rng(0)
    kernels.set_instruction_set(name)
    try:
        x = np.ldexp(rng.integers(0, 8, (300, 21)) - 3.5, rng.integers(-1, 2, (300, 21))).astype(np.float32)
        one, m = np.ones((300, 2), np.float32), np.ldexp(1.5, 52)  # whose step is 1
        products, sums = set(), set()
        for _ in range(4):
            x, out = x[rng.permutation(300)], np.empty((2, 1, 21))
            products.add(kernels.exact_gemm_backward(one, x, np.ones(2), np.full(21, m), 1.0).tobytes())
            kernels.exact_spmm(np.array([0, 100, 300]), rng.permutation(300), x, out, np.full((1, 21), m), accumulate=False)
            sums.add(out.sum(0).tobytes())
        assert len(products) == len(sums) == 1
    finally:
        kernels.set_instruction_set(before)


def test_products_over_rows_are_as_good_as_float64_sums_rounded_once():
    rng = np.random.default_rng(1)
    a, g = (rng.standard_normal(shape).astype(np.float32) for shape in ((900, 37), (900, 13)))
    found = Exact(Solo()).product_over_rows(a, g)
    assert found.tobytes() == (a.T.astype(np.longdouble) @ g.astype(np.longdouble)).astype(np.float32).tobytes()


@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_products_add_one_factor_after_another_in_one_rounding(name):
    """Sums of at most 256 products, each added in one rounding, then the sums in ascending order."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 600), (600, 37)))
    wide, expected = a.astype(np.longdouble), np.zeros((9, 37), np.float32)
    for first in range(0, 600, 256):
        part = np.zeros((9, 37), np.float32)
        for p in range(first, min(first + 256, 600)):
            part = (part + wide[:, p, None] * b[p]).astype(np.float32)  # which 64 bits hold
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
    """Of the same ranks, threads and mode; of other ranks it has other bits, or the hash tells nothing."""
    way = {"mode": "sar", "parts": "by hand", "n_threads": 2, "numerics": "fast"}
    found = {digest(3, "gcn", **way) for _ in range(2)}
    assert len(found) == 1 and found != {digest(2, "gcn", **way)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_without_columns(dtype):
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], 3)
    with using(named("exact", Solo())):
        for reducer in ("mean", "max"):
            x = Tensor(np.zeros((3, 0), dtype), requires_grad=True)
            out = graph.aggregate(fn.copy_src(x), reducer)
            out.backward(out.data)
            assert out.shape == x.grad.shape == (3, 0)
