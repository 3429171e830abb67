"""Exact numerics: one hash of a training for all ways to run it; each reduction is needed for it; refused inputs."""

import math

import numpy as np
import pytest

from sarlite import Graph, HeteroGraph, Trainer, fn, kernels, nn, numerics, optim
from sarlite.cli import config, predict_command, run
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, DataError
from sarlite.graph.weights import row_sums
from sarlite.minibatch import HEC, NeighborLoader
from sarlite.models import GCN, SAGE
from sarlite.nn.activate import activation_sums
from sarlite.nn.norm import batch_moments
from sarlite.numerics import reductions
from sarlite.numerics.edge_sums import EdgeSums, FloatSum
from sarlite.numerics.exact_edge_sums import AllEdges, ExactEdgeSums, GridSum
from sarlite.numerics.exact_sum import Exact
from sarlite.tape import Tensor, ops
from sarlite.train import checkpoint
from sarlite.train.step import gradient_norm
from tests.helpers.train.exact_runs import CASES, N_CLASSES, N_FEAT, N_NODES, data, digest, graph_of, work
from tests.helpers.train.training_runs import train_here

pytestmark = pytest.mark.timeout(120)

WAYS = [  # ranks, mode, parts, backward, prefetch, threads a rank, order
    (1, {"n_threads": 2}),
    (2, {"mode": "sar", "parts": "random", "backward": "push", "prefetch": 0}),
    (3, {"mode": "sar", "parts": "by hand", "backward": "fetch", "prefetch": 1, "n_threads": 2}),
    (4, {"mode": "sar", "parts": "by hand", "backward": "push", "prefetch": 2}),
    (3, {"mode": "sa", "parts": "by hand", "backward": "push", "prefetch": 1}),
    (2, {"mode": "sa", "parts": "contiguous", "backward": "fetch", "prefetch": 0, "n_threads": 2}),
    (4, {"mode": "oneshot", "parts": "by hand", "backward": "push", "prefetch": 0}),
    (3, {"mode": "oneshot", "parts": "random", "backward": "fetch", "prefetch": 1}),
    (4, {"mode": "broadcast", "parts": "metis", "prefetch": 2, "n_threads": 2}),
    (3, {"mode": "broadcast", "parts": "by hand", "backward": "push", "prefetch": 0,
         "order": np.random.default_rng(0).permutation(N_NODES)}),
]  # fmt: skip


@pytest.fixture
def instruction_set():
    """Restore the instruction set and the number of threads."""
    before, n_threads = kernels.instruction_set(), kernels.threads()
    yield
    kernels.set_instruction_set(before)
    kernels.set_threads(n_threads)


def hashes(case, dtype, ways=WAYS, sets=None, **options):
    """Yield the hash of one rank on each instruction set, and of each way."""
    for name in kernels.instruction_sets() if sets is None else sets:
        kernels.set_instruction_set(name)
        yield digest(1, case, dtype, **options)
    for n_ranks, way in ways:
        yield digest(n_ranks, case, dtype, **way, **options)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES)
def test_one_hash_near_the_fast_numbers(case, instruction_set):
    """Each case runs three of the ways; the next case runs other ways."""
    number, last = list(CASES).index(case), kernels.instruction_sets()[-1:]
    first, second, third = (WAYS[(number + more) % len(WAYS)] for more in (0, 5, 3))
    assert len(set(hashes(case, np.float32, [first, second], last if number % 3 else None))) == 1
    assert len(set(hashes(case, np.float64, [third], last, epochs=1))) == 1
    exact, fast = (work(Solo(), case, np.float64, epochs=1, numerics=numerics) for numerics in ("exact", "fast"))
    for a, b in zip([exact[0][0][1], *exact[1]], [fast[0][0][1], *fast[1]]):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


RELATIONS = [("a", "first", "c"), ("b", "second", "c"), ("a", "third", "c")]


def relational(comm, options):
    """Return sums over three relations into one type, and the gradients of the sources' rows."""
    rng = np.random.default_rng(0)
    edges = {relation: rng.integers(0, 30, (2, 200)) for relation in RELATIONS}
    x = {name: rng.standard_normal((30, 4), np.float32) * np.float32(10) ** rng.integers(-9, 10, (30, 1)) for name in "abc"}
    graph = HeteroGraph.from_edges(edges, dict.fromkeys("abc", 30), comm=comm, parts="contiguous", **options)
    inputs = {name: Tensor(rows[graph.node_ids[name]], name < "c") for name, rows in x.items()}
    with numerics.using(Exact(graph.comm)):
        out = graph.aggregate({relation: fn.copy_src(inputs[relation[0]]) for relation in RELATIONS}, "sum")["c"]
        out.backward(inputs["c"])
    return out.data, inputs["a"].grad, inputs["b"].grad


