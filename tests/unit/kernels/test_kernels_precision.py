"""Results are within a few units in the last place of the sum of magnitudes, on rows of any length.

The reference is NumPy in extended precision. Where coefficients pass through exp, a rounding error of the score s is an error of
exp(s - lse) relative to |s| + |s - lse|, so terms count so much more. Sums over edges run in chunks, so a row of 10^5 neighbours is as
exact as a short row.
"""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarlite import kernels
from tests.helpers.graph.strategies import SETTINGS
from tests.helpers.kernels.kernel_references import FLOATS, Csr, attend, edge_factors, every_float, make_dropout

WIDE = np.longdouble
LONG = [3, 0, 100_000, 40]
row_lengths = st.lists(st.sampled_from([0, 1, 2, 15, 16, 17, 40, 255, 256, 257, 600]), min_size=1, max_size=5)
cases = given(st.integers(0, 2**32), st.sampled_from(FLOATS), row_lengths, st.integers(1, 5), st.integers(1, 140), st.booleans())


def near(actual, exact, magnitude, units):
    """Check |actual - exact| <= units * epsilon * magnitude; magnitude is the sum of the absolute values of the terms."""
    info = np.finfo(actual.dtype)
    error = np.abs(actual - exact) / (info.eps * np.maximum(magnitude, info.tiny))
    assert error.max(initial=0) <= units, f"{float(error.max()):.1f} units in the last place of the sum of magnitudes"


def make(seed, lengths, turned=False):
    """Return a graph with rows of these lengths and random sources; `turned` gives sources of these lengths."""
    rng, ends = np.random.default_rng(seed), [len(lengths), max(50, *lengths)]
    edges = [np.repeat(np.arange(len(lengths)), lengths), rng.integers(0, ends[1], sum(lengths))]
    return rng, Csr(*edges[:: -1 if turned else 1], *ends[:: -1 if turned else 1], np.int32)


def draw(rng, positive, dtype, *shape):
    """Draw normal numbers, or numbers of one sign, whose partial sums are the largest."""
    a = rng.standard_normal(shape)
    return (1 + np.abs(a) if positive else a).astype(dtype)


def at(index, terms, n):
    """Return the sum of the terms of each row, in WIDE."""
    out = np.zeros((n, *terms.shape[1:]), WIDE)
    np.add.at(out, index, terms)
    return out


def products(graph, coef, x):
    """Return sum_e coef[e,h] * x[src e,h,:] for each destination, in WIDE."""
    return at(graph.dst, coef.astype(WIDE)[:, :, None] * x[graph.src], graph.n_dst)


def check_spmm(seed, dtype, lengths, heads, width, positive):
    rng, graph = make(seed, lengths)
    x, out = (draw(rng, positive, dtype, n, heads, width) for n in (graph.n_src, graph.n_dst))
    weight = draw(rng, positive, dtype, graph.n_edges, heads)
    src_scale, dst_scale = (draw(rng, positive, dtype, n) for n in (graph.n_src, graph.n_dst))
    for more in ({}, {"weight": weight, "src_scale": src_scale, "dst_scale": dst_scale}):
        coef = np.ones((graph.n_edges, heads), WIDE)
        if more:
            coef = weight.astype(WIDE) * src_scale[graph.src, None] * dst_scale[graph.dst, None]
        actual = out.copy()
        kernels.spmm(graph.indptr, graph.indices, x, actual, **more)
        near(actual, out + products(graph, coef, x), np.abs(out) + products(graph, np.abs(coef), np.abs(x)), 16)


def check_edge_dot(seed, dtype, lengths, heads, width, positive):
    rng, graph = make(seed, lengths)
    g, x = (draw(rng, positive, dtype, n, heads, width) for n in (graph.n_dst, graph.n_src))
    actual, terms = np.zeros((graph.n_edges, heads), dtype), g[graph.dst].astype(WIDE) * x[graph.src]
    kernels.edge_dot(graph.indptr, graph.indices, g, x, actual)
    near(actual, terms.sum(-1), np.abs(terms).sum(-1), 3)
    actual = np.zeros((graph.n_dst, heads), dtype)
    kernels.row_dot(g, 2 * g, actual)
    near(actual, 2 * (g.astype(WIDE) ** 2).sum(-1), 2 * (g.astype(WIDE) ** 2).sum(-1), 3)


