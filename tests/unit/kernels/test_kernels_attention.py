"""Fused attention, forward and backward: every value and index type, against an explicit softmax in float64 and finite differences."""


import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sarlite import kernels
from tests.helpers.kernels.kernel_references import (
    WIDTHS,
    Csr,
    attend,
    attend_gradients,
    attend_operands,
    attend_reference,
    close,
    edge_factors,
    every_float,
    every_kind,
    every_type,
    log_sum_exp,
    make_dropout,
    make_graph,
    normal,
    over_threads,
)


@every_type
@every_kind
@pytest.mark.sampled(42)
@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (4, 32), (5, 33), (1, 257)])
@pytest.mark.parametrize("dropped", [False, True])
def test_attend_is_an_explicit_softmax(dtype, itype, kind, shape, dropped):
    graph = make_graph(kind, itype)
    z, src, dst = attend_operands(graph, dtype, *shape)
    dropout = make_dropout(graph) if dropped else None
    out, m, scale = attend([(graph, 0, graph.n_src)], z, src, dst, 0.2, dropout)
    expected_out, expected_lse = attend_reference(graph, z, src, dst, 0.2, dropout)
    close(out, expected_out, scale=np.abs(z).max())
    close(log_sum_exp(m, scale).astype(dtype), expected_lse, scale=10)


@every_float
def test_attend_does_not_depend_on_blocks(dtype):
    rng = np.random.default_rng(12)
    graph = Csr(rng.integers(0, 15, 900), rng.integers(0, 60, 900), 15, 60, np.int32)
    z, src, dst = attend_operands(graph, dtype, 3, 20, spread=20)
    dropout = make_dropout(graph)
    whole = attend([(graph, 0, 60)], z, src, dst, 0.2, dropout)
    for cuts in ([0, 13, 60], [0, 1, 2, 30, 59, 60]):
        blocks = []
        for low, high in zip(cuts, cuts[1:], strict=False):
            mine = (graph.src >= low) & (graph.src < high)
            blocks.append((Csr(graph.dst[mine], graph.src[mine] - low, 15, high - low, np.int32), low, high))
        for sequence in (blocks, blocks[::-1]):
            out, m, scale = attend(sequence, z, src, dst, 0.2, dropout)
            close(out, whole[0], scale=30)
            close(log_sum_exp(m, scale), log_sum_exp(*whole[1:]), scale=30 * np.finfo(dtype).eps / np.finfo(np.float64).eps)


@every_float
def test_attend_long_row_and_extreme_scores(dtype):
    rng = np.random.default_rng(13)
    graph = Csr([0] * 100_000, rng.integers(0, 40, 100_000), 2, 40, np.int32)
    z, src, dst = attend_operands(graph, dtype, 2, 9)
    out, m, scale = attend([(graph, 0, 40)], z, src, dst, 0.2)
    expected_out, expected_lse = attend_reference(graph, z, src, dst, 0.2)
    close(out, expected_out, scale=10, factor=100)
    close(log_sum_exp(m, scale).astype(dtype), expected_lse, scale=10, factor=100)

    src[:] = rng.choice([-800, 0, 700], (40, 2))       # exp() of any of these is 0 or infinite
    out, m, scale = attend([(graph, 0, 40)], z, src, dst, 1.0)
    expected_out, expected_lse = attend_reference(graph, z, src, dst, 1.0)
    close(out, expected_out, scale=10, factor=100)
    close(log_sum_exp(m, scale).astype(dtype), expected_lse, scale=1000)


@every_float
def test_attend_without_weight(dtype):
    """A score of -inf has weight 0; a row of such scores is 0, not NaN. A NaN score is visible in the result."""
    graph = Csr([0, 0, 1, 2], [0, 1, 1, 2], 3, 3, np.int32)
    z, dst = np.ones((3, 1, 2), dtype), np.zeros((3, 1), dtype)
    src = np.array([[1], [-np.inf], [np.nan]], dtype)
    out, m, scale = attend([(graph, 0, 3)], z, src, dst, 0.2)
    np.testing.assert_array_equal(out[:2, 0], [[1, 1], [0, 0]])
    np.testing.assert_array_equal(m[:2, 0], [1, 0])
    np.testing.assert_array_equal(scale[:2, 0], [1, 0])
    assert np.isnan(out[2]).all()


