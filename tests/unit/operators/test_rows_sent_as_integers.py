"""row_dtype="int8": rows are rounded once and travel as integers, so N ranks give one rank's answer (threads as ranks)."""

import itertools

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, kernels
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.structure.partition import partition
from tests.helpers.graph.references import EDGES, check_equality
from tests.helpers.graph.strategies import values

pytestmark = pytest.mark.timeout(60)

WHOLE = Graph.from_edges(*EDGES)
MODES = ("sar", "sa", "oneshot", "broadcast")
OWNERS = {n: partition(*WHOLE.in_edges()[:2], n, "random") for n in (1, 2, 3)}


@pytest.mark.parametrize("n_ranks, mode", [(1, "sar"), *itertools.product((2, 3), MODES)])
@pytest.mark.parametrize("case", ["sage", "gat"])
def test_whole_models_agree_on_any_number_of_ranks(case, n_ranks, mode):
    backward = {1: None, 2: "push", 3: None}[n_ranks]
    threads.run(n_ranks, check_equality, case, np.float32, OWNERS[n_ranks], mode=mode, prefetch=n_ranks % 2, backward=backward,
                row_dtype="int8")


def test_sums_and_gradients_are_those_of_rounded_rows():
    x, g = (values(seed, EDGES.n_nodes, 5).astype(np.float32) for seed in (1, 2))
    narrow, wide = Tensor(x, requires_grad=True), Tensor(kernels.round_rows(x), requires_grad=True)
    out = WHOLE.shard(Solo(), row_dtype="int8").aggregate(fn.copy_src(narrow), "sum")
    out.backward(g)
    expected = WHOLE.aggregate(fn.copy_src(wide), "sum")
    expected.backward(kernels.round_rows(g))
    np.testing.assert_array_equal(out.data, expected.data)
    np.testing.assert_array_equal(narrow.grad, wide.grad)
    assert np.abs(out.data - WHOLE.aggregate(fn.copy_src(Tensor(x)), "sum").data).max() > 1e-3


@pytest.mark.parametrize("mode", MODES)
def test_a_row_travels_as_its_integers_and_one_exponent(mode):
    n_feat = 8

    def sent(comm, row_dtype):
        graph = WHOLE.shard(comm, OWNERS[3], mode=mode, row_dtype=row_dtype, backward="fetch")
        x = Tensor(np.ones((graph.n_src, n_feat), np.float32), requires_grad=True)
        graph.aggregate(fn.copy_src(x), "mean").sum().backward()
        return [graph.profile.sent_bytes[phase] for phase in ("forward_fetch", "backward_fetch")]

    for narrow, wide in zip(threads.run(3, sent, "int8"), threads.run(3, sent, "float32"), strict=True):
        n_rows = [n_bytes // (4 * n_feat) for n_bytes in wide]
        assert min(n_rows) > 0 and narrow == [n * (1 + n_feat) for n in n_rows]


def test_a_cache_refuses_rows_of_integers_by_name():
    def make(comm):
        graph = WHOLE.shard(comm, OWNERS[2], row_dtype="int8")
        x, labels = np.ones((graph.n_dst, 3), np.float32), np.zeros(graph.n_dst, int)
        with pytest.raises(ConfigError, match="int8 cannot be cached: .*float32 or bfloat16"):
            NeighborLoader(graph, x, labels, np.arange(graph.n_dst), fanouts=(2, 2), batch_size=5, remote=HEC(lines=10, limit=5))

    threads.run(2, make)