class Scores(NamedTuple):
    """Values of each edge and head, and of each row, in WIDE."""

    s: np.ndarray
    slopes: np.ndarray
    alpha: np.ndarray
    worth: np.ndarray       # alpha, enlarged by the score's rounding error that exp passes on
    top: np.ndarray
    scale: np.ndarray       # 1 over the sum of exp(s - top)


def scores(graph, src, dst, slope, softmax_state=None):
    """Return the `Scores`; `softmax_state` is (top, scale), rounded as backward reads them."""
    pre = src.astype(WIDE)[graph.src] + dst[graph.dst]
    slopes = np.where(pre > 0, WIDE(1), WIDE(slope))
    s, top = slopes * pre, np.full(dst.shape, -np.inf, WIDE)
    np.maximum.at(top, graph.dst, s)
    top[np.diff(graph.indptr) == 0] = 0
    if softmax_state is None:
        total = at(graph.dst, np.exp(s - top[graph.dst]), graph.n_dst)
        softmax_state = top, np.where(total > 0, 1 / np.where(total > 0, total, 1), 0)
    top, scale = softmax_state
    below = s - top[graph.dst]
    alpha = np.exp(below) * scale[graph.dst]
    return Scores(s, slopes, alpha, alpha * (1 + np.abs(s) + np.abs(below)), top, scale)


def check_attend(graph, z, src, dst, slope, dropout):
    """Check out, m and 1 / l; return the exact values."""
    e, dropout_factors = scores(graph, src, dst, slope), edge_factors(graph, z.shape[1], dropout)
    actual, m, scale = attend([(graph, 0, graph.n_src)], z, src, dst, slope, dropout)
    out, total = products(graph, e.alpha * dropout_factors, z), at(graph.dst, e.worth, graph.n_dst)
    near(actual, out, products(graph, e.worth * dropout_factors, np.abs(z)) + np.abs(out) * total[..., None], 3)
    near(m, e.top, np.abs(e.top), 3)
    near(scale, e.scale, e.scale * (1 + np.abs(e.top) + total), 3)
    return out, e.top, e.scale


def check_attend_backward(graph, z, src, dst, m, scale, delta, g, slope, dropout):
    e, dropout_factors = scores(graph, src, dst, slope, (m, scale)), edge_factors(graph, z.shape[1], dropout)
    turned, order = Csr(graph.src, graph.dst, graph.n_src, graph.n_dst, np.int32), np.argsort(graph.src, kind="stable")
    dz, dsrc, ddst = (np.zeros_like(a) for a in (z, src, dst))
    ends = np.stack([dst, m, scale, delta], axis=-1)
    kernels.attend_backward(turned.indptr, turned.indices, z, src, ends, g, dz, dsrc, ddst, slope=slope, dropout=dropout)
    near(dz, products(turned, (e.alpha * dropout_factors)[order], g), products(turned, (e.worth * dropout_factors)[order], np.abs(g)), 3)
    t = z.astype(WIDE)[graph.src] * g[graph.dst]
    de = e.alpha * (dropout_factors * t.sum(-1) - delta[graph.dst]) * e.slopes
    size = e.worth * (dropout_factors * np.abs(t).sum(-1) + np.abs(delta)[graph.dst]) * e.slopes
    near(dsrc, at(graph.src, de, graph.n_src), at(graph.src, size, graph.n_src), 3)
    near(ddst, at(graph.dst, de, graph.n_dst), at(graph.dst, size, graph.n_dst), 3)


def check_attention(seed, dtype, lengths, heads, width, positive, turned=False):
    rng, graph = make(seed, lengths, turned)
    z, g = (draw(rng, positive, dtype, n, heads, width) for n in (graph.n_src, graph.n_dst))
    src, dst = (2 * draw(rng, False, dtype, n, heads) for n in (graph.n_src, graph.n_dst))
    slope = float(dtype(0.2))
    for dropout in (None, make_dropout(graph))[: 2 if graph.n_edges < 500 else 1]:      # the reference is slow
        out, *saved = check_attend(graph, z, src, dst, slope, dropout)
        saved = [a.astype(dtype) for a in (*saved, (g * out).sum(-1))]
        check_attend_backward(graph, z, src, dst, *saved, g, slope, dropout)


