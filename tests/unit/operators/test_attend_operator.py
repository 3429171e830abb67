"""Fused attention as an operator, on any number of ranks: its residuals, its zeroed sums, and fully masked nodes."""

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, kernels
from sarlite.comm import threads

N, HEADS, WIDTH = 40, 2, 5


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((N, HEADS, WIDTH)), rng.standard_normal((N, HEADS)), rng.standard_normal((N, HEADS)),
            rng.standard_normal((N, HEADS, WIDTH))]


def attention(comm, mode, z, src, dst, g, *, dropout=0.0, passes=1):
    """Return this rank's rows, the output, and the gradients of the last of `passes` backward passes."""
    rng = np.random.default_rng(1)
    graph = Graph.from_edges(*rng.integers(0, N, (2, 400)), N)
    if comm is not None:
        graph = graph.shard(comm, "contiguous", mode=mode)
    rows = graph.node_ids
    leaves = [Tensor(a[rows], requires_grad=True) for a in (z, src, dst)]
    out = graph.aggregate(fn.attend(*leaves, slope=0.2, dropout=dropout, key=7), "sum")
    for k in range(passes):
        for leaf in leaves:
            leaf.grad = None
        out.backward(g[rows], retain_graph=k + 1 < passes)
    return rows, [out.data, *(leaf.grad for leaf in leaves)]


def whole(parts):
    """Return the rows of all ranks in one array each."""
    arrays_of_all = [np.empty((N, *a.shape[1:])) for a in parts[0][1]]
    for rows, arrays in parts:
        for to, a in zip(arrays_of_all, arrays, strict=True):
            to[rows] = a
    return arrays_of_all


@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
def test_threads_sums_are_zeroed_once_in_an_aggregation(mode, monkeypatch):
    """The sums are threads x n_dst x heads doubles, so zeroing them for each block would be slow."""
    seen, attend_backward = {}, kernels.attend_backward

    def recorded(*args, sums, **options):
        seen.setdefault(id(sums), []).append(sums)
        return attend_backward(*args, sums=sums, **options)

    monkeypatch.setattr(kernels, "attend_backward", recorded)
    threads.run(3, attention, mode, *inputs())
    blocks = [len(calls) for calls in seen.values()]
    assert len(blocks) == 3 and min(blocks) >= (1 if mode == "oneshot" else 3)


@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_node_whose_edges_are_all_masked_is_zero(mode, dropout):
    """All of the node's sources are masked, or the node is; its edges may be in any block."""
    z, src, dst, g = inputs()
    src[N // 2 :, 0] = -np.inf      # on 3 ranks these are all sources of the last block
    dst[3] = -np.inf
    one = attention(None, mode, z, src, dst, g, dropout=dropout)[1]
    assert not one[0][3].any() and not one[3][3].any() and not one[1][N // 2 :, 0].any() and not one[2][N // 2 :, 0].any()
    assert all(np.isfinite(a).all() for a in one) and np.abs(one[1]).max() > 0
    actual = whole(threads.run(3, attention, mode, z, src, dst, g, dropout=dropout))
    for a, b in zip(actual, one, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_a_graph_whose_edges_are_all_masked_is_zero():
    z, src, dst, g = inputs()
    for a in attention(None, "sar", z, np.full_like(src, -np.inf), dst, g)[1]:
        assert not a.any()


@pytest.mark.parametrize("mode", ["sar", "sa", "oneshot", "broadcast"])
def test_a_second_backward_pass_gives_the_same_gradients(mode):
    once, twice = (whole(threads.run(2, attention, mode, *inputs(), passes=n)) for n in (1, 2))
    for a, b in zip(once, twice, strict=True):
        np.testing.assert_array_equal(a, b)