@every_float
@pytest.mark.parametrize("masked", ["sources", "destination"])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_node_whose_edges_are_all_masked(dtype, masked, dropped):
    """The node gets 0 and gives gradients of 0, whatever blocks its edges come in; other nodes are not affected."""
    rng = np.random.default_rng(3)
    graph = Csr([0] * 300 + [1] * 40 + [2] * 5, rng.integers(0, 20, 345) + [*[0] * 300, *[20] * 40, *[0] * 5], 3, 40, np.int32)
    z, src, dst = attend_operands(graph, dtype, 3, 33)
    (src[20:] if masked == "sources" else dst[1:2])[...] = -np.inf
    g, dropout = normal(rng, dtype, 3, 3, 33), make_dropout(graph) if dropped else None
    cuts = [Csr(graph.dst[mine], graph.src[mine] - low, 3, 20, np.int32)
            for low, mine in ((0, graph.src < 20), (20, graph.src >= 20))]
    for blocks in ([(graph, 0, 40)], [(cuts[1], 20, 40), (cuts[0], 0, 20)]):
        out, m, scale = attend(blocks, z, src, dst, 0.2, dropout)
        assert not out[1].any() and not scale[1].any() and not m[1].any()
    dz, dsrc, ddst = attend_gradients(graph, z, src, dst, g, 0.2, dropout)
    assert not dz[20:].any() and not dsrc[20:].any() and not ddst[1].any()
    rest = Csr(graph.dst[graph.dst != 1], graph.src[graph.dst != 1], 3, 40, np.int32)
    for a, b in zip((out, dz, dsrc, ddst), (attend([(rest, 0, 40)], z, src, dst, 0.2, dropout)[0],
                                            *attend_gradients(rest, z, src, dst, g, 0.2, dropout)), strict=True):
        assert np.isfinite(a).all() and np.abs(b).max() > 0
        close(a, b.astype(np.float64))


@pytest.mark.parametrize("size", [1.0, 1e4, 1e6])
def test_backward_is_exact_to_rounding_whatever_the_size_of_the_scores(size):
    """Weights sum up to 1 within float32's rounding: the saved softmax must not lose digits of l beside a large m."""
    rng, n = np.random.default_rng(4), 64
    graph = Csr(np.repeat(np.arange(n), 30), rng.integers(0, n, 30 * n), n, n, np.int32)
    z = normal(rng, np.float32, n, 2, 16)
    src = (size + rng.integers(-16, 16, (n, 2)) / 8).astype(np.float32)     # these values and their sums are exact
    dst = rng.integers(-16, 16, (n, 2)).astype(np.float32) / 8
    g = normal(rng, np.float32, n, 2, 16)
    exact = attend_gradients(graph, *(a.astype(np.float64) for a in (z, src, dst, g)), 0.2, None)
    for actual, expected in zip(attend_gradients(graph, z, src, dst, g, 0.2, None), exact, strict=True):
        assert np.abs(actual - expected).max() < 2e-6 * max(1, np.abs(expected).max())     # ddst is 0 but for rounding


@every_float
@pytest.mark.parametrize("low", [-800.0, -110.0, -80.0, -1.0])
def test_the_exponential_is_accurate(dtype, low):
    """The backward pass shows the kernels' exp: with one edge a source, m = 0 and l = g = 1, dz is exp(score)."""
    s = np.concatenate([np.linspace(low, 0, 20_001), [0, -np.inf]]).astype(dtype)[:, None]
    n, one, zero = len(s), np.ones((1, 1, 1), dtype), np.zeros((1, 1), dtype)
    dz, dsrc, ddst = np.zeros((n, 1, 1), dtype), np.zeros_like(s), zero.copy()
    ends = np.array([[[0, 0, 1, 0]]], dtype)
    kernels.attend_backward(np.arange(n + 1), np.zeros(n, np.int32), np.zeros_like(dz), s, ends, one, dz, dsrc, ddst, slope=1.0)
    exact = np.exp(s[:, 0].astype(np.longdouble))
    unit = np.maximum(np.spacing(exact.astype(dtype)), np.finfo(dtype).smallest_subnormal)
    error = np.abs(dz[:, 0, 0] - exact) / unit
    assert error.max() < 1.1
    assert dz[-1, 0, 0] == 0


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 60), st.floats(-50, 50))
def test_shifting_scores_changes_no_softmax(seed, n, n_edges, shift):
    rng = np.random.default_rng(seed)
    graph = Csr(rng.integers(0, n, n_edges), rng.integers(0, n, n_edges), n, n, np.int32)
    z, src, dst = attend_operands(graph, np.float64, 2, 5, seed)
    plain, shifted = (attend([(graph, 0, n)], z, src, dst + c, 1.0)[0] for c in (0, shift))
    close(shifted, plain, scale=10, factor=100)


@every_kind
@pytest.mark.sampled(17)
@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (5, 33)])
@pytest.mark.parametrize("dropped", [False, True])
def test_attend_backward_against_finite_differences(kind, shape, dropped):
    graph, rng = make_graph(kind, np.int32), np.random.default_rng(14)
    operands = attend_operands(graph, np.float64, *shape, spread=1)
    dropout = make_dropout(graph) if dropped else None
    g = rng.standard_normal((graph.n_dst, *shape))
    grads = attend_gradients(graph, *operands, g, 0.2, dropout)
    for which in range(3):
        for _ in range(3):
            step = 1e-6 * rng.standard_normal(operands[which].shape)
            values = []
            for sign in (1, -1):
                moved = [a + sign * step if k == which else a for k, a in enumerate(operands)]
                values.append(np.vdot(attend_reference(graph, *moved, 0.2, dropout)[0], g))
            assert (values[0] - values[1]) / 2e-6 == pytest.approx(np.vdot(grads[which], step) / 1e-6, rel=1e-4, abs=2e-5)


