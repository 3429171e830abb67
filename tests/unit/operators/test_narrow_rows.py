"""row_dtype="bfloat16": edges gather rows that are rounded once, so N ranks give one rank's result in half the bytes.

Ranks are threads.
"""

import gc
import itertools
import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest

from sarlite import Graph, Tensor, fn, kernels, models, nn
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError
from sarlite.structure.partition import partition
from sarlite.tape import recording
from tests.helpers.graph.references import EDGES, FEATURES, check_equality, one_rank
from tests.helpers.graph.strategies import values

pytestmark = pytest.mark.timeout(60)

WHOLE = Graph.from_edges(*EDGES)
MODES = ("sar", "sa", "oneshot", "broadcast")
OWNERS = {(n, method): partition(*WHOLE.in_edges()[:2], n, method) for n in (1, 2, 3) for method in ("random", "metis")}
NARROW, FLAGS = {"row_dtype": "bfloat16"}, ("--rows", "bfloat16")


def rounded(x):
    return kernels.widen(kernels.narrow(x))


@pytest.mark.sampled(18)
@pytest.mark.parametrize("n_ranks, mode", [(1, "sar"), *itertools.product((2, 3), MODES)])
@pytest.mark.parametrize("case", ["gcn", "sage", "gat", "weighted", "sage pool"])
def test_models_on_several_ranks_equal_one_rank(case, n_ranks, mode):
    """Whole models run, with dropout and batch norm; gradients are pushed on 2 ranks, rows are fetched on 3."""
    ways = {1: [(0, "metis", None)], 2: [(1, "random", "push")], 3: [(0, "metis", None), (1, "random", None)]}
    for prefetch, method, backward in ways[n_ranks]:
        threads.run(n_ranks, check_equality, case, np.float32, OWNERS[n_ranks, method], mode=mode, prefetch=prefetch,
                    backward=backward, **NARROW)


@pytest.mark.parametrize("case", ["gcn", "sage", "gat", "weighted", "sage pool"])
def test_it_is_near_float32_and_not_float32(case):
    narrow, wide = one_rank(case, np.float32, "bfloat16"), one_rank(case, np.float32)
    for name in ("logits", "gradient of x"):
        size = np.linalg.norm(wide.rows[name])
        assert 1e-5 * size < np.linalg.norm(narrow.rows[name] - wide.rows[name]) < 0.02 * size, name


def test_sums_and_gradients_are_those_of_rounded_rows():
    graph, exact = WHOLE.shard(Solo(), **NARROW), WHOLE
    x, g = (values(seed, EDGES.n_nodes, 5).astype(np.float32) for seed in (1, 2))
    leaf, expected = Tensor(x, requires_grad=True), Tensor(rounded(x), requires_grad=True)
    out = graph.aggregate(fn.copy_src(leaf), "sum")
    out.backward(g)
    whole = exact.aggregate(fn.copy_src(expected), "sum")
    whole.backward(rounded(g))
    np.testing.assert_array_equal(out.data, whole.data)
    np.testing.assert_array_equal(leaf.grad, expected.grad)
    assert out.data.dtype == leaf.grad.dtype == np.float32