@SETTINGS
@cases
def test_spmm_is_within_its_error_bound(seed, dtype, lengths, heads, width, positive):
    check_spmm(seed, dtype, lengths, heads, width, positive)


@SETTINGS
@cases
def test_dots_of_edges_are_within_their_error_bound(seed, dtype, lengths, heads, width, positive):
    check_edge_dot(seed, dtype, lengths, heads, width, positive)


@SETTINGS
@cases
def test_attention_is_within_its_error_bound(seed, dtype, lengths, heads, width, positive):
    check_attention(seed, dtype, lengths, min(heads, 2), min(width, 40), positive)


@pytest.mark.sampled(1)
@every_float
def test_long_rows_are_as_accurate_as_short_ones(dtype):
    """The rows have 10^5 neighbours."""
    for width, positive in ((1, False), (3, True), (16, False), (19, True)):
        check_spmm(1, dtype, LONG, 1, width, positive)
    check_edge_dot(1, dtype, LONG, 1, 19, True)
    for turned in (False, True):
        check_attention(1, dtype, LONG, 1, 9, False, turned)
        check_attention(1, dtype, LONG, 2, 3, True, turned)


@every_float
def test_column_sums_are_accurate(dtype):
    """Sums over rows are float64, added one row after another: their error grows with the rows of a thread."""
    rng, n = np.random.default_rng(2), 20_000
    x = draw(rng, True, dtype, n, 5)
    mean, m2, sums = np.empty(5), np.empty(5), np.empty((2, 5))
    kernels.column_moments(x, mean, m2)
    wide = x.astype(WIDE)
    near(mean, wide.mean(0), np.abs(wide).mean(0), 64)
    near(m2, ((wide - wide.mean(0)) ** 2).sum(0), (wide**2).sum(0), 16)
    normal = kernels.Normal(mean, 1 / np.sqrt(m2 / n), np.ones(5, dtype))
    kernels.activate_backward(x, kind="identity", normal=normal, x=x, sums=sums)
    terms = np.stack([wide, wide * ((wide - mean) * normal.inv_std)])
    near(sums, terms.sum(1), np.abs(terms).sum(1), 64)


@SETTINGS
@given(st.integers(0, 2**32), st.sampled_from(FLOATS), st.integers(0, 20), st.integers(1, 300), st.sampled_from(list(kernels.ACTIVATIONS)),
       st.booleans())
def test_activations_are_within_their_error_bound_forward_and_backward(seed, dtype, n, width, kind, normal):
    """Every element is checked, forward and backward; batch norm's affine map is float64 until it is rounded."""
    rng = np.random.default_rng(seed)
    x, g = draw(rng, False, dtype, n, width), draw(rng, False, dtype, n, width)
    mean, inv_std = rng.standard_normal(width), 0.5 + np.abs(rng.standard_normal(width))
    gamma, beta, means = draw(rng, False, dtype, width), draw(rng, False, dtype, width), rng.standard_normal((2, width))
    out, dx = np.empty_like(x), np.empty_like(x)
    affine = {"normal": kernels.Normal(mean, inv_std, gamma), "beta": beta} if normal else {"beta": beta}
    kernels.activate(x, out, kind=kind, **affine)
    kernels.activate_backward(g, kind=kind, x=x, out=out, means=means, dx=dx, **affine)
    xhat = (x.astype(WIDE) - mean) * inv_std
    y, size = (xhat * gamma + beta, np.abs(xhat * gamma) + np.abs(beta)) if normal else (x.astype(WIDE) + beta, np.abs(x) + np.abs(beta))
    f = {"identity": y, "relu": np.maximum(y, 0), "elu": np.where(y > 0, y, np.expm1(np.minimum(y, 0)))}[kind]
    slope = {"identity": np.ones_like(y), "relu": (out > 0) * WIDE(1), "elu": np.exp(np.minimum(y, 0))}[kind]
    near(out, f, size, 4)
    scale = np.abs(gamma * inv_std) if normal else 1
    exact = gamma * inv_std * (g * slope - means[0] - xhat * means[1]) if normal else g * slope
    near(dx, exact, scale * (np.abs(g) * (1 + size) + normal * (np.abs(means[0]) + np.abs(xhat * means[1]))), 4)