@every_type
@every_kind
@pytest.mark.sampled(42)
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 8), (4, 32), (2, 100)])
def test_attend_backward_is_the_explicit_gradient(dtype, itype, kind, dropped, shape):
    graph, rng = make_graph(kind, itype), np.random.default_rng(15)
    z, src, dst = (a.astype(np.float64) for a in attend_operands(graph, dtype, *shape))
    dropout = make_dropout(graph) if dropped else None
    g = normal(rng, dtype, graph.n_dst, *shape).astype(np.float64)
    out, lse = attend_reference(graph, z, src, dst, 0.3, dropout)
    pre = src[graph.src] + dst[graph.dst]
    alpha = np.exp(np.where(pre > 0, pre, 0.3 * pre) - lse[graph.dst])
    factor, t = edge_factors(graph, shape[0], dropout), (g[graph.dst] * z[graph.src]).sum(-1)
    de = alpha * (factor * t - (g * out).sum(-1)[graph.dst]) * np.where(pre > 0, 1, 0.3)
    expected = [np.zeros_like(a) for a in (z, src, dst)]
    np.add.at(expected[0], graph.src, (alpha * factor)[:, :, None] * g[graph.dst])
    np.add.at(expected[1], graph.src, de)
    np.add.at(expected[2], graph.dst, de)
    grads = attend_gradients(graph, *(a.astype(dtype) for a in (z, src, dst, g)), 0.3, dropout)
    for actual, wanted in zip(grads, expected, strict=True):
        close(actual, wanted, scale=np.abs(t).max(initial=1) * 10, factor=60)


def test_attend_is_deterministic_and_close_across_threads():
    rng = np.random.default_rng(16)
    graph = Csr(rng.zipf(1.5, 20_000) % 300, rng.integers(0, 300, 20_000), 300, 300, np.int32)
    operands = attend_operands(graph, np.float32, 4, 16)
    g, dropout = normal(rng, np.float32, 300, 4, 16), make_dropout(graph)
    forward = over_threads(lambda: attend([(graph, 0, 300)], *operands, 0.2, dropout)[0])
    backward = over_threads(lambda: attend_gradients(graph, *operands, g, 0.2, dropout))
    again = over_threads(lambda: attend_gradients(graph, *operands, g, 0.2, dropout))
    for n in range(3):
        np.testing.assert_array_equal(forward[0], forward[n])
        np.testing.assert_array_equal(backward[0][0], backward[n][0])
        np.testing.assert_array_equal(backward[0][1], backward[n][1])
        close(backward[n][2], backward[0][2].astype(np.float64))
        for a, b in zip(backward[n], again[n], strict=True):
            np.testing.assert_array_equal(a, b)


def test_backward_adds_to_what_the_outputs_hold():
    graph = make_graph("random", np.int32)
    operands = attend_operands(graph, np.float64, 2, 3)
    out, m, scale = attend([(graph, 0, graph.n_src)], *operands, 0.2)
    ends = kernels.attend_ends(operands[2], m, scale, np.zeros_like(out), out)
    t = kernels.transpose(graph.indptr, graph.indices, graph.n_src)[:2]
    grads = [np.zeros_like(a) for a in operands]
    for repeat in range(2):
        kernels.attend_backward(*t, *operands[:2], ends, out, *grads, slope=0.2)
        if repeat == 0:
            once = [a.copy() for a in grads]
    for a, b in zip(grads, once, strict=True):
        close(a, 2 * b)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("shape", [(4, 32), (9, 40)])  # heads all together, and some of them
def test_what_is_overwritten_needs_no_start(shape, dropped):
    graph = make_graph("random", np.int32)
    z, src, dst = attend_operands(graph, np.float32, *shape)
    dropout = make_dropout(graph) if dropped else None
    out, m, scale = attend([(graph, 0, graph.n_src)], z, src, dst, 0.2, dropout)
    outputs = [np.full_like(a, np.nan) for a in (m, scale, out)]
    kernels.attend(graph.indptr, graph.indices, z, src, dst, *outputs, slope=0.2, dropout=dropout, accumulate=False)
    kernels.attend_finish(*outputs)
    for a, b in zip(outputs, (m, scale, out), strict=True):
        np.testing.assert_array_equal(a, b)
    wanted = attend_gradients(graph, z, src, dst, out, 0.2, dropout)
    outputs = [np.full_like(z, np.nan), np.full_like(src, np.nan), np.zeros_like(dst)]
    t, ends = kernels.transpose(graph.indptr, graph.indices, graph.n_src)[:2], kernels.attend_ends(dst, m, scale, out, out)
    kernels.attend_backward(*t, z, src, ends, out, *outputs, slope=0.2, dropout=dropout, accumulate=False)
    for a, b in zip(outputs, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@every_float
@pytest.mark.parametrize("width", WIDTHS)
def test_row_dot_is_a_dot_product_by_row_and_head(dtype, width):
    rng = np.random.default_rng(18)
    a, b, out = normal(rng, dtype, 50, 3, width), normal(rng, dtype, 50, 3, width), normal(rng, dtype, 50, 3)
    kernels.row_dot(a, b, out)
    close(out, (a.astype(np.float64) * b).sum(-1), scale=width)