@pytest.mark.parametrize("ways", [[(1, {}), (2, {}), (3, {"mode": "broadcast"})],
                                  [(1, {"backward": "fetch"}), (3, {"backward": "fetch", "mode": "sa"})]], ids=["together", "apart"])
def test_relations_have_one_hash_for_each_way_of_exchanging_them(ways):
    hashed = [[np.concatenate(parts).tobytes() for parts in zip(*threads.run(n_ranks, relational, options))] for n_ranks, options in ways]
    assert all(bits == hashed[0] for bits in hashed)


@pytest.mark.parametrize("case", ["gat of edge values", "minibatch sage", "rgcn"])
def test_fast_numerics_repeat_a_run_bit_for_bit(case):
    way = {"mode": "sar", "parts": "random", "prefetch": 1, "n_threads": 2, "numerics": "fast"}
    assert len({digest(2, case, **way) for _ in range(2)}) == 1


def bipartite(comm, reducer):
    """Return sums over weighted edges of a bipartite graph, and their gradients, by id."""
    rng = np.random.default_rng(0)
    n_src, n_dst, weight = 90, 50, 10.0 ** rng.uniform(-6, 6, 700)
    edges, x = (rng.zipf(1.6, 700) % n_src, rng.zipf(1.6, 700) % n_dst), rng.standard_normal((n_src, 4))
    graph = Graph.from_edges(*edges, n_src=n_src, n_dst=n_dst).with_edge_values(weight)
    if comm.size > 1:
        graph = graph.shard(comm, rng.integers(0, comm.size, n_dst), src_parts=rng.integers(0, comm.size, n_src))
    rows = Tensor(x[graph.src_ids], True)
    with numerics.using(Exact(comm)):
        out = graph.aggregate(fn.copy_src(rows), reducer)
        out.backward(np.cos(np.add.outer(graph.dst_ids, np.arange(4))))
    return (graph.dst_ids, out.data), (graph.src_ids, rows.grad)


@pytest.mark.parametrize("reducer", ["mean", "sym"])
def test_a_bipartite_graph(reducer):
    bits = []
    for n_ranks in (1, 2, 3):
        of_ranks = zip(*threads.run(n_ranks, bipartite, reducer))
        arrays = [[np.concatenate(of) for of in zip(*pairs)] for pairs in of_ranks]
        bits.append([values[np.argsort(ids)].tobytes() for ids, values in arrays])
    assert bits[0] == bits[1] == bits[2]


@pytest.mark.parametrize("rows", [[1, 2, 3, 200, 25, 28, 199, 4], [1, 1, 1, 2, 300, 25, 25, 5, 3], [329, 9, 2, 2]])
def test_training_rows_in_any_order_and_several_times(rows):
    """The rows may ascend on one rank and not on another one, or come twice."""
    def trained(comm):
        graph = graph_of(comm, CASES["gcn"], np.float32)
        _, x, labels, _ = data(np.float32)
        rng, ids = nn.Random(3), graph.node_ids
        train_rows = np.array([at for row in rows for at in np.flatnonzero(ids == row)], np.int64)
        trainer = Trainer(graph, GCN(N_FEAT, N_CLASSES, rng=rng), x[ids], labels[ids], train_rows, rng=rng, numerics="exact",
                          optimizer=lambda flat: optim.Adam(flat, 0.01))
        return [trainer.step() for _ in range(3)], trainer.flat.data.tobytes()

    expected = trained(Solo())
    for n in (2, 3):
        assert threads.run(n, trained) == [expected] * n


# ---- each reduction done fast, one at a time


def _over_ranks(function):
    """Return a reduction that is fast on this rank's rows, summed over ranks."""
    def whole(self, *args):
        return self.comm.allreduce(np.ascontiguousarray(function.__wrapped__(*args))) if self.across else function.__wrapped__(*args)

    return whole


def _activation_sums(self, *args):
    with numerics.using(None):
        return self.comm.allreduce(np.ascontiguousarray(activation_sums(*args)))


