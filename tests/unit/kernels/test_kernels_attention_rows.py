"""Fused attention: a row's bits do not depend on other rows, and heads may share one z, on every instruction set."""


import numpy as np
import pytest

from sarlite import kernels
from tests.helpers.kernels.kernel_references import (
    Csr,
    attend_operands,
    close,
    every_float,
    make_dropout,
    normal,
    over_threads,
)

SLOPE = 0.2


def short_and_long(itype=np.int32):
    """Return a graph with rows of 0 to 9 edges; some rows among them and at the end have up to 600 edges."""
    rng = np.random.default_rng(0)
    degrees = rng.integers(0, 10, 90)
    degrees[[20, 21, 60, 89]] = 17, 40, 600, 16
    return Csr(np.repeat(np.arange(90), degrees), rng.integers(0, 70, degrees.sum()), 90, 70, itype)


def forward(graph, z, src, dst, dropout):
    outputs = [np.full(dst.shape, np.nan, z.dtype), np.full(dst.shape, np.nan, z.dtype), np.full((*dst.shape, z.shape[2]), np.nan, z.dtype)]
    kernels.attend(graph.indptr, graph.indices, z, src, dst, *outputs, slope=SLOPE, dropout=dropout, accumulate=False)
    return outputs


def backward(graph, z, src, dst, g, dropout):
    m, scale, out = forward(graph, z, src, dst, dropout)
    kernels.attend_finish(m, scale, out)
    transpose = kernels.transpose(graph.indptr, graph.indices, graph.n_src)[:2]
    return gradients(*transpose, z, src, kernels.attend_ends(dst, m, scale, g, out), g, dropout)


def gradients(t_indptr, t_indices, z, src, ends, g, dropout, accumulate=False):
    start = 0 if accumulate else np.nan
    grads = [np.full_like(z, start), np.full_like(src, start), np.zeros_like(ends[:, :, 0])]
    kernels.attend_backward(t_indptr, t_indices, z, src, ends, g, *grads, slope=SLOPE, dropout=dropout, accumulate=accumulate)
    return grads


@every_float
@pytest.mark.parametrize("shape", [(1, 20), (3, 5), (9, 33)])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_row_has_the_bits_that_it_has_alone(dtype, shape, dropped):
    graph = short_and_long()
    z, src, dst = attend_operands(graph, dtype, *shape)
    src[::9] = -np.inf
    dropout = make_dropout(graph) if dropped else None
    whole, *divided = over_threads(lambda: forward(graph, z, src, dst, dropout))  # several threads group fewer rows together
    for arrays in divided:
        for a, b in zip(arrays, whole, strict=True):
            np.testing.assert_array_equal(a, b)
    for i in range(graph.n_dst):
        edges = slice(*graph.indptr[i : i + 2])
        row_dropout = None if dropout is None else dropout._replace(dst_ids=dropout.dst_ids[i : i + 1])
        row = forward(Csr(np.zeros_like(graph.dst[edges]), graph.src[edges], 1, graph.n_src, np.int32), z, src, dst[i : i + 1], row_dropout)
        for a, b in zip(row, whole, strict=True):
            np.testing.assert_array_equal(a[0], b[i])
    assert np.isfinite(whole[2]).all()


@every_float
@pytest.mark.parametrize("shape", [(1, 20), (3, 5), (9, 33)])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_source_has_the_gradients_that_it_has_alone(dtype, shape, dropped):
    graph, rng = short_and_long(), np.random.default_rng(1)
    rows = Csr(graph.src, graph.dst, graph.n_src, graph.n_dst, np.int32)  # the transpose has short and long rows
    z, src, dst = attend_operands(rows, dtype, *shape)
    dropout = make_dropout(rows) if dropped else None
    ends = np.abs(normal(rng, dtype, rows.n_dst, shape[0], 4)) / 4
    g = normal(rng, dtype, rows.n_dst, *shape)
    t_indptr, t_indices = kernels.transpose(rows.indptr, rows.indices, rows.n_src)[:2]
    whole = gradients(t_indptr, t_indices, z, src, ends, g, dropout)
    for a, b in zip(whole, gradients(t_indptr, t_indices, z, src, ends, g, dropout, accumulate=True), strict=True):
        np.testing.assert_array_equal(a, b)
    for j in range(rows.n_src):
        mine = np.ascontiguousarray(t_indices[t_indptr[j] : t_indptr[j + 1]])
        source_dropout = None if dropout is None else dropout._replace(src_ids=dropout.src_ids[j : j + 1])
        of_source = gradients(np.array([0, len(mine)]), mine, z[j : j + 1], src[j : j + 1], ends, g, source_dropout)
        np.testing.assert_array_equal(of_source[0][0], whole[0][j])
        np.testing.assert_array_equal(of_source[1][0], whole[1][j])


@every_float
@pytest.mark.parametrize("itype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(2, 7), (4, 100), (9, 16), (3, 600)])
@pytest.mark.parametrize("dropped", [False, True])
def test_heads_that_share_z(dtype, itype, shape, dropped):
    """A copy of z for each head gives the same result, if the copies' gradients are added.

    All instruction sets give the same bits.
    """
    n_heads, n_feat = shape
    graph, rng = short_and_long(itype), np.random.default_rng(2)
    _, src, dst = attend_operands(graph, dtype, n_heads, 1)
    z, g = normal(rng, dtype, graph.n_src, 1, n_feat), normal(rng, dtype, graph.n_dst, *shape)
    dropout = make_dropout(graph) if dropped else None
    copies = np.repeat(z, n_heads, axis=1)
    (m, *actual), (expected_m, *expected) = (forward(graph, x, src, dst, dropout) for x in (z, copies))
    np.testing.assert_array_equal(m, expected_m)
    for a, b in zip(actual, expected, strict=True):
        close(a, b.astype(np.float64), scale=np.abs(b).max())
    dz, *scores = backward(graph, z, src, dst, g, dropout)
    all_dz, *expected = backward(graph, copies, src, dst, g, dropout)
    for a, b in zip((dz, *scores), (all_dz.sum(1, keepdims=True), *expected), strict=True):
        close(a, b.astype(np.float64), scale=np.abs(b).max(), factor=100)


@every_float
@pytest.mark.parametrize("dropped", [False, True])
def test_shared_z_has_the_same_bits_on_every_instruction_set_and_number_of_threads(dtype, dropped):
    graph, rng = short_and_long(), np.random.default_rng(3)
    _, src, dst = attend_operands(graph, dtype, 4, 1)
    z, g = normal(rng, dtype, graph.n_src, 1, 100), normal(rng, dtype, graph.n_dst, 4, 100)
    dropout, before = make_dropout(graph) if dropped else None, kernels.instruction_set()
    runs = []
    try:
        for name in kernels.instruction_sets():
            kernels.set_instruction_set(name)
            runs += over_threads(lambda: [*forward(graph, z, src, dst, dropout), *backward(graph, z, src, dst, g, dropout)[:2]])
    finally:
        kernels.set_instruction_set(before)
    for arrays in runs[1:]:
        for a, b in zip(arrays, runs[0], strict=True):
            np.testing.assert_array_equal(a, b)
