"""float32 sums of 10^6 like terms stay within the 1e-5 of docs/promises.md: sums of edges, of rows, and of picks of one row.

Equal terms are the hardest: their rounding errors have one sign.
"""

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, kernels
from sarlite.tape.losses import nll

N = 10**6
TERM = np.float32(0.1)
INDPTR = np.array([0, N])
REPEATED = np.zeros(N, np.int32)
IN_ORDER = np.arange(N, dtype=np.int32)


def near(actual, exact):
    np.testing.assert_allclose(np.asarray(actual, np.float64), exact, rtol=1e-5)


@pytest.mark.parametrize("weight", [None, np.ones(N, np.float32)], ids=["plain", "weighted"])
@pytest.mark.parametrize("begins", [True, False], ids=["overwritten", "accumulated"])
def test_a_row_of_many_edges(weight, begins):
    out = np.full((1, 8), TERM)
    kernels.spmm(INDPTR, REPEATED, np.full((1, 8), TERM), out, weight=weight, accumulate=not begins)
    near(out, (N + (not begins)) * float(TERM))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_weights_gradient(threads):
    before = kernels.threads()
    kernels.set_threads(threads)
    try:
        out = np.empty((4, 4), np.float32)
        kernels.gemm_backward(np.full((N, 4), TERM), np.ones((N, 4), np.float32), out)
    finally:
        kernels.set_threads(before)
    near(out, N * float(TERM))


@pytest.mark.parametrize("heads", [1, 8])
def test_attention_of_many_neighbours(heads):
    """There are two blocks: the second starts from the state that the first has left, and raises the maximum."""
    src, dst = np.zeros((1, heads), np.float32), np.zeros((1, heads), np.float32)
    top, total, acc = np.empty_like(dst), np.empty_like(dst), np.empty((1, heads, 2), np.float32)
    for score in (0, 1):
        kernels.attend(INDPTR, REPEATED, np.full((1, heads, 2), TERM * (1 + score)), src + score, dst, top, total, acc, slope=0.2,
                       accumulate=score > 0)
    near(top, 1)
    near(total, N * (np.exp(-1) + 1))
    near(acc, N * float(TERM) * (np.exp(-1) + 2))


@pytest.mark.parametrize("heads, shared", [(1, False), (8, False), (8, True)])
@pytest.mark.parametrize("begins", [True, False], ids=["overwritten", "accumulated"])
def test_the_gradient_of_a_source_of_many_edges(heads, shared, begins):
    """Rows before and after the long row have one edge: no step covers two rows."""
    t_indptr, t_indices = np.array([0, 1, N + 1, N + 2]), np.concatenate([[3], IN_ORDER, [5]]).astype(np.int32)
    z = np.full((3, 1 if shared else heads, 2), TERM)
    ends = np.zeros((N, heads, 4), np.float32)  # dst, m, 1 / l, delta of a destination
    ends[:, :, 0], ends[:, :, 2:] = 1, 0.5
    g = np.full((N, heads, 2), np.float32(0.3))
    d_z, d_src = np.ones_like(z), np.ones((3, heads), np.float32)
    kernels.attend_backward(t_indptr, t_indices, z, np.zeros((3, heads), np.float32), ends, g, d_z, d_src, None,
                            sums=np.zeros((kernels.threads(), N, heads)), slope=0.2, accumulate=not begins)
    alpha, g, count = np.exp(1) / 2, float(np.float32(0.3)), np.array([1, N, 1])
    near(d_z, np.broadcast_to((not begins) + (count * alpha * g * (heads if shared else 1))[:, None, None], z.shape))
    near(d_src, np.broadcast_to((not begins) + (count * alpha * (2 * g * float(TERM) - 0.5))[:, None], d_src.shape))


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_the_gradient_of_what_many_have_chosen(reduce):
    """Node 0 is every node's neighbour and every node's winner; node 0 itself picks one of the others."""
    n = 1 << 17
    src = np.concatenate([np.zeros(n - 1, np.int64), [1]])
    dst = np.concatenate([np.arange(1, n), [0]])
    graph = Graph.from_edges(src, dst, n)
    x = Tensor(np.full((n, 2), TERM), requires_grad=True)
    graph.aggregate(fn.copy_src(x), reduce).backward(np.full((n, 2), TERM))
    near(x.grad[0], (n - 1) * float(TERM))
    near(x.grad[1], float(TERM))


def test_the_gradient_of_a_row_that_a_loss_picks_often():
    log_p = Tensor(np.full((2, 3), np.float32(-1)), requires_grad=True)
    nll(log_p, np.array([1, 2]), REPEATED, reduction="sum").backward(TERM)
    near(log_p.grad, [[0, -N * float(TERM), 0], [0, 0, 0]])