def _share(self, x):
    return self.comm.allreduce(np.array(x.sum())) if self.comm.rank == 0 else self.comm.allreduce(np.array(x.sum())) * 0


class FastEdges(AllEdges):
    """Sums over a function's edges in the order of the edges."""

    def sum_to_dst(self, values, out=None, **scale):
        out = np.zeros((self.n_dst, *values.shape[1:]), values.dtype) if out is None else out
        kernels.spmm(self.indptr, None, np.ascontiguousarray(values), out, **scale)
        return out


def _elsewhere(name):
    """Return a method whose result differs in the last bit, as with another library, on several ranks."""
    def moved_result(self, *args, out=None, **options):
        right = getattr(Exact, name)(self, *args, **options)
        moved = right if self.comm.size == 1 else np.nextafter(right, np.inf)
        if out is None:
            return moved
        out[...] = moved
        return out

    return {name: moved_result}


def _fast(function):
    return lambda self, *args, **options: function.__wrapped__(*args, **options)


ACCUMULATORS = {name for name in vars(ExactEdgeSums) if not name.startswith("_")} - {"over_all_edges"}


def _fast_sums(*names):
    """Return the named accumulators of numerics "fast"."""
    return {"sums": {name: getattr(EdgeSums, name) for name in names}}


BROKEN = {
    # name of the fast part: (a model, the dtype, the replaced methods or operators)
    "product": ("gcn", np.float32, {"product": _fast(reductions.product)}),
    "product of float64": ("gcn", np.float64, {"product": _fast(reductions.product)}),
    "product over rows": ("gcn", np.float32, {"product_over_rows": _over_ranks(reductions.product_over_rows)}),
    "product over rows of float64": ("gcn", np.float64, {"product_over_rows": _over_ranks(reductions.product_over_rows)}),
    "total": ("sage", np.float64, {"total": lambda self, x, axis=None, keepdims=False: _total(self, x, axis, keepdims)}),
    "activation": ("sage", np.float64, {"activation_sums": _activation_sums}),
    "moments": ("sage", np.float64, {"batch_moments": _fast(batch_moments)}),
    "product by head": ("functions", np.float32, {"product_by_head": _fast(reductions.product_by_head)}),
    "product by head over rows":
        ("functions", np.float64, {"product_by_head_over_rows": _over_ranks(reductions.product_by_head_over_rows)}),
    "the largest": ("gat", np.float32, {"_max": lambda self, array, across: array}),
    "who sums gradients": ("gcn", np.float32, {"sums_follow": lambda self: True}),
    "picked rows": ("sage pool", np.float32, _elsewhere("scatter_rows")),
    **{name: (case, np.float32, _elsewhere(name)) for name, case in (
        ("exp", "gat"), ("log", "gat"), ("log1p", "sage pool"), ("expm1", "functions"), ("power", "gcn"))},
    "share": ("gcn", np.float64, {"share": _share}),
    "norm": ("gcn", np.float64, {"gradient_norm": _fast(gradient_norm)}),
    "sums": ("sage", np.float32, _fast_sums("row_sum", "row_sum_like", "row_gradient", "scaled")),
    "sums of float64": ("sage", np.float64, _fast_sums("row_sum", "row_sum_like", "row_gradient", "scaled")),
    "extremum": ("sage pool", np.float32, _fast_sums("picked_gradient")),
    "attention": ("gat", np.float32, _fast_sums("softmax_sum", "softmax_gradient")),
    "relations": ("relations", np.float64, {"join": lambda self, others: FloatSum(self.shape, self.dtype)}),
    "sums of relations": ("rgat", np.float32, _fast_sums("softmax_sum", "softmax_gradient")),
    "sums of picks": ("minibatch gcn", np.float64, _fast_sums("row_sum", "row_sum_like", "row_gradient", "scaled")),
    "functions": ("functions", np.float32, {"sums": {
        "all_edges": lambda self, *edges: FastEdges(self, *edges), "message_gradients": EdgeSums.message_gradients}}),
}  # fmt: skip


NO_REDUCTIONS = {"check_comm", "check_supported", "check_rows", "backward", "edge_grid", "grid_of", "largest", "column_sums"}
HELD_OTHERWISE = {"choices": "the way that is left out is refused",
                  "rank_invariant": "both choices have the same bits in every case here",
                  "add_at": "what is added to one place is the same each time"}


