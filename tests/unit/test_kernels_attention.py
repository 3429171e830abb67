"""Fused attention, forward and backward: every value and index type, against an explicit softmax in float64 and finite differences."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernel_references import (
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
    make_dropout,
    make_graph,
    normal,
    over_threads,
)

from sarlite import kernels


@every_type
@every_kind
@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (4, 32), (5, 33), (1, 257)])
@pytest.mark.parametrize("dropped", [False, True])
def test_attend(dtype, itype, kind, shape, dropped):
    graph = make_graph(kind, itype)
    z, src, dst = attend_operands(graph, dtype, *shape)
    dropout = make_dropout(graph) if dropped else None
    out, lse = attend([(graph, 0, graph.n_src)], z, src, dst, 0.2, dropout)
    expected_out, expected_lse = attend_reference(graph, z, src, dst, 0.2, dropout)
    close(out, expected_out, scale=np.abs(z).max())
    close(lse, expected_lse, scale=10)


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
            for a, b in zip(whole, attend(sequence, z, src, dst, 0.2, dropout), strict=True):
                close(b, a, scale=30)


@every_float
def test_attend_long_row_and_extreme_scores(dtype):
    rng = np.random.default_rng(13)
    graph = Csr([0] * 100_000, rng.integers(0, 40, 100_000), 2, 40, np.int32)
    z, src, dst = attend_operands(graph, dtype, 2, 9)
    out, lse = attend([(graph, 0, 40)], z, src, dst, 0.2)
    expected_out, expected_lse = attend_reference(graph, z, src, dst, 0.2)
    close(out, expected_out, scale=10, factor=100)
    close(lse, expected_lse, scale=10, factor=100)

    src[:] = rng.choice([-800, 0, 700], (40, 2))       # exp() of any of these is 0 or infinite
    out, lse = attend([(graph, 0, 40)], z, src, dst, 1.0)
    expected_out, expected_lse = attend_reference(graph, z, src, dst, 1.0)
    close(out, expected_out, scale=10, factor=100)
    close(lse, expected_lse, scale=1000)


@every_float
def test_attend_without_weight(dtype):
    """Scores of -inf weigh nothing; a row of only such scores is 0, not NaN. A NaN score is visible."""
    graph = Csr([0, 0, 1, 2], [0, 1, 1, 2], 3, 3, np.int32)
    z, dst = np.ones((3, 1, 2), dtype), np.zeros((3, 1), dtype)
    src = np.array([[1], [-np.inf], [np.nan]], dtype)
    out, lse = attend([(graph, 0, 3)], z, src, dst, 0.2)
    np.testing.assert_array_equal(out[:2, 0], [[1, 1], [0, 0]])
    np.testing.assert_array_equal(lse[:2, 0], [1, 0])
    assert np.isnan(out[2]).all()


@every_float
@pytest.mark.parametrize("low", [-800.0, -110.0, -80.0, -1.0])
def test_exponential(dtype, low):
    """The kernels' exp, seen through the backward pass: one edge a source, lse = 0 and g = 1 make dz = exp(score)."""
    s = np.concatenate([np.linspace(low, 0, 20_001), [0, -np.inf]]).astype(dtype)[:, None]
    n, one, zero = len(s), np.ones((1, 1, 1), dtype), np.zeros((1, 1), dtype)
    dz, dsrc, ddst = np.zeros((n, 1, 1), dtype), np.zeros_like(s), zero.copy()
    kernels.attend_backward(np.arange(n + 1), np.zeros(n, np.int32), np.zeros_like(dz), s, zero, zero, zero, one, dz, dsrc, ddst, slope=1.0)
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
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 8), (4, 32), (2, 100)])
def test_attend_backward(dtype, itype, kind, dropped, shape):
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


def test_backward_accumulates():
    graph = make_graph("random", np.int32)
    operands = attend_operands(graph, np.float64, 2, 3)
    out, lse = attend([(graph, 0, graph.n_src)], *operands, 0.2)
    t = kernels.transpose(graph.indptr, graph.indices, graph.n_src)[:2]
    grads = [np.zeros_like(a) for a in operands]
    for repeat in range(2):
        kernels.attend_backward(*t, *operands, lse, np.zeros_like(lse), out, *grads, slope=0.2)
        if repeat == 0:
            once = [a.copy() for a in grads]
    for a, b in zip(grads, once, strict=True):
        close(a, 2 * b)


@every_float
@pytest.mark.parametrize("width", WIDTHS)
def test_row_dot(dtype, width):
    rng = np.random.default_rng(18)
    a, b, out = normal(rng, dtype, 50, 3, width), normal(rng, dtype, 50, 3, width), normal(rng, dtype, 50, 3)
    kernels.row_dot(a, b, out)
    close(out, (a.astype(np.float64) * b).sum(-1), scale=width)