def test_attention_is_that_of_rounded_rows():
    """Scores are not rounded; their gradients cancel, as delta is computed from the rounded gradient."""
    z, g = (values(seed, EDGES.n_nodes, 2, 3).astype(np.float32) for seed in (1, 2))
    scores = [values(seed, EDGES.n_nodes, 2).astype(np.float32) for seed in (3, 4)]

    def gradients(graph, z, g):
        inputs = [Tensor(a, requires_grad=True) for a in (z, *scores)]
        out = graph.aggregate(fn.attend(*inputs, 0.2, 0.4, 11), "sum")
        out.backward(g)
        return out.data, *(x.grad for x in inputs)

    for actual, expected in zip(gradients(WHOLE.shard(Solo(), **NARROW), z, g), gradients(WHOLE, rounded(z), rounded(g)), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("mode", MODES)
def test_half_the_bytes_travel(mode):
    def sent(comm, rows):
        graph = WHOLE.shard(comm, OWNERS[3, "random"], mode=mode, row_dtype=rows, backward="fetch")
        x = Tensor(np.ones((graph.n_src, 8), np.float32), requires_grad=True)
        graph.aggregate(fn.copy_src(x), "mean").sum().backward()
        return [graph.profile.sent_bytes[phase] for phase in ("forward_fetch", "backward_fetch", "backward_push")]

    for narrow, wide in zip(threads.run(3, sent, "bfloat16"), threads.run(3, sent, "float32"), strict=True):
        assert min(wide[:2]) > 0 and [2 * n for n in narrow] == wide


def test_a_wide_graph_rounds_nothing():
    def work(comm):
        x = Tensor(np.full((WHOLE.shard(comm, OWNERS[2, "random"]).n_src, 4), 1 / 3))
        graph = WHOLE.shard(comm, OWNERS[2, "random"], **NARROW)
        np.testing.assert_allclose(graph.full_precision().aggregate(fn.copy_src(x), "max").data.max(), 1 / 3, rtol=1e-15)

    threads.run(2, work)


@pytest.mark.parametrize("reducer", ["max", "min"])
def test_the_largest_of_narrow_rows_is_one_of_them(reducer):
    x, g = (values(seed, EDGES.n_nodes, 5).astype(np.float32) for seed in (1, 2))
    runs = []
    for graph, rows in ((WHOLE.shard(Solo(), **NARROW), x), (WHOLE, rounded(x))):
        leaf = Tensor(rows, requires_grad=True)
        out = graph.aggregate(fn.copy_src(leaf), reducer)
        out.backward(g)
        runs.append((out.data, leaf.grad))
    for narrow, wide in zip(*runs, strict=True):
        np.testing.assert_array_equal(narrow, wide)


def test_gradients_are_fetched_unless_they_are_to_be_pushed():
    def ways(comm, **options):
        schedule = WHOLE.shard(comm, OWNERS[2, "random"], **options).schedule
        return schedule.reverse is not None, schedule.reverses_attention

    assert threads.run(2, ways, **NARROW) == [(True, True)] * 2
    assert threads.run(2, ways, backward="push", **NARROW) == [(False, False)] * 2
    assert threads.run(2, ways) == [(False, False)] * 2


def test_backward_twice_gives_the_same_gradients():
    graph, x = WHOLE.shard(Solo(), **NARROW), Tensor(values(1, EDGES.n_nodes, 3).astype(np.float32), requires_grad=True)
    out = graph.aggregate(fn.copy_src(x), "sym")
    out.backward(np.ones_like(out.data), retain_graph=True)
    once, x.grad = x.grad, None
    out.backward(np.ones_like(out.data))
    np.testing.assert_array_equal(x.grad, once)


def test_a_gradient_that_nobody_else_reads_is_narrowed_in_its_own_memory():
    """Two sums of one tensor's product have a gradient each; the gradient passed to `backward` is the caller's."""
    def peak(rows):
        whole, x = Graph.from_edges(np.arange(8), np.arange(8)[::-1], 20_000), np.ones((20_000, 64), np.float32)
        graph = whole.shard(Solo(), row_dtype=rows)
        out = graph.aggregate(fn.copy_src(Tensor(x, requires_grad=True)), "mean") * 2
        g = np.ones_like(out.data)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        out.backward(g)
        n_traced = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        assert (g == 1).all()
        return n_traced

    assert peak("bfloat16") < 1.15 * peak("float32")


@pytest.mark.parametrize("aggregate, words", [
    (lambda graph, x: graph.aggregate(lambda src, dst, edge: src["x"], "sum", src={"x": x}), "evaluated as Custom have no narrow rows"),
    (lambda graph, x: graph.aggregate(fn.copy_src(x.astype(np.float64)), "sum"), "rows bfloat16: the rows are float64"),
])
def test_what_has_no_narrow_rows_is_refused_by_name(aggregate, words):
    with pytest.raises(ConfigError, match=words):
        aggregate(WHOLE.shard(Solo(), **NARROW), Tensor(np.ones((EDGES.n_nodes, 4), np.float32)))


def test_graphs_refuse_other_rows():
    with pytest.raises(ConfigError, match="row_dtype 'bfloat8' .*float32, bfloat16"):
        WHOLE.shard(Solo(), row_dtype="bfloat8")


def test_the_command_trains_with_narrow_rows_on_any_number_of_ranks(tmp_path, here):
    def losses(name, *flags):
        return [epoch["loss"] for epoch in here(tmp_path / name, "--model", "gat", "--epochs", 4, *flags)]

    one, two, wide = losses("one", *FLAGS), losses("two", *FLAGS, "--ranks", 2, "--partition", "random"), losses("wide")
    assert np.isfinite(one).all() and one[-1] < one[0]
    np.testing.assert_allclose(two, one, rtol=1e-4)
    assert 0 < np.abs(np.subtract(one, wide)).max() < 0.05


def test_a_run_goes_on_with_its_rows(tmp_path, here):
    whole = here(tmp_path / "whole", *FLAGS, "--epochs", 4)
    here(tmp_path / "half", *FLAGS, "--epochs", 2)
    metrics = here(tmp_path / "rest", "--resume", tmp_path / "half" / "checkpoint.safetensors", "--rows", "bfloat16", "--epochs", 4)
    assert metrics[-1]["loss"] == whole[-1]["loss"]
    with pytest.raises(ConfigError, match="--rows float32: cannot change, .*bfloat16"):
        here(tmp_path / "other", "--resume", tmp_path / "half" / "checkpoint.safetensors", "--rows", "float32", "--epochs", 4)


class Heads(recording.Observer):
    """Counts the tensors with a value for each row and head while the heads are averaged."""

    def __init__(self, shape):
        self.shape = shape

    def forward(self, name, params):
        if name == "sum":
            self.n = sum(isinstance(obj, Tensor) and obj.shape == self.shape for obj in gc.get_objects())
        return nullcontext()


def test_a_gat_lets_go_of_wide_rows_before_it_averages_heads():
    graph, model = WHOLE.shard(Solo(), **NARROW), models.GAT(FEATURES.shape[1], 3, layers=1, out_heads=2, rng=nn.Random(0))
    with recording.observed(heads := Heads((WHOLE.n_dst, 2, 3))):
        model(graph, Tensor(FEATURES.astype(np.float32)))
    assert heads.n == 1, "what attention returned alone"