def test_each_reduction_is_broken_once():
    broken = {method for _, _, methods in BROKEN.values() for method in methods} - {"sums", "join"}
    reductions = {name for name in vars(Exact) if name.islower() and not name.startswith("_")} - NO_REDUCTIONS - {"name"}
    assert reductions - broken == HELD_OTHERWISE.keys()
    assert {name for _, _, methods in BROKEN.values() for name in methods.get("sums", {})} == ACCUMULATORS


def _total(self, x, axis, keepdims):
    local_total = reductions.total.__wrapped__(x, axis, keepdims)
    over_rows = self.across and (axis is None or 0 in np.atleast_1d(axis) % x.ndim)
    return self.comm.allreduce(np.ascontiguousarray(local_total)) if over_rows else local_total


def test_degrees_of_weights_do_not_know_the_order_of_edges():
    rng = np.random.default_rng(2)
    indptr, values = np.array([0, 0, 900, 1000, 1001]), 10.0 ** rng.uniform(-9, 9, 1001)
    order = np.concatenate([rng.permutation(900), 900 + rng.permutation(100), [1000]])
    degrees = row_sums(indptr, lambda edges: values[edges])
    assert (degrees == row_sums(indptr, lambda edges: values[order][edges])).all()
    for scale in (1.0, 2.0**-1000, 2.0**980):
        scaled = row_sums(indptr, lambda edges, scale=scale: values[edges] * scale)
        assert (scaled == [math.fsum(values[a:b] * scale) for a, b in zip(indptr, indptr[1:])]).all()


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", BROKEN)
def test_a_fast_reduction_changes_the_hash_somewhere(name, instruction_set, monkeypatch):
    case, dtype, methods = BROKEN[name]
    methods = dict(methods)
    for accumulator, method in methods.pop("sums", {}).items():
        monkeypatch.setattr(ExactEdgeSums, accumulator, method)
    if join := methods.pop("join", None):
        monkeypatch.setattr(GridSum, "join", join)
    broken = type("Broken", (Exact,), methods)
    hashes_of_ways = hashes(case, dtype, WAYS[::-1], numerics=broken)
    first = next(hashes_of_ways)
    assert any(other != first for other in hashes_of_ways)


# ---- bounds


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_are_accurate(dtype):
    values = np.concatenate([np.linspace(-60, 60, 4001), [-800, 0, 1e-12]]).astype(dtype)
    wide = values.astype(np.longdouble)
    exact = Exact(Solo())
    for name, x, expected in (("exp", values, np.exp(wide)), ("expm1", -np.abs(values), np.expm1(-np.abs(wide))),
                              ("log", np.exp(values[:-3]), np.log(np.exp(values[:-3]).astype(np.longdouble))),
                              ("log1p", np.exp(-np.abs(values)), np.log1p(np.exp(-np.abs(values)).astype(np.longdouble)))):  # fmt: skip
        error = np.abs(getattr(exact, name)(x) - expected)
        assert (error <= 3 * np.finfo(dtype).eps * np.abs(expected) + np.finfo(dtype).tiny).all(), name
    assert exact.log(np.array([0, -1, np.inf], dtype)).tolist()[::2] == [-np.inf, np.inf]
    assert exact.power(0.9, 17) == pytest.approx(0.9**17, rel=1e-15)


def test_infinities_come_through():
    graph, x = Graph.from_edges([0, 1, 2], [1, 1, 2], 3), np.array([[1.0], [np.inf], [2.0]], np.float32)
    with numerics.using(Exact(Solo())):
        assert graph.aggregate(fn.copy_src(x), "sum").data.tolist() == [[0.0], [np.inf], [2.0]]


# ---- what is refused


def trainer(graph, **options):
    rng = nn.Random(0)
    return Trainer(graph, SAGE(3, 2, layers=2, hidden=4, rng=rng), np.ones((graph.n_src, 3), np.float32), np.zeros(graph.n_dst, int),
                   slice(None), optimizer=lambda flat: optim.Adam(flat), rng=rng, numerics="exact", **options)


def test_what_is_not_exact_is_refused_on_every_rank():
    edges = [0, 1, 2, 3], [1, 2, 3, 0]

    def work(comm):
        graph = Graph.from_edges(*edges).shard(comm, "contiguous")
        with pytest.raises(ConfigError, match="a loss function has no exact version"):
            trainer(graph, loss=lambda output, targets: output.mean())
        for options, words in (({"remote": "local"}, "remote='local'"), ({"remote": HEC()}, "remote=HEC"),
                               ({"batches": "balanced"}, "batches='balanced'")):
            rows = np.ones((graph.n_dst, 3), np.float32), np.zeros(graph.n_dst, int), slice(None)
            loader = NeighborLoader(graph, *rows, fanouts=(2, 2), batch_size=2, **options)
            for name in ("batches", "scoring"):
                with pytest.raises(ConfigError, match=f"a loader with {words}"):
                    trainer(graph, **{name: loader})
        with numerics.using(Exact(comm)):
            x = Tensor(np.ones((graph.n_src, 2)), placement="rows")
            with pytest.raises(ConfigError, match="evaluated as Transformed are not exact yet"):
                graph.aggregate(fn.linear(x, nn.Parameter(np.ones((2, 2))), evaluation="inside"), "sum")
            with pytest.raises(ConfigError, match="'tanh' is not exact yet"):
                ops.tanh(x)
            with pytest.raises(ConfigError, match="sum over axis 0 .*one rank's rows"):
                ops.sum(x, 0)
            with pytest.raises(ConfigError, match="its first axis must go"):
                ops.mul(x, nn.Parameter(np.ones((1, 2))))
            with pytest.raises(DataError, match="leave no room"):
                ops.matmul(x * 1e200, nn.Parameter(np.ones((2, 2)))).backward(np.full((graph.n_dst, 2), 1e200))
        edges_by_relation = {("a", "to", "a"): edges, ("a", "too", "a"): edges}
        hetero = HeteroGraph.from_edges(edges_by_relation, {"a": 4}, comm=comm, parts="contiguous")
        rows, weight = Tensor(np.ones((hetero.of("a").n_dst, 2)), True), nn.Parameter(np.ones((2, 2)))
        with numerics.using(Exact(comm)), pytest.raises(ConfigError, match="evaluated as Transformed are not exact yet"):
            hetero.aggregate(dict.fromkeys(hetero.relations, fn.linear(rows, weight)), "sum", evaluation="inside")
        with numerics.using(Exact(comm)), pytest.raises(ConfigError, match="'sym' of several relations at once"):
            hetero.aggregate(dict.fromkeys(hetero.relations, fn.copy_src(rows)), "sym")

    threads.run(2, work)


def test_a_numerics_of_another_name_is_refused():
    with pytest.raises(ConfigError, match="numerics 'slow' .*fast, exact"):
        Trainer(Graph.from_edges([0], [1]), SAGE(3, 2, rng=nn.Random(0)), np.ones((2, 3)), np.zeros(2, int), slice(None),
                optimizer=lambda flat: optim.Adam(flat), rng=nn.Random(0), numerics="slow")


# ---- the command


def checkpoint_of(folder):
    tensors, _ = checkpoint.read(Solo(), str(folder / "checkpoint.safetensors"))
    return {name: array.tobytes() for name, array in tensors.items()}


@pytest.mark.parametrize("more", [[], ["--batch-size", "40", "--fanouts", "4,5"]], ids=["full batch", "minibatches"])
def test_the_command_goes_on_with_other_ranks_and_has_the_same_checkpoint(tmp_path, more):
    flags = ["--numerics", "exact", "--model", "sage", *more, "--epochs", 3]
    train_here(tmp_path / "one", *flags)
    train_here(tmp_path / "two", *flags[:-1], 2, "--ranks", 2, "--mode", "oneshot")
    resumed = ["--resume", str(tmp_path / "two" / "checkpoint.safetensors"), "--epochs", "3", "--ranks", "3", "--mode", "sa"]
    options = config.parse([*resumed, "--run-dir", str(tmp_path / "three"), "--threads", "1", "--progress", "none"])
    threads.run(3, run.train, options)
    assert checkpoint_of(tmp_path / "three") == checkpoint_of(tmp_path / "one")
    if more:
        return
    with pytest.raises(ConfigError, match="--numerics fast: cannot change"):
        fast = config.parse([*resumed, "--numerics", "fast", "--run-dir", str(tmp_path / "four")])
        threads.run(3, run.train, fast)
    outputs = []
    for n_ranks in (1, 3):
        out = str(tmp_path / f"{n_ranks}.npy")
        parsed = predict_command.parse(["--checkpoint", str(tmp_path / "one" / "checkpoint.safetensors"), "--out", out, "--threads", "1"])
        threads.run(n_ranks, predict_command.predict, *parsed)
        outputs.append(np.load(out).tobytes())
    assert outputs[0] == outputs[1]
